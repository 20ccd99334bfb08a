//! Nodes, and where their API servers listen.

use std::sync::Arc;

use policy::ObjectName;
use serde_json::Value;

use super::reader::Reader;
use super::{EndpointSlice, Kind, Node};

/// Set by whoever sets up the cluster; kubelets may not set it on their own node (admission plugin NodeRestriction). The
/// second one is from before Kubernetes 1.20.
const CONTROL_PLANE_LABELS: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// The slice that API servers keep of themselves, one for all: that of the Service `kubernetes` in the namespace `default`.
pub(super) const API_SERVERS: (&str, &str) = ("default", "kubernetes");

pub(super) fn lower_node(base: Arc<policy::Node>, object: &Value) -> Node {
    let labels = &object["metadata"]["labels"];
    let control_plane = CONTROL_PLANE_LABELS.iter().any(|key| labels[key].is_string());
    Node { base, control_plane }
}

/// Addresses in `endpoints[].addresses[]` (discovery.k8s.io/v1). Whether an endpoint is ready says nothing of who has the
/// address.
pub(super) fn lower_slice(name: ObjectName, object: &Value) -> EndpointSlice {
    let mut reader = Reader::new(Kind::EndpointSlice, &name, "the address gets no record as an API server");
    let mut addresses = Vec::new();
    let is_of_api_servers = (&*name.namespace, &*name.name) == API_SERVERS;
    // The addresses of a slice of names are none.
    if is_of_api_servers && object["addressType"] != "FQDN" {
        for (index, endpoint) in reader.objects(&object["endpoints"], "endpoints") {
            let path = format!("endpoints[{index}].addresses");
            addresses.extend(reader.addresses(&endpoint["addresses"], &path));
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    let problems = reader.problems();
    EndpointSlice { name, addresses, problems }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use cluster::Watched;
    use policy::Interner;
    use serde_json::json;

    use super::*;
    use crate::object::Object;

    fn slice(name: &str, whole: Value) -> EndpointSlice {
        let name: ObjectName = name.parse().unwrap();
        let mut object = json!({"metadata": {"namespace": &*name.namespace, "name": &*name.name}});
        object.as_object_mut().unwrap().extend(whole.as_object().unwrap().clone());
        let Ok(Object::EndpointSlice(slice)) = Object::lower(&mut Interner::new(), Kind::EndpointSlice, &object) else {
            panic!("no slice")
        };
        (*slice).clone()
    }

    fn texts(slice: &EndpointSlice) -> Vec<String> {
        slice.addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn api_servers_are_endpoints_of_the_service_kubernetes() {
        let endpoints = json!({"addressType": "IPv4", "endpoints": [
            {"addresses": ["192.0.2.2"]}, {"addresses": ["192.0.2.1", "192.0.2.2"], "conditions": {"ready": false}},
        ]});
        assert_eq!(texts(&slice("default/kubernetes", endpoints.clone())), ["192.0.2.1", "192.0.2.2"]);
        for other in ["shop/kubernetes", "default/web", "kube-system/kubernetes"] {
            assert_eq!(slice(other, endpoints.clone()).addresses, [] as [IpAddr; 0], "{other}");
        }
        let names = json!({"addressType": "FQDN", "endpoints": [{"addresses": ["api.example.com"]}]});
        let names = slice("default/kubernetes", names);
        assert!(names.addresses.is_empty() && names.problems.is_empty());
    }

    #[test]
    fn endpoint_that_is_no_address_is_a_problem() {
        let endpoints = json!({"endpoints": [{"addresses": ["192.0.2.2", "x", 7]}, 7, {"addresses": "192.0.2.3"}]});
        let slice = slice("default/kubernetes", endpoints);
        let origins: Vec<&str> = slice.problems.iter().map(|problem| problem.origin.as_str()).collect();
        let of = |path: &str| format!("EndpointSlice default/kubernetes {path}");
        assert_eq!(texts(&slice), ["192.0.2.2"]);
        let expected =
            ["endpoints[1]", "endpoints[0].addresses[1]", "endpoints[0].addresses[2]", "endpoints[2].addresses"];
        assert_eq!(origins, expected.map(of));
    }

    #[test]
    fn node_of_the_control_plane_has_the_role_label() {
        let role = |labels: Value| {
            let object = json!({"metadata": {"name": "node-a", "labels": labels}});
            let Ok(Object::Node(node)) = Object::lower(&mut Interner::new(), Kind::Node, &object) else { panic!() };
            node.control_plane
        };
        assert!(role(json!({"node-role.kubernetes.io/control-plane": ""})));
        assert!(role(json!({"node-role.kubernetes.io/master": "true", "x": "y"})));
        for labels in [json!({"node-role.kubernetes.io/worker": ""}), Value::Null, json!("x"), json!({})] {
            assert!(!role(labels.clone()), "{labels}");
        }
    }
}
