//! Parties and traffic in command syntax: pods and remote sets by name, ports by number or name.

use std::fmt;
use std::net::IpAddr;

use nft::Protocol;

use super::{Explanation, Traffic, explain};
use crate::remote::RemoteSet;
use crate::{ClusterState, ObjectName};

/// A party in command syntax: `namespace/name` of a pod, `cluster/namespace/name` of a remote set, or an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartyName {
    /// `NAMESPACE/NAME`; each of its addresses is explained.
    Pod(ObjectName),
    /// Its first address of each family represents all: only rules with blocks distinguish them.
    Remote(RemoteSet),
    /// An address of any owner.
    Address(IpAddr),
}

/// The reason why a party has no address to explain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartyError {
    /// The state has no pod of this name.
    #[error("pod {0} not found; expected NAMESPACE/NAME")]
    UnknownPod(ObjectName),
    /// Without an address, no policy applies to the pod.
    #[error("pod {0} has no address of its own (not started, finished, or on the host network)")]
    NoAddress(ObjectName),
    /// No watched cluster has this set.
    #[error("remote set {0} not found; expected CLUSTER/NAMESPACE/NAME")]
    UnknownRemote(RemoteSet),
    /// An address that a pod of this cluster has is judged as that pod's.
    #[error("all addresses of remote set {0} belong to pods of this cluster and count as theirs")]
    NoRemoteAddress(RemoteSet),
    /// One end has IPv4 addresses alone, the other IPv6 addresses alone.
    #[error("{0} and {1} have no address family in common")]
    NoCommonFamily(String, String),
    /// Named ports resolve at the destination, in `containerPort` of its containers.
    #[error("the destination pod has no port named '{0}' for {1}")]
    UnknownPort(String, Protocol),
}

impl PartyName {
    fn addresses(&self, state: &ClusterState) -> Result<Vec<IpAddr>, PartyError> {
        match self {
            PartyName::Address(address) => Ok(vec![*address]),
            PartyName::Remote(set) => {
                let known = state.remote_addresses_of(set).ok_or_else(|| PartyError::UnknownRemote(set.clone()))?;
                let addresses: Vec<IpAddr> = known.collect();
                let (v4, v6) = (addresses.iter().find(|a| a.is_ipv4()), addresses.iter().find(|a| a.is_ipv6()));
                let first: Vec<IpAddr> = v4.into_iter().chain(v6).copied().collect();
                if first.is_empty() { Err(PartyError::NoRemoteAddress(set.clone())) } else { Ok(first) }
            }
            PartyName::Pod(name) => {
                let pod = state.pod(name).ok_or_else(|| PartyError::UnknownPod(name.clone()))?;
                let addresses: Vec<IpAddr> = state.addresses_of(pod).collect();
                if addresses.is_empty() { Err(PartyError::NoAddress(name.clone())) } else { Ok(addresses) }
            }
        }
    }
}

impl fmt::Display for PartyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartyName::Pod(name) => name.fmt(f),
            PartyName::Remote(set) => set.fmt(f),
            PartyName::Address(address) => address.fmt(f),
        }
    }
}

impl std::str::FromStr for PartyName {
    type Err = crate::NotAnObjectName;
    fn from_str(text: &str) -> Result<PartyName, Self::Err> {
        match (text.parse(), text.parse()) {
            (Ok(address), _) => Ok(PartyName::Address(address)),
            (Err(_), Ok(set)) => Ok(PartyName::Remote(set)),
            (Err(_), Err(_)) => text.parse().map(PartyName::Pod),
        }
    }
}

/// Explains the flow in every family that both parties have.
pub fn explain_named(
    state: &ClusterState,
    source: &PartyName,
    destination: &PartyName,
    traffic: &NamedTraffic,
) -> Result<Vec<Explanation>, PartyError> {
    let (from, to) = (source.addresses(state)?, destination.addresses(state)?);
    let mut found = Vec::new();
    for destination in &to {
        for source in from.iter().filter(|s| s.is_ipv4() == destination.is_ipv4()) {
            found.push(explain(state, *source, *destination, traffic.resolve(state, *destination)?));
        }
    }
    if found.is_empty() {
        return Err(PartyError::NoCommonFamily(source.to_string(), destination.to_string()));
    }
    Ok(found)
}

/// Traffic in command syntax: `80`, `53/udp`, `http`, `http/tcp`, `icmp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedTraffic {
    /// A destination port, 1 to 65535; TCP without a protocol.
    Number(Protocol, u16),
    /// A named port of the destination pod; TCP without a protocol.
    Name(Protocol, String),
    /// `icmp`, for all protocols without ports.
    Portless,
}

/// The text is not valid traffic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid port '{0}': expected PORT, PORT/tcp, PORT/udp, PORT/sctp or icmp, where PORT is 1 to 65535 or a named port"
)]
pub struct NotTraffic(String);

impl std::str::FromStr for NamedTraffic {
    type Err = NotTraffic;
    fn from_str(text: &str) -> Result<NamedTraffic, NotTraffic> {
        let bad = || NotTraffic(text.into());
        if text.eq_ignore_ascii_case("icmp") {
            return Ok(NamedTraffic::Portless);
        }
        let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let named = |p: &Protocol| p.as_str().eq_ignore_ascii_case(protocol);
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
    fn resolve(&self, state: &ClusterState, destination: IpAddr) -> Result<Traffic, PartyError> {
        match self {
            NamedTraffic::Portless => Ok(Traffic::Portless),
            NamedTraffic::Number(protocol, number) => Ok(Traffic::Port(*protocol, *number)),
            NamedTraffic::Name(protocol, name) => {
                let number = state.owner(destination).and_then(|pod| pod.resolve(name, *protocol));
                let unknown = || PartyError::UnknownPort(name.clone(), *protocol);
                Ok(Traffic::Port(*protocol, number.ok_or_else(unknown)?))
            }
        }
    }
}
