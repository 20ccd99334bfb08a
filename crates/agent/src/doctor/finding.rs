//! Findings of the doctor: what was found on the node, its severity, and advice.

use std::fmt;

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingSeverity {
    /// No problem.
    Ok,
    /// Information.
    Note,
    /// Policies are enforced, but something weakens this or may break it.
    Warning,
    /// Policies are not enforced, in whole or in part.
    Error,
}

impl FindingSeverity {
    pub fn as_str(self) -> &'static str {
        match self {
            FindingSeverity::Ok => "ok",
            FindingSeverity::Note => "note",
            FindingSeverity::Warning => "warning",
            FindingSeverity::Error => "error",
        }
    }
}

/// Subject of a finding. docs/doctor.md explains each id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    NfTables,
    KernelFeatures,
    Conntrack,
    ConntrackSpace,
    ConntrackHelper,
    ConntrackSctp,
    FlowRecords,
    Unreadable,
    IpForward,
    Ip6Forward,
    Links,
    BridgeNetfilter,
    BridgeNfCall,
    BridgeVlan,
    BridgeMacvlan,
    RpFilter,
    PodNetwork,
    ServiceProxy,
    TunnelPorts,
    TcIngress,
    OtherTables,
    OtherEngines,
    Flowtables,
    Notrack,
    ConnectionMark,
    Agent,
    LastCommit,
    KernelGeneration,
    Table,
    TableOwner,
    TableContents,
    CniConfig,
    CniPlugin,
    CniSocket,
    Attachments,
    SelfTest,
}

impl Check {
    #[cfg(test)]
    const ALL: [Check; 36] = [
        Check::NfTables,
        Check::KernelFeatures,
        Check::Conntrack,
        Check::ConntrackSpace,
        Check::ConntrackHelper,
        Check::ConntrackSctp,
        Check::FlowRecords,
        Check::Unreadable,
        Check::IpForward,
        Check::Ip6Forward,
        Check::Links,
        Check::BridgeNetfilter,
        Check::BridgeNfCall,
        Check::BridgeVlan,
        Check::BridgeMacvlan,
        Check::RpFilter,
        Check::PodNetwork,
        Check::ServiceProxy,
        Check::TunnelPorts,
        Check::TcIngress,
        Check::OtherTables,
        Check::OtherEngines,
        Check::Flowtables,
        Check::Notrack,
        Check::ConnectionMark,
        Check::Agent,
        Check::LastCommit,
        Check::KernelGeneration,
        Check::Table,
        Check::TableOwner,
        Check::TableContents,
        Check::CniConfig,
        Check::CniPlugin,
        Check::CniSocket,
        Check::Attachments,
        Check::SelfTest,
    ];

    pub fn id(self) -> &'static str {
        match self {
            Check::NfTables => "nf-tables",
            Check::KernelFeatures => "kernel-features",
            Check::Conntrack => "conntrack",
            Check::ConntrackSpace => "conntrack-space",
            Check::ConntrackHelper => "conntrack-helper",
            Check::ConntrackSctp => "conntrack-sctp",
            Check::FlowRecords => "flow-records",
            Check::Unreadable => "unreadable",
            Check::IpForward => "ip-forward",
            Check::Ip6Forward => "ip6-forward",
            Check::Links => "links",
            Check::BridgeNetfilter => "bridge-netfilter",
            Check::BridgeNfCall => "bridge-nf-call",
            Check::BridgeVlan => "bridge-vlan",
            Check::BridgeMacvlan => "bridge-macvlan",
            Check::RpFilter => "rp-filter",
            Check::PodNetwork => "pod-network",
            Check::ServiceProxy => "service-proxy",
            Check::TunnelPorts => "tunnel-ports",
            Check::TcIngress => "tc-ingress",
            Check::OtherTables => "other-tables",
            Check::OtherEngines => "other-engines",
            Check::Flowtables => "flowtables",
            Check::Notrack => "notrack",
            Check::ConnectionMark => "connection-mark",
            Check::Agent => "agent",
            Check::LastCommit => "last-commit",
            Check::KernelGeneration => "kernel-generation",
            Check::Table => "table",
            Check::TableOwner => "table-owner",
            Check::TableContents => "table-contents",
            Check::CniConfig => "cni-config",
            Check::CniPlugin => "cni-plugin",
            Check::CniSocket => "cni-socket",
            Check::Attachments => "attachments",
            Check::SelfTest => "self-test",
        }
    }
}

impl Serialize for Check {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

/// A finding, with one sentence per field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub id: Check,
    pub severity: FindingSeverity,
    /// The finding.
    pub finding: String,
    /// How to fix it; `None` if no action is needed.
    pub advice: Option<String>,
}

/// Bound on names in a finding; further ones are only counted.
const MOST_NAMES: usize = 5;

/// The first names, and the number of further ones.
pub(super) fn list(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<&str> = names.iter().take(MOST_NAMES).map(AsRef::as_ref).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

impl Finding {
    pub fn ok(id: Check, finding: impl Into<String>) -> Finding {
        Finding { id, severity: FindingSeverity::Ok, finding: finding.into(), advice: None }
    }

    pub fn note(id: Check, finding: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { id, severity: FindingSeverity::Note, finding: finding.into(), advice: Some(advice.into()) }
    }

    pub fn warning(id: Check, finding: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { id, severity: FindingSeverity::Warning, finding: finding.into(), advice: Some(advice.into()) }
    }

    pub fn error(id: Check, finding: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { id, severity: FindingSeverity::Error, finding: finding.into(), advice: Some(advice.into()) }
    }
}

/// Text for the readiness reason and the log.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id.id(), self.finding)?;
        match &self.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_documentation_explains_every_finding_and_no_other() {
        let text = include_str!("../../../../docs/doctor.md");
        let explained: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`')).collect();
        let known: BTreeSet<&str> = Check::ALL.iter().map(|check| check.id()).collect();
        assert_eq!(known.len(), Check::ALL.len(), "two checks have one name");
        assert_eq!(explained.iter().copied().collect::<BTreeSet<&str>>(), known);
        assert_eq!(explained.len(), known.len(), "something is explained twice");
    }
}
