use std::collections::BTreeSet;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use kit::agent_process::{AgentProcess, ProgramExit, WITHIN, ask_socket, ended, ringfence, run};
use kit::openmetrics;
use serde_json::{Value, json};

use crate::stage::{NODE, Stage, ingress, namespace, pod, set_all};

fn stage() -> Stage {
    let stage = Stage::new();
    let objects = [
        pod("db", NODE, "app=db", &["10.1.0.2", "fd00:1::2"]),
        pod("web", "node-b", "app=web", &["10.2.0.1", "fd00:2::1"]),
        ingress("db", "app=db", "app=web"),
    ];
    stage.write_objects("all.json", &objects);
    stage
}

#[test]
fn the_port_tells_health_readiness_and_metrics() {
    let stage = stage();
    let mut agent = stage.start_on_manifests();
    assert_eq!((agent.get("/healthz").status, agent.get("/healthz").body.as_str()), (200, "ok\n"));
    assert_eq!((agent.get("/readyz").status, agent.get("/readyz").body.as_str()), (200, "ok\n"));
    let metrics = agent.get("/metrics");
    assert!(metrics.head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(metrics.body.ends_with("# EOF\n"), "{}", metrics.body);
    openmetrics::parse(&metrics.body).unwrap_or_else(|e| panic!("{e}\n{}", metrics.body));
    for (name, value) in [
        ("ringfence_ready", 1),
        ("ringfence_commits_total", 1),
        ("ringfence_refused_commits_total", 0),
        ("ringfence_pods_on_node", 1),
        ("ringfence_isolated_pods", 1),
        ("ringfence_audited_pods", 0),
        ("ringfence_programs", 1),
        ("ringfence_commit_duration_seconds_count", 1),
        ("ringfence_policies", 1),
    ] {
        assert_eq!(agent.metric(name), value, "{name}");
    }
    assert_eq!(agent.get("/v1/status").status, 404, "single pods are reported over the socket only");
    agent.until("the age of the last commit grows", |agent| {
        let text = agent.get("/metrics").body;
        let age = text.lines().find_map(|l| l.strip_prefix("ringfence_last_commit_age_seconds ")).expect("an age");
        (age.parse::<f64>().expect("a number") > 0.2).then_some(())
    });
}

/// The series of an exposition: names and labels, without values.
fn series(text: &str) -> BTreeSet<String> {
    let families = openmetrics::parse(text).unwrap();
    let samples = families.iter().flat_map(|family| &family.samples);
    samples.map(|sample| format!("{} {:?}", sample.name, sample.labels)).collect()
}

#[test]
fn labels_are_bounded_whatever_the_cluster_holds() {
    let stage = Stage::new();
    let mut agent = stage.start_on_manifests();
    let empty = series(&agent.get("/metrics").body);
    let pods = (1..60).map(|n| pod(&format!("secret-{n}"), NODE, "app=db", &[&format!("10.1.0.{n}")]));
    let policies = (1..20).map(|n| ingress(&format!("policy-{n}"), "app=db", &format!("app=web-{n}")));
    stage.write_objects("all.json", &pods.chain(policies).collect::<Vec<_>>());
    agent.until("they are isolated", |agent| (agent.metric("ringfence_isolated_pods") == 59).then_some(()));
    let full = agent.get("/metrics").body;
    assert_eq!(series(&full), empty);
    for word in ["secret", "policy-1", "10.1.0", "shop"] {
        assert!(!full.contains(word), "{word}:\n{full}");
    }
}

#[test]
fn enforcement_latency_is_counted_by_event_kind() {
    let stage = Stage::new();
    let api = stage.api();
    set_all(&api, &[namespace("shop", ""), pod("db", NODE, "app=db", &["10.1.0.2"])]);
    let mut agent = stage.start_on_api(&api);
    let count = |agent: &AgentProcess, kind: &str| {
        let families = openmetrics::parse(&agent.get("/metrics").body).unwrap();
        let samples = families.into_iter().flat_map(|family| family.samples);
        let name = "ringfence_enforcement_latency_seconds_count";
        let of_kind = |sample: &openmetrics::Sample| sample.name == name && sample.labels["kind"] == kind;
        samples.into_iter().find(of_kind).map(|sample| sample.value as u64).unwrap()
    };
    let kinds = ["namespace", "pod", "networkpolicy", "attachment"];
    assert_eq!(kinds.map(|kind| count(&agent, kind)), [1, 1, 1, 0], "the first list of each kind is one event");
    let commits = agent.metric("ringfence_commits_total");
    set_all(&api, &[ingress("db", "app=db", "app=web")]);
    agent.until("the policy is enforced", |agent| (count(agent, "networkpolicy") == 2).then_some(()));
    assert_eq!(agent.metric("ringfence_commits_total"), commits + 1);
    // A pod of another node that no policy selects changes nothing in the kernel.
    set_all(&api, &[pod("other", "node-b", "app=other", &["10.2.0.9"])]);
    agent.until("the pod is taken in", |agent| (count(agent, "pod") == 2).then_some(()));
    assert_eq!(agent.metric("ringfence_commits_total"), commits + 1);
    assert_eq!(kinds.map(|kind| count(&agent, kind)), [1, 2, 2, 0]);
}

#[test]
fn status_verb_exit_code_reflects_readiness() {
    let stage = stage();
    let run_dir = stage.run_dir();
    let asked = |more: &[&str]| run([&["status", "--run-dir", run_dir.to_str().unwrap()], more].concat());
    let gone = asked(&[]);
    assert_eq!((gone.code, gone.stdout.as_str()), (Some(2), ""));
    assert!(gone.stderr.starts_with("error: cannot connect to the agent at"), "{}", gone.stderr);

    let mut agent = stage.start_on_manifests();
    let ready = asked(&[]);
    assert_eq!((ready.code, ready.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = ready.stdout.lines().collect();
    assert!(lines.len() <= 24 && lines.iter().all(|line| line.len() <= 80), "{}", ready.stdout);
    assert!(lines[0].starts_with(&format!("{NODE} ")) && lines[0].trim_end().ends_with(" ready"), "{}", ready.stdout);
    assert!(ready.stdout.contains("1 known, 1 isolated, 0 audited, 0 unknown"), "{}", ready.stdout);
    let json = asked(&["--output", "json"]);
    let status: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((json.code, &status["ready"], &status["source"]["kind"]), (Some(0), &json!(true), &json!("folder")));
    assert_eq!(status["lastCommit"]["time"].as_str().map(str::len), Some("2026-05-04T03:02:01.000Z".len()));

    stage.write("broken.yaml", "a: ]\n");
    agent.until_logged(&["broken.yaml:1"]);
    let unready = asked(&[]);
    assert_eq!(unready.code, Some(1));
    assert!(unready.stdout.contains("NOT READY") && unready.stdout.contains("broken.yaml:1"), "{}", unready.stdout);
    assert!(!unready.stdout.contains('\x1b'), "no colours without a terminal");
    let coloured = |variable: &str| {
        let mut command = ringfence();
        ended(command.args(["status", "--run-dir"]).arg(&run_dir).env(variable, "1")).stdout.contains('\x1b')
    };
    assert_eq!((coloured("CLICOLOR_FORCE"), coloured("NO_COLOR")), (true, false));
}

#[test]
fn json_log_has_one_object_per_line() {
    let stage = stage();
    let mut command = stage.agent_on_manifests();
    command.args(["--log-format", "json"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    stage.write("broken.yaml", "a: ]\n");
    agent.until_logged(&["broken.yaml:1"]);
    let (_, log) = agent.stop();
    let messages: Vec<String> = log
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
            assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
            line["message"].as_str().expect("a message").to_owned()
        })
        .collect();
    for message in ["ringfence agent started", "initial sync complete", "committed"] {
        assert!(messages.iter().any(|m| m == message), "{message}: {messages:?}");
    }
}

#[test]
fn every_flag_can_be_an_environment_variable() {
    let stage = stage();
    let mut command = ringfence();
    command.arg("agent").envs([
        ("NODE_NAME", NODE),
        ("RINGFENCE_MANIFESTS", stage.manifests().to_str().unwrap()),
        ("RINGFENCE_RUN_DIR", stage.run_dir().to_str().unwrap()),
        ("RINGFENCE_TABLE", "policies"),
        ("RINGFENCE_CT_MARK_MASK", "0xff000000"),
        ("RINGFENCE_LISTEN", "127.0.0.1:9999"),
        ("RINGFENCE_RESYNC_SECS", "7"),
        ("RINGFENCE_LOG_FORMAT", "json"),
    ]);
    let mut agent = stage.start(command);
    agent.until_logged(&["\"committed\""]);
    assert_eq!(stage.tables(), "table inet policies\n");
    assert!(stage.nft("list chain inet policies forward").contains("/8 accept comment \"approved"));
    assert!(stage.run_dir().join("agent.sock").exists());
    stage.lab.node_exec(NODE, || TcpStream::connect_timeout(&"127.0.0.1:9999".parse().unwrap(), WITHIN)).unwrap();
}

#[test]
fn source_flag_overrides_variable_of_another_source() {
    let stage = stage();
    let mut command = stage.agent_on_manifests();
    command.env("KUBECONFIG", "/nowhere/kubeconfig");
    stage.start(command).until_ready();

    let mut command = stage.agent();
    command.args(["--kubeconfig", "/nowhere/kubeconfig"]).env("RINGFENCE_MANIFESTS", stage.manifests());
    let refused = stage.lab.node_exec(NODE, || ended(&mut command));
    assert!(refused.stderr.starts_with("error: kubeconfig /nowhere/kubeconfig: "), "{}", refused.stderr);
}

#[test]
fn the_agent_explains_as_the_manifests_do() {
    let stage = stage();
    let agent = stage.start_on_manifests();
    let (manifests, run_dir) = (stage.manifests(), stage.run_dir());
    for flow in [
        ["shop/web", "shop/db", "5432"],
        ["192.0.2.1", "shop/db", "53/udp"],
        ["fd00:2::1", "shop/db", "icmp"],
        ["shop/nobody", "shop/db", "80"],
        ["shop/web", "shop/db", "http"],
    ] {
        for form in ["text", "json"] {
            let explain = |key: &str, folder: &std::path::Path| {
                let folder = folder.to_str().unwrap();
                let ProgramExit { code, stdout, stderr } =
                    run([&["explain"], &flow[..], &["-o", form, key, folder]].concat());
                (code, stdout, stderr)
            };
            assert_eq!(explain("--run-dir", &run_dir), explain("--manifests", &manifests), "{flow:?}");
        }
    }
    drop(agent);
    let gone = run(["explain", "shop/web", "shop/db", "80", "--run-dir", run_dir.to_str().unwrap()]);
    assert_eq!(gone.code, Some(2));
    assert!(
        gone.stderr.contains("cannot connect to the agent at") && gone.stderr.contains("--manifests"),
        "{}",
        gone.stderr
    );
}

#[test]
fn socket_is_root_only_and_rejects_bad_requests() {
    let stage = stage();
    let _agent = stage.start_on_manifests();
    let mode = std::fs::metadata(stage.run_dir().join("agent.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let folder = std::fs::metadata(stage.run_dir()).unwrap();
    assert_eq!((folder.uid(), folder.mode() & 0o022), (0, 0), "who may write to it could put another socket there");
    let asked = |target: &str| {
        let answer = ask_socket(&stage.run_dir(), target);
        (answer.status, answer.body)
    };
    let (status, body) = asked("/v1/explain?source=shop/web&destination=shop/db&traffic=x/y");
    assert!(status == 422 && body.contains("expected PORT"), "{status} {body}");
    let (status, body) = asked("/v1/explain?source=shop/gone&destination=shop/db&traffic=80");
    assert!(status == 404 && body.contains("pod shop/gone not found"), "{status} {body}");
    for (target, expected) in [("/v1/explain?source=shop/web", 400), ("/v1/nothing", 404)] {
        let (status, body) = asked(target);
        let error: Value = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"));
        assert!(status == expected && error["error"].is_string(), "{target}: {status} {body}");
    }
}
