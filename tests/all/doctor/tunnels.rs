//! Tunnels of the node at ports that the agent does not guard.

use super::{found, severities, sh};
use crate::stage::{NODE, Stage, pod};

#[test]
fn tunnel_at_unknown_port_is_reported_until_configured() {
    let stage = Stage::with_pods(&[("shop/a", &["10.1.0.1"])]);
    stage.write_objects("pods.json", &[pod("a", NODE, "app=a", &["10.1.0.1"])]);
    sh(
        &stage,
        "ip link add flannel.1 type vxlan id 1 dstport 8472 dev lo
         ip link set flannel.1 up
         ip link add overlay0 type vxlan id 2 dstport 8473 dev lo",
    );
    let agent = stage.start_on_manifests();
    assert_eq!(severities(&stage, "tunnel-ports"), ["ok"], "the other one is down");
    sh(&stage, "ip link set overlay0 up");
    let findings = found(&stage, "tunnel-ports");
    assert_eq!(findings.len(), 1, "{findings:?}");
    let (severity, text) = &findings[0];
    assert!(severity == "warning" && text.contains("overlay0 (vxlan, UDP port 8473)"), "{findings:?}");
    agent.stop();
    assert_eq!(severities(&stage, "tunnel-ports"), [""; 0], "without an agent no port is known");

    let mut command = stage.agent_on_manifests();
    command.args(["--tunnel-port", "8473"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    assert_eq!(severities(&stage, "tunnel-ports"), ["ok"]);
}
