//! The doctor's command line.

use serde_json::Value;

use super::{doctor, found, severities};
use crate::stage::{Stage, ingress, namespace, pod};

#[test]
fn missing_agent_is_an_error_with_status_1() {
    let stage = Stage::new();
    let report = doctor(&stage, &[]);
    assert_eq!((report.code, report.stderr.as_str()), (Some(1), ""));
    let lines: Vec<&str> = report.stdout.lines().collect();
    let about = |start: &str| lines.iter().position(|line| line.starts_with(start));
    let agent = about("error   agent: no agent answers").unwrap_or_else(|| panic!("{}", report.stdout));
    assert!(lines[agent + 1].starts_with("        to do: start the agent"), "{}", report.stdout);
    assert!(about("error   table: table inet ringfence").is_some(), "{}", report.stdout);
    assert!(about("ok      self-test: a denied packet was dropped").is_some(), "{}", report.stdout);
    assert!(about("ok      kernel-features: ").is_some(), "{}", report.stdout);
    assert!(lines.last().unwrap().starts_with("2 errors, "), "{}", report.stdout);
    assert!(!report.stdout.contains('\u{1b}'), "colours in a pipe");
}

#[test]
fn as_json_the_findings_are_one_object() {
    let stage = Stage::new();
    let report = doctor(&stage, &["--output", "json"]);
    assert_eq!((report.code, report.stderr.as_str()), (Some(1), ""));
    let parsed: Value = serde_json::from_str(&report.stdout).unwrap();
    let findings = parsed["findings"].as_array().unwrap();
    for finding in findings {
        let keys: Vec<&String> = finding.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["advice", "finding", "id", "severity"], "{finding}");
        assert_eq!(finding["severity"] == "ok", finding["advice"].is_null(), "{finding}");
    }
    let of_self_test = findings.iter().filter(|f| f["id"] == "self-test").count();
    assert_eq!(of_self_test, 1, "{parsed}");
}

#[test]
fn running_agent_and_table_end_with_status_0() {
    let stage = Stage::with_pods(&[("shop/web", &["10.1.0.1"]), ("shop/db", &["10.1.0.2"])]);
    let objects = [
        namespace("shop", ""),
        pod("web", "node-a", "app=web", &["10.1.0.1"]),
        pod("db", "node-a", "app=db", &["10.1.0.2"]),
        ingress("db", "app=db", "app=web"),
    ];
    stage.write_objects("shop.yaml", &objects);
    let agent = stage.start_on_manifests();
    let report = doctor(&stage, &["--no-self-test"]);
    assert_eq!((report.code, report.stderr.as_str()), (Some(0), ""), "{}", report.stdout);
    for id in ["agent", "last-commit", "kernel-generation", "table", "table-contents"] {
        assert_eq!(severities(&stage, id), ["ok"], "{id}: {:?}", found(&stage, id));
    }
    agent.stop();
    assert_eq!(severities(&stage, "agent"), ["error"]);
    assert_eq!(severities(&stage, "table"), ["ok"]);
}

#[test]
fn table_of_another_program_is_an_error() {
    let stage = Stage::new();
    stage.nft("add table inet ringfence");
    assert_eq!(severities(&stage, "table"), ["error"]);
    assert!(found(&stage, "table")[0].1.contains("belongs to another program"));
}

#[test]
fn missing_cni_plugin_in_first_conflist_is_warning() {
    let stage = Stage::new();
    let folder = stage.run_dir().join("net.d");
    std::fs::create_dir_all(&folder).unwrap();
    assert_eq!(severities(&stage, "cni-config"), ["warning"]);
    std::fs::write(folder.join("10-pods.conflist"), r#"{"plugins": [{"type": "ptp"}]}"#).unwrap();
    assert_eq!(severities(&stage, "cni-config"), ["warning"]);
    std::fs::write(folder.join("05-pods.conflist"), r#"{"plugins": [{"type": "ptp"}, {"type": "ringfence-cni"}]}"#)
        .unwrap();
    assert_eq!(severities(&stage, "cni-config"), ["ok"]);
    assert_eq!(
        (severities(&stage, "cni-plugin"), severities(&stage, "cni-socket")),
        (vec!["error".into()], vec!["error".into()])
    );
    std::fs::create_dir(stage.run_dir().join("cni")).unwrap();
    std::fs::write(stage.run_dir().join("cni/c1@eth0.json"), "{}").unwrap();
    assert_eq!(severities(&stage, "attachments"), ["warning"]);
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    assert_eq!(doctor(&Stage::new(), &["--output", "yaml"]).code, Some(2));
}
