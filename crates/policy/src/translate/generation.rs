//! Generations of approved flows, and their encoding in the connection mark.
//!
//! The translator knows no generation. The committer of the rules owns the present one and adds it when it builds the
//! transaction ([`DraftRuleset::stamp`](super::DraftRuleset::stamp)).

/// The default bits of the connection mark that hold the generation: the upper half, which avoids the bits that other
/// programs are known to use.
pub const DEFAULT_MARK_MASK: u32 = 0xffff_0000;

/// The pattern at the top of every Ringfence mark. A mask of 16 bits or more holds all of it, a smaller one uses a
/// quarter of its bits. Other programs use small numbers or single bits of connection marks: NetBird 0x1bd00 and above,
/// Tailscale 0x40000 and 0x80000, kube-proxy 0x4000 and 0x8000, wg-quick 0xca6c, Istio 1337. None is an approval.
const PATTERN: u32 = 0b1010;
const PATTERN_BITS: u32 = 4;

/// Why a mask cannot hold generations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the mark mask {0:#010x} must be one run of at least 4 bits that ends at the top bit, such as 0xffff0000")]
pub struct BadMask(u32);

/// The bits of the connection mark that hold generations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MarkMask(u32);

impl MarkMask {
    pub(super) fn new(mask: u32) -> Result<MarkMask, BadMask> {
        let run_from_the_top = mask.leading_ones() + mask.trailing_zeros() == 32;
        if mask.count_ones() < 4 || mask == u32::MAX || !run_from_the_top {
            return Err(BadMask(mask));
        }
        Ok(MarkMask(mask))
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }

    fn pattern_bits(self) -> u32 {
        (self.0.count_ones() / 4).min(PATTERN_BITS)
    }

    /// The bits of the mask that hold the pattern.
    fn pattern_mask(self) -> u32 {
        !(u32::MAX >> self.pattern_bits())
    }

    fn pattern(self) -> u32 {
        PATTERN << (u32::BITS - PATTERN_BITS) & self.pattern_mask()
    }

    /// The largest number that fits the bits of the mask below the pattern.
    fn last(self) -> u32 {
        (self.0 & !self.pattern_mask()) >> self.0.trailing_zeros()
    }

    /// See [`Layout::would_deny_mark`](super::Layout::would_deny_mark).
    pub(super) fn would_deny_mark(self) -> u32 {
        !self.pattern() & self.pattern_mask() | 1 << self.0.trailing_zeros()
    }
}

/// The generation of approved flows: a flow whose connection mark holds the present one is not judged again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation {
    mask: MarkMask,
    /// 1 to [`Generation::last_number`].
    number: u32,
}

impl Generation {
    pub(super) fn first(mask: MarkMask) -> Generation {
        Generation { mask, number: 1 }
    }

    /// One of the same mask that depends on this number, for instance a random one, so that marks cannot be predicted.
    pub fn drawn_from(self, random: u32) -> Generation {
        Generation { number: 1 + random % self.last_number(), ..self }
    }

    /// The number in the mark, 1 to [`Generation::last_number`].
    pub fn number(self) -> u32 {
        self.number
    }

    /// The largest number, which [`Generation::next`] returns to 1.
    pub fn last_number(self) -> u32 {
        self.mask.last()
    }

    /// The bits of the connection mark that are Ringfence's.
    pub fn mask(self) -> u32 {
        self.mask.bits()
    }

    /// The connection mark of flows that are approved in this generation.
    pub fn mark(self) -> u32 {
        self.mask.pattern() | self.number << self.mask.bits().trailing_zeros()
    }

    /// The generation of the same mask that the mark encodes; `None` if it encodes none, such as marks of releases
    /// without the pattern.
    pub fn at_mark(self, mark: u32) -> Option<Generation> {
        let number = (mark & self.mask.bits() & !self.mask.pattern_mask()) >> self.mask.bits().trailing_zeros();
        let is_ours = mark & self.mask.pattern_mask() == self.mask.pattern() && number != 0;
        is_ours.then_some(Generation { number, ..self })
    }

    /// Whether all approvals except those of this generation must be cleared before the next generation begins. This
    /// happens twice per cycle: a clearing spares the current generation, which the other clearing removes. So no flow
    /// carries a generation's number when that number is reused.
    pub fn clears_before_next(self) -> bool {
        let last = self.last_number();
        self.number >= last || self.number == last / 2
    }

    /// The next generation, which is 1 after the last one. See [`Generation::clears_before_next`].
    #[must_use]
    pub fn next(self) -> Generation {
        let number = if self.number >= self.last_number() { 1 } else { self.number + 1 };
        Generation { number, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn first(mask: u32) -> Generation {
        Generation::first(MarkMask::new(mask).unwrap())
    }

    #[test]
    fn reused_generation_is_cleared_from_flows_first() {
        let mut generation = first(0xf000_0000);
        // Generations carried by idle flows: one flow of each, until a clearing removes them.
        let mut carried: BTreeSet<u32> = BTreeSet::new();
        for _ in 0..100 {
            assert!(!carried.contains(&generation.number()), "generation {} came to life again", generation.number());
            carried.insert(generation.number());
            if generation.clears_before_next() {
                carried.retain(|number| *number == generation.number());
            }
            generation = generation.next();
        }
        assert_eq!(generation.last_number(), 7);
    }

    #[test]
    fn mark_encodes_generation() {
        let third = first(DEFAULT_MARK_MASK).next().next();
        assert_eq!(third.mark(), 0xa003_0000);
        assert_eq!(first(DEFAULT_MARK_MASK).at_mark(0xa003_1234), Some(third));
        for foreign in [0, 0x0003_0000, 0xa000_0000, 0xb003_0000] {
            assert_eq!(third.at_mark(foreign), None, "{foreign:#x}");
        }
    }

    #[test]
    fn no_known_foreign_mark_approves_a_flow() {
        // NetBird, Tailscale, Calico, Cilium, kube-proxy, Istio, wg-quick, AWS VPC CNI.
        let foreign =
            (0x1bd00..=0x1bdff).chain([0x40000, 0x80000, 0xff0000, 0x0e00, 0x0f00, 0x4000, 0x8000, 1337, 0xca6c, 0x80]);
        for mask in [0xffff_0000, 0xff00_0000, 0xf000_0000, 0xffff_ff00] {
            for mark in foreign.clone() {
                assert_eq!(first(mask).at_mark(mark), None, "{mark:#x} under {mask:#x}");
            }
        }
    }

    #[test]
    fn every_generation_has_a_mark_within_its_mask() {
        for bits in [0xf000_0000, 0xff00_0000, 0xffff_0000] {
            let mask = MarkMask::new(bits).unwrap();
            let first = Generation::first(mask);
            for random in 0..first.last_number() {
                let generation = first.drawn_from(random);
                assert_eq!(generation.mark() & !bits, 0);
                assert_eq!(first.at_mark(generation.mark()), Some(generation));
            }
            let noted = mask.would_deny_mark();
            assert!(noted != 0 && noted & !bits == 0 && first.at_mark(noted).is_none(), "{noted:#x} under {bits:#x}");
        }
    }
}
