//! The log: structured, to standard error, in colour only on a terminal.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Crates of this project that log. `debug` applies only to them: messages of libraries would bury theirs.
const LOGGING_CRATES: [&str; 8] =
    ["access", "agent", "aggregator", "cluster", "context", "delivery", "feed", "listener"];

/// The sources report failed requests once; the Kubernetes client would repeat them at every attempt.
const SILENCED: &str = "kube_client=off";

/// Level and format of the log.
#[derive(Debug, Clone, Copy, Args)]
pub struct LogArguments {
    /// Log format; the log goes to standard error.
    #[arg(long, env = "RINGFENCE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,

    /// Log level: the least severe messages to log. RUST_LOG overrides it, and can set the level of single crates, as in
    /// `RUST_LOG=info,cluster=debug`.
    #[arg(long, env = "RINGFENCE_LOG_LEVEL", value_name = "LEVEL", value_enum, ignore_case = true, default_value_t = LogLevel::Info)]
    log_level: LogLevel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    /// Errors: policies are not enforced, or tables not published.
    Error,
    /// Errors and warnings, such as retries and fallbacks.
    Warn,
    /// Also changes of state, such as the end of the initial sync.
    Info,
    /// Also single events, such as each commit.
    Debug,
}

/// Starts the log of the process.
pub fn start(arguments: &LogArguments) {
    let LogArguments { log_format, log_level } = arguments;
    let filter = match std::env::var("RUST_LOG") {
        Ok(wanted) if !wanted.is_empty() => EnvFilter::builder().parse_lossy(wanted),
        _ => EnvFilter::new(directives(*log_level)),
    };
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    // A closed standard error must not end the agent.
    let log = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    match log_format {
        LogFormat::Text => log.with_ansi(colour).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// Log directives in the format of RUST_LOG.
fn directives(level: LogLevel) -> String {
    match level {
        LogLevel::Error => format!("error,{SILENCED}"),
        LogLevel::Warn => format!("warn,{SILENCED}"),
        LogLevel::Info => format!("info,{SILENCED}"),
        LogLevel::Debug => {
            LOGGING_CRATES.iter().fold(format!("info,{SILENCED}"), |text, name| text + "," + name + "=debug")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_is_a_valid_filter() {
        for level in LogLevel::value_variants() {
            let text = directives(*level);
            EnvFilter::try_new(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        }
        assert_eq!(directives(LogLevel::Warn), "warn,kube_client=off");
    }

    #[test]
    fn debug_covers_every_crate_that_logs() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of the crates");
        let mut logging = Vec::new();
        for folder in std::fs::read_dir(crates).expect("the folder of the crates") {
            let folder = folder.expect("a crate");
            let manifest = std::fs::read_to_string(folder.path().join("Cargo.toml")).expect("its manifest");
            if manifest.lines().any(|line| line.starts_with("tracing.")) {
                logging.push(folder.file_name().into_string().expect("UTF-8"));
            }
        }
        logging.sort();
        assert_eq!(logging, LOGGING_CRATES);
    }
}
