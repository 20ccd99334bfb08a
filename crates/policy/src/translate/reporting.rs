//! Reporting of denied packets: the rules that log and record them, and the meaning of log prefixes and tables.
//!
//! These rules never decide. The first packet of a flow is sent to an nfnetlink_log group at once, and every packet is
//! counted in an element of a dynamic set, the *table of denied flows*; limits bound a flood, and the tables record
//! what the limits suppress. Chains that deny without a policy only have a limited log.

use std::collections::BTreeSet;
use std::sync::Arc;

use nft::{
    Action, Chain, Comment, ConntrackDirection as Side, Dynamic, Family, Field, Key, KeyType, Limit, Log, Match, Name,
    Period, Protocol, Rule, Ruleset, Set, Verdict,
};
use serde::{Deserialize, Serialize};

use super::Direction;
use super::layout::{Layout, address_type, fixed};
use super::roles::SetRole;

/// Why a packet is denied. Each cause has its own chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// No policy that isolates the pod for egress allows the flow.
    Egress,
    /// No policy that isolates the pod for ingress allows the flow.
    Ingress,
    /// An isolated pod's packet belongs to no flow: conntrack calls it invalid, or does not track it. Or it is a TCP
    /// segment that begins a flow without being a SYN.
    Stray,
    /// No pod is known to have one of the addresses (`--unknown-pods deny`).
    UnknownAddress,
    /// A pod sends with an address that is not its own.
    ForgedSource,
    /// A pod sends an ICMP error about a flow that it is not an end of.
    ForeignError,
    /// The packet carries a source route or a routing header, by which routers replace the destination address that
    /// policies judge.
    SourceRoute,
    /// A pod sends into a tunnel, and the encapsulated packet could have any source address.
    Tunnel,
    /// A frame of a pod carries neither IP nor ARP, or carries a VLAN tag.
    OtherProtocol,
    /// A pod advertises a route, as only routers do.
    RouterAdvertisement,
    /// A frame reaches an isolated pod without being addressed to it.
    OtherDestination,
    /// The packet was processed during a commit, while the kernel found neither the old nor the new program of an
    /// isolated pod.
    Commit,
}

impl Cause {
    /// In the order of declaration, for metrics with a series for each.
    pub const ALL: [Cause; 12] = [
        Cause::Egress,
        Cause::Ingress,
        Cause::Stray,
        Cause::UnknownAddress,
        Cause::ForgedSource,
        Cause::ForeignError,
        Cause::SourceRoute,
        Cause::Tunnel,
        Cause::OtherProtocol,
        Cause::RouterAdvertisement,
        Cause::OtherDestination,
        Cause::Commit,
    ];

    /// The name in reports and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Egress => "egress",
            Cause::Ingress => "ingress",
            Cause::Stray => "stray",
            Cause::UnknownAddress => "unknown-address",
            Cause::ForgedSource => "forged-source",
            Cause::ForeignError => "foreign-error",
            Cause::SourceRoute => "source-route",
            Cause::Tunnel => "tunnel",
            Cause::OtherProtocol => "other-protocol",
            Cause::RouterAdvertisement => "router-advertisement",
            Cause::OtherDestination => "other-destination",
            Cause::Commit => "commit",
        }
    }

    /// The direction of the policies that deny; `None` if the cause is not a policy.
    pub fn direction(self) -> Option<Direction> {
        match self {
            Cause::Egress => Some(Direction::Egress),
            Cause::Ingress => Some(Direction::Ingress),
            Cause::Stray
            | Cause::UnknownAddress
            | Cause::ForgedSource
            | Cause::ForeignError
            | Cause::SourceRoute
            | Cause::Tunnel
            | Cause::OtherProtocol
            | Cause::RouterAdvertisement
            | Cause::OtherDestination
            | Cause::Commit => None,
        }
    }

    /// The chain that denies for this cause.
    pub(super) fn chain(self) -> &'static str {
        match self {
            Cause::Egress => "deny/egress",
            Cause::Ingress => "deny/ingress",
            Cause::Stray => "deny/stray",
            Cause::UnknownAddress => "deny/unknown",
            Cause::ForgedSource => "deny/source",
            Cause::ForeignError => "deny/error",
            Cause::SourceRoute => "deny/source-route",
            Cause::Tunnel => "deny/tunnel",
            Cause::OtherProtocol => "deny/protocol",
            Cause::RouterAdvertisement => "deny/router",
            Cause::OtherDestination => "deny/destination",
            Cause::Commit => "deny/commit",
        }
    }
}

impl From<Direction> for Cause {
    fn from(direction: Direction) -> Cause {
        match direction {
            Direction::Egress => Cause::Egress,
            Direction::Ingress => Cause::Ingress,
        }
    }
}

/// The verdict of a reported packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// It is dropped.
    Denied,
    /// It passes, and would not if the audited policies were enforced.
    WouldDeny,
}

impl Judgement {
    /// Denials first.
    pub const ALL: [Judgement; 2] = [Judgement::Denied, Judgement::WouldDeny];

    /// The name in reports and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Judgement::Denied => "denied",
            Judgement::WouldDeny => "would-deny",
        }
    }
}

/// The parsed prefix of a log entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParsedPrefix {
    /// Whether the packet was dropped.
    pub judgement: Judgement,
    /// The cause that the chain of the log rule is for.
    pub cause: Cause,
    /// The packet travels in the reply direction: its destination opened the flow.
    pub reply: bool,
}

/// Prefix of the log entries of this module.
const PREFIX: &str = "ringfence ";
/// Begin of the log prefix of denied packets.
pub const DENIED_PREFIX: &str = "ringfence deny/";
/// Suffix of the log prefix for packets in the reply direction.
const REPLY: &str = " reply";

impl ParsedPrefix {
    /// `None` if the prefix is not one of Ringfence's.
    pub fn of_prefix(prefix: &str) -> Option<ParsedPrefix> {
        let rest = prefix.strip_prefix(PREFIX)?;
        let (chain, reply) = match rest.strip_suffix(REPLY) {
            Some(chain) => (chain, true),
            None => (rest, false),
        };
        counting_chains().find(|(name, ..)| name.as_str() == chain).map(|(_, judgement, cause)| ParsedPrefix {
            judgement,
            cause,
            reply,
        })
    }
}

/// Every chain whose counter holds the number of packets denied, or audited as would-be denied, for a cause. Chains of
/// the same name in tables of both families count for the same cause; a node only has the chains that it needs.
pub fn counting_chains() -> impl Iterator<Item = (Name, Judgement, Cause)> {
    let denied = Cause::ALL.map(|cause| (fixed(cause.chain()), Judgement::Denied, cause));
    let would = Direction::BOTH.map(|d| (audit_chain(d), Judgement::WouldDeny, Cause::from(d)));
    let pending = Direction::BOTH.map(|d| (pending_chain(d), Judgement::WouldDeny, Cause::from(d)));
    denied.into_iter().chain(would).chain(pending)
}

/// The chain that lets pass what audited policies would deny.
pub(super) fn audit_chain(direction: Direction) -> Name {
    fixed(audit_end(direction))
}

/// The name of [`audit_chain`].
pub(super) fn audit_end(direction: Direction) -> &'static str {
    match direction {
        Direction::Egress => "audit/egress",
        Direction::Ingress => "audit/ingress",
    }
}

/// The chain that counts what pending programs would deny, and returns.
pub(super) fn pending_chain(direction: Direction) -> Name {
    fixed(pending_report(direction))
}

/// The name of [`pending_chain`].
pub(super) fn pending_report(direction: Direction) -> &'static str {
    match direction {
        Direction::Egress => "audit/pending-egress",
        Direction::Ingress => "audit/pending-ingress",
    }
}

/// One table of denied flows: elements are source, destination, protocol and, with ports, the destination's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowTable {
    /// A dynamic set of the table of family `inet`.
    pub set: Name,
    /// Whether its packets were dropped.
    pub judgement: Judgement,
    /// The direction of the policies that deny.
    pub direction: Direction,
}

/// Every table of denied flows that a node may have in its table of family `inet`.
pub fn flow_tables() -> impl Iterator<Item = FlowTable> {
    let all = Judgement::ALL.into_iter().flat_map(|judgement| Direction::BOTH.map(|direction| (judgement, direction)));
    all.flat_map(|(judgement, direction)| {
        Family::BOTH.into_iter().flat_map(move |family| {
            [true, false].map(|ports| FlowTable {
                set: flow_set(judgement, direction, family, ports),
                judgement,
                direction,
            })
        })
    })
}

/// Sources of flows that did not fit into the table of denied flows.
fn overflow_set(family: Family) -> Name {
    SetRole::OverflowSources(family).name()
}

fn flow_set(judgement: Judgement, direction: Direction, family: Family, ports: bool) -> Name {
    let family = match family {
        Family::V4 => 4,
        Family::V6 => 6,
    };
    let portless = if ports { "" } else { "-portless" };
    fixed(&format!("{}-{}{family}{portless}", judgement.as_str(), direction.as_str()))
}

/// The protocols that have ports.
pub(super) const PORT_PROTOCOLS: &str = "port-protocols";

/// Capacity of one table of denied flows. Packets of further flows are dropped and counted, but not recorded per flow.
const FLOWS: u32 = 4096;
/// Timeout of an idle flow in a table. The agent reads the tables several times within it.
pub const FLOW_KEPT_SECONDS: u32 = 60;
/// Log limit of one flow, so that a persistent flow is logged again every minute.
const EACH_FLOW: Limit = Limit { packets: 1, per: Period::Minute, burst: 1, over: false };
/// Log limit of one rule, over all flows: still readable, and at most one percent of a core in the agent.
const ALL_FLOWS: Limit = Limit { packets: 100, per: Period::Second, burst: 100, over: false };
/// Log limit of one source for flows that did not fit into the table, so that a port scan does not hide packets denied
/// to other sources.
const EACH_SOURCE: Limit = Limit { packets: 1, per: Period::Second, burst: 5, over: false };
/// Log limit of a rule that does not distinguish flows.
const PACKETS: Limit = Limit { packets: 10, per: Period::Second, burst: 20, over: false };
/// Bytes of a logged packet that are sent along, from its network header on: enough for the addresses and ports of IPv6
/// with some extension headers.
pub const LOGGED_BYTES: u32 = 128;

/// Adds the tables of denied flows of the judgement, for the families.
pub(super) fn add_tables(ruleset: &mut Ruleset, layout: &Layout, judgement: Judgement, families: &BTreeSet<Family>) {
    if layout.log_group().is_none() || families.is_empty() {
        return;
    }
    let mut protocols = Set::of(&[KeyType::InetProto]);
    protocols.comment = Some(Comment::new("protocols with ports"));
    protocols.elements.extend(Protocol::ALL.map(|p| (Key::One(nft::Datum::Protocol(p)), nft::Element::default())));
    ruleset.sets.insert(fixed(PORT_PROTOCOLS), Arc::new(protocols));
    let filled_by_rules = |types: &[KeyType], comment: &str| {
        let dynamic = Some(Dynamic { timeout_seconds: FLOW_KEPT_SECONDS });
        Arc::new(Set { dynamic, size: Some(FLOWS), comment: Some(Comment::new(comment)), ..Set::of(types) })
    };
    for &family in families {
        let set = filled_by_rules(&[address_type(family)], "whose denied flows had no room in their table");
        ruleset.sets.insert(overflow_set(family), set);
    }
    for direction in Direction::BOTH {
        for &family in families {
            for ports in [true, false] {
                let address = address_type(family);
                let mut types = vec![address, address, KeyType::InetProto];
                types.extend(ports.then_some(KeyType::InetService));
                let about = match judgement {
                    Judgement::Denied => "flows that were denied for",
                    Judgement::WouldDeny => "flows that would be denied for",
                };
                let set = filled_by_rules(&types, &format!("{about} {}", direction.as_str()));
                ruleset.sets.insert(flow_set(judgement, direction, family, ports), set);
            }
        }
    }
}

/// Rules that log and record the packets that a direction's chain denies, or would deny.
pub(super) fn flow_rules(
    layout: &Layout,
    judgement: Judgement,
    direction: Direction,
    families: &BTreeSet<Family>,
) -> Vec<Rule> {
    let Some(group) = layout.log_group() else { return vec![] };
    let chain = match judgement {
        Judgement::Denied => fixed(Cause::from(direction).chain()),
        Judgement::WouldDeny => audit_chain(direction),
    };
    let prefix = format!("{PREFIX}{chain}");
    let recorded = |&family: &Family| {
        let ends = [Field::Source(family), Field::Destination(family), Field::L4Proto];
        let with_port = [&ends[..], &[Field::DestinationPort]].concat();
        let original = || Match::Direction(Side::Original);
        let protocol = || vec![Field::L4Proto];
        let has_ports = || Match::InSet { fields: protocol(), set: fixed(PORT_PROTOCOLS) };
        let has_none = Match::NotInSet { fields: protocol(), set: fixed(PORT_PROTOCOLS) };
        let table = |ports: bool| flow_set(judgement, direction, family, ports);
        let logged = |record: Action, limit: Limit| vec![record, Action::Limit(limit), log(&prefix, group)];
        let flow =
            |fields: &[Field], ports| Action::Record { fields: fields.into(), set: table(ports), limit: EACH_FLOW };
        let unrecorded = Match::NotInSet { fields: with_port.clone(), set: table(true) };
        let source = vec![Field::Source(family)];
        let overflow = Action::Record { fields: source, set: overflow_set(family), limit: EACH_SOURCE };
        [
            Rule::new(vec![original(), has_ports()], logged(flow(&with_port, true), ALL_FLOWS)),
            Rule::new(vec![original(), has_ports(), unrecorded], logged(overflow, PACKETS)).commented("no room"),
            Rule::new(vec![original(), has_none], logged(flow(&ends, false), ALL_FLOWS)),
        ]
    };
    let mut rules: Vec<Rule> = families.iter().flat_map(recorded).collect();
    // Source and destination are swapped in the reply direction, so the flow is not recorded. Its originator's packets
    // usually are.
    let came_back = vec![Action::Limit(PACKETS), log(&format!("{prefix}{REPLY}"), group)];
    rules.push(Rule::new(vec![Match::Direction(Side::Reply)], came_back));
    rules
}

/// Rules of the chain that denies for a cause other than a policy.
fn deny_rules(layout: &Layout, cause: Cause) -> Vec<Rule> {
    let logged = layout.log_group().map(|group| {
        let prefix = format!("{PREFIX}{}", cause.chain());
        Rule::new(vec![], vec![Action::Limit(PACKETS), log(&prefix, group)])
    });
    logged.into_iter().chain([counted_drop()]).collect()
}

/// The last rule of every chain that denies.
pub(super) fn counted_drop() -> Rule {
    Rule::new(vec![], vec![Action::Counter, Action::Verdict(Verdict::Drop)])
}

/// Adds the chain that denies for a cause other than a policy.
pub(super) fn add_deny_chain(ruleset: &mut Ruleset, layout: &Layout, cause: Cause) {
    let rules = deny_rules(layout, cause);
    ruleset.chains.insert(chain_of(cause), Arc::new(Chain { hook: None, rules }));
}

fn log(prefix: &str, group: u16) -> Action {
    Action::Log(Log { prefix: Comment::new(prefix), group, snap_bytes: LOGGED_BYTES })
}

/// The name of the chain that denies for the cause.
pub(super) fn chain_of(cause: Cause) -> Name {
    fixed(cause.chain())
}

/// Goes to the chain that denies for the cause.
pub(super) fn denied_for(cause: Cause) -> Vec<Action> {
    vec![Action::Verdict(Verdict::Goto(chain_of(cause)))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_prefix_decodes_to_judgement_and_cause() {
        let of = ParsedPrefix::of_prefix;
        let (judgement, cause) = (Judgement::Denied, Cause::Ingress);
        assert_eq!(of("ringfence deny/ingress"), Some(ParsedPrefix { judgement, cause, reply: false }));
        assert_eq!(of("ringfence deny/ingress reply"), Some(ParsedPrefix { judgement, cause, reply: true }));
        let (judgement, cause) = (Judgement::WouldDeny, Cause::Egress);
        assert_eq!(of("ringfence audit/egress"), Some(ParsedPrefix { judgement, cause, reply: false }));
        for other in ["", "ringfence", "ringfence deny/else", "kube-router", "deny/ingress"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn flow_tables_have_distinct_names() {
        let names: BTreeSet<Name> = flow_tables().map(|t| t.set).collect();
        assert_eq!(names.len(), 16);
        assert!(names.contains(&fixed("denied-ingress4")) && names.contains(&fixed("would-deny-egress6-portless")));
    }
}
