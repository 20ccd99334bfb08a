//! Checks whether this node actually enforces policies.
//!
//! Each part gathers facts at a thin edge (files below a root, netlink, sockets) and derives findings from them in a
//! pure function. docs/doctor.md explains each finding. Only the self-test changes anything, and only in its own
//! network namespaces.

mod bridge_macvlan;
mod cni_side;
mod enforcement;
mod finding;
mod flow_records;
mod foreign_rules;
mod kernel;
mod network;
pub mod self_test;
mod services;
mod sysctl;
mod tc_ingress;
mod tunnels;

use std::path::Path;

use nft::Name;

use crate::flows::accounting::{ConntrackSetting, EVENTS};
use sysctl::Sysctls;

pub(crate) use cni_side::CniPlaces;
pub use finding::{Check, Finding, FindingSeverity};

/// All checks except the self-test, for the network namespace of the calling thread. `root` is `/` except in tests.
pub(crate) fn examine(root: &Path, places: &CniPlaces, table: &Name) -> anyhow::Result<Vec<Finding>> {
    let enforcement = enforcement::gather(places.run_dir, table)?;
    let (attachments, stored) = cni_side::attachments(places.run_dir);
    let kernel = kernel::gather_and_try(root);
    let mut findings = kernel::findings(&kernel);
    let settings = Sysctls::read(root, ConntrackSetting::ALL.map(ConntrackSetting::path).into_iter().chain([EVENTS]));
    findings.extend(flow_records::findings(enforcement.records_flows(), &settings, kernel.fill()));
    findings.extend(tc_ingress::finding(&tc_ingress::gather(), &attachments));
    findings.extend(network::findings(&network::gather(root, attachments)));
    findings.extend(tunnels::finding(&tunnels::gather(), enforcement.tunnel_ports()));
    findings.extend(foreign_rules::findings(
        &foreign_rules::gather(root),
        &enforcement.table_name,
        enforcement.isolates_pods(),
    ));
    findings.extend(enforcement::findings(&enforcement));
    findings.extend(cni_side::findings(&cni_side::gather(places, stored)));
    Ok(findings)
}

/// Conditions that leave policies silently unenforced on this node, for an agent that is about to report readiness.
/// Queries no agent or runtime and takes some milliseconds. Some findings are errors only while a pod is isolated on
/// this node.
pub fn cheap(root: &Path, run_dir: &Path, isolates_pods: bool) -> Vec<Finding> {
    let (attachments, _) = cni_side::attachments(run_dir);
    let mut findings = kernel::findings(&kernel::gather(root));
    findings.extend(network::findings(&network::gather(root, attachments)));
    findings.push(foreign_rules::flowtables(&foreign_rules::gather_flowtables(), isolates_pods));
    findings.retain(|finding| finding.severity == FindingSeverity::Error);
    findings
}
