//! Copies DNS answers to the agent, from which it learns the addresses of domain names (see [`crate::ClusterState::learn`]).
//!
//! Only answers to pods of this node whose cluster policies have domain names are copied, and only within a limit for
//! each pod. The rule never decides, and is only present while there are such pods. Whether a resolver is trusted, and
//! which names count, is decided by the agent.

use std::net::IpAddr;
use std::sync::Arc;

use nft::{
    Action, Chain, Comment, Datum, Direction as Side, Dynamic, Element, Family, Field, Hook, Key, KeyType, Limit, Log,
    Match, Name, Period, Protocol, Rule, Ruleset, Set,
};

use super::address_key;
use super::layout::{Layout, address_type, fixed};

/// The port of DNS (RFC 1035, section 4.2).
const DNS: u16 = 53;

/// Bytes of an answer that are copied, from its network header on: more than the 1,232 bytes of payload that resolvers
/// agreed on to avoid fragments, and the 4,096 of earlier defaults.
pub const COPIED_ANSWER_BYTES: u32 = 4352;

/// Limit of the answers to one pod, so that none keeps those of others from being copied.
const EACH_POD: Limit = Limit { packets: 100, per: Period::Second, burst: 200 };

/// Pods whose limits are kept, far more than a node has.
const PODS: u32 = 4096;

/// How long the limit of an idle pod is kept.
const KEPT_SECONDS: u32 = 60;

/// The chain for answers of the own node, and the set of the port that they are from.
pub(super) const OWN_NODE: &str = "dns-answers";
const PORT: &str = "dns-port";

/// The log prefix of copied answers.
pub const ANSWER_PREFIX: &str = "ringfence dns";

/// The pods of this node whose answers are copied.
fn clients(family: Family) -> Name {
    fixed(match family {
        Family::V4 => "dns-clients4",
        Family::V6 => "dns-clients6",
    })
}

/// The limits of the pods.
fn limits(family: Family) -> Name {
    fixed(match family {
        Family::V4 => "dns-answers4",
        Family::V6 => "dns-answers6",
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
            ruleset.sets.remove(&limits(family));
            continue;
        };
        let set = Set {
            dynamic: Some(Dynamic { timeout_seconds: KEPT_SECONDS }),
            size: Some(PODS),
            comment: Some(Comment::new("pods whose answers were copied, each with its limit")),
            ..Set::of(&[address_type(family)])
        };
        ruleset.sets.entry(limits(family)).or_insert_with(|| Arc::new(set));
        let pod = vec![Field::FlowSource(family)];
        let matches = vec![
            Match::Protocol(Protocol::Udp),
            Match::FlowPort(DNS, DNS),
            Match::Direction(Side::Reply),
            Match::InSet { fields: pod, set: clients(family) },
        ];
        let copied = |pod: Field| {
            vec![
                Action::Record { fields: vec![pod], set: limits(family), limit: EACH_POD },
                Action::Log(Log { prefix: Comment::new(ANSWER_PREFIX), group, snap_bytes: COPIED_ANSWER_BYTES }),
            ]
        };
        let rule = Rule::new(matches, copied(Field::FlowSource(family)));
        rules.push(rule.commented("answers to pods whose cluster policies have domain names"));
        let receiver = Field::Destination(family);
        let matches = vec![
            Match::InSet { fields: vec![Field::L4Proto, Field::SourcePort], set: fixed(PORT) },
            Match::InSet { fields: vec![receiver], set: clients(family) },
        ];
        of_own_node.push(Rule::new(matches, copied(receiver)).commented("answers of a resolver on this node"));
    }
    place_own_node_chain(ruleset, of_own_node);
    rules
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
    port.comment = Some(Comment::new("where resolvers answer from"));
    let key = Key::Two(Datum::Protocol(Protocol::Udp), Datum::Port(DNS));
    port.elements.insert(key, Element::default());
    ruleset.sets.insert(fixed(PORT), Arc::new(port));
    ruleset.chains.insert(fixed(OWN_NODE), Arc::new(Chain { hook: Some(Hook::Output), rules }));
}
