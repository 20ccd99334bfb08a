//! Counts packets that arrive in a network namespace. nftables rules count them, so that no packet is missed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

use crate::kernel_table::{load_text, nft};

/// Packets that arrived from one address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketArrivals {
    pub datagrams: u64,
    /// SYN packets.
    pub connections: u64,
}

/// Starts to count, from zero, packets that arrive at these addresses of this thread's network namespace.
///
/// # Panics
/// If the rules cannot be loaded.
pub fn count_arrivals(at: &[IpAddr]) {
    let mut text = String::from("table inet arrivals { }\ndelete table inet arrivals\ntable inet arrivals {\n");
    for number in [4, 6] {
        text.push_str(&format!(
            "set seen{number} {{ type ipv{number}_addr . inet_proto; flags dynamic; size 65535; counter; }}\n"
        ));
    }
    text.push_str("chain arrivals {\ntype filter hook prerouting priority raw; policy accept;\n");
    for address in at {
        let (family, number) = if address.is_ipv4() { ("ip", 4) } else { ("ip6", 6) };
        for what in ["meta l4proto udp", "tcp flags & (syn | ack) == syn"] {
            text.push_str(&format!(
                "{family} daddr {address} {what} update @seen{number} {{ {family} saddr . meta l4proto counter }}\n"
            ));
        }
    }
    text.push_str("}\n}\n");
    load_text(&text);
}

/// Packets that arrived in this thread's network namespace since [`count_arrivals`], by source address.
///
/// # Panics
/// If [`count_arrivals`] was not called here.
pub fn arrivals() -> BTreeMap<IpAddr, PacketArrivals> {
    let listing: Value = serde_json::from_str(&nft("-j list table inet arrivals")).expect("nft prints JSON");
    let mut arrived: BTreeMap<IpAddr, PacketArrivals> = BTreeMap::new();
    let sets = listing["nftables"].as_array().expect("a list").iter().filter_map(|item| item.get("set"));
    for element in sets.filter_map(|set| set["elem"].as_array()).flatten() {
        let element = &element["elem"];
        let [source, protocol] = [0, 1].map(|part| element["val"]["concat"][part].as_str().expect("a part"));
        let packets = element["counter"]["packets"].as_u64().expect("a count");
        let entry = arrived.entry(source.parse().expect("an address")).or_default();
        match protocol {
            "udp" => entry.datagrams += packets,
            "tcp" => entry.connections += packets,
            other => panic!("invalid protocol {other}: expected udp or tcp"),
        }
    }
    arrived
}
