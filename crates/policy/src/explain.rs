//! Why a flow passes or not: each side's verdict, the policies that isolate, the rule that allows, and where none
//! does, the one that came closest and what it lacks.
//!
//! It reads the policies as their author wrote them, rule by rule, where the translator merges them; tests hold that
//! the two agree.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use nft::Protocol;
use serde::{Deserialize, Serialize};

use crate::peers::{PodPeer, block_contains};
use crate::translate::isolating;
use crate::{
    Attachment, ClusterState, Direction, Holder, NamespaceScope, ObjectName, Peer, Peers, Pod, Policy, PolicyRule,
    PortMatch, PortRange, Ports,
};

/// What a flow carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// To a port.
    Port(Protocol, u16),
    /// ICMP and every other protocol that has no ports.
    Portless,
}

/// One end of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party {
    pub address: IpAddr,
    /// `namespace/name` of the pod that has the address.
    pub pod: Option<String>,
    pub node: Option<String>,
}

/// What one side of a flow says to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum SideVerdict {
    /// The address is no pod's: nobody judges this side.
    NotAPod,
    /// No policy isolates the pod in this direction.
    NotIsolated,
    /// A pod may always reach itself.
    Itself,
    #[serde(rename_all = "camelCase")]
    Allowed { isolated_by: Vec<String>, rule: RuleName },
    #[serde(rename_all = "camelCase")]
    Denied { isolated_by: Vec<String>, closest: Option<NearMiss> },
    /// The pod's object was not understood, or is not known.
    Unreadable { reason: String },
}

/// `spec.ingress[index]` or `spec.egress[index]` of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleName {
    pub policy: String,
    pub field: String,
}

/// A rule that does not allow the flow, and why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NearMiss {
    pub rule: RuleName,
    pub lacks: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    pub source: Party,
    pub destination: Party,
    /// `80/tcp`, or `icmp` for what has no ports.
    pub traffic: String,
    pub allowed: bool,
    pub egress: SideVerdict,
    pub ingress: SideVerdict,
}

/// Explains the first packet of a flow between two addresses, after destination translation.
pub fn explain(state: &ClusterState, source: IpAddr, destination: IpAddr, traffic: Traffic) -> Explanation {
    let flow = Flow { state, source: End::of(state, source), destination: End::of(state, destination), traffic };
    let egress = flow.judge(Direction::Egress);
    let ingress = flow.judge(Direction::Ingress);
    Explanation {
        source: flow.source.party(),
        destination: flow.destination.party(),
        traffic: traffic.to_string(),
        allowed: egress.allows() && ingress.allows(),
        egress,
        ingress,
    }
}

impl SideVerdict {
    pub fn allows(&self) -> bool {
        match self {
            SideVerdict::NotAPod | SideVerdict::NotIsolated | SideVerdict::Itself | SideVerdict::Allowed { .. } => true,
            SideVerdict::Denied { .. } | SideVerdict::Unreadable { .. } => false,
        }
    }
}

struct End<'a> {
    address: IpAddr,
    pod: Option<&'a Arc<Pod>>,
    /// A pod was attached here with the address, and its object is not known.
    unknown: Option<&'a Arc<Attachment>>,
}

impl<'a> End<'a> {
    fn of(state: &'a ClusterState, address: IpAddr) -> End<'a> {
        match state.holder(address) {
            None => End { address, pod: None, unknown: None },
            Some(Holder::Pod(pod)) => End { address, pod: Some(pod), unknown: None },
            Some(Holder::Unknown(attachment)) => End { address, pod: None, unknown: Some(attachment) },
        }
    }

    fn party(&self) -> Party {
        Party {
            address: self.address,
            pod: self.pod.map(|p| p.name.to_string()),
            node: self.pod.and_then(|p| p.node.as_ref()).map(|n| n.to_string()),
        }
    }
}

struct Flow<'a> {
    state: &'a ClusterState,
    source: End<'a>,
    destination: End<'a>,
    traffic: Traffic,
}

impl<'a> Flow<'a> {
    fn judge(&self, direction: Direction) -> SideVerdict {
        let (own, other) = match direction {
            Direction::Egress => (&self.source, &self.destination),
            Direction::Ingress => (&self.destination, &self.source),
        };
        if let Some(attachment) = own.unknown.filter(|_| own.address != other.address) {
            let reason = format!("pod {} was attached to this node, and its object is not known", attachment.pod);
            return SideVerdict::Unreadable { reason };
        }
        let Some(pod) = own.pod else { return SideVerdict::NotAPod };
        let isolating: Vec<&Arc<Policy>> = isolating(self.state, pod, direction).collect();
        if isolating.is_empty() && !pod.unreadable {
            return SideVerdict::NotIsolated;
        }
        if own.address == other.address {
            return SideVerdict::Itself;
        }
        if pod.unreadable {
            let reason = pod.problems.first().map_or_else(String::new, |p| format!("{}: {}", p.field, p.message));
            return SideVerdict::Unreadable { reason };
        }
        let isolated_by = isolating.iter().map(|p| p.name.to_string()).collect();
        let mut closest: Option<NearMiss> = None;
        for policy in isolating {
            for rule in policy.rules(direction).unwrap_or(&[]) {
                let name = RuleName {
                    policy: policy.name.to_string(),
                    field: format!("spec.{}[{}]", direction.word(), rule.index),
                };
                let lacks = self.lacks(direction, policy, rule, other);
                if lacks.is_empty() {
                    return SideVerdict::Allowed { isolated_by, rule: name };
                }
                if closest.as_ref().is_none_or(|c| lacks.len() < c.lacks.len()) {
                    closest = Some(NearMiss { rule: name, lacks });
                }
            }
        }
        SideVerdict::Denied { isolated_by, closest }
    }

    /// What keeps the rule from allowing the flow: nothing, its peers, its ports, or both.
    fn lacks(&self, direction: Direction, policy: &Policy, rule: &PolicyRule, other: &End) -> Vec<String> {
        let peer_fits = |peer: &Peer| self.peer_fits(policy, peer, other);
        let is_pods = |peer: &Peer| matches!(peer, Peer::Pods { .. });
        let (any_fits, pods_fit) = match &rule.peers {
            Peers::Any => (true, other.pod.is_some_and(|p| !p.unreadable)),
            Peers::Of(peers) => (peers.iter().any(peer_fits), peers.iter().any(|p| is_pods(p) && peer_fits(p))),
        };
        let mut lacks = Vec::new();
        if !any_fits {
            lacks.push(self.peers_lack(policy, &rule.peers, other));
        }
        if let Ports::Of(ports) = &rule.ports {
            let named_fits = direction == Direction::Ingress || pods_fit || !any_fits;
            if !ports.iter().any(|p| self.port_fits(p, named_fits)) {
                lacks.push(self.ports_lack(ports));
            }
        }
        lacks
    }

    fn peer_fits(&self, policy: &Policy, peer: &Peer, other: &End) -> bool {
        match peer {
            Peer::Block(block) => block_contains(block, other.address),
            Peer::Pods { namespaces, pods } => {
                let peer = PodPeer::of(namespaces, pods, &policy.name.namespace);
                other.pod.is_some_and(|pod| peer.contains(self.state, pod))
            }
        }
    }

    fn port_fits(&self, port: &PortMatch, named_fits: bool) -> bool {
        let Traffic::Port(protocol, number) = self.traffic else { return false };
        port.protocol == protocol
            && match &port.range {
                PortRange::All => true,
                PortRange::Numbers(first, last) => (*first..=*last).contains(&number),
                PortRange::Named(name) => named_fits && self.resolve(name, protocol) == Some(number),
            }
    }

    fn resolve(&self, name: &str, protocol: Protocol) -> Option<u16> {
        self.destination.pod?.resolve(name, protocol)
    }

    fn ports_lack(&self, ports: &[PortMatch]) -> String {
        let shown = |port: &PortMatch| match &port.range {
            PortRange::All => format!("every {} port", port.protocol),
            PortRange::Numbers(first, last) if first == last => format!("{first}/{}", port.protocol),
            PortRange::Numbers(first, last) => format!("{first}-{last}/{}", port.protocol),
            PortRange::Named(name) => match self.resolve(name, port.protocol) {
                Some(number) => format!("'{name}' ({number}/{} there)", port.protocol),
                None => format!("'{name}', which the destination does not have for {}", port.protocol),
            },
        };
        let listed: Vec<String> = ports.iter().map(shown).collect();
        if listed.is_empty() {
            return "the port: no entry was understood".into();
        }
        format!("the port: it allows {}, not {}", listed.join(", "), self.traffic)
    }

    fn peers_lack(&self, policy: &Policy, peers: &Peers, other: &End) -> String {
        let Peers::Of(peers) = peers else { return String::new() };
        let who = match other.pod {
            Some(pod) => pod.name.to_string(),
            None => format!("{}, which is no pod's address,", other.address),
        };
        let reasons: Vec<String> = peers.iter().map(|peer| self.peer_lacks(policy, peer, other)).collect();
        if reasons.is_empty() {
            return "the peer: no entry was understood".into();
        }
        format!("the peer: {who} {}", reasons.join(", nor: "))
    }

    fn peer_lacks(&self, policy: &Policy, peer: &Peer, other: &End) -> String {
        match (peer, other.pod) {
            (Peer::Block(block), _) if block.cidr.contains(&other.address) => {
                format!("is excepted from {}", block.cidr)
            }
            (Peer::Block(block), _) => format!("is not in {}", block.cidr),
            (Peer::Pods { .. }, None) => "cannot match a selector".into(),
            (Peer::Pods { .. }, Some(pod)) if pod.unreadable => "was not understood".into(),
            (Peer::Pods { namespaces, pods }, Some(pod)) => {
                let mut reasons = Vec::new();
                match namespaces {
                    NamespaceScope::Own if pod.name.namespace != policy.name.namespace => {
                        reasons.push(format!("is not in namespace {}", policy.name.namespace));
                    }
                    NamespaceScope::Own => {}
                    NamespaceScope::Selected(selector) => match self.state.namespace_labels(&pod.name.namespace) {
                        None => reasons.push(format!("is in namespace {}, which is not known", pod.name.namespace)),
                        Some(labels) => reasons.extend(
                            selector
                                .unmet(labels)
                                .map(|r| format!("is in namespace {}, which does not meet {r}", pod.name.namespace)),
                        ),
                    },
                }
                reasons.extend(pods.unmet(&pod.labels).map(|r| format!("does not meet {r}")));
                reasons.join(" and ")
            }
        }
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Traffic::Port(protocol, port) => write!(f, "{port}/{protocol}"),
            Traffic::Portless => f.write_str("icmp"),
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pod {
            Some(pod) => write!(f, "{pod} ({})", self.address),
            None => self.address.fmt(f),
        }
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.policy, self.field)
    }
}

impl fmt::Display for SideVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SideVerdict::NotAPod => f.write_str("not judged: no pod has this address"),
            SideVerdict::NotIsolated => f.write_str("allowed: no policy isolates the pod"),
            SideVerdict::Itself => f.write_str("allowed: a pod may always reach itself"),
            SideVerdict::Unreadable { reason } => write!(f, "denied: the pod was not understood ({reason})"),
            SideVerdict::Allowed { isolated_by, rule } => {
                write!(f, "allowed by {rule}\n    isolated by {}", isolated_by.join(", "))
            }
            SideVerdict::Denied { isolated_by, closest } => {
                write!(f, "denied\n    isolated by {}", isolated_by.join(", "))?;
                match closest {
                    None => f.write_str("\n    no rule allows anything"),
                    Some(near) => {
                        write!(f, "\n    closest rule: {}; it lacks", near.rule)?;
                        near.lacks.iter().try_for_each(|lack| write!(f, "\n      {lack}"))
                    }
                }
            }
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.allowed { "ALLOWED" } else { "DENIED" };
        writeln!(f, "{verdict}  {} -> {} {}", self.source, self.destination, self.traffic)?;
        writeln!(f, "  egress of the source: {}", self.egress)?;
        write!(f, "  ingress of the destination: {}", self.ingress)
    }
}

/// A party as a person names it: `namespace/name` of a pod, or an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    Pod(ObjectName),
    Address(IpAddr),
}

/// Why a party has no address to explain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unexplained {
    #[error("pod {0} is not known; pods are named as namespace/name")]
    UnknownPod(ObjectName),
    #[error("pod {0} has no address of its own (not started, finished, or on the host network)")]
    NoAddress(ObjectName),
    #[error("{0} and {1} have no address family in common")]
    NoCommonFamily(String, String),
    #[error("port '{0}' is not known to the destination pod for {1}")]
    UnknownPort(String, Protocol),
}

impl Named {
    fn addresses(&self, state: &ClusterState) -> Result<Vec<IpAddr>, Unexplained> {
        match self {
            Named::Address(address) => Ok(vec![*address]),
            Named::Pod(name) => {
                let pod = state.pod(name).ok_or_else(|| Unexplained::UnknownPod(name.clone()))?;
                let addresses: Vec<IpAddr> = state.addresses_of(pod).collect();
                if addresses.is_empty() { Err(Unexplained::NoAddress(name.clone())) } else { Ok(addresses) }
            }
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Named::Pod(name) => name.fmt(f),
            Named::Address(address) => address.fmt(f),
        }
    }
}

impl std::str::FromStr for Named {
    type Err = crate::NotAnObjectName;
    fn from_str(text: &str) -> Result<Named, Self::Err> {
        match text.parse() {
            Ok(address) => Ok(Named::Address(address)),
            Err(_) => text.parse().map(Named::Pod),
        }
    }
}

/// Explains the flow in every family that the parties have in common.
pub fn explain_named(
    state: &ClusterState,
    source: &Named,
    destination: &Named,
    traffic: &NamedTraffic,
) -> Result<Vec<Explanation>, Unexplained> {
    let (from, to) = (source.addresses(state)?, destination.addresses(state)?);
    let mut found = Vec::new();
    for destination in &to {
        for source in from.iter().filter(|s| s.is_ipv4() == destination.is_ipv4()) {
            found.push(explain(state, *source, *destination, traffic.resolve(state, *destination)?));
        }
    }
    if found.is_empty() {
        return Err(Unexplained::NoCommonFamily(source.to_string(), destination.to_string()));
    }
    Ok(found)
}

/// Traffic as a person names it: `80`, `53/udp`, `http`, `http/tcp`, `icmp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedTraffic {
    Number(Protocol, u16),
    Name(Protocol, String),
    Portless,
}

/// Why a text names no traffic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not PORT, PORT/tcp, PORT/udp, PORT/sctp or icmp, where PORT is 1 to 65535 or a named port")]
pub struct NotTraffic(String);

impl std::str::FromStr for NamedTraffic {
    type Err = NotTraffic;
    fn from_str(text: &str) -> Result<NamedTraffic, NotTraffic> {
        let bad = || NotTraffic(text.into());
        if text.eq_ignore_ascii_case("icmp") {
            return Ok(NamedTraffic::Portless);
        }
        let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let named = |p: &Protocol| p.word().eq_ignore_ascii_case(protocol);
        let protocol = Protocol::ALL.into_iter().find(named).ok_or_else(bad)?;
        match port.parse::<u16>() {
            Ok(0) => Err(bad()),
            Ok(number) => Ok(NamedTraffic::Number(protocol, number)),
            Err(_) if port.bytes().any(|b| b.is_ascii_alphabetic()) => Ok(NamedTraffic::Name(protocol, port.into())),
            Err(_) => Err(bad()),
        }
    }
}

impl fmt::Display for NamedTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamedTraffic::Number(protocol, number) => write!(f, "{number}/{protocol}"),
            NamedTraffic::Name(protocol, name) => write!(f, "{name}/{protocol}"),
            NamedTraffic::Portless => f.write_str("icmp"),
        }
    }
}

impl NamedTraffic {
    fn resolve(&self, state: &ClusterState, destination: IpAddr) -> Result<Traffic, Unexplained> {
        match self {
            NamedTraffic::Portless => Ok(Traffic::Portless),
            NamedTraffic::Number(protocol, number) => Ok(Traffic::Port(*protocol, *number)),
            NamedTraffic::Name(protocol, name) => {
                let number = state.owner(destination).and_then(|pod| pod.resolve(name, *protocol));
                let unknown = || Unexplained::UnknownPort(name.clone(), *protocol);
                Ok(Traffic::Port(*protocol, number.ok_or_else(unknown)?))
            }
        }
    }
}
