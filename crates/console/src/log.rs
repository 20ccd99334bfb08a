//! The log: structured, to standard error, in colour only on a terminal.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::LogFormat;

/// What is logged unless RUST_LOG says otherwise. The sources report what goes wrong with a request, once and in our
/// words; the Kubernetes client would say it again at every attempt.
const USUAL: &str = "info,kube_client=off";

pub fn start(format: LogFormat) {
    let filter = match std::env::var("RUST_LOG") {
        Ok(wanted) if !wanted.is_empty() => EnvFilter::builder().parse_lossy(wanted),
        _ => EnvFilter::new(USUAL),
    };
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    // When nobody reads standard error any more, that must not end the agent.
    let log = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    match format {
        LogFormat::Text => log.with_ansi(colour).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}
