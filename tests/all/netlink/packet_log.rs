//! Logged packets arrive with their metadata, and lost ones are counted.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use kit::agent_process::until;
use kit::frame::{icmpv6_packet, ipv4_packet, send_frame, udp_packet};
use nfnetlink::{LogEvent, LogRecord, PacketHead, PacketLog, PacketLogError};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};

use super::*;

const GROUP: u16 = 9470;
const SNAP_BYTES: u32 = 128;

/// A packet over the loopback interface is logged within microseconds; a machine under load takes longer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

pub(super) const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Runs `ip` commands in this thread's namespace.
fn ip(commands: &[&str]) {
    for command in commands {
        let status = std::process::Command::new("ip").args(command.split(' ')).status().expect("iproute2 is installed");
        assert!(status.success(), "ip {command}");
    }
}

/// An interface to send from, with an address that accepts frames of [`FAR`]: the kernel accepts none of 127.0.0.0/8.
pub(super) fn set_up_loopback() {
    ip(&["link set lo up", "address add 10.0.0.1/32 dev lo", "route add 10.0.0.9/32 dev lo"]);
}

pub(super) const NEAR: [u8; 4] = [10, 0, 0, 1];
pub(super) const FAR: [u8; 4] = [10, 0, 0, 9];

/// Packets to ports 4000 and 4001 and echo requests go to a chain that logs and drops.
fn load_rules() {
    set_up_loopback();
    load_text(
        "table inet t {
           chain deny { counter; log prefix \"ringfence deny/ingress\" group 9470 snaplen 128; drop; }
           chain arriving { type filter hook input priority 0; th dport 4000-4001 goto deny; \
             icmp type echo-request goto deny; icmpv6 type echo-request goto deny; }
         }",
    );
}

/// The next packet, with its head alone.
fn packet(log: &mut PacketLog) -> LogRecord {
    match log.next(PATIENCE).unwrap() {
        Some(LogEvent::Packet(packet)) => head_of(*packet),
        other => panic!("no packet but {other:?}"),
    }
}

/// The packet without its number and the bytes that its head was decoded from.
fn head_of(packet: LogRecord) -> LogRecord {
    assert!(packet.bytes.len() <= SNAP_BYTES as usize && !packet.bytes.is_empty());
    LogRecord { bytes: vec![], sequence: None, ..packet }
}

fn datagram(from: &str, to: &str) -> SocketAddr {
    let socket = UdpSocket::bind(from).unwrap();
    socket.send_to(b"probe", to).unwrap();
    socket.local_addr().unwrap()
}

/// Sends a SYN and returns its source address.
fn syn(to: &str) -> SocketAddr {
    let to: SocketAddr = to.parse().unwrap();
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let connection = socket(family, SockType::Stream, flags, None).unwrap();
    let started = connect(std::os::fd::AsRawFd::as_raw_fd(&connection), &SockaddrStorage::from(to));
    assert_eq!(started, Err(Errno::EINPROGRESS));
    TcpStream::from(connection).local_addr().unwrap()
}

/// Sends a packet, from the IP header on, over the loopback interface.
pub(super) fn loop_back(ether_type: u16, packet: &[u8]) {
    send_frame("lo", &[&[0; 12][..], &ether_type.to_be_bytes(), packet].concat());
}

fn expected(ether_type: u16, content: PacketHead) -> LogRecord {
    LogRecord {
        prefix: "ringfence deny/ingress".into(),
        ether_type,
        input: Some("lo".into()),
        output: None,
        sequence: None,
        content: Some(content),
        bytes: vec![],
        original: None,
        reply: None,
    }
}

fn head(source: IpAddr, destination: &str, protocol: u8) -> PacketHead {
    PacketHead { source, destination: destination.parse().unwrap(), protocol, ports: None, icmp: None }
}

#[test]
fn logged_packet_has_prefix_addresses_and_ports() {
    in_new_namespace(|| {
        load_rules();
        let mut log = PacketLog::open(GROUP, SNAP_BYTES).unwrap();
        let check = |log: &mut PacketLog, ether_type, content| assert_eq!(packet(log), expected(ether_type, content));

        let from = datagram("127.0.0.1:0", "127.0.0.2:4000");
        let ports = Some((from.port(), 4000));
        check(&mut log, IPV4, PacketHead { ports, ..head(from.ip(), "127.0.0.2", 17) });
        let from = datagram("[::1]:0", "[::1]:4000");
        let ports = Some((from.port(), 4000));
        check(&mut log, IPV6, PacketHead { ports, ..head(from.ip(), "::1", 17) });
        let from = syn("127.0.0.2:4001");
        let ports = Some((from.port(), 4001));
        check(&mut log, IPV4, PacketHead { ports, ..head(from.ip(), "127.0.0.2", 6) });
        let from = syn("[::1]:4001");
        let ports = Some((from.port(), 4001));
        check(&mut log, IPV6, PacketHead { ports, ..head(from.ip(), "::1", 6) });

        let echo = ipv4_packet(FAR, NEAR, 1, &[8, 0, 0xf7, 0xfe, 0, 0, 0, 1]);
        loop_back(IPV4, &echo);
        let icmp = Some((8, 0));
        check(&mut log, IPV4, PacketHead { icmp, ..head(FAR.into(), "10.0.0.1", 1) });
        let local = std::net::Ipv6Addr::LOCALHOST;
        loop_back(IPV6, &icmpv6_packet(local, local, 128, &[0, 0, 0, 1]));
        let icmp = Some((128, 0));
        check(&mut log, IPV6, PacketHead { icmp, ..head(local.into(), "::1", 58) });

        assert_eq!(log.next(Duration::ZERO).unwrap(), None);
    });
}

#[test]
fn outgoing_packet_has_its_output_interface() {
    in_new_namespace(|| {
        set_up_loopback();
        load_text(
            "table inet t { chain leaving { type filter hook output priority 0; \
               udp dport 4000 log prefix \"out\" group 9470; }; }",
        );
        let mut log = PacketLog::open(GROUP, SNAP_BYTES).unwrap();
        datagram("127.0.0.1:0", "127.0.0.2:4000");
        let LogRecord { prefix, input, output, .. } = packet(&mut log);
        assert_eq!((prefix.as_str(), input, output.as_deref()), ("out", None, Some("lo")));
    });
}

#[test]
fn a_packet_on_a_bridge_tells_the_port() {
    in_new_namespace(|| {
        ip(&[
            "link add br0 type bridge",
            "link add pod0 type veth peer name inside",
            "link set pod0 master br0",
            "link set br0 up",
            "link set pod0 up",
            "link set inside up",
        ]);
        load_text(
            "table bridge t { chain first { type filter hook prerouting priority -300; \
               ether type { ip, arp } log prefix \"ringfence deny/source\" group 9470 snaplen 128; }; }",
        );
        let mut log = PacketLog::open(GROUP, SNAP_BYTES).unwrap();
        let udp = udp_packet([10, 0, 0, 1], [10, 0, 0, 2], 80, b"probe");
        let ethernet = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        // The bridge drops incoming frames until it has noticed the port's carrier, which it does in the background.
        let deadline = Instant::now() + PATIENCE;
        let first = loop {
            send_frame("inside", &[&ethernet[..], &IPV4.to_be_bytes(), &udp].concat());
            match log.next(Duration::from_millis(20)).unwrap() {
                Some(LogEvent::Packet(packet)) => break head_of(*packet),
                None => assert!(Instant::now() < deadline, "no packet"),
                Some(LogEvent::Lost { .. }) => panic!("packets were lost"),
            }
        };
        let ports = Some((40_000, 80));
        let content = PacketHead { ports, ..head([10, 0, 0, 1].into(), "10.0.0.2", 17) };
        let packet_of = |ether_type, content| LogRecord {
            prefix: "ringfence deny/source".into(),
            ether_type,
            input: Some("pod0".into()),
            output: None,
            sequence: None,
            content,
            bytes: vec![],
            original: None,
            reply: None,
        };
        assert_eq!(first, packet_of(IPV4, Some(content)));
        send_frame("inside", &[&ethernet[..], &[0x08, 0x06], &[0; 28]].concat());
        let arp = std::iter::repeat_with(|| packet(&mut log)).find(|packet| packet.ether_type != IPV4);
        assert_eq!(arp, Some(packet_of(0x0806, None)));
    });
}

#[test]
fn group_in_use_is_refused_and_undisturbed() {
    in_new_namespace(|| {
        load_rules();
        let mut first = PacketLog::open(GROUP, SNAP_BYTES).unwrap();
        let second = PacketLog::open(GROUP, SNAP_BYTES);
        let Err(PacketLogError::Taken { group: GROUP, by: Some(port) }) = second else {
            panic!("{:?}", second.err());
        };
        assert_eq!(port, first.port());
        let mut other = PacketLog::open(GROUP + 1, SNAP_BYTES).unwrap();
        datagram("127.0.0.1:0", "127.0.0.2:4000");
        assert_eq!(packet(&mut first).ether_type, IPV4);
        assert_eq!(other.next(Duration::ZERO).unwrap(), None);
        drop(first);
        // A process that another test forks has a copy of the socket until it calls exec.
        let mut second = until("the group is free", || PacketLog::open(GROUP, SNAP_BYTES).ok());
        datagram("[::1]:0", "[::1]:4000");
        assert_eq!(packet(&mut second).ether_type, IPV6);
    });
}

#[test]
fn packets_lost_to_full_buffer_are_counted() {
    in_new_namespace(|| {
        load_rules();
        let mut log = PacketLog::open(GROUP, SNAP_BYTES).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..20_000 {
            socket.send_to(b"probe", "127.0.0.2:4000").unwrap();
        }
        let (mut received, mut lost, mut full) = (0, 0, 0);
        let mut read = |log: &mut PacketLog| loop {
            match log.next(Duration::from_millis(200)).unwrap() {
                Some(LogEvent::Packet(_)) => received += 1,
                Some(LogEvent::Lost { messages: Some(messages) }) => lost += messages,
                Some(LogEvent::Lost { messages: None }) => full += 1,
                None => break (received, lost, full),
            }
        };
        let (kept, gaps, full) = read(&mut log);
        assert!(kept > 2000, "{kept} packets fit into the buffer");
        assert_eq!((gaps, full), (0, 1), "lost packets show in the number of the next one");
        socket.send_to(b"probe", "127.0.0.2:4000").unwrap();
        let (received, lost, full) = read(&mut log);
        assert_eq!((received, full), (kept + 1, 1));
        let table = Table::inet(name("t"));
        let logged = Kernel::open().unwrap().chain_counters(&table, &[name("deny")]).unwrap()[&name("deny")].packets;
        assert_eq!(received + lost, logged);
        println!("{received} packets received, {lost} lost");
    });
}

#[test]
fn packet_log_without_net_admin_is_not_permitted() {
    const INSIDE: &str = "RINGFENCE_TEST_WITHOUT_CAP_NET_ADMIN";
    if std::env::var_os(INSIDE).is_some() {
        let opened = in_new_namespace(|| PacketLog::open(GROUP, SNAP_BYTES));
        assert!(matches!(opened, Err(PacketLogError::NotPermitted)), "{:?}", opened.err());
        return;
    }
    // A process cannot regain a dropped capability, so this test runs itself again in a separate process.
    let me = std::env::current_exe().unwrap();
    let output = std::process::Command::new("setpriv")
        .args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"])
        .arg(me)
        .args(["--exact", "netlink::packet_log::packet_log_without_net_admin_is_not_permitted"])
        .env(INSIDE, "1")
        .output()
        .expect("util-linux is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
