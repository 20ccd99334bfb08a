//! `ringfence status`: prints the status of this node's agent on one screen.

mod screen;

use std::process::ExitCode;

use console::{NO, Output, YES, output};

use super::runtime;
use crate::api::client;
use crate::cli::StatusArguments;

pub(crate) fn status(arguments: &StatusArguments) -> anyhow::Result<ExitCode> {
    let report = runtime()?.block_on(client::status(&arguments.run_dir))?;
    let text = match arguments.output {
        Output::Json => output::json(&report)?,
        Output::Text => screen::text(&report),
    };
    output::answer(&text, if report.ready { YES } else { NO })
}
