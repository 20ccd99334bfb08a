use expect_test::expect;
use identity::{EndIdentity, ReservedIdentity};
use proptest::prelude::*;

use super::*;
use crate::testing::{at, connection, endpoint, hit, member, records, side, subject, volume};
use crate::{CountedFlow, EndpointKind, Network, PolicyAction, TraceVerdict, Tracker, Windows};

#[test]
fn record_has_this_json() {
    let key = FlowKey {
        source: Endpoint { network: Some(Network::Public), ..endpoint(EndpointKind::World) },
        service: Some(ServicePort {
            namespace: "shop".into(),
            name: "db".into(),
            port_name: Some("postgres".into()),
            port: 5432,
        }),
        egress: side(TraceVerdict::NotAPod, Vec::new()),
        verdict: FlowVerdict::WouldDeny,
        ingress: SideTrace {
            pending: vec![hit("shop/db", None, PolicyAction::Deny)],
            passed_by: vec![],
            ..side(TraceVerdict::WouldDeny, Vec::new())
        },
        ..(*subject(1).key).clone()
    };
    let client = Member {
        address: "192.0.2.10".parse().unwrap(),
        pod: None,
        node: None,
        labels: [].into(),
        identity: Some(EndIdentity::reserved(ReservedIdentity::World, None)),
    };
    let subject = Arc::new(Subject {
        key: Arc::new(key),
        source: client,
        destination: member("10.0.2.1", "shop/db-0"),
        generation: Some(41),
    });
    let mut windows = Windows::new("worker-1".into(), 10);
    let mut tracker = Tracker::new(10, 100);
    let one = connection(40_000, None);
    tracker.begin(&one, subject.clone(), None, at(1_250), &mut windows);
    windows.denied(&subject, 1, at(1_250));
    tracker.end(&CountedFlow { volume: Some([volume(5, 412), volume(4, u64::MAX)]), ..one }, at(2_500), &mut windows);
    tracker.begin(&connection(40_001, None), subject, None, at(3_000), &mut windows);
    let records = windows.close(at(15_000), &tracker);
    expect![[r#"
        [
          {
            "window": "2026-05-04T12:00:00Z",
            "node": "worker-1",
            "source": {
              "kind": "world",
              "namespace": null,
              "name": null,
              "service": null,
              "cluster": null,
              "network": "public"
            },
            "destination": {
              "kind": "pod",
              "namespace": "shop",
              "name": "db-1",
              "service": "shop",
              "cluster": null,
              "network": null
            },
            "protocol": 6,
            "port": 5432,
            "icmpType": null,
            "service": {
              "namespace": "shop",
              "name": "db",
              "portName": "postgres",
              "port": 5432
            },
            "verdict": "would-deny",
            "dropCause": null,
            "egress": {
              "verdict": "not-a-pod",
              "enforcedHere": true,
              "enforced": [],
              "pending": []
            },
            "ingress": {
              "verdict": "would-deny",
              "enforcedHere": true,
              "enforced": [],
              "pending": [
                {
                  "kind": "NetworkPolicy",
                  "namespace": "shop",
                  "name": "db",
                  "rule": null,
                  "action": "deny"
                }
              ]
            },
            "sources": {
              "addresses": [
                "192.0.2.10"
              ],
              "pods": [],
              "nodes": [],
              "labels": [],
              "identities": [
                {
                  "service": null,
                  "sid": null,
                  "num": 2,
                  "state": "world"
                }
              ],
              "truncated": false
            },
            "destinations": {
              "addresses": [
                "10.0.2.1"
              ],
              "pods": [
                "shop/db-0"
              ],
              "nodes": [
                "worker-1"
              ],
              "labels": [
                "app=db-0"
              ],
              "identities": [],
              "truncated": false
            },
            "connections": {
              "started": 2,
              "ended": 1,
              "live": 1,
              "lost": 0
            },
            "sent": {
              "packets": 5,
              "bytes": 412
            },
            "received": {
              "packets": 4,
              "bytes": 18446744073709551615
            },
            "unknownVolume": 0,
            "deniedPackets": 1,
            "generation": 41,
            "first": "2026-05-04T12:00:01.25Z",
            "last": "2026-05-04T12:00:03Z"
          }
        ]"#]]
    .assert_eq(&serde_json::to_string_pretty(&records).unwrap());
}

#[test]
fn sample_lists_a_hundred_of_each() {
    let mut sample = EndSample::default();
    for number in 0..=255u8 {
        sample.add(&member(&format!("10.0.0.{number}"), &format!("shop/web-{number}")));
        assert_eq!(sample.truncated, usize::from(number) >= MOST_MEMBERS);
    }
    let EndSample { addresses, pods, nodes, labels, .. } = &sample;
    assert_eq!((addresses.len(), pods.len(), nodes.len(), labels.len()), (MOST_MEMBERS, MOST_MEMBERS, 1, MOST_MEMBERS));
}

#[test]
fn merged_sample_equals_sample_of_all_members() {
    let mut one = EndSample::default();
    one.add(&member("10.0.0.1", "shop/web-1"));
    let mut other = EndSample::default();
    other.add(&member("10.0.0.2", "shop/web-2"));
    let mut both = one.clone();
    both.add(&member("10.0.0.2", "shop/web-2"));
    one.merge(&other);
    assert_eq!(one, both);
    other.truncated = true;
    one.merge(&other);
    assert!(one.truncated);
}

proptest! {
    #[test]
    fn record_reads_back_from_json(records in records()) {
        let json = serde_json::to_string(&records).unwrap();
        prop_assert_eq!(serde_json::from_str::<Vec<FlowRecord>>(&json).unwrap(), records);
    }
}
