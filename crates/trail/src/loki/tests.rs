use std::io::Read;

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use super::*;
use crate::batch::{BATCH_BYTES, plan};
use crate::testing::{entries, record};

fn decoded(body: &[u8]) -> Value {
    let mut text = String::new();
    GzDecoder::new(body).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn push_has_bounded_labels_and_metadata() {
    let extra: ExtraLabel = "retention=90d".parse().unwrap();
    let entries = entries(vec![record("n1", 0, &["n1"], &["n2"], 3)]);
    let push = decoded(&encode("east", Some(&extra), &entries).unwrap());
    let stream = &push["streams"][0];
    let labels = json!({"cluster": "east", "direction": "egress", "namespace": "shop", "retention": "90d",
        "service_name": "ringfence-flows", "verdict": "allowed"});
    assert_eq!(stream["stream"], labels);
    let value = &stream["values"][0];
    assert_eq!(value[0], "1777896000000000000");
    let line: Value = serde_json::from_str(value[1].as_str().unwrap()).unwrap();
    assert_eq!(
        (&line["cluster"], &line["late"], &line["window"]),
        (&json!("east"), &json!(false), &json!("2026-05-04T12:00:00Z"))
    );
    assert_eq!(line["connections"]["started"], 3);
    let metadata = json!({"source": "shop/web", "source_kind": "pod", "source_namespace": "shop",
        "source_workload": "web", "destination": "data/db", "destination_kind": "pod", "destination_namespace": "data",
        "destination_workload": "db", "protocol": "6", "port": "5432", "source_verdict": "allowed", "node": "n1",
        "started": "3", "denied_packets": "0", "sent_bytes": "300"});
    assert_eq!(value[2], metadata);
}

#[test]
fn same_records_have_same_bytes() {
    let encoded = |records| encode("east", None, &entries(records)).unwrap();
    let records = || vec![record("n1", 0, &["n1"], &["n3"], 3), record("n2", 0, &["n2"], &["n3"], 3)];
    let reversed = records().into_iter().rev().collect();
    assert_eq!(encoded(records()), encoded(reversed));
}

#[test]
fn labels_are_checked_at_the_flag() {
    for good in ["retention=90d", "_x=y=z", "team=a b"] {
        assert!(good.parse::<ExtraLabel>().is_ok(), "{good}");
    }
    for bad in ["", "x", "=x", "1x=y", "a-b=c", "__x=y", "cluster=x", "namespace=x", "x="] {
        assert!(bad.parse::<ExtraLabel>().is_err(), "{bad}");
    }
}

#[test]
fn batches_stay_below_their_bound() {
    let one = entries(vec![record("n1", 0, &["n1"], &["n2"], 3)]).remove(0);
    let long = "x".repeat(100_000);
    let many = (0..30).map(|number| crate::Entry { line: format!("{number:02}{long}"), ..one.clone() }).rev().collect();
    let batches = plan(many);
    assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), 30);
    for batch in &batches {
        assert!(batch.iter().map(|entry| entry.line.len()).sum::<usize>() <= BATCH_BYTES);
        assert!(batch.is_sorted_by_key(|entry| (entry.time, entry.line.clone())));
    }
    assert_eq!(batches.len(), 3);
}
