//! Restores the conntrack sysctls that an agent with `--flows on` has changed.

use std::path::Path;

use super::report::UninstallReport;
use crate::flows::accounting::ConntrackSettings;

pub(super) fn restore(report: &mut UninstallReport, run_dir: &Path) {
    let accounting = ConntrackSettings::of_node(run_dir);
    let what = "the agent's change of net.netfilter.nf_conntrack_acct and nf_conntrack_timestamp";
    match accounting.is_remembered() {
        false => report.absent(what),
        true => report.remove(what, || accounting.restore().map(|_| ())),
    }
}
