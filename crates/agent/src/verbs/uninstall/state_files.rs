//! Removes the agent's persistent state.

use std::path::{Path, PathBuf};

use super::report::UninstallReport;
use super::run_files::remove_unless_mounted;
use crate::remote::RemoteCache;

pub(super) fn remove(report: &mut UninstallReport, state_dir: &Path) {
    let what = format!("the folder {} with the state of other clusters", state_dir.display());
    let ours: Vec<PathBuf> =
        RemoteCache::files(state_dir).into_iter().filter(|path| path.symlink_metadata().is_ok()).collect();
    let is_there = state_dir.symlink_metadata().is_ok();
    if !is_there {
        return report.absent(what);
    }
    report.remove(what, || {
        ours.iter().try_for_each(std::fs::remove_file)?;
        match std::fs::read_dir(state_dir)?.next() {
            // The folder has files of other programs.
            Some(_) => Ok(()),
            None => remove_unless_mounted(state_dir),
        }
    });
}
