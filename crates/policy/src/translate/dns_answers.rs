//! Copies DNS answers to the agent, from which it learns the addresses of domain names (see [`crate::ClusterState::learn`]).
//!
//! Only answers to pods of this node whose cluster policies have domain names are copied, and only within a limit for
//! each pod. The rules never decide, and are only present while there are such pods. Whether a resolver is trusted, and
//! which names count, is decided by the agent.
//!
//! The agent assembles answers over TCP, and must find the boundaries of messages that the resolver has sent: a message
//! read from the middle of another one would let the author of the outer one open addresses for any name. A pod can
//! forge its side of a connection, make conntrack forget it, and have it tracked again from either end. So all segments
//! that the pod and port 53 exchange are copied, in both directions, selected by their own addresses and ports, in any
//! state of conntrack. A connection has the ports that the resolver sees. They differ from the pod's if conntrack
//! replaces the port of one of two connections that would look the same to the resolver (a pod opens one to a Service
//! and one to its backend from the same port). So segments of pods are copied after source translation, and those of
//! resolvers are marked ([`DnsCopy::Translated`]) where it was reversed. A pod and another end that exceed their limit get
//! a pause of [`PAUSED_SECONDS`] in which no segment is copied, which [`DnsCopy::Pause`] announces. Of connections to the
//! node itself only untracked ones are read.
//!
//! A segment in fragments may arrive late, when its last fragment does. So fragments of pods are copied
//! ([`DnsCopy::PodFragment`]) before the node reassembles them, each pod's within [`FRAGMENTS`].

use std::net::IpAddr;
use std::sync::Arc;

use nft::{
    Action, Chain, Comment, ConntrackDirection as Side, Datum, Dynamic, Element, Family, Field, Hook, Key, Limit, Log,
    Match, Name, Period, Protocol, Rule, Ruleset, Set, State, Verdict,
};

use super::layout::{Layout, address_type, fixed};
use super::roles::SetRole;
use super::{Direction, address_key};

/// IANA protocol number.
const ICMPV6: u8 = 58;

/// The port of DNS (RFC 1035, section 4.2).
const DNS: u16 = 53;

/// Bytes of an answer that are copied, from its network header on: more than the 1,232 bytes of payload that resolvers
/// agreed on to avoid fragments, and the 4,096 of earlier defaults.
const DATAGRAM_BYTES: u32 = 4352;

/// Bytes that are copied of a segment, from its network header on: senders and receivers on the node combine segments
/// of a connection, so that one of them may have a whole answer (256 IPv6 addresses take 7 KiB).
const SEGMENT_BYTES: u32 = 16_640;

/// The most bytes that are copied of a packet.
pub const COPIED_ANSWER_BYTES: u32 = SEGMENT_BYTES;

/// Bytes that are copied of a pod's segment: the longest headers of IPv4 and TCP.
const POD_SEGMENT_BYTES: u32 = 120;

/// Limit of the answers to one pod, so that none keeps those of others from being copied.
const EACH_POD: Limit = Limit { packets: 100, per: Period::Second, burst: 200, over: false };

/// The segments between one pod and one other end that begin a pause, so that other senders do not use up the limit of a
/// pod's resolver. A connection with one answer takes ten of them.
const TOO_MANY_SEGMENTS: Limit = Limit { packets: 200, per: Period::Second, burst: 600, over: true };

/// How long no segments between a pod and another end are copied after the first one above the limit.
pub const PAUSED_SECONDS: u32 = 30;

/// Pods whose limits are kept, far more than a node has.
const PODS: u32 = 4096;

/// Pods with another end each whose limits are kept.
const PAIRS: u32 = 16_384;

/// Copies of one pod's fragments. Each stops reading for longer than the next one takes to be copied.
const FRAGMENTS: Limit = Limit { packets: 1, per: Period::Second, burst: 1, over: false };

/// How long the limit of an idle pod is kept.
const KEPT_SECONDS: u32 = 60;

/// The chains for fragments of pods, for segments from and to resolvers, and for packets that a resolver on the own node
/// sends and receives.
pub(super) const FRAGMENTED: &str = "dns-fragments";
pub(super) const FORWARDED: &str = "dns-forwarded";
pub(super) const LEAVING: &str = "dns-leaving";
pub(super) const FROM_OWN_NODE: &str = "dns-answers";
pub(super) const TO_OWN_NODE: &str = "dns-questions";

/// The kind of a copied packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsCopy {
    /// A datagram or segment from port 53 to a pod.
    Answer,
    /// A segment from port 53 to a pod, in a flow whose source is translated: the port of the pod may be another one for
    /// the sender, and the packet's conntrack entry has it. It is copied as an answer, too.
    Translated,
    /// A segment of a pod to port 53, as it leaves the node.
    PodSegment,
    /// A fragment of a pod, before the node reassembles it.
    PodFragment,
    /// A segment in this direction, seen from the pod, exceeded the limit: no further ones between these ends are copied
    /// for [`PAUSED_SECONDS`].
    Pause(Direction),
}

impl DnsCopy {
    /// Each kind.
    pub const ALL: [DnsCopy; 6] = [
        DnsCopy::Answer,
        DnsCopy::Translated,
        DnsCopy::PodSegment,
        DnsCopy::PodFragment,
        DnsCopy::Pause(Direction::Egress),
        DnsCopy::Pause(Direction::Ingress),
    ];

    /// The log prefix. That of answers begins all of them.
    pub const fn prefix(self) -> &'static str {
        match self {
            DnsCopy::Answer => "ringfence dns",
            DnsCopy::Translated => "ringfence dns translated",
            DnsCopy::PodSegment => "ringfence dns from pod",
            DnsCopy::PodFragment => "ringfence dns fragment from pod",
            DnsCopy::Pause(Direction::Egress) => "ringfence dns pause from pod",
            DnsCopy::Pause(Direction::Ingress) => "ringfence dns pause to pod",
        }
    }

    /// The kind with the prefix.
    pub fn of(prefix: &str) -> Option<DnsCopy> {
        DnsCopy::ALL.into_iter().find(|copy| copy.prefix() == prefix)
    }
}

/// The chain that copies segments of pods (egress) or to them (ingress).
pub(super) fn segment_chain(direction: Direction, family: Family) -> &'static str {
    match (direction, family) {
        (Direction::Egress, Family::V4) => "dns-from-pods4",
        (Direction::Egress, Family::V6) => "dns-from-pods6",
        (Direction::Ingress, Family::V4) => "dns-to-pods4",
        (Direction::Ingress, Family::V6) => "dns-to-pods6",
    }
}

/// The pod's address in a packet.
fn pod_field(direction: Direction, family: Family) -> Field {
    match direction {
        Direction::Egress => Field::Source(family),
        Direction::Ingress => Field::Destination(family),
    }
}

/// The pods of this node whose answers are copied.
fn clients(family: Family) -> Name {
    SetRole::DnsClients(family).name()
}

/// The limits of the pods.
fn limits(family: Family) -> Name {
    SetRole::DnsLimits(family).name()
}

/// The limits of segments between pods and other ends.
fn segments(family: Family) -> Name {
    SetRole::DnsSegments(family).name()
}

/// The pods with other ends between which no segments are copied for a while.
fn paused(family: Family) -> Name {
    SetRole::DnsPaused(family).name()
}

/// The limits of pods' fragments.
fn fragments(family: Family) -> Name {
    SetRole::DnsFragments(family).name()
}

/// The pods whose answers the rules copy.
pub fn dns_clients(ruleset: &Ruleset) -> impl Iterator<Item = IpAddr> {
    let sets = Family::BOTH.into_iter().filter_map(|family| ruleset.sets.get(&clients(family)));
    sets.flat_map(|set| set.elements.keys()).filter_map(|key| match key {
        Key::One(Datum::V4(address)) => Some(IpAddr::V4(address)),
        Key::One(Datum::V6(address)) => Some(IpAddr::V6(address)),
        Key::One(Datum::Protocol(_) | Datum::Port(_) | Datum::Interface(_))
        | Key::Two(..)
        | Key::Three(..)
        | Key::Range(..) => None,
    })
}

pub(super) fn add_client(ruleset: &mut Ruleset, address: IpAddr) {
    let family = Family::of(address);
    let comment = Some(Comment::new("pods of this node whose cluster policies have domain names"));
    let set = || Arc::new(Set { comment, ..Set::of(&[address_type(family)]) });
    let set = ruleset.sets.entry(clients(family)).or_insert_with(set);
    Arc::make_mut(set).elements.insert(address_key(address), Element::default());
}

pub(super) fn remove_client(ruleset: &mut Ruleset, address: IpAddr) {
    if let Some(set) = ruleset.sets.get_mut(&clients(Family::of(address))) {
        Arc::make_mut(set).elements.remove(&address_key(address));
    }
}

/// The rules that copy answers on their way through the forward hook. Adds the sets and chains that they need, and
/// removes those that nothing needs.
pub(super) fn forward_rules(ruleset: &mut Ruleset, layout: &Layout) -> Vec<Rule> {
    let (mut forward, mut fragmented, mut forwarded, mut leaving) = (vec![], vec![], vec![], vec![]);
    let (mut from_own_node, mut to_own_node) = (vec![], vec![]);
    for family in Family::BOTH {
        let is_empty = ruleset.sets.get(&clients(family)).is_none_or(|set| set.elements.is_empty());
        let group = layout.dns_group().filter(|_| !is_empty);
        if is_empty {
            ruleset.sets.remove(&clients(family));
        }
        let Some(group) = group else {
            remove_family(ruleset, family);
            continue;
        };
        let pod = vec![address_type(family)];
        let pair = vec![address_type(family); 2];
        for (set, of, size, timeout_seconds, comment) in [
            (limits(family), &pod, PODS, KEPT_SECONDS, "pods whose answers were copied, each with its limit"),
            (fragments(family), &pod, PODS, KEPT_SECONDS, "pods whose fragments were copied, each with its limit"),
            (segments(family), &pair, PAIRS, KEPT_SECONDS, "pods with the other end at port 53, each with its limit"),
            (paused(family), &pair, PAIRS, PAUSED_SECONDS, "pods with another end that exceeded the limit of segments"),
        ] {
            let new = || Set {
                dynamic: Some(Dynamic { timeout_seconds }),
                size: Some(size),
                comment: Some(Comment::new(comment)),
                ..Set::of(of)
            };
            ruleset.sets.entry(set).or_insert_with(|| Arc::new(new()));
        }
        for direction in Direction::BOTH {
            let rules = segment_rules(direction, family, group);
            let chain = Chain { hook: None, rules };
            ruleset.chains.insert(fixed(segment_chain(direction, family)), Arc::new(chain));
        }
        fragmented.push(fragment_rule(family, group));
        leaving.push(to_segment_chain(Direction::Egress, family, &[]));
        forwarded.push(to_segment_chain(Direction::Ingress, family, &[]));
        let flow_source = Field::FlowSource(family);
        let matches = vec![
            Match::Protocol(Protocol::Udp),
            Match::FlowPort(DNS, DNS),
            Match::Direction(Side::Reply),
            Match::InSet { fields: vec![flow_source], set: clients(family) },
        ];
        let what = "answers to pods whose cluster policies have domain names";
        forward.push(Rule::new(matches, copy_datagram(flow_source, family, group)).commented(what));
        let receiver = pod_field(Direction::Ingress, family);
        let matches = vec![
            Match::Protocol(Protocol::Udp),
            Match::SourcePort(DNS, DNS),
            Match::InSet { fields: vec![receiver], set: clients(family) },
        ];
        let what = "answers of a resolver on this node";
        from_own_node.push(Rule::new(matches, copy_datagram(receiver, family, group)).commented(what));
        let untracked = [Match::State(vec![State::Untracked])];
        from_own_node.push(to_segment_chain(Direction::Ingress, family, &untracked));
        to_own_node.push(to_segment_chain(Direction::Egress, family, &untracked));
    }
    for (name, hook, rules) in [
        // Other fragments of the packet may wait at the node, and behind it.
        (FRAGMENTED, Hook::EarlyPrerouting, fragmented),
        // Another program may drop segments that conntrack calls invalid (kube-proxy does), such as a RST.
        (FORWARDED, Hook::EarlyForward, forwarded),
        (LEAVING, Hook::LatePostrouting, leaving),
        // A resolver on the node, such as NodeLocal DNSCache, excludes its packets from connection tracking. Only
        // processes of the node send through the output hook.
        (FROM_OWN_NODE, Hook::Output, from_own_node),
        (TO_OWN_NODE, Hook::Input, to_own_node),
    ] {
        place_base_chain(ruleset, name, hook, rules);
    }
    forward
}

fn remove_family(ruleset: &mut Ruleset, family: Family) {
    for set in [limits(family), fragments(family), segments(family), paused(family)] {
        ruleset.sets.remove(&set);
    }
    for direction in Direction::BOTH {
        ruleset.chains.remove(&fixed(segment_chain(direction, family)));
    }
}

fn copy_datagram(pod: Field, family: Family, group: u16) -> Vec<Action> {
    let limit = Action::Record { fields: vec![pod], set: limits(family), limit: EACH_POD };
    vec![limit, copy(DnsCopy::Answer, group, DATAGRAM_BYTES)]
}

/// Copies fragments of pods that may be of a TCP segment. A later one has no port, and with IPv6 the header that its
/// fragment header names may be an extension header.
fn fragment_rule(family: Family, group: u16) -> Rule {
    let pod = pod_field(Direction::Egress, family);
    let mut matches = vec![Match::Fragment(family)];
    matches.extend(match family {
        Family::V4 => vec![Match::Protocol(Protocol::Tcp)],
        Family::V6 => [Protocol::Udp.number(), ICMPV6].map(Match::FragmentOfOther).to_vec(),
    });
    matches.push(Match::InSet { fields: vec![pod], set: clients(family) });
    let limit = Action::Record { fields: vec![pod], set: fragments(family), limit: FRAGMENTS };
    let actions = vec![limit, copy(DnsCopy::PodFragment, group, POD_SEGMENT_BYTES)];
    Rule::new(matches, actions).commented("fragments of segments, which may arrive late")
}

/// Leads the segments between pods and port 53 to the chain that copies them.
fn to_segment_chain(direction: Direction, family: Family, also: &[Match]) -> Rule {
    let (port, what) = match direction {
        Direction::Egress => (Match::DestinationPort(DNS, DNS), "segments to resolvers over TCP"),
        Direction::Ingress => (Match::SourcePort(DNS, DNS), "answers over TCP"),
    };
    let is_client = Match::InSet { fields: vec![pod_field(direction, family)], set: clients(family) };
    let matches = [&[Match::Protocol(Protocol::Tcp), port, is_client], also].concat();
    let jump = Verdict::Jump(fixed(segment_chain(direction, family)));
    Rule::new(matches, vec![Action::Verdict(jump)]).commented(what)
}

/// The rule that pauses a pod, and those that copy segments of pods that are not paused. An element of the dynamic set has
/// a limit, which has no effect in the set of paused pods: a segment that adds one is within it.
fn segment_rules(direction: Direction, family: Family, group: u16) -> Vec<Rule> {
    let ends = match direction {
        Direction::Egress => vec![Field::Source(family), Field::Destination(family)],
        Direction::Ingress => vec![Field::Destination(family), Field::Source(family)],
    };
    let record = |set, limit| Action::Record { fields: ends.clone(), set, limit };
    let is_not_paused = || Match::NotInSet { fields: ends.clone(), set: paused(family) };
    let pause = vec![
        record(segments(family), TOO_MANY_SEGMENTS),
        record(paused(family), EACH_POD),
        copy(DnsCopy::Pause(direction), group, POD_SEGMENT_BYTES),
    ];
    let mut rules = vec![Rule::new(vec![is_not_paused()], pause).commented("pods with too many segments")];
    let mut push = |matches, of, bytes| rules.push(Rule::new(matches, vec![copy(of, group, bytes)]));
    match direction {
        Direction::Egress => push(vec![is_not_paused()], DnsCopy::PodSegment, POD_SEGMENT_BYTES),
        Direction::Ingress => {
            push(vec![Match::SourceTranslated, is_not_paused()], DnsCopy::Translated, POD_SEGMENT_BYTES);
            push(vec![is_not_paused()], DnsCopy::Answer, SEGMENT_BYTES);
        }
    }
    rules
}

fn copy(of: DnsCopy, group: u16, snap_bytes: u32) -> Action {
    Action::Log(Log { prefix: Comment::new(of.prefix()), group, snap_bytes })
}

fn place_base_chain(ruleset: &mut Ruleset, name: &str, hook: Hook, rules: Vec<Rule>) {
    if rules.is_empty() {
        ruleset.chains.remove(&fixed(name));
    } else {
        ruleset.chains.insert(fixed(name), Arc::new(Chain { hook: Some(hook), rules }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_tells_the_kind_of_copy() {
        for copy in DnsCopy::ALL {
            assert_eq!(DnsCopy::of(copy.prefix()), Some(copy));
            assert!(copy.prefix().starts_with(DnsCopy::Answer.prefix()), "the group is found by it");
        }
        assert_eq!(DnsCopy::of("ringfence deny/ingress"), None);
    }
}
