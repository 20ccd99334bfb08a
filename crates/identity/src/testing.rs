//! Values for tests.

use policy::{Labels, ObjectName, Pod};
use serde_json::{Value, json};

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

/// `owner` has the form `Kind name`; empty for a pod without an owner.
pub(crate) fn pod(name: &str, owner: &str, pairs: &[(&str, &str)]) -> Pod {
    let name: ObjectName = name.parse().unwrap();
    let labels: serde_json::Map<String, Value> = pairs.iter().map(|(k, v)| ((*k).into(), json!(v))).collect();
    let owners = owner.split_once(' ').map(|(kind, name)| json!([{"kind": kind, "name": name, "controller": true}]));
    let metadata =
        json!({"namespace": &*name.namespace, "name": &*name.name, "labels": labels, "ownerReferences": owners});
    let Ok(policy::Object::Pod(pod)) = policy::lower(policy::Kind::Pod, &json!({"metadata": metadata})) else {
        panic!("no pod: {metadata}")
    };
    (*pod).clone()
}
