//! Splits overlapping port ranges into disjoint segments with their allowed peers.
//!
//! One union of peers per segment keeps the cost of a first packet constant, but with overlapping ranges each peer is
//! copied into every segment of its range. If that would multiply the peers, segments share *layers* instead: segments
//! are grouped by eights, groups by eights again, and a range is stored in the largest groups that it covers. A peer is
//! then copied at most 14 times per level, and a first packet looks up one layer per level.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::plan::AllowedPeers;
use crate::peers::PeerUnion;

/// Segments in a group, and groups in a group of the next level.
const GROUP: usize = 8;

/// With at most this many peers in all unions, sharing is not worthwhile.
const FEW_PEERS: usize = 64;

/// Unions are used while they contain at most this multiple of the peers in the ranges.
const MOST_COPIES: usize = 4;

/// Unions are used while each set of peers is contained in at most this many of them. One peer may select every pod of
/// the cluster and the others none, so a bound on the sum of copies alone would not bound the set elements.
const MOST_COPIES_OF_ONE: usize = 2 * (GROUP - 1);

/// Ports from the first to the last, inclusive, and the peers allowed there.
#[derive(Debug, Clone)]
pub(crate) struct AllowedPortRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) allowed: Arc<AllowedPeers>,
}

impl AllowedPortRange {
    fn start(&self) -> u32 {
        self.first.into()
    }

    fn end(&self) -> u32 {
        u32::from(self.last) + 1
    }
}

/// A port range that is disjoint from all others.
#[derive(Debug, Clone)]
pub(super) struct PortSegment {
    pub(super) first: u16,
    pub(super) last: u16,
    /// The layers, whose union is allowed. Never empty.
    pub(super) layers: Vec<Arc<AllowedPeers>>,
}

/// Disjoint segments sorted by port, for ports that at least one range covers.
pub(super) fn segments(ranges: &[AllowedPortRange]) -> Vec<PortSegment> {
    match unions_are_cheap(ranges) {
        true => unions(ranges),
        false => layers(ranges),
    }
}

/// The sorted, unique ports at which a range begins or ends.
fn cuts(ranges: &[AllowedPortRange]) -> Vec<u32> {
    let cuts: BTreeSet<u32> = ranges.iter().flat_map(|range| [range.start(), range.end()]).collect();
    cuts.into_iter().collect()
}

/// Whether unions stay within the bounds. Counts the peers of all distinct unions without building them: a union is
/// identified by the XOR of its members' digests. A collision would only make the layout more expensive.
fn unions_are_cheap(ranges: &[AllowedPortRange]) -> bool {
    let mut numbers: BTreeMap<&PeerUnion, usize> = BTreeMap::new();
    let mut events: BTreeMap<u32, Vec<(usize, isize)>> = BTreeMap::new();
    for range in ranges {
        let next = numbers.len();
        let number = *numbers.entry(&range.allowed.peers).or_insert(next);
        events.entry(range.start()).or_default().push((number, 1));
        events.entry(range.end()).or_default().push((number, -1));
    }
    let named: usize = numbers.keys().map(|peers| peers.len()).sum();
    let mut sizes = vec![0; numbers.len()];
    numbers.iter().for_each(|(peers, number)| sizes[*number] = peers.len());
    let mut open = vec![0_isize; sizes.len()];
    // For each set of peers, the number of distinct unions that first occurred while the set was included.
    let mut copies = vec![0; sizes.len()];
    let mut seen_before = vec![0; sizes.len()];
    let (mut union, mut size, mut copied) = (0_u128, 0, 0);
    let mut seen = BTreeSet::new();
    for changes in events.values() {
        for (number, change) in changes {
            let was_open = open[*number] > 0;
            open[*number] += change;
            match (was_open, open[*number] > 0) {
                (false, true) => {
                    size += sizes[*number];
                    seen_before[*number] = seen.len();
                }
                (true, false) => {
                    size -= sizes[*number];
                    copies[*number] += seen.len() - seen_before[*number];
                }
                (true, true) | (false, false) => continue,
            }
            union ^= fingerprint(*number);
        }
        if seen.insert(union) {
            copied += size;
        }
    }
    let most_of_one = copies.into_iter().max().unwrap_or(0);
    most_of_one <= MOST_COPIES_OF_ONE && (copied <= FEW_PEERS || copied <= MOST_COPIES * named)
}

fn fingerprint(number: usize) -> u128 {
    let hash = Sha256::digest(number.to_be_bytes());
    hash[..16].iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte))
}

/// One layer per segment; adjacent segments with the same layer are merged.
fn unions(ranges: &[AllowedPortRange]) -> Vec<PortSegment> {
    let mut opening: Vec<&AllowedPortRange> = ranges.iter().collect();
    opening.sort_by_key(|range| range.start());
    let mut next = opening.into_iter().peekable();
    let mut open: Vec<&AllowedPortRange> = Vec::new();
    let mut joined = Unions::default();
    let mut result: Vec<PortSegment> = Vec::new();
    for pair in cuts(ranges).windows(2) {
        open.retain(|range| range.end() > pair[0]);
        while let Some(range) = next.next_if(|range| range.start() == pair[0]) {
            open.push(range);
        }
        if open.is_empty() {
            continue;
        }
        let allowed = joined.of(open.iter().map(|range| &range.allowed));
        // Cuts are port numbers, or one past the last port.
        let (first, last) = (pair[0] as u16, (pair[1] - 1) as u16);
        match result.last_mut() {
            Some(previous) if u32::from(previous.last) + 1 == pair[0] && previous.layers[0] == allowed => {
                previous.last = last;
            }
            _ => result.push(PortSegment { first, last, layers: vec![allowed] }),
        }
    }
    result
}

/// Cache of unions, so that two rules with many ports are merged only once. Keyed by the pointers to the parts, which
/// the ranges keep alive.
#[derive(Default)]
struct Unions(BTreeMap<BTreeSet<usize>, Arc<AllowedPeers>>);

impl Unions {
    fn of<'a>(&mut self, parts: impl Iterator<Item = &'a Arc<AllowedPeers>>) -> Arc<AllowedPeers> {
        let parts: BTreeMap<usize, &Arc<AllowedPeers>> = parts.map(|part| (Arc::as_ptr(part).addr(), part)).collect();
        let make = || match (parts.len(), parts.values().next()) {
            (1, Some(only)) => Arc::clone(only),
            _ => {
                let mut union = AllowedPeers::default();
                parts.values().for_each(|part| union.join(part));
                Arc::new(union)
            }
        };
        self.0.entry(parts.keys().copied().collect()).or_insert_with(make).clone()
    }
}

/// Segments with shared layers. A layer is identified by its level (0 for the segments themselves) and its index in the
/// level.
fn layers(ranges: &[AllowedPortRange]) -> Vec<PortSegment> {
    let cuts = cuts(ranges);
    let place = |port: u32| cuts.partition_point(|cut| *cut < port);
    let mut parts: BTreeMap<(usize, usize), Vec<&Arc<AllowedPeers>>> = BTreeMap::new();
    for range in ranges {
        for group in groups(place(range.start()), place(range.end())) {
            parts.entry(group).or_default().push(&range.allowed);
        }
    }
    let levels = parts.keys().map(|(level, _)| level + 1).max().unwrap_or(0);
    let mut joined = Unions::default();
    let layers: BTreeMap<(usize, usize), Arc<AllowedPeers>> =
        parts.into_iter().map(|(group, parts)| (group, joined.of(parts.into_iter()))).collect();
    let segment = |(place, pair): (usize, &[u32])| {
        let mut group = place;
        let mut covering = Vec::new();
        for level in 0..levels {
            covering.extend(layers.get(&(level, group)).cloned());
            group /= GROUP;
        }
        let (first, last) = (pair[0] as u16, (pair[1] - 1) as u16);
        (!covering.is_empty()).then_some(PortSegment { first, last, layers: covering })
    };
    cuts.windows(2).enumerate().filter_map(segment).collect()
}

/// Covers the segments from `first` to `end` (exclusive) with the largest possible groups: level and index of each.
fn groups(mut first: usize, mut end: usize) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut level = 0;
    while first < end {
        // The remaining range does not cover a whole group of the next level.
        let is_within_one =
            first / GROUP == (end - 1) / GROUP && (!first.is_multiple_of(GROUP) || !end.is_multiple_of(GROUP));
        if is_within_one {
            found.extend((first..end).map(|place| (level, place)));
            break;
        }
        while !first.is_multiple_of(GROUP) {
            found.push((level, first));
            first += 1;
        }
        while !end.is_multiple_of(GROUP) {
            end -= 1;
            found.push((level, end));
        }
        (first, end, level) = (first / GROUP, end / GROUP, level + 1);
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Selector;
    use crate::peers::{Namespaces, PodPeer};

    fn range(first: u16, last: u16, namespace: &str) -> AllowedPortRange {
        let peer = PodPeer { namespaces: Namespaces::Named(namespace.into()), pods: Selector::everything() };
        let peers = PeerUnion { pods: [peer].into(), ..PeerUnion::default() };
        AllowedPortRange { first, last, allowed: Arc::new(AllowedPeers { peers, by: BTreeSet::new() }) }
    }

    fn shape(ranges: &[AllowedPortRange]) -> Vec<(u16, u16, usize)> {
        segments(ranges).iter().map(|s| (s.first, s.last, s.layers[0].peers.pods.len())).collect()
    }

    #[test]
    fn overlapping_ranges_are_cut_where_the_peers_change() {
        assert_eq!(shape(&[range(10, 30, "a"), range(20, 40, "b")]), [(10, 19, 1), (20, 30, 2), (31, 40, 1)]);
        assert_eq!(shape(&[range(0, 65535, "a"), range(80, 80, "b")]), [(0, 79, 1), (80, 80, 2), (81, 65535, 1)]);
    }

    #[test]
    fn adjacent_ranges_with_same_peers_are_merged() {
        assert_eq!(shape(&[range(1, 5, "a"), range(6, 9, "a"), range(3, 7, "a")]), [(1, 9, 1)]);
        assert_eq!(shape(&[range(1, 5, "a"), range(7, 9, "a")]), [(1, 5, 1), (7, 9, 1)]);
        assert_eq!(shape(&[]), []);
    }

    #[test]
    fn unions_are_cheap_for_ports_not_nested_ranges() {
        let ranges: Vec<AllowedPortRange> = (0..1000).map(|n| range(n, n, &format!("n{n}"))).collect();
        assert!(unions_are_cheap(&ranges));
        let nested: Vec<AllowedPortRange> = (0..100).map(|n| range(n, 1000 - n, &format!("n{n}"))).collect();
        assert!(!unions_are_cheap(&nested));
    }

    #[test]
    fn many_copies_of_one_peer_require_layers() {
        let with_all = |exact: u16| {
            let exact = (0..exact).map(|n| range(2 * n, 2 * n, &format!("n{n}")));
            exact.chain([range(0, u16::MAX, "all")]).collect::<Vec<AllowedPortRange>>()
        };
        assert!(unions_are_cheap(&with_all(12)));
        assert!(!unions_are_cheap(&with_all(20)));
    }

    /// The peers allowed at a port.
    fn at(segments: &[PortSegment], port: u16) -> BTreeSet<PodPeer> {
        let covering = segments.iter().filter(|s| (s.first..=s.last).contains(&port));
        covering.flat_map(|s| &s.layers).flat_map(|layer| layer.peers.pods.clone()).collect()
    }

    proptest! {
        #[test]
        fn unions_and_layers_allow_same_peers_as_ranges(
            drawn in prop::collection::vec((0..120_u16, 0..120_u16, 0..20_usize), 1..60)
        ) {
            let ranges: Vec<AllowedPortRange> =
                drawn.iter().map(|(a, b, n)| range(*a.min(b), *a.max(b), &format!("n{n}"))).collect();
            for found in [unions(&ranges), layers(&ranges)] {
                for pair in found.windows(2) {
                    prop_assert!(pair[0].last < pair[1].first);
                }
                for port in 0..125 {
                    let covering = ranges.iter().filter(|r| (r.first..=r.last).contains(&port));
                    let expected: BTreeSet<PodPeer> = covering.flat_map(|r| r.allowed.peers.pods.clone()).collect();
                    prop_assert_eq!(at(&found, port), expected, "port {}", port);
                }
            }
        }

        #[test]
        fn few_groups_cover_a_range_exactly(first in 0..5_000_usize, length in 1..5_000_usize) {
            let found = groups(first, first + length);
            let mut covered: Vec<usize> = found
                .iter()
                .flat_map(|(level, place)| {
                    let width = GROUP.pow(*level as u32);
                    place * width..(place + 1) * width
                })
                .collect();
            covered.sort_unstable();
            prop_assert!(covered.into_iter().eq(first..first + length));
            prop_assert!(found.len() <= 2 * (GROUP - 1) * 5, "{} groups", found.len());
        }
    }
}
