use kit::agent_process::{ask_socket, run};
use kit::fake_api::Verb;
use policy::Kind;
use serde_json::Value;

use crate::stage::{NODE, Stage, ingress, namespace, pod, set_all};

fn objects() -> [Value; 3] {
    [namespace("shop", ""), pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")]
}

/// The socket's response: status, and the message of an error.
fn asked(stage: &Stage, target: &str) -> (u16, String) {
    let answer = ask_socket(&stage.run_dir(), target);
    let body: Value = serde_json::from_str(&answer.body).unwrap_or_else(|e| panic!("{e}: {}", answer.body));
    (answer.status, body["error"].as_str().unwrap_or("").to_owned())
}

#[test]
fn queries_are_refused_until_initial_sync_completes() {
    let stage = Stage::new();
    let api = stage.api();
    set_all(&api, &objects());
    api.faults(|f| f.refuse(Kind::Pod, &[Verb::List, Verb::Watch], 403));
    let mut agent = stage.start(stage.agent_on_api(&api));
    agent.until("only pods are missing", |agent| {
        let answer = agent.try_get("/readyz").ok()?;
        answer.body.starts_with("initial sync not complete; waiting for the list of: Pod\n").then_some(())
    });
    let questions = [
        "/v1/explain?source=192.0.2.1&destination=10.1.0.2&traffic=80",
        "/v1/audit",
        "/v1/audit/suggestion?namespace=shop",
    ];
    for question in questions {
        assert_eq!(
            asked(&stage, question),
            (503, "initial sync not complete; waiting for the list of: Pod".into()),
            "{question}"
        );
    }
    let verb = run(["explain", "192.0.2.1", "10.1.0.2", "80", "--run-dir", stage.run_dir().to_str().unwrap()]);
    assert_eq!((verb.code, verb.stdout.as_str()), (Some(2), ""));
    assert!(verb.stderr.contains("initial sync not complete; waiting for the list of: Pod"), "{}", verb.stderr);
    api.faults(|f| f.refusals.clear());
    agent.until_ready();
    for question in questions {
        assert_eq!(asked(&stage, question), (200, String::new()), "{question}");
    }
}

#[test]
fn explanation_notes_that_rules_are_not_enforced() {
    let stage = Stage::new();
    let mut objects = objects();
    objects[1]["spec"]["nodeName"] = "node-b".into();
    stage.write_objects("objects.json", &objects);
    let mut agent = stage.start(stage.agent_on_manifests());
    agent.until_logged(&["no pod is bound to node"]);
    let question = "/v1/explain?source=192.0.2.1&destination=10.1.0.2&traffic=80";
    let answer: Value = serde_json::from_str(&ask_socket(&stage.run_dir(), question).body).unwrap();
    let note = answer[0]["notes"][0].as_str().unwrap();
    assert!(note.starts_with("the current rules are not in force yet: no pod is bound to node"), "{answer}");
    let run_dir = stage.run_dir();
    let verb = run(["explain", "192.0.2.1", "10.1.0.2", "80", "--run-dir", run_dir.to_str().unwrap()]);
    assert!(verb.stdout.contains("note: the current rules are not in force yet"), "{}", verb.stdout);
}

#[test]
fn invalid_parameters_and_missing_objects_are_refused() {
    let stage = Stage::new();
    stage.write_objects("objects.json", &objects());
    let _agent = stage.start_on_manifests();
    for (question, code, sentence) in [
        ("/v1/drops?verdict=nope", 422, "verdict: unknown variant `nope`, expected `denied` or `would-deny`"),
        ("/v1/drops?follow=1", 422, "follow: provided string was not `true` or `false`"),
        ("/v1/drops?pod=a/b/c", 422, "pod: invalid pod 'a/b/c': expected NAME or NAMESPACE/NAME"),
        ("/v1/drops?pod=a&pod=b", 422, "duplicate field `pod`"),
        ("/v1/drops?nampespace=shop", 422, "nampespace: unknown field `nampespace`, expected one of `follow`"),
        ("/v1/status?verbose=true", 422, "verbose: unknown field `verbose`, there are no fields"),
        ("/v1/rules?family=ip", 422, "family: invalid family 'ip': expected inet, bridge or netdev"),
        ("/v1/audit/suggestion", 400, "missing field `namespace`"),
        ("/v1/audit/suggestion?namespace=nowhere", 404, "namespace nowhere not found"),
        ("/v1/audit/suggestion?namespace=shop&pod=gone", 404, "pod shop/gone not found"),
        ("/v1/audit/suggestion?namespace=shop&workload=gone", 404, "workload shop/gone not found"),
        ("/v1/audit/suggestion?namespace=shop&workload=db", 200, ""),
    ] {
        let (status, error) = asked(&stage, question);
        assert!(status == code && error.contains(sentence), "{question}: {status} {error}");
    }
}
