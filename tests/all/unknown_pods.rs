//! Addresses of the node's pods without a known owner.

use kit::agent_process::AgentProcess;
use kit::lab::probe_all;
use kit::oracle::Probe;

use crate::stage::{NODE, Stage, pod};

const KNOWN: &str = "10.1.0.1";
const UNKNOWN: &str = "10.1.0.2";
const OUTSIDE: &str = "192.0.2.1";
const KNOWN_V6: &str = "fd00:1::1";
const UNKNOWN_V6: &str = "fd00:1::2";
const OUTSIDE_V6: &str = "2001:db8::1";

fn stage() -> Stage {
    let stage = Stage::with_pods(&[("shop/known", &[KNOWN, KNOWN_V6]), ("shop/unknown", &[UNKNOWN, UNKNOWN_V6])]);
    stage.write_objects("pods.json", &[pod("known", NODE, "app=known", &[KNOWN, KNOWN_V6])]);
    stage
}

fn start<'stage>(stage: &'stage Stage, arguments: &[&str]) -> AgentProcess<'stage> {
    let mut command = stage.agent_on_manifests();
    command.args(arguments);
    let mut agent = stage.start(command);
    agent.until_ready();
    agent
}

/// Whether TCP connections between these ends can be established.
fn reached(stage: &Stage, ends: &[(&str, &str)]) -> Vec<bool> {
    let probe = |(source, destination): &(&str, &str)| Probe {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        protocol: Probe::TCP,
        port: Some(80),
    };
    probe_all(&stage.lab, &ends.iter().map(probe).collect::<Vec<Probe>>())
}

#[test]
fn they_pass_unless_they_are_to_be_denied() {
    let stage = stage();
    let _agent = start(&stage, &["--pod-cidr", "10.1.0.0/24,fd00:1::/64"]);
    assert_eq!(reached(&stage, &[(UNKNOWN, OUTSIDE), (OUTSIDE, UNKNOWN), (KNOWN, UNKNOWN)]), [true, true, true]);
}

#[test]
fn denied_unknown_pods_are_isolated_until_known() {
    let stage = stage();
    let ranges = ["--unknown-pods", "deny", "--pod-cidr", "10.1.0.0/24", "--pod-cidr", "fd00:1::/64"];
    let mut agent = start(&stage, &ranges);
    let ends =
        [(UNKNOWN, OUTSIDE), (OUTSIDE, UNKNOWN), (KNOWN, UNKNOWN), (UNKNOWN_V6, OUTSIDE_V6), (OUTSIDE_V6, UNKNOWN_V6)];
    assert_eq!(reached(&stage, &ends), [false; 5]);
    assert_eq!(reached(&stage, &[(KNOWN, OUTSIDE), (OUTSIDE, KNOWN), (KNOWN_V6, OUTSIDE_V6)]), [true, true, true]);

    let both = [
        pod("known", NODE, "app=known", &[KNOWN, KNOWN_V6]),
        pod("unknown", NODE, "app=unknown", &[UNKNOWN, UNKNOWN_V6]),
    ];
    stage.write_objects("pods.json", &both);
    agent.until("it is known", |_| reached(&stage, &ends).iter().all(|reached| *reached).then_some(()));

    // An earlier approval does not outlive the pod.
    stage.write_objects("pods.json", &both[..1]);
    agent.until("it is forgotten", |_| reached(&stage, &ends).iter().all(|reached| !*reached).then_some(()));
}

#[test]
fn denying_unknown_pods_requires_pod_cidr() {
    let stage = stage();
    let mut command = stage.agent_on_manifests();
    command.args(["--unknown-pods", "deny"]);
    let refused = kit::agent_process::ended(&mut command);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("--pod-cidr"), "{}", refused.stderr);
}
