use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kit::agent_process::ended;
use kit::openmetrics::{self, Family};
use kit::provider_process::{Provider, aggregator, free_port};
use serde_json::{Value, json};

use super::chart::rendered;
use super::logql::{self, Query};
use super::manifests::{of_kind, unknown_to};
use super::{at, documents, list, read};

const FOLDER: &str = "deploy/components/flow-trail";

fn file(name: &str) -> Value {
    documents(&read(&format!("{FOLDER}/{name}.yaml"))).remove(0)
}

/// Metrics of an aggregator with an export.
pub(super) fn figures() -> Vec<Family> {
    let mut aggregator = Provider::start_aggregator(free_port(), ["--export-file", "/dev/null"]);
    aggregator.until_ready();
    openmetrics::parse(&aggregator.get("/metrics").body).unwrap()
}

#[test]
fn objects_of_the_trail_are_known_to_kubernetes() {
    let unknown =
        [unknown_to::<PersistentVolumeClaim>(&file("spool")), unknown_to::<NetworkPolicy>(&file("networkpolicy"))];
    assert!(unknown.iter().all(Vec::is_empty), "{unknown:#?}");
    let mut patched = documents(&read("deploy/components/flow-server/deployment.yaml")).remove(0);
    patched["spec"]["template"]["spec"]["securityContext"]["fsGroup"] = json!(65_532);
    assert!(unknown_to::<Deployment>(&patched).is_empty());
    let labels = at(&patched, "spec.template.metadata.labels");
    assert_eq!(at(&file("networkpolicy"), "spec.podSelector.matchLabels"), labels);
    let volume = at(&file("trail"), "spec.template.spec.volumes.0.persistentVolumeClaim.claimName").clone();
    assert_eq!(&volume, at(&file("spool"), "metadata.name"));
}

#[test]
fn variables_of_the_trail_exist() {
    let help = ended(aggregator().args(["serve", "--help"])).stdout;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let trail = file("trail");
    let container = at(&trail, "spec.template.spec.containers.0");
    for variable in list(container, "env") {
        let name = at(variable, "name").as_str().unwrap();
        assert!(help.contains(&format!("[env: {name}=")), "{name}:\n{help}");
    }
    let folder =
        list(container, "env").iter().find(|variable| variable["name"] == "RINGFENCE_FLOWS_SPOOL_DIR").unwrap();
    assert_eq!(at(folder, "value"), at(container, "volumeMounts.0.mountPath"));
}

/// The flags in the page's table match the program's.
#[test]
fn flags_of_exports_are_documented() {
    let help = ended(aggregator().args(["serve", "--help"])).stdout;
    let exports = help.split_once("Exports:").expect("the heading").1;
    let page = read("docs/flows-trail.md");
    let is_flag = |word: &&str| word.starts_with("--") && word.len() > 2;
    let flags: BTreeSet<&str> = exports
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--").map(|_| line.trim_start()))
        .filter_map(|line| line.split_whitespace().find(is_flag))
        .collect();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `--"));
    let documented: BTreeSet<String> =
        rows.map(|row| format!("--{}", row.split([' ', '`']).next().unwrap_or_default())).collect();
    assert_eq!(flags.iter().map(|flag| (*flag).to_owned()).collect::<BTreeSet<_>>(), documented);
    assert!(flags.len() > 10, "{flags:?}");
}

#[test]
fn trail_of_chart_is_that_of_component() {
    let with_trail = |is_enabled: bool| {
        rendered(|values| {
            values["flows"]["enabled"] = json!(true);
            let server = &mut values["flows"]["server"];
            server["enabled"] = json!(true);
            server["trail"]["enabled"] = json!(is_enabled);
            server["tls"]["generate"] = json!(false);
        })
    };
    let (without, all) = (with_trail(false), with_trail(true));
    let added: Vec<&Value> = all.iter().filter(|object| !without.contains(object)).collect();
    assert_eq!(added.len(), 3, "the Deployment, the volume, the policy");
    for wanted in [file("spool"), file("networkpolicy")] {
        assert!(added.contains(&&wanted), "{wanted:#}");
    }
    let mut patched = of_kind(&without, "Deployment").clone();
    let trail = file("trail");
    let patch = at(&trail, "spec.template.spec");
    let pod = &mut patched["spec"]["template"]["spec"];
    pod["securityContext"]["fsGroup"] = at(patch, "securityContext.fsGroup").clone();
    let more = |list: &mut Value, more: &Value| list.as_array_mut().unwrap().extend(more.as_array().unwrap().clone());
    more(&mut pod["volumes"], at(patch, "volumes"));
    for field in ["env", "volumeMounts"] {
        more(&mut pod["containers"][0][field], at(patch, &format!("containers.0.{field}")));
    }
    assert_eq!(of_kind(&all, "Deployment"), &patched);
}

/// Receivers beside Loki, or without it: variables that exist, files of the Secret, and ports of the policy.
#[test]
fn further_receivers_of_chart_are_reached() {
    let with_trail = |change: &dyn Fn(&mut Value)| {
        rendered(|values| {
            values["flows"]["enabled"] = json!(true);
            let server = &mut values["flows"]["server"];
            server["enabled"] = json!(true);
            server["trail"]["enabled"] = json!(true);
            change(&mut server["trail"]);
        })
    };
    let without = with_trail(&|_| {});
    let all = with_trail(&|trail| {
        trail["lokiUrl"] = json!("");
        trail["otlpMetricsEndpoint"] = json!("http://otel-collector.monitoring:4318");
        trail["goldmane"]["url"] = json!("https://goldmane.calico-system:7443");
    });
    let deployment = |objects: &[Value]| -> Value {
        let is_first =
            |object: &&Value| object["kind"] == "Deployment" && at(object, "metadata.name") == "ringfence-flow-server";
        objects.iter().find(is_first).expect("the aggregator").clone()
    };
    let (before, after) = (deployment(&without), deployment(&all));
    assert!(unknown_to::<Deployment>(&after).is_empty());
    let container = at(&after, "spec.template.spec.containers.0");
    let known = list(at(&before, "spec.template.spec.containers.0"), "env").to_vec();
    let added: Vec<&Value> = list(container, "env").iter().filter(|variable| !known.contains(variable)).collect();
    let names: Vec<&str> = added.iter().map(|variable| at(variable, "name").as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "RINGFENCE_FLOWS_OTLP_METRICS_ENDPOINT",
            "RINGFENCE_FLOWS_GOLDMANE_PUSH",
            "RINGFENCE_FLOWS_GOLDMANE_PUSH_CA_FILE",
            "RINGFENCE_FLOWS_GOLDMANE_PUSH_CERT",
            "RINGFENCE_FLOWS_GOLDMANE_PUSH_KEY",
        ]
    );
    assert!(!container.to_string().contains("LOKI"), "{container:#}");
    let help = ended(aggregator().args(["serve", "--help"])).stdout;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let mounts = list(container, "volumeMounts");
    let mount = mounts.iter().find(|mount| mount["name"] == "goldmane").expect("a volume with the certificate");
    for variable in added {
        let (name, value) = (at(variable, "name").as_str().unwrap(), at(variable, "value").as_str().unwrap());
        assert!(help.contains(&format!("[env: {name}=")), "{name}");
        let is_file = value.starts_with('/');
        assert!(!is_file || value.starts_with(at(mount, "mountPath").as_str().unwrap()), "{value}");
    }
    let volumes = list(&after, "spec.template.spec.volumes");
    let secret = volumes.iter().find(|volume| volume["name"] == "goldmane").expect("the volume");
    assert_eq!(at(secret, "secret.secretName"), "ringfence-goldmane-client");
    let is_policy = |object: &&Value| at(object, "metadata.name") == "ringfence-flow-server-trail";
    let policy = all.iter().find(is_policy).expect("the policy of the trail");
    let ports: BTreeSet<u64> =
        list(policy, "spec.egress.0.ports").iter().map(|port| at(port, "port").as_u64().unwrap()).collect();
    assert!(ports.is_superset(&[4318, 7443].into()), "{ports:?}");
    assert!(unknown_to::<NetworkPolicy>(policy).is_empty());
}

#[test]
fn examples_of_the_page_are_logql() {
    let page = read("docs/flows-trail.md");
    let is_query = |line: &&str| line.starts_with("{service_name=") || line.starts_with("sum by (");
    let examples: Vec<&str> = page.lines().filter(is_query).collect();
    assert!(examples.len() >= 2, "{examples:?}");
    for example in examples {
        logql::parse(example).unwrap_or_else(|error| panic!("{error}: {example}"));
    }
}

/// Names in LogQL are stream labels, structured metadata, variables or keywords.
#[test]
fn dashboard_asks_for_labels_that_exist() {
    const LABELS: [&str; 5] = ["service_name", "cluster", "namespace", "direction", "verdict"];
    let page = read("docs/flows-trail.md");
    let dashboard: Value = serde_json::from_str(&read("deploy/monitoring/grafana-dashboard-flows.json")).unwrap();
    let variables: BTreeSet<&str> =
        list(&dashboard, "templating.list").iter().map(|v| at(v, "name").as_str().unwrap()).collect();
    let (mut ids, mut covered) = (BTreeSet::new(), BTreeSet::new());
    let panels = list(&dashboard, "panels");
    for panel in panels {
        assert!(ids.insert(at(panel, "id").as_u64().unwrap()), "{panel}");
        let place = |key: &str| at(panel, &format!("gridPos.{key}")).as_u64().unwrap();
        for x in place("x")..place("x") + place("w") {
            assert!(x < 24, "a row has 24 columns: {panel}");
            for y in place("y")..place("y") + place("h") {
                assert!(covered.insert((x, y)), "two panels are in one place: {panel}");
            }
        }
        assert_eq!(at(panel, "datasource.uid"), "${datasource}");
        for target in list(panel, "targets") {
            let expression = at(target, "expr").as_str().unwrap();
            assert!(expression.contains(r#"{service_name="ringfence-flows", cluster=~"$cluster""#), "{expression}");
            let wanted = if at(panel, "type") == "logs" { Query::Lines } else { Query::Series };
            assert_eq!(logql::parse(expression), Ok(wanted), "{expression}");
            for name in names(expression) {
                let is_metadata = page.contains(&format!("`{name}`"))
                    || ["source", "destination"].iter().any(|side| {
                        name.strip_prefix(side).is_some_and(|rest| page.contains(&format!("`source{rest}`")))
                    });
                assert!(LABELS.contains(&name) || is_metadata, "nothing has '{name}': {expression}");
            }
            for variable in expression.split('$').skip(1) {
                let name: String = variable.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                let is_known = variables.contains(name.as_str()) || ["__range", "__interval"].contains(&name.as_str());
                assert!(is_known, "there is no ${name}: {expression}");
            }
        }
    }
    let titles: Vec<&str> = panels.iter().map(|panel| at(panel, "title").as_str().unwrap()).collect();
    for wanted in ["Who talks to this service", "New edges this week", "Denied packets by policy"] {
        assert!(titles.contains(&wanted), "{titles:?}");
    }
}

/// "This week" are the last seven days, compared with the seven days before: the same selector and grouping, with an offset.
#[test]
fn new_edges_are_those_of_seven_days() {
    let dashboard: Value = serde_json::from_str(&read("deploy/monitoring/grafana-dashboard-flows.json")).unwrap();
    let panel = list(&dashboard, "panels").iter().find(|panel| panel["title"] == "New edges this week").unwrap();
    let [target] = list(panel, "targets") else { panic!("one query: {panel}") };
    assert_eq!(target["queryType"], "instant");
    let expression = at(target, "expr").as_str().unwrap();
    let edges = expression.strip_prefix("topk(100, ").and_then(|rest| rest.strip_suffix(')')).unwrap();
    let (this_week, week_before) = edges.split_once(" unless ").unwrap();
    assert!(this_week.starts_with("sum by (source, destination, port) (count_over_time({"), "{this_week}");
    assert!(this_week.ends_with("} [7d]))"), "{this_week}");
    assert_eq!(this_week.replace("[7d]", "[7d] offset 7d"), week_before);
}

/// Labels that an expression selects, groups by or unwraps.
fn names(expression: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let before = |operator: &'static str| {
        expression.match_indices(operator).map(move |(at, _)| {
            let head = &expression[..at];
            &head[head.rfind(|c| !is_word(c)).map_or(0, |start| start + 1)..]
        })
    };
    let groups = expression.split("by (").skip(1).filter_map(|rest| rest.split_once(')'));
    let grouped = groups.flat_map(|(inner, _)| inner.split(',').map(str::trim));
    let unwrapped = expression.split("unwrap ").skip(1).filter_map(|rest| rest.split(' ').next());
    let selected = ["=\"", "=~\"", "!=\""].into_iter().flat_map(before);
    selected.filter(|name| !name.is_empty()).chain(grouped).chain(unwrapped).collect()
}

#[test]
fn names_are_found_in_an_expression() {
    let expression = r#"sum by (source, port) (sum_over_time({a="x", b=~"y"} | c!="" | unwrap d [1h]))"#;
    assert_eq!(names(expression), ["a", "b", "c", "source", "port", "d"]);
}
