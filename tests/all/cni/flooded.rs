//! Flow records of frames that a bridge floods: the kernel confirms their entry when the copy for the node passes.

use std::net::IpAddr;
use std::time::Duration;

use kit::agent_process::until;
use kit::frame::{send_frame, udp_packet};

use super::forged::{Node, hardware_address};
use super::{Families, Place, Pod};
use crate::flows::{listed, records_flows};
use crate::stage::pod;

const SENT: usize = 20;

/// By then the agent has read the manifest.
const LATER: Duration = Duration::from_secs(2);

/// Sends datagrams in frames to all ports of the bridge.
fn send_to_all(sender: &Pod, from: IpAddr, to: IpAddr, port: u16) {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { panic!("IPv4 addresses") };
    let packet = udp_packet(from.octets(), to.octets(), port, b"hello");
    let frame = [&[0xff; 6][..], &hardware_address(sender), &[0x08, 0], &packet].concat();
    sender.sandbox.run(|| (0..SENT).for_each(|_| send_frame("eth0", &frame)));
}

/// The verdicts of the records with this destination port.
fn verdicts(place: &Place, port: u16) -> Vec<String> {
    let records = listed(&place.path("run"), &format!("?port={port}"));
    records.iter().filter_map(|record| record["verdict"].as_str().map(str::to_owned)).collect()
}

#[test]
fn denied_flooded_frames_are_no_allowed_flow() {
    let place = Place::new();
    let node = Node::start(&place, place.bridge(Families::V4), false, &["--flows", "on"]);
    until("flows are recorded", || records_flows(&place.path("run")).then_some(()));
    let address = |name: &str| node.addresses[name];
    // To a pod that is isolated for ingress, from one that is isolated for egress, and between pods that may talk.
    send_to_all(&node.db, address("db"), address("other"), 2001);
    send_to_all(&node.web, address("web"), address("db"), 2002);
    send_to_all(&node.other, address("other"), address("db"), 2003);
    // A response has the connections from before its request; drop events may be later.
    until("the allowed flow is recorded", || verdicts(&place, 2003).contains(&"allowed".into()).then_some(()));
    for port in [2001, 2002] {
        until("the denied packets are recorded", || verdicts(&place, port).contains(&"denied".into()).then_some(()));
        assert!(!verdicts(&place, port).contains(&"allowed".into()), "port {port}: {:?}", verdicts(&place, port));
    }
    // Later states of the cluster do not change that.
    let later = serde_json::to_string(&pod("later", "node-b", "app=later", &["10.9.0.9"])).expect("JSON");
    std::fs::write(place.path("manifests").join("later.yaml"), later).expect("the manifest");
    until("the change is in force", || {
        send_to_all(&node.other, address("other"), address("db"), 2004);
        verdicts(&place, 2004).contains(&"allowed".into()).then_some(())
    });
    std::thread::sleep(LATER);
    for port in [2001, 2002] {
        assert!(!verdicts(&place, port).contains(&"allowed".into()), "port {port}: {:?}", verdicts(&place, port));
    }
    node.end();
}
