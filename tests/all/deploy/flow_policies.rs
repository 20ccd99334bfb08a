use serde_json::{Value, json};

use super::chart::rendered;
use super::manifests::of_kind;
use super::{at, documents, list, read};

const FOLDER: &str = "deploy/components/flow-policies";

fn patch() -> Value {
    documents(&read(&format!("{FOLDER}/policies.yaml"))).remove(0)
}

#[test]
fn view_of_cluster_only_reads() {
    let role = documents(&read(&format!("{FOLDER}/rbac.yaml"))).remove(0);
    let resources: Vec<&Value> = list(&role, "rules").iter().flat_map(|rule| list(rule, "resources")).collect();
    assert_eq!(resources, ["namespaces", "nodes", "pods", "networkpolicies", "clusternetworkpolicies"]);
    for rule in list(&role, "rules") {
        assert_eq!(at(rule, "verbs"), &json!(["list", "watch"]));
    }
}

#[test]
fn observed_edges_of_chart_are_those_of_component() {
    let with = |is_enabled: bool| {
        rendered(|values| {
            assert_eq!(at(values, "flows.server.policies.enabled"), &json!(false), "off by default");
            values["flows"]["enabled"] = json!(true);
            values["flows"]["server"]["enabled"] = json!(true);
            values["flows"]["server"]["tls"]["generate"] = json!(false);
            values["flows"]["server"]["policies"]["enabled"] = json!(is_enabled);
        })
    };
    let (without, all) = (with(false), with(true));
    let added: Vec<&Value> = all.iter().filter(|object| !without.contains(object)).collect();
    let kinds: Vec<&Value> = added.iter().map(|object| &object["kind"]).collect();
    assert_eq!(kinds, ["Deployment", "ClusterRole", "ClusterRoleBinding", "PersistentVolumeClaim"]);
    let files = ["rbac.yaml", "state.yaml"].map(|file| documents(&read(&format!("{FOLDER}/{file}")))).concat();
    assert_eq!(added[1..].iter().map(|object| (*object).clone()).collect::<Vec<_>>(), files);
    let (deployment, patch) = (of_kind(&all, "Deployment"), patch());
    let of = |path: &str| list(&patch, &format!("spec.template.spec.{path}")).iter();
    let there = |path: &str| list(deployment, &format!("spec.template.spec.{path}")).to_vec();
    for path in ["containers.0.env", "containers.0.volumeMounts", "volumes"] {
        assert!(of(path).all(|item| there(path).contains(item)), "{path}");
    }
    let group = "spec.template.spec.securityContext.fsGroup";
    assert_eq!(at(deployment, group), at(&patch, group));
    let docs = read("docs/flows-edges.md");
    for variable in of("containers.0.env") {
        assert!(docs.contains(at(variable, "name").as_str().unwrap()), "{variable}");
    }
}
