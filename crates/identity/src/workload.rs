//! The workload of a pod: its name, its app, and whether it is a component of a control plane.
//!
//! Everything is derived from the pod's own object. Owners of owners (a ReplicaSet's Deployment, a Job's CronJob) are
//! not looked up: a name is split only where the pod says how it was composed.

use std::sync::Arc;

use policy::{Interner, LONGEST_OWNER_BYTES, Labels, Owner, Pod};

use crate::control_plane::{Component, component};

/// Maximum length of a label value that names a workload or an app.
const LONGEST_NAME_BYTES: usize = LONGEST_OWNER_BYTES;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Unique in the namespace of its pods, and referenced as `namespace/name`.
    pub name: Arc<str>,
    pub component: Component,
}

/// Label of pods of a Deployment's ReplicaSet. Its value is the suffix that the Deployment appended to its own name.
const TEMPLATE_HASH: &str = "pod-template-hash";

const CRONJOB_NAME: &str = "batch.kubernetes.io/cronjob-name";

/// Minutes since 1970 that a CronJob controller may have appended to the name of a Job: from 2016, when CronJobs were
/// introduced, to the last number of eight digits, in 2160. Dates written as numbers (20240131) are smaller.
const SCHEDULED_MINUTES: std::ops::RangeInclusive<u32> = 24_192_000..=99_999_999;

impl Workload {
    /// The interner shares the names among replicas.
    pub fn of(pod: &Pod, interner: &mut Interner) -> Workload {
        let owner = pod.owner.as_deref();
        let is_static = owner.is_some_and(|owner| is_static(pod, owner));
        let controller = owner.map(|owner| controller_name(pod, owner));
        let name = match (owner, controller) {
            // Replicas with stable names communicate with each other.
            (Some(owner), _) if is_numbered(pod, owner) => pod.name.name.clone(),
            (_, Some(controller)) => interner.text(controller),
            (_, None) => app_label(&pod.labels).unwrap_or(&pod.name.name).clone(),
        };
        let component = component(&pod.name.namespace, controller.unwrap_or(&name), is_static, &pod.labels);
        Workload { name, component }
    }
}

/// The app of pods with these labels and this workload.
pub fn app_name(labels: &Labels, workload: &Arc<str>) -> Arc<str> {
    app_label(labels).unwrap_or(workload).clone()
}

/// Whether a label value is usable as a name.
fn is_name(value: &str) -> bool {
    !value.is_empty() && value.len() <= LONGEST_NAME_BYTES
}

fn app_label(labels: &Labels) -> Option<&Arc<str>> {
    ["app.kubernetes.io/name", "app"].iter().find_map(|key| labels.get(key).filter(|value| is_name(value)))
}

/// The name of the owner's controller, or of the owner itself.
fn controller_name<'a>(pod: &'a Pod, owner: &'a Owner) -> &'a str {
    let labels = &pod.labels;
    let without = |suffix: &str| owner.name.strip_suffix(suffix)?.strip_suffix('-').filter(|name| !name.is_empty());
    match &*owner.kind {
        "ReplicaSet" => {
            let hash = labels.get(TEMPLATE_HASH).filter(|hash| !hash.is_empty());
            hash.and_then(|hash| without(hash)).unwrap_or(&owner.name)
        }
        "Job" => match labels.get(CRONJOB_NAME).filter(|name| is_name(name)) {
            Some(name) => name,
            None => scheduled_by(&owner.name).unwrap_or(&owner.name),
        },
        "Node" => {
            let component = pod.name.name.strip_suffix(&*owner.name).and_then(|name| name.strip_suffix('-'));
            component.filter(|name| !name.is_empty()).unwrap_or(&pod.name.name)
        }
        _ => &owner.name,
    }
}

/// Name of the CronJob in the name of its Job.
fn scheduled_by(job: &str) -> Option<&str> {
    let (name, minutes) = job.rsplit_once('-')?;
    let digits = minutes.len() == 8 && minutes.bytes().all(|byte| byte.is_ascii_digit());
    let scheduled = digits && minutes.parse().is_ok_and(|minutes| SCHEDULED_MINUTES.contains(&minutes));
    (scheduled && !name.is_empty()).then_some(name)
}

/// Whether the pod is called `<owner>-<ordinal>` by a controller that numbers its pods. Kinds that append random
/// suffixes are excluded, even if a suffix happens to consist of digits.
fn is_numbered(pod: &Pod, owner: &Owner) -> bool {
    let random = ["DaemonSet", "Job", "Node", "ReplicaSet", "ReplicationController"].contains(&&*owner.kind);
    let suffix = pod.name.name.strip_prefix(&*owner.name).and_then(|rest| rest.strip_prefix('-'));
    !random && suffix.is_some_and(is_ordinal)
}

/// Whether the text is a number as controllers write it: decimal, without leading zeros.
fn is_ordinal(text: &str) -> bool {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits && (text == "0" || !text.starts_with('0'))
}

/// Whether the kubelet of the pod's node runs it from a file. An owner alone proves nothing: any user who may create
/// pods can set it.
fn is_static(pod: &Pod, owner: &Owner) -> bool {
    *owner.kind == *"Node" && pod.node.as_ref() == Some(&owner.name) && pod.mirror_of.is_some()
}

#[cfg(test)]
mod tests {
    use crate::testing::pod;

    use super::*;

    fn workload(pod: &Pod) -> Workload {
        Workload::of(pod, &mut Interner::new())
    }

    /// `namespace/name`, the owner as `Kind name`, labels, and the expected workload and app.
    type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)], &'static str, &'static str);

    fn check(cases: &[Case]) {
        for (name, owner, labels, workload, app) in cases {
            let pod = pod(name, owner, labels);
            let found = self::workload(&pod).name;
            assert_eq!((&*found, &*app_name(&pod.labels, &found)), (*workload, *app), "{name} of {owner}");
        }
    }

    const APP: &str = "app.kubernetes.io/name";
    const HASH: &str = "pod-template-hash";

    #[test]
    fn app_is_name_label_app_label_or_workload() {
        check(&[
            ("shop/a", "", &[(APP, "front"), ("app", "old")], "front", "front"),
            ("shop/a", "", &[("app", "old")], "old", "old"),
            ("shop/a", "", &[], "a", "a"),
            ("shop/web-1-x", "DaemonSet web-1", &[(APP, "front"), ("app", "old")], "web-1", "front"),
            ("shop/web-1-x", "DaemonSet web-1", &[("app", "old")], "web-1", "old"),
            ("shop/web-1-x", "DaemonSet web-1", &[], "web-1", "web-1"),
            ("shop/a", "", &[(APP, ""), ("app", "old")], "old", "old"),
            ("shop/a", "", &[("app", "")], "a", "a"),
        ]);
    }

    #[test]
    fn a_value_that_is_too_long_names_nothing() {
        let long = "x".repeat(LONGEST_NAME_BYTES + 1);
        let pod = pod("shop/a", "", &[(APP, long.as_str()), ("app", "old")]);
        let name = workload(&pod).name;
        assert_eq!((&*name, &*app_name(&pod.labels, &name)), ("old", "old"));
    }

    #[test]
    fn replica_set_yields_deployment_by_pod_template_hash() {
        check(&[
            ("shop/web-5d8f-x2x4z", "ReplicaSet web-5d8f", &[(HASH, "5d8f")], "web", "web"),
            ("shop/frontend-canary-x2x4z", "ReplicaSet frontend-canary", &[], "frontend-canary", "frontend-canary"),
            ("shop/web-5d8f-x2x4z", "ReplicaSet web-5d8f", &[], "web-5d8f", "web-5d8f"),
            ("shop/web-5d8f-x2x4z", "ReplicaSet web-5d8f", &[(HASH, "d8f")], "web-5d8f", "web-5d8f"),
            ("shop/web-5d8f-x2x4z", "ReplicaSet web-5d8f", &[(HASH, "")], "web-5d8f", "web-5d8f"),
            ("shop/web-a-a-x2x4z", "ReplicaSet web-a-a", &[(HASH, "a")], "web-a", "web-a"),
            ("shop/-5d8f-x", "ReplicaSet -5d8f", &[(HASH, "5d8f")], "-5d8f", "-5d8f"),
            ("shop/web-24567", "ReplicaSet web", &[], "web", "web"),
        ]);
    }

    #[test]
    fn job_of_cron_job_yields_cron_job() {
        check(&[
            ("shop/backup-28912345-x2x4z", "Job backup-28912345", &[], "backup", "backup"),
            ("shop/backup-28912345-0-x2x4z", "Job backup-28912345", &[], "backup", "backup"),
            ("shop/j-x2x4z", "Job j", &[(CRONJOB_NAME, "backup")], "backup", "backup"),
            ("shop/j-28912345-x", "Job j-28912345", &[(CRONJOB_NAME, "backup")], "backup", "backup"),
            ("shop/migrate-x2x4z", "Job migrate", &[], "migrate", "migrate"),
            ("shop/migrate-7-x2x4z", "Job migrate-7", &[], "migrate-7", "migrate-7"),
            ("shop/m-20240131-x", "Job m-20240131", &[], "m-20240131", "m-20240131"),
            ("shop/m-1700000000-x", "Job m-1700000000", &[], "m-1700000000", "m-1700000000"),
            ("shop/m-2891234x-x", "Job m-2891234x", &[], "m-2891234x", "m-2891234x"),
            ("shop/m-+8912345-x", "Job m-+8912345", &[], "m-+8912345", "m-+8912345"),
            ("shop/-28912345-x", "Job -28912345", &[], "-28912345", "-28912345"),
            // Other kinds may number their pods in any format.
            ("shop/w-28912345-x", "Workflow w-28912345", &[], "w-28912345", "w-28912345"),
        ]);
    }

    #[test]
    fn numbered_pod_is_its_own_workload() {
        check(&[
            ("shop/db-0", "StatefulSet db", &[], "db-0", "db-0"),
            ("shop/db-12", "StatefulSet db", &[("app", "db")], "db-12", "db"),
            ("kafka/prod-kafka-2", "StrimziPodSet prod-kafka", &[], "prod-kafka-2", "prod-kafka-2"),
            ("kafka/prod-kafka-x", "StrimziPodSet prod-kafka", &[], "prod-kafka", "prod-kafka"),
            ("kafka/prod-kafka-007", "StrimziPodSet prod-kafka", &[], "prod-kafka", "prod-kafka"),
            ("kafka/other-2", "StrimziPodSet prod-kafka", &[], "prod-kafka", "prod-kafka"),
            ("kafka/prod-kafka-", "StrimziPodSet prod-kafka", &[], "prod-kafka", "prod-kafka"),
        ]);
    }

    #[test]
    fn random_suffix_of_digits_is_not_an_ordinal() {
        check(&[
            ("shop/agent-24567", "DaemonSet agent", &[], "agent", "agent"),
            ("shop/migrate-24567", "Job migrate", &[], "migrate", "migrate"),
            ("shop/web-24567", "ReplicaSet web", &[], "web", "web"),
            ("shop/web-24567", "ReplicationController web", &[], "web", "web"),
        ]);
    }

    #[test]
    fn static_pod_workload_is_name_without_node() {
        check(&[
            ("kube-system/etcd-node-a", "Node node-a", &[], "etcd", "etcd"),
            ("kube-system/proxy-7-node-7", "Node node-7", &[("app", "lb")], "proxy-7", "lb"),
            ("kube-system/etcd", "Node node-a", &[], "etcd", "etcd"),
            ("kube-system/node-a", "Node node-a", &[], "node-a", "node-a"),
            ("kube-system/-node-a", "Node node-a", &[], "-node-a", "-node-a"),
        ]);
    }

    #[test]
    fn workload_is_owner_name_app_or_pod_name() {
        check(&[
            ("shop/web-x2x4z", "CloneSet web", &[("app", "front")], "web", "front"),
            ("shop/debug", "", &[("app", "tools")], "tools", "tools"),
            ("shop/debug", "", &[], "debug", "debug"),
            ("shop/debug", "Thing ", &[], "debug", "debug"),
        ]);
    }

    #[test]
    fn replicas_of_components_are_components() {
        let component = |name: &str, owner: &str| workload(&pod(name, owner, &[])).component;
        for name in ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd", "cloud-controller-manager"]
        {
            assert_eq!(component(&format!("kube-system/{name}-node-a"), "Node node-a"), Component::Own, "{name}");
            assert_eq!(component(&format!("kube-system/{name}-x2x4z"), &format!("DaemonSet {name}")), Component::Own);
            assert_eq!(component(&format!("kube-system/{name}-0"), &format!("StatefulSet {name}")), Component::Own);
            assert_eq!(component(&format!("shop/{name}"), ""), Component::Hosted, "{name} of a tenant");
        }
        for name in ["kube-proxy", "coredns", "etcd-operator", "my-kube-apiserver", "kube-apiserver-proxy"] {
            assert_eq!(component(&format!("kube-system/{name}-node-a"), "Node node-a"), Component::No, "{name}");
        }
    }

    #[test]
    fn static_pod_requires_mirror_annotation_and_own_node() {
        let owned = pod("shop/etcd-node-a", "Node node-a", &[]);
        assert_eq!(workload(&owned).component, Component::Hosted);
        for (node, expected) in [("node-a", Component::Own), ("node-b", Component::Hosted)] {
            let mirror = Pod { node: Some(node.into()), mirror_of: Some(Box::new("hash".into())), ..owned.clone() };
            assert_eq!(workload(&mirror).component, expected, "on {node}");
        }
    }

    #[test]
    fn replicas_share_the_name_of_their_workload() {
        let mut interner = Interner::new();
        let mut name = |pod_name| {
            let pod = pod(pod_name, "ReplicaSet web-5d9", &[(HASH, "5d9")]);
            Workload::of(&pod, &mut interner).name
        };
        assert!(Arc::ptr_eq(&name("shop/a"), &name("shop/b")));
    }
}
