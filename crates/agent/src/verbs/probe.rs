//! `ringfence probe`: health and readiness for the kubelet, asked over the socket that belongs to root.
//!
//! A TCP port of the node's network namespace is anybody's who binds it first, and could answer for an agent that hangs.

use std::process::ExitCode;

use console::{NO, YES, output};

use super::runtime;
use crate::api::client::{self, Unanswered};
use crate::cli::ProbeArguments;

pub(crate) fn probe(arguments: &ProbeArguments) -> anyhow::Result<ExitCode> {
    let ProbeArguments { question, run_dir } = arguments;
    match runtime()?.block_on(client::probe(run_dir, question.route())) {
        Ok(answer) => output::answer(&answer, YES),
        Err(Unanswered::Refused(reason)) => output::answer(&format!("{reason}\n"), NO),
        Err(error) => Err(error.into()),
    }
}
