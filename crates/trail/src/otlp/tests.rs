use std::io::Read;

use flate2::read::GzDecoder;
use flow::PolicyHit;

use super::*;
use crate::testing::{entries, record, with_service};

#[test]
fn log_records_have_attributes_of_network_flows() {
    let mut denied = with_service(record("n1", 0, &["n1"], &["n2"], 0), "db");
    let key = std::sync::Arc::make_mut(&mut denied.key);
    key.verdict = FlowVerdict::Denied;
    key.egress.enforced = vec![PolicyHit::isolation("shop", "web")];
    let mut text = String::new();
    GzDecoder::new(&*encode("east", &entries(vec![denied])).unwrap()).read_to_string(&mut text).unwrap();
    let body: Value = serde_json::from_str(&text).unwrap();
    let resource = &body["resourceLogs"][0];
    assert_eq!(
        resource["resource"]["attributes"][1],
        json!({"key": "k8s.cluster.name", "value": {"stringValue": "east"}})
    );
    let log = &resource["scopeLogs"][0]["logRecords"][0];
    assert_eq!((&log["timeUnixNano"], &log["severityNumber"]), (&json!("1777896000000000000"), &json!(13)));
    let attributes: std::collections::BTreeMap<&str, &Value> = log["attributes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attribute| (attribute["key"].as_str().unwrap(), &attribute["value"]))
        .collect();
    for (key, value) in [
        ("k8s.src.namespace", json!({"stringValue": "shop"})),
        ("k8s.src.owner.name", json!({"stringValue": "web"})),
        ("k8s.dst.owner.name", json!({"stringValue": "db"})),
        ("dst.port", json!({"intValue": "5432"})),
        ("transport", json!({"stringValue": "tcp"})),
        ("direction", json!({"stringValue": "egress"})),
        ("ringfence.verdict", json!({"stringValue": "denied"})),
        ("ringfence.dst.service", json!({"stringValue": "data/db:5432"})),
        ("ringfence.denied_by", json!({"arrayValue": {"values": [{"stringValue": "shop/web"}]}})),
        ("ringfence.late", json!({"boolValue": false})),
    ] {
        assert_eq!(attributes.get(key), Some(&&value), "{key}");
    }
    let line: Value = serde_json::from_str(log["body"]["stringValue"].as_str().unwrap()).unwrap();
    assert_eq!(line["verdict"], "denied");
}

#[test]
fn partial_success_says_what_was_rejected() {
    let rejected = |text: &str| super::rejected(text.as_bytes());
    assert_eq!(
        rejected(r#"{"partialSuccess":{"rejectedLogRecords":"3","errorMessage":"old"}}"#),
        Some((3, "old".into()))
    );
    assert_eq!(rejected(r#"{"partialSuccess":{"rejectedLogRecords":2}}"#), Some((2, String::new())));
    assert_eq!(rejected(r#"{"partialSuccess":{"rejectedDataPoints":"4"}}"#), Some((4, String::new())));
    for none in [r#"{"partialSuccess":{}}"#, "{}", "", r#"{"partialSuccess":{"rejectedLogRecords":"0"}}"#] {
        assert_eq!(rejected(none), None, "{none}");
    }
}
