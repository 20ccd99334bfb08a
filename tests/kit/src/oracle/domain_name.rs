//! Domain names as peers.

use std::net::{IpAddr, Ipv6Addr};

use serde_json::Value;

use super::World;
use super::address::owner;
use super::json::{NotUnderstood, string};

/// The domain of the cluster's own names.
const CLUSTER_DOMAIN: &str = "cluster.local";

/// Whether the address was learned for a name that this one of `domainNames` matches. An address that is none of another
/// host never counts, one of a pod or node, or of the range of a node's pods, only for the cluster's own names.
pub(super) fn is_named(world: &World, wanted: &Value, address: IpAddr) -> Result<bool, NotUnderstood> {
    let wanted = labels(string(wanted)?);
    let (wildcard, wanted) = match wanted.split_last() {
        Some((star, rest)) if star == "*" => (true, rest),
        _ => (false, &wanted[..]),
    };
    // The pattern of the type has two labels at least.
    if wanted.len() < 2 || !wanted.iter().all(|label| is_label(label)) {
        return Err(NotUnderstood);
    }
    let names = world.learned.iter().filter(|(_, learned)| *learned == address && may_be_named(address));
    let mut names = names
        .map(|(name, _)| labels(name))
        .filter(|name| name.starts_with(&labels(CLUSTER_DOMAIN)) || !is_inside(world, address));
    // "'*' matches one or more entire labels."
    Ok(names.any(|name| match wildcard {
        true => name.len() > wanted.len() && name.starts_with(wanted),
        false => name == wanted,
    }))
}

/// The labels of a name in lower case, the last one first; a final dot adds none.
fn labels(name: &str) -> Vec<String> {
    let name = name.strip_suffix('.').unwrap_or(name);
    name.to_ascii_lowercase().rsplit('.').map(str::to_owned).collect()
}

/// `[a-zA-Z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?`
fn is_label(label: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_within = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    is_end(label.chars().next()) && is_end(label.chars().last()) && label.chars().all(is_within)
}

fn is_inside(world: &World, address: IpAddr) -> bool {
    let mut of_nodes = world.nodes.iter().flat_map(|node| node.status.iter()).flat_map(|status| &status.addresses);
    let mut of_pods =
        world.nodes.iter().filter_map(|node| node.spec.as_ref()).flat_map(|spec| &spec.pod_cidrs).flatten();
    owner(world, address).is_some()
        || of_pods.any(|range| range.parse().is_ok_and(|range: ipnet::IpNet| range.contains(&address)))
        || of_nodes.any(|entries| entries.iter().any(|entry| entry.address.parse() == Ok(address)))
}

/// Loopback, link-local, multicast and broadcast addresses and "this network" are not those of another host; an IPv6
/// address may stand for an IPv4 one.
fn may_be_named(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => match v4.octets() {
            [0 | 127, ..] | [169, 254, ..] | [224..=239, ..] | [255, 255, 255, 255] => false,
            [..] => true,
        },
        IpAddr::V6(v6) => {
            let within = |prefix: &str, bits: u32| {
                let prefix: Ipv6Addr = prefix.parse().expect("an address");
                u128::from(v6) >> (128 - bits) == u128::from(prefix) >> (128 - bits)
            };
            let others =
                [("::", 96), ("::ffff:0:0", 96), ("64:ff9b::", 96), ("2002::", 16), ("fe80::", 10), ("ff00::", 8)];
            !others.into_iter().any(|(prefix, bits)| within(prefix, bits))
        }
    }
}
