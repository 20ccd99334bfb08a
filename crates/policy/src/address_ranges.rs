//! Ranges of the addresses of a family, as pairs of the first and the last address.

use std::net::IpAddr;

use ipnet::IpNet;
use nft::{Datum, Family};

/// The addresses as integers, inclusive.
pub(crate) type Range = (u128, u128);

fn most(family: Family) -> u128 {
    match family {
        Family::V4 => u128::from(u32::MAX),
        Family::V6 => u128::MAX,
    }
}

/// All addresses of the family.
pub(crate) fn whole(family: Family) -> Range {
    (0, most(family))
}

pub(crate) fn integer(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

pub(crate) fn datum(integer: u128, family: Family) -> Datum {
    match family {
        Family::V4 => Datum::V4(u32::try_from(integer).unwrap_or(u32::MAX).into()),
        Family::V6 => Datum::V6(integer.into()),
    }
}

pub(crate) fn bounds(network: &IpNet) -> Range {
    (integer(network.network()), integer(network.broadcast()))
}

/// Sorts the ranges and merges those that overlap or are adjacent.
pub(crate) fn merge(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut merged: Vec<Range> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if end.checked_add(1).is_none_or(|next| first <= next) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// The ranges between these, which are sorted and disjoint.
pub(crate) fn complement(ranges: impl IntoIterator<Item = Range>, family: Family) -> Vec<Range> {
    let (mut found, mut next) = (Vec::new(), Some(0));
    for (first, last) in ranges {
        if let Some(next) = next.filter(|next| *next < first) {
            found.push((next, first - 1));
        }
        next = last.checked_add(1).filter(|next| *next <= most(family));
    }
    found.extend(next.map(|next| (next, most(family))));
    found
}

/// Whether the ranges cover every address of the family.
pub(crate) fn is_whole_family(ranges: &[(Datum, Datum)], family: Family) -> bool {
    let (first, last) = whole(family);
    ranges == [(datum(first, family), datum(last, family))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complement_covers_what_merged_ranges_leave() {
        let last = most(Family::V4);
        let merged = merge(vec![(7, 9), (0, 1), (4, 8), (10, 12)]);
        assert_eq!(merged, [(0, 1), (4, 12)]);
        assert_eq!(complement(merged, Family::V4), [(2, 3), (13, last)]);
        assert_eq!(complement([], Family::V4), [(0, last)]);
        assert_eq!(complement([(0, last)], Family::V4), []);
        assert_eq!(complement([(5, u128::MAX)], Family::V6), [(0, 4)]);
    }
}
