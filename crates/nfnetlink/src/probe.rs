//! Probes the kernel's features by using them in a temporary network namespace.
//!
//! The node's own namespace is never used: a refused commit there delays the commits of other processes.

mod samples;

use std::fmt;
use std::io;
use std::thread;

use nft::{Operation, Ruleset, create};

use crate::encode::{OWNER, PERSIST};
use crate::repair::repair;
use crate::request::{Kernel, OpenError};
use crate::sys::enter_new_network_namespace;
use crate::table_snapshot::TableSnapshot;

/// A kernel feature that rules require, or that makes them safer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// Tables with comments, by which a program identifies its own.
    TableComments,
    /// A table of family `inet` with a chain at the forward hook.
    RoutedPackets,
    /// Rules that match a packet's conntrack entry, and set its mark.
    Flows,
    /// Sets and verdict maps of every type.
    Sets,
    /// A table of family `bridge` with a chain at the prerouting hook.
    BridgedFrames,
    /// A table of family `netdev` with a chain at the ingress of an interface.
    InterfaceIngress,
    /// Rules that log to a group of nfnetlink_log, and dynamic sets.
    Reports,
    /// Tables that only their owner can change, that outlive it, and that another owner can claim afterwards.
    Protection,
}

impl Feature {
    /// In the order in which they are probed.
    pub const ALL: [Feature; 8] = [
        Feature::TableComments,
        Feature::RoutedPackets,
        Feature::Flows,
        Feature::Sets,
        Feature::BridgedFrames,
        Feature::InterfaceIngress,
        Feature::Reports,
        Feature::Protection,
    ];

    /// The kernel version or configuration options that provide the feature.
    pub fn needs(self) -> &'static str {
        match self {
            Feature::TableComments => "Linux 5.10 or later",
            Feature::RoutedPackets => "CONFIG_NF_TABLES_INET",
            Feature::Flows => "CONFIG_NFT_CT and CONFIG_NF_CONNTRACK_MARK",
            Feature::Sets => "CONFIG_NF_TABLES of Linux 5.6 or later",
            Feature::BridgedFrames => "CONFIG_NF_TABLES_BRIDGE",
            Feature::InterfaceIngress => "CONFIG_NF_TABLES_NETDEV and CONFIG_NETFILTER_INGRESS",
            Feature::Reports => {
                "CONFIG_NETFILTER_NETLINK_LOG, CONFIG_NFT_LOG and CONFIG_NFT_LIMIT of Linux 5.11 or later"
            }
            Feature::Protection => "Linux 6.9 or later",
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Feature::TableComments => "comments of tables",
            Feature::RoutedPackets => "rules for routed packets",
            Feature::Flows => "rules for connections",
            Feature::Sets => "sets and verdict maps",
            Feature::BridgedFrames => "rules for bridged frames",
            Feature::InterfaceIngress => "rules at the ingress of interfaces",
            Feature::Reports => "logs of denied packets",
            Feature::Protection => "protected tables",
        })
    }
}

/// The result of the probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    /// Every feature that the kernel lacks, with its error.
    pub missing: Vec<(Feature, String)>,
}

impl Features {
    /// The error of a missing feature; `None` if the kernel has it.
    pub fn why_not(&self, feature: Feature) -> Option<&str> {
        self.missing.iter().find(|(missing, _)| *missing == feature).map(|(_, reason)| reason.as_str())
    }
}

/// Why the features could not be probed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// `EPERM` from unshare(2).
    #[error("probing the kernel's features needs a network namespace, and creating one needs CAP_SYS_ADMIN")]
    NotPermitted,
    /// Any other error of unshare(2), such as `ENOSPC` for the limit of namespaces.
    #[error("cannot create a network namespace for probing the kernel's features: {0}")]
    Namespace(io::Error),
    /// The probe runs on a thread of its own, since unshare(2) moves the thread.
    #[error("cannot start a thread for probing the kernel's features: {0}")]
    Thread(io::Error),
    /// No nf_tables socket in the new namespace.
    #[error("{0}")]
    Open(#[from] OpenError),
}

/// Probes every feature on a new thread in a new network namespace. Takes some milliseconds.
pub fn probe() -> Result<Features, ProbeError> {
    let prober = thread::Builder::new().name("probe".into()).spawn(probe_here).map_err(ProbeError::Thread)?;
    match prober.join() {
        Ok(found) => found,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Moves this thread permanently into a new network namespace.
fn probe_here() -> Result<Features, ProbeError> {
    enter_new_network_namespace().map_err(|e| match e.raw_os_error() {
        Some(libc::EPERM) => ProbeError::NotPermitted,
        _ => ProbeError::Namespace(e),
    })?;
    let mut missing = Vec::new();
    for feature in Feature::ALL {
        let outcome = match feature {
            Feature::TableComments => try_comment(&samples::commented()),
            Feature::RoutedPackets => try_ruleset(&samples::routed_packets()),
            Feature::Flows => try_ruleset(&samples::flows()),
            Feature::Sets => try_ruleset(&samples::sets()),
            Feature::BridgedFrames => try_ruleset(&samples::bridged_frames()),
            Feature::InterfaceIngress => try_ruleset(&samples::interface_ingress()),
            Feature::Reports => try_ruleset(&samples::reports()),
            Feature::Protection => try_protection(&samples::routed_packets().protected(true)),
        };
        match outcome {
            Ok(()) => {}
            Err(Failure::Open(e)) => return Err(e.into()),
            Err(Failure::Reason(reason)) => missing.push((feature, reason)),
        }
    }
    Ok(Features { missing })
}

enum Failure {
    Open(OpenError),
    Reason(String),
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        Failure::Open(error)
    }
}

fn reason(error: impl fmt::Display) -> Failure {
    Failure::Reason(error.to_string())
}

/// Commits the ruleset, verifies it by reading it back, and removes it.
fn try_ruleset(ruleset: &Ruleset) -> Result<(), Failure> {
    let mut kernel = Kernel::open()?;
    kernel.commit(&create(ruleset), 0).map_err(reason)?;
    let observed = read(&mut kernel, ruleset)?;
    if let Some(difference) = repair(Some(&observed), ruleset).first() {
        return Err(Failure::Reason(format!("the kernel stored different rules: `{difference}` is missing")));
    }
    remove(&mut kernel, ruleset)
}

/// Commits a table and verifies its comment.
fn try_comment(ruleset: &Ruleset) -> Result<(), Failure> {
    let mut kernel = Kernel::open()?;
    kernel.commit(&create(ruleset), 0).map_err(reason)?;
    let observed = read(&mut kernel, ruleset)?;
    if observed.comment() != Some(ruleset.comment.as_str()) {
        return Err(Failure::Reason("the kernel does not keep the comment of a table".into()));
    }
    remove(&mut kernel, ruleset)
}

/// Creates a protected table, closes the owning socket, and claims the table with another.
fn try_protection(ruleset: &Ruleset) -> Result<(), Failure> {
    let mut first = Kernel::open()?;
    first.commit(&create(ruleset), 0).map_err(reason)?;
    let mut second = Kernel::open()?;
    let observed = read(&mut second, ruleset)?;
    if observed.flags != OWNER | PERSIST || observed.held_by_other(second.port()) != Some(first.port()) {
        return Err(Failure::Reason(format!("a protected table has flags {:#x}", observed.flags)));
    }
    if remove(&mut second, ruleset).is_ok() {
        return Err(Failure::Reason("a protected table can be deleted by other programs".into()));
    }
    drop(first);
    let observed = read(&mut second, ruleset)?;
    let claim = repair(Some(&observed), ruleset);
    if observed.flags != PERSIST || !matches!(claim[..], [Operation::AddTable { .. }]) {
        return Err(Failure::Reason(format!("a table without its owner has flags {:#x}", observed.flags)));
    }
    second.commit(&claim, 0).map_err(reason)?;
    let observed = read(&mut second, ruleset)?;
    if observed.owner != Some(second.port()) {
        return Err(Failure::Reason("a table without its owner cannot be claimed".into()));
    }
    remove(&mut second, ruleset)
}

fn read(kernel: &mut Kernel, ruleset: &Ruleset) -> Result<TableSnapshot, Failure> {
    match kernel.read(&ruleset.table).map_err(reason)? {
        Some(observed) => Ok(observed),
        None => Err(Failure::Reason(format!("table {} is missing after its commit", ruleset.table))),
    }
}

fn remove(kernel: &mut Kernel, ruleset: &Ruleset) -> Result<(), Failure> {
    let table = ruleset.table.clone();
    kernel.commit(&[Operation::DeleteTable { table }], 0).map_err(reason)?;
    Ok(())
}
