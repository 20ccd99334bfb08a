//! The search tree: a node for each bit of an address, to the last bit or to that of a network.

use super::{MmdbWriteError, RECORD_BITS, SEPARATOR};

const NODE_BYTES: usize = 2 * RECORD_BITS as usize / 8;
/// The tree is as deep as an IPv6 address is long.
const DEPTH: usize = 128;

pub(super) struct Tree {
    pub(super) nodes: u32,
    pub(super) bytes: Vec<u8>,
}

/// The end of a path: an address, or a network without a longer leaf below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leaf {
    /// The address, or the first address of the network.
    pub(super) first: u128,
    /// Prefix length in bits.
    pub(super) length: u8,
    /// Offset of the record in the data section; `None` without a record.
    pub(super) data: Option<u32>,
}

impl Leaf {
    pub(super) fn of_address(address: u128, data: u32) -> Leaf {
        Leaf { first: address, length: DEPTH as u8, data: Some(data) }
    }

    /// Sort key of leaves: a network before its subnets.
    pub(super) fn place(&self) -> (u128, u8) {
        (self.first, self.length)
    }

    fn length(&self) -> usize {
        usize::from(self.length)
    }

    fn last(&self) -> u128 {
        self.first | u128::MAX.checked_shr(u32::from(self.length)).unwrap_or(0)
    }
}

/// Whether the leaf has an address outside of all later leaves. Leaves are sorted.
pub(super) fn is_reached(leaves: &[Leaf], i: usize) -> bool {
    let last = leaves[i].last();
    let mut uncovered = leaves[i].first;
    for within in leaves[i + 1..].iter().take_while(|leaf| leaf.first <= last) {
        if within.first > uncovered {
            return true;
        }
        match within.last().checked_add(1) {
            Some(after) => uncovered = uncovered.max(after),
            None => return false,
        }
    }
    uncovered <= last
}

impl Tree {
    /// Maps each address to the offset of the record of its longest leaf.
    ///
    /// Leaves are sorted and unique, shorter ones first. Neighbours share the nodes of their common prefix, so only the
    /// rest is new. Both sides of a new node start with the previous target of its place: subnets inherit the record of
    /// a network.
    pub(super) fn of(leaves: &[Leaf], data_bytes: usize) -> Result<Tree, MmdbWriteError> {
        let (whole, leaves) = match leaves {
            [whole, rest @ ..] if whole.length == 0 => (Some(whole), rest),
            _ => (None, leaves),
        };
        let new_below = |i: usize| (leaves[i].length() - 1 - agreed(leaves, i)) as u64;
        let count: u64 = 1 + (0..leaves.len()).map(new_below).sum::<u64>();
        let addressable = count + (SEPARATOR.len() + data_bytes) as u64;
        let nodes = match u32::try_from(count) {
            Ok(nodes) if addressable <= 1 << RECORD_BITS => nodes,
            Ok(_) | Err(_) => return Err(MmdbWriteError::TooLarge { nodes: count, data: data_bytes as u64 }),
        };
        // No data is encoded as the number of nodes.
        let target = |leaf: &Leaf| leaf.data.map_or(nodes, |offset| nodes + SEPARATOR.len() as u32 + offset);

        let mut bytes = vec![0; nodes as usize * NODE_BYTES];
        fill(&mut bytes, 0, whole.map_or(nodes, target));
        let mut path = [0; DEPTH];
        let mut next = 1;
        for (i, leaf) in leaves.iter().enumerate() {
            let side = |depth: usize| (leaf.first >> (DEPTH - 1 - depth)) & 1 == 1;
            let last = leaf.length() - 1;
            for depth in agreed(leaves, i)..last {
                let before = led(&bytes, path[depth], side(depth));
                fill(&mut bytes, next, before);
                lead(&mut bytes, path[depth], side(depth), next);
                path[depth + 1] = next;
                next += 1;
            }
            lead(&mut bytes, path[last], side(last), target(leaf));
        }
        assert_eq!(next, nodes, "every node that was counted is there");
        Ok(Tree { nodes, bytes })
    }
}

/// The depth of the last node that the leaf shares with the previous one.
fn agreed(leaves: &[Leaf], i: usize) -> usize {
    let Some(before) = i.checked_sub(1).map(|before| &leaves[before]) else { return 0 };
    let bits = (before.first ^ leaves[i].first).leading_zeros() as usize;
    bits.min(before.length() - 1)
}

/// Sets both sides of a node.
fn fill(bytes: &mut [u8], node: u32, to: u32) {
    lead(bytes, node, false, to);
    lead(bytes, node, true, to);
}

/// The target of a side of a node.
fn led(bytes: &[u8], node: u32, right: bool) -> u32 {
    let node = &bytes[node as usize * NODE_BYTES..][..NODE_BYTES];
    match right {
        true => u32::from_be_bytes([node[3] & 0x0f, node[4], node[5], node[6]]),
        false => u32::from_be_bytes([node[3] >> 4, node[0], node[1], node[2]]),
    }
}

/// Each side has three bytes, at the ends, and the upper or lower half of the middle byte for its highest four bits.
fn lead(bytes: &mut [u8], node: u32, right: bool, to: u32) {
    let node = &mut bytes[node as usize * NODE_BYTES..][..NODE_BYTES];
    let [high, low @ ..] = to.to_be_bytes();
    if right {
        node[4..].copy_from_slice(&low);
        node[3] = node[3] & 0xf0 | high;
    } else {
        node[..3].copy_from_slice(&low);
        node[3] = node[3] & 0x0f | high << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_node_has_28_bit_record_layout() {
        let mut node = [0; NODE_BYTES];
        lead(&mut node, 0, false, 0x0123_4567);
        lead(&mut node, 0, true, 0x0fed_cba9);
        assert_eq!(node, [0x23, 0x45, 0x67, 0x1f, 0xed, 0xcb, 0xa9]);
        assert_eq!([led(&node, 0, false), led(&node, 0, true)], [0x0123_4567, 0x0fed_cba9]);
        lead(&mut node, 0, false, 0x0aaa_aaaa);
        assert_eq!(node, [0xaa, 0xaa, 0xaa, 0xaf, 0xed, 0xcb, 0xa9]);
    }

    #[test]
    fn addresses_share_nodes_of_common_prefix() {
        let nodes = |addresses: &[u128]| {
            let leaves: Vec<Leaf> = addresses.iter().map(|a| Leaf::of_address(*a, 0)).collect();
            Tree::of(&leaves, 1).unwrap().nodes
        };
        assert_eq!(nodes(&[]), 1);
        assert_eq!(nodes(&[5]), 128);
        assert_eq!(nodes(&[4, 5]), 128);
        assert_eq!(nodes(&[3, 4]), 130);
        assert_eq!(nodes(&[0, u128::MAX]), 255);
    }

    #[test]
    fn networks_end_the_tree_early() {
        let nodes = |leaves: &[Leaf]| Tree::of(leaves, 1).unwrap().nodes;
        let network = |first, length| Leaf { first, length, data: Some(0) };
        assert_eq!(nodes(&[network(0, 0)]), 1);
        assert_eq!(nodes(&[network(0, 8)]), 8);
        assert_eq!(nodes(&[network(0, 0), network(0, 8), network(0, 9)]), 9);
        assert_eq!(nodes(&[network(0, 8), Leaf::of_address(5, 0)]), 128);
    }

    #[test]
    fn network_is_reached_unless_others_cover_it() {
        let of = |leaves: &[(u128, u8)]| {
            let leaves: Vec<Leaf> =
                leaves.iter().map(|(first, length)| Leaf { first: *first, length: *length, data: None }).collect();
            is_reached(&leaves, 0)
        };
        let half = 1 << 127;
        assert!(of(&[(0, 0)]));
        assert!(of(&[(0, 0), (0, 1)]));
        assert!(of(&[(0, 0), (half, 1)]));
        assert!(!of(&[(0, 0), (0, 1), (half, 1)]));
        assert!(!of(&[(0, 0), (0, 1), (0, 2), (half, 1)]));
        assert!(of(&[(0, 0), (0, 2), (half, 1)]));
        assert!(!of(&[(4, 127), (4, 128), (5, 128)]));
        assert!(of(&[(4, 127), (5, 128), (6, 128)]));
        assert!(of(&[(4, 128), (5, 128)]));
    }

    #[test]
    fn table_over_28_bit_record_size_is_refused() {
        let room = (1 << RECORD_BITS) - SEPARATOR.len() - 128;
        let leaf = Leaf::of_address(5, 0);
        assert!(Tree::of(&[leaf], room).is_ok());
        let error = MmdbWriteError::TooLarge { nodes: 128, data: room as u64 + 1 };
        assert_eq!(Tree::of(&[leaf], room + 1).err(), Some(error));
    }
}
