//! Conntrack events and listings, of real flows between pods.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use kit::kernel_table::counted_by_rule;
use kit::lab::{Lab, LabSpec, NodeSpec, PodSpec};
use nfnetlink::{FlowEvent, FlowEvents, FlowMonitor, Subscription, TrackedFlow, count_flows, list_flows};

use super::packet_log::PATIENCE;
use super::*;

const NODE: &str = "node-a";
const CLIENT: [&str; 2] = ["10.1.0.1", "fd00:1::1"];
const SERVER: [&str; 2] = ["10.1.0.2", "fd00:1::2"];

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Receive buffer of events in tests that lose none.
const BUFFER: usize = 4 << 20;

/// Two pods, and a node that marks new flows and tracks all forwarded packets.
fn lab() -> Lab {
    let pod =
        |name: &str, addresses: [&str; 2]| PodSpec { name: name.into(), addresses: addresses.map(address).into() };
    let node =
        NodeSpec { name: NODE.into(), addresses: vec![], pods: vec![pod("client", CLIENT), pod("server", SERVER)] };
    let lab = Lab::new(&LabSpec { nodes: vec![node], outside: vec![] });
    lab.node_exec(NODE, || {
        load_text(
            "table inet t { chain forward { type filter hook forward priority 0; \
               ct state new ct mark set meta l4proto map { tcp : 0x00420007, udp : 0x00300000 }; \
               ct direction original meta l4proto tcp counter; ct direction reply meta l4proto tcp counter; }; }",
        );
    });
    lab
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn count_packets(lab: &Lab, on: bool) {
    lab.node_exec(NODE, || {
        for switch in ["nf_conntrack_acct", "nf_conntrack_timestamp"] {
            std::fs::write(format!("/proc/sys/net/netfilter/{switch}"), if on { "1" } else { "0" }).unwrap();
        }
    });
}

fn open(lab: &Lab, receive_buffer: usize) -> FlowMonitor {
    lab.node_exec(NODE, || FlowMonitor::open(Subscription::All, receive_buffer).unwrap())
}

/// Removes all conntrack entries of the node.
fn remove_flows(lab: &Lab) {
    lab.node_exec(NODE, || conntrack(&["-F"]));
}

fn next(monitor: &mut FlowMonitor) -> FlowEvents {
    monitor.next(PATIENCE).unwrap().expect("an event")
}

/// The next `count` events, none of which is lost: of new flows, and of removed ones.
fn events(monitor: &mut FlowMonitor, count: usize) -> (Vec<TrackedFlow>, Vec<TrackedFlow>) {
    let (mut new, mut destroyed) = (vec![], vec![]);
    while new.len() + destroyed.len() < count {
        let FlowEvents::Events(events) = next(monitor) else { panic!("events were lost") };
        for event in events {
            match event {
                FlowEvent::New(flow) => new.push(flow),
                FlowEvent::Destroyed(flow) => destroyed.push(flow),
            }
        }
    }
    (new, destroyed)
}

fn listed(lab: &Lab) -> Vec<TrackedFlow> {
    let mut flows = vec![];
    lab.node_exec(NODE, || list_flows(|flow| flows.push(flow)).unwrap());
    flows
}

/// Opens a connection on which the client sends `sent` bytes and the server answers with `answered`, and which both
/// close. Returns the client's port.
fn converse(lab: &Lab, client: &str, server: &str, sent: usize, answered: usize) -> u16 {
    let to = SocketAddr::new(address(server), 8080);
    let listener = lab.in_namespace_of(to.ip(), || TcpListener::bind(to).unwrap());
    let answering = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut received = vec![];
        connection.read_to_end(&mut received).unwrap();
        connection.write_all(&vec![0; answered]).unwrap();
        received.len()
    });
    let port = lab.in_namespace_of(address(client), || {
        let mut connection = TcpStream::connect(to).unwrap();
        connection.write_all(&vec![0; sent]).unwrap();
        connection.shutdown(Shutdown::Write).unwrap();
        let mut received = vec![];
        connection.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), answered);
        connection.local_addr().unwrap().port()
    });
    assert_eq!(answering.join().unwrap(), sent);
    let family = if to.is_ipv4() { "ipv4" } else { "ipv6" };
    let deadline = Instant::now() + PATIENCE;
    // The last packet of the connection is the client's acknowledgement.
    while !lab.node_exec(NODE, || conntrack(&["-L", "-f", family, "-p", "tcp"])).contains("TIME_WAIT") {
        assert!(Instant::now() < deadline, "the connection does not end");
    }
    port
}

/// Sends one datagram from each of this many ports.
fn send_from_ports(lab: &Lab, count: u16) -> BTreeSet<u16> {
    let ports = 20_000..20_000 + count;
    lab.in_namespace_of(address(CLIENT[0]), || {
        for port in ports.clone() {
            let socket = UdpSocket::bind((CLIENT[0], port)).unwrap();
            socket.send_to(&[0; 50], (SERVER[0], 4000)).unwrap();
        }
    });
    ports.collect()
}

fn source_ports(flows: &[TrackedFlow]) -> BTreeSet<u16> {
    flows.iter().filter_map(|flow| flow.original.source_port).collect()
}

#[test]
fn tcp_events_have_mark_and_exact_counters() {
    for (client, server) in CLIENT.into_iter().zip(SERVER) {
        let lab = lab();
        count_packets(&lab, true);
        let mut monitor = open(&lab, BUFFER);
        let port = converse(&lab, client, server, 200_000, 1_000);
        let (new, _) = events(&mut monitor, 1);
        let original = &new[0].original;
        assert_eq!((original.source, original.destination), (address(client), address(server)));
        assert_eq!((original.protocol, original.source_port, original.destination_port), (TCP, Some(port), Some(8080)));
        assert_eq!((new[0].mark, &new[0].counters), (0x0042_0007, &None));
        let mut live = listed(&lab);
        live.retain(|flow| flow.original == *original);
        remove_flows(&lab);
        let destroyed = loop {
            let (_, mut destroyed) = events(&mut monitor, 1);
            destroyed.retain(|flow| flow.original == *original);
            if let Some(flow) = destroyed.pop() {
                break flow;
            }
        };
        assert_eq!((destroyed.id, destroyed.mark, &destroyed.reply), (new[0].id, 0x0042_0007, &new[0].reply));
        let counters = destroyed.counters.unwrap();
        assert_eq!(
            counters.map(|counter| counter.packets).to_vec(),
            lab.node_exec(NODE, || counted_by_rule("table inet t"))
        );
        let bytes = lab.node_exec(NODE, bytes_by_rule);
        assert_eq!(counters.map(|counter| counter.bytes).to_vec(), bytes);
        assert!(bytes[0] > 200_000 && bytes[1] > 1_000, "{bytes:?}");
        let (started, stopped) = (destroyed.started_ns.unwrap(), destroyed.stopped_ns.unwrap());
        assert!(started < stopped, "{started} {stopped}");
        assert_eq!(live.len(), 1, "{live:?}");
        assert_eq!((live[0].counters, live[0].started_ns, live[0].stopped_ns), (Some(counters), Some(started), None));
    }
}

/// As `counted_by_rule`, in bytes.
fn bytes_by_rule() -> Vec<u64> {
    let listing = run_nft("list table inet t");
    let words: Vec<&str> = listing.split_whitespace().collect();
    words.windows(2).filter(|pair| pair[0] == "bytes").map(|pair| pair[1].parse().unwrap()).collect()
}

#[test]
fn udp_destroy_counts_each_direction() {
    let lab = lab();
    count_packets(&lab, true);
    let mut monitor = open(&lab, BUFFER);
    for (client, server) in CLIENT.into_iter().zip(SERVER) {
        let bound = |address: &str, port: u16| {
            let at: SocketAddr = SocketAddr::new(address.parse().unwrap(), port);
            lab.in_namespace_of(at.ip(), || UdpSocket::bind(at).unwrap())
        };
        let (from, to) = (bound(client, 0), bound(server, 53));
        for _ in 0..3 {
            from.send_to(&[0; 30], (server, 53)).unwrap();
            let (length, peer) = to.recv_from(&mut [0; 100]).unwrap();
            to.send_to(&vec![0; length * 2], peer).unwrap();
            from.recv(&mut [0; 100]).unwrap();
        }
        from.send_to(&[0; 30], (server, 53)).unwrap();
        to.recv(&mut [0; 100]).unwrap();
    }
    remove_flows(&lab);
    let mut found = BTreeMap::new();
    while found.len() < 2 {
        let (_, destroyed) = events(&mut monitor, 1);
        let udp = destroyed.into_iter().filter(|flow| flow.original.protocol == UDP);
        found.extend(udp.map(|flow| (flow.original.source, (flow.mark, flow.counters.unwrap()))));
    }
    // IP and UDP headers, and the payload.
    let counters = |ip: u64| {
        let counter = |packets: u64, payload: u64| nfnetlink::Counter { packets, bytes: packets * (ip + 8 + payload) };
        (0x0030_0000, [counter(4, 30), counter(3, 60)])
    };
    let expected = BTreeMap::from([(address(CLIENT[0]), counters(20)), (address(CLIENT[1]), counters(40))]);
    assert_eq!(found, expected);
}

#[test]
fn counters_are_none_without_accounting() {
    let lab = lab();
    count_packets(&lab, false);
    let mut monitor = open(&lab, BUFFER);
    let ports = send_from_ports(&lab, 3);
    // Accounting that is enabled later does not count earlier packets.
    count_packets(&lab, true);
    let live = listed(&lab);
    remove_flows(&lab);
    let (new, destroyed) = events(&mut monitor, 6);
    for flows in [&new, &live, &destroyed] {
        assert_eq!(source_ports(flows), ports);
        assert!(flows.iter().all(|flow| flow.counters.is_none() && flow.started_ns.is_none()), "{flows:?}");
    }
}

#[test]
fn full_buffer_reports_loss_behind_older_events() {
    let lab = lab();
    let mut monitor = open(&lab, 4096);
    send_from_ports(&lab, 500);
    let (mut received, mut losses) = (0, 0);
    while losses == 0 {
        match next(&mut monitor) {
            FlowEvents::Events(events) => received += events.len(),
            FlowEvents::Lost => losses += 1,
        }
    }
    assert!((1..100).contains(&received), "{received} events fit into the buffer");
    assert_eq!(received + monitor.dropped_messages().unwrap() as usize, 500);
    assert_eq!(monitor.next(Duration::ZERO).unwrap(), None, "nothing is left behind the loss");
    assert_eq!(listed(&lab).len(), 500);
    remove_flows(&lab);
    assert!(matches!(next(&mut monitor), FlowEvents::Events(_)), "events go on behind the loss");
}

#[test]
fn reliable_monitor_receives_every_removal_after_pause() {
    let lab = lab();
    count_packets(&lab, true);
    let mut monitor = open(&lab, 64 << 10);
    monitor.set_reliable(true).unwrap();
    let ports = send_from_ports(&lab, 2_000);
    remove_flows(&lab);
    let entries = |lab: &Lab| lab.node_exec(NODE, || count_flows().unwrap().entries);
    assert!(entries(&lab) > 1_000, "{} removed entries wait for the monitor", entries(&lab));
    assert_eq!(listed(&lab), []);
    let mut removed = BTreeSet::new();
    while removed.len() < ports.len() {
        let (_, destroyed) = events(&mut monitor, 1);
        for flow in destroyed {
            let counters = flow.counters.unwrap();
            assert_eq!(counters.map(|counter| counter.packets), [1, 0]);
            assert!(removed.insert(flow.original.source_port.unwrap()), "{flow:?} was removed before");
        }
    }
    assert_eq!(removed, ports);
    let deadline = Instant::now() + PATIENCE;
    while entries(&lab) > 0 {
        assert!(Instant::now() < deadline, "{} entries", entries(&lab));
    }
}

#[test]
fn monitor_returns_none_after_timeout() {
    in_new_namespace(|| {
        let mut monitor = FlowMonitor::open(Subscription::All, BUFFER).unwrap();
        assert_eq!(monitor.next(Duration::from_millis(10)).unwrap(), None);
        list_flows(|flow| panic!("{flow:?} in an empty namespace")).unwrap();
    });
}
