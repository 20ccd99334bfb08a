//! `ringfence install-cni`: installs the plugin and its entry, once or continuously.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use console::YES;
use tokio::signal::unix::{SignalKind, signal};

use super::runtime;
use crate::cli::{ChecksumOffload, InstallCniArguments, OnTimeout};
use crate::cni_install::{InstalledFiles, Plugin, watch};
use crate::conflist::{ConflistEntry, PLUGIN};
use crate::lock_file::{self, Lock, LockKind};

const STAYS: &str = "the plugin and its entry stay in place, so no pod starts on this node without an agent \
    ('ringfence uninstall' removes them)";

pub(crate) fn install_cni(arguments: InstallCniArguments) -> anyhow::Result<ExitCode> {
    let InstallCniArguments {
        folders,
        plugin,
        run_dir,
        agent_socket,
        state_dir,
        timeout_seconds,
        on_timeout,
        tx_checksum_offload,
        watch: kept,
        log,
    } = arguments;
    console::log::start(&log);
    let plugin = match plugin {
        Some(path) => path,
        None => beside_this_program()?,
    };
    let entry = ConflistEntry {
        agent_socket: absolute(agent_socket.unwrap_or_else(|| run_dir.join("cni.sock")), "--agent-socket")?,
        state_dir: absolute(state_dir.unwrap_or_else(|| run_dir.join("cni")), "--state-dir")?,
        timeout_seconds,
        on_timeout: match on_timeout {
            OnTimeout::Fail => "fail",
            OnTimeout::Isolate => "isolate",
        },
        checksum_offload: match tx_checksum_offload {
            ChecksumOffload::On => None,
            ChecksumOffload::Off => Some("off"),
        },
    };
    let plugin = Plugin::read(&plugin)?;
    let watched = InstalledFiles { conf_dir: folders.cni_conf_dir, bin_dir: folders.cni_bin_dir, plugin, entry };
    let _lock = if kept { Some(lock(&run_dir)?) } else { None };
    runtime()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            () = watch(watched, kept) => {}
            _ = terminate.recv() => tracing::info!("SIGTERM: stopping; {STAYS}"),
            _ = interrupt.recv() => tracing::info!("SIGINT: stopping; {STAYS}"),
        }
        Ok(YES)
    })
}

fn beside_this_program() -> anyhow::Result<PathBuf> {
    let this =
        std::env::current_exe().context("cannot determine the path of this program; set the plugin with --plugin")?;
    Ok(this.with_file_name(PLUGIN))
}

/// The runtime starts the plugin with an unknown working directory.
fn absolute(path: PathBuf, flag: &str) -> anyhow::Result<PathBuf> {
    if path.is_relative() {
        bail!("invalid {flag} {}: expected an absolute path", path.display());
    }
    if path.to_str().is_none() {
        bail!("invalid {flag} {}: expected UTF-8", path.display());
    }
    Ok(path)
}

/// Shows `uninstall` that a process would restore the entry. Two may hold the shared lock, as during an update.
fn lock(run_dir: &Path) -> anyhow::Result<File> {
    let path = run_dir.join(crate::run_dir::INSTALL_LOCK);
    DirBuilder::new().recursive(true).mode(0o755).create(run_dir).with_context(|| {
        format!("cannot create the run directory {}; choose another one with --run-dir", run_dir.display())
    })?;
    // An `uninstall` of the first release cannot be detected as the holder of such a lock; it ends soon.
    let lock = lock_file::claim(&path, LockKind::Shared, || false);
    match lock.with_context(|| format!("cannot lock {}", path.display()))? {
        Lock::Taken(lock) => Ok(lock),
        Lock::HeldByOther => bail!("'ringfence uninstall' is running ({})", path.display()),
    }
}
