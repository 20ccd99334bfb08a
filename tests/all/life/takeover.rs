use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use cni::protocol::{Request, Response, read_response, write_request};
use cni::{AttachmentKey, AttachmentRecord, store};
use kit::agent_process::WITHIN;
use kit::kernel_table::load_text;
use kit::prober::{Flow, Way, socket};
use serde_json::Value;

use super::{CLIENT, FILE, SERVER, STRANGER, ip, objects, pods, stage, start};
use crate::stage::{NODE, Stage, ingress, pod, state_of};

/// The stored attachment of a pod with the client's addresses.
fn attachment(container: &str, of: &str, added_nanos: u64) -> AttachmentRecord {
    let id = AttachmentKey::new(container, "eth0").expect("an identity");
    AttachmentRecord { addresses: CLIENT.map(ip).to_vec(), added_nanos, ..AttachmentRecord::new(id, "shop", of) }
}

fn request(stage: &Stage, request: &Request) -> Response {
    let mut stream = UnixStream::connect(stage.run_dir().join("cni.sock")).expect("the agent's socket");
    stream.set_read_timeout(Some(WITHIN)).expect("a timeout");
    write_request(&mut stream, request).and_then(|()| Ok(stream.flush()?)).expect("a question");
    read_response(&mut stream).expect("an answer")
}

/// Stores the attachment and sends the request, as the plugin does.
fn attach(stage: &Stage, attachment: AttachmentRecord, timeout_millis: u64) -> Response {
    store::write(&stage.run_dir().join("cni"), &attachment).expect("a folder of ours");
    request(stage, &Request::Add { attachment, timeout_millis })
}

fn detach(stage: &Stage, id: AttachmentKey) {
    assert!(store::remove(&stage.run_dir().join("cni"), &id).expect("a folder of ours"));
    assert_eq!(request(stage, &Request::Delete(id)), Response::Ok);
}

/// Approved flows of the client, with the direction in which each is tried later. A datagram of the server begins a flow of its own.
fn flows(stage: &Stage) -> Vec<(Flow, Way)> {
    let mut flows = Vec::new();
    for (client, server) in CLIENT.into_iter().zip(SERVER) {
        flows.extend(Way::BOTH.map(|way| (Flow::tcp(&stage.lab, client, server), way)));
        flows.push((Flow::udp(&stage.lab, client, server), Way::ToServer));
    }
    for (flow, _) in &mut flows {
        Way::BOTH.into_iter().for_each(|way| flow.assert_alive(way));
    }
    flows
}

fn patience() -> u64 {
    u64::try_from(WITHIN.as_millis()).expect("milliseconds")
}

/// The server's policy, and further objects; the new pod has no policy.
fn with(more: &[Value]) -> Vec<Value> {
    [&pods()[..], &[ingress("server", "app=server", "app=client")], more].concat()
}

#[test]
fn known_pod_with_reused_address_inherits_no_flows() {
    let stage = stage();
    // According to the API the client still has the addresses, and the new pod has none.
    stage.write_objects(FILE, &with(&[pod("newcomer", NODE, "app=newcomer", &[])]));
    let mut agent = start(&stage, "auto");
    agent.until_ready();
    let old = attachment("c1", "client", 1);
    assert_eq!(attach(&stage, old.clone(), patience()), Response::Enforced);
    let mut flows = flows(&stage);
    detach(&stage, old.id);
    assert_eq!(attach(&stage, attachment("c2", "newcomer", 2), patience()), Response::Enforced);
    for (flow, way) in &mut flows {
        flow.assert_dead(&stage.lab, NODE, *way);
    }
}

/// The new pod may open the same flow, so that the policies allow what an earlier pod's peer sends as a reply to it.
#[test]
fn closed_pod_inherits_no_replies() {
    let stage = stage();
    let newcomer = pod("newcomer", NODE, "app=client", &[]);
    stage.write_objects(FILE, &with(&[newcomer, ingress("newcomer", "app=client", "app=nobody")]));
    let mut agent = start(&stage, "auto");
    agent.until_ready();
    let old = attachment("c1", "client", 1);
    assert_eq!(attach(&stage, old.clone(), patience()), Response::Enforced);
    let mut open: Vec<Flow> = CLIENT.iter().zip(SERVER).map(|(c, s)| Flow::udp(&stage.lab, c, s)).collect();
    detach(&stage, old.id);
    assert_eq!(attach(&stage, attachment("c2", "newcomer", 2), patience()), Response::Enforced);
    for flow in &mut open {
        flow.assert_dead(&stage.lab, NODE, Way::ToClient);
    }
}

#[test]
fn unknown_pod_with_reused_address_inherits_no_flows() {
    let stage = stage();
    stage.write_objects(FILE, &with(&[]));
    let mut agent = start(&stage, "auto");
    agent.until_ready();
    // The plugin's DEL of the client was lost: the newer attachment has the addresses.
    assert_eq!(attach(&stage, attachment("c1", "client", 1), patience()), Response::Enforced);
    let mut flows = flows(&stage);
    let newcomer = attachment("c2", "newcomer", 2);
    let answer = attach(&stage, newcomer.clone(), 200);
    assert!(matches!(&answer, Response::Isolated { reason } if reason.contains("shop/newcomer")), "{answer:?}");
    for (flow, way) in &mut flows {
        flow.assert_dead(&stage.lab, NODE, *way);
    }

    let known = with(&[pod("newcomer", NODE, "app=newcomer", &[])]);
    stage.write_objects(FILE, &known);
    assert_eq!(request(&stage, &Request::Add { attachment: newcomer, timeout_millis: patience() }), Response::Enforced);
    for (flow, way) in &mut flows {
        flow.assert_dead(&stage.lab, NODE, *way);
    }
}

#[test]
fn new_server_with_reused_address_inherits_no_flows() {
    let stage = stage();
    let vault = pod("vault", NODE, "app=vault", &[]);
    let of_vault = ingress("vault", "app=vault", "app=nobody");
    let of_server = ingress("server", "app=server", "app=stranger");
    stage.write_objects(FILE, &[&pods()[..], &[vault, of_vault, of_server]].concat());
    let mut agent = start(&stage, "auto");
    agent.until_ready();
    let at_server = |container: &str, of: &str, nanos: u64| AttachmentRecord {
        addresses: SERVER.map(ip).to_vec(),
        ..attachment(container, of, nanos)
    };
    let old = at_server("c1", "server", 1);
    assert_eq!(attach(&stage, old.clone(), patience()), Response::Enforced);
    let mut open: Vec<Flow> = STRANGER.iter().zip(SERVER).map(|(c, s)| Flow::udp(&stage.lab, c, s)).collect();
    detach(&stage, old.id);
    assert_eq!(attach(&stage, at_server("c2", "vault", 2), patience()), Response::Enforced);
    for flow in &mut open {
        flow.assert_dead(&stage.lab, NODE, Way::ToServer);
    }
}

#[test]
fn translated_udp_flow_is_cut_in_both_directions() {
    let stage = stage();
    stage.write_objects(FILE, &objects());
    let mut agent = start(&stage, "auto");
    agent.until_ready();
    let fronts: [SocketAddr; 2] = ["10.96.0.1:53", "[fd00:96::1]:53"].map(|text| text.parse().expect("an address"));
    let backs = SERVER.map(|address| SocketAddr::new(ip(address), 5353));
    let mut text = String::from("table inet nat {\nchain prerouting {\ntype nat hook prerouting priority dstnat;\n");
    for ((front, back), (protocol, family)) in fronts.iter().zip(backs).zip([("ip", "ip"), ("ip6", "ip6")]) {
        let front = (front.ip(), front.port());
        text.push_str(&format!("{protocol} daddr {} udp dport {} dnat {family} to {back}\n", front.0, front.1));
    }
    stage.lab.node_exec(NODE, || load_text(&format!("{text}}}\n}}\n")));
    let mut flows = Vec::new();
    for ((front, back), client) in fronts.into_iter().zip(backs).zip(CLIENT) {
        flows.push(Flow::udp_over(&stage.lab, client, front, socket(&stage.lab, back)));
    }
    for flow in &mut flows {
        Way::BOTH.into_iter().for_each(|way| flow.assert_alive(way));
    }
    let closed = [&pods()[..], &[ingress("server", "app=server", "app=nobody")]].concat();
    stage.write_objects(FILE, &closed);
    stage.until_enforced(&mut agent, &state_of(&closed));
    for flow in &mut flows {
        Way::BOTH.into_iter().for_each(|way| flow.assert_dead(&stage.lab, NODE, way));
    }
}

#[test]
fn later_attachment_claims_address_and_check_reports_conflict() {
    let stage = stage();
    stage.write_objects(FILE, &with(&[]));
    let mut agent = start(&stage, "auto");
    agent.until_ready();
    let [first, second] = [attachment("first", "client", 2), attachment("second", "server", 3)];
    let check = || request(&stage, &Request::Check(first.id.clone()));
    assert_eq!(attach(&stage, first.clone(), patience()), Response::Enforced);
    assert_eq!(check(), Response::Enforced);
    assert_eq!(attach(&stage, second.clone(), patience()), Response::Enforced);
    let lost = check();
    assert!(matches!(&lost, Response::Failed { reason } if reason.contains("a later attachment")), "{lost:?}");
    // A late ADD of an older attachment is not allowed either.
    let late = attach(&stage, attachment("third", "client", 1), 300);
    assert!(
        matches!(&late, Response::Failed { reason } if reason.contains("a later attachment has its address")),
        "{late:?}"
    );
    detach(&stage, second.id);
    assert_eq!(check(), Response::Enforced);
}
