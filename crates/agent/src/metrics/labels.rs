//! Closed sets of label values, which bound the number of series.

use policy::{Cause, Change, Kind};

use crate::api::status::Policies;
use crate::dns::connections::IgnoreReason;
use crate::status::Counts;

/// Kinds of watched objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchedKind {
    Namespace,
    Pod,
    NetworkPolicy,
    Node,
    ClusterNetworkPolicy,
    /// Attachments of the CNI plugin.
    Attachment,
    /// Pods of other clusters.
    RemoteSet,
    /// Learned addresses of domain names.
    DomainName,
}

impl WatchedKind {
    pub(crate) const ALL: [WatchedKind; 8] = [
        WatchedKind::Namespace,
        WatchedKind::Pod,
        WatchedKind::NetworkPolicy,
        WatchedKind::Node,
        WatchedKind::ClusterNetworkPolicy,
        WatchedKind::Attachment,
        WatchedKind::RemoteSet,
        WatchedKind::DomainName,
    ];

    pub(crate) fn of(change: &Change) -> WatchedKind {
        let kind = match change {
            Change::Set(object) => object.kind(),
            Change::Remove(kind, _) | Change::Replace(kind, _) => *kind,
        };
        match kind {
            Kind::Namespace => WatchedKind::Namespace,
            Kind::Pod => WatchedKind::Pod,
            Kind::NetworkPolicy => WatchedKind::NetworkPolicy,
            Kind::Node => WatchedKind::Node,
            Kind::ClusterNetworkPolicy => WatchedKind::ClusterNetworkPolicy,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            WatchedKind::Namespace => "namespace",
            WatchedKind::Pod => "pod",
            WatchedKind::NetworkPolicy => "networkpolicy",
            WatchedKind::Node => "node",
            WatchedKind::ClusterNetworkPolicy => "clusternetworkpolicy",
            WatchedKind::Attachment => "attachment",
            WatchedKind::RemoteSet => "remoteset",
            WatchedKind::DomainName => "domainname",
        }
    }

    pub(super) fn label(self) -> super::Labels {
        [("kind", self.as_str())]
    }

    pub(super) fn count(self, counts: &Counts) -> usize {
        match self {
            WatchedKind::Namespace => counts.namespaces,
            WatchedKind::Pod => counts.pods,
            WatchedKind::NetworkPolicy => counts.network_policies,
            WatchedKind::Node => counts.nodes,
            WatchedKind::ClusterNetworkPolicy => counts.cluster_network_policies,
            WatchedKind::Attachment => counts.attachments,
            WatchedKind::RemoteSet => counts.remote_sets,
            WatchedKind::DomainName => counts.domain_names,
        }
    }
}

/// Causes of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RepairCause {
    /// Another program changed a table.
    Changed,
    /// A table was removed.
    Removed,
    /// The tables of an earlier agent differed from the desired ones.
    AtStart,
}

impl RepairCause {
    pub(crate) const ALL: [RepairCause; 3] = [RepairCause::Changed, RepairCause::Removed, RepairCause::AtStart];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            RepairCause::Changed => "changed",
            RepairCause::Removed => "removed",
            RepairCause::AtStart => "at-start",
        }
    }

    pub(super) fn label(self) -> super::Labels {
        [("cause", self.as_str())]
    }
}

/// Outcome of a DNS answer that the kernel copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerOutcome {
    Learned,
    /// No policy has the name.
    OtherName,
    /// It is not from a trusted resolver.
    Untrusted,
    /// It has no addresses, or cannot be decoded.
    WithoutAddresses,
    /// The receive buffer was full, or the message of the kernel could not be decoded.
    Lost,
}

impl AnswerOutcome {
    pub(super) const ALL: [AnswerOutcome; 5] = [
        AnswerOutcome::Learned,
        AnswerOutcome::OtherName,
        AnswerOutcome::Untrusted,
        AnswerOutcome::WithoutAddresses,
        AnswerOutcome::Lost,
    ];

    pub(super) fn label(self) -> super::Labels {
        let word = match self {
            AnswerOutcome::Learned => "learned",
            AnswerOutcome::OtherName => "other-name",
            AnswerOutcome::Untrusted => "untrusted",
            AnswerOutcome::WithoutAddresses => "without-addresses",
            AnswerOutcome::Lost => "lost",
        };
        [("outcome", word)]
    }
}

impl IgnoreReason {
    pub(super) fn label(self) -> super::Labels {
        let word = match self {
            IgnoreReason::StartMissing => "start-missing",
            IgnoreReason::Gap => "gap",
            IgnoreReason::Truncated => "truncated",
            IgnoreReason::TooLong => "too-long",
            IgnoreReason::NoRoom => "no-room",
            IgnoreReason::Mismatch => "mismatch",
            IgnoreReason::Multipath => "multipath",
            IgnoreReason::MayBeLate => "may-be-late",
            IgnoreReason::Unreadable => "unreadable",
        };
        [("reason", word)]
    }
}

/// Why an address of an answer is not learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressRefusal {
    /// Not a unicast address of another host.
    NotUnicast,
    /// The name, or the table, has no room.
    NoRoom,
}

impl AddressRefusal {
    pub(super) const ALL: [AddressRefusal; 2] = [AddressRefusal::NotUnicast, AddressRefusal::NoRoom];

    pub(super) fn label(self) -> super::Labels {
        let word = match self {
            AddressRefusal::NotUnicast => "not-unicast",
            AddressRefusal::NoRoom => "no-room",
        };
        [("reason", word)]
    }
}

/// HTTP listeners of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listens {
    Port,
    Socket,
}

impl Listens {
    pub(super) const ALL: [Listens; 2] = [Listens::Port, Listens::Socket];

    pub(super) fn label(self) -> super::Labels {
        let word = match self {
            Listens::Port => "port",
            Listens::Socket => "socket",
        };
        [("listener", word)]
    }
}

/// Enforcement state of a policy. Every policy has exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PolicyState {
    Enforced,
    Audit,
    /// A part of it is not supported, and denies.
    NotUnderstood,
}

impl PolicyState {
    pub(super) const ALL: [PolicyState; 3] = [PolicyState::Enforced, PolicyState::Audit, PolicyState::NotUnderstood];

    pub(super) fn label(self) -> super::Labels {
        let word = match self {
            PolicyState::Enforced => "enforced",
            PolicyState::Audit => "audit",
            PolicyState::NotUnderstood => "not-understood",
        };
        [("state", word)]
    }

    pub(super) fn count(self, policies: &Policies) -> usize {
        match self {
            PolicyState::Enforced => policies.enforced,
            PolicyState::Audit => policies.audit,
            PolicyState::NotUnderstood => policies.not_understood,
        }
    }
}

/// Labels of a denial: the direction of the policies, or another cause without a direction.
pub(super) fn denied(cause: Cause) -> [(&'static str, &'static str); 2] {
    match cause.direction() {
        Some(direction) => [("reason", "policy"), ("direction", direction.as_str())],
        None => [("reason", cause.as_str()), ("direction", "either")],
    }
}
