//! Gathers addresses outside the cluster into few blocks, and counts by how much these are wider.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Blocks of one family for one port that a person still reads. Fewer addresses are listed one by one.
pub(super) const MOST_BLOCKS: usize = 8;

/// Shortest prefixes that addresses are gathered into. These never mix networks of one owner with those of others as a
/// shorter one would, nor private with public addresses.
const SHORTEST_V4: u8 = 16;
const SHORTEST_V6: u8 = 48;

/// A block, and how many of its addresses were seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GatheredBlock {
    pub(super) net: IpNet,
    pub(super) seen: usize,
}

impl GatheredBlock {
    /// Whether it has addresses that were not seen.
    pub(super) fn is_wider(&self) -> bool {
        match free_bits(self.net) {
            bits @ 0..=62 => (1_u64 << bits) > self.seen as u64,
            _ => true,
        }
    }
}

/// `203.0.113.0/28 has 16 addresses, of which 9 were seen`
impl fmt::Display for GatheredBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GatheredBlock { net, seen } = self;
        match free_bits(*net) {
            bits @ 0..=16 => write!(f, "{net} has {} addresses, of which {seen} were seen", 1_u32 << bits),
            bits => write!(f, "{net} has 2^{bits} addresses, of which {seen} were seen"),
        }
    }
}

fn free_bits(net: IpNet) -> u8 {
    net.max_prefix_len() - net.prefix_len()
}

/// Blocks that contain the addresses: one per address, or up to [`MOST_BLOCKS`] of each family. A block contains no
/// address of `others`, so that there may be more blocks.
pub(super) fn gather(addresses: &BTreeSet<IpAddr>, others: &BTreeSet<IpAddr>) -> Vec<GatheredBlock> {
    let (v4, v6): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = addresses.iter().partition(|address| address.is_ipv4());
    [v4, v6].iter().flat_map(|family| gather_family(family, others)).collect()
}

fn gather_family(addresses: &BTreeSet<IpAddr>, others: &BTreeSet<IpAddr>) -> Vec<GatheredBlock> {
    let is_allowed = |net: &IpNet| {
        let shortest = if net.addr().is_ipv4() { SHORTEST_V4 } else { SHORTEST_V6 };
        let mut range = others.range(net.network()..=net.broadcast());
        net.prefix_len() >= shortest && range.all(|other| addresses.contains(other))
    };
    let mut blocks: Vec<IpNet> = addresses.iter().map(|address| IpNet::from(*address)).collect();
    while blocks.len() > MOST_BLOCKS {
        // Of all pairs, two neighbours have the longest common prefix.
        let merged = blocks.windows(2).map(|pair| common(pair[0], pair[1])).filter(is_allowed);
        let Some(longest) = merged.max_by_key(IpNet::prefix_len) else { break };
        let first = blocks.partition_point(|block| block.network() < longest.network());
        let last = blocks.partition_point(|block| block.network() <= longest.broadcast());
        blocks.splice(first..last, [longest]);
    }
    let counted = |net: IpNet| {
        let seen = addresses.range(net.network()..=net.broadcast()).count();
        GatheredBlock { net, seen }
    };
    blocks.into_iter().map(counted).collect()
}

/// The longest prefix of both blocks, which are of one family.
fn common(a: IpNet, b: IpNet) -> IpNet {
    let longest = a.prefix_len().min(b.prefix_len());
    match (a.network(), b.network()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let equal = (u32::from(a) ^ u32::from(b)).leading_zeros().min(u32::from(longest));
            IpNet::V4(Ipv4Net::new_assert(a, equal as u8).trunc())
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let equal = (u128::from(a) ^ u128::from(b)).leading_zeros().min(u32::from(longest));
            IpNet::V6(Ipv6Net::new_assert(a, equal as u8).trunc())
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
            unreachable!("the blocks are of one family")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(texts: &[&str]) -> BTreeSet<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn texts(blocks: &[GatheredBlock]) -> Vec<String> {
        blocks.iter().map(|block| block.net.to_string()).collect()
    }

    #[test]
    fn few_addresses_stay_as_they_are() {
        let seen = set(&["192.0.2.1", "192.0.2.2", "2001:db8::1"]);
        let blocks = gather(&seen, &BTreeSet::new());
        assert_eq!(texts(&blocks), ["192.0.2.1/32", "192.0.2.2/32", "2001:db8::1/128"]);
        assert!(!blocks.iter().any(GatheredBlock::is_wider));
    }

    #[test]
    fn many_addresses_become_blocks_without_others() {
        let mut seen: BTreeSet<IpAddr> = (1..=20).map(|n| IpAddr::from([203, 0, 113, n])).collect();
        seen.insert("192.0.2.9".parse().unwrap());
        let blocks = gather(&seen, &BTreeSet::new());
        assert!(blocks.len() <= MOST_BLOCKS, "{blocks:?}");
        assert_eq!(blocks.iter().map(|block| block.seen).sum::<usize>(), 21);
        assert_eq!(blocks[0].net.to_string(), "192.0.2.9/32");
        let pod = set(&["203.0.113.0"]);
        let without = gather(&seen, &pod);
        assert!(without.iter().all(|block| !block.net.contains(pod.first().unwrap())), "{without:?}");
        let block = GatheredBlock { net: "203.0.113.0/28".parse().unwrap(), seen: 9 };
        assert_eq!(block.to_string(), "203.0.113.0/28 has 16 addresses, of which 9 were seen");
    }

    #[test]
    fn far_apart_addresses_are_not_gathered() {
        let seen: BTreeSet<IpAddr> = (1..=20).map(|n| IpAddr::from([n, 0, 113, 1])).collect();
        assert_eq!(gather(&seen, &BTreeSet::new()).len(), 20);
    }
}
