use std::collections::BTreeSet;

use cluster::{ServiceObject, Watchable};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kit::agent_process::run;
use serde_json::{Value, json};

use super::manifests::{install_yaml, of_kind, unknown_to};
use super::{at, documents, list, read};

fn component(file: &str) -> Vec<Value> {
    documents(&read(&format!("deploy/components/flows/{file}")))
}

#[test]
fn flow_rights_are_those_of_the_watches() {
    let documents = component("rbac.yaml");
    let (role, binding) = (of_kind(&documents, "ClusterRole"), of_kind(&documents, "ClusterRoleBinding"));
    assert_eq!((unknown_to::<ClusterRole>(role), unknown_to::<ClusterRoleBinding>(binding)), (vec![], vec![]));
    let granted: BTreeSet<String> = list(role, "rules").iter().map(ToString::to_string).collect();
    let used = ServiceObject::KINDS.iter().map(|kind| {
        let resource = ServiceObject::resource(*kind);
        let mut rule =
            json!({"apiGroups": [resource.group], "resources": [resource.plural], "verbs": ["list", "watch"]});
        if let Some((_, name)) = resource.only {
            rule["resourceNames"] = json!([name]);
        }
        rule.to_string()
    });
    assert_eq!(granted, used.collect());
    assert_eq!(at(binding, "roleRef.name"), at(role, "metadata.name"));
    let installed = install_yaml();
    let account = of_kind(&installed, "ServiceAccount");
    assert_eq!(at(binding, "subjects.0.name"), at(account, "metadata.name"));
    assert_eq!(at(binding, "subjects.0.namespace"), at(account, "metadata.namespace"));
}

#[test]
fn flow_component_switches_the_agent_on() {
    let patch = component("agents.yaml").remove(0);
    let container = at(&patch, "spec.template.spec.containers.0");
    assert_eq!(list(container, "env"), [json!({"name": "RINGFENCE_FLOWS", "value": "on"})]);
    let installed = install_yaml();
    let daemon_set = of_kind(&installed, "DaemonSet");
    assert_eq!(at(&patch, "metadata.name"), at(daemon_set, "metadata.name"));
    let names: Vec<&Value> =
        list(daemon_set, "spec.template.spec.containers").iter().map(|container| &container["name"]).collect();
    assert!(names.contains(&&container["name"]), "{names:?}");
    let help = run(["agent", "--help"]).stdout;
    assert!(help.split_whitespace().collect::<Vec<_>>().join(" ").contains("[env: RINGFENCE_FLOWS="), "{help}");
    // Without the component, the manifests do not mention it.
    assert!(!read("deploy/install.yaml").contains("RINGFENCE_FLOWS"));
}
