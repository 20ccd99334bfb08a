//! A dozen typical kinds of policies.

use serde_json::{Value, json};

use super::generation::{COMPONENTS, TEAMS};
use super::random::Random;
use super::{Cluster, Policy};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    DenyAll,
    Dns,
    FromApp,
    FromNamespace,
    FromTeam,
    FromProductionGateways,
    Metrics,
    Ingress,
    ToBlock,
    ToDatabases,
    ToInternet,
    ManyPorts,
}

impl Sort {
    pub(super) const EVERYWHERE: [Sort; 2] = [Sort::DenyAll, Sort::Dns];

    pub(super) const OTHERS: [Sort; 10] = [
        Sort::FromApp,
        Sort::FromNamespace,
        Sort::FromTeam,
        Sort::FromProductionGateways,
        Sort::Metrics,
        Sort::Ingress,
        Sort::ToBlock,
        Sort::ToDatabases,
        Sort::ToInternet,
        Sort::ManyPorts,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Sort::DenyAll => "deny-all",
            Sort::Dns => "dns",
            Sort::FromApp => "from-app",
            Sort::FromNamespace => "from-namespace",
            Sort::FromTeam => "from-team",
            Sort::FromProductionGateways => "from-gateways",
            Sort::Metrics => "metrics",
            Sort::Ingress => "ingress",
            Sort::ToBlock => "to-block",
            Sort::ToDatabases => "to-databases",
            Sort::ToInternet => "to-internet",
            Sort::ManyPorts => "many-ports",
        }
    }
}

/// The `spec` of the policy. It depends on the policy's seed and the workloads of its namespace, which do not change.
pub(super) fn spec(cluster: &Cluster, policy: &Policy) -> Value {
    let mut random = Random::seeded(policy.seed);
    let workloads = cluster.workloads_of(policy.namespace);
    let mut app = || match workloads.is_empty() {
        true => "nothing".to_owned(),
        false => workloads[random.below(workloads.len())].app.clone(),
    };
    let (one, other) = (labelled("app", &app()), labelled("app", &app()));
    let number = |random: &mut Random, below: usize| random.below(below);
    match policy.sort {
        Sort::DenyAll => json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
        Sort::Dns => {
            let dns =
                json!({"namespaceSelector": named("kube-system"), "podSelector": labelled("k8s-app", "kube-dns")});
            egress(json!({}), json!([dns]), json!([port("UDP", json!(53)), port("TCP", json!(53))]))
        }
        Sort::FromApp => ingress(one, json!([{"podSelector": other}]), json!([port("TCP", json!("http"))])),
        Sort::FromNamespace => ingress(json!({}), json!([{"podSelector": {}}]), Value::Null),
        Sort::FromTeam => {
            let team = labelled("team", &format!("team-{:02}", number(&mut random, TEAMS)));
            ingress(one, json!([{"namespaceSelector": team}]), json!([port("TCP", json!(8080))]))
        }
        Sort::FromProductionGateways => {
            let from = json!([{"namespaceSelector": labelled("env", "prod"), "podSelector": labelled("component", "gateway")}]);
            ingress(one, from, json!([port("TCP", json!(8080)), port("TCP", json!(8443))]))
        }
        Sort::Metrics => {
            let from = json!([{"namespaceSelector": named("monitoring")}]);
            ingress(json!({}), from, json!([port("TCP", json!("metrics"))]))
        }
        Sort::Ingress => {
            let selected = labelled("component", COMPONENTS[number(&mut random, COMPONENTS.len())]);
            ingress(
                selected,
                json!([{"namespaceSelector": named("ingress-nginx")}]),
                json!([port("TCP", json!("http"))]),
            )
        }
        Sort::ToBlock => {
            let site = 1 + number(&mut random, 200);
            let block = json!({
                "cidr": format!("172.{}.0.0/16", 16 + site % 16),
                "except": [format!("172.{}.{site}.0/24", 16 + site % 16), format!("172.{}.255.0/28", 16 + site % 16)],
            });
            egress(one, json!([{"ipBlock": block}]), json!([port("TCP", json!(5671))]))
        }
        Sort::ToDatabases => {
            let selected = labelled("component", COMPONENTS[number(&mut random, COMPONENTS.len())]);
            egress(
                selected,
                json!([{"namespaceSelector": named("databases")}]),
                json!([port("TCP", json!("postgres"))]),
            )
        }
        Sort::ToInternet => {
            let block = json!({"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]});
            egress(one, json!([{"ipBlock": block}]), json!([port("TCP", json!(443))]))
        }
        Sort::ManyPorts => {
            let mut ports: Vec<Value> = [80, 443, 2379, 3000, 5432, 6379, 9092, 9200, 11211, 15672]
                .map(|number| port("TCP", json!(number)))
                .into();
            ports.push(json!({"protocol": "TCP", "port": 30000, "endPort": 32767}));
            ingress(one, json!([{"podSelector": other}]), ports.into())
        }
    }
}

fn labelled(key: &str, value: &str) -> Value {
    json!({"matchLabels": {key: value}})
}

fn named(namespace: &str) -> Value {
    labelled("kubernetes.io/metadata.name", namespace)
}

fn port(protocol: &str, port: Value) -> Value {
    json!({"protocol": protocol, "port": port})
}

fn ingress(selected: Value, from: Value, ports: Value) -> Value {
    let rule = if ports.is_null() { json!({"from": from}) } else { json!({"from": from, "ports": ports}) };
    json!({"podSelector": selected, "ingress": [rule], "policyTypes": ["Ingress"]})
}

fn egress(selected: Value, to: Value, ports: Value) -> Value {
    json!({"podSelector": selected, "egress": [{"to": to, "ports": ports}], "policyTypes": ["Egress"]})
}
