//! Nodes, and their role.

use std::sync::Arc;

use serde_json::Value;

use super::IdentityNode;

/// Labels set by the cluster's installer; kubelets may not set them on their own node (admission plugin
/// NodeRestriction). The second one is from before Kubernetes 1.20.
const CONTROL_PLANE_LABELS: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

pub(super) fn lower_node(base: Arc<policy::Node>, object: &Value) -> IdentityNode {
    let labels = &object["metadata"]["labels"];
    let control_plane = CONTROL_PLANE_LABELS.iter().any(|key| labels[key].is_string());
    IdentityNode { base, control_plane }
}

#[cfg(test)]
mod tests {
    use cluster::Watchable;
    use policy::Interner;
    use serde_json::json;

    use super::*;
    use crate::object::{WatchedKind, WatchedObject};

    #[test]
    fn node_is_control_plane_by_role_label() {
        let role = |labels: Value| {
            let object = json!({"metadata": {"name": "node-a", "labels": labels}});
            let Ok(WatchedObject::Node(node)) = WatchedObject::lower(&mut Interner::new(), WatchedKind::Node, &object)
            else {
                panic!()
            };
            node.control_plane
        };
        assert!(role(json!({"node-role.kubernetes.io/control-plane": ""})));
        assert!(role(json!({"node-role.kubernetes.io/master": "true", "x": "y"})));
        for labels in [json!({"node-role.kubernetes.io/worker": ""}), Value::Null, json!("x"), json!({})] {
            assert!(!role(labels.clone()), "{labels}");
        }
    }
}
