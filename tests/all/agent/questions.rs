use policy::Kind;
use serde_json::Value;
use tests::agent_process::{ask_socket, run};
use tests::fake_api::Verb;

use crate::stage::{NODE, Stage, ingress, namespace, pod, set_all};

fn objects() -> [Value; 3] {
    [namespace("shop", ""), pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")]
}

/// What the socket says, with the sentence of an error.
fn asked(stage: &Stage, target: &str) -> (u16, String) {
    let answer = ask_socket(&stage.run_dir(), target);
    let body: Value = serde_json::from_str(&answer.body).unwrap_or_else(|e| panic!("{e}: {}", answer.body));
    (answer.status, body["error"].as_str().unwrap_or("").to_owned())
}

#[test]
fn before_everything_is_listed_nothing_is_explained_and_the_old_rules_are_not_denied() {
    let stage = Stage::new();
    let api = stage.api();
    set_all(&api, &objects());
    api.faults(|f| f.refuse(Kind::Pod, &[Verb::List, Verb::Watch], 403));
    let mut agent = stage.start(stage.agent_on_api(&api));
    agent.until("only pods are missing", |agent| {
        let answer = agent.try_get("/readyz").ok()?;
        answer.body.starts_with("waiting for the first list of: Pod\n").then_some(())
    });
    let questions = [
        "/v1/explain?source=192.0.2.1&destination=10.1.0.2&traffic=80",
        "/v1/audit",
        "/v1/audit/suggestion?namespace=shop",
    ];
    for question in questions {
        assert_eq!(asked(&stage, question), (503, "not listed yet: Pod".into()), "{question}");
    }
    let verb = run(["explain", "192.0.2.1", "10.1.0.2", "80", "--run-dir", stage.run_dir().to_str().unwrap()]);
    assert_eq!((verb.code, verb.stdout.as_str()), (Some(2), ""));
    assert!(verb.stderr.contains("not listed yet: Pod"), "{}", verb.stderr);
    api.faults(|f| f.refusals.clear());
    agent.until_ready();
    for question in questions {
        assert_eq!(asked(&stage, question), (200, String::new()), "{question}");
    }
}

#[test]
fn an_explanation_says_when_the_rules_are_not_in_force() {
    let stage = Stage::new();
    let mut objects = objects();
    objects[1]["spec"]["nodeName"] = "node-b".into();
    stage.write_objects("objects.json", &objects);
    let mut agent = stage.start(stage.agent_on_manifests());
    agent.until_logged(&["no pod is bound to node"]);
    let question = "/v1/explain?source=192.0.2.1&destination=10.1.0.2&traffic=80";
    let answer: Value = serde_json::from_str(&ask_socket(&stage.run_dir(), question).body).unwrap();
    let note = answer[0]["notes"][0].as_str().unwrap();
    assert!(note.starts_with("the rules for this are not in force: no pod is bound to node"), "{answer}");
    let run_dir = stage.run_dir();
    let verb = run(["explain", "192.0.2.1", "10.1.0.2", "80", "--run-dir", run_dir.to_str().unwrap()]);
    assert!(verb.stdout.contains("note: the rules for this are not in force"), "{}", verb.stdout);
}

#[test]
fn what_is_misspelt_or_not_there_is_refused_and_never_passed_over() {
    let stage = Stage::new();
    stage.write_objects("objects.json", &objects());
    let _agent = stage.start_on_manifests();
    for (question, code, sentence) in [
        ("/v1/drops?verdict=nope", 422, "the parameter verdict: 'nope' is neither denied nor would-deny"),
        ("/v1/drops?follow=1", 422, "the parameter follow: '1' is neither true nor false"),
        ("/v1/drops?pod=a/b/c", 422, "the parameter pod: 'a/b/c' is neither name nor namespace/name"),
        ("/v1/drops?pod=a&pod=b", 422, "the parameter pod is given more than once"),
        ("/v1/drops?nampespace=shop", 422, "there is no parameter 'nampespace' here"),
        ("/v1/status?verbose=true", 422, "there is no parameter 'verbose' here; it takes none"),
        ("/v1/audit/suggestion", 400, "the parameter namespace is missing"),
        ("/v1/audit/suggestion?namespace=nowhere", 404, "namespace nowhere is not known"),
        ("/v1/audit/suggestion?namespace=shop&pod=gone", 404, "pod shop/gone is not known"),
        ("/v1/audit/suggestion?namespace=shop&workload=gone", 404, "workload shop/gone is not known"),
        ("/v1/audit/suggestion?namespace=shop&workload=db", 200, ""),
    ] {
        let (status, error) = asked(&stage, question);
        assert!(status == code && error.starts_with(sentence), "{question}: {status} {error}");
    }
}
