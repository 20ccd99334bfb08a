use serde_json::{Value, json};

use super::manifests::{install_yaml, of_kind};
use super::template::render;
use super::{VERSION, at, documents, list, read, root, texts};

const CHART: &str = "deploy/helm/ringfence";

/// The chart's objects, with its own values changed by `change`.
fn rendered(change: impl FnOnce(&mut Value)) -> Vec<Value> {
    let mut values = documents(&read(&format!("{CHART}/values.yaml"))).remove(0);
    change(&mut values);
    let chart = documents(&read(&format!("{CHART}/Chart.yaml"))).remove(0);
    let context = json!({
        "Values": values,
        "Chart": {"AppVersion": chart["appVersion"]},
        "Release": {"Namespace": "ringfence"},
    });
    let mut files: Vec<_> = std::fs::read_dir(root().join(CHART).join("templates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    files.iter().flat_map(|file| documents(&render(&read(&format!("{CHART}/templates/{file}")), &context))).collect()
}

fn sorted(mut documents: Vec<Value>) -> Vec<Value> {
    documents.sort_by_key(|document| (document["kind"].to_string(), document["metadata"]["name"].to_string()));
    documents
}

#[test]
fn its_own_values_give_the_objects_of_install_yaml_but_for_the_namespace() {
    let wanted: Vec<Value> = install_yaml().into_iter().filter(|document| document["kind"] != "Namespace").collect();
    let (rendered, wanted) = (sorted(rendered(|_| {})), sorted(wanted));
    assert_eq!(rendered.len(), wanted.len());
    for (rendered, wanted) in rendered.iter().zip(&wanted) {
        assert_eq!(serde_json::to_string_pretty(rendered).unwrap(), serde_json::to_string_pretty(wanted).unwrap());
    }
}

#[test]
fn its_monitoring_is_that_of_the_components() {
    let all = rendered(|values| {
        values["monitoring"] = json!({"enabled": true, "rules": true, "podMonitor": true, "serviceMonitor": true});
    });
    for file in [
        "monitoring/prometheusrule.yaml",
        "pod-monitor/podmonitor.yaml",
        "service-monitor/service.yaml",
        "service-monitor/servicemonitor.yaml",
    ] {
        let wanted = documents(&read(&format!("deploy/components/{file}"))).remove(0);
        assert_eq!(of_kind(&all, wanted["kind"].as_str().unwrap()), &wanted, "{file}");
    }
    let patch = documents(&read("deploy/components/monitoring/listen.yaml")).remove(0);
    let patch = &list(&patch, "spec.template.spec.containers")[0];
    let agent = &list(of_kind(&all, "DaemonSet"), "spec.template.spec.containers")[0];
    assert_eq!(at(agent, "args"), at(patch, "args"));
    assert!(list(agent, "env").contains(&list(patch, "env")[0]));
    for probe in ["livenessProbe", "readinessProbe"] {
        assert!(at(agent, &format!("{probe}.httpGet")).get("host").is_none());
        assert!(at(patch, &format!("{probe}.httpGet.host")).is_null());
    }
}

#[test]
fn its_values_reach_the_objects() {
    let all = rendered(|values| {
        values["image"] = json!({"repository": "registry.example/r", "tag": "9", "pullPolicy": "Always"});
        values["imagePullSecrets"] = json!([{"name": "secret"}]);
        values["agent"]["args"] = json!(["agent", "--resync-secs=60"]);
        values["agent"]["resources"]["limits"] = json!({"memory": "1Gi"});
        values["cni"]["confDir"] = json!("/conf");
        values["cni"]["binDir"] = json!("/bin");
        values["cni"]["securityContext"]["capabilities"]["add"] = json!(["DAC_OVERRIDE"]);
        values["nodeSelector"]["pool"] = json!("x");
    });
    let pod = at(of_kind(&all, "DaemonSet"), "spec.template.spec");
    let agent = at(pod, "containers.0");
    assert_eq!((at(agent, "image"), at(agent, "imagePullPolicy")), (&json!("registry.example/r:9"), &json!("Always")));
    assert_eq!(at(pod, "imagePullSecrets"), &json!([{"name": "secret"}]));
    assert_eq!(texts(at(agent, "args")), ["agent", "--resync-secs=60"]);
    assert_eq!(at(agent, "resources.limits.memory"), "1Gi");
    let paths: Vec<&Value> = list(pod, "volumes").iter().map(|volume| at(volume, "hostPath.path")).collect();
    assert_eq!(paths, [&json!("/run/ringfence"), &json!("/conf"), &json!("/bin")]);
    assert_eq!(texts(at(pod, "initContainers.0.securityContext.capabilities.add")), ["DAC_OVERRIDE"]);
    assert_eq!(at(pod, "nodeSelector.pool"), "x");
}

#[test]
fn it_is_of_this_version() {
    let chart = documents(&read(&format!("{CHART}/Chart.yaml"))).remove(0);
    assert_eq!((&chart["version"], &chart["appVersion"]), (&json!(VERSION), &json!(VERSION)));
}
