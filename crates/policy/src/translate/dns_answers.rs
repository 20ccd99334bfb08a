//! Copies DNS answers to the agent, from which it learns the addresses of domain names (see [`crate::ClusterState::learn`]).
//!
//! Only answers to pods of this node whose cluster policies have domain names are copied, and only within a limit for
//! each pod. The rule never decides, and is only present while there are such pods. Whether a resolver is trusted, and
//! which names count, is decided by the agent.

use std::net::IpAddr;
use std::sync::Arc;

use nft::{
    Action, Comment, Direction as Side, Dynamic, Element, Family, Field, Limit, Log, Match, Name, Period, Protocol,
    Rule, Ruleset, Set,
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

/// The rules that copy answers on their way through the forward hook. Adds the sets that they need, and removes those
/// that nothing needs.
pub(super) fn forward_rules(ruleset: &mut Ruleset, layout: &Layout) -> Vec<Rule> {
    let mut rules = Vec::new();
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
        let pod = || vec![Field::FlowSource(family)];
        let matches = vec![
            Match::Protocol(Protocol::Udp),
            Match::FlowPort(DNS, DNS),
            Match::Direction(Side::Reply),
            Match::InSet { fields: pod(), set: clients(family) },
        ];
        let actions = vec![
            Action::Record { fields: pod(), set: limits(family), limit: EACH_POD },
            Action::Log(Log { prefix: Comment::new(ANSWER_PREFIX), group, snap_bytes: COPIED_ANSWER_BYTES }),
        ];
        rules.push(Rule::new(matches, actions).commented("answers to pods whose cluster policies have domain names"));
    }
    rules
}
