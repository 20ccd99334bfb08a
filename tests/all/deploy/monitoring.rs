use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::networking::v1::NetworkPolicy;
use kit::openmetrics::{self, Family, Kind};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::manifests::unknown_to;
use super::{at, documents, list, read, texts};
use crate::drops::{DB, OTHER, OUTSIDE, WEB, send_datagrams, stage};

/// Labels that Prometheus and the monitors add to each series.
const BY_SCRAPING: [&str; 2] = ["instance", "job"];

fn figures() -> Vec<Family> {
    let (stage, state) = (stage(), TempDir::new().unwrap());
    // The agent has stored the state of another cluster.
    let known = json!({"epoch": 0, "seq": 0, "clusters": [{"cluster": "east", "reachable": false}], "sets": []});
    std::fs::write(state.path().join("remote-sets.json"), known.to_string()).unwrap();
    let rule = json!({"action": "Deny", "from": [{"namespaces": {}}]});
    let subject = json!({"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "other"}}}});
    let closed = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "closed"},
        "spec": {"tier": "Admin", "priority": 1, "subject": subject, "ingress": [rule]},
    });
    stage.write_objects("cluster.json", &[closed]);
    let mut command = stage.agent_on_manifests();
    command.args(["--flows", "on"]);
    command.args(["--context-url", "http://127.0.0.1:9", "--state-dir"]).arg(state.path());
    let mut agent = stage.start(command);
    agent.until_ready();
    // Drop events create the series of a service identity and of a rule.
    send_datagrams(&stage, OUTSIDE[0], DB[0], 53, 1);
    send_datagrams(&stage, WEB[0], OTHER[0], 53, 1);
    let text = agent.until("the event is counted", |agent| {
        let text = agent.get("/metrics").body;
        let series = ["ringfence_drop_event_packets_total{", "ringfence_drop_event_rule_packets_total{"];
        series.iter().all(|series| text.contains(series)).then_some(text)
    });
    openmetrics::parse(&text).unwrap()
}

fn labels(family: &Family) -> BTreeSet<&str> {
    family.samples.iter().flat_map(|sample| sample.labels.keys()).map(String::as_str).collect()
}

/// The queryable series, by name, with their labels.
fn series(figures: &[Family]) -> BTreeMap<&str, BTreeSet<&str>> {
    figures.iter().flat_map(|family| family.samples.iter().map(|s| (s.name.as_str(), labels(family)))).collect()
}

/// The names of metrics in an expression of PromQL, each with the labels of its selector.
fn selectors(expression: &str) -> Vec<(&str, Vec<&str>)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (start, _) in expression.match_indices("ringfence_").chain(expression.match_indices("process_")) {
        if expression[..start].ends_with(is_word) {
            continue;
        }
        let rest = &expression[start..];
        let (name, rest) = rest.split_at(rest.find(|c| !is_word(c)).unwrap_or(rest.len()));
        let selector = rest.strip_prefix('{').and_then(|inner| inner.split_once('}')).map_or("", |(inner, _)| inner);
        let labels = selector.split(',').filter_map(|part| part.split(['=', '!']).next()).filter(|l| !l.is_empty());
        found.push((name, labels.collect()));
    }
    found
}

/// The labels by which an expression groups or joins.
fn grouped_by(expression: &str) -> Vec<&str> {
    let groups = ["by (", "without (", "on ("].into_iter().flat_map(|word| expression.split(word).skip(1));
    let inner = groups.filter_map(|rest| rest.split_once(')')).map(|(inner, _)| inner);
    inner.flat_map(|inner| inner.split(',').map(str::trim)).collect()
}

#[track_caller]
fn assert_answerable(expression: &str, series: &BTreeMap<&str, BTreeSet<&str>>) {
    let selectors = selectors(expression);
    assert!(!selectors.is_empty(), "{expression}");
    let mut known: BTreeSet<&str> = BY_SCRAPING.into();
    for (name, labels) in selectors {
        let has = series.get(name).unwrap_or_else(|| panic!("there is no {name}: {expression}"));
        known.extend(has);
        for label in labels {
            assert!(has.contains(label) || BY_SCRAPING.contains(&label), "{name} has no {label}: {expression}");
        }
    }
    for label in grouped_by(expression) {
        assert!(known.contains(label), "nothing has {label}: {expression}");
    }
    let count = |c: char| expression.matches(c).count();
    assert!(count('(') == count(')') && count('{') == count('}') && count('"') % 2 == 0, "{expression}");
}

#[test]
fn selectors_are_found_in_an_expression() {
    let expression = r#"sum by (x, le) (rate(ringfence_a{k="v",l!~"w"}[5m])) and on (i) process_b > 1"#;
    assert_eq!(selectors(expression), [("ringfence_a", vec!["k", "l"]), ("process_b", vec![])]);
    assert_eq!(grouped_by(expression), ["x", "le", "i"]);
}

/// The metrics of agent, provider and aggregator.
fn all_figures() -> Vec<Family> {
    [figures(), super::context::figures(), super::flow_trail::figures()].concat()
}

/// The alerts of all groups.
fn alerts(rules: &Value) -> Vec<&Value> {
    list(rules, "groups").iter().flat_map(|group| list(group, "rules")).collect()
}

#[test]
fn alerts_are_about_figures_that_exist() {
    let figures = all_figures();
    let series = series(&figures);
    let rules = documents(&read("deploy/monitoring/alerts.yaml")).remove(0);
    let alerts = alerts(&rules);
    assert!(!alerts.is_empty());
    for alert in &alerts {
        assert_answerable(at(alert, "expr").as_str().unwrap(), &series);
        for text in ["labels.severity", "annotations.summary", "annotations.description"] {
            at(alert, text);
        }
    }
    let names: BTreeSet<&str> = alerts.iter().map(|alert| at(alert, "alert").as_str().unwrap()).collect();
    assert_eq!(names.len(), alerts.len());
}

/// The job label of ServiceMonitor targets is the Service's name, that of PodMonitor targets its namespace and name.
#[test]
fn gone_alerts_select_the_jobs_of_monitors() {
    let rules = documents(&read("deploy/monitoring/alerts.yaml")).remove(0);
    for (name, monitor) in [
        ("RingfenceAgentGone", "pod-monitor/podmonitor"),
        ("RingfenceAgentGone", "service-monitor/service"),
        ("RingfenceContextGone", "context-monitor/podmonitor"),
        ("RingfenceFlowServerGone", "flow-monitor/podmonitor"),
    ] {
        let alert = *alerts(&rules).iter().find(|alert| at(alert, "alert") == name).unwrap();
        let monitor = documents(&read(&format!("deploy/components/{monitor}.yaml"))).remove(0);
        let job = format!(r#"up{{job=~"(.+/)?{}"}}"#, at(&monitor, "metadata.name").as_str().unwrap());
        assert!(at(alert, "expr").as_str().unwrap().contains(&job), "{alert}");
    }
}

/// Prometheus reaches the port of the PodMonitor despite the policy that isolates its target.
#[test]
fn targets_admit_prometheus_where_they_are_scraped() {
    for (monitor, target) in [("context-monitor", "context"), ("flow-monitor", "flow-server")] {
        let file = |path: String| documents(&read(&format!("deploy/components/{path}.yaml"))).remove(0);
        let (podmonitor, policy) = (file(format!("{monitor}/podmonitor")), file(format!("{monitor}/networkpolicy")));
        let deployment = file(format!("{target}/deployment"));
        assert!(unknown_to::<NetworkPolicy>(&policy).is_empty(), "{policy}");
        let labels = at(&deployment, "spec.template.metadata.labels");
        for selector in [at(&podmonitor, "spec.selector.matchLabels"), at(&policy, "spec.podSelector.matchLabels")] {
            assert_eq!(selector, labels);
        }
        let container = at(&deployment, "spec.template.spec.containers.0");
        let port = at(container, "ports.0");
        let endpoint = at(&podmonitor, "spec.podMetricsEndpoints.0");
        assert_eq!(at(endpoint, "port"), at(port, "name"));
        assert_eq!(at(&policy, "spec.ingress.0.ports.0.port"), at(port, "containerPort"));
        let certificate = at(endpoint, "tlsConfig.keySecret.name").as_str().unwrap();
        assert_eq!(at(endpoint, "tlsConfig.cert.secret.name"), certificate);
        assert!(texts(at(container, "args")).contains(&&*format!("--allow=metrics=user:{certificate}")));
    }
}

#[test]
fn the_operators_alerts_are_the_plain_ones() {
    let plain = documents(&read("deploy/monitoring/alerts.yaml")).remove(0);
    let operators = documents(&read("deploy/components/monitoring/prometheusrule.yaml")).remove(0);
    assert_eq!(at(&operators, "spec.groups"), at(&plain, "groups"));
}

#[test]
fn dashboards_show_figures_that_exist() {
    let figures = all_figures();
    let series = series(&figures);
    for file in ["grafana-dashboard.json", "grafana-dashboard-context.json"] {
        assert_shows_figures(file, &series);
    }
}

fn assert_shows_figures(file: &str, series: &BTreeMap<&str, BTreeSet<&str>>) {
    let dashboard: Value = serde_json::from_str(&read(&format!("deploy/monitoring/{file}"))).unwrap();
    let mut variables: BTreeSet<String> =
        list(&dashboard, "templating.list").iter().map(|v| at(v, "name").as_str().unwrap().to_owned()).collect();
    variables.insert("__rate_interval".into());
    let panels = list(&dashboard, "panels");
    let (mut ids, mut covered) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        assert!(ids.insert(at(panel, "id").as_u64().unwrap()), "{panel}");
        let place = |key: &str| at(panel, &format!("gridPos.{key}")).as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "a row has 24 columns: {panel}");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(covered.insert((x, y)), "two panels are in one place: {panel}");
            }
        }
        assert_eq!(at(panel, "datasource.uid"), "${datasource}");
        let targets = list(panel, "targets");
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            let expression = at(target, "expr").as_str().unwrap();
            assert_answerable(expression, series);
            for variable in expression.split('$').skip(1) {
                let name: String = variable.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                assert!(variables.contains(&name), "there is no ${name}: {expression}");
            }
        }
    }
}

/// Rows of a page's table: the type, the labels, the unit.
fn documented(page: &str, prefix: &str) -> BTreeMap<String, (String, BTreeSet<String>, String)> {
    let text = read(page);
    let rows = text.lines().filter(|line| line.starts_with(&format!("| `{prefix}"))).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, unit, meaning] = cells[..] else { panic!("five columns: {line}") };
        assert!(!meaning.is_empty(), "{line}");
        let labels = labels.split(',').map(|label| label.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        (name.trim_matches('`').to_owned(), (kind.to_owned(), labels, unit.to_owned()))
    });
    rows.collect()
}

/// Every metric is a row of the page, and every row with the prefix is a metric.
#[track_caller]
pub(crate) fn assert_documented(figures: &[Family], page: &str, prefix: &str) {
    let documented = documented(page, prefix);
    let names: BTreeSet<&str> = figures.iter().map(|family| family.name.as_str()).collect();
    assert_eq!(documented.keys().map(String::as_str).collect::<BTreeSet<_>>(), names);
    for family in figures {
        let (kind, documented, unit) = &documented[&family.name];
        assert_eq!(kind, family.kind.as_str(), "{}", family.name);
        let mut labels = labels(family);
        if family.kind == Kind::Histogram {
            labels.remove("le");
        }
        assert_eq!(documented.iter().map(String::as_str).collect::<BTreeSet<_>>(), labels, "{}", family.name);
        assert!(family.unit.as_ref().is_none_or(|u| u == unit), "{} is in {:?}", family.name, family.unit);
    }
}

#[test]
fn every_figure_is_documented_and_no_other() {
    assert_documented(&figures(), "docs/metrics.md", "");
}
