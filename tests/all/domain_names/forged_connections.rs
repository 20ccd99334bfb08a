//! Pods that forge their side of a connection to the resolver, so that the content of a record is in the place of an
//! answer.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use kit::frame::tcp_packet;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt};
use nix::sys::time::TimeVal;
use tests::dns_server::{framed, question};

use super::*;

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const PUSH_ACK: u8 = 0x18;

/// The pod's first sequence number.
const START: u32 = 7_000_000;

/// A pod whose kernel sends no RST for connections that it does not know.
struct ForgingPod<'a> {
    scene: &'a Scene,
    received: OwnedFd,
}

impl ForgingPod<'_> {
    /// The resolver's kernel sends SYN cookies.
    fn new(scene: &Scene) -> ForgingPod<'_> {
        scene.stage.lab.in_namespace_of(address(DNS), || {
            std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").expect("the sysctl")
        });
        let received = scene.stage.lab.in_namespace_of(address(WEB), || {
            nft("add table ip quiet; add chain ip quiet out { type filter hook output priority 0; }; \
                 add rule ip quiet out tcp flags rst ip ttl 64 drop");
            socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Tcp).expect("a raw socket")
        });
        setsockopt(&received, sockopt::ReceiveTimeout, &TimeVal::new(10, 0)).expect("a timeout");
        ForgingPod { scene, received }
    }

    fn send(&self, port: u16, numbers: (u32, u32), flags: u8, payload: &[u8]) {
        self.send_with_ttl(64, port, numbers, flags, payload);
    }

    fn send_with_ttl(&self, ttl: u8, port: u16, numbers: (u32, u32), flags: u8, payload: &[u8]) {
        let octets = |text: &str| text.parse::<Ipv4Addr>().expect("an address").octets();
        let mut packet = tcp_packet((octets(WEB), port), (octets(DNS), 53), numbers, flags, payload);
        // The kernel computes the checksum of the header.
        packet[8] = ttl;
        self.scene.stage.lab.in_namespace_of(address(WEB), || send_packets(&[packet]));
    }

    /// The sequence number and the payload of the resolver's next segment with these flags.
    fn receive(&self, port: u16, flags: u8) -> (u32, Vec<u8>) {
        let mut bytes = [0; 4096];
        loop {
            let length = recv(self.received.as_raw_fd(), &mut bytes, MsgFlags::empty()).expect("a segment");
            let segment = &bytes[20..length];
            let number = u32::from_be_bytes(segment[4..8].try_into().expect("4 bytes"));
            if segment[2..4] == port.to_be_bytes() && segment[13] == flags {
                return (number, segment[usize::from(segment[12] >> 4) * 4..].to_vec());
            }
        }
    }

    /// Sends a SYN, and returns the cookie.
    fn begin(&self, port: u16) -> u32 {
        self.send(port, (START, 0), SYN, &[]);
        self.receive(port, SYN | ACK).0
    }
}

fn nft(rules: &str) {
    assert!(Command::new("nft").arg(rules).status().expect("nft").success());
}

/// Numbers by which the resolver begins the connection as many bytes before the one that it has answered to the SYN.
fn shifted(cookie: u32, by: u32) -> (u32, u32) {
    (START + 1 - by, cookie.wrapping_add(1).wrapping_sub(by))
}

#[test]
fn shifted_start_of_connection_opens_nothing() {
    let scene = Scene::new(&json!([NAME]));
    let mut agent = scene.start();
    until_tcp_is_read(&scene, &mut agent, WEB);
    let before = answers(&agent, "without-addresses");
    let pod = ForgingPod::new(&scene);
    let inner = framed(&answer_with(NAME, address(SITE)));
    scene.dns.set("evil.example.com", 300, vec![Record::Text(inner.clone())]);
    let exchange = |port, shift| {
        let numbers = shifted(pod.begin(port), shift);
        pod.send(port, numbers, ACK, &[]);
        pod.send(port, numbers, PUSH_ACK, &framed(&question("evil.example.com")));
        let (_, answered) = pod.receive(port, PUSH_ACK);
        answered.windows(inner.len()).position(|bytes| bytes == inner).expect("the text is in the answer")
    };
    // The place of the text is that in an exact connection, which opens nothing either.
    let place = exchange(40_001, 0);
    agent.until("the answer is read", |agent| (answers(agent, "without-addresses") > before).then_some(()));
    exchange(40_002, u32::try_from(place).expect("a short answer"));
    agent.until("the connection is ignored", |agent| (ignored_segments(agent, "mismatch") > 0.0).then_some(()));
    assert!(scene.is_denied(WEB, SITE));
    assert_eq!((answers(&agent, "learned"), answers(&agent, "other-name")), (0.0, 0.0));
}

/// The resolver sees a segment from another port than that from which the pod has sent it.
#[test]
fn shift_from_translated_port_is_a_mismatch() {
    const PORT: u16 = 40_001;
    let scene = Scene::new(&json!([NAME]));
    let mut agent = scene.start();
    until_tcp_is_read(&scene, &mut agent, WEB);
    let pod = ForgingPod::new(&scene);
    scene.stage.lab.node_exec(NODE, || {
        nft("add table ip other; add chain ip other nat { type nat hook postrouting priority srcnat; }; \
             add rule ip other nat tcp sport 40002 snat to 10.1.0.2:40001");
    });
    let cookie = pod.begin(PORT);
    // The node forgets the connection; neither segment arrives at the resolver.
    for flags in [RST, SYN] {
        pod.send_with_ttl(1, PORT, (START + 1, 0), flags, &[]);
    }
    pod.send(PORT + 1, shifted(cookie, 40), ACK, &[]);
    agent.until("the connection is ignored", |agent| (ignored_segments(agent, "mismatch") > 0.0).then_some(()));
}

/// The rest of the packet may wait at the resolver until the pod completes it.
#[test]
fn fragments_stop_answers_over_tcp() {
    let scene = Scene::new(&json!([NAME]));
    let mut agent = scene.start();
    until_tcp_is_read(&scene, &mut agent, WEB);
    let pod = ForgingPod::new(&scene);
    let octets = |text: &str| text.parse::<Ipv4Addr>().expect("an address").octets();
    let expect_late = |agent: &mut AgentProcess, packet: &[u8]| {
        let before = ignored_segments(agent, "may-be-late");
        scene.stage.lab.in_namespace_of(address(WEB), || send_packets(&[packet.to_vec()]));
        agent.until("the packet is noticed", |agent| (ignored_segments(agent, "may-be-late") > before).then_some(()));
    };
    let packet = tcp_packet((octets(WEB), 40_001), (octets(DNS), 53), (START, 0), SYN, &[0; 4]);
    let with = |place: usize, byte| {
        let mut packet = packet.clone();
        packet[place] = byte;
        packet
    };
    // The first fragment, and one behind it that no other has announced, a second later.
    expect_late(&mut agent, &with(6, 0x20));
    std::thread::sleep(Duration::from_secs(1));
    expect_late(&mut agent, &with(7, 100));
    // Of another class of service.
    expect_late(&mut agent, &with(1, 0x20));
    let before = ignored_segments(&agent, "start-missing");
    let numbers = shifted(pod.begin(40_002), 0);
    pod.send(40_002, numbers, ACK, &[]);
    pod.send(40_002, numbers, PUSH_ACK, &framed(&question("evil.example.com")));
    agent.until("the answer is ignored", |agent| (ignored_segments(agent, "start-missing") > before).then_some(()));
}

/// A pod has a resolver send the bytes of an answer on two connections of one stream, with other boundaries of messages.
#[test]
fn multipath_connections_open_nothing() {
    let scene = Scene::new(&json!([NAME]));
    let mut agent = scene.start();
    until_tcp_is_read(&scene, &mut agent, WEB);
    scene.site(NAME, 300, SITE);
    let before = ignored_segments(&agent, "multipath");
    ask_on(&mut scene.dns.connect_multipath_from(&scene.stage.lab, address(WEB)), &[NAME]);
    agent.until("the connection is ignored", |agent| (ignored_segments(agent, "multipath") > before).then_some(()));
    assert!(scene.is_denied(WEB, SITE));
    ask_on(&mut scene.dns.connect_from(&scene.stage.lab, address(WEB)), &[NAME]);
    scene.until_open(&mut agent, WEB, SITE);
}

/// A policy that is removed and created again leaves segments that were not copied.
#[test]
fn connection_over_missing_policy_is_ignored() {
    const PORT: u16 = 40_001;
    let scene = Scene::new(&json!([NAME]));
    let mut agent = scene.start();
    until_tcp_is_read(&scene, &mut agent, WEB);
    let pod = ForgingPod::new(&scene);
    let inner = framed(&answer_with(NAME, address(SITE)));
    scene.dns.set("evil.example.com", 300, vec![Record::Text(inner)]);
    let numbers = shifted(pod.begin(PORT), 0);
    pod.send(PORT, numbers, ACK, &[]);
    std::fs::remove_file(scene.stage.manifests().join("policy.json")).expect("the policy");
    agent.until("no answers are copied", |_| (!scene.stage.nft("list ruleset").contains("dns-clients")).then_some(()));
    scene.stage.write_objects("policy.json", &[policy(&json!([NAME]))]);
    scene.stage.until_enforced(&mut agent, &scene.stage.state_of_manifests());
    let before = ignored_segments(&agent, "start-missing");
    pod.send(PORT, numbers, PUSH_ACK, &framed(&question("evil.example.com")));
    agent.until("the answer is ignored", |agent| (ignored_segments(agent, "start-missing") > before).then_some(()));
}
