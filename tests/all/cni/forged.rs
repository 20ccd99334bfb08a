//! A pod that forges its source address does not bypass its egress policy.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::process::Command;

use kit::agent_process::{AgentProcess, ask_socket, ringfence, until};
use kit::cni_runtime::Runtime;
use kit::frame::{icmpv6_packet, send_frame, send_packets, udp_datagram, udp_packet};
use kit::kernel_table::{counted, nft};
use kit::prober::{PacketArrivals, arrivals, count_arrivals};
use serde_json::{Value, json};
use tests::dns_server::answer_with;

use super::edge::GATEWAY4;
use super::{Families, NODE, NODE_ADDRESS, Place, Pod};
use crate::stage::{namespace, pod, policy};

/// Number of datagrams from one address.
const SENT: u64 = 20;

/// Values of `--source-check`, and whether policies isolate the pods. The last case is the positive control.
const CHECK_AND_ISOLATION: [(&str, bool); 3] = [("on", true), ("off", true), ("off", false)];

/// The kernel's reverse path filter would hide the source check on some routed networks.
const REVERSE_PATH: [&str; 2] = ["/proc/sys/net/ipv4/conf/all/rp_filter", "/proc/sys/net/ipv4/conf/default/rp_filter"];

/// The pods of a chain of real plugins, on a node with a real agent.
pub(super) struct Node<'place> {
    pub(super) agent: AgentProcess<'place>,
    pub(super) runtime: Runtime,
    pub(super) web: Pod,
    /// Addresses of the tested family, by pod name.
    pub(super) addresses: BTreeMap<&'static str, IpAddr>,
    pub(super) db: Pod,
    pub(super) other: Pod,
}

impl<'place> Node<'place> {
    /// With policies that deny all egress of `web` and all ingress to `other`, and allow all ingress to `db`.
    pub(super) fn start(place: &'place Place, plugin: Value, v6: bool, arguments: &[&str]) -> Node<'place> {
        let nowhere = policy("nowhere", "app=web", json!({"policyTypes": ["Egress"]}));
        let closed = policy("closed", "app=other", json!({"policyTypes": ["Ingress"]}));
        Node::start_with(place, &[plugin, place.ours(json!({}))], &[nowhere, closed], v6, arguments)
    }

    /// A node with pods on a bridge, with the policies of [`Node::start`] or without any.
    fn on_bridge(place: &'place Place, v6: bool, check: &str, isolated: bool) -> Node<'place> {
        let bridge = place.bridge(Families::Dual);
        match isolated {
            true => Node::start(place, bridge, v6, &["--source-check", check]),
            false => Node::start_with(place, &[bridge, place.ours(json!({}))], &[], v6, &["--source-check", check]),
        }
    }

    /// A node with these plugins and policies.
    pub(super) fn start_with(
        place: &'place Place,
        plugins: &[Value],
        policies: &[Value],
        v6: bool,
        arguments: &[&str],
    ) -> Node<'place> {
        let manifests = place.path("manifests");
        std::fs::create_dir_all(&manifests).unwrap();
        let named = |name: &str| {
            let mut pod = pod(name, NODE, &format!("app={name}"), &[]);
            pod["metadata"]["uid"] = format!("uid-of-{name}").into();
            pod
        };
        let objects = [&[namespace("shop", ""), named("web"), named("db"), named("other")][..], policies].concat();
        let text: Vec<String> = objects.iter().map(Value::to_string).collect();
        std::fs::write(manifests.join("all.yaml"), text.join("\n---\n")).unwrap();

        let mut command = ringfence();
        command.args(["agent", "--node-name", NODE, "--run-dir"]).arg(place.path("run")).arg("--manifests");
        command.arg(&manifests).args(arguments);
        let mut agent = AgentProcess::start(&place.lab, NODE, command);
        agent.until_ready();
        let runtime = place.runtime("1.0.0", plugins);
        runtime.on_node(|| REVERSE_PATH.map(|path| std::fs::write(path, "0").unwrap()));
        let [web, db, other] = ["web", "db", "other"].map(Pod::new);
        let mut addresses = BTreeMap::new();
        for (name, pod) in [("web", &web), ("db", &db), ("other", &other)] {
            let added = runtime.add(&pod.container).unwrap();
            addresses.insert(name, *added.addresses().iter().find(|a| a.is_ipv6() == v6).unwrap());
        }
        Node { agent, runtime, web, addresses, db, other }
    }

    /// The number of `web`'s datagrams with this source that reach `db`.
    pub(super) fn arrives_from(&self, source: IpAddr) -> u64 {
        let to = self.addresses["db"];
        self.arrives(source, SocketAddr::new(to, 9))
    }

    fn arrives(&self, source: IpAddr, to: SocketAddr) -> u64 {
        self.db.sandbox.run(|| count_arrivals(&[to.ip()]));
        self.web.sandbox.run(|| send(SocketAddr::new(source, 0), to));
        let arrived: BTreeMap<IpAddr, PacketArrivals> = self.db.sandbox.run(arrivals);
        arrived.get(&source).map_or(0, |a| a.datagrams)
    }

    /// The number of `web`'s datagrams that reach `db` in an approved flow of `other`.
    fn arrives_in_flow_of_other(&self) -> u64 {
        let (from, to) = (SocketAddr::new(self.addresses["other"], 40_000), SocketAddr::new(self.addresses["db"], 9));
        self.db.sandbox.run(|| count_arrivals(&[to.ip()]));
        self.other.sandbox.run(|| send(from, to));
        self.web.sandbox.run(|| send(from, to));
        self.db.sandbox.run(arrivals).get(&from.ip()).map_or(0, |a| a.datagrams)
    }

    fn address_of(&self, pod: &Pod) -> IpAddr {
        let own = |name: &&&str| pod.container.id == format!("id-of-{name}");
        self.addresses[self.addresses.keys().find(own).expect("a pod of the node")]
    }

    pub(super) fn end(self) {
        let log = self.agent.log();
        assert!(!log.contains("ERROR"), "{log}");
        self.runtime.delete(&self.web.container).unwrap();
    }
}

/// Sends as a privileged pod would: it adds the source address to its interface if necessary.
pub(super) fn send(from: SocketAddr, to: SocketAddr) {
    let source = from.ip();
    let (family, length) = if source.is_ipv4() { ("-4", 32) } else { ("-6", 128) };
    let shown =
        Command::new("ip").args(["-o", family, "address", "show", "to", &format!("{source}/{length}")]).output();
    let address = format!("{source}/{length}");
    let words = [family, "address", "add", &address, "dev", "eth0"];
    let undetected: &[&str] = if source.is_ipv4() { &[] } else { &["nodad"] };
    if shown.unwrap().stdout.is_empty() {
        assert!(Command::new("ip").args(words).args(undetected).status().unwrap().success());
    }
    let socket = UdpSocket::bind(from).unwrap();
    for _ in 0..SENT {
        socket.send_to(b"forged", to).unwrap();
    }
}

/// On each kind of network and in each family, the check passes only the pod's own address to its policy.
fn forged_sources_are_dropped(plugin: impl Fn(&Place) -> Value, v6: bool) {
    let unused: IpAddr = if v6 { "fd00:1::99" } else { "10.1.0.99" }.parse().unwrap();
    for (check, passes) in [("on", 0), ("off", SENT)] {
        let place = Place::new();
        let node = Node::start(&place, plugin(&place), v6, &["--source-check", check]);
        let (own, others) = (node.addresses["web"], node.addresses["other"]);
        assert_eq!(node.arrives_from(own), 0, "its policy, with the check {check}");
        assert_eq!(node.arrives_from(unused), passes, "{unused}, which nobody has, with the check {check}");
        assert_eq!(node.arrives_from(others), passes, "another pod's address, with the check {check}");
        assert_eq!(node.arrives_in_flow_of_other(), SENT + passes, "another pod's flow, with the check {check}");
        node.end();
    }
}

#[test]
fn routed_pod_sends_with_own_addresses_only() {
    forged_sources_are_dropped(|place| place.ptp(Families::V4), false);
    forged_sources_are_dropped(|place| place.ptp(Families::Dual), true);
}

#[test]
fn bridged_pod_sends_with_own_addresses_only() {
    forged_sources_are_dropped(|place| place.bridge(Families::V4), false);
    forged_sources_are_dropped(|place| place.bridge(Families::Dual), true);
}

/// The bridge stops calling the hooks of IP while the agent runs. Whoever no policy isolates is reached as before.
fn isolated_pods_need_hooks_of_bridge(v6: bool) {
    let call =
        |family: &str, value: &str| std::fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{family}"), value);
    let families = ["iptables", "ip6tables"];
    for (check, isolated) in CHECK_AND_ISOLATION {
        let place = Place::new();
        let node = Node::on_bridge(&place, v6, check, isolated);
        let arrives = |from: &Pod, to: &Pod| {
            let [source, destination] = [from, to].map(|pod| node.address_of(pod));
            to.sandbox.run(|| count_arrivals(&[destination]));
            from.sandbox.run(|| send((source, 0).into(), (destination, 9).into()));
            to.sandbox.run(arrivals).get(&source).map_or(0, |a| a.datagrams)
        };
        let arriving = if isolated { 0 } else { SENT };
        for calls in ["1", "0", "1"] {
            node.runtime.on_node(|| families.map(|family| call(family, calls).unwrap()));
            assert_eq!(arrives(&node.other, &node.db), SENT, "not isolated, hooks {calls}, check {check}");
            assert_eq!(arrives(&node.db, &node.other), arriving, "ingress, hooks {calls}, check {check}");
            assert_eq!(arrives(&node.web, &node.db), arriving, "egress, hooks {calls}, check {check}");
        }
        node.runtime.delete(&node.web.container).unwrap();
    }
}

#[test]
fn isolated_ipv4_pods_need_hooks_of_bridge() {
    isolated_pods_need_hooks_of_bridge(false);
}

#[test]
fn isolated_ipv6_pods_need_hooks_of_bridge() {
    isolated_pods_need_hooks_of_bridge(true);
}

/// The pod `other` answers a query of `web` to the resolver `db`, from the resolver's address and port.
fn forged_answer_opens_nothing(plugin: impl Fn(&Place) -> Value, arguments: &[&str]) {
    const NAME: &str = "www.example.org";
    let [forged, genuine] = ["198.51.100.1", "198.51.100.2"];
    let policy = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "names"},
        "spec": {
            "tier": "Admin", "priority": 1,
            "subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}},
            "egress": [
                {"action": "Accept", "to": [{"namespaces": {}}]},
                {"action": "Accept", "to": [{"domainNames": [NAME]}]},
                {"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]},
            ],
        },
    });
    let place = Place::new();
    let arguments = [&["--dns-pods", "shop/app=db"], arguments].concat();
    let node = Node::start_with(&place, &[plugin(&place), place.ours(json!({}))], &[policy], false, &arguments);
    let resolver = SocketAddr::new(node.addresses["db"], 53);
    let client = SocketAddr::new(node.addresses["web"], 4000);
    let learned = |address: &str| node.runtime.on_node(|| nft("list table inet ringfence")).contains(address);
    until("answers are copied", || learned("dns-clients4").then_some(()));
    let server = node.db.sandbox.run(|| UdpSocket::bind(resolver).unwrap());
    let asking = node.web.sandbox.run(|| UdpSocket::bind(client).unwrap());
    asking.send_to(b"a query", resolver).unwrap();
    server.recv(&mut [0; 64]).unwrap();
    let answer = |address: &str| answer_with(NAME, address.parse().unwrap());
    let datagram = udp_datagram(resolver, client, &answer(forged));
    node.other.sandbox.run(|| send_packets(&[datagram]));
    server.send_to(&answer(genuine), client).unwrap();
    until("the resolver's answer is learned", || learned(genuine).then_some(()));
    assert!(!learned(forged));
    node.end();
}

#[test]
fn forged_dns_answer_of_pod_opens_nothing() {
    forged_answer_opens_nothing(|place| place.ptp(Families::V4), &[]);
    forged_answer_opens_nothing(|place| place.bridge(Families::V4), &[]);
}

/// The source address is another pod's, so only the interface identifies the sender.
#[test]
fn forged_source_event_names_the_sending_pod() {
    let networks: [fn(&Place) -> Value; 2] = [|place| place.ptp(Families::V4), |place| place.bridge(Families::V4)];
    for plugin in networks {
        let place = Place::new();
        let mut node = Node::start(&place, plugin(&place), false, &[]);
        let claimed = node.addresses["other"];
        // The neighbour is already resolved: a pod cannot resolve it with another pod's address.
        assert_eq!(node.arrives_from(node.addresses["web"]), 0);
        assert_eq!(node.arrives_from(claimed), 0);
        let events: Vec<Value> = node.agent.until("it is reported", |_| {
            let body = ask_socket(&place.path("run"), "/v1/drops").body;
            let lines = body.lines().filter(|line| line.starts_with('{'));
            let mut events: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
            events.retain(|event| event["cause"] == "forged-source" && event["source"]["address"] == json!(claimed));
            // The log is rate-limited, and other packets of the pod may have been logged before.
            (events.iter().filter_map(|event| event["count"].as_u64()).sum::<u64>() > 1).then_some(events)
        });
        let first = &events[0];
        assert_eq!((&first["source"]["pod"], &first["count"]), (&json!("shop/web"), &json!(1)), "{first}");
        assert_eq!((&first["source"]["address"], &first["destination"]["pod"]), (&json!(claimed), &json!("shop/db")));
        let note = format!("forged source address: it belongs to shop/other ({claimed})");
        assert_eq!((&first["note"], &first["policies"]), (&json!(note), &json!([])));
        node.end();
    }
}

pub(super) fn link_local(pod: &Pod) -> Ipv6Addr {
    let shown = pod.sandbox.run(|| Command::new("ip").args(["-o", "-6", "address", "show", "eth0"]).output());
    let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
    let word = shown.split_whitespace().find(|word| word.starts_with("fe80:")).expect("a link-local address");
    word.split('/').next().and_then(|address| address.parse().ok()).expect("an address")
}

/// The bytes of `eth0`'s hardware address.
pub(super) fn hardware_address(pod: &Pod) -> Vec<u8> {
    pod.sandbox.run(|| hardware_address_of("eth0"))
}

/// The bytes of the hardware address of an interface in the network namespace of this thread.
pub(super) fn hardware_address_of(interface: &str) -> Vec<u8> {
    let shown = Command::new("ip").args(["-o", "link", "show", interface]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let (_, rest) = shown.split_once("link/ether ").expect("an Ethernet interface");
    let address = rest.split_whitespace().next().expect("an address");
    address.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect()
}

/// The receiver's kernel removes a tag with VLAN ID 0, so the receiver needs no configuration.
#[test]
fn vlan_tags_do_not_bypass_bridged_policy() {
    const TAGS: [&[u8]; 3] = [&[0x81, 0, 0, 0], &[0x88, 0xa8, 0, 0], &[0x81, 0, 0, 0, 0x81, 0, 0, 0]];
    for (check, isolated) in CHECK_AND_ISOLATION {
        let place = Place::new();
        let node = Node::on_bridge(&place, false, check, isolated);
        let (IpAddr::V4(from), IpAddr::V4(to)) = (node.addresses["web"], node.addresses["db"]) else {
            panic!("IPv4 addresses")
        };
        let [source, destination] = [&node.web, &node.db].map(hardware_address);
        let arrives = |tag: &[u8]| {
            let packet = udp_packet(from.octets(), to.octets(), 9, b"tagged");
            let frame = [&destination[..], &source, tag, &[0x08, 0], &packet].concat();
            node.db.sandbox.run(|| count_arrivals(&[to.into()]));
            node.web.sandbox.run(|| (0..SENT).for_each(|_| send_frame("eth0", &frame)));
            node.db.sandbox.run(arrivals).get(&IpAddr::from(from)).map_or(0, |a| a.datagrams)
        };
        assert_eq!(arrives(&[]) == 0, isolated, "without a tag its policy holds");
        let arrived: Vec<bool> = TAGS.into_iter().map(|tag| arrives(tag) > 0).collect();
        assert!(arrived.contains(&true) != isolated, "with the check {check}: {arrived:?}");

        // The bridge's own device, on which a process of the node or a VLAN interface sends.
        let IpAddr::V4(to) = node.addresses["other"] else { panic!("an IPv4 address") };
        let source = node.runtime.on_node(|| hardware_address_of("cni0"));
        let packet = udp_packet(GATEWAY4.octets(), to.octets(), 9, b"tagged");
        let frame = [&hardware_address(&node.other)[..], &source, TAGS[0], &[0x08, 0], &packet].concat();
        node.other.sandbox.run(|| count_arrivals(&[to.into()]));
        node.runtime.on_node(|| (0..SENT).for_each(|_| send_frame("cni0", &frame)));
        let arrived = node.other.sandbox.run(arrivals).get(&IpAddr::from(GATEWAY4)).map_or(0, |a| a.datagrams);
        assert_eq!(arrived == 0, isolated, "from the node, with the check {check}");
        node.end();
    }
}

/// The sender chooses the frame's receivers, independently of the packet's destination address.
#[test]
fn isolated_bridged_pod_receives_no_broadcast_or_multicast() {
    for (check, isolated) in CHECK_AND_ISOLATION {
        let place = Place::new();
        let node = Node::on_bridge(&place, false, check, isolated);
        let IpAddr::V4(from) = node.addresses["db"] else { panic!("an IPv4 address") };
        let [source, destination] = [&node.db, &node.other].map(hardware_address);
        for to in [Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 1, 255, 255), Ipv4Addr::new(224, 0, 0, 1)] {
            let packet = udp_packet(from.octets(), to.octets(), 9, b"all");
            let frame = [&destination[..], &source, &[0x08, 0], &packet].concat();
            node.other.sandbox.run(|| count_arrivals(&[to.into()]));
            node.db.sandbox.run(|| (0..SENT).for_each(|_| send_frame("eth0", &frame)));
            let arrived = node.other.sandbox.run(arrivals).get(&IpAddr::from(from)).map_or(0, |a| a.datagrams);
            assert_eq!(arrived, if isolated { 0 } else { SENT }, "to {to}, with the check {check}");
        }
        node.end();
    }
}

/// Policies do not judge link-local addresses, so the rules about bridge ports close them without the source check, too.
#[test]
fn link_local_addresses_do_not_bypass_bridged_policy() {
    for (check, isolated) in CHECK_AND_ISOLATION {
        let place = Place::new();
        let node = Node::on_bridge(&place, true, check, isolated);
        // From a pod that nothing isolates to one that is isolated for ingress, and from one isolated for egress.
        for (sender, receiver) in [(&node.db, &node.other), (&node.web, &node.db)] {
            let [from, to] = [sender, receiver].map(link_local);
            let scope = sender.sandbox.run(index_of_eth0);
            receiver.sandbox.run(|| count_arrivals(&[to.into()]));
            sender.sandbox.run(|| {
                let socket = UdpSocket::bind(SocketAddrV6::new(from, 0, 0, scope)).unwrap();
                (0..SENT).for_each(|_| assert!(socket.send_to(b"hello", SocketAddrV6::new(to, 9, 0, scope)).is_ok()));
            });
            let arrived = receiver.sandbox.run(arrivals).get(&IpAddr::from(from)).map_or(0, |a| a.datagrams);
            assert_eq!(arrived, if isolated { 0 } else { SENT }, "from {from} to {to}, with the check {check}");
        }
        node.end();
    }
}

/// No policy covers link-local addresses, so pods may use them for neighbour discovery only.
#[test]
fn link_local_addresses_serve_discovery_only() {
    let place = Place::new();
    let node = Node::start(&place, place.bridge(Families::Dual), true, &[]);
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let from = link_local(&node.db);
    let scope = node.db.sandbox.run(index_of_eth0);
    for to in [all_nodes, link_local(&node.web)] {
        let pods = [&node.web, &node.other];
        pods.iter().for_each(|pod| pod.sandbox.run(|| count_arrivals(&[to.into()])));
        node.db.sandbox.run(|| {
            let socket = UdpSocket::bind(SocketAddrV6::new(from, 0, 0, scope)).unwrap();
            (0..SENT).for_each(|_| assert!(socket.send_to(b"hello", SocketAddrV6::new(to, 9, 0, scope)).is_ok()));
        });
        let arrived = pods.map(|pod| pod.sandbox.run(arrivals).get(&IpAddr::from(from)).map_or(0, |a| a.datagrams));
        assert_eq!(arrived, [0, 0], "to {to}");
    }

    // A pod that was added without the plugin solicits an isolated one.
    let old = Pod::new("old");
    place.runtime("1.0.0", &[place.bridge(Families::Dual)]).add(&old.container).unwrap();
    let wanted = node.addresses["other"];
    old.sandbox.run(|| UdpSocket::bind("[::]:0").unwrap().send_to(b"hello", (wanted, 9)).unwrap());
    until("the isolated pod is discovered", || {
        let shown =
            old.sandbox.run(|| Command::new("ip").args(["-6", "neighbour", "show", &wanted.to_string()]).output());
        String::from_utf8(shown.unwrap().stdout).unwrap().contains("lladdr").then_some(())
    });
    node.end();
}

/// Otherwise other pods would get addresses, and a route, that no policy covers.
#[test]
fn router_advertisement_of_bridged_pod_is_dropped() {
    for (check, believed) in [("on", false), ("off", true)] {
        let place = Place::new();
        let node = Node::start(&place, place.bridge(Families::Dual), true, &["--source-check", check]);
        let from = link_local(&node.web);
        let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        // RFC 4861, sections 4.2 and 4.6.2: a router lifetime of half an hour, and a prefix for autoconfiguration.
        let mut advertisement = vec![64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
        advertisement.extend([3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0]);
        advertisement.extend(Ipv6Addr::new(0xfd66, 0xbad, 0, 0, 0, 0, 0, 0).octets());
        let packet = icmpv6_packet(from, all_nodes, 134, &advertisement);
        let frame = [&[0x33, 0x33, 0, 0, 0, 1], &hardware_address(&node.web)[..], &[0x86, 0xdd], &packet].concat();
        node.web.sandbox.run(|| send_frame("eth0", &frame));
        // A later frame that passes shows that the advertisement has been processed or dropped.
        assert_eq!(node.arrives_from(node.addresses["web"]), 0);
        let shown = node.db.sandbox.run(|| Command::new("ip").args(["-6", "address", "show", "dev", "eth0"]).output());
        let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
        assert_eq!(shown.contains("fd66:bad:"), believed, "with the check {check}: {shown}");
        node.end();
    }
}

/// The node decapsulates the packet, so no pod's interface is its input interface.
fn nothing_is_sent_through_the_nodes_tunnel(plugin: impl Fn(&Place) -> Value) {
    for (check, passes) in [("on", false), ("off", true)] {
        let place = Place::new();
        let node = Node::start(&place, plugin(&place), false, &["--source-check", check]);
        let tunnel = "link add tunnel0 address 02:00:00:00:00:01 type vxlan id 1 dstport 8472 nolearning dev lo";
        node.runtime.on_node(|| {
            for words in [tunnel, "link set tunnel0 up"] {
                assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
            }
            std::fs::write("/proc/sys/net/ipv4/conf/tunnel0/rp_filter", "0").unwrap();
        });
        let (IpAddr::V4(to), inner_source) = (node.addresses["db"], Ipv4Addr::new(10, 2, 0, 9)) else {
            panic!("an IPv4 address")
        };
        // RFC 7348: the VNI, then a frame.
        let mut wrapped = vec![8, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0];
        wrapped.extend(udp_packet(inner_source.octets(), to.octets(), 9, b"wrapped"));
        node.db.sandbox.run(|| count_arrivals(&[to.into()]));
        node.web.sandbox.run(|| {
            let socket = UdpSocket::bind((node.addresses["web"], 0)).unwrap();
            for _ in 0..SENT {
                socket.send_to(&wrapped, (NODE_ADDRESS, 8472)).unwrap();
            }
        });
        let arrived = node.db.sandbox.run(arrivals).get(&IpAddr::from(inner_source)).map_or(0, |a| a.datagrams);
        assert_eq!(arrived > 0, passes, "with the check {check}");
        node.end();
    }
}

#[test]
fn routed_pod_sends_nothing_through_node_tunnel() {
    nothing_is_sent_through_the_nodes_tunnel(|place| place.ptp(Families::V4));
}

#[test]
fn bridged_pod_sends_nothing_through_node_tunnel() {
    nothing_is_sent_through_the_nodes_tunnel(|place| place.bridge(Families::V4));
}

/// Other nodes on a bridge receive at its broadcast address. The first pod creates the bridge, after the agent's start.
#[test]
fn broadcast_on_later_bridge_reaches_no_tunnel() {
    let place = Place::new();
    // While no Node object is known, every address counts as a node's.
    let node_b = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-b"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.77"}]},
    });
    let plugins = [place.bridge(Families::V4), place.ours(json!({}))];
    let node = Node::start_with(&place, &plugins, &[node_b], false, &[]);
    let IpAddr::V4(own) = node.addresses["web"] else { panic!("an IPv4 address") };
    let arrives = |port: u16| {
        node.db.sandbox.run(|| super::edge::count_incoming(&format!("udp dport {port}")));
        let packet = udp_packet(own.octets(), [10, 1, 255, 255], port, b"wrapped");
        let frame = [&[0xff; 6][..], &hardware_address(&node.web), &[0x08, 0], &packet].concat();
        node.web.sandbox.run(|| send_frame("eth0", &frame));
        node.db.sandbox.run(super::edge::incoming) > 0
    };
    until("the broadcast address counts as a node's", || (!arrives(8472)).then_some(()));
    assert!(arrives(9));
    node.end();
}

pub(super) fn index_of_eth0() -> u32 {
    let shown = Command::new("ip").args(["-o", "link", "show", "eth0"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    shown.split(':').next().and_then(|number| number.trim().parse().ok()).expect("a number")
}

/// The tables of a bridged pod as nft lists them.
#[test]
fn edge_table_names_pods_and_goes_with_them() {
    let place = Place::new();
    let node = Node::start(&place, place.bridge(Families::Dual), false, &["--table-owner", "off"]);
    let list = |table: &str| node.runtime.on_node(|| nft(&format!("list table {table}")));
    let own = node.addresses["web"].to_string();
    let (edge, bridge) = (list("netdev ringfence"), list("bridge ringfence"));
    for words in ["hook ingress device \"veth", "policy drop", "goto deny/source", "comment \"shop/web\"", &own] {
        assert!(edge.contains(words), "{words} in\n{edge}");
    }
    for words in ["set closed-ports", "hook forward", "goto deny/destination"] {
        assert!(bridge.contains(words), "{words} in\n{bridge}");
    }
    for pod in [&node.web, &node.db] {
        node.runtime.delete(&pod.container).unwrap();
    }
    let mut agent = node.agent;
    agent.until("the pods' chains are gone", |_| {
        let table = node.runtime.on_node(|| nft("list table netdev ringfence"));
        (!table.contains("shop/web") && table.contains("shop/other")).then_some(())
    });
}

/// A host behind the bridge's uplink, whose frames pass no pod interface's check: a receiver removes priority tags.
#[test]
fn tagged_frames_from_uplink_reach_no_isolated_pod() {
    let place = Place::new();
    let node = Node::start(&place, place.bridge(Families::Dual), false, &[]);
    let (IpAddr::V4(other), IpAddr::V4(db)) = (node.addresses["other"], node.addresses["db"]) else {
        panic!("IPv4 addresses")
    };
    node.runtime.on_node(|| {
        for words in
            ["link add uplink0 type veth peer name host0", "link set uplink0 master cni0 up", "link set host0 up"]
        {
            assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
        }
    });
    let count =
        "table inet seen {\nchain input {\ntype filter hook prerouting priority raw;\nudp dport 9 counter\n}\n}\n";
    for (pod, address, arrives) in [(&node.other, other, 0), (&node.db, db, 2)] {
        pod.sandbox.run(|| kit::kernel_table::load_text(count));
        let to = hardware_address(pod);
        let packet = udp_packet([10, 1, 0, 200], address.octets(), 9, b"tagged");
        node.runtime.on_node(|| {
            for tag in [[0x81, 0, 0, 0], [0x88, 0xa8, 0, 0]] {
                let from = [2, 0, 0x5e, 0, 0, 9];
                send_frame("host0", &[&to[..], &from, &tag, &[0x08, 0], &packet].concat());
            }
        });
        assert_eq!(pod.sandbox.run(|| counted("table inet seen")), arrives, "at {address}");
    }
    node.end();
}
