use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kit::agent_process::ended;
use kit::provider_process::aggregator;
use serde_json::{Value, json};

use super::manifests::{install_yaml, of_kind};
use super::template::render;
use super::{VERSION, at, documents, list, read, root, texts};

const CHART: &str = "deploy/helm/ringfence";
/// The template that Helm prints after an installation.
const NOTES: &str = "NOTES.txt";

/// The variables of the templates.
fn context(values: &Value) -> Value {
    let chart = documents(&read(&format!("{CHART}/Chart.yaml"))).remove(0);
    json!({
        "Values": values,
        "Chart": {"AppVersion": chart["appVersion"]},
        "Release": {"Name": "ringfence", "Namespace": "ringfence"},
    })
}

/// The chart's objects, with its values changed by `change`.
pub(super) fn rendered(change: impl FnOnce(&mut Value)) -> Vec<Value> {
    let mut values = documents(&read(&format!("{CHART}/values.yaml"))).remove(0);
    change(&mut values);
    let context = context(&values);
    let mut files: Vec<_> = std::fs::read_dir(root().join(CHART).join("templates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.retain(|file| file != NOTES);
    files.sort();
    files.iter().flat_map(|file| documents(&render(&read(&format!("{CHART}/templates/{file}")), &context))).collect()
}

fn sorted(mut documents: Vec<Value>) -> Vec<Value> {
    documents.sort_by_key(|document| (document["kind"].to_string(), document["metadata"]["name"].to_string()));
    documents
}

#[test]
fn default_values_render_install_yaml_without_namespace() {
    let wanted: Vec<Value> = install_yaml().into_iter().filter(|document| document["kind"] != "Namespace").collect();
    let (rendered, wanted) = (sorted(rendered(|_| {})), sorted(wanted));
    assert_eq!(rendered.len(), wanted.len());
    for (rendered, wanted) in rendered.iter().zip(&wanted) {
        assert_eq!(serde_json::to_string_pretty(rendered).unwrap(), serde_json::to_string_pretty(wanted).unwrap());
    }
}

#[test]
fn enabled_context_renders_the_context_component() {
    let without = rendered(|_| {});
    let all = rendered(|values| values["context"]["enabled"] = json!(true));
    let added: Vec<Value> = all.into_iter().filter(|document| !without.contains(document)).collect();
    let (added, wanted) = (sorted(added), sorted(super::context::component()));
    assert_eq!(added.len(), wanted.len());
    for (added, wanted) in added.iter().zip(&wanted) {
        assert_eq!(serde_json::to_string_pretty(added).unwrap(), serde_json::to_string_pretty(wanted).unwrap());
    }
}

#[test]
fn values_reach_its_provider_of_context() {
    let mount = json!({"name": "token", "mountPath": "/token", "readOnly": true});
    let volume = json!({"name": "token", "secret": {"secretName": "relay"}});
    let from_prometheus = json!({"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]});
    let to_the_relay = json!({"ports": [{"port": 8443}]});
    let environment = json!({"secretRef": {"name": "bucket"}});
    let all = rendered(|values| {
        values["image"]["tag"] = json!("9");
        let context = &mut values["context"];
        context["enabled"] = json!(true);
        context["tls"]["enabled"] = json!(false);
        context["replicas"] = json!(3);
        context["args"] = json!(["serve", "--token-file=/token/token"]);
        context["envFrom"] = json!([environment]);
        context["volumes"] = json!([volume]);
        context["volumeMounts"] = json!([mount]);
        context["networkPolicy"] = json!({"ingress": [from_prometheus], "egress": [to_the_relay]});
        context["resources"]["limits"] = json!({"memory": "1Gi"});
        context["tolerations"] = json!([{"operator": "Exists"}]);
    });
    let deployment = of_kind(&all, "Deployment");
    assert_eq!(at(deployment, "spec.replicas"), 3);
    let pod = at(deployment, "spec.template.spec");
    let container = at(pod, "containers.0");
    assert_eq!(at(container, "image"), "ringfence:9");
    assert_eq!(texts(at(container, "args")), ["serve", "--token-file=/token/token"]);
    assert_eq!((at(container, "envFrom.0"), at(container, "volumeMounts.0")), (&environment, &mount));
    assert_eq!((at(pod, "volumes.0"), at(pod, "tolerations.0.operator")), (&volume, &json!("Exists")));
    assert_eq!(at(container, "resources.limits.memory"), "1Gi");
    let policy = at(of_kind(&all, "NetworkPolicy"), "spec");
    assert_eq!(list(policy, "ingress").last(), Some(&from_prometheus));
    assert_eq!(list(policy, "egress").last(), Some(&to_the_relay));
}

#[test]
fn remote_cluster_values_render_the_components() {
    let all = rendered(|values| {
        let context = &mut values["context"];
        context["enabled"] = json!(true);
        context["remoteClusters"]["enabled"] = json!(true);
        context["remoteClusters"]["calico"] = json!(true);
        context["volumes"] = json!([{"name": "token"}]);
        context["volumeMounts"] = json!([{"name": "token"}]);
    });
    let pod = at(of_kind(&all, "Deployment"), "spec.template.spec");
    let container = at(pod, "containers.0");
    let component = |name: &str, file: &str| documents(&read(&format!("deploy/components/{name}/{file}")));
    let mut arguments = vec![];
    for name in ["remote-clusters", "calico-export"] {
        let kustomization = component(name, "kustomization.yaml").remove(0);
        for patch in list(&kustomization, "patches").iter().filter_map(|patch| patch["patch"].as_str()) {
            let added = documents(patch).remove(0);
            arguments.extend(added.as_array().unwrap().iter().map(|added| added["value"].clone()));
        }
    }
    assert_eq!(list(container, "args").last_chunk::<3>().unwrap().as_slice(), arguments);
    let patch = component("remote-clusters", "clusters.yaml").remove(0);
    let patched = at(&patch, "spec.template.spec");
    assert_eq!(list(container, "volumeMounts")[1..3], *list(patched, "containers.0.volumeMounts"));
    assert_eq!(list(pod, "volumes")[1..3], *list(patched, "volumes"));
    assert_eq!((at(container, "volumeMounts.3.name"), at(pod, "volumes.3.name")), (&json!("token"), &json!("token")));
    let agents = component("remote-clusters", "agents.yaml").remove(0);
    let (patch, pod) = (at(&agents, "spec.template.spec"), at(of_kind(&all, "DaemonSet"), "spec.template.spec"));
    let agent = at(pod, "containers.0");
    for field in ["env", "volumeMounts"] {
        for wanted in list(at(patch, "containers.0"), field) {
            assert!(list(agent, field).contains(wanted), "{wanted}");
        }
    }
    for wanted in list(patch, "volumes") {
        assert!(list(pod, "volumes").contains(wanted), "{wanted}");
    }
    assert!(all.contains(&component("remote-clusters", "nodes.yaml").remove(0)));
    for wanted in component("calico-export", "rbac.yaml") {
        assert!(all.contains(&wanted), "{wanted}");
    }
}

#[test]
fn its_flow_records_are_those_of_the_component() {
    let without = rendered(|_| {});
    let all = rendered(|values| values["flows"]["enabled"] = json!(true));
    let component = |file: &str| documents(&read(&format!("deploy/components/flows/{file}")));
    let added: Vec<Value> =
        all.iter().filter(|document| !without.contains(document) && document["kind"] != "DaemonSet").cloned().collect();
    assert_eq!(sorted(added), sorted(component("rbac.yaml")));
    let agent = |all: &[Value]| at(of_kind(all, "DaemonSet"), "spec.template.spec.containers.0").clone();
    let patch = component("agents.yaml").remove(0);
    let mut patched = agent(&without);
    let variables = list(at(&patch, "spec.template.spec.containers.0"), "env").iter().cloned();
    patched["env"].as_array_mut().unwrap().extend(variables);
    assert_eq!(agent(&all), patched);
}

#[test]
fn its_aggregator_is_that_of_the_component() {
    let with_flows = |is_enabled: bool| {
        rendered(|values| {
            values["flows"]["enabled"] = json!(true);
            values["flows"]["server"]["enabled"] = json!(is_enabled);
        })
    };
    let (without, all) = (with_flows(false), with_flows(true));
    let added = all.iter().filter(|document| !without.contains(document) && document["kind"] != "DaemonSet");
    let (added, wanted) = (sorted(added.cloned().collect()), sorted(super::flow_server::component()));
    assert_eq!(added.len(), wanted.len());
    for (added, wanted) in added.iter().zip(&wanted) {
        assert_eq!(serde_json::to_string_pretty(added).unwrap(), serde_json::to_string_pretty(wanted).unwrap());
    }
    let patch = super::flow_server::agents();
    let (patch, pod) = (at(&patch, "spec.template.spec"), at(of_kind(&all, "DaemonSet"), "spec.template.spec"));
    for (path, field) in [("containers.0", "env"), ("containers.0", "volumeMounts")] {
        let present = list(at(pod, path), field);
        assert!(list(at(patch, path), field).iter().all(|wanted| present.contains(wanted)), "{field}: {present:#?}");
    }
    assert!(list(patch, "volumes").iter().all(|wanted| list(pod, "volumes").contains(wanted)));
}

/// The Deployments of aggregators and other objects with failover, both interfaces and the trail.
fn with_failover_and_trail() -> Vec<Value> {
    rendered(|values| {
        values["flows"]["enabled"] = json!(true);
        let server = &mut values["flows"]["server"];
        server["enabled"] = json!(true);
        server["failover"] = json!(true);
        server["trail"]["enabled"] = json!(true);
        server["trail"]["args"] = json!(["--loki-tenant=team-a"]);
        server["hubble"]["enabled"] = json!(true);
        server["goldmane"]["enabled"] = json!(true);
    })
}

fn deployment<'a>(documents: &'a [Value], name: &str) -> &'a Value {
    let is_named = |document: &&Value| document["kind"] == "Deployment" && at(document, "metadata.name") == name;
    documents.iter().find(is_named).unwrap_or_else(|| panic!("no Deployment {name}"))
}

#[test]
fn trail_has_one_writer_with_failover() {
    let all = with_failover_and_trail();
    let (first, standby) =
        (deployment(&all, "ringfence-flow-server"), deployment(&all, "ringfence-flow-server-standby"));
    assert_eq!((at(first, "spec.replicas"), at(first, "spec.strategy.type")), (&json!(1), &json!("Recreate")));
    assert!(texts(at(first, "spec.template.spec.containers.0.args")).contains(&"--loki-tenant=team-a"));
    for word in ["LOKI", "loki", "SPOOL", "spool"] {
        assert!(first.to_string().contains(word) && !standby.to_string().contains(word), "{word}: {standby:#}");
    }
    // The Service and the policies select both, and each Deployment its own pods.
    let labels = at(standby, "spec.template.metadata.labels");
    assert_eq!(at(standby, "spec.selector.matchLabels"), labels);
    let service = of_kind(&all, "Service");
    for (name, value) in at(service, "spec.selector").as_object().unwrap() {
        assert_eq!(labels[name], *value);
    }
    assert_ne!(labels, at(first, "spec.template.metadata.labels"));
}

/// Without the trail, the standby is the first aggregator but for its name, its labels and the way of an upgrade.
#[test]
fn standby_is_a_copy_of_the_aggregator() {
    let component = documents(&read("deploy/components/flow-standby/deployment.yaml")).remove(0);
    let first = documents(&read("deploy/components/flow-server/deployment.yaml")).remove(0);
    let without_trail = |is_failover: bool| {
        rendered(|values| {
            values["flows"]["enabled"] = json!(true);
            values["flows"]["server"]["enabled"] = json!(true);
            values["flows"]["server"]["failover"] = json!(is_failover);
        })
    };
    let (without, with) = (without_trail(false), without_trail(true));
    let added: Vec<&Value> = with.iter().filter(|document| !without.contains(document)).collect();
    assert_eq!(added, [&component]);
    let mut copy = component.clone();
    copy["metadata"]["name"] = at(&first, "metadata.name").clone();
    for path in ["/spec/strategy", "/spec/selector", "/spec/template/metadata"] {
        *copy.pointer_mut(path).unwrap() = first.pointer(path).unwrap().clone();
    }
    assert_eq!(copy, first);
    assert!(super::manifests::unknown_to::<Deployment>(&component).is_empty());
    assert_eq!(at(&component, "spec.strategy.rollingUpdate.maxUnavailable"), 0);
}

/// Ports, Service ports and policies of the chart are those of the components.
#[test]
fn interfaces_of_chart_are_those_of_components() {
    let all = with_failover_and_trail();
    for (name, port) in [("hubble", 4245), ("goldmane", 7443)] {
        let file = |file: &str| documents(&read(&format!("deploy/components/flow-{name}/{file}.yaml"))).remove(0);
        let policy = file("networkpolicy");
        assert!(all.contains(&policy), "{policy:#}");
        assert!(super::manifests::unknown_to::<NetworkPolicy>(&policy).is_empty());
        assert_eq!(at(&policy, "spec.ingress.0.ports.0.port"), port);
        let service = all
            .iter()
            .find(|document| document["kind"] == "Service" && at(document, "metadata.name") == "ringfence-flow-server");
        let added = at(&file("service"), "spec.ports.0").clone();
        assert!(list(service.unwrap(), "spec.ports").contains(&added), "{added}");
        assert_eq!(at(&added, "port"), port);
        let patch = at(&file("listen"), "spec.template.spec.containers.0").clone();
        let help = ended(aggregator().args(["serve", "--help"])).stdout;
        let variable = at(&patch, "env.0.name").as_str().unwrap();
        assert!(help.contains(&format!("[env: {variable}=")), "{variable}");
        assert_eq!(at(&patch, "env.0.value"), &json!(format!("0.0.0.0:{port}")));
        assert_eq!(
            (at(&patch, "ports.0.containerPort"), at(&patch, "ports.0.name")),
            (&json!(port), at(&added, "targetPort"))
        );
        for name in ["ringfence-flow-server", "ringfence-flow-server-standby"] {
            let container = at(deployment(&all, name), "spec.template.spec.containers.0");
            assert!(list(container, "env").contains(at(&patch, "env.0")), "{container:#}");
            assert!(list(container, "ports").contains(at(&patch, "ports.0")), "{container:#}");
        }
        let kustomization = file("kustomization");
        let target = at(&kustomization, "patches.0.target.labelSelector").as_str().unwrap();
        assert_eq!(target, "app.kubernetes.io/name=ringfence-flow-server");
    }
    let off = rendered(|values| {
        values["flows"]["enabled"] = json!(true);
        values["flows"]["server"]["enabled"] = json!(true);
    });
    assert!(off.iter().all(|document| !document.to_string().contains("4245")), "closed by default");
}

#[test]
fn values_reach_its_aggregator() {
    let from_prometheus = json!({"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]});
    let to_the_api = json!({"ports": [{"port": 8443}]});
    let nodes = json!([{"ipBlock": {"cidr": "198.51.100.0/24"}}]);
    let all = rendered(|values| {
        values["flows"]["enabled"] = json!(true);
        let server = &mut values["flows"]["server"];
        server["enabled"] = json!(true);
        server["args"] = json!(["serve", "--memory-mib=512"]);
        server["nodes"] = nodes.clone();
        server["tls"]["generate"] = json!(false);
        server["networkPolicy"] = json!({"ingress": [from_prometheus], "egress": [to_the_api]});
        server["resources"]["limits"] = json!({"memory": "1Gi"});
        server["tolerations"] = json!([{"operator": "Exists"}]);
    });
    assert_eq!(all.iter().filter(|document| document["kind"] == "Deployment").count(), 1, "no keeper of certificates");
    let pod = at(of_kind(&all, "Deployment"), "spec.template.spec");
    let container = at(pod, "containers.0");
    assert_eq!(texts(at(container, "args"))[..2], ["serve", "--memory-mib=512"]);
    assert!(texts(at(container, "args")).contains(&"--auth-token-review"));
    assert_eq!(
        (at(container, "resources.limits.memory"), at(pod, "tolerations.0.operator")),
        (&json!("1Gi"), &json!("Exists"))
    );
    let policies: Vec<&Value> = all.iter().filter(|document| document["kind"] == "NetworkPolicy").collect();
    let [own, of_nodes] = policies[..] else { panic!("two policies: {policies:#?}") };
    assert_eq!(list(own, "spec.ingress").last(), Some(&from_prometheus));
    assert_eq!(list(own, "spec.egress").last(), Some(&to_the_api));
    assert_eq!(at(of_nodes, "spec.ingress.0.from"), &nodes);
    // Without flow records there is nothing to collect.
    let off = rendered(|values| values["flows"]["server"]["enabled"] = json!(true));
    assert_eq!(off, rendered(|_| {}));
}

#[test]
fn its_provider_is_served_without_tls_on_request() {
    let all = rendered(|values| {
        let context = &mut values["context"];
        context["enabled"] = json!(true);
        context["tls"]["enabled"] = json!(false);
        context["remoteClusters"]["enabled"] = json!(true);
        context["remoteClusters"]["nodes"] = json!([]);
        values["monitoring"]["context"] = json!(true);
    });
    let text = serde_json::to_string(&all).unwrap();
    for tls in ["https", "HTTPS", "tls.crt", "ringfence-context-tls", "serviceAccountToken", "token-review"] {
        assert!(!text.contains(tls), "{tls}: {text}");
    }
    assert!(text.contains("http://ringfence-context.ringfence:9471"));
    let nodes = all.iter().find(|document| document["metadata"]["name"] == "ringfence-context-nodes").unwrap();
    assert_eq!(nodes["spec"]["ingress"], Value::Null, "without a range no source is admitted");
}

#[test]
fn its_certificates_may_come_from_elsewhere() {
    let all = rendered(|values| {
        values["context"]["enabled"] = json!(true);
        values["context"]["tls"]["generate"] = json!(false);
    });
    assert!(all.iter().all(|document| document["metadata"]["name"] != "ringfence-context-tls"));
    let pod = at(of_kind(&all, "Deployment"), "spec.template.spec");
    assert_eq!(at(pod, "volumes.0.secret.secretName"), "ringfence-context-tls");
}

#[test]
fn its_monitoring_is_that_of_the_components() {
    let all = rendered(|values| {
        values["monitoring"] = json!({"enabled": true, "rules": true, "podMonitor": true, "serviceMonitor": true, "context": false, "flows": false});
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
}

#[test]
fn context_monitoring_renders_the_monitor_component() {
    let scraped = |enabled: bool| {
        let all = rendered(|values| {
            values["context"]["enabled"] = json!(enabled);
            values["monitoring"]["context"] = json!(true);
        });
        ["podmonitor", "networkpolicy"].map(|file| {
            let wanted = documents(&read(&format!("deploy/components/context-monitor/{file}.yaml"))).remove(0);
            all.contains(&wanted)
        })
    };
    assert_eq!((scraped(true), scraped(false)), ([true, true], [false, false]));
}

#[test]
fn flow_monitoring_renders_the_monitor_component() {
    let scraped = |enabled: bool| {
        let all = rendered(|values| {
            values["flows"]["enabled"] = json!(true);
            values["flows"]["server"]["enabled"] = json!(enabled);
            values["monitoring"]["flows"] = json!(true);
        });
        ["podmonitor", "networkpolicy"].map(|file| {
            let wanted = documents(&read(&format!("deploy/components/flow-monitor/{file}.yaml"))).remove(0);
            all.contains(&wanted)
        })
    };
    assert_eq!((scraped(true), scraped(false)), ([true, true], [false, false]));
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
fn its_notes_say_how_to_uninstall() {
    let notes = render(&read(&format!("{CHART}/templates/{NOTES}")), &context(&json!({})));
    let page = read("docs/install.md");
    let (_, section) = page.split_once("## Uninstalling").expect("a section");
    for command in ["helm uninstall ringfence --namespace ringfence", "kubectl apply -f deploy/uninstall.yaml"] {
        assert!(notes.contains(&format!("\n  {command}\n")) && section.contains(command), "{command}: {notes}");
    }
}

#[test]
fn it_is_of_this_version() {
    let chart = documents(&read(&format!("{CHART}/Chart.yaml"))).remove(0);
    assert_eq!((&chart["version"], &chart["appVersion"]), (&json!(VERSION), &json!(VERSION)));
}
