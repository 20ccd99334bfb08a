//! Objects for tests.

use ::identity::Workload;
use policy::{Interner, Labels, ObjectName, Problems};
use serde_json::{Value, json};

use crate::object::IdentityPod;

/// `owner` is `Kind name`, or empty.
pub(crate) fn pod(mut object: Value, owner: &str) -> IdentityPod {
    if let Some((kind, name)) = owner.split_once(' ') {
        object["metadata"]["ownerReferences"] = json!([{"kind": kind, "name": name, "controller": true}]);
    }
    let Ok(policy::Object::Pod(base)) = policy::lower(policy::Kind::Pod, &object) else { panic!("{object}") };
    let Workload { name: workload, component } = Workload::of(&base, &mut Interner::new());
    IdentityPod {
        base,
        workload,
        component,
        ready: true,
        failing: false,
        host_port: false,
        problems: Problems::default(),
    }
}

pub(crate) fn pod_of(name: &str, owner: &str, pairs: &[(&str, &str)]) -> IdentityPod {
    let name: ObjectName = name.parse().unwrap();
    let labels: serde_json::Map<String, Value> = pairs.iter().map(|(k, v)| ((*k).into(), json!(v))).collect();
    pod(json!({"metadata": {"namespace": &*name.namespace, "name": &*name.name, "labels": labels}}), owner)
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}
