//! Copies DNS answers to the agent, from which it learns the addresses of domain names (see [`crate::ClusterState::learn`]).
//!
//! Only answers to pods of this node whose cluster policies have domain names are copied, and only within a limit for
//! each pod. The rules never decide, and are only present while there are such pods. Whether a resolver is trusted, and
//! which names count, is decided by the agent.
//!
//! Answers over TCP are assembled from copies of segments. A pod that exceeds its limit gets a pause of
//! [`PAUSED_SECONDS`], in which no segment is copied to it: longer than the agent keeps a connection without segments.
//! So the agent never continues one connection with segments of a later one whose start was not copied, which would
//! let the pod choose where a message begins. For the same reason, connections whose source is translated are left out:
//! two of them may have the same addresses and ports in the forward hook (a pod opens one to a Service and one to its
//! backend from the same port, and conntrack replaces the port of one), and of those to the node itself only untracked
//! ones are read.

use std::net::IpAddr;
use std::sync::Arc;

use nft::{
    Action, Chain, Comment, ConntrackDirection as Side, Datum, Dynamic, Element, Family, Field, Hook, Key, KeyType,
    Limit, Log, Match, Name, Period, Protocol, Rule, Ruleset, Set, State,
};

use super::address_key;
use super::layout::{Layout, address_type, fixed};
use super::roles::SetRole;

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

/// Limit of the answers to one pod, so that none keeps those of others from being copied.
const EACH_POD: Limit = Limit { packets: 100, per: Period::Second, burst: 200, over: false };

/// The segments to one pod that begin a pause. An answer takes five of them, four without payload.
const TOO_MANY_SEGMENTS: Limit = Limit { packets: 100, per: Period::Second, burst: 300, over: true };

/// How long no segments to a pod are copied after its last one above the limit.
pub const PAUSED_SECONDS: u32 = 30;

/// Pods whose limits are kept, far more than a node has.
const PODS: u32 = 4096;

/// How long the limit of an idle pod is kept.
const KEPT_SECONDS: u32 = 60;

/// The chain for answers of the own node, and the set of the port that they are from.
pub(super) const OWN_NODE: &str = "dns-answers";
pub(super) const PORT: &str = "dns-port";

/// The log prefix of copied answers.
pub const ANSWER_PREFIX: &str = "ringfence dns";

/// The pods of this node whose answers are copied.
fn clients(family: Family) -> Name {
    SetRole::DnsClients(family).name()
}

/// The limits of the pods.
fn limits(family: Family) -> Name {
    SetRole::DnsLimits(family).name()
}

/// The limits of segments to the pods.
fn segments(family: Family) -> Name {
    SetRole::DnsSegments(family).name()
}

/// The pods to which no segments are copied for a while.
fn paused(family: Family) -> Name {
    SetRole::DnsPaused(family).name()
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

/// The rules that copy answers on their way through the forward hook. Adds the sets that they need, and the chain for
/// answers of the own node, and removes those that nothing needs.
pub(super) fn forward_rules(ruleset: &mut Ruleset, layout: &Layout) -> Vec<Rule> {
    let (mut rules, mut of_own_node) = (Vec::new(), Vec::new());
    for family in Family::BOTH {
        let is_empty = ruleset.sets.get(&clients(family)).is_none_or(|set| set.elements.is_empty());
        let group = layout.dns_group().filter(|_| !is_empty);
        if is_empty {
            ruleset.sets.remove(&clients(family));
        }
        let Some(group) = group else {
            for set in [limits(family), segments(family), paused(family)] {
                ruleset.sets.remove(&set);
            }
            continue;
        };
        for (set, timeout_seconds, comment) in [
            (limits(family), KEPT_SECONDS, "pods whose answers were copied, each with its limit"),
            (segments(family), KEPT_SECONDS, "pods whose answers over TCP were copied, each with its limit"),
            (paused(family), PAUSED_SECONDS, "pods that exceeded the limit of answers over TCP"),
        ] {
            let new = || Set {
                dynamic: Some(Dynamic { timeout_seconds }),
                size: Some(PODS),
                comment: Some(Comment::new(comment)),
                ..Set::of(&[address_type(family)])
            };
            ruleset.sets.entry(set).or_insert_with(|| Arc::new(new()));
        }
        let pod = Field::FlowSource(family);
        let matches = |protocol| {
            vec![
                Match::Protocol(protocol),
                Match::FlowPort(DNS, DNS),
                Match::Direction(Side::Reply),
                Match::InSet { fields: vec![pod], set: clients(family) },
            ]
        };
        let what = "answers to pods whose cluster policies have domain names";
        rules.push(Rule::new(matches(Protocol::Udp), copy_datagram(pod, family, group)).commented(what));
        let segments = [matches(Protocol::Tcp), vec![Match::SourceNotTranslated]].concat();
        rules.extend(segment_rules(&segments, pod, family, group, what));
        let receiver = Field::Destination(family);
        let matches = |protocol| {
            vec![
                Match::Protocol(protocol),
                Match::InSet { fields: vec![Field::L4Proto, Field::SourcePort], set: fixed(PORT) },
                Match::InSet { fields: vec![receiver], set: clients(family) },
            ]
        };
        let what = "answers of a resolver on this node";
        of_own_node.push(Rule::new(matches(Protocol::Udp), copy_datagram(receiver, family, group)).commented(what));
        let segments = [matches(Protocol::Tcp), vec![Match::State(vec![State::Untracked])]].concat();
        of_own_node.extend(segment_rules(&segments, receiver, family, group, what));
    }
    place_own_node_chain(ruleset, of_own_node);
    rules
}

fn copy_datagram(pod: Field, family: Family, group: u16) -> Vec<Action> {
    let limit = Action::Record { fields: vec![pod], set: limits(family), limit: EACH_POD };
    vec![limit, copy(group, DATAGRAM_BYTES)]
}

/// The rule that pauses a pod, and the one that copies segments to those that are not paused. An element of the dynamic
/// set has a limit, which has no effect in the set of paused pods: no action follows.
fn segment_rules(matches: &[Match], pod: Field, family: Family, group: u16, what: &str) -> [Rule; 2] {
    let record = |set, limit| Action::Record { fields: vec![pod], set, limit };
    let pause = vec![record(segments(family), TOO_MANY_SEGMENTS), record(paused(family), EACH_POD)];
    let is_not_paused = Match::NotInSet { fields: vec![pod], set: paused(family) };
    [
        Rule::new(matches.to_vec(), pause).commented("pods with too many answers over TCP"),
        Rule::new([matches, &[is_not_paused]].concat(), vec![copy(group, SEGMENT_BYTES)]).commented(what),
    ]
}

fn copy(group: u16, snap_bytes: u32) -> Action {
    Action::Log(Log { prefix: Comment::new(ANSWER_PREFIX), group, snap_bytes })
}

/// A resolver on the node, such as NodeLocal DNSCache, excludes its packets from connection tracking. Only processes of
/// the node send through this hook.
fn place_own_node_chain(ruleset: &mut Ruleset, rules: Vec<Rule>) {
    if rules.is_empty() {
        ruleset.chains.remove(&fixed(OWN_NODE));
        ruleset.sets.remove(&fixed(PORT));
        return;
    }
    let mut port = Set::of(&[KeyType::InetProto, KeyType::InetService]);
    port.comment = Some(Comment::new("protocols and ports of resolvers"));
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        port.elements.insert(Key::Two(Datum::Protocol(protocol), Datum::Port(DNS)), Element::default());
    }
    ruleset.sets.insert(fixed(PORT), Arc::new(port));
    ruleset.chains.insert(fixed(OWN_NODE), Arc::new(Chain { hook: Some(Hook::Output), rules }));
}
