//! A dynamic set that counts the connections of each edge: source, destination, protocol and port.

use std::fs;
use std::net::Ipv4Addr;

use nfnetlink::Kernel;
use nft::{Name, Table};

use super::super::ours::Cluster;
use super::super::place::run;
use super::super::traffic::{PORT, Traffic};
use super::Size;
use super::cost::{Node, TrackingConfig, turns};
use kit::frame::{send_packets, udp_packet};
use kit::kernel_table::load_text;
use kit::netns::in_new_namespace;

/// Capacity of the set.
const ROOM: u32 = 65_536;

pub(super) struct Edges {
    /// Edges counted in the fullest set.
    pub(super) edges: u32,
    /// Nanoseconds of a first packet, the median of each run: without the set, for an edge that a full set contains,
    /// and for a new edge.
    pub(super) without: Vec<f64>,
    pub(super) known: Vec<f64>,
    pub(super) unknown: Vec<f64>,
    /// Bytes of kernel memory in each run.
    pub(super) empty_bytes: Vec<f64>,
    pub(super) full_bytes: Vec<f64>,
}

pub(super) fn measure(size: &Size) -> Edges {
    let [sources, destinations] = size.edge_ends;
    let cluster = Cluster { peer_addresses: sources + 1, local_addresses: destinations + 1, ..Cluster::SMALLEST };
    let traffic = Traffic::FirstFromWorld { sources: cluster.remote_peers(), destinations: cluster.destinations() };
    let edges = sources * destinations;
    let nodes: Vec<Node> = (0..3).map(|_| Node::new(TrackingConfig::OFF, &cluster)).collect();
    for node in &nodes[1..] {
        node.place.on_node(|| load_set("forward", "accept"));
    }
    // Every pair of a source and a destination occurs once in this many packets.
    fill(edges, || {
        nodes[1].ends.send_all(&traffic, edges);
        nodes[1].ends.discard_received();
        nodes[1].flush_conntrack();
        nodes[1].place.on_node(counted)
    });
    let mut runs = turns(nodes.len(), size.packets, |number| {
        let node = &nodes[number];
        if number == 2 {
            node.place.on_node(|| run("nft", &["flush", "set", "inet", "edges", "edges"], ""));
        }
        node.turn(&traffic, size.packets.batches)
    })
    .into_iter();
    let mut next = || runs.next().expect("three nodes");
    let (without, known, unknown) = (next(), next(), next());
    let (empty_bytes, full_bytes) = (0..size.packets.rounds).map(|_| memory(size.edge_ends)).unzip();
    Edges { edges, without, known, unknown, empty_bytes, full_bytes }
}

/// Sends packets of all edges until all are in the set: on a busy machine kernel queues drop some.
///
/// # Panics
/// If edges are missing after many attempts.
fn fill(edges: u32, send: impl FnMut() -> u32) {
    const ATTEMPTS: usize = 20;
    let counts: Vec<u32> = std::iter::repeat_with(send).take(ATTEMPTS).take_while(|counted| *counted < edges).collect();
    assert!(counts.len() < ATTEMPTS, "edges in the set after each attempt: {counts:?} of {edges}");
}

/// Adds a chain at the hook that puts the edge of each packet into the set; with conntrack, of each connection.
fn load_set(hook: &str, verdict: &str) {
    let new = if hook == "forward" { "ct state new" } else { "" };
    load_text(&format!(
        "table inet edges {{
           set edges {{ type ipv4_addr . ipv4_addr . inet_proto . inet_service; size {ROOM}; flags dynamic; }}
           chain {hook} {{ type filter hook {hook} priority 1; \
             {new} update @edges {{ ip saddr . ip daddr . meta l4proto . th dport counter }} {verdict}; }}
         }}"
    ));
}

fn counted() -> u32 {
    let mut kernel = Kernel::open().expect("nf_tables");
    let name = |text| Name::new(text).expect("a name");
    let records = kernel.flow_records(&Table::inet(name("edges")), &name("edges")).expect("elements of a set");
    u32::try_from(records.len()).expect("some 65,536")
}

/// Memory of the empty and of the full set, in a namespace where packets use no other memory.
fn memory([sources, destinations]: [u32; 2]) -> (f64, f64) {
    in_new_namespace(|| {
        let range = |second: u8| u32::from(Ipv4Addr::new(10, second, 0, 0));
        run("ip", &["link", "set", "lo", "up"], "");
        run("ip", &["route", "add", "local", "10.2.0.0/16", "dev", "lo"], "");
        let packet = |source: u32, destination: u32| {
            let [source, destination] =
                [range(1) + source, range(2) + destination].map(|bits| Ipv4Addr::from(bits).octets());
            udp_packet(source, destination, PORT, &[])
        };
        let packets: Vec<Vec<u8>> = (0..sources)
            .flat_map(|source| (0..destinations).map(move |destination| packet(source, destination)))
            .collect();
        let before = slab_bytes();
        load_set("prerouting", "drop");
        let empty = slab_bytes();
        fill(sources * destinations, || {
            send_packets(&packets);
            counted()
        });
        let full = slab_bytes();
        (empty - before, full - before)
    })
}

/// Slab memory of the whole machine, which other programs change too.
fn slab_bytes() -> f64 {
    let meminfo = fs::read_to_string("/proc/meminfo").expect("proc_meminfo(5)");
    let line = meminfo.lines().find_map(|line| line.strip_prefix("SUnreclaim:")).expect("proc_meminfo(5)");
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().expect("proc_meminfo(5)");
    kibibytes * 1024.0
}
