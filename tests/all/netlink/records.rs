//! Counters of rules are read back exactly, and reading changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Instant;

use kit::frame::ipv4_packet;
use nfnetlink::{ConntrackRecord, Counter};

use super::packet_log::{FAR, IPV4, NEAR, PATIENCE, loop_back, set_up_loopback};
use super::*;

/// Flows to 127.0.0.2, 10.0.0.1 and ::1 are recorded and dropped.
fn load_rules() {
    set_up_loopback();
    let recorded = "counter limit rate 1/minute burst 1 packets";
    load_text(&format!(
        "table inet t {{
           set ported {{ type inet_proto; elements = {{ tcp, udp, sctp }}; }}
           set denied4 {{ type ipv4_addr . ipv4_addr . inet_proto . inet_service; size 4096; flags dynamic,timeout; timeout 1m; }}
           set denied4-portless {{ type ipv4_addr . ipv4_addr . inet_proto; size 4096; flags dynamic,timeout; timeout 1m; }}
           set denied6 {{ type ipv6_addr . ipv6_addr . inet_proto . inet_service; size 4096; flags dynamic,timeout; timeout 1m; }}
           set counted6 {{ type ipv6_addr . ipv6_addr . inet_proto; size 4096; flags dynamic,timeout; timeout 1m; }}
           chain deny {{
             meta l4proto @ported update @denied4 {{ ip saddr . ip daddr . meta l4proto . th dport {recorded} }} log group 9470
             meta l4proto @ported update @denied6 {{ ip6 saddr . ip6 daddr . meta l4proto . th dport {recorded} }} log group 9470
             meta l4proto != @ported update @denied4-portless {{ ip saddr . ip daddr . meta l4proto {recorded} }} log group 9470
             update @counted6 {{ ip6 saddr . ip6 daddr . meta l4proto counter }}
             counter goto end
           }}
           chain end {{ udp dport 4000 counter; counter; drop; }}
           chain quiet {{ drop; }}
           chain arriving {{ type filter hook input priority 0; ip daddr {{ 127.0.0.2, 10.0.0.1 }} goto deny; ip6 daddr ::1 goto deny; }}
         }}"
    ));
}

fn table() -> Table {
    Table::inet(name("t"))
}

fn flow(source: &str, destination: &str, protocol: u8, port: Option<u16>, packets: u64, bytes: u64) -> ConntrackRecord {
    let (source, destination): (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
    ConntrackRecord { source, destination, protocol, port, packets, bytes }
}

fn send(count: u32, to: &str) {
    let to: SocketAddr = to.parse().unwrap();
    let from: IpAddr = if to.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() };
    let socket = UdpSocket::bind((from, 0)).unwrap();
    for _ in 0..count {
        socket.send_to(b"probe", to).unwrap();
    }
}

#[test]
fn flow_records_and_chain_counters_are_exact() {
    in_new_namespace(|| {
        load_rules();
        let mut kernel = Kernel::open().unwrap();
        let records = |kernel: &mut Kernel, set: &str| kernel.flow_records(&table(), &name(set)).unwrap();
        assert_eq!(records(&mut kernel, "denied4"), []);
        send(5, "127.0.0.2:4000");
        send(3, "127.0.0.2:53");
        send(4, "[::1]:4000");
        let gre = ipv4_packet(FAR, NEAR, 47, &[0; 8]);
        loop_back(IPV4, &gre);
        // Headers and 5 bytes; a second read does not count them again.
        for _ in 0..2 {
            let expected = [
                flow("127.0.0.1", "127.0.0.2", 17, Some(53), 3, 3 * 33),
                flow("127.0.0.1", "127.0.0.2", 17, Some(4000), 5, 5 * 33),
            ];
            assert_eq!(records(&mut kernel, "denied4"), expected);
            assert_eq!(records(&mut kernel, "denied6"), [flow("::1", "::1", 17, Some(4000), 4, 4 * 53)]);
            let expected = [flow("10.0.0.9", "10.0.0.1", 47, None, 1, 28)];
            assert_eq!(records(&mut kernel, "denied4-portless"), expected);
            assert_eq!(records(&mut kernel, "counted6"), [flow("::1", "::1", 17, None, 4, 4 * 53)]);
            let chains = ["deny", "end", "quiet", "nowhere"].map(name);
            let ports = 8 * 33 + 4 * 53;
            let expected = BTreeMap::from([
                (name("deny"), Counter { packets: 13, bytes: ports + 28 }),
                (name("end"), Counter { packets: 13 + 9, bytes: ports + 28 + 5 * 33 + 4 * 53 }),
            ]);
            assert_eq!(kernel.chain_counters(&table(), &chains).unwrap(), expected);
        }
    });
}

#[test]
fn what_is_not_there_has_no_records() {
    in_new_namespace(|| {
        let mut kernel = Kernel::open().unwrap();
        for _ in 0..2 {
            assert_eq!(kernel.flow_records(&table(), &name("nowhere")).unwrap(), []);
            assert_eq!(kernel.chain_counters(&table(), &[name("nowhere")]).unwrap(), BTreeMap::new());
            assert_eq!(kernel.chain_counters(&table(), &[]).unwrap(), BTreeMap::new());
            run_nft("add table inet t");
        }
    });
}

#[test]
fn flow_listing_is_complete() {
    in_new_namespace(|| {
        load_rules();
        let mut kernel = Kernel::open().unwrap();
        let expected = many_flows(1);
        // The kernel grows the set's hash table in the background, and a busy machine may delay that.
        let deadline = Instant::now() + PATIENCE;
        while kernel.flow_records(&table(), &name("denied4")).unwrap() != expected {
            assert!(Instant::now() < deadline, "flows are missing");
        }
    });
}

#[test]
fn records_are_complete_during_traffic_and_foreign_commits() {
    in_new_namespace(|| {
        load_rules();
        let (mut kernel, mut committing) = (Kernel::open().unwrap(), Kernel::open().unwrap());
        let ports: BTreeSet<Option<u16>> = many_flows(1).iter().map(|flow| flow.port).collect();
        let (received, least) = std::thread::scope(|scope| {
            // Sockets that were opened here stay in this thread's namespace; a new thread starts in it.
            scope.spawn(|| {
                for _ in 0..200 {
                    commit(&mut committing, &create(&empty()));
                    commit(&mut committing, &[Operation::DeleteTable { table: empty().table }]);
                }
            });
            let sending = scope.spawn(|| many_flows(10));
            let (mut received, mut least, mut before) = (BTreeSet::new(), u64::MAX, 3000);
            let deadline = Instant::now() + 3 * PATIENCE;
            while received != ports || !sending.is_finished() {
                assert!(Instant::now() < deadline, "{} flows of {} were reported", received.len(), ports.len());
                let records = kernel.flow_records(&table(), &name("denied4")).unwrap();
                received.extend(records.iter().map(|flow| flow.port));
                least = records.iter().map(|flow| flow.packets).fold(least, u64::min);
                let counters = kernel.chain_counters(&table(), &[name("deny"), name("nowhere")]).unwrap();
                let counted = counters[&name("deny")].packets;
                assert!(counted >= before && counters.len() == 1, "{counters:?} after {before}");
                before = counted;
            }
            (received, least)
        });
        assert_eq!(received, ports);
        assert!(least >= 1, "every reported flow has a packet");
    });
}

/// Sends this many packets of each of many flows. Returns the expected records.
fn many_flows(packets: u64) -> Vec<ConntrackRecord> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let ports = 10_000..13_000;
    for port in ports.clone().cycle().take(ports.len() * usize::try_from(packets).unwrap()) {
        socket.send_to(b"probe", ("127.0.0.2", port)).unwrap();
    }
    ports.map(|port| flow("127.0.0.1", "127.0.0.2", 17, Some(port), packets, 33 * packets)).collect()
}
