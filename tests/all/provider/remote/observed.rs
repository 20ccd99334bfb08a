//! The aggregator follows remote sets, and judges observed edges with pods of other clusters.

use flow::{EndSample, Endpoint, EndpointKind, FlowKey, FlowRecord};
use jiff::{SignedDuration, Timestamp};
use kit::fake_agent::{Agent, plain, record};
use std::sync::Arc;

use super::declared::stage_with_database;
use super::*;

/// A record of 90 s ago, whose window is final: a connection from a pod of a remote set to `data/db`.
fn from_remote(cluster: &str, name: &str, address: &str) -> FlowRecord {
    let FlowRecord { key, .. } = record("n1", "db", 1);
    let key = FlowKey {
        source: Endpoint {
            kind: EndpointKind::RemoteCluster,
            name: Some(name.into()),
            cluster: Some(cluster.into()),
            ..key.source.clone()
        },
        destination: Endpoint { namespace: Some("data".into()), ..key.destination.clone() },
        ..(*key).clone()
    };
    let now = Timestamp::now().as_second();
    let window = Timestamp::from_second(now - now % 15).unwrap() - SignedDuration::from_secs(90);
    let sample = EndSample { addresses: [address.parse().unwrap()].into(), ..EndSample::default() };
    FlowRecord {
        window,
        first: window,
        last: window,
        key: Arc::new(key),
        sources: Arc::new(sample),
        ..record("n1", "db", 1)
    }
}

/// The declaration of each observed edge, by the name of its source.
fn declarations(aggregator: &Provider) -> BTreeMap<String, String> {
    let edges = aggregator.try_json("/v1/edges").unwrap()["edges"].as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    edges.iter().map(|edge| (text(&edge["source"]["name"]), text(&edge["declaration"]))).collect()
}

fn expected<const N: usize>(declarations: [(&str, &str); N]) -> BTreeMap<String, String> {
    declarations.map(|(name, declaration)| (name.to_owned(), declaration.to_owned())).into()
}

#[test]
fn aggregator_judges_edges_with_remote_pods() {
    let stage = stage_with_database();
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    stage.set(offering("jobs-1", "jobs", &["10.4.1.3"]));
    let mut provider = stage.start();
    provider.until_ready();
    let (kubeconfig, url) = (stage.home.kubeconfig().display().to_string(), provider.url());
    let arguments = ["--edges", "on", "--watch-policies", "on", "--kubeconfig", &kubeconfig, "--context-url", &url];
    let mut aggregator = Provider::start_aggregator(free_port(), arguments);
    aggregator.until_ready();
    let agent = Agent::start("n1", 1, plain(aggregator.address()));
    agent.push([
        from_remote("east", "web", "10.4.1.1"),
        from_remote("east", "jobs", "10.4.1.3"),
        from_remote("west", "other", "10.5.1.1"),
    ]);
    agent.until_acknowledged();
    let until = |aggregator: &mut Provider, wanted: BTreeMap<String, String>| {
        aggregator.until_within(std::time::Duration::from_secs(60), &format!("edges are {wanted:?}"), |aggregator| {
            (declarations(aggregator) == wanted).then_some(())
        });
    };
    until(&mut aggregator, expected([("web", "declared"), ("jobs", "undeclared"), ("other", "unknown")]));
    let violations = aggregator.try_json("/v1/edges?violation=yes").unwrap();
    assert_eq!(violations["edges"].as_array().unwrap().len(), 1, "{violations:#}");
    let explained = aggregator.try_json("/v1/explain?source=east/shop/web&destination=data/db&traffic=5432").unwrap();
    assert!(explained["text"].as_str().unwrap().contains("ALLOWED"), "{explained:#}");

    // A set that a policy selects and of which no flow was seen.
    stage.set(offering("backup-1", "backup", &["10.4.1.9"]));
    let from_east = json!({
        "namespaceSelector": {"matchLabels": {"semaphore.uw.systems/cluster": "east"}},
        "podSelector": {"matchLabels": {"semaphore.uw.systems/name": "backup"}},
    });
    stage.home.set(
        Kind::NetworkPolicy,
        json!({
            "metadata": {"namespace": "data", "name": "backups"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [from_east], "ports": [{"port": 22}]}]},
        }),
    );
    let unseen = aggregator.until("the declared edge of the other set is listed", |aggregator| {
        let unseen = aggregator.try_json("/v1/edges/unseen").unwrap()["edges"].as_array().unwrap().clone();
        (!unseen.is_empty()).then_some(unseen)
    });
    let [only] = &*unseen else { panic!("{unseen:#?}") };
    assert_eq!((&only["source"], &only["destination"]), (&json!("east/shop/backup"), &json!("data/db")), "{only:#}");
    assert_eq!(only["sourceEnd"]["cluster"], "east", "{only:#}");
    assert_eq!(only["rules"], json!(["ingress: data/backups spec.ingress[0]"]), "{only:#}");

    // Nothing is known of a set without pods, nor changed while no provider answers.
    stage.remove("jobs-1");
    until(&mut aggregator, expected([("web", "declared"), ("jobs", "unknown"), ("other", "unknown")]));
    provider.kill();
    let problems = |aggregator: &Provider| aggregator.try_json("/v1/flows/coverage").unwrap()["problems"].to_string();
    aggregator.until("the provider is lost", |aggregator| {
        problems(aggregator).contains("the last known sets are used").then_some(())
    });
    assert_eq!(declarations(&aggregator)["web"], "declared");
    let mut provider = stage.start();
    provider.until_ready();
    aggregator.until_within(std::time::Duration::from_secs(60), "the provider answers again", |aggregator| {
        (!problems(aggregator).contains("other clusters")).then_some(())
    });
    assert_eq!(declarations(&aggregator)["web"], "declared");
}
