use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use tests::agent_process::{Ended, WITHIN, ask_socket, ended, ringfence, run};

use crate::stage::{NODE, Stage, ingress, pod};

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
    for line in metrics.body.lines() {
        let (name, value) = line.rsplit_once(' ').expect("two words");
        assert!(line.starts_with("# ") || (name.starts_with("ringfence_") && value.parse::<f64>().is_ok()), "{line}");
    }
    for (name, value) in [
        ("ringfence_ready", 1),
        ("ringfence_commits_total", 1),
        ("ringfence_refused_commits_total", 0),
        ("ringfence_pods_on_node", 1),
        ("ringfence_isolated_pods", 1),
        ("ringfence_programs", 1),
        ("ringfence_commit_duration_seconds_count", 1),
    ] {
        assert_eq!(agent.metric(name), value, "{name}");
    }
    assert_eq!(agent.get("/v1/status").status, 404, "single pods are told of over the socket only");
    agent.until("the age of the last commit grows", |agent| {
        let text = agent.get("/metrics").body;
        let age = text.lines().find_map(|l| l.strip_prefix("ringfence_last_commit_age_seconds ")).expect("an age");
        (age.parse::<f64>().expect("a number") > 0.2).then_some(())
    });
}

#[test]
fn the_log_as_json_is_one_object_a_line() {
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
    for message in ["ringfence agent started", "every kind has been listed", "committed"] {
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
    assert!(stage.nft("list chain inet policies forward").contains("ct mark 0x01000000/8 accept"));
    assert!(stage.run_dir().join("agent.sock").exists());
    stage.lab.node_exec(NODE, || TcpStream::connect_timeout(&"127.0.0.1:9999".parse().unwrap(), WITHIN)).unwrap();
}

#[test]
fn a_flag_counts_more_than_the_variable_of_another_source() {
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
                let Ended { code, stdout, stderr } =
                    run([&["explain"], &flow[..], &["-o", form, key, folder]].concat());
                (code, stdout, stderr)
            };
            assert_eq!(explain("--run-dir", &run_dir), explain("--manifests", &manifests), "{flow:?}");
        }
    }
    drop(agent);
    let gone = run(["explain", "shop/web", "shop/db", "80", "--run-dir", run_dir.to_str().unwrap()]);
    assert_eq!(gone.code, Some(2));
    assert!(gone.stderr.contains("cannot reach an agent at") && gone.stderr.contains("--manifests"), "{}", gone.stderr);
}

#[test]
fn the_socket_is_for_root_and_answers_bad_questions() {
    let stage = stage();
    let _agent = stage.start_on_manifests();
    let mode = std::fs::metadata(stage.run_dir().join("agent.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let asked = |target: &str| {
        let answer = ask_socket(&stage.run_dir(), target);
        (answer.status, answer.body)
    };
    let (status, body) = asked("/v1/explain?source=shop/web&destination=shop/db&traffic=x/y");
    assert!(status == 422 && body.contains("is not PORT"), "{status} {body}");
    let (status, body) = asked("/v1/explain?source=shop/gone&destination=shop/db&traffic=80");
    assert!(status == 404 && body.contains("pod shop/gone is not known"), "{status} {body}");
    assert_eq!(asked("/v1/explain?source=shop/web").0, 400);
}
