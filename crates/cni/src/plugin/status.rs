//! STATUS: could an ADD succeed within its timeout?
//!
//! A node whose plugin says no is NotReady, and all pods that run there leave their Services. So STATUS waits for the
//! agent as long as an ADD does, and a restart of the agent is not an error.

use std::time::{Duration, Instant};

use crate::plugin::agent::ask_status_until;
use crate::plugin::config::{Config, OnTimeout};
use crate::plugin::{Code, Failure, say};

/// The kubelet asks for the status every few seconds, and calls the runtime dead after 30 seconds without an answer.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

pub(super) fn status(config: &Config) -> Result<(), Failure> {
    config.require_gc_and_status("STATUS")?;
    let deadline = Instant::now() + config.timeout.min(LONGEST_WAIT);
    match (ask_status_until(&config.agent_socket, deadline), config.on_timeout) {
        (Ok(()), OnTimeout::Fail | OnTimeout::Isolate) => Ok(()),
        // An ADD would start the pod with everything denied.
        (Err(reason), OnTimeout::Isolate) => {
            say(format_args!("pods that start now are isolated, with all traffic denied: {reason}"));
            Ok(())
        }
        (Err(reason), OnTimeout::Fail) => {
            Err(Failure::new(Code::Unavailable, "pods cannot start on this node").because(reason))
        }
    }
}
