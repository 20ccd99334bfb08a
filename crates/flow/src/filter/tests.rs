use expect_test::expect;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;

use super::*;
use crate::testing::{at, records};

/// Reads the condition from the JSON form of a record.
fn admits_naively(record: &Value, conditions: &[(&str, &str)]) -> bool {
    let end = |side: &str, sample: &str, names: &dyn Fn(&Value, &Value) -> bool| names(&record[side], &record[sample]);
    let sides = [("source", "sources"), ("destination", "destinations")];
    let given = |field: &str| conditions.iter().find(|condition| condition.0 == field).map(|condition| condition.1);
    let is_workload = |end: &Value| end["kind"] == "pod" || end["kind"] == "remote-cluster";
    let reference = |end: &Value| format!("{}/{}", end["namespace"].as_str().unwrap(), end["name"].as_str().unwrap());
    let lists =
        |sample: &Value, list: &str, text: &str| sample[list].as_array().unwrap().iter().any(|item| item == text);
    let this = |end: &Value, _: &Value| {
        given("namespace").is_none_or(|namespace| end["namespace"] == namespace)
            && given("workload")
                .is_none_or(|workload| is_workload(end) && (reference(end) == workload || end["name"] == workload))
    };
    let peer = |end: &Value, sample: &Value| match given("peer") {
        None => true,
        Some(kind @ ("world" | "kube-apiserver" | "unknown-pod" | "remote-cluster")) => end["kind"] == kind,
        Some("10.0.0.0/8") => lists(sample, "addresses", "10.0.1.7") || lists(sample, "addresses", "10.0.2.9"),
        Some(address) if lists(sample, "addresses", address) || lists(sample, "pods", address) => true,
        Some(workload) if workload.contains('/') => is_workload(end) && reference(end) == workload,
        Some(name) => end["namespace"] == name || (end["kind"] == "node" && end["name"] == name),
    };
    let ends = [(0, 1), (1, 0)]
        .into_iter()
        .any(|(one, other)| end(sides[one].0, sides[one].1, &this) && end(sides[other].0, sides[other].1, &peer));
    let hits = ["egress", "ingress"].into_iter().flat_map(|side| {
        ["enforced", "pending"].into_iter().flat_map(move |kind| record[side][kind].as_array().unwrap())
    });
    let policies: Vec<String> = hits.map(reference).collect();
    let number = |value: &Value, text: &str| value.as_u64().is_some_and(|number| number.to_string() == text);
    ends && given("port").is_none_or(|port| number(&record["port"], port) || number(&record["service"]["port"], port))
        && given("protocol").is_none_or(|protocol| {
            number(
                &record["protocol"],
                match protocol {
                    "icmp" => "1",
                    "tcp" => "6",
                    "udp" => "17",
                    number => number,
                },
            )
        })
        && given("verdict").is_none_or(|verdict| record["verdict"] == verdict)
        && given("policy")
            .is_none_or(|policy| policies.iter().any(|hit| hit == policy || hit.split_once('/').unwrap().1 == policy))
        && given("since").is_none_or(|since| {
            let window: Timestamp = record["window"].as_str().unwrap().parse().unwrap();
            at(45_000).as_second() - window.as_second() - 15 < since.trim_end_matches('s').parse().unwrap()
        })
        && given("until").is_none_or(|until| {
            let window: Timestamp = record["window"].as_str().unwrap().parse().unwrap();
            at(45_000).as_second() - window.as_second() > until.trim_end_matches('s').parse().unwrap()
        })
}

fn condition() -> impl Strategy<Value = (&'static str, &'static str)> {
    select(vec![
        ("since", "0s"),
        ("since", "15s"),
        ("since", "20s"),
        ("until", "0s"),
        ("until", "15s"),
        ("until", "20s"),
        ("namespace", "shop"),
        ("namespace", "pay"),
        ("workload", "web"),
        ("workload", "pay/db"),
        ("workload", "shop/web"),
        ("peer", "world"),
        ("peer", "kube-apiserver"),
        ("peer", "unknown-pod"),
        ("peer", "remote-cluster"),
        ("peer", "shop"),
        ("peer", "n1"),
        ("peer", "pay/db"),
        ("peer", "shop/web"),
        ("peer", "shop/web-0"),
        ("peer", "10.0.1.7"),
        ("peer", "2001:db8::1"),
        ("peer", "10.0.0.0/8"),
        ("port", "80"),
        ("port", "443"),
        ("protocol", "icmp"),
        ("protocol", "tcp"),
        ("protocol", "17"),
        ("verdict", "allowed"),
        ("verdict", "would-deny"),
        ("verdict", "denied"),
        ("policy", "db"),
        ("policy", "shop/web"),
        ("policy", "pay/db"),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn filter_admits_same_records_as_naive_filter(
        records in records(),
        conditions in proptest::collection::vec(condition(), 0..4),
    ) {
        let mut filter = FlowFilter::default();
        let mut accepted: Vec<(&str, &str)> = Vec::new();
        for (field, text) in conditions {
            match filter.set(field, text, at(45_000)) {
                Ok(()) => accepted.push((field, text)),
                Err(error) => {
                    prop_assert!(accepted.iter().any(|condition| condition.0 == field), "{}", error);
                }
            }
        }
        for record in &records {
            let json = serde_json::to_value(record).unwrap();
            prop_assert_eq!(filter.admits(record), admits_naively(&json, &accepted), "{:?} of {}", accepted, json);
        }
    }

    #[test]
    fn filter_refuses_or_reads_any_text(field in select(FlowFilter::FIELDS.to_vec()), text in ".{0,40}") {
        let mut filter = FlowFilter::default();
        let set = filter.set(field, &text, at(0));
        prop_assert_eq!(set.is_ok(), filter != FlowFilter::default());
        if let Err(error) = set {
            let begin = format!("invalid {field} '");
            prop_assert!(error.to_string().starts_with(&begin));
        }
    }
}

#[test]
fn invalid_conditions_are_refused_with_expected_values() {
    let mut texts = String::new();
    for (field, text) in [
        ("since", "yesterday"),
        ("since", "-10m"),
        ("namespace", "Shop"),
        ("workload", "a/b/c"),
        ("peer", "10.0.0.0/33"),
        ("peer", ""),
        ("port", "+80"),
        ("port", "65536"),
        ("protocol", "http"),
        ("verdict", "dropped"),
        ("policy", "shop/"),
        ("colour", "red\n"),
    ] {
        let error = FlowFilter::default().set(field, text, at(0)).unwrap_err();
        texts.push_str(&format!("{error}\n"));
    }
    let mut filter = FlowFilter::default();
    filter.set("port", "80", at(0)).unwrap();
    texts.push_str(&filter.set("port", "81", at(0)).unwrap_err().to_string());
    expect![[r#"
        invalid since 'yesterday': expected a duration such as 10m or 1h30m, or a time such as 2026-05-04T12:00:00Z
        invalid since '-10m': expected a duration such as 10m or 1h30m, or a time such as 2026-05-04T12:00:00Z
        invalid namespace 'Shop': expected the name of a namespace: at most 63 lower-case letters, digits and '-'
        invalid workload 'a/b/c': expected WORKLOAD or NAMESPACE/WORKLOAD, in letters, digits, '-', '_' and '.'
        invalid peer '10.0.0.0/33': expected a namespace, NAMESPACE/WORKLOAD, NAMESPACE/POD, a node, an address, a CIDR, world, kube-apiserver, unknown-pod or remote-cluster
        invalid peer '': expected a namespace, NAMESPACE/WORKLOAD, NAMESPACE/POD, a node, an address, a CIDR, world, kube-apiserver, unknown-pod or remote-cluster
        invalid port '+80': expected a number from 0 to 65535
        invalid port '65536': expected a number from 0 to 65535
        invalid protocol 'http': expected tcp, udp, sctp, icmp, icmpv6, or a number from 0 to 255
        invalid verdict 'dropped': expected allowed, would-deny or denied
        invalid policy 'shop/': expected POLICY or NAMESPACE/POLICY, in letters, digits, '-', '_' and '.'
        unknown filter 'colour': expected one of since, until, namespace, workload, peer, port, protocol, verdict, policy
        filter 'port' appears twice: expected one value"#]].assert_eq(&texts);
}

#[test]
fn condition_texts_parse_into_filter() {
    let mut filter = FlowFilter::default();
    for (field, text) in [
        ("since", "1h30m"),
        ("workload", "Web_1"),
        ("peer", "2001:db8::/32"),
        ("protocol", "icmpv6"),
        ("policy", "shop/allow.db"),
    ] {
        filter.set(field, text, at(0)).unwrap();
    }
    assert_eq!(
        filter,
        FlowFilter {
            since: Some(at(-5_400_000)),
            workload: Some(WorkloadName { namespace: None, name: "Web_1".into() }),
            peer: Some(PeerFilter::Network("2001:db8::/32".parse().unwrap())),
            protocol: Some(58),
            policy: Some(PolicyName { namespace: Some("shop".into()), name: "allow.db".into() }),
            ..FlowFilter::default()
        }
    );
    let mut filter = FlowFilter::default();
    filter.set("since", "2026-05-04T12:00:00Z", at(0)).unwrap();
    assert_eq!(filter.since, Some(at(0)));
}
