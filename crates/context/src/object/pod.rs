//! Pods: the fields of enforcement, workload, readiness, and host ports.

use std::sync::Arc;

use ::identity::Workload;
use policy::Interner;
use serde_json::Value;

use super::{IdentityPod, WatchedKind, WatchedReader};

pub(super) fn lower(base: Arc<policy::Pod>, object: &Value, interner: &mut Interner) -> IdentityPod {
    let name = base.name.clone();
    let mut reader = WatchedReader::new(WatchedKind::Pod, &name, "the field is ignored");
    // Enforcement reads the owner, and ignores an invalid one.
    for (field, reason) in policy::read_owner(&object["metadata"]).invalid {
        reader.not_understood(&field, &reason);
    }
    let Workload { name: workload, component } = Workload::of(&base, interner);
    let ready = is_ready(&object["status"], &mut reader);
    let failing = !ready && has_failed_containers(&object["status"], &mut reader);
    let host_port = has_host_port(&object["spec"], &mut reader);
    IdentityPod {
        base,
        workload,
        component,
        ready,
        failing,
        host_port,
        problems: reader.problems().into_iter().collect(),
    }
}

fn is_ready(status: &Value, reader: &mut WatchedReader<'_>) -> bool {
    let conditions = reader.objects(&status["conditions"], "status.conditions");
    conditions.into_iter().any(|(_, condition)| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Waiting reasons of containers in a pod's first start.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Whether a container was restarted, has failed, or waits for anything but its first start, such as its image or the
/// end of a backoff. A crash-looping container runs briefly between failures, so its current state is not sufficient.
fn has_failed_containers(status: &Value, reader: &mut WatchedReader<'_>) -> bool {
    let mut failed = false;
    for list in ["containerStatuses", "initContainerStatuses"] {
        for (_, container) in reader.objects(&status[list], &format!("status.{list}")) {
            let state = &container["state"];
            let waits = state["waiting"]["reason"].as_str().is_some_and(|reason| !STARTING.contains(&reason));
            let exited = state["terminated"]["exitCode"].as_i64().is_some_and(|code| code != 0);
            failed |= waits || exited || container["restartCount"].as_i64().is_some_and(|count| count > 0);
        }
    }
    failed
}

/// Covers containers and sidecars (restartable init containers). Enforcement validates that these are lists of objects.
fn has_host_port(spec: &Value, reader: &mut WatchedReader<'_>) -> bool {
    let mut found = false;
    for (list, field) in [(&spec["containers"], "containers"), (&spec["initContainers"], "initContainers")] {
        for (index, container) in list.as_array().into_iter().flatten().enumerate() {
            if field == "initContainers" && container["restartPolicy"] != "Always" {
                continue;
            }
            for (at, port) in container["ports"].as_array().into_iter().flatten().enumerate() {
                match &port["hostPort"] {
                    Value::Null => {}
                    Value::Number(number) if number.as_u64().is_some_and(|port| port <= u16::MAX.into()) => {
                        found |= number.as_u64() != Some(0);
                    }
                    _ => reader.not_understood(
                        &format!("spec.{field}[{index}].ports[{at}].hostPort"),
                        "not a port number up to 65535",
                    ),
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::WatchedObject;
    use cluster::Watchable;

    fn pod(object: Value) -> Arc<IdentityPod> {
        let Ok(WatchedObject::Pod(pod)) = WatchedObject::lower(&mut Interner::new(), WatchedKind::Pod, &object) else {
            panic!("no pod")
        };
        pod
    }

    fn owned_by(references: &Value) -> Arc<IdentityPod> {
        pod(json!({"metadata": {"name": "a", "ownerReferences": references}}))
    }

    #[test]
    fn the_owner_is_the_one_that_controls() {
        let references = json!([
            {"kind": "Team", "name": "x"},
            {"kind": "Team", "name": "y", "controller": false},
            {"kind": "ReplicaSet", "name": "web-5d9", "controller": true},
        ]);
        assert_eq!(*owned_by(&references).workload, *"web-5d9");
        assert_eq!(*owned_by(&json!([{"kind": "Team", "name": "x"}])).workload, *"a");
        assert_eq!(*owned_by(&Value::Null).workload, *"a");
    }

    #[test]
    fn invalid_owner_reference_is_problem_and_ignored() {
        for references in [
            json!("x"),
            json!([7]),
            json!([{"kind": "ReplicaSet", "controller": true}]),
            json!([{"kind": 7, "name": "x", "controller": true}]),
            json!([{"kind": "ReplicaSet", "name": "x", "controller": "true"}]),
        ] {
            let pod = owned_by(&references);
            assert_eq!((&*pod.workload, pod.problems.len()), ("a", 1), "{references}");
            assert!(pod.problems[0].origin.starts_with("Pod default/a metadata.ownerReferences"), "{references}");
        }
    }

    #[test]
    fn pod_is_failing_if_unready_with_failed_container() {
        let failing = |ready: &str, list: &str, container: Value| {
            let conditions = json!([{"type": "Ready", "status": ready}]);
            pod(json!({"metadata": {"name": "a"}, "status": {"conditions": conditions, list: [container]}})).failing
        };
        let waiting = |reason: &str| json!({"restartCount": 0, "state": {"waiting": {"reason": reason}}});
        for (container, expected) in [
            (waiting("ContainerCreating"), false),
            (waiting("PodInitializing"), false),
            (waiting("CrashLoopBackOff"), true),
            (waiting("ImagePullBackOff"), true),
            (json!({"restartCount": 0, "state": {"running": {}}}), false),
            // It runs briefly before it fails again.
            (json!({"restartCount": 3, "state": {"running": {}}}), true),
            (json!({"restartCount": 0, "state": {"terminated": {"exitCode": 1}}}), true),
            (json!({"restartCount": 0, "state": {"terminated": {"exitCode": 0}}}), false),
        ] {
            for list in ["containerStatuses", "initContainerStatuses"] {
                assert_eq!(failing("False", list, container.clone()), expected, "{list} {container}");
                assert!(!failing("True", list, container.clone()), "{list} {container}");
            }
        }
    }

    #[test]
    fn pod_is_ready_by_its_ready_condition() {
        let ready =
            |conditions: Value| pod(json!({"metadata": {"name": "a"}, "status": {"conditions": conditions}})).ready;
        assert!(ready(json!([{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}])));
        assert!(!ready(json!([{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "False"}])));
        assert!(!ready(json!([{"type": "Ready", "status": "Unknown"}])));
        assert!(!ready(json!([{"type": "Ready", "status": true}])));
        assert!(!ready(Value::Null));
    }

    #[test]
    fn host_ports_count_for_containers_and_sidecars_only() {
        let container =
            |port: Value| json!([{"ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": port}]}]);
        let has = |spec: Value| pod(json!({"metadata": {"name": "a"}, "spec": spec})).host_port;
        assert!(has(json!({"containers": container(json!(8080))})));
        assert!(!has(json!({"containers": container(json!(0))})));
        assert!(!has(json!({"containers": container(Value::Null)})));
        assert!(!has(json!({"initContainers": container(json!(8080))})));
        let mut sidecar = container(json!(8080));
        sidecar[0]["restartPolicy"] = json!("Always");
        assert!(has(json!({"initContainers": sidecar})));
    }

    #[test]
    fn invalid_host_port_is_problem_and_others_count() {
        for wrong in [json!("8080"), json!(-1), json!(70_000), json!(80.5), json!([])] {
            let ports = json!([{"hostPort": wrong}, {"hostPort": 80}]);
            let pod = pod(json!({"metadata": {"name": "a"}, "spec": {"containers": [{"ports": ports}]}}));
            assert!(pod.host_port && !pod.base.unreadable, "{wrong}");
            assert_eq!(pod.problems.len(), 1, "{wrong}");
        }
    }
}
