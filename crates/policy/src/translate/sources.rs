//! What passes between the ports of a bridge, and what pods send into tunnels.
//!
//! On a bridge the sender of a frame chooses whom it reaches, whatever address the packet in it has: broadcast,
//! multicast, or one that a pod gave itself. A pod that is isolated for ingress gets what is sent to its own addresses,
//! as its policies judge that. Only the family `bridge` sees the port by which a frame leaves.
//!
//! What a pod wraps into a tunnel and sends to a node comes out there with any source it likes, and from no pod's
//! interface. So pods do not send to the ports and with the protocols of tunnels.

use std::sync::Arc;

use nft::{
    Action, Chain, Comment, Datum, Element, EtherType, Family, Field, Hook, Key, KeyType, Match, Name, Named, Protocol,
    Rule, Ruleset, Set, Table, Verdict,
};

use super::edge::{EdgeHook, PodPort, add_prerouting};
use super::layout::{JUDGE, Layout, TABLE_COMMENT, address_type, fixed, goto};
use super::reporting::{Cause, add_deny_chain, chain_of, denied_for};
use super::room::room_for;

/// Host sides of pods' interfaces.
const INTERFACES: &str = "pod-interfaces";
/// Ports of a bridge to pods that are isolated for ingress.
const CLOSED: &str = "closed-ports";
const TUNNEL_PORTS: &str = "tunnel-ports";
pub(super) const INPUT: &str = "input";
/// What pods send outside of approved flows.
pub(super) const FROM_POD: &str = "from-pod";
/// Where nodes take tunnels in over UDP: VXLAN as registered and as Linux began it (which flannel uses), Geneve.
const TUNNELS: [u16; 3] = [4789, 6081, 8472];
/// Protocols that wrap packets: IPv4 and IPv6 in IP (RFC 2003, 4213), GRE (RFC 2784).
const WRAPPERS: [u8; 3] = [4, 41, 47];

/// The addresses of the ports to pods that are isolated for ingress.
fn destinations(family: Family) -> Name {
    fixed(match family {
        Family::V4 => "destinations4",
        Family::V6 => "destinations6",
    })
}

/// Whether the set only says which interfaces are pods': a flow into a tunnel that was approved before its pod's
/// interface was known goes on.
pub(super) fn is_of_interfaces(set: &Name) -> bool {
    set.as_str() == INTERFACES
}

/// Whether something goes unchecked that is not in the set: interfaces, and ports of tunnels.
pub(super) fn names_checked(set: &Name) -> bool {
    [INTERFACES, TUNNEL_PORTS].contains(&set.as_str())
}

fn deny(matches: Vec<Match>, cause: Cause) -> Rule {
    Rule::new(matches, denied_for(cause))
}

fn from_pod() -> Match {
    Match::InSet { fields: vec![Field::InInterface], set: fixed(INTERFACES) }
}

fn add_set(ruleset: &mut Ruleset, name: Name, types: &[KeyType], comment: &str, keys: Vec<Key>) {
    let mut set = Set { comment: Some(Comment::new(comment)), ..Set::of(types) };
    set.elements = keys.into_iter().map(|key| (key, Element::default())).collect();
    ruleset.sets.insert(name, Arc::new(set));
}

/// The interfaces of pods and the ports of tunnels.
fn add_tunnel_sets<'a>(ruleset: &mut Ruleset, ports: impl IntoIterator<Item = &'a PodPort>) {
    let tunnels = TUNNELS.map(|port| Key::One(Datum::Port(port))).into();
    add_set(ruleset, fixed(TUNNEL_PORTS), &[KeyType::InetService], "where nodes take tunnels in", tunnels);
    let interfaces: Vec<Key> = ports.into_iter().map(|port| Key::One(Datum::Interface(port.interface))).collect();
    let mut set = Set { size: Some(room_for(interfaces.len())), ..Set::of(&[KeyType::InterfaceName]) };
    set.comment = Some(Comment::new("host sides of pods' interfaces"));
    set.elements = interfaces.into_iter().map(|key| (key, Element::default())).collect();
    ruleset.sets.insert(fixed(INTERFACES), Arc::new(set));
}

/// Brings what the rules of [`tunnel_rules`] look at up to date: there is nothing to look at unless a routed pod's interface
/// is known. The chain at the input hook is always there: base chains do not come and go.
pub(super) fn refresh_routed(ruleset: &mut Ruleset, layout: &Layout, ports: &[PodPort]) {
    let routed: Vec<&PodPort> = ports.iter().filter(|port| !port.bridged).collect();
    let mut rules = vec![];
    if routed.is_empty() {
        for set in [INTERFACES, TUNNEL_PORTS] {
            ruleset.sets.remove(&fixed(set));
        }
        ruleset.chains.remove(&chain_of(Cause::Tunnel));
    } else {
        add_tunnel_sets(ruleset, routed.iter().copied());
        add_deny_chain(ruleset, layout, Cause::Tunnel);
        rules = tunnels(&[from_pod()]);
    }
    ruleset.chains.insert(fixed(INPUT), Arc::new(Chain { hook: Some(Hook::Input), rules }));
}

/// Under these conditions, which say that a packet comes from a pod.
fn tunnels(from_pod: &[Match]) -> Vec<Rule> {
    std::iter::once(tunnels_over_udp(from_pod)).chain(wrapped(from_pod)).collect()
}

fn tunnels_over_udp(from_pod: &[Match]) -> Rule {
    let to_port = Match::InSet { fields: vec![Field::DestinationPort], set: fixed(TUNNEL_PORTS) };
    tunnel([Match::Protocol(Protocol::Udp), to_port], from_pod)
}

fn wrapped(from_pod: &[Match]) -> [Rule; 3] {
    WRAPPERS.map(|number| tunnel([Match::IpProtocol(number)], from_pod))
}

fn tunnel(matches: impl IntoIterator<Item = Match>, from_pod: &[Match]) -> Rule {
    let matches = matches.into_iter().chain(from_pod.iter().cloned()).collect();
    deny(matches, Cause::Tunnel).commented("what comes out of a tunnel has any source it likes")
}

/// Whether the interface of any routed pod is known.
pub(super) fn are_known(ruleset: &Named<Set>) -> bool {
    ruleset.contains_key(&fixed(INTERFACES))
}

/// What follows the approval in the forward hook: the packets of pods go on in the chain [`FROM_POD`].
pub(super) fn to_from_pod() -> Rule {
    Rule::new(vec![from_pod()], goto(FROM_POD))
}

/// What comes after approvals, since the first packet into a tunnel is never approved, and leads on to the judgement.
pub(super) fn tunnel_rules() -> Vec<Rule> {
    // Nearly every packet is one of these two: it is compared with no wrapper.
    let judge = |protocol| Rule::new(vec![Match::Protocol(protocol)], goto(JUDGE));
    let mut rules = vec![judge(Protocol::Tcp), tunnels_over_udp(&[]), judge(Protocol::Udp)];
    rules.extend(wrapped(&[]));
    rules.push(Rule::new(vec![], goto(JUDGE)));
    rules
}

/// The table of family `bridge`; none if no pod is known to be on a bridge.
pub(super) fn bridged(layout: &Layout, ports: &[PodPort]) -> Option<Ruleset> {
    let bridged: Vec<&PodPort> = ports.iter().filter(|port| port.bridged).collect();
    if bridged.is_empty() {
        return None;
    }
    let mut ruleset = Ruleset::new(Table::bridge(layout.table().clone()), Comment::new(TABLE_COMMENT));
    ruleset.protected = layout.is_protected();
    add_tunnel_sets(&mut ruleset, bridged.iter().copied());
    let closed = || bridged.iter().filter(|port| port.closed);
    let interfaces = closed().map(|port| Key::One(Datum::Interface(port.interface))).collect();
    let comment = "host sides of pods that are isolated for ingress";
    add_set(&mut ruleset, fixed(CLOSED), &[KeyType::InterfaceName], comment, interfaces);
    for family in Family::BOTH {
        let of_port = |port: &&&PodPort| -> Vec<Key> {
            let own = port.addresses.iter().filter(|address| Family::of(**address) == family);
            own.map(|address| Key::Two(Datum::Interface(port.interface), Datum::from(*address))).collect()
        };
        let keys = closed().flat_map(|port| of_port(&port)).collect();
        let types = [KeyType::InterfaceName, address_type(family)];
        add_set(&mut ruleset, destinations(family), &types, "what isolated pods may be sent", keys);
    }
    let between_ports = Chain { hook: Some(Hook::BridgeForward), rules: between_ports_rules() };
    ruleset.chains.insert(fixed("forward"), Arc::new(between_ports));
    for cause in [Cause::Tunnel, Cause::OtherDestination] {
        add_deny_chain(&mut ruleset, layout, cause);
    }
    let tunnels = Chain { hook: Some(Hook::Prerouting), rules: tunnels(&[from_pod()]) };
    match layout.edge_hook() {
        EdgeHook::Ingress => {
            ruleset.chains.insert(fixed("prerouting"), Arc::new(tunnels));
        }
        EdgeHook::Prerouting => {
            add_prerouting(&mut ruleset, layout, bridged, Hook::Prerouting);
            if let Some(chain) = ruleset.chains.get_mut(&fixed("prerouting")) {
                let Chain { rules, hook: _ } = Arc::make_mut(chain);
                rules.splice(0..0, tunnels.rules);
            }
        }
    }
    Some(ruleset)
}

/// Neighbour discovery (RFC 4861) and multicast listener discovery (RFC 2710, 3810).
fn discovery() -> [Rule; 2] {
    [(130, 136), (143, 143)].map(|(first, last)| {
        let matches = vec![Match::EtherType(EtherType::Ipv6), Match::Icmpv6Type(first, last)];
        Rule::new(matches, vec![Action::Verdict(Verdict::Accept)])
    })
}

/// What passes from port to port: an isolated pod gets what is sent to its own addresses, also from what else is on the
/// bridge: an uplink, and routers behind it.
fn between_ports_rules() -> Vec<Rule> {
    let mut rules: Vec<Rule> = discovery().into();
    for (kind, family) in [(EtherType::Ipv4, Family::V4), (EtherType::Ipv6, Family::V6)] {
        let to_closed = Match::InSet { fields: vec![Field::OutInterface], set: fixed(CLOSED) };
        let fields = vec![Field::OutInterface, Field::Destination(family)];
        let others = Match::NotInSet { fields, set: destinations(family) };
        let rule = deny(vec![Match::EtherType(kind), to_closed, others], Cause::OtherDestination);
        rules.push(rule.commented("an isolated pod gets what is sent to itself"));
    }
    rules
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Attachment, AttachmentId, Change, ClusterState, Enforcement, Kind, ObjectName, lower, translate};

    /// The closed ports where a policy selects a pod on a bridge in both directions.
    fn closed_ports(enforcement: Enforcement) -> usize {
        let mut state = ClusterState::new();
        state.set_default_enforcement(enforcement);
        let pod = json!({"metadata": {"namespace": "shop", "name": "web"}});
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {"namespace": "shop", "name": "closed"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
        });
        for (kind, object) in [(Kind::Pod, pod), (Kind::NetworkPolicy, policy)] {
            state.apply(Change::Set(lower(kind, &object).unwrap()));
        }
        state.attach(Attachment {
            id: AttachmentId { container: "c".into(), interface: "eth0".into() },
            pod: ObjectName::new("shop", "web"),
            uid: None,
            addresses: vec!["10.0.0.1".parse().unwrap()],
            host_interface: Some(nft::InterfaceName::new("veth0").unwrap()),
            bridged: true,
            hardware_address: None,
            link_local: vec![],
            since: 1,
        });
        let bridge = translate(&state, "node-a", &Layout::for_table("ringfence").unwrap()).bridge.unwrap();
        assert_eq!(bridge.sets[&fixed(INTERFACES)].elements.len(), 1);
        bridge.sets[&fixed(CLOSED)].elements.len()
    }

    #[test]
    fn a_pod_whose_policies_are_audited_is_not_closed_off_on_its_bridge() {
        assert_eq!(closed_ports(Enforcement::Enforce), 1);
        assert_eq!(closed_ports(Enforcement::Audit), 0);
    }
}
