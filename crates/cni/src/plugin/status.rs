//! STATUS: whether an ADD could succeed within its timeout.
//!
//! A node whose plugin fails STATUS becomes NotReady, and its pods are removed from their Services. So STATUS waits for
//! the agent as long as an ADD does, and a restart of the agent is not an error.

use std::time::{Duration, Instant};

use crate::plugin::agent::ask_status_until;
use crate::plugin::config::{Config, OnTimeout};
use crate::plugin::{Code, Failure, print_error};

/// The kubelet queries the status every few seconds, and considers the runtime dead after 30 seconds without a
/// response.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

pub(super) fn status(config: &Config) -> Result<(), Failure> {
    config.require_gc_and_status("STATUS")?;
    let deadline = Instant::now() + config.timeout.min(LONGEST_WAIT);
    match (ask_status_until(&config.agent_socket, deadline), config.on_timeout) {
        (Ok(()), OnTimeout::Fail | OnTimeout::Isolate) => Ok(()),
        // An ADD would isolate the pod.
        (Err(reason), OnTimeout::Isolate) => {
            print_error(format_args!("pods that start now are isolated, with all traffic denied: {reason}"));
            Ok(())
        }
        (Err(reason), OnTimeout::Fail) => {
            Err(Failure::new(Code::Unavailable, "pods cannot start on this node").because(reason))
        }
    }
}
