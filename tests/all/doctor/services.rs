//! Services that bypass the forward hook keep a node from being ready. (The kernels that the tests run on may lack
//! dummy interfaces, so a bridge has the name.)

use std::path::Path;

use agent::doctor::{Check, cheap};

use super::{found, severities, sh};
use crate::stage::{NODE, Stage, namespace, pod, set_all};

#[test]
fn ipvs_interface_is_an_error_until_removed() {
    let stage = Stage::with_pods(&[("shop/a", &["10.1.0.1"])]);
    let run_dir = stage.run_dir();
    let obstacles = || {
        let found = stage.lab.node_exec(NODE, || cheap(Path::new("/"), &run_dir, true));
        found.into_iter().map(|finding| finding.id).collect::<Vec<Check>>()
    };
    assert_eq!(severities(&stage, "service-proxy"), ["ok"]);
    assert_eq!(obstacles(), []);
    sh(&stage, "ip link add kube-ipvs0 type bridge");
    assert_eq!(severities(&stage, "service-proxy"), ["error"]);
    assert!(found(&stage, "service-proxy")[0].1.contains("kube-ipvs0 of kube-proxy in IPVS mode"));
    assert_eq!(obstacles(), [Check::ServiceProxy]);
    sh(&stage, "ip link delete kube-ipvs0");
    assert_eq!(obstacles(), []);
}

#[test]
fn agent_is_not_ready_while_ipvs_serves() {
    let stage = Stage::with_pods(&[("shop/a", &["10.1.0.1"])]);
    sh(&stage, "ip link add kube-ipvs0 type bridge");
    let api = stage.api();
    set_all(&api, &[namespace("shop", ""), pod("a", NODE, "app=a", &["10.1.0.1"])]);
    let mut command = stage.agent_on_api(&api);
    command.args(["--resync-secs", "1"]);
    let mut agent = stage.start(command);
    agent.until("the reason", |agent| {
        let answer = agent.try_get("/readyz").ok()?;
        (answer.status != 200 && answer.body.starts_with("service-proxy: IPVS forwards")).then_some(())
    });
    sh(&stage, "ip link delete kube-ipvs0");
    agent.until_ready();
}
