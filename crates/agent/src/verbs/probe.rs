//! `ringfence probe`: health and readiness for the kubelet, over a socket that only root can create.
//!
//! Any process in the node's network namespace could bind a TCP port first, and answer for an agent that hangs.

use std::process::ExitCode;

use console::{NO, YES, output};

use super::runtime;
use crate::api::client::{self, RequestError};
use crate::cli::ProbeArguments;

pub(crate) fn probe(arguments: &ProbeArguments) -> anyhow::Result<ExitCode> {
    let ProbeArguments { question, run_dir } = arguments;
    match runtime()?.block_on(client::probe(run_dir, question.route())) {
        Ok(answer) => output::answer(&answer, YES),
        Err(RequestError::Refused(reason)) => output::answer(&format!("{reason}\n"), NO),
        Err(error) => Err(error.into()),
    }
}
