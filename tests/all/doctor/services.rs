//! Services that bypass the forward hook keep a node from being ready. (The kernels that the tests run on may lack
//! dummy interfaces, so a bridge has the name.)

use agent::doctor::Check;

use super::{assert_unready_until, found, obstacles, severities, sh};
use crate::stage::Stage;

#[test]
fn ipvs_interface_is_an_error_until_removed() {
    let stage = Stage::with_pods(&[("shop/a", &["10.1.0.1"])]);
    assert_eq!(severities(&stage, "service-proxy"), ["ok"]);
    assert_eq!(obstacles(&stage), []);
    sh(&stage, "ip link add kube-ipvs0 type bridge");
    assert_eq!(severities(&stage, "service-proxy"), ["error"]);
    assert!(found(&stage, "service-proxy")[0].1.contains("kube-ipvs0 of kube-proxy in IPVS mode"));
    assert_eq!(obstacles(&stage), [Check::ServiceProxy]);
    sh(&stage, "ip link delete kube-ipvs0");
    assert_eq!(obstacles(&stage), []);
}

#[test]
fn agent_is_not_ready_while_ipvs_serves() {
    let stage = Stage::with_pods(&[("shop/a", &["10.1.0.1"])]);
    sh(&stage, "ip link add kube-ipvs0 type bridge");
    assert_unready_until(&stage, "service-proxy: IPVS forwards", "ip link delete kube-ipvs0");
}
