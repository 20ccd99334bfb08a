//! The fixed part of the table: how a packet gets to the programs, and how flows are approved and denied.
//!
//! A flow is judged by its connection tracking entry, not by the packet's headers, so that packets of both directions
//! get the same verdict. An approved flow carries the current *generation* in its connection mark. A transaction that
//! revokes a permission also advances the generation, so the next packet of every flow, in either direction, is judged
//! again.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::sync::Arc;

use imbl::ordmap::DiffItem;
use ipnet::IpNet;
use nft::{
    Action, Chain, Comment, Datum, Element, ElementChange, Family, Field, Key, KeyType, Match, Name, NameError,
    Operation, Rule, Ruleset, Set, Table, TableFamily, Verdict,
};

use super::audit::{self, AuditRole};
use super::edge::{self, EdgeHook};
use super::generation::{BadMask, DEFAULT_MARK_MASK, Generation, MarkMask};
use super::reporting::{Cause, Judgement, audit_chain, chain_of, counted_drop};
use super::roles::{ChainRole, Effect, SetRole};
use super::{Direction, dispatch, hairpin, icmp_errors, reporting, tunnels};
/// The comment by which a table is recognised as Ringfence's.
pub const TABLE_COMMENT: &str = "Kubernetes NetworkPolicy, kept by ringfence";

/// Settings of the ruleset that do not come from the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    table: Name,
    mask: MarkMask,
    /// Ranges of this node's pods in which only known pods may communicate.
    denied_cidrs: Vec<IpNet>,
    check_sources: bool,
    edge_hook: EdgeHook,
    hooks_of_bridge_required: bool,
    /// Tunnel ports in addition to [`super::TUNNEL_PORTS`].
    tunnel_ports: Vec<u16>,
    /// Node addresses in addition to those in Node objects.
    node_ranges: Vec<IpNet>,
    /// The subnets of this node's interfaces.
    own_subnets: Vec<IpNet>,
    protected: bool,
    /// The group of nfnetlink_log that denied packets are logged to.
    log_group: Option<u16>,
    /// The group of nfnetlink_log that DNS answers are copied to.
    dns_group: Option<u16>,
}

impl Layout {
    /// For the tables of this name, with the generation in these bits of the connection mark.
    pub fn new(table: Name, mask: u32) -> Result<Layout, BadMask> {
        let mask = MarkMask::new(mask)?;
        Ok(Layout {
            table,
            mask,
            denied_cidrs: vec![],
            check_sources: true,
            edge_hook: EdgeHook::Ingress,
            hooks_of_bridge_required: true,
            tunnel_ports: vec![],
            node_ranges: vec![],
            own_subnets: vec![],
            protected: false,
            log_group: None,
            dns_group: None,
        })
    }

    /// Like [`Layout::new`], with [`DEFAULT_MARK_MASK`].
    pub fn for_table(table: &str) -> Result<Layout, NameError> {
        match Layout::new(Name::new(table)?, DEFAULT_MARK_MASK) {
            Ok(layout) => Ok(layout),
            Err(e) => unreachable!("the default is a mask: {e}"),
        }
    }

    /// Denies everything from and to addresses of these ranges that no pod of this node is known to have.
    pub fn denying_unknown(self, cidrs: Vec<IpNet>) -> Layout {
        Layout { denied_cidrs: cidrs, ..self }
    }

    /// Whether pods are held to their own source addresses, where their interfaces are known.
    pub fn checking_sources(self, check_sources: bool) -> Layout {
        Layout { check_sources, ..self }
    }

    /// Where the packets of pods are checked.
    pub fn with_edge_hook(self, edge_hook: EdgeHook) -> Layout {
        Layout { edge_hook, ..self }
    }

    /// Whether isolated pods on a bridge are denied packets that no hook of IP has seen, which needs
    /// `CONFIG_IP_ROUTE_CLASSID`.
    pub fn with_hooks_of_bridge_required(self, hooks_of_bridge_required: bool) -> Layout {
        Layout { hooks_of_bridge_required, ..self }
    }

    /// Tunnel ports of nodes in addition to the well-known ones, and node addresses in addition to those in Node
    /// objects.
    pub fn with_tunnels(self, ports: Vec<u16>, node_ranges: Vec<IpNet>) -> Layout {
        Layout { tunnel_ports: ports, node_ranges, ..self }
    }

    /// The subnets of this node's interfaces, by whose broadcast and anycast addresses other nodes receive.
    pub fn in_subnets(self, own_subnets: Vec<IpNet>) -> Layout {
        Layout { own_subnets, ..self }
    }

    /// Whether the tables are owned by the agent's socket, so that no other process can change them.
    pub fn protected(self, protected: bool) -> Layout {
        Layout { protected, ..self }
    }

    /// Whether denied packets are logged and recorded, and to which group of nfnetlink_log.
    pub fn logging_to(self, log_group: Option<u16>) -> Layout {
        Layout { log_group, ..self }
    }

    /// See [`Layout::logging_to`].
    pub fn log_group(&self) -> Option<u16> {
        self.log_group
    }

    /// Whether DNS answers are copied, for the domain names of cluster policies, and to which group of nfnetlink_log.
    pub fn copying_dns_answers_to(self, dns_group: Option<u16>) -> Layout {
        Layout { dns_group, ..self }
    }

    /// See [`Layout::copying_dns_answers_to`].
    pub fn dns_group(&self) -> Option<u16> {
        self.dns_group
    }

    /// See [`Layout::protected`].
    pub fn is_protected(&self) -> bool {
        self.protected
    }

    /// See [`Layout::checking_sources`]; true by default.
    pub fn checks_sources(&self) -> bool {
        self.check_sources
    }

    /// See [`Layout::with_edge_hook`].
    pub fn edge_hook(&self) -> EdgeHook {
        self.edge_hook
    }

    /// See [`Layout::with_hooks_of_bridge_required`].
    pub fn requires_hooks_of_bridge(&self) -> bool {
        self.hooks_of_bridge_required
    }

    /// UDP ports in addition to [`TUNNEL_PORTS`](super::TUNNEL_PORTS); see [`Layout::with_tunnels`].
    pub fn tunnel_ports(&self) -> &[u16] {
        &self.tunnel_ports
    }

    /// Networks in addition to those of Node objects; see [`Layout::with_tunnels`].
    pub fn node_ranges(&self) -> &[IpNet] {
        &self.node_ranges
    }

    /// See [`Layout::in_subnets`].
    pub fn own_subnets(&self) -> &[IpNet] {
        &self.own_subnets
    }

    /// See [`Layout::denying_unknown`].
    pub fn denied_cidrs(&self) -> &[IpNet] {
        &self.denied_cidrs
    }

    /// The name of the tables of all families.
    pub fn table(&self) -> &Name {
        &self.table
    }

    /// The bits of the connection mark that are Ringfence's.
    pub fn mask(&self) -> u32 {
        self.mask.bits()
    }

    /// The first generation of the mask.
    pub fn first_generation(&self) -> Generation {
        Generation::first(self.mask)
    }

    /// The generation that the connection mark encodes: see [`Generation::at_mark`].
    pub fn generation_at(&self, mark: u32) -> Option<Generation> {
        self.first_generation().at_mark(mark)
    }

    /// The value under [`Layout::mask`] of a flow that audited policies would deny, from the end of the pending program
    /// until the flow is reported or denied. It lacks the pattern of approvals.
    pub(super) fn would_deny_mark(&self) -> u32 {
        self.mask.would_deny_mark()
    }
}

pub(super) const STRAY: &str = "stray";
/// Drops strays of isolated pods.
pub(super) const STRAY_OF_ISOLATED: &str = "stray/isolated";
pub(super) const DISCOVERY: &str = "discovery";

/// Multicast addresses that no router passes on.
pub(super) const LINK_SCOPE: &str = "link6";

pub(super) fn fixed(text: &str) -> Name {
    match Name::new(text) {
        Ok(name) => name,
        Err(e) => unreachable!("the layout's own names are names: {e}"),
    }
}

pub(super) fn deny_chain(direction: Direction) -> Name {
    chain_of(Cause::from(direction))
}

/// The chain that continues with the other direction's check, or approval, after a program allows a flow.
pub(super) fn next_chain(direction: Direction) -> Name {
    fixed(match direction {
        Direction::Egress => dispatch::INGRESS,
        Direction::Ingress => dispatch::APPROVE,
    })
}

pub(super) fn next_verdict(direction: Direction) -> Verdict {
    Verdict::Goto(next_chain(direction))
}

/// The verdict on flows that a program allows.
pub(super) fn allow_verdict(direction: Direction, role: AuditRole) -> Verdict {
    match role {
        AuditRole::Enforced | AuditRole::Audited => next_verdict(direction),
        AuditRole::Pending => Verdict::Goto(fixed(audit::WOULD_ALLOW)),
    }
}

/// The chain that handles flows a program of NetworkPolicies does not allow.
pub(super) fn end_chain(direction: Direction, role: AuditRole) -> Name {
    match role {
        AuditRole::Enforced => hairpin::chain(direction),
        AuditRole::Audited => audit_chain(direction),
        AuditRole::Pending => fixed(hairpin::PENDING),
    }
}

/// The chain that handles flows a rule of a cluster policy denies.
pub(super) fn denying_chain(direction: Direction, role: AuditRole) -> Name {
    match role {
        AuditRole::Enforced | AuditRole::Audited => deny_chain(direction),
        AuditRole::Pending => fixed(audit::WOULD_DENY),
    }
}

/// The last rule of every program that does not allow everything.
pub(super) fn end(direction: Direction, role: AuditRole) -> Rule {
    Rule::new(vec![], vec![Action::Verdict(Verdict::Goto(end_chain(direction, role)))])
}

/// The map from a local pod's address to its program.
pub(super) fn dispatch_map(direction: Direction, family: Family) -> Name {
    SetRole::Dispatch(direction, family).name()
}

/// The addresses of pods that are isolated in the direction, whatever their programs are. A packet that returns from a
/// program, or for which none is found, was processed during a commit (see [`dispatch`]).
pub(super) fn guard_set(direction: Direction, family: Family) -> Name {
    SetRole::Guard(direction, family).name()
}

/// The addresses of pods that are isolated in any direction, each paired with itself: a packet without a flow looks up
/// the same end twice.
pub(super) fn self_set(family: Family) -> Name {
    SetRole::SelfPairs(family).name()
}

pub(super) fn address_type(family: Family) -> KeyType {
    match family {
        Family::V4 => KeyType::Ipv4Addr,
        Family::V6 => KeyType::Ipv6Addr,
    }
}

/// The field that holds the other end of a flow: its source for ingress, its destination for egress.
pub(super) fn peer_field(direction: Direction, family: Family) -> Field {
    match direction {
        Direction::Egress => Field::FlowDestination(family),
        Direction::Ingress => Field::FlowSource(family),
    }
}

pub(super) fn own_field(direction: Direction, family: Family) -> Field {
    match direction {
        Direction::Egress => Field::FlowSource(family),
        Direction::Ingress => Field::FlowDestination(family),
    }
}

/// The table without any pod.
pub(super) fn skeleton(layout: &Layout, families: &BTreeSet<Family>) -> Ruleset {
    let mut ruleset = Ruleset::new(Table::inet(layout.table.clone()), Comment::new(TABLE_COMMENT));
    ruleset.protected = layout.protected;
    for &family in families {
        let of = |types: &[KeyType], comment: &str| Set { comment: Some(Comment::new(comment)), ..Set::of(types) };
        let address = address_type(family);
        for direction in Direction::BOTH {
            let comment = format!("pods of this node that are isolated for {}", direction.as_str());
            let map = Set { verdicts: true, ..of(&[address], &comment) };
            ruleset.sets.insert(dispatch_map(direction, family), Arc::new(map));
            let comment = format!("pods whose {} is decided by a program", direction.as_str());
            ruleset.sets.insert(guard_set(direction, family), Arc::new(of(&[address], &comment)));
        }
        let set = of(&[address, address], "isolated pods of this node, each with itself");
        ruleset.sets.insert(self_set(family), Arc::new(set));
        hairpin::add_sets(&mut ruleset, family);
        let set = of(&[address, address], "pods of this node, each with itself");
        ruleset.sets.insert(tunnels::own_pods(family), Arc::new(set));
        let set = of(&[address, address], "pods of this node whose interfaces are not known, each with itself");
        ruleset.sets.insert(icmp_errors::unchecked_pods(family), Arc::new(set));
    }
    if !families.is_empty() {
        edge::add_link_local_set(&mut ruleset);
        reporting::add_deny_chain(&mut ruleset, layout, Cause::OtherDestination);
    }
    if families.contains(&Family::V6) {
        let mut link = Set { interval: true, ..Set::of(&[KeyType::Ipv6Addr]) };
        link.comment = Some(Comment::new("multicast that stays on its link"));
        let (first, last) =
            (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0), Ipv6Addr::from(0xff02 << 112 | u128::MAX >> 16));
        link.elements.insert(Key::Range(Datum::V6(first), Datum::V6(last)), Element::default());
        ruleset.sets.insert(fixed(LINK_SCOPE), Arc::new(link));
    }
    let mut chain = |name: Name, rules: Vec<Rule>| {
        ruleset.chains.insert(name, Arc::new(Chain { hook: None, rules }));
    };
    chain(fixed(dispatch::INGRESS), dispatch::ingress_rules(families, goto(dispatch::APPROVE_EGRESS)));
    chain(fixed(icmp_errors::RELATED), icmp_errors::rules(families));
    chain(fixed(STRAY), stray_rules(families));
    if families.contains(&Family::V6) {
        chain(fixed(DISCOVERY), discovery_rules());
    }
    for direction in Direction::BOTH {
        chain(deny_chain(direction), deny_rules(layout, direction, families));
    }
    hairpin::add_chains(&mut ruleset, families);
    for cause in [Cause::Stray, Cause::Commit, Cause::ForeignError, Cause::SourceRoute] {
        reporting::add_deny_chain(&mut ruleset, layout, cause);
    }
    reporting::add_tables(&mut ruleset, layout, Judgement::Denied, families);
    ruleset
}

pub(super) fn accept() -> Vec<Action> {
    vec![Action::Verdict(Verdict::Accept)]
}

pub(super) fn goto(chain: &str) -> Vec<Action> {
    vec![Action::Verdict(Verdict::Goto(fixed(chain)))]
}

/// Packets without a connection tracking entry belong to no flow that could be judged: an isolated pod neither sends
/// nor receives them. Neighbour discovery (RFC 4861) and multicast listener discovery (RFC 2710, 3810), which
/// conntrack never tracks, have to pass on a bridged path.
fn stray_rules(families: &BTreeSet<Family>) -> Vec<Rule> {
    let mut rules = Vec::new();
    if families.contains(&Family::V6) {
        for (first, last) in [(130, 136), (143, 143)] {
            rules.push(Rule::new(vec![Match::Icmpv6Type(first, last)], goto(DISCOVERY)));
        }
    }
    rules.push(Rule::new(vec![], goto(STRAY_OF_ISOLATED)));
    rules
}

/// Discovery never leaves its link. A forwarded packet is not discovery and would bypass every policy: its hop limit is
/// below 255 (RFC 4861, section 7.1) and its destination is not a link-scope multicast address.
fn discovery_rules() -> Vec<Rule> {
    let to_link = Match::InSet { fields: vec![Field::Destination(Family::V6)], set: fixed(LINK_SCOPE) };
    vec![
        Rule::new(vec![Match::HopLimit(255)], accept()),
        Rule::new(vec![to_link], accept()),
        Rule::new(vec![], goto(STRAY_OF_ISOLATED)),
    ]
}

fn deny_rules(layout: &Layout, direction: Direction, families: &BTreeSet<Family>) -> Vec<Rule> {
    let mut rules = reporting::flow_rules(layout, Judgement::Denied, direction, families);
    rules.push(counted_drop());
    rules
}

/// Whether `new` may deny a flow that `old` allows, so that the generation must advance. A false positive only costs
/// every flow another verdict. Generations themselves are not compared.
pub(super) fn narrows(old: &Ruleset, new: &Ruleset) -> bool {
    let set_narrows = |item: DiffItem<'_, '_, Name, Arc<Set>>| match item {
        DiffItem::Add(name, new) => SetRole::of(name).effect() == Effect::Denies && !new.elements.is_empty(),
        DiffItem::Update { old: (_, old), new: (name, new) } => elements_narrow(SetRole::of(name).effect(), old, new),
        DiffItem::Remove(..) => false,
    };
    let chain_narrows = |item: DiffItem<'_, '_, Name, Arc<Chain>>| match item {
        DiffItem::Update { old: (_, old), new: (name, new) } => {
            let role = ChainRole::of(name);
            // Rules of cluster policies deny as well as allow, and their order matters. Established flows are evaluated
            // again by changed pending programs.
            match role.is_of_tiers() || role.is_pending() {
                true => !(is_subsequence(&old.rules, &new.rules) && is_subsequence(&new.rules, &old.rules)),
                false => !role.is_always_judged() && !is_subsequence(&old.rules, &new.rules),
            }
        }
        DiffItem::Add(..) | DiffItem::Remove(..) => false,
    };
    old.sets.diff(&new.sets).any(set_narrows) || old.chains.diff(&new.chains).any(chain_narrows)
}

fn elements_narrow(effect: Effect, old: &Set, new: &Set) -> bool {
    let narrows = |change: &ElementChange<'_>| match (change, effect) {
        (_, Effect::NotOnApproved) => false,
        (ElementChange::Added(..), Effect::Denies | Effect::Unclear) => true,
        (ElementChange::Added(..), Effect::Accepts) => false,
        (ElementChange::Removed(..), Effect::Accepts | Effect::Unclear) => true,
        (ElementChange::Removed(..), Effect::Denies) => false,
        (ElementChange::Replaced { key: _, old, new }, Effect::Denies | Effect::Accepts | Effect::Unclear) => {
            old.verdict != new.verdict
        }
    };
    effect != Effect::NotOnApproved && old.elements.changes_to(&new.elements).iter().any(narrows)
}

/// Whether the transaction changes intervals that approvals depend on. Linux publishes them some time after the rules of
/// the same transaction (`nft_rbtree_commit`), so that a packet in between may be approved in the new generation by the
/// intervals of before: another generation must follow. In a new set such a packet finds nothing, which denies where the
/// elements accept.
pub fn changes_intervals(operations: &[Operation]) -> bool {
    let is_new = |set: &Name| {
        operations.iter().any(|operation| matches!(operation, Operation::AddSet { name, .. } if name == set))
    };
    operations.iter().filter(|operation| operation.table().family == TableFamily::Inet).any(|operation| {
        let (Operation::AddElements { name, set, .. } | Operation::DeleteElements { name, set, .. }) = operation else {
            return false;
        };
        set.interval
            && match SetRole::of(name).effect() {
                Effect::NotOnApproved => false,
                Effect::Accepts => !is_new(name),
                Effect::Denies | Effect::Unclear => true,
            }
    })
}

/// Whether the old rules are still present in order. Programs only add permissions and end in a denial, so more rules
/// allow more.
fn is_subsequence(old: &[Rule], new: &[Rule]) -> bool {
    let mut rest = new.iter();
    old.iter().all(|rule| rest.any(|r| r.matches == rule.matches && r.actions == rule.actions))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_layout_names_its_own_chains() {
        // Build every fixed name, so that a reserved word among them is detected.
        let layout = Layout::for_table("ringfence").unwrap();
        let skeleton = skeleton(&layout, &Family::BOTH.into());
        assert_eq!(dispatch::complete(skeleton, &layout, layout.first_generation()).validate(), vec![]);
    }
}
