//! Describes why a rule does not allow a flow.

use nft::Protocol;

use super::text::remote_names;
use super::{ExplainedEnd, ExplainedFlow, Traffic};
use crate::peers::{PodPeer, block_contains};
use crate::remote::{RemoteLabels, RemoteSet};
use crate::sanitize::plain;
use crate::{Direction, NamespaceScope, Peer, Peers, Policy, PolicyRule, PortMatch, PortRange, Ports, Selector};

/// Number of a rule's entries that are named; the others are counted.
const ENTRIES_NAMED: usize = 4;

/// The parts of a rule that do not match a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lack {
    peers: bool,
    ports: bool,
}

impl Lack {
    /// Whether nothing is missing, so that the rule allows the flow.
    pub(super) fn is_none(self) -> bool {
        self.size() == 0
    }

    /// Distance of the rule from allowing the flow.
    pub(super) fn size(self) -> usize {
        usize::from(self.peers) + usize::from(self.ports)
    }
}

impl ExplainedFlow<'_> {
    /// The parts that do not match the flow: none, the peers, the ports, or both.
    pub(super) fn lack(&self, direction: Direction, policy: &Policy, rule: &PolicyRule, other: &ExplainedEnd) -> Lack {
        let peer_fits = |peer: &Peer| self.peer_fits(policy, peer, other);
        let any_fits = match &rule.peers {
            Peers::Any => true,
            Peers::Of(peers) => peers.iter().any(peer_fits),
        };
        // A port name is resolved on the pod at the other end, whether a selector or a block selects it.
        let is_pod = other.pod.is_some_and(|pod| !pod.unreadable);
        let ports = match &rule.ports {
            Ports::Any => false,
            Ports::Of(ports) => {
                let named_fits = direction == Direction::Ingress || is_pod || !any_fits;
                !ports.iter().any(|p| self.port_fits(p, named_fits))
            }
        };
        Lack { peers: !any_fits, ports }
    }

    /// Describes the lack, with bounded length however many entries the rule has.
    pub(super) fn in_words(&self, lack: Lack, policy: &Policy, rule: &PolicyRule, other: &ExplainedEnd) -> Vec<String> {
        let peers = lack.peers.then(|| self.peers_lack(policy, &rule.peers, other));
        let ports = match &rule.ports {
            Ports::Of(ports) if lack.ports => Some(self.ports_lack(ports)),
            Ports::Of(_) | Ports::Any => None,
        };
        peers.into_iter().chain(ports).collect()
    }

    fn peer_fits(&self, policy: &Policy, peer: &Peer, other: &ExplainedEnd) -> bool {
        match peer {
            Peer::Block(block) => block_contains(block, other.address),
            Peer::Pods { namespaces, pods } => {
                let peer = PodPeer::of(namespaces, pods, &policy.name.namespace);
                other.pod.is_some_and(|pod| peer.contains(self.state, pod)) || self.is_remote(&peer, other)
            }
        }
    }

    /// Whether the peer selects a remote set that contains the address.
    fn is_remote(&self, peer: &PodPeer, other: &ExplainedEnd) -> bool {
        let reaches = !other.remote.is_empty() && peer.reaches_remote(self.state.remote().families());
        reaches && other.remote.iter().any(|(_, seen)| peer.selects_remote(seen))
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
                None => format!("'{name}', a named port that the destination does not have for {}", port.protocol),
            },
        };
        if ports.is_empty() {
            return "the port: no entry is valid".into();
        }
        let wanted = match self.traffic {
            Traffic::Port(..) => self.traffic.to_string(),
            Traffic::Portless => "traffic without ports, such as icmp".into(),
        };
        format!("the port: it allows {}, not {wanted}", listed(ports.iter().map(shown), ", "))
    }

    fn peers_lack(&self, policy: &Policy, peers: &Peers, other: &ExplainedEnd) -> String {
        let Peers::Of(peers) = peers else { return String::new() };
        let who = match (other.pod, &other.remote[..]) {
            (Some(pod), _) => pod.name.to_string(),
            (None, [_, ..]) => remote_names(other.remote.iter().map(|(set, _)| set)),
            (None, []) => format!("{}, not the address of a pod,", other.address),
        };
        if peers.is_empty() {
            return "the peer: no entry is valid".into();
        }
        let reasons = peers.iter().map(|peer| self.peer_lacks(policy, peer, other));
        format!("the peer: {who} {}", listed(reasons, ", nor: "))
    }

    fn remote_lacks(
        &self,
        remote: &[(&RemoteSet, &RemoteLabels)],
        namespaces: &NamespaceScope,
        pods: &Selector,
    ) -> String {
        match namespaces {
            NamespaceScope::Selected(namespaces) if self.state.remote().families().are_required_by(namespaces) => {
                let lacks = remote.iter().map(|set| remote_lack(set, namespaces, pods));
                lacks.collect::<Vec<String>>().join(", or ")
            }
            NamespaceScope::Selected(_) | NamespaceScope::Own => {
                "is in another cluster, which only a namespaceSelector that requires the label of that cluster matches"
                    .into()
            }
        }
    }

    fn peer_lacks(&self, policy: &Policy, peer: &Peer, other: &ExplainedEnd) -> String {
        match (peer, other.pod) {
            (Peer::Block(block), _) if block.cidr.contains(&other.address) => {
                format!("is excepted from {}", block.cidr)
            }
            (Peer::Block(block), _) => format!("is not in {}", block.cidr),
            (Peer::Pods { namespaces, pods }, None) => match &other.remote[..] {
                [] => "cannot match a selector".into(),
                remote => self.remote_lacks(remote, namespaces, pods),
            },
            (Peer::Pods { .. }, Some(pod)) if pod.unreadable => "is invalid".into(),
            (Peer::Pods { namespaces, pods }, Some(pod)) => {
                let mut reasons = Vec::new();
                match namespaces {
                    NamespaceScope::Own if pod.name.namespace != policy.name.namespace => {
                        reasons.push(format!("is not in namespace {}", policy.name.namespace));
                    }
                    NamespaceScope::Own => {}
                    NamespaceScope::Selected(selector) => match self.state.namespace_labels(&pod.name.namespace) {
                        None => reasons.push(format!("is in namespace {}, which was not found", pod.name.namespace)),
                        Some(labels) => reasons.extend(
                            selector
                                .unmet(labels)
                                .map(|r| format!("is in namespace {}, which does not match {r}", pod.name.namespace)),
                        ),
                    },
                }
                reasons.extend(pods.unmet(&pod.labels).map(|r| format!("does not match {r}")));
                reasons.join(" and ")
            }
        }
    }
}

/// Why a selector does not match a remote set that contains the address.
fn remote_lack((set, seen): &(&RemoteSet, &RemoteLabels), namespaces: &Selector, pods: &Selector) -> String {
    let namespace = namespaces.unmet(&seen.namespace);
    let namespace = namespace.map(|r| {
        format!("is in namespace {} of {}, which does not match {r}", plain(&set.namespace), plain(&set.cluster))
    });
    let pod = pods.unmet(&seen.pod).map(|r| format!("does not match {r}"));
    namespace.into_iter().chain(pod).collect::<Vec<String>>().join(" and ")
}

/// The first entries, each of bounded length, and how many others there are.
fn listed(entries: impl ExactSizeIterator<Item = String>, joint: &str) -> String {
    let more = entries.len().saturating_sub(ENTRIES_NAMED);
    let named: Vec<String> = entries.take(ENTRIES_NAMED).map(|entry| plain(&entry)).collect();
    match more {
        0 => named.join(joint),
        more => format!("{} (and {more} more entries)", named.join(joint)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_list_of_lacks_is_shortened() {
        let text = listed((0..20_000).map(|n| format!("is not in 10.{n}.0.0/16")), ", nor: ");
        assert!(text.len() < 200 && text.ends_with("(and 19996 more entries)"), "{text}");
        assert_eq!(listed(["a\nb".to_owned()].into_iter(), ", "), "a?b");
    }
}
