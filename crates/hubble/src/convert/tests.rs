use prost::Message;

use super::*;
use crate::testing::{denied, side};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Tag, length and text of a string field.
fn text(tag: &str, text: &str) -> String {
    format!("{tag}{:02x}{}", text.len(), hex(text.as_bytes()))
}

fn message(tag: &str, content: &str) -> String {
    let length = content.len() / 2;
    let length =
        if length < 128 { format!("{length:02x}") } else { format!("{:02x}{:02x}", length & 127 | 128, length >> 7) };
    format!("{tag}{length}{content}")
}

/// Encoded by hand in the protocol buffers' format: tag = number << 3 | wire type.
#[test]
fn flow_has_these_bytes() {
    let flow = convert(&denied());
    let expected = [
        // 2026-05-04T12:00:01.5Z
        message("0a", "08c194e2cf061080cab5ee01"),
        "1002".to_owned(),
        "188501".to_owned(),
        message("2a", &[text("0a", "10.0.1.7"), text("12", "10.0.2.9"), "1801".to_owned()].concat()),
        message("32", &message("0a", "10b82a")),
        message("42", &end("web-0", "web")),
        message("4a", &end("db", "db")),
        "5001".to_owned(),
        text("5a", "n1"),
        message("9a01", "0801108501"),
        message("aa01", &[text("0a", "db"), text("12", "shop")].concat()),
        "b00101".to_owned(),
        "c8018501".to_owned(),
        "d20100".to_owned(),
        text("9202", &flow.uuid),
        message("ca02", &[text("0a", "Ringfence"), text("12", env!("CARGO_PKG_VERSION"))].concat()),
        message("caa00a", &policy("web", Some("spec.egress[0]"))),
        message("eaa00a", &policy("db", None)),
    ]
    .concat();
    let mut without = flow.clone();
    without.extensions = None;
    assert_eq!(hex(&without.encode_to_vec()), expected);
    assert_eq!(Flow::decode(&*flow.encode_to_vec()).unwrap(), flow);
}

fn end(pod: &str, app: &str) -> String {
    [
        "10c7850d".to_owned(),
        text("1a", "shop"),
        text("22", "k8s:io.kubernetes.pod.namespace=shop"),
        text("22", &format!("k8s:app={app}")),
        text("2a", pod),
        message("32", &text("0a", app)),
    ]
    .concat()
}

fn policy(name: &str, rule: Option<&str>) -> String {
    let label = rule.map_or(String::new(), |rule| text("1a", &format!("ringfence:rule={rule}")));
    [text("0a", name), text("12", "shop"), label, "2007".to_owned(), text("2a", "NetworkPolicy")].concat()
}

#[test]
fn extensions_have_volumes() {
    let mut joined = denied();
    joined.record.sent = Some(Volume { packets: 2, bytes: 120 });
    let extensions = convert(&joined).extensions.unwrap();
    assert_eq!(extensions.type_url, "type.googleapis.com/google.protobuf.Struct");
    let fields = Struct::decode(&*extensions.value).unwrap().fields;
    let number = |name: &str| match &fields[name].kind {
        Some(ValueKind::Number(number)) => *number,
        other => panic!("{other:?}"),
    };
    assert_eq!((number("sentBytes"), number("sentPackets"), number("deniedPackets")), (120.0, 2.0, 3.0));
    assert!(!fields.contains_key("receivedBytes"), "unknown is not 0");
}

#[test]
fn drop_causes_are_drop_reasons() {
    let reason = |cause: Option<&str>| {
        let mut joined = denied();
        let mut key = (*joined.record.key).clone();
        key.drop_cause = cause.map(Into::into);
        joined.record.key = key.into();
        let flow = convert(&joined);
        assert_eq!(flow.event_type, Some(EventType { r#type: 1, sub_type: flow.drop_reason_desc }));
        flow.drop_reason_desc
    };
    assert_eq!(reason(None), 133);
    for (cause, number) in
        [("forged-source", 132), ("unknown-address", 132), ("tunnel", 170), ("other-protocol", 166), ("stray", 134)]
    {
        assert_eq!(reason(Some(cause)), number, "{cause}");
    }
    let mut joined = denied();
    let mut key = (*joined.record.key).clone();
    key.ingress = side(TraceVerdict::Denied, &[("db", Some("spec.ingress[0]"), PolicyAction::Deny)]);
    joined.record.key = key.into();
    assert_eq!(convert(&joined).drop_reason_desc, 181);
}

#[test]
fn flow_names_rule_of_cluster_policy() {
    let mut joined = denied();
    let mut key = (*joined.record.key).clone();
    key.ingress = side(TraceVerdict::Denied, &[("tenants", Some("spec.ingress[2]"), PolicyAction::Deny)]);
    let hit = &mut key.ingress.enforced[0];
    (hit.kind, hit.namespace, hit.tier) = ("ClusterNetworkPolicy".into(), "".into(), Some(flow::PolicyTier::Admin));
    hit.rule_name = Some("others".into());
    key.ingress.passed_by = vec![PolicyHit { action: PolicyAction::Pass, ..key.ingress.enforced[0].clone() }];
    joined.record.key = key.into();
    let flow = convert(&joined);
    let labels = ["ringfence:tier=admin", "ringfence:rule=spec.ingress[2]", "ringfence:rule-name=others"];
    let policy = &flow.ingress_denied_by[0];
    assert_eq!((&*policy.kind, &*policy.name, &*policy.namespace), ("ClusterNetworkPolicy", "tenants", ""));
    assert_eq!((&policy.labels[..], flow.drop_reason_desc), (&labels.map(str::to_owned)[..], 181));
    assert_eq!(
        (flow.ingress_denied_by.len(), flow.ingress_allowed_by.len()),
        (1, 0),
        "a rule that passes decides nothing"
    );
}

#[test]
fn audited_flow_names_policies_that_would_deny() {
    let mut joined = denied();
    let mut key = (*joined.record.key).clone();
    key.verdict = flow::FlowVerdict::WouldDeny;
    key.ingress = side(TraceVerdict::WouldDeny, &[]);
    key.ingress.pending = side(TraceVerdict::WouldDeny, &[("db", None, PolicyAction::Deny)]).enforced;
    joined.record.key = key.into();
    joined.destination_verdict = Some(flow::FlowVerdict::WouldDeny);
    let flow = convert(&joined);
    assert_eq!((flow.verdict(), flow.traffic_direction()), (Verdict::Audit, TrafficDirection::Ingress));
    assert_eq!((flow.ingress_denied_by.len(), flow.event_type.unwrap().r#type), (1, EVENT_POLICY_VERDICT));
}

#[test]
fn direction_is_a_reporting_side() {
    let mut joined = denied();
    let mut key = (*joined.record.key).clone();
    key.verdict = flow::FlowVerdict::Allowed;
    (key.egress, key.ingress) = (side(TraceVerdict::WouldDeny, &[]), side(TraceVerdict::Allowed, &[]));
    joined.record.key = key.into();
    let (allowed, would_deny) = (Some(flow::FlowVerdict::Allowed), Some(flow::FlowVerdict::WouldDeny));
    for (source, destination, expected) in [
        (None, allowed, TrafficDirection::Ingress),
        (would_deny, None, TrafficDirection::Egress),
        (None, None, TrafficDirection::Unknown),
    ] {
        (joined.source_verdict, joined.destination_verdict) = (source, destination);
        assert_eq!(convert(&joined).traffic_direction(), expected, "{source:?} {destination:?}");
    }
}

#[test]
fn records_differ_by_uuid() {
    let first = denied();
    let mut second = first.clone();
    second.record.denied_packets += 1;
    assert_eq!(uuid(&first), uuid(&second), "counts of a record may grow");
    second.record.window = second.record.window_end();
    assert_ne!(uuid(&first), uuid(&second));
    assert_eq!((uuid(&first).len(), &uuid(&first)[14..15]), (36, "8"));
}
