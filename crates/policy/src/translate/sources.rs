//! Source addresses: a pod sends with its own and with no other.
//!
//! Egress policies are found by the source address of a flow, so a pod that forges it would escape its own. Where the
//! CNI plugin has told the host's side of a pod's interface, what comes in there has to carry one of the pod's
//! addresses. For routed pods the forward hook sees that interface; for the ports of a bridge only the family
//! `bridge` does.
//!
//! What a pod wraps into a tunnel and sends to a node comes out there with any source it likes, and from no pod's
//! interface. So pods do not send to the ports and with the protocols of tunnels.
//!
//! On a bridge a pod also chooses whom a frame reaches, whatever address the packet in it has: broadcast, multicast, or
//! one that a pod gave itself. A pod that is isolated for ingress gets what is sent to its own addresses, as its
//! policies judge that.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use nft::{
    Action, Chain, Comment, Datum, Element, EtherType, Family, Field, Hook, InterfaceName, Key, KeyType, Match, Name,
    Named, Protocol, Rule, Ruleset, Set, Table, Verdict,
};

use super::Direction;
use super::layout::{JUDGE, Layout, TABLE_COMMENT, address_type, fixed, goto};
use super::reporting::{Cause, add_deny_chain, chain_of, denied_for};
use super::room::room_for;
use crate::{Attachment, ClusterState};

/// Interfaces whose sources are checked.
const INTERFACES: &str = "pod-interfaces";
const SOURCES4: &str = "sources4";
const SOURCES6: &str = "sources6";
/// Ports of a bridge to pods that are isolated for ingress.
const CLOSED: &str = "closed-ports";
/// Ports of a bridge to pods that are isolated for egress.
const CONFINED: &str = "confined-ports";
const TUNNEL_PORTS: &str = "tunnel-ports";
pub(super) const INPUT: &str = "input";
/// What pods send with their own addresses.
pub(super) const FROM_POD: &str = "from-pod";
/// Where nodes take tunnels in over UDP: VXLAN as registered and as Linux began it (which flannel uses), Geneve.
const TUNNELS: [u16; 3] = [4789, 6081, 8472];
/// Protocols that wrap packets: IPv4 and IPv6 in IP (RFC 2003, 4213), GRE (RFC 2784).
const WRAPPERS: [u8; 3] = [4, 41, 47];
const UNSPECIFIED: &str = "unspecified6";
/// IPv6 addresses that mean something on one link only.
const LINK_LOCAL: &str = "link-local6";

fn sources(family: Family) -> Name {
    fixed(match family {
        Family::V4 => SOURCES4,
        Family::V6 => SOURCES6,
    })
}

/// Whether the set is asked about every packet, approved or not, so that no flow has to be judged anew when it changes.
/// (The rules about tunnels come after the approval: a flow into one that was approved before its pod's interface was
/// known goes on.)
pub(super) fn is_of_sources(set: &Name) -> bool {
    [INTERFACES, SOURCES4, SOURCES6].contains(&set.as_str())
}

/// Whether something goes unchecked that is not in the set: interfaces, and ports of tunnels.
pub(super) fn names_checked(set: &Name) -> bool {
    [INTERFACES, TUNNEL_PORTS].contains(&set.as_str())
}

/// The sets of one table: the interfaces, and which addresses each may send with.
#[derive(Default)]
struct Pairs {
    interfaces: BTreeSet<InterfaceName>,
    /// Of pods that are isolated for ingress.
    closed: BTreeSet<InterfaceName>,
    /// Of pods that are isolated for egress.
    confined: BTreeSet<InterfaceName>,
    addresses: BTreeSet<(InterfaceName, IpAddr)>,
}

impl Pairs {
    /// Of the attachments that are ports of a bridge, or of the others. `isolated` says of an attached address whether
    /// something isolates its pod in a direction: an enforced policy, or that it is not known or not understood.
    fn of(state: &ClusterState, bridged: bool, isolated: impl Fn(IpAddr, Direction) -> bool) -> Pairs {
        // Names of interfaces come again; what an earlier pod had is of no meaning then.
        let mut latest: BTreeMap<InterfaceName, &Arc<Attachment>> = BTreeMap::new();
        for attachment in state.attachments() {
            let Some(interface) = attachment.host_interface else { continue };
            let last = latest.entry(interface).or_insert(attachment);
            if (attachment.since, &attachment.id) > (last.since, &last.id) {
                *last = attachment;
            }
        }
        let mut pairs = Pairs::default();
        for (interface, attachment) in latest.into_iter().filter(|(_, attachment)| attachment.bridged == bridged) {
            pairs.interfaces.insert(interface);
            let isolated = |direction| attachment.addresses.iter().any(|address| isolated(*address, direction));
            if isolated(Direction::Ingress) {
                pairs.closed.insert(interface);
            }
            if isolated(Direction::Egress) {
                pairs.confined.insert(interface);
            }
            let own = attachment.addresses.iter().filter(|address| state.is_attached_as(attachment, **address));
            pairs.addresses.extend(own.map(|address| (interface, *address)));
        }
        pairs
    }

    fn add_to(&self, ruleset: &mut Ruleset) {
        let mut set = |name: Name, types: &[KeyType], comment: &str, size: Option<u32>, keys: Vec<Key>| {
            let mut set = Set { size, comment: Some(Comment::new(comment)), ..Set::of(types) };
            set.elements = keys.into_iter().map(|key| (key, Element::default())).collect();
            ruleset.sets.insert(name, Arc::new(set));
        };
        let ports = TUNNELS.map(|port| Key::One(Datum::Port(port))).into();
        set(fixed(TUNNEL_PORTS), &[KeyType::InetService], "where nodes take tunnels in", None, ports);
        let interfaces: Vec<Key> = self.interfaces.iter().map(|name| Key::One(Datum::Interface(*name))).collect();
        let size = Some(room_for(interfaces.len()));
        set(fixed(INTERFACES), &[KeyType::InterfaceName], "host sides of pods' interfaces", size, interfaces);
        for family in Family::BOTH {
            let of_family = self.addresses.iter().filter(|(_, address)| Family::of(*address) == family);
            let keys: Vec<Key> =
                of_family.map(|(name, a)| Key::Two(Datum::Interface(*name), Datum::from(*a))).collect();
            let types = [KeyType::InterfaceName, address_type(family)];
            let size = Some(room_for(keys.len()));
            set(sources(family), &types, "what pods may send with", size, keys);
        }
    }
}

fn deny(matches: Vec<Match>, cause: Cause) -> Rule {
    Rule::new(matches, denied_for(cause))
}

fn accept(matches: Vec<Match>) -> Rule {
    Rule::new(matches, vec![Action::Verdict(Verdict::Accept)])
}

fn from_pod() -> Match {
    Match::InSet { fields: vec![Field::InInterface], set: fixed(INTERFACES) }
}

/// `of_family` is the condition that says the family in the words of the table.
fn forged(of_family: Match, family: Family) -> Rule {
    let fields = vec![Field::InInterface, Field::Source(family)];
    deny(vec![of_family, from_pod(), Match::NotInSet { fields, set: sources(family) }], Cause::ForgedSource)
        .commented("a pod sends with its own addresses only")
}

/// Brings what the rules of [`rules()`] look at up to date: there is nothing to look at unless a routed pod's interface is
/// known. The chain at the input hook is always there: base chains do not come and go.
pub(super) fn refresh_routed(
    ruleset: &mut Ruleset,
    layout: &Layout,
    state: &ClusterState,
    isolated: impl Fn(IpAddr, Direction) -> bool,
) {
    let pairs = Pairs::of(state, false, isolated);
    let causes = [Cause::ForgedSource, Cause::Tunnel];
    let mut rules = vec![];
    if pairs.interfaces.is_empty() {
        for set in [fixed(INTERFACES), fixed(TUNNEL_PORTS), sources(Family::V4), sources(Family::V6)] {
            ruleset.sets.remove(&set);
        }
        for cause in causes {
            ruleset.chains.remove(&chain_of(cause));
        }
    } else {
        pairs.add_to(ruleset);
        for cause in causes {
            add_deny_chain(ruleset, layout, cause);
        }
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
pub(super) fn are_known(sets: &Named<Set>) -> bool {
    sets.contains_key(&fixed(INTERFACES))
}

/// What comes first in the forward hook, before approvals count: a forged packet could belong to an approved flow. The
/// packets of pods go on in the chain [`FROM_POD`].
pub(super) fn rules() -> Vec<Rule> {
    let own = |family: Family| {
        let fields = vec![Field::InInterface, Field::Source(family)];
        Rule::new(vec![Match::Family(family), Match::InSet { fields, set: sources(family) }], goto(FROM_POD))
    };
    let other = deny(vec![from_pod()], Cause::ForgedSource).commented("a pod sends with its own addresses only");
    Family::BOTH.into_iter().map(own).chain([other]).collect()
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
pub(super) fn bridged(
    layout: &Layout,
    state: &ClusterState,
    isolated: impl Fn(IpAddr, Direction) -> bool,
) -> Option<Ruleset> {
    let pairs = Pairs::of(state, true, isolated);
    if pairs.interfaces.is_empty() {
        return None;
    }
    let mut ruleset = Ruleset::new(Table::bridge(layout.table().clone()), Comment::new(TABLE_COMMENT));
    ruleset.protected = layout.is_protected();
    pairs.add_to(&mut ruleset);
    let mut link_local = Set { interval: true, ..Set::of(&[KeyType::Ipv6Addr]) };
    link_local.comment = Some(Comment::new("addresses of one link"));
    let (first, last) = (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), Ipv6Addr::from(0xfe80 << 112 | u128::MAX >> 10));
    link_local.elements.insert(Key::Range(Datum::V6(first), Datum::V6(last)), Element::default());
    ruleset.sets.insert(fixed(LINK_LOCAL), Arc::new(link_local));
    let mut unspecified = Set::of(&[KeyType::Ipv6Addr]);
    unspecified.comment = Some(Comment::new("who has no address yet"));
    unspecified.elements.insert(Key::One(Datum::V6(Ipv6Addr::UNSPECIFIED)), Element::default());
    ruleset.sets.insert(fixed(UNSPECIFIED), Arc::new(unspecified));
    for (name, interfaces, direction) in
        [(CLOSED, &pairs.closed, Direction::Ingress), (CONFINED, &pairs.confined, Direction::Egress)]
    {
        let mut set = Set::of(&[KeyType::InterfaceName]);
        set.comment = Some(Comment::new(&format!("host sides of pods that are isolated for {}", direction.word())));
        let elements = interfaces.iter().map(|name| (Key::One(Datum::Interface(*name)), Element::default()));
        set.elements = elements.collect();
        ruleset.sets.insert(fixed(name), Arc::new(set));
    }
    let mut chain = |name: &str, chain: Chain| ruleset.chains.insert(fixed(name), Arc::new(chain));
    chain("prerouting", Chain { hook: Some(Hook::Prerouting), rules: prerouting_rules() });
    chain("forward", Chain { hook: Some(Hook::BridgeForward), rules: between_ports_rules() });
    for cause in
        [Cause::ForgedSource, Cause::Tunnel, Cause::OtherProtocol, Cause::RouterAdvertisement, Cause::OtherDestination]
    {
        add_deny_chain(&mut ruleset, layout, cause);
    }
    Some(ruleset)
}

fn link_local(field: Field) -> Match {
    Match::InSet { fields: vec![field], set: fixed(LINK_LOCAL) }
}

/// Neighbour discovery (RFC 4861) and multicast listener discovery (RFC 2710, 3810) under these conditions.
fn discovery(conditions: &[Match]) -> [Rule; 2] {
    [(130, 136), (143, 143)].map(|(first, last)| {
        let mut matches = vec![Match::EtherType(EtherType::Ipv6)];
        matches.extend_from_slice(conditions);
        matches.push(Match::Icmpv6Type(first, last));
        accept(matches)
    })
}

/// Pods are no routers: an advertisement or a redirect from one would give others addresses that no policy knows.
fn no_routers() -> [Rule; 2] {
    [134, 137].map(|kind| {
        let conditions = vec![Match::EtherType(EtherType::Ipv6), from_pod(), Match::Icmpv6Type(kind, kind)];
        deny(conditions, Cause::RouterAdvertisement).commented("a pod is no router")
    })
}

/// What a port takes in. Link-local sources pass here, since pods talk so to their gateway.
fn prerouting_rules() -> Vec<Rule> {
    let others = [EtherType::Ipv4, EtherType::Ipv6, EtherType::Arp].map(Match::NotEtherType);
    let mut rules = vec![
        deny(std::iter::once(from_pod()).chain(others).collect(), Cause::OtherProtocol)
            .commented("no policy judges other protocols"),
        forged(Match::EtherType(EtherType::Ipv4), Family::V4),
    ];
    rules.extend(tunnels(&[from_pod()]));
    rules.extend(no_routers());
    let nobody = Match::InSet { fields: vec![Field::Source(Family::V6)], set: fixed(UNSPECIFIED) };
    rules.extend(discovery(&[from_pod(), nobody]));
    let is_v6 = Match::EtherType(EtherType::Ipv6);
    rules.push(accept(vec![is_v6.clone(), from_pod(), link_local(Field::Source(Family::V6))]));
    rules.push(forged(is_v6, Family::V6));
    rules
}

/// What passes from port to port. Egress policies are found by the source, and none by a link-local one; and an isolated pod
/// gets what is sent to its own addresses.
fn between_ports_rules() -> Vec<Rule> {
    // Also from what else is on the bridge: an uplink, and routers behind it.
    let mut rules: Vec<Rule> = discovery(&[]).into();
    let confined = Match::InSet { fields: vec![Field::InInterface], set: fixed(CONFINED) };
    let is_v6 = Match::EtherType(EtherType::Ipv6);
    let around = deny(vec![is_v6, confined, link_local(Field::Source(Family::V6))], Cause::ForgedSource);
    rules.push(around.commented("an isolated pod sends with addresses that policies know"));
    for (kind, family) in [(EtherType::Ipv4, Family::V4), (EtherType::Ipv6, Family::V6)] {
        let to_closed = Match::InSet { fields: vec![Field::OutInterface], set: fixed(CLOSED) };
        let fields = vec![Field::OutInterface, Field::Destination(family)];
        let others = Match::NotInSet { fields, set: sources(family) };
        let rule = deny(vec![Match::EtherType(kind), to_closed, others], Cause::OtherDestination);
        rules.push(rule.commented("an isolated pod gets what is sent to itself"));
    }
    rules
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{AttachmentId, Change, Enforcement, Kind, ObjectName, lower, translate};

    /// Of a pod on a bridge that a policy selects in both directions: the interfaces of the two sets.
    fn closed_and_confined(enforcement: Enforcement) -> [usize; 2] {
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
            host_interface: Some(InterfaceName::new("veth0").unwrap()),
            bridged: true,
            since: 1,
        });
        let bridge = translate(&state, "node-a", &Layout::for_table("ringfence").unwrap()).bridge.unwrap();
        assert_eq!(bridge.sets[&fixed(INTERFACES)].elements.len(), 1);
        [CLOSED, CONFINED].map(|set| bridge.sets[&fixed(set)].elements.len())
    }

    #[test]
    fn a_pod_whose_policies_are_audited_is_not_closed_off_on_its_bridge() {
        assert_eq!(closed_and_confined(Enforcement::Enforce), [1, 1]);
        assert_eq!(closed_and_confined(Enforcement::Audit), [0, 0]);
    }
}
