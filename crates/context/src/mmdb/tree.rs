//! The search tree: a node for each bit of an address, down to the last.

use super::{RECORD_BITS, SEPARATOR, WriteError};

const NODE_BYTES: usize = 2 * RECORD_BITS as usize / 8;
/// The tree is as deep as an IPv6 address is long.
const DEPTH: usize = 128;

pub(super) struct Tree {
    pub(super) nodes: u32,
    pub(super) bytes: Vec<u8>,
}

impl Tree {
    /// Leads from each address to where its record is in the data section.
    ///
    /// The addresses are in order, each once. Those with the same beginning are next to each other, so that the nodes of
    /// one are those of the one before it as far as they agree, and new ones from there.
    pub(super) fn of(leaves: &[(u128, u32)], data_bytes: usize) -> Result<Tree, WriteError> {
        let new_below = |i: usize| DEPTH as u64 - 1 - agreed(leaves, i) as u64;
        let count: u64 = 1 + (0..leaves.len()).map(new_below).sum::<u64>();
        let addressable = count + (SEPARATOR.len() + data_bytes) as u64;
        let nodes = match u32::try_from(count) {
            Ok(nodes) if addressable <= 1 << RECORD_BITS => nodes,
            Ok(_) | Err(_) => return Err(WriteError::TooLarge { nodes: count, data: data_bytes as u64 }),
        };

        let mut bytes = nothing_below(nodes).repeat(nodes as usize);
        let mut path = [0; DEPTH];
        let mut next = 1;
        for (i, (address, offset)) in leaves.iter().enumerate() {
            let side = |depth: usize| (address >> (DEPTH - 1 - depth)) & 1 == 1;
            for depth in agreed(leaves, i)..DEPTH - 1 {
                lead(&mut bytes, path[depth], side(depth), next);
                path[depth + 1] = next;
                next += 1;
            }
            lead(&mut bytes, path[DEPTH - 1], side(DEPTH - 1), nodes + SEPARATOR.len() as u32 + offset);
        }
        assert_eq!(next, nodes, "every node that was counted is there");
        Ok(Tree { nodes, bytes })
    }
}

/// How many of its first bits an address has in common with the one before it.
fn agreed(leaves: &[(u128, u32)], i: usize) -> usize {
    match i.checked_sub(1) {
        Some(before) => (leaves[before].0 ^ leaves[i].0).leading_zeros() as usize,
        None => 0,
    }
}

/// A node both of whose sides say that there is nothing, which is the number of nodes.
fn nothing_below(nodes: u32) -> [u8; NODE_BYTES] {
    let mut node = [0; NODE_BYTES];
    lead(&mut node, 0, false, nodes);
    lead(&mut node, 0, true, nodes);
    node
}

/// Each side has three bytes of its own, at the ends, and the upper or lower half of the byte between for its highest
/// four bits.
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
    fn a_node_is_laid_out_as_the_format_says() {
        let mut node = [0; NODE_BYTES];
        lead(&mut node, 0, false, 0x0123_4567);
        lead(&mut node, 0, true, 0x0fed_cba9);
        assert_eq!(node, [0x23, 0x45, 0x67, 0x1f, 0xed, 0xcb, 0xa9]);
        lead(&mut node, 0, false, 0x0aaa_aaaa);
        assert_eq!(node, [0xaa, 0xaa, 0xaa, 0xaf, 0xed, 0xcb, 0xa9]);
    }

    #[test]
    fn addresses_share_the_nodes_of_what_they_have_in_common() {
        let nodes = |addresses: &[u128]| {
            let leaves: Vec<(u128, u32)> = addresses.iter().map(|a| (*a, 0)).collect();
            Tree::of(&leaves, 1).unwrap().nodes
        };
        assert_eq!(nodes(&[]), 1);
        assert_eq!(nodes(&[5]), 128);
        assert_eq!(nodes(&[4, 5]), 128);
        assert_eq!(nodes(&[3, 4]), 130);
        assert_eq!(nodes(&[0, u128::MAX]), 255);
    }

    #[test]
    fn what_28_bits_cannot_address_is_refused() {
        let room = (1 << RECORD_BITS) - SEPARATOR.len() - 128;
        assert!(Tree::of(&[(5, 0)], room).is_ok());
        let error = WriteError::TooLarge { nodes: 128, data: room as u64 + 1 };
        assert_eq!(Tree::of(&[(5, 0)], room + 1).err(), Some(error));
    }
}
