//! Incremental version of a table: it changes if and only if the table changes.

use sha2::{Digest, Sha256};

/// Sum of the digests of a table's entries, independent of their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    count: u64,
    sum: u128,
}

impl Sum {
    pub fn add(&mut self, digest: u128) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(digest);
    }

    /// Removes an entry, which was added before.
    pub fn remove(&mut self, digest: u128) {
        self.count -= 1;
        self.sum = self.sum.wrapping_sub(digest);
    }

    /// The first 64 bits of a hash: `id-<16 hex>`, `edges-<16 hex>`.
    pub fn version(self) -> u64 {
        let hash = Sha256::new_with_prefix(self.count.to_be_bytes()).chain_update(self.sum.to_be_bytes()).finalize();
        let [a, b, c, d, e, f, g, h, ..] = hash.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

/// The first half of a SHA-256, sufficient to distinguish entries. In bytes, since the alignment of a 128-bit integer
/// would leave gaps in arrays.
pub(crate) fn first_half(hash: Sha256) -> [u8; 16] {
    let [half @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = hash.finalize().0;
    half
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(digests: &[u128]) -> Sum {
        let mut sum = Sum::default();
        digests.iter().for_each(|digest| sum.add(*digest));
        sum
    }

    #[test]
    fn version_depends_on_every_entry_not_order() {
        let (a, b, c) = (u128::MAX - 5, 7, u128::MAX / 3);
        assert_eq!(sum(&[a, b, c]).version(), sum(&[c, a, b]).version());
        let mut taken = sum(&[a, b, c]);
        taken.remove(b);
        assert_eq!(taken, sum(&[c, a]));
        let all = [sum(&[]), sum(&[0]), sum(&[a]), sum(&[a, b]), sum(&[a, a]), sum(&[a, b, c])].map(Sum::version);
        assert!(all.iter().enumerate().all(|(i, version)| !all[..i].contains(version)), "{all:?}");
    }
}
