use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use cni::protocol::{Request, Response};
use cni::{AttachmentRecord, isolation};
use kit::cni_runtime::{FakeAgent, Prober, Reply, Runtime};
use kit::frame::{ip_packet, send_frame, udp_datagram, udp_packet};
use kit::kernel_table::{counted, load_text, nft};
use kit::netns::in_new_namespace;
use kit::prober::{PacketArrivals, arrivals, count_arrivals};
use serde_json::{Value, json};

use super::edge::{BRIDGE, GATEWAY4, GATEWAY6, Network, PTP, count_incoming, incoming, ip, neighbour};
use super::forged::{hardware_address, hardware_address_of, link_local};
use super::options::UNKNOWN_OPTION;
use super::redirected::bandwidth;
use super::{Families, Place, Pod};

const LIST: &str = "list table inet ringfence-isolated";

/// Plugin keys for pods that start without the agent.
fn isolating() -> Value {
    json!({"timeoutSeconds": 1, "onTimeout": "isolate"})
}

/// Long enough to send thousands of packets.
const PROBE: Duration = Duration::from_millis(30);

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn table(elements4: &str, elements6: &str) -> String {
    format!(
        "table inet ringfence-isolated {{
\tcomment \"pods that started without the agent, kept by ringfence-cni\"
\tset pods4 {{
\t\ttype ipv4_addr
{elements4}\t}}

\tset pods6 {{
\t\ttype ipv6_addr
{elements6}\t}}

\tchain forward {{
\t\ttype filter hook forward priority filter; policy accept;
\t\tip saddr @pods4 drop
\t\tip daddr @pods4 drop
\t\tip6 saddr @pods6 drop
\t\tip6 daddr @pods6 drop
\t}}

\tchain output {{
\t\ttype filter hook output priority filter; policy accept;
\t\tip6 nexthdr ipv6-icmp @nh,320,8 0x4 @nh,432,8 0x0 drop
\t}}
}}
"
    )
}

#[test]
fn isolation_table_is_exact_after_repeated_adds() {
    in_new_namespace(|| {
        isolation::add(&addresses(&["10.1.0.7", "fd00:1::7", "10.1.0.7"]), None).unwrap();
        let one = table("\t\telements = { 10.1.0.7 }\n", "\t\telements = { fd00:1::7 }\n");
        assert_eq!(nft(LIST), one);
        isolation::add(&addresses(&["10.1.0.7"]), None).unwrap();
        assert_eq!(nft(LIST), one);
        nft("flush chain inet ringfence-isolated forward");
        isolation::add(&addresses(&["10.1.0.8"]), None).unwrap();
        let two = table("\t\telements = { 10.1.0.7, 10.1.0.8 }\n", "\t\telements = { fd00:1::7 }\n");
        assert_eq!(nft(LIST), two);

        isolation::remove(&addresses(&["10.1.0.8", "fd00:1::7", "10.9.9.9"]), None).unwrap();
        assert_eq!(nft(LIST), table("\t\telements = { 10.1.0.7 }\n", ""));
        isolation::remove(&addresses(&["10.1.0.7"]), None).unwrap();
        assert_eq!(nft(LIST), table("", ""));
        assert_eq!(nft("list tables"), "table inet ringfence-isolated\n");
    });
}

#[test]
fn thousands_of_isolated_addresses_round_trip_through_nft() {
    let many: Vec<IpAddr> = (0..3000_u32).map(|n| IpAddr::V6((0xfd00 << 112 | u128::from(n)).into())).collect();
    let listing = in_new_namespace(|| {
        isolation::add(&many, None).unwrap();
        nft(LIST)
    });
    in_new_namespace(|| {
        load_text(&listing);
        assert_eq!(nft(LIST), listing);
        isolation::remove(&many, None).unwrap();
        assert_eq!(nft(LIST), table("", ""));
    });
}

#[test]
fn without_a_table_there_is_nothing_to_remove() {
    in_new_namespace(|| {
        isolation::remove(&addresses(&["10.1.0.7"]), None).unwrap();
        assert_eq!(nft("list tables"), "");
    });
}

#[test]
fn refused_isolation_names_operation_and_changes_nothing() {
    in_new_namespace(|| {
        let other = "table inet ringfence-isolated {\n\tset pods4 {\n\t\ttype inet_service\n\t}\n}\n";
        load_text(other);
        let refusal = isolation::add(&addresses(&["10.1.0.7"]), None).unwrap_err().to_string();
        assert!(refusal.contains("'add set'"), "{refusal}");
        assert_eq!(nft(LIST), other);
    });
}

/// The packets that arrive at `to` when both pods send to it; the test is about the first pod.
fn arrive(to: &Pod, at: IpAddr, from: [&Pod; 2]) -> BTreeMap<IpAddr, PacketArrivals> {
    to.sandbox.run(|| count_arrivals(&[at]));
    let probers = from.map(|pod| Prober::ready(&pod.sandbox, SocketAddr::new(at, 9)));
    for sending in probers.map(|prober| prober.start(PROBE)) {
        let sent = sending.end();
        assert!(sent.datagrams > 10 && sent.connections > 10, "{sent:?}");
    }
    to.sandbox.run(arrivals)
}

fn add(runtime: &Runtime, pod: &Pod, family: usize) -> (IpAddr, String) {
    let added = runtime.add(&pod.container).unwrap();
    (added.addresses()[family], added.steps.last().unwrap().stderr.clone())
}

fn host_interface(place: &Place, pod: &Pod) -> Option<String> {
    let of_pod = |attachment: &AttachmentRecord| attachment.id == pod.id();
    place.attachments().into_iter().find(of_pod).and_then(|attachment| attachment.host_interface)
}

/// The interface behaves as if it were absent: the node reflects no forged source, and no tunnel is reached.
fn interface_of_isolated_pod_receives_nothing(network: Network, limited: Option<Value>) {
    let place = Place::new();
    let plugins: Vec<Value> =
        [Some(network(&place)), limited, Some(place.ours(isolating()))].into_iter().flatten().collect();
    let runtime = place.runtime("1.0.0", &plugins);
    let late = Pod::new("late");
    let (own, _) = add(&runtime, &late, 0);
    let forged = IpAddr::from([10, 1, 0, 99]);
    let interface = host_interface(&place, &late);
    assert!(interface.is_some());
    let arrive = || {
        runtime.on_node(|| {
            load_text(
                "table inet seen { }\ndelete table inet seen\ntable inet seen {\nchain prerouting {\n\
                       type filter hook prerouting priority -400;\nudp dport 8472 counter\n}\n}\n",
            );
        });
        late.sandbox.run(|| {
            for source in [own, forged] {
                super::forged::send(SocketAddr::new(source, 0), SocketAddr::new(GATEWAY4.into(), 8472));
            }
        });
        runtime.on_node(|| counted("table inet seen"))
    };
    assert_eq!(arrive(), 0);
    runtime.on_node(|| isolation::remove(&[own], interface.as_deref())).unwrap();
    neighbour(&late, GATEWAY4.into());
    assert!(arrive() > 0);
    runtime.delete(&late.container).unwrap();
}

#[test]
fn routed_pod_without_agent_sends_nothing() {
    interface_of_isolated_pod_receives_nothing(PTP, None);
    // Redirected packets return after the interface's ingress hook.
    interface_of_isolated_pod_receives_nothing(PTP, Some(bandwidth()));
}

#[test]
fn bridged_pod_without_agent_sends_nothing() {
    interface_of_isolated_pod_receives_nothing(BRIDGE, None);
    interface_of_isolated_pod_receives_nothing(BRIDGE, Some(bandwidth()));
}

/// Packets that tc redirects bypass the chain at the interface, and the node answers unknown hop-by-hop options first,
/// to the source that the pod has forged.
#[test]
fn options_of_pod_without_agent_send_no_answer() {
    let place = Place::new();
    let runtime = place.runtime("1.0.0", &[PTP(&place), bandwidth(), place.ours(isolating())]);
    let [other, late] = ["other", "late"].map(Pod::new);
    let agent = FakeAgent::enforcing(&place.socket());
    let (victim, _) = add(&runtime, &other, 1);
    drop(agent);
    add(&runtime, &late, 1);
    let interface = host_interface(&place, &late).unwrap();
    let to = runtime.on_node(|| hardware_address_of(&interface));
    let packet = ip_packet(victim, GATEWAY6.into(), 0, &UNKNOWN_OPTION);
    let frame = [&to[..], &hardware_address(&late), &[0x86, 0xdd], &packet].concat();
    let answers = || {
        other.sandbox.run(|| count_incoming("icmpv6 type parameter-problem"));
        late.sandbox.run(|| (0..5).for_each(|_| send_frame("eth0", &frame)));
        other.sandbox.run(incoming)
    };
    neighbour(&other, GATEWAY6.into());
    assert_eq!(answers(), 0);
    runtime.on_node(|| nft("delete chain inet ringfence-isolated output"));
    // The kernel limits the rate of errors, those that were dropped included.
    let is_answered = (0..20).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        answers() > 0
    });
    assert!(is_answered);
}

/// Frames reach a bridge port by hardware address, whatever their IP destination, with or without the IP hooks.
#[test]
fn bridged_pod_without_agent_receives_nothing() {
    let place = Place::new();
    let chain = |more| place.runtime("1.0.0", &[BRIDGE(&place), place.ours(more)]);
    let runtime = chain(json!({}));
    let [db, late] = ["db", "late"].map(Pod::new);
    let agent = FakeAgent::enforcing(&place.socket());
    let (from, _) = add(&runtime, &db, 0);
    let of_db = place.attachments().into_iter().find(|attachment| attachment.pod == "db").unwrap();
    let global = *of_db.addresses.iter().find(|address| address.is_ipv6()).unwrap();
    let global = SocketAddr::new(global, 40_000);
    drop(agent);
    let (address, _) = add(&chain(isolating()), &late, 0);
    let (IpAddr::V4(from), IpAddr::V4(own)) = (from, address) else { panic!("IPv4 addresses") };
    let (source, to) = (hardware_address(&db), hardware_address(&late));
    // The gateway leads to an address that no plugin has reported.
    let gateway = neighbour(&db, GATEWAY6.into());
    let configured = SocketAddr::new("fd00:1::77".parse().unwrap(), 9);
    runtime.on_node(|| {
        let hardware: Vec<String> = to.iter().map(|byte| format!("{byte:02x}")).collect();
        ip(&format!("neighbour replace {} lladdr {} dev cni0", configured.ip(), hardware.join(":")));
    });
    let v4 = |destination: [u8; 4]| (0x0800_u16, udp_packet(from.octets(), destination, 9, b"to the isolated"));
    let link = [&db, &late].map(|pod| SocketAddr::new(link_local(pod).into(), 9));
    let frames = [
        (&to[..], v4(own.octets())),
        (&[0xff; 6], v4([255; 4])),
        (&to, v4([10, 1, 255, 255])),
        (&[0x01, 0, 0x5e, 0, 0, 1], v4([224, 0, 0, 1])),
        (&to, (0x86dd, udp_datagram(link[0], link[1], b"to the isolated"))),
        (&gateway, (0x86dd, udp_datagram(global, configured, b"to the isolated"))),
    ];
    let arrived = |call_hooks: &str| {
        runtime.on_node(|| {
            for family in ["iptables", "ip6tables"] {
                std::fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{family}"), call_hooks).unwrap();
            }
        });
        frames.each_ref().map(|(to, (kind, packet))| {
            late.sandbox.run(|| count_incoming("udp dport 9"));
            let frame = [to, &source[..], &kind.to_be_bytes(), packet].concat();
            db.sandbox.run(|| send_frame("eth0", &frame));
            late.sandbox.run(incoming)
        })
    };
    assert_eq!(["0", "1"].map(arrived), [[0; 6]; 2]);
    let attachment = place.attachments().into_iter().find(|attachment| attachment.pod == "late").unwrap();
    runtime.on_node(|| isolation::remove(&attachment.all_addresses(), attachment.host_interface.as_deref())).unwrap();
    assert_eq!(["0", "1"].map(arrived), [[1; 6]; 2]);
    for family in ["netdev", "bridge"] {
        let table = runtime.on_node(|| nft(&format!("list table {family} ringfence-isolated")));
        assert!(!table.contains("pod/"), "{table}");
    }
}

/// A third pod still reaches its peer; the pod that started without the agent cannot send or receive anything.
fn isolated_pod_is_cut_off(families: Families, family: usize) {
    let place = Place::new();
    let chain = |more| place.runtime("1.0.0", &[place.ptp(families), place.ours(more)]);
    let runtime = chain(json!({}));
    let [server, other, late] = ["server", "other", "late"].map(Pod::new);
    let agent = FakeAgent::enforcing(&place.socket());
    let (server_address, _) = add(&runtime, &server, family);
    let (other_address, _) = add(&runtime, &other, family);
    drop(agent);
    let (late_address, said) = add(&chain(isolating()), &late, family);
    assert!(said.contains("pod shop/late starts isolated in table ringfence-isolated"), "{said}");
    assert!(said.contains("cannot connect to the agent"), "{said}");
    assert_eq!(place.attachments().len(), 3, "the agent is to find it");

    let sources = |arrived: &BTreeMap<IpAddr, PacketArrivals>| arrived.keys().copied().collect::<Vec<_>>();
    let arrived = arrive(&server, server_address, [&late, &other]);
    assert_eq!(sources(&arrived), [other_address]);
    assert!(arrived[&other_address].datagrams > 0 && arrived[&other_address].connections > 0, "{arrived:?}");
    assert!(arrive(&late, late_address, [&server, &other]).is_empty());

    runtime.on_node(|| isolation::remove(&[late_address], host_interface(&place, &late).as_deref())).unwrap();
    neighbour(&late, if late_address.is_ipv4() { GATEWAY4.into() } else { GATEWAY6.into() });
    let free = arrive(&server, server_address, [&late, &other]);
    assert_eq!(sources(&free).len(), 2, "{free:?}");
}

#[test]
fn pod_added_without_agent_is_isolated_both_ways() {
    isolated_pod_is_cut_off(Families::V4, 0);
}

#[test]
fn pod_added_without_agent_is_isolated_over_ipv6() {
    isolated_pod_is_cut_off(Families::Dual, 1);
}

#[test]
fn plugin_adds_no_table_when_agent_isolates() {
    let place = Place::new();
    let _agent = FakeAgent::start(&place.socket(), |request| match request {
        Request::Add { .. } => Reply::Answer(Response::Isolated { reason: "the pod is not known".into() }),
        _ => Reply::Answer(Response::Ok),
    });
    let runtime = place.ptp_runtime(json!({"onTimeout": "isolate"}));
    let (_, said) = add(&runtime, &Pod::new("api-0"), 0);
    assert!(said.contains("starts isolated by the agent, with all traffic denied: the pod is not known"), "{said}");
    assert_eq!(place.attachments().len(), 1);
    assert_eq!(runtime.on_node(|| nft("list tables")), "");
}

#[test]
fn add_fails_when_isolation_fails() {
    let place = Place::new();
    let runtime = place.ptp_runtime(isolating());
    runtime.on_node(|| load_text("table inet ringfence-isolated {\nset pods4 {\ntype inet_service\n}\n}\n"));
    let failed = runtime.add(&Pod::new("api-0").container).unwrap_err();
    assert_eq!(failed.code, 11);
    assert!(failed.details.contains("cannot be isolated"), "{failed:?}");
    assert_eq!(place.attachments(), []);
}

/// Packets of a macvlan pod pass no hook of its node.
#[test]
fn pod_without_host_interface_is_not_isolated() {
    let place = Place::new();
    let result = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.7/32"}]}"#;
    let runtime = place.runtime("1.0.0", &[place.stub(result), place.ours(isolating())]);
    let refused = |reason: &str| {
        let failed = runtime.add(&Pod::new("late").container).unwrap_err();
        assert_eq!(failed.code, 11);
        for words in [reason, "prevResult has no host-side interface", "use onTimeout: fail"] {
            assert!(failed.details.contains(words), "{failed:?}");
        }
        assert_eq!(place.attachments(), []);
        assert_eq!(runtime.on_node(|| nft("list tables")), "");
    };
    refused("cannot connect to the agent");
    let _agent = FakeAgent::start(&place.socket(), |request| match request {
        Request::Add { .. } => Reply::Answer(Response::Isolated { reason: "the pod is not known".into() }),
        _ => Reply::Answer(Response::Ok),
    });
    refused("the pod is not known");
}

#[test]
fn delete_releases_isolated_address_unless_reused() {
    let place = Place::new();
    let result = |address: &str| {
        let interfaces = r#"[{"name":"pod0"}]"#;
        format!(r#"{{"cniVersion":"1.0.0","interfaces":{interfaces},"ips":[{{"address":"{address}/32"}}]}}"#)
    };
    let chain = |address: &str| place.runtime("1.0.0", &[place.stub(&result(address)), place.ours(isolating())]);
    let [first, second] = ["first", "second"].map(Pod::new);
    let runtime = chain("10.1.0.7");
    runtime.on_node(|| ip("link add pod0 type veth peer name pod1"));
    runtime.add(&first.container).unwrap();
    runtime.add(&second.container).unwrap();
    let is_isolated = || {
        let listing = runtime.on_node(|| nft(LIST));
        (listing.contains("elements = { 10.1.0.7 }"), listing.contains("chain pod/pod0"))
    };
    assert_eq!(is_isolated(), (true, true));
    runtime.delete(&first.container).unwrap();
    assert_eq!(is_isolated(), (true, true));
    runtime.delete(&first.container).unwrap();
    runtime.delete(&second.container).unwrap();
    assert_eq!(is_isolated(), (false, false));
}
