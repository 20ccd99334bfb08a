use std::process::Command;

use kit::agent_process::{ended, ringfence};
use serde_json::Value;

use super::{PORT, exchange, records, serve, start, sum};
use crate::drops::{DB, OTHER, WEB, send_datagrams, stage};
use crate::stage::Stage;

pub(super) fn flows(stage: &Stage, arguments: &[&str]) -> Command {
    let mut command = ringfence();
    command.arg("flows").arg("--run-dir").arg(stage.run_dir()).args(arguments);
    command
}

#[test]
fn verb_prints_filters_and_sums_records() {
    let stage = stage();
    let mut agent = start(&stage);
    serve(&stage, DB[0], PORT);
    exchange(&stage, WEB[0], DB[0], PORT, 1000);
    exchange(&stage, WEB[0], DB[0], PORT, 1000);
    send_datagrams(&stage, OTHER[0], DB[0], 53, 3);
    // Volumes of connections in TIME_WAIT are measured once per window.
    agent.until("records of all flows", |_| {
        let all = records(&stage, "");
        let volumes = sum(&all, "/sent/bytes") > 2000 && sum(&all, "/received/bytes") > 2000;
        (volumes && sum(&all, "/connections/started") == 2 && sum(&all, "/deniedPackets") == 3).then_some(())
    });

    let shown = ended(&mut flows(&stage, &["--verdict", "allowed"]));
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    let words = ["shop/web -> shop/db", "5432/tcp", "allowed", "kB sent", "ingress: shop/db spec.ingress[0]"];
    assert!(words.iter().all(|word| shown.stdout.contains(word)), "{}", shown.stdout);
    assert!(!shown.stdout.contains("denied  "), "{}", shown.stdout);

    let denied = ended(&mut flows(&stage, &["--policy", "shop/db", "--port", "53"]));
    assert!(
        denied.stdout.contains("shop/other -> shop/db") && denied.stdout.contains(" packets  by ingress: shop/db"),
        "{}",
        denied.stdout
    );

    let summed = ended(&mut flows(&stage, &["--by", "src,dst", "--output", "json"]));
    let groups: Vec<Value> = summed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(groups.len(), 2, "{}", summed.stdout);
    assert_eq!((groups[0]["connections"]["started"].as_u64(), groups[1]["deniedPackets"].as_u64()), (Some(2), Some(3)));

    let nothing = ended(&mut flows(&stage, &["--namespace", "nobody"]));
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(0), ""));
    assert!(nothing.stderr.contains("no matching flow"), "{}", nothing.stderr);

    let invalid = ended(&mut flows(&stage, &["--verdict", "nope"]));
    assert_eq!(invalid.code, Some(2));
    assert!(invalid.stderr.contains("expected allowed, would-deny or denied"), "{}", invalid.stderr);
    let repeated = ended(&mut flows(&stage, &["--by", "src,src"]));
    assert_eq!(repeated.code, Some(2));
    assert!(repeated.stderr.contains("field 'src' appears twice"), "{}", repeated.stderr);
}

#[test]
fn explain_names_the_flows_that_were_seen() {
    let stage = stage();
    let mut agent = start(&stage);
    serve(&stage, DB[0], PORT);
    exchange(&stage, WEB[0], DB[0], PORT, 1000);
    let explain = |port: &str| {
        let mut command = ringfence();
        command.args(["explain", "shop/web", "shop/db", port, "--run-dir"]).arg(stage.run_dir());
        ended(&mut command).stdout
    };
    agent.until("the connection is recorded", |_| (!records(&stage, "").is_empty()).then_some(()));
    assert!(explain("5432").contains("seen between their workloads: 1 connections"), "{}", explain("5432"));
    assert!(explain("80").contains("seen: never"), "{}", explain("80"));
}
