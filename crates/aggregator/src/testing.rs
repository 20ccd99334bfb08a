//! Records of agents, for tests.

use delivery::{BATCH_RECORDS, PushRequest};
use jiff::{SignedDuration, Timestamp};

use crate::aggregate::Aggregate;

/// Start of window 0.
pub(crate) fn begin() -> Timestamp {
    "2026-05-04T12:00:00Z".parse().unwrap()
}

/// Start of a window, numbered from [`begin`].
pub(crate) fn window(number: i64) -> Timestamp {
    begin() + SignedDuration::from_secs(15 * number)
}

/// Sends records of the agent on `n1`: `(window, port, connections)` from `shop/web` to `shop/db`, numbered from `first`.
pub(crate) fn push(aggregate: &Aggregate, first: u64, records: &[(i64, u16, u64)], now: Timestamp) {
    push_from("n1", aggregate, first, records, now);
}

/// As [`push`]: `n1` is the node of the source, and any other node that of the destination.
pub(crate) fn push_from(node: &str, aggregate: &Aggregate, first: u64, records: &[(i64, u16, u64)], now: Timestamp) {
    let text = |(number, port, started): &(i64, u16, u64)| {
        let sample = r#"{"addresses":[],"pods":[],"nodes":["n1"],"labels":[],"identities":[],"truncated":false}"#;
        let trace =
            |here: bool| format!(r#"{{"verdict":"not-isolated","enforcedHere":{here},"enforced":[],"pending":[]}}"#);
        let begin = window(*number);
        format!(
            r#"{{"window":"{begin}","node":"{node}","source":{{"kind":"pod","namespace":"shop","name":"web"}},
            "destination":{{"kind":"pod","namespace":"shop","name":"db"}},"protocol":6,"port":{port},"verdict":"allowed",
            "egress":{},"ingress":{},"sources":{sample},"destinations":{sample},
            "connections":{{"started":{started},"ended":0,"live":0,"lost":0}},"unknownVolume":0,"deniedPackets":0,
            "first":"{begin}","last":"{begin}"}}"#,
            trace(node == "n1"),
            trace(node != "n1"),
        )
        .into_bytes()
    };
    let newest = first + records.len() as u64 - 1;
    let mut next = first;
    for part in records.chunks(BATCH_RECORDS) {
        let records = part.iter().map(text).collect();
        let request = PushRequest {
            node: node.into(),
            epoch: 1,
            first: next,
            oldest: 1,
            newest,
            records,
            version: "test".into(),
        };
        let receipt = aggregate.receive(&request, None, now).unwrap();
        next += part.len() as u64;
        assert_eq!(receipt.acknowledged, next - 1);
    }
}
