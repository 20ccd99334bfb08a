//! `ringfence status`: what the agent of this node knows and has done, on one screen.

mod screen;

use std::process::ExitCode;

use super::{NO, YES};
use crate::api::client;
use crate::cli::{Output, StatusArguments};

pub(crate) fn status(arguments: &StatusArguments) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(client::status(&arguments.run_dir))?;
    match arguments.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
        Output::Text => anstream::print!("{}", screen::text(&report)),
    }
    Ok(if report.ready { YES } else { NO })
}
