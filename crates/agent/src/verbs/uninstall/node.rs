//! Removes the entry in the container runtime's CNI configuration, and the plugin.

use std::io::ErrorKind;
use std::path::Path;

use super::report::UninstallReport;
use crate::cni_install::{Trace, is_our_plugin, plugin_path, remove, traces};

pub(super) fn configurations(report: &mut UninstallReport, folder: &Path) {
    let found = match traces(folder) {
        Ok(found) => found,
        Err(e) => return report.failed("entries in network configurations", e),
    };
    if found.is_empty() {
        report.absent(format!("an entry in the network configurations of {}", folder.display()));
    }
    for trace in found {
        let what = match &trace {
            Trace::Entry(path) | Trace::Unreadable(path, _) => format!("the entry in {}", path.display()),
            Trace::Derived(path) => format!("{}, which replaced a .conf file", path.display()),
            Trace::Temporary(path) => format!("the unfinished file {}", path.display()),
        };
        match &trace {
            Trace::Unreadable(..) => match remove(&trace) {
                Ok(()) => report.absent(what),
                Err(e) => report.failed(what, e),
            },
            Trace::Entry(_) | Trace::Derived(_) | Trace::Temporary(_) => report.remove(what, || remove(&trace)),
        }
    }
}

pub(super) fn plugin(report: &mut UninstallReport, folder: &Path, keep: bool) {
    let path = plugin_path(folder);
    let what = format!("the plugin {}", path.display());
    match is_our_plugin(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => report.absent(what),
        Err(e) => report.failed(what, e),
        Ok(false) => report.kept(what, "it is another program with that name"),
        Ok(true) if keep => report.kept(what, "--keep-plugin is set"),
        Ok(true) => report.remove(what, || std::fs::remove_file(&path)),
    }
}
