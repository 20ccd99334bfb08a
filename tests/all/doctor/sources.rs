//! Whose source addresses are checked, as far as the doctor can know.

use std::process::Command;

use cni::{Attachment, AttachmentId, store};
use tests::agent_process::ended;

use super::found;
use crate::stage::{NODE, Stage};

const ADDRESS: &str = "10.1.0.1";

/// The node's side of the pod's interface.
fn port(stage: &Stage) -> String {
    let command = || ended(Command::new("ip").args(["-oneline", "route", "show", ADDRESS]));
    let route = stage.lab.node_exec(NODE, command).stdout;
    let words = route.split_whitespace().skip_while(|word| *word != "dev");
    words.skip(1).map(str::to_owned).next().unwrap_or_else(|| panic!("no route to the pod: {route}"))
}

/// The uplink of a lab's node is a veth, as that of a node of kind is.
#[test]
fn uplink_of_a_node_is_no_unchecked_pod() {
    let stage = Stage::with_pods(&[("shop/a", &[ADDRESS])]);
    let port = port(&stage);
    let unreported = found(&stage, "rp-filter");
    assert_eq!(unreported.len(), 1, "{unreported:?}");
    assert!(unreported[0].0 == "note" && unreported[0].1.contains(&format!("comes from {port}:")), "{unreported:?}");
    let attachment = Attachment {
        id: AttachmentId::new("c1", "eth0").expect("an identity"),
        sandbox: "/run/netns/c1".into(),
        network: "pods".into(),
        namespace: "shop".into(),
        pod: "a".into(),
        uid: None,
        addresses: vec![ADDRESS.parse().expect("an address")],
        host_interface: Some(port),
        bridge: None,
        host_interface_index: None,
        hardware_address: None,
        link_local: vec![],
        added_nanos: 1,
    };
    store::write(&stage.run_dir().join("cni"), &attachment).expect("a folder of ours");
    let reported = found(&stage, "rp-filter");
    assert!(reported.iter().all(|(severity, _)| severity == "ok"), "{reported:?}");
}
