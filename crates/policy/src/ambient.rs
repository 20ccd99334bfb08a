//! Detects pods in the ambient mesh of Istio, whose traffic hides its destination ports.
//!
//! Istio redirects the traffic between pods of the mesh to one port of the destination (HBONE). A pod is in the mesh by
//! its own label or, without that, by its namespace's; the annotation `ambient.istio.io/redirection` is derived from
//! them.

use crate::{ClusterState, Explanation, ObjectName, Pod};

const MODE_LABEL: &str = "istio.io/dataplane-mode";
const AMBIENT: &str = "ambient";

/// The TCP port of the mesh.
const HBONE_PORT: u16 = 15008;

/// Whether the pod is in the ambient mesh.
pub(crate) fn is_in_mesh(state: &ClusterState, pod: &Pod) -> bool {
    let mode = pod.labels.get(MODE_LABEL).or_else(|| state.namespace_labels(&pod.name.namespace)?.get(MODE_LABEL));
    !pod.host_network && mode.is_some_and(|mode| &**mode == AMBIENT)
}

/// The consequence for ports in policies.
pub(crate) fn consequence() -> String {
    format!(
        "traffic between pods of the mesh is tunneled to port {HBONE_PORT}/tcp (HBONE), so policies have to allow \
         that port and cannot distinguish other ports"
    )
}

/// The limits of an explanation for flows between pods of the mesh; `None` if either end is outside of it.
pub fn explain_ambient(state: &ClusterState, explanation: &Explanation) -> Option<String> {
    let ends = [&explanation.source, &explanation.destination].map(|party| {
        let name: ObjectName = party.pod.as_deref()?.parse().ok()?;
        state.pod(&name).filter(|pod| is_in_mesh(state, pod))
    });
    let [Some(source), Some(destination)] = ends else { return None };
    Some(format!("{} and {} are in the ambient mesh of Istio: {}", source.name, destination.name, consequence()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{Change, Kind, Traffic, check, explain, lower};

    fn pod(name: &str, address: &str, labels: Value) -> Value {
        json!({
            "metadata": {"namespace": "shop", "name": name, "labels": labels},
            "spec": {"nodeName": "node-a"}, "status": {"podIPs": [{"ip": address}]},
        })
    }

    fn state(namespace_mode: &str, pods: &[Value]) -> ClusterState {
        let mut state = ClusterState::new();
        let namespace = json!({"metadata": {"name": "shop", "labels": {MODE_LABEL: namespace_mode}}});
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": "api"},
            "spec": {"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 80}]}]},
        });
        let objects = [(Kind::Namespace, namespace), (Kind::NetworkPolicy, policy)];
        for (kind, object) in objects.into_iter().chain(pods.iter().map(|pod| (Kind::Pod, pod.clone()))) {
            state.apply(Change::Set(lower(kind, &object).unwrap()));
        }
        state
    }

    fn notes(state: &ClusterState) -> (Option<String>, Vec<String>) {
        let explanation = explain(
            state,
            "10.0.0.1".parse().unwrap(),
            "10.0.0.2".parse().unwrap(),
            Traffic::Port(nft::Protocol::Tcp, 80),
        );
        let warnings = check(state).into_iter().filter(|d| d.message.contains("ambient mesh"));
        (explain_ambient(state, &explanation), warnings.map(|d| d.to_string()).collect())
    }

    #[test]
    fn pods_of_the_ambient_mesh_are_noted() {
        let labels = |mode: &str| json!({MODE_LABEL: mode});
        let by_namespace = state("ambient", &[pod("a", "10.0.0.1", json!({})), pod("b", "10.0.0.2", json!({}))]);
        let by_pod = state("none", &[pod("a", "10.0.0.1", labels("ambient")), pod("b", "10.0.0.2", labels("ambient"))]);
        for state in [by_namespace, by_pod] {
            let (explained, checked) = notes(&state);
            assert!(explained.is_some_and(|note| note.starts_with("shop/a and shop/b are in the ambient mesh")));
            let [warning] = &checked[..] else { panic!("{checked:?}") };
            assert!(warning.starts_with("NetworkPolicy shop/api spec.podSelector: selects pods of the ambient mesh"));
            assert!(warning.contains("as shop/a:") && warning.contains("15008/tcp"), "{warning}");
        }
    }

    #[test]
    fn pods_outside_the_ambient_mesh_are_not_noted() {
        let left = pod("b", "10.0.0.2", json!({MODE_LABEL: "none"}));
        let (explained, checked) = notes(&state("ambient", &[pod("a", "10.0.0.1", json!({})), left.clone()]));
        assert!(explained.is_none() && checked.len() == 1, "{checked:?}");
        assert_eq!(notes(&state("none", &[pod("a", "10.0.0.1", json!({})), left])), (None, vec![]));
    }
}
