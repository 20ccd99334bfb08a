//! Interfaces with a source check, as far as the doctor can detect it.

use std::process::Command;

use cni::{AttachmentKey, AttachmentRecord, store};
use kit::agent_process::ended;

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

/// The uplink of a lab's node is a veth, as is that of a kind node.
#[test]
fn uplink_of_node_is_not_an_unchecked_pod() {
    let stage = Stage::with_pods(&[("shop/a", &[ADDRESS])]);
    let port = port(&stage);
    let unreported = found(&stage, "rp-filter");
    assert_eq!(unreported.len(), 1, "{unreported:?}");
    assert!(
        unreported[0].0 == "note" && unreported[0].1.contains(&format!("packets from {port} are not checked:")),
        "{unreported:?}"
    );
    let attachment = AttachmentRecord {
        addresses: vec![ADDRESS.parse().expect("an address")],
        host_interface: Some(port),
        ..AttachmentRecord::new(AttachmentKey::new("c1", "eth0").expect("an identity"), "shop", "a")
    };
    store::write(&stage.run_dir().join("cni"), &attachment).expect("a folder of ours");
    let reported = found(&stage, "rp-filter");
    assert!(reported.iter().all(|(severity, _)| severity == "ok"), "{reported:?}");
}

#[test]
fn unreadable_link_local_addresses_are_a_warning() {
    let stage = Stage::with_pods(&[("shop/a", &[ADDRESS])]);
    let mut attachment = AttachmentRecord {
        addresses: vec![ADDRESS.parse().expect("an address")],
        host_interface: Some(port(&stage)),
        ..AttachmentRecord::new(AttachmentKey::new("c1", "eth0").expect("an identity"), "shop", "a")
    };
    for (error, warnings) in [(None, 0), (Some("permission denied"), 1)] {
        attachment.link_local_error = error.map(str::to_owned);
        store::write(&stage.run_dir().join("cni"), &attachment).expect("a folder of ours");
        let reported = found(&stage, "attachments");
        let names_pod = |(severity, text): &&(String, String)| {
            severity == "warning" && text.contains("pod shop/a") && text.contains("permission denied")
        };
        assert_eq!(reported.iter().filter(names_pod).count(), warnings, "{reported:?}");
    }
}
