//! `ringfence uninstall`: removes everything that Ringfence has installed on a node, and nothing else.
//!
//! Pods can start at any moment: the entry in the network configuration is removed first, then the plugin and its
//! files.

mod accounting;
mod node;
mod report;
mod run_files;
mod state_files;
mod tables;

use std::process::ExitCode;

use anyhow::bail;
use console::{DOUBTFUL, NO, YES};

use crate::cli::UninstallArguments;
use crate::run_dir::AGENT_LOCK;

use report::UninstallReport;
use run_files::{AgentLock, Holders};

pub(crate) fn uninstall(arguments: &UninstallArguments) -> anyhow::Result<ExitCode> {
    let UninstallArguments { folders, run_dir, state_dir, table, keep_plugin, force, dry_run, output } = arguments;
    // The locks are held to the end, so that no agent starts meanwhile.
    let holders = Holders::lock(run_dir, *dry_run)?;
    if let Some(living) = living(&holders, run_dir) {
        if !force && !dry_run {
            bail!("{living}; --force continues without stopping the process");
        }
        anstream::eprintln!("{DOUBTFUL}warning:{DOUBTFUL:#} {living}");
    }
    let mut report = UninstallReport::new(*dry_run, *output);
    node::configurations(&mut report, &folders.cni_conf_dir);
    node::plugin(&mut report, &folders.cni_bin_dir, *keep_plugin);
    tables::remove(&mut report, table);
    state_files::remove(&mut report, state_dir);
    accounting::restore(&mut report, run_dir);
    run_files::remove(&mut report, run_dir, holders);
    Ok(if report.finish()? { YES } else { NO })
}

/// Running processes that would undo the uninstallation.
fn living(holders: &Holders, run_dir: &std::path::Path) -> Option<String> {
    let stop = "stop it first ('kubectl --namespace ringfence delete daemonset ringfence', or terminate its process)";
    match (&holders.agent, &holders.install) {
        (AgentLock::HeldByOther, _) => Some(format!(
            "an agent is running and would restore the rules (it holds the lock {}); {stop}",
            run_dir.join(AGENT_LOCK).display()
        )),
        (AgentLock::Taken(_) | AgentLock::NoFolder, AgentLock::HeldByOther) => {
            Some(format!("'ringfence install-cni --watch' is running and would restore the plugin; {stop}"))
        }
        (AgentLock::Taken(_) | AgentLock::NoFolder, AgentLock::Taken(_) | AgentLock::NoFolder) => None,
    }
}
