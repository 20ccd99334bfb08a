//! STATUS: would an ADD succeed?

use std::time::Instant;

use crate::plugin::agent::{AT_ONCE, ask};
use crate::plugin::config::Config;
use crate::plugin::{Code, Failure};
use crate::protocol::{Request, Response};

pub(super) fn status(config: &Config) -> Result<(), Failure> {
    config.require_gc_and_status("STATUS")?;
    let unavailable = |reason: String| Failure::new(Code::Unavailable, "ringfence is not ready").because(reason);
    match ask(&config.agent_socket, &Request::Status, Instant::now() + AT_ONCE) {
        Ok(Response::Ok) => Ok(()),
        Ok(Response::Failed { reason }) => Err(unavailable(reason)),
        Ok(Response::Enforced | Response::Isolated { .. }) => {
            Err(unavailable("the agent answered something else than it was asked".into()))
        }
        Err(error) => Err(unavailable(error.to_string())),
    }
}
