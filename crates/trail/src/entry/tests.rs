use std::net::{IpAddr, Ipv6Addr};

use flow::{PolicyAction, PolicyHit};

use super::*;
use crate::testing::{entries, record, trail_of};

#[test]
fn side_that_denied_is_the_reporting_one() {
    let source = || record("n1", 0, &["n1"], &["n2"], 3);
    let destination = |verdict| {
        let mut record = record("n2", 0, &["n1"], &["n2"], 3);
        Arc::make_mut(&mut record.key).verdict = verdict;
        record
    };
    let stream = |records| {
        let entry = entries(records).remove(0);
        (entry.stream.namespace.to_string(), entry.stream.direction)
    };
    let (egress, ingress) = (("shop".to_owned(), JudgingSide::Egress), ("data".to_owned(), JudgingSide::Ingress));
    assert_eq!(stream(vec![source(), destination(FlowVerdict::Allowed)]), egress);
    assert_eq!(stream(vec![source(), destination(FlowVerdict::Denied)]), ingress);
    assert_eq!(stream(vec![source()]), egress);
    assert_eq!(stream(vec![destination(FlowVerdict::Allowed)]), ingress);
    // Neither side reports a forged source.
    assert_eq!(stream(vec![record("n9", 0, &["n1"], &["n2"], 0)]), egress);
}

#[test]
fn namespaces_do_not_make_streams_without_end() {
    let mut namespaces = Namespaces::default();
    let label = |namespaces: &mut Namespaces, name: &str| namespaces.label(Some(&Arc::from(name))).to_string();
    for number in 0..MOST_NAMESPACES {
        assert_eq!(label(&mut namespaces, &format!("n{number}")), format!("n{number}"));
    }
    assert_eq!(label(&mut namespaces, "one-more"), OTHER_NAMESPACE);
    assert_eq!(label(&mut namespaces, "n0"), "n0");
    for bad in ["", "Shop", "a b", "-a", "a-", "a\"b", &"x".repeat(64)] {
        assert_eq!(label(&mut namespaces, bad), NO_NAMESPACE, "{bad}");
    }
    assert_eq!(&*namespaces.label(None), NO_NAMESPACE);
}

#[test]
fn long_line_loses_its_lists() {
    let mut record = record("n1", 0, &["n1"], &["n2"], 3);
    let address = |number: u128| IpAddr::V6(Ipv6Addr::from_bits(number << 64));
    let sample = EndSample {
        addresses: (0..100).map(address).collect(),
        pods: (0..100).map(|number| format!("{number:0>300}").into()).collect(),
        labels: (0..100).map(|number| format!("{number:0>2000}").into()).collect(),
        ..EndSample::clone(&record.sources)
    };
    record.sources = Arc::new(sample);
    let line = trail_of(vec![record]).remove(0);
    let entry = Entry::new("east", line, &mut Namespaces::default()).unwrap();
    assert!(entry.line.len() < 2_000, "{}", entry.line.len());
    let sources = &entry.record.joined.record.sources;
    assert!(sources.truncated && sources.pods.is_empty() && sources.nodes.contains("n1"));
    assert_eq!(entry.record.joined.record.connections.started, 3);
}

#[test]
fn line_of_workload_on_all_nodes_is_bounded() {
    let mut line = trail_of(vec![record("n1", 0, &["n1"], &["n2"], 3)]).remove(0);
    let nodes = (0..10_000).map(|number| format!("worker-{number:0>40}").into()).collect();
    line.joined.seen_by = Arc::new(SeenBy { source: nodes, ..SeenBy::clone(&line.joined.seen_by) });
    let entry = Entry::new("east", line, &mut Namespaces::default()).unwrap();
    assert!(entry.line.len() <= LARGEST_LINE, "{}", entry.line.len());
    let seen_by = &entry.record.joined.seen_by;
    assert_eq!((seen_by.source.len(), seen_by.destination.len()), (NODES_OF_LONG_LINE, 0));
}

/// Loki's default `max_structured_metadata_size`.
const MOST_METADATA_BYTES: usize = 64 << 10;

fn value(entry: &Entry, name: &str) -> Option<String> {
    entry.metadata().into_iter().find(|(named, _)| *named == name).map(|(_, value)| value)
}

#[test]
fn metadata_stay_below_the_limit_of_loki() {
    let mut long = record("n1", 0, &["n1"], &["n2"], 0);
    let key = Arc::make_mut(&mut long.key);
    let name: Arc<str> = "\u{e9}".repeat(30_000).into();
    for end in [&mut key.source, &mut key.destination] {
        (end.namespace, end.name) = (Some(name.clone()), Some(name.clone()));
    }
    key.drop_cause = Some(name);
    key.verdict = FlowVerdict::Denied;
    key.egress.enforced = (0..2_000).map(|number| PolicyHit::isolation("shop", format!("{number:0>200}"))).collect();
    let entry = entries(vec![long]).remove(0);
    let bytes: usize = entry.metadata().iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(bytes <= MOST_METADATA_BYTES, "{bytes}");
    let policies = value(&entry, "policies").unwrap();
    assert!(policies.starts_with("shop/0000") && policies.split(',').all(|name| name.len() == 205), "{policies}");
    assert_eq!(value(&entry, "policies_truncated").as_deref(), Some("true"));
    assert_eq!(entry.line.matches("\"action\":\"deny\"").count(), 2_000);
    assert_eq!(value(&entries(vec![record("n1", 0, &["n1"], &["n2"], 3)])[0], "policies_truncated"), None);
}

#[test]
fn denied_by_names_policies_that_denied() {
    let allow = |name: &str| PolicyHit {
        action: PolicyAction::Allow,
        rule: Some("r".into()),
        ..PolicyHit::isolation("shop", name)
    };
    let denied_by = |node: &str, verdict: FlowVerdict| {
        let mut record = record(node, 0, &["n1"], &["n2"], 0);
        let key = Arc::make_mut(&mut record.key);
        key.verdict = verdict;
        (key.egress.enforced, key.egress.pending) =
            (vec![allow("out")], vec![PolicyHit::isolation("shop", "trial-out")]);
        (key.ingress.enforced, key.ingress.pending) = (
            vec![PolicyHit::isolation("data", "b"), PolicyHit::isolation("data", "a")],
            vec![PolicyHit::isolation("data", "trial-in")],
        );
        value(&entries(vec![record])[0], "denied_by")
    };
    assert_eq!(denied_by("n2", FlowVerdict::Denied).as_deref(), Some("data/a,data/b"));
    assert_eq!(denied_by("n2", FlowVerdict::WouldDeny).as_deref(), Some("data/trial-in"));
    assert_eq!(denied_by("n1", FlowVerdict::WouldDeny).as_deref(), Some("shop/trial-out"));
    // The source's node allowed the flow, and only the destination's enforces its ingress.
    assert_eq!(denied_by("n1", FlowVerdict::Denied), None);
    assert_eq!(denied_by("n2", FlowVerdict::Allowed), None);
}
