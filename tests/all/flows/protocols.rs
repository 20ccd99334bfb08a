use kit::lab::probe_all;
use kit::oracle::Probe;
use serde_json::{Value, json};

use super::{records, start, sum};
use crate::drops::{DB, OTHER, WEB, stage};
use crate::stage::{Stage, policy};

/// The same flow in both families.
struct Sample {
    from: [&'static str; 2],
    to: [&'static str; 2],
    protocols: [u8; 2],
    port: Option<u16>,
    icmp_types: Option<[u8; 2]>,
    /// The policy that allows it; `None` if it is denied.
    allowed_by: Option<&'static str>,
}

const ECHO: [u8; 2] = [8, 128];
const ICMP: [u8; 2] = [Probe::ICMP, Probe::ICMPV6];
const UDP: [u8; 2] = [Probe::UDP; 2];
const SCTP: [u8; 2] = [Probe::SCTP; 2];
/// A protocol number for experiments (RFC 3692).
const OTHER_PROTOCOL: [u8; 2] = [253; 2];

/// `db` allows some ports from `web`, and `other` allows everything from `web`.
fn samples() -> [Sample; 9] {
    let sample = |from, to, protocols, port, allowed_by| {
        let icmp_types = (protocols == ICMP).then_some(ECHO);
        Sample { from, to, protocols, port, icmp_types, allowed_by }
    };
    [
        sample(WEB, DB, [Probe::TCP; 2], Some(5432), Some("db")),
        sample(WEB, DB, UDP, Some(53), Some("db")),
        sample(WEB, DB, SCTP, Some(3868), Some("db")),
        sample(WEB, OTHER, ICMP, None, Some("other")),
        sample(WEB, OTHER, OTHER_PROTOCOL, None, Some("other")),
        sample(WEB, DB, ICMP, None, None),
        sample(OTHER, DB, SCTP, Some(3868), None),
        sample(OTHER, DB, UDP, Some(53), None),
        sample(DB, OTHER, ICMP, None, None),
    ]
}

fn policies() -> [Value; 2] {
    let web = json!([{"podSelector": {"matchLabels": {"app": "web"}}}]);
    let ports = [("TCP", 5432), ("UDP", 53), ("SCTP", 3868)]
        .map(|(protocol, port)| json!({"protocol": protocol, "port": port}));
    [
        policy("db", "app=db", json!({"ingress": [{"from": web, "ports": ports}]})),
        policy("other", "app=other", json!({"ingress": [{"from": web}]})),
    ]
}

fn name(addresses: [&str; 2]) -> &'static str {
    [(WEB, "web"), (DB, "db"), (OTHER, "other")].into_iter().find(|(of, _)| *of == addresses).unwrap().1
}

/// A record may cover both families: some protocols have one number in both.
fn records_of(stage: &Stage, sample: &Sample, family: usize) -> Vec<Value> {
    let mut found = records(stage, &format!("?protocol={}", sample.protocols[family]));
    found.retain(|record| {
        let sources = record["sources"]["addresses"].as_array().unwrap();
        let ends = (&record["source"]["name"], &record["destination"]["name"], &record["port"]);
        sources.contains(&json!(sample.from[family]))
            && ends == (&json!(name(sample.from)), &json!(name(sample.to)), &json!(sample.port))
    });
    found
}

#[test]
fn every_protocol_is_recorded_in_both_families() {
    let stage = stage();
    stage.write_objects("policies.json", &policies());
    let mut agent = start(&stage);
    let probes: Vec<Probe> = samples()
        .iter()
        .flat_map(|sample| {
            [0, 1].map(|family| Probe {
                source: sample.from[family].parse().unwrap(),
                destination: sample.to[family].parse().unwrap(),
                protocol: sample.protocols[family],
                port: sample.port,
            })
        })
        .collect();
    let passed = probe_all(&stage.lab, &probes);
    let expected: Vec<bool> = samples().iter().flat_map(|sample| [sample.allowed_by.is_some(); 2]).collect();
    assert_eq!(passed, expected, "{probes:?}");

    for sample in &samples() {
        for family in [0, 1] {
            let what = format!("{} -> {} {}", sample.from[family], sample.to[family], sample.protocols[family]);
            let found = agent.until(&what, |_| {
                let found = records_of(&stage, sample, family);
                // Records of connections are complete once their volume was measured.
                let is_complete = match sample.allowed_by {
                    Some(_) => sum(&found, "/sent/packets") > 0,
                    None => sum(&found, "/deniedPackets") > 0,
                };
                is_complete.then_some(found)
            });
            let icmp_type = sample.icmp_types.map(|types| types[family]);
            for record in &found {
                // A denied flow that the kernel only counted has no type.
                let is_counted = sample.allowed_by.is_none() && record["icmpType"].is_null();
                assert!(is_counted || record["icmpType"] == json!(icmp_type), "{record:#}");
                assert_eq!(record["source"]["kind"], "pod");
                assert_eq!((&record["service"], &record["dropCause"]), (&Value::Null, &Value::Null));
                match sample.allowed_by {
                    Some(policy) => check_allowed(record, policy, sample, family),
                    None => check_denied(record, sample),
                }
            }
        }
    }
}

fn check_allowed(record: &Value, policy: &str, sample: &Sample, family: usize) {
    assert_eq!((&record["verdict"], &record["ingress"]["verdict"]), (&json!("allowed"), &json!("allowed")));
    let hit = &record["ingress"]["enforced"][0];
    assert_eq!((&hit["name"], &hit["rule"]), (&json!(policy), &json!("spec.ingress[0]")), "{record:#}");
    assert_eq!(record["deniedPackets"], 0);
    // An echo request has 8 bytes besides the IP header, and its reply has as many.
    if sample.protocols == ICMP {
        let (packets, bytes) = (record["sent"]["packets"].as_u64(), record["sent"]["bytes"].as_u64());
        assert_eq!(packets.map(|packets| packets * [28, 48][family]), bytes, "{record:#}");
        assert_eq!(record["received"], record["sent"], "{record:#}");
    }
}

fn check_denied(record: &Value, sample: &Sample) {
    assert_eq!((&record["verdict"], &record["ingress"]["verdict"]), (&json!("denied"), &json!("denied")));
    let policy = json!([{"kind": "NetworkPolicy", "namespace": "shop", "name": name(sample.to), "rule": null, "action": "deny"}]);
    assert_eq!(record["ingress"]["enforced"], policy, "{record:#}");
    assert_eq!((&record["sent"], &record["connections"]["started"]), (&Value::Null, &json!(0)), "{record:#}");
}
