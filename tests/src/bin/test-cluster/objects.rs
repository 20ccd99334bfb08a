//! Manifests of the test's pods, Services and policies.

use serde_json::{Value, json};

use crate::images::PODS;

/// A pod on a node that runs the test's program with these arguments.
pub(crate) fn pod(namespace: &str, name: &str, node: u8, labels: &[(&str, &str)], arguments: &[&str]) -> Value {
    let arguments = [&["pod"], arguments].concat();
    let labels: serde_json::Map<String, Value> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": {
            "nodeName": format!("node-{node}"),
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "pod",
                "image": PODS,
                "imagePullPolicy": "IfNotPresent",
                "args": arguments,
                "ports": [{"name": "http", "containerPort": 8080}, {"name": "admin", "containerPort": 9090}],
            }],
        },
    })
}

/// A server on the ports `http` (8080) and `admin` (9090).
pub(crate) fn server(namespace: &str, name: &str, node: u8, labels: &[(&str, &str)]) -> Value {
    pod(namespace, name, node, labels, &["serve", name, "8080", "9090"])
}

pub(crate) fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// A Service of both families for the pods with the label `app`.
pub(crate) fn service(namespace: &str, name: &str, app: &str, spec: &Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "selector": {"app": app},
            "ipFamilyPolicy": "RequireDualStack",
            "ports": [
                {"name": "http", "port": 80, "targetPort": "http"},
                {"name": "admin", "port": 81, "targetPort": "admin"},
                {"name": "http-udp", "port": 80, "targetPort": 8080, "protocol": "UDP"},
            ],
        },
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        service["spec"][key] = value.clone();
    }
    service
}

pub(crate) fn policy(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": namespace, "name": name},
        "spec": spec,
    })
}

/// Denies all traffic of a namespace in both directions.
pub(crate) fn deny_all(namespace: &str) -> Value {
    policy(namespace, "deny-all", &json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))
}

/// The input of `kubectl apply`.
pub(crate) fn list(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}
