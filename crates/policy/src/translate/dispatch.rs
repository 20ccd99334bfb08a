//! The rules of the forward hook that dispatch a packet to the programs that judge its flow, and approve the flow.
//!
//! Every rule costs each first packet of a flow 10 to 60 ns, so a rule is only present while it can apply: the dispatch
//! of a direction while a pod is isolated in it, the tunnel rules while sources are checked.

use std::collections::BTreeSet;
use std::sync::Arc;

use nft::{Action, Chain, Family, Field, Hook, Match, Name, Protocol, ReroutingOption, Rule, Ruleset, State, Verdict};

use super::generation::Generation;
use super::layout::{
    Layout, STRAY, STRAY_OF_ISOLATED, accept, dispatch_map, fixed, goto, guard_set, own_field, self_set,
};
use super::reporting::{Cause, audit_chain, denied_for, pending_chain};
use super::tunnels::UnapprovedRules;
use super::{Direction, audit, dns_answers, edge, icmp_errors, own_node, tunnels, unknown_addresses};

/// The chain at the forward hook. Its rule `ct mark` accepts flows that were approved in the generation of the table.
pub const FORWARD_CHAIN: &str = "forward";
/// Approves flows that an ingress program allows.
pub(super) const APPROVE: &str = "approve";
/// Approves flows that only an egress program judges.
pub(super) const APPROVE_EGRESS: &str = "approve-egress";
pub(super) const EGRESS: &str = "egress";
pub(super) const INGRESS: &str = "ingress";
pub(super) const SOURCE_ROUTE: &str = "source-route";
/// Denies TCP segments of connections that conntrack does not know.
pub(super) const MID_STREAM: &str = "mid-stream";
pub(super) const IGMP: u8 = 2;
/// The length of an IPv4 header without options.
pub(super) const IPV4_HEADER_WORDS: u8 = 5;

/// Completes the rules of this layout in the generation.
pub(super) fn complete(mut ruleset: Ruleset, layout: &Layout, generation: Generation) -> Ruleset {
    let present = |family: &Family| ruleset.sets.contains_key(&dispatch_map(Direction::Egress, *family));
    let families: BTreeSet<Family> = Family::BOTH.into_iter().filter(present).collect();
    let approved = Match::Mark { mask: generation.mask(), value: generation.mark() };
    let approved = Rule::new(vec![approved], accept()).commented("approved under the present policies");
    let mid_stream = mid_stream_rules(&families, &ruleset);
    if !mid_stream.is_empty() {
        ruleset.chains.insert(fixed(MID_STREAM), Arc::new(Chain { hook: None, rules: mid_stream }));
    }
    let mut forward = dns_answers::forward_rules(&mut ruleset, layout);
    forward.extend(icmp_errors::before_approval(&ruleset).into_iter().chain([approved]));
    forward.extend(to_source_route(&families));
    forward.extend(link_local_rules(&families, &ruleset, &[tracked()]));
    forward.extend(tunnels::forward_rules(&ruleset));
    forward.extend(judging_rules(&families, &ruleset));
    // Discovery between hosts of one link does not get here.
    let mut stray_of_isolated = link_local_rules(&families, &ruleset, &[]);
    stray_of_isolated.extend(stray_of_isolated_rules(&families));
    let mut approving = Direction::BOTH.map(|direction| approve_rules(&ruleset, generation, direction));
    if ruleset.chains.contains_key(&pending_chain(Direction::Ingress)) {
        let [_of_egress, of_ingress] = &mut approving;
        of_ingress.insert(0, audit::report_rule(layout, Direction::Ingress));
    }
    let mut upsert = |name: &str, hook: Option<Hook>, rules: Vec<Rule>| {
        ruleset.chains.insert(fixed(name), Arc::new(Chain { hook, rules }));
    };
    for (direction, rules) in Direction::BOTH.into_iter().zip(approving) {
        upsert(approve_chain(direction), None, rules);
    }
    upsert(EGRESS, None, egress_rules(&families));
    upsert(SOURCE_ROUTE, None, source_route_rules(&families));
    upsert(STRAY_OF_ISOLATED, None, stray_of_isolated);
    upsert(FORWARD_CHAIN, Some(Hook::Forward), forward);
    own_node::complete(&mut ruleset, layout);
    ruleset
}

/// Dispatches packets to the programs of the direction, for these families.
fn dispatch_rules(direction: Direction, families: impl IntoIterator<Item = Family>) -> impl Iterator<Item = Rule> {
    families.into_iter().map(move |family| {
        let (field, map) = (own_field(direction, family), dispatch_map(direction, family));
        Rule::new(vec![], vec![Action::VerdictMap { field, map }])
    })
}

/// Rules for flows that are not approved yet. A packet without a flow reaches the last rule: the others match the ends
/// of the flow, and a conntrack match without an entry fails (`nft_ct_get_eval`).
fn judging_rules(families: &BTreeSet<Family>, ruleset: &Ruleset) -> Vec<Rule> {
    let filled = |set: fn(Direction, Family) -> Name, direction: Direction| {
        families.iter().copied().filter(move |family| is_filled(ruleset, &set(direction, *family)))
    };
    let mut rules = unknown_addresses::rules(ruleset);
    if ruleset.chains.contains_key(&fixed(MID_STREAM)) {
        rules.extend(to_mid_stream(families));
    }
    let has_audited = [audit_chain(Direction::Egress), pending_chain(Direction::Egress)];
    if has_audited.iter().any(|chain| ruleset.chains.contains_key(chain)) {
        // Pods whose programs are audited are in the map, but not in the set of isolated pods.
        rules.extend(dispatch_rules(Direction::Egress, filled(dispatch_map, Direction::Egress)));
        rules.extend(guard_rules(Direction::Egress, filled(guard_set, Direction::Egress)));
    } else {
        // Most flows come from pods that are not isolated for egress and are only looked up once.
        let to_egress = |family| isolated_rule(Direction::Egress, family, goto(EGRESS));
        rules.extend(filled(guard_set, Direction::Egress).map(to_egress));
    }
    rules.extend(dispatch_rules(Direction::Ingress, filled(dispatch_map, Direction::Ingress)));
    rules.extend(guard_rules(Direction::Ingress, filled(guard_set, Direction::Ingress)));
    rules.extend(replaced_destination_rules(filled(guard_set, Direction::Ingress)));
    rules.push(Rule::new(vec![Match::State(vec![State::Invalid, State::Untracked])], goto(STRAY)));
    rules
}

/// Leads the segments that may begin a flow without being a SYN to [`mid_stream_rules`].
fn to_mid_stream(families: &BTreeSet<Family>) -> Vec<Rule> {
    let begins_flow = || Match::State(vec![State::Related, State::New]);
    let jump = |matches| Rule::new(matches, vec![Action::Verdict(Verdict::Jump(fixed(MID_STREAM)))]);
    let mut rules = vec![jump(vec![begins_flow(), Match::NotTcpSyn])];
    if families.contains(&Family::V6) {
        let header = Match::IpProtocol(tunnels::AUTHENTICATION);
        rules.push(
            jump(vec![Match::Family(Family::V6), header, begins_flow()])
                .commented("conntrack reads the transport header behind an authentication header"),
        );
    }
    rules
}

fn is_filled(ruleset: &Ruleset, set: &Name) -> bool {
    ruleset.sets.get(set).is_some_and(|set| !set.elements.is_empty())
}

/// Denies a TCP segment that begins a flow without being a SYN, if the policies of its other end's direction isolate the
/// pod. Conntrack does not know the connection any more, and takes its sender for the end that opened it
/// (`nf_conntrack_tcp_loose`). The other end may have opened it, and have been denied since: conntrack forgets a connection
/// 10 seconds after a RST, whether or not the RST was dropped. Returns to the calling chain for pods that are not isolated.
fn mid_stream_rules(families: &BTreeSet<Family>, ruleset: &Ruleset) -> Vec<Rule> {
    let of = |direction, end: fn(Family) -> Field, comment: &'static str| {
        let isolated = families.iter().map(move |family| (end(*family), guard_set(direction, *family)));
        isolated.filter(|(_, set)| is_filled(ruleset, set)).map(move |(field, set)| {
            let isolated = Match::InSet { fields: vec![field], set };
            Rule::new(vec![isolated], denied_for(Cause::Stray)).commented(comment)
        })
    };
    let sends = of(Direction::Ingress, Field::Source, "the other end may have opened the connection");
    let receives = of(Direction::Egress, Field::Destination, "the pod may have opened the connection");
    sends.chain(receives).collect()
}

/// Dispatches packets that may carry a source route or a routing header. With these this node replaces the destination
/// between the prerouting and the forward hook or, for IPv4, after the forward hook (`ip_forward_options`), so
/// conntrack has another destination than the packet. These rules follow the approval and cost established packets
/// nothing: the destination is only replaced if it is an address (or a segment) of this node, and other flows to such
/// an address are not forwarded, so no packet of such a flow reaches the approval.
fn to_source_route(families: &BTreeSet<Family>) -> Vec<Rule> {
    let of = |&family: &Family| match family {
        Family::V4 => Rule::new(vec![has_options()], vec![Action::Verdict(Verdict::Jump(fixed(SOURCE_ROUTE)))]),
        Family::V6 => deny_source_route(ReroutingOption::RoutingHeader),
    };
    families.iter().map(of).collect()
}

/// Denies packets to a link-local address sent via the gateway, under these conditions: the node forwards them back to
/// the bridge they arrived from, and no program is dispatched by such an address. Packets between link-local addresses
/// are bridged, or also sent via the gateway: if such a packet leaves by its input interface, the kernel does not check
/// its source (`ip6_forward`). At this hook it cannot be distinguished from a bridged packet, so pods that are isolated
/// for ingress receive neither.
fn link_local_rules(families: &BTreeSet<Family>, ruleset: &Ruleset, conditions: &[Match]) -> Vec<Rule> {
    let to = |name: &str| Match::InSet { fields: vec![Field::Destination(Family::V6)], set: fixed(name) };
    let from_elsewhere = Match::NotInSet { fields: vec![Field::Source(Family::V6)], set: fixed(edge::LINK_LOCAL) };
    let deny = |matches: &[Match], comment: &str| {
        Rule::new([matches, conditions].concat(), denied_for(Cause::OtherDestination)).commented(comment)
    };
    let mut rules = Vec::new();
    if !families.is_empty() {
        rules.push(deny(&[to(edge::LINK_LOCAL), from_elsewhere], "gateways do not forward to link-local addresses"));
    }
    if ruleset.sets.contains_key(&fixed(edge::CLOSED_LINK_LOCAL)) {
        let to_closed = to(edge::CLOSED_LINK_LOCAL);
        rules.push(deny(&[to_closed], "an isolated pod receives nothing at addresses of its link"));
    }
    rules
}

/// Returns to the calling chain if no isolated pod is involved.
fn stray_of_isolated_rules(families: &BTreeSet<Family>) -> Vec<Rule> {
    let ends = |&family: &Family| [Field::Source(family), Field::Destination(family)].map(|field| (family, field));
    let drop_isolated = |(family, field)| {
        let isolated = Match::InSet { fields: vec![field, field], set: self_set(family) };
        Rule::new(vec![isolated], denied_for(Cause::Stray))
    };
    families.iter().flat_map(ends).map(drop_isolated).collect()
}

/// Does not match discovery, which conntrack never tracks.
fn tracked() -> Match {
    Match::State(vec![State::Invalid, State::Established, State::Related, State::New])
}

/// nft only matches a source route in its canonical encoding; the kernel accepts others too (`ip_options_compile`). So
/// options are only allowed with IGMP, which needs the router alert (RFC 3376, section 4), and no other option is.
fn source_route_rules(families: &BTreeSet<Family>) -> Vec<Rule> {
    if !families.contains(&Family::V4) {
        return vec![];
    }
    let longer_than_alert = Match::NotIpv4HeaderWords(IPV4_HEADER_WORDS + 1);
    let deny = |condition| {
        let rule = Rule::new(vec![condition], denied_for(Cause::SourceRoute));
        rule.commented("options could replace the destination that conntrack knows")
    };
    [Match::NotIpProtocol(IGMP), longer_than_alert, Match::NotRouterAlert].map(deny).into()
}

pub(super) fn has_options() -> Match {
    Match::NotIpv4HeaderWords(IPV4_HEADER_WORDS)
}

fn deny_source_route(rerouting: ReroutingOption) -> Rule {
    Rule::new(vec![Match::Rerouting(rerouting)], denied_for(Cause::SourceRoute))
        .commented("policies judge the destination that conntrack knows")
}

/// Rules for flows of pods that are isolated for egress.
fn egress_rules(families: &BTreeSet<Family>) -> Vec<Rule> {
    let mut rules: Vec<Rule> = dispatch_rules(Direction::Egress, families.iter().copied()).collect();
    rules.push(Rule::new(vec![], denied_for(Cause::Commit)));
    rules
}

/// Denies flows of isolated pods that a program did not decide, which only happens during a commit. A packet is
/// evaluated with the rules of the generation it started in, but with the set elements current at each lookup
/// (`nft_do_chain`, `nft_set_elem_active`). So a packet in flight while one program replaces another may find the new
/// chain without its new rules, or no element at all.
fn guard_rules(direction: Direction, families: impl IntoIterator<Item = Family>) -> impl Iterator<Item = Rule> {
    families.into_iter().map(move |family| isolated_rule(direction, family, denied_for(Cause::Commit)))
}

/// Denies packets to isolated pods of which the flow has another destination: a rule of another program has replaced the
/// address after conntrack had seen it (stateless translation), so no program was found. These rules follow the
/// dispatch by the flow's destination, so they only meet flows to ends that are not isolated. The first packet of such
/// a flow is denied, so the flow is never approved. A reply is for the client that opened the flow, whose address it has
/// again at the forward hook.
fn replaced_destination_rules(families: impl IntoIterator<Item = Family>) -> impl Iterator<Item = Rule> {
    families.into_iter().flat_map(move |family| {
        let set = || guard_set(Direction::Ingress, family);
        let to_isolated = || Match::InSet { fields: vec![Field::Destination(family)], set: set() };
        let denied = |matches| Rule::new(matches, denied_for(Cause::OtherDestination));
        let of_other_client = Match::NotInSet { fields: vec![Field::FlowSource(family)], set: set() };
        [
            denied(vec![to_isolated(), Match::Direction(nft::ConntrackDirection::Original)])
                .commented("the flow has another destination"),
            denied(vec![to_isolated(), Match::Direction(nft::ConntrackDirection::Reply), of_other_client])
                .commented("the flow has another client"),
        ]
    })
}

fn isolated_rule(direction: Direction, family: Family, actions: Vec<Action>) -> Rule {
    let fields = vec![own_field(direction, family)];
    Rule::new(vec![Match::InSet { fields, set: guard_set(direction, family) }], actions)
}

/// Rules for flows that the source's egress program allows. `unjudged` is for those that no ingress program judges.
pub(super) fn ingress_rules(families: &BTreeSet<Family>, unjudged: Vec<Action>) -> Vec<Rule> {
    let mut rules: Vec<Rule> = dispatch_rules(Direction::Ingress, families.iter().copied()).collect();
    rules.extend(guard_rules(Direction::Ingress, families.iter().copied()));
    rules.extend(replaced_destination_rules(families.iter().copied()));
    rules.push(Rule::new(vec![], unjudged));
    rules
}

fn approve_chain(direction: Direction) -> &'static str {
    match direction {
        Direction::Egress => APPROVE_EGRESS,
        Direction::Ingress => APPROVE,
    }
}

/// Approves flows that the program of the direction allows and that no program of the other direction judges.
///
/// A flow that a conntrack helper announces inherits the connection mark of the flow that announced it
/// (`init_conntrack`), and its ends and ports are those that a pod wrote in a message. So flows with a helper, and flows
/// that one announced, are never approved: each of their packets is judged.
fn approve_rules(ruleset: &Ruleset, generation: Generation, direction: Direction) -> Vec<Rule> {
    let mark = Action::SetMark { mask: generation.mask(), value: generation.mark() };
    let approve = |matches| Rule::new(matches, [vec![mark.clone()], accept()].concat());
    let of = |protocol| approve(vec![Match::Protocol(protocol)]);
    let before_others = match tunnels::unapproved_rules(ruleset, direction) {
        Some(UnapprovedRules { over_udp, others }) => {
            [vec![of(Protocol::Tcp), over_udp, of(Protocol::Udp)], others].concat()
        }
        None => [vec![of(Protocol::Tcp), of(Protocol::Udp)], tunnels::rules_of_hidden_protocols()].concat(),
    };
    let unapproved = Rule::new(vec![Match::InvolvesHelper], accept()).commented("a helper's flows inherit the mark");
    [vec![unapproved], before_others, vec![approve(vec![])]].concat()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Change, ClusterState, Kind, lower, translate};

    /// The rules of the chain, for a pod without a known interface and a policy that isolates it for ingress.
    fn rules(layout: &Layout, chain: &str) -> Vec<String> {
        let mut state = ClusterState::new();
        let pod = json!({
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"nodeName": "node-a"},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]},
        });
        let policy = json!({
            "metadata": {"namespace": "shop", "name": "closed"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
        });
        for (kind, object) in [(Kind::Pod, pod), (Kind::NetworkPolicy, policy)] {
            state.apply(Change::Set(lower(kind, &object).unwrap()));
        }
        let ruleset = translate(&state, "node-a", layout).ruleset.in_first_generation();
        ruleset.chains.get(&fixed(chain)).map_or(vec![], |chain| chain.rules.iter().map(ToString::to_string).collect())
    }

    const APPROVED: &str = r#"ct mark & 0xffff0000 == 0xa0010000 accept comment "approved under the present policies""#;

    const TO_LINK: &str = "ip6 daddr @link-local6 ip6 saddr != @link-local6 ct state invalid,established,related,new \
                           goto deny/destination comment \"gateways do not forward to link-local addresses\"";

    #[test]
    fn tunnels_are_judged_after_the_approval() {
        let layout = Layout::for_table("ringfence").unwrap();
        let forward = rules(&layout, "forward");
        assert_eq!(forward[..2], ["ct state related jump related", APPROVED]);
        assert_eq!(
            forward[2..5],
            [
                "ip hdrlength != 5 jump source-route",
                TO_LINK,
                "meta l4proto != tcp meta l4proto != udp jump tunnel/wrapped"
            ]
        );
        assert!(forward[5].ends_with("th dport @tunnel-ports jump tunnel/forwarded"), "{forward:?}");
        let wrapped = rules(&layout, "tunnel/wrapped");
        assert_eq!(
            wrapped,
            [4, 41, 47, 51, 115, 137].map(|number| format!("meta l4proto {number} goto tunnel/forwarded"))
        );
    }

    #[test]
    fn approve_asks_for_port_of_other_end() {
        let layout = Layout::for_table("ringfence").unwrap();
        for (chain, port) in [("approve", "ct original proto-src"), ("approve-egress", "ct reply proto-src")] {
            let approve = rules(&layout, chain);
            assert!(approve[0].starts_with("ct status 0x2001 accept "), "{approve:?}");
            assert!(approve[1].starts_with("meta l4proto tcp ct mark set "), "{approve:?}");
            assert_eq!(approve[2], format!("meta l4proto udp {port} 4789-8472 {port} @tunnel-ports accept"));
            assert!(approve[3].starts_with("meta l4proto udp ct mark set "), "{approve:?}");
            assert_eq!(approve[4], "ct state related accept");
        }
    }

    #[test]
    fn only_directions_with_isolated_pods_are_judged() {
        let layout = Layout::for_table("ringfence").unwrap();
        let ingress = [
            "ct state related,new tcp flags & (fin | syn | rst | ack) != syn jump mid-stream",
            "ct reply ip saddr vmap @ingress4",
            "ct reply ip saddr @isolated-ingress4 goto deny/commit",
            "ip daddr @isolated-ingress4 ct direction original goto deny/destination comment \"the flow has another \
             destination\"",
            "ip daddr @isolated-ingress4 ct direction reply ct original ip saddr != @isolated-ingress4 goto \
             deny/destination comment \"the flow has another client\"",
        ];
        assert_eq!(rules(&layout, "forward")[6..], [&ingress[..], &["ct state invalid,untracked goto stray"]].concat());
        let mid_stream = rules(&layout, "mid-stream");
        assert_eq!(mid_stream.len(), 1);
        assert!(mid_stream[0].starts_with("ip saddr @isolated-ingress4 goto deny/stray"), "{mid_stream:?}");
    }

    #[test]
    fn without_source_check_forward_judges_itself() {
        let layout = Layout::for_table("ringfence").unwrap().checking_sources(false);
        let forward = rules(&layout, "forward");
        let options = "ip hdrlength != 5 jump source-route";
        let first_judging = "ct state related,new tcp flags & (fin | syn | rst | ack) != syn jump mid-stream";
        assert_eq!(forward[..4], [APPROVED, options, TO_LINK, first_judging]);
        assert_eq!(rules(&layout, "tunnel/wrapped"), Vec::<String>::new());
    }
}
