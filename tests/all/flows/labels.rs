//! Labels of pods in records: those of `--flow-label`, and the service of `--flow-service-namespace`.

use serde_json::{Value, json};

use super::{PORT, exchange, records, serve, start_command, sum};
use crate::drops::{DB, WEB};
use crate::stage::{NODE, Stage, namespace, pod};

/// `web` of namespace shop and `db` of namespace data, both with a service identity by label.
fn stage() -> Stage {
    let stage = Stage::with_pods(&[("shop/web", &WEB), ("data/db", &DB)]);
    let web = pod("web", NODE, "app=web,tier=front,version=v1,service-identity=checkout", &WEB);
    let mut db = pod("db", NODE, "app=db,tier=back,service-identity=ledger", &DB);
    db["metadata"]["namespace"] = json!("data");
    stage.write_objects("pods.json", &[namespace("shop", ""), namespace("data", ""), web, db]);
    stage
}

/// The record of a connection from an agent with these flags and variables.
fn record(stage: &Stage, flags: &[&str], variables: &[(&str, &str)]) -> Value {
    let mut command = stage.agent_on_manifests();
    command.args(flags).envs(variables.iter().copied());
    let mut agent = start_command(stage, command);
    exchange(stage, WEB[0], DB[0], PORT, 10);
    agent.until("the connection", |_| {
        let mut found = records(stage, "?workload=shop/web&peer=data/db");
        (sum(&found, "/connections/started") > 0).then(|| found.remove(0))
    })
}

fn services(record: &Value) -> [&Value; 2] {
    ["source", "destination"].map(|end| &record[end]["service"])
}

fn services_of_identities(record: &Value) -> [&Value; 2] {
    ["sources", "destinations"].map(|end| &record[end]["identities"][0]["service"])
}

#[test]
fn samples_list_the_chosen_labels() {
    let stage = stage();
    serve(&stage, DB[0], PORT);
    let of = |flags: &[&str], variables: &[(&str, &str)]| {
        let record = record(&stage, flags, variables);
        ["sources", "destinations"].map(|end| record[end]["labels"].clone())
    };
    assert_eq!(of(&[], &[]), [json!(["app=web", "version=v1"]), json!(["app=db"])]);
    let chosen = [json!(["app=web", "tier=front"]), json!(["app=db", "tier=back"])];
    assert_eq!(of(&["--flow-label", "tier", "--flow-label", "app,absent"], &[]), chosen);
    assert_eq!(of(&[], &[("RINGFENCE_FLOW_LABEL", "app,tier")]), chosen);
}

#[test]
fn services_have_labels_in_chosen_namespaces_only() {
    let stage = stage();
    serve(&stage, DB[0], PORT);
    for (flags, expected) in [
        (vec![], ["shop", "data"]),
        (vec!["--flow-service-namespace", "shop"], ["shop/checkout", "data"]),
        (vec!["--flow-service-namespace", "data,absent"], ["shop", "data/ledger"]),
        (vec!["--flow-service-namespace", "*"], ["shop/checkout", "data/ledger"]),
    ] {
        let record = record(&stage, &flags, &[]);
        assert_eq!(services(&record), expected, "{flags:?}: {record:#}");
        assert_eq!(services_of_identities(&record), expected, "{flags:?}: {record:#}");
        assert_eq!(record["source"]["name"], "web", "the workload is the same: {record:#}");
    }
}
