//! Names drop events: the endpoints, the policies that decided and the closest rule.
//!
//! Names are those of now. The policies may have changed since the verdict; if they no longer explain it, the report
//! notes that.

use nft::Protocol;
use policy::{Cause, ExplainedSide, Judgement, SideVerdict, Traffic, explain_side};

use super::ends::Ends;
use super::packet_group::{DropEvent, PacketContent, PacketFlow, PacketGroup};
use crate::api::drops::{DropEnd, EndKind, NamedDrop};

pub(crate) fn name(ends: &Ends, event: &DropEvent) -> NamedDrop {
    let DropEvent { at, group: seen, first, count } = event;
    let (source, destination, spoof) = both_ends(ends, seen);
    let unnamed = NamedDrop {
        time: format!("{at:.3}"),
        verdict: seen.judgement,
        cause: seen.cause,
        direction: seen.cause.direction(),
        source_identity: ends.identity(&source),
        destination_identity: ends.identity(&destination),
        source,
        destination,
        traffic: traffic(seen, first.icmp),
        policies: vec![],
        more_policies: 0,
        rule: None,
        passed_by: vec![],
        closest: None,
        would_allow: vec![],
        note: spoof,
        count: *count,
        node: ends.place.node.clone(),
    };
    match (seen.cause.direction(), &seen.carried) {
        (Some(direction), PacketContent::Flow(flow)) => {
            let traffic = carried_traffic(flow);
            with_policies(unnamed, explain_side(ends.state, flow.source, flow.destination, traffic, direction))
        }
        (Some(_), PacketContent::Frame { .. }) | (None, _) => unnamed,
    }
}

/// Adds the verdict of the current policies if it matches the packet's.
fn with_policies(denial: NamedDrop, ExplainedSide { verdict, passed_by }: ExplainedSide) -> NamedDrop {
    match (denial.verdict, verdict) {
        (Judgement::Denied, SideVerdict::Denied { isolated_by, closest, would_allow }) => {
            NamedDrop { policies: isolated_by, passed_by, closest, would_allow, ..denial }
        }
        (Judgement::WouldDeny, SideVerdict::WouldDeny { audited_by, closest }) => {
            NamedDrop { policies: audited_by, passed_by, closest, ..denial }
        }
        (Judgement::Denied, SideVerdict::DeniedByRule { rule })
        | (Judgement::WouldDeny, SideVerdict::WouldDenyByRule { rule }) => {
            NamedDrop { policies: vec![rule.policy.clone()], rule: Some(rule), passed_by, ..denial }
        }
        (Judgement::Denied, SideVerdict::Unreadable { reason }) => NamedDrop { note: Some(reason), ..denial },
        (Judgement::Denied | Judgement::WouldDeny, now) => {
            let now = now.to_string();
            let first = now.lines().next().unwrap_or(&now);
            let note = format!("by the current policies, which have changed since the packet: {first}");
            NamedDrop { note: Some(note), ..denial }
        }
    }
}

/// The endpoints, and a note if the source address is not the sender's.
fn both_ends(ends: &Ends, seen: &PacketGroup) -> (DropEnd, DropEnd, Option<String>) {
    let unknown = DropEnd { address: None, kind: EndKind::Unknown, pod: None, node: None, cluster: None, set: None };
    let (from, to) = match &seen.carried {
        PacketContent::Flow(flow) => (Some(flow.source), Some(flow.destination)),
        PacketContent::Frame { .. } => (None, None),
    };
    let by_address = |address: Option<_>| address.map_or(unknown.clone(), |address| ends.of_address(address));
    let sender = || seen.input.as_deref().and_then(|interface| ends.of_interface(interface, from));
    let receiver = || seen.output.as_deref().and_then(|interface| ends.of_interface(interface, to));
    match seen.cause {
        Cause::Egress
        | Cause::Ingress
        | Cause::Stray
        | Cause::UnknownAddress
        | Cause::ForeignError
        | Cause::SourceRoute
        | Cause::Commit => (by_address(from), by_address(to), None),
        Cause::ForgedSource => {
            let claimed = by_address(from);
            let source =
                sender().unwrap_or_else(|| DropEnd { kind: EndKind::Unknown, pod: None, set: None, ..claimed.clone() });
            let note = match from {
                Some(_) if claimed.kind == EndKind::Pod => format!("forged source address: it belongs to {claimed}"),
                Some(address) => format!("forged source address: {address} does not belong to the pod"),
                None => "forged source address: it does not belong to the pod".into(),
            };
            (source, by_address(to), Some(note))
        }
        Cause::Tunnel | Cause::OtherProtocol | Cause::RouterAdvertisement => {
            (sender().unwrap_or_else(|| by_address(from)), by_address(to), None)
        }
        Cause::OtherDestination => {
            let source = sender().unwrap_or_else(|| by_address(from));
            (source, receiver().unwrap_or_else(|| by_address(to)), None)
        }
    }
}

pub(super) fn carried_traffic(flow: &PacketFlow) -> Traffic {
    traffic_of(flow.protocol, flow.port)
}

/// The traffic of an IANA protocol number and a destination port, as policies judge it.
pub(crate) fn traffic_of(protocol: u8, port: Option<u16>) -> Traffic {
    match (Protocol::from_number(protocol), port) {
        (Some(protocol), Some(port)) => Traffic::Port(protocol, port),
        (Some(_) | None, _) => Traffic::Portless,
    }
}

/// IANA protocol numbers.
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

fn traffic(seen: &PacketGroup, icmp: Option<u8>) -> String {
    let text = match &seen.carried {
        PacketContent::Frame { ether_type } => format!("frame {ether_type:#06x}"),
        PacketContent::Flow(flow) => match (Protocol::from_number(flow.protocol), flow.port, flow.protocol, icmp) {
            (Some(protocol), Some(port), ..) => format!("{port}/{protocol}"),
            (Some(protocol), None, ..) => protocol.to_string(),
            (None, _, ICMP | ICMPV6, Some(kind)) => format!("icmp type {kind}"),
            (None, _, ICMP | ICMPV6, None) => "icmp".into(),
            (None, _, number, _) => format!("protocol {number}"),
        },
    };
    if seen.reply { text + " reply" } else { text }
}

#[cfg(test)]
mod tests {
    use crate::reports::FirstPacket;
    use identity::{LabelFilter, Scheme};
    use policy::{Attachment, AttachmentId, Change, ClusterState, Direction, Kind, ObjectName, lower};
    use serde_json::json;

    use super::super::ends::AddressContext;
    use super::super::packet_group::tests::denied;
    use super::*;

    const WEB: &str = "10.1.0.1";
    const DB: &str = "10.1.0.2";

    /// A pod isolated by a policy that allows `web`, and a pod attached with `veth1`.
    fn state() -> ClusterState {
        let mut state = ClusterState::new();
        let mut add = |kind: Kind, object: serde_json::Value| state.apply(Change::Set(lower(kind, &object).unwrap()));
        for (name, address) in [("web", WEB), ("db", DB)] {
            let metadata = json!({"namespace": "shop", "name": name, "uid": name, "labels": {"app": name}});
            let status = json!({"phase": "Running", "podIP": address});
            add(Kind::Pod, json!({"metadata": metadata, "spec": {"nodeName": "node-a"}, "status": status}));
        }
        let from = json!([{"podSelector": {"matchLabels": {"app": "web"}}}]);
        let spec = json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"from": from}]});
        let metadata = json!({"namespace": "shop", "name": "db"});
        let (version, kind) = ("networking.k8s.io/v1", "NetworkPolicy");
        add(Kind::NetworkPolicy, json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}));
        state.attach(Attachment {
            id: AttachmentId { container: "web".into(), interface: "eth0".into() },
            pod: ObjectName::new("shop", "web"),
            uid: Some("web".into()),
            addresses: vec![WEB.parse().unwrap()],
            host_interface: Some("veth1".parse().unwrap()),
            bridged: false,
            input_interface: None,
            hardware_address: None,
            link_local: vec![],
            since: 1,
        });
        state
    }

    fn named(seen: PacketGroup, icmp: Option<u8>) -> NamedDrop {
        let (state, place) = (state(), AddressContext { node: "node-a".into(), ..AddressContext::default() });
        let scheme = Scheme { cluster: "c".into(), filter: LabelFilter::default() };
        let ends = Ends { state: &state, place: &place, scheme: Some(&scheme) };
        let at = "2026-05-04T03:02:01Z".parse().unwrap();
        name(&ends, &DropEvent { at, group: seen, first: FirstPacket { icmp, asked: None }, count: 3 })
    }

    #[test]
    fn denial_names_policies_and_closest_rule() {
        let denial = named(denied(Direction::Ingress, "192.0.2.1", DB, 80), None);
        assert_eq!(denial.policies, ["shop/db"]);
        let closest = denial.closest.unwrap();
        assert_eq!(closest.rule.to_string(), "shop/db spec.ingress[0]");
        assert_eq!(denial.note, None);
        assert_eq!(
            (denial.source.to_string().as_str(), denial.destination.to_string().as_str()),
            ("world (192.0.2.1)", "shop/db (10.1.0.2)")
        );
        assert_eq!((denial.traffic.as_str(), denial.count), ("80/tcp", 3));
        assert_eq!(denial.time, "2026-05-04T03:02:01.000Z");
    }

    #[test]
    fn denial_names_rule_of_cluster_policy() {
        let mut state = state();
        let mut add = |kind: Kind, object: serde_json::Value| state.apply(Change::Set(lower(kind, &object).unwrap()));
        add(Kind::Namespace, json!({"metadata": {"name": "shop"}}));
        for (name, tier, action) in [("a", "Admin", "Pass"), ("b", "Baseline", "Deny")] {
            let rule = json!({"name": "r", "action": action, "to": [{"namespaces": {}}]});
            let subject = json!({"namespaces": {}});
            let spec = json!({"tier": tier, "priority": 1, "subject": subject, "egress": [rule]});
            let version = "policy.networking.k8s.io/v1alpha2";
            add(Kind::ClusterNetworkPolicy, json!({"apiVersion": version, "metadata": {"name": name}, "spec": spec}));
        }
        let place = AddressContext { node: "node-a".into(), ..AddressContext::default() };
        let ends = Ends { state: &state, place: &place, scheme: None };
        let seen = denied(Direction::Egress, WEB, DB, 80);
        let first = FirstPacket { icmp: None, asked: None };
        let at = "2026-05-04T03:02:01Z".parse().unwrap();
        let denial = name(&ends, &DropEvent { at, group: seen, first, count: 1 });
        let words = |rule: &policy::ClusterRuleName| rule.to_string();
        assert_eq!(denial.policies, ["b"]);
        assert_eq!(
            denial.rule.as_ref().map(words).as_deref(),
            Some("ClusterNetworkPolicy b spec.egress[0] 'r' (Baseline tier, Deny)")
        );
        let passed_by: Vec<String> = denial.passed_by.iter().map(words).collect();
        assert_eq!(passed_by, ["ClusterNetworkPolicy a spec.egress[0] 'r' (Admin tier, Pass)"]);
        assert_eq!(denial.note, None);
    }

    #[test]
    fn denial_notes_policies_changed_since_packet() {
        let allowed = named(denied(Direction::Ingress, WEB, DB, 80), None);
        let no_policy = named(denied(Direction::Egress, WEB, DB, 80), None);
        let not_audited = named(
            PacketGroup { judgement: Judgement::WouldDeny, ..denied(Direction::Ingress, "192.0.2.1", DB, 80) },
            None,
        );
        for denial in [allowed, no_policy, not_audited] {
            assert_eq!((&denial.policies, &denial.closest), (&vec![], &None));
            let note = denial.note.unwrap();
            assert!(note.starts_with("by the current policies, which have changed since the packet: "), "{note}");
        }
    }

    #[test]
    fn forged_source_is_named_by_interface_not_address() {
        let forged = |input: Option<&str>| PacketGroup {
            cause: Cause::ForgedSource,
            input: input.map(String::from),
            ..denied(Direction::Egress, DB, "192.0.2.1", 80)
        };
        let denial = named(forged(Some("veth1")), None);
        assert_eq!(denial.source.to_string(), "shop/web (10.1.0.2)");
        assert_eq!(denial.note.as_deref(), Some("forged source address: it belongs to shop/db (10.1.0.2)"));
        assert_eq!((denial.direction, denial.policies.len()), (None, 0));
        assert_eq!(named(forged(Some("veth9")), None).source.to_string(), "unknown (10.1.0.2)");
    }

    #[test]
    fn frame_without_ip_packet_has_only_sender() {
        let seen = PacketGroup {
            cause: Cause::OtherProtocol,
            carried: PacketContent::Frame { ether_type: 0x88cc },
            input: Some("veth1".into()),
            ..denied(Direction::Egress, WEB, DB, 80)
        };
        let denial = named(seen, None);
        assert_eq!((denial.source.to_string(), denial.destination.to_string()), ("shop/web".into(), "unknown".into()));
        assert_eq!(denial.traffic, "frame 0x88cc");
    }

    #[test]
    fn traffic_text_matches_explain_and_shows_icmp_type() {
        let carrying = |protocol, reply| PacketGroup {
            carried: PacketContent::Flow(PacketFlow {
                source: WEB.parse().unwrap(),
                destination: DB.parse().unwrap(),
                protocol,
                port: None,
            }),
            reply,
            ..denied(Direction::Ingress, WEB, DB, 80)
        };
        let named = [(1, Some(8), false), (58, None, false), (47, None, false), (6, None, true)]
            .map(|(protocol, icmp, reply)| traffic(&carrying(protocol, reply), icmp));
        assert_eq!(named, ["icmp type 8", "icmp", "protocol 47", "tcp reply"]);
    }
}
