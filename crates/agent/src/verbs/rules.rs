//! `ringfence rules`: prints the agent's committed rules as nft text.

use std::process::ExitCode;

use anyhow::bail;
use console::output::{self, ReaderState};
use console::{DOUBTFUL, NO, YES};

use super::runtime;
use crate::api::client::{self, RequestError};
use crate::api::rules::{KernelMatch, RulesQuery};
use crate::cli::RulesArguments;

pub(crate) fn rules(arguments: &RulesArguments) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(print(arguments))
}

async fn print(arguments: &RulesArguments) -> anyhow::Result<ExitCode> {
    let query = RulesQuery { family: arguments.family() };
    let mut rules = client::rules(&arguments.run_dir, &query).await.map_err(without_agent)?;
    while let Some(part) = rules.next().await? {
        match output::print_bytes(&part)? {
            ReaderState::Reads => {}
            ReaderState::Gone => return Ok(YES),
        }
    }
    match rules.matched {
        KernelMatch::Equal => Ok(YES),
        KernelMatch::Different => {
            anstream::eprintln!(
                "{DOUBTFUL}warning:{DOUBTFUL:#} the kernel has other rules than these, which the agent committed; the \
                 first lines show the difference"
            );
            Ok(NO)
        }
        KernelMatch::Unknown => bail!("the rules are not compared with those of the kernel; the first lines say why"),
    }
}

/// The rules stay in the kernel when the agent stops.
fn without_agent(error: RequestError) -> anyhow::Error {
    match &error {
        RequestError::Unreachable { .. } => anyhow::Error::new(error)
            .context("without an agent the rules stay in the kernel, where 'nft list ruleset' on the node shows them"),
        RequestError::Refused(_)
        | RequestError::BrokeOff(_)
        | RequestError::TimedOut
        | RequestError::Closed
        | RequestError::NotUnderstood(_) => error.into(),
    }
}
