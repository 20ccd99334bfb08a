//! Stable order of joined records within a window, by which pages and streams resume.
//!
//! Records of one edge (ends, protocol and port) are adjacent. The records of an edge may change while nodes report it,
//! but the position of the edge does not, so a client that reads edge by edge gets each connection of an existing edge
//! exactly once.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use super::ClusterRecord;
use crate::FlowKey;

/// Position of an edge within every window; edges with the same ends are adjacent. It depends on the edge alone, not on
/// the process or on other edges of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EdgePlace {
    ends: u64,
    edge: u64,
}

/// Invalid position of an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected 32 hexadecimal digits")]
pub struct InvalidEdgePlace;

impl EdgePlace {
    pub fn of(key: &FlowKey) -> EdgePlace {
        let FlowKey { source, destination, protocol, port, icmp_type, .. } = key;
        EdgePlace { ends: hash(&(source, destination)), edge: hash(&(source, destination, protocol, port, icmp_type)) }
    }
}

/// Sorts the records of a window by the positions of their edges. The sort is stable.
pub fn sort_by_place(records: &mut [ClusterRecord]) {
    records.sort_by_cached_key(|joined| EdgePlace::of(&joined.record.key));
}

impl fmt::Display for EdgePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EdgePlace { ends, edge } = self;
        write!(f, "{ends:016x}{edge:016x}")
    }
}

impl FromStr for EdgePlace {
    type Err = InvalidEdgePlace;

    fn from_str(text: &str) -> Result<EdgePlace, InvalidEdgePlace> {
        let is_hexadecimal = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = |text: &str| u64::from_str_radix(text, 16).map_err(|_| InvalidEdgePlace);
        match is_hexadecimal.then(|| text.split_at(16)) {
            Some((ends, edge)) => Ok(EdgePlace { ends: number(ends)?, edge: number(edge)? }),
            None => Err(InvalidEdgePlace),
        }
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = Fnv::default();
    value.hash(&mut hasher);
    hasher.finish()
}

/// FNV-1a, which gives the same hash in every process, unlike the hasher of maps. A collision only makes two edges
/// adjacent.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::record_of;
    use crate::{PolicyAction, join};
    use std::sync::Arc;

    #[test]
    fn place_depends_on_the_edge_alone() {
        let record = record_of("n1", 0);
        let place = EdgePlace::of(&record.key);
        let mut key = FlowKey::clone(&record.key);
        key.egress.enforced = vec![crate::testing::hit("shop/db", None, PolicyAction::Deny)];
        assert_eq!(EdgePlace::of(&key), place);
        key.port = Some(80);
        let other = EdgePlace::of(&key);
        assert!(other != place && other.ends == place.ends, "{other} {place}");
        assert_eq!(place.to_string().parse(), Ok(place));
        for bad in ["", "12", "+0000000000000000000000000000001", "0000000000000000000000000000000g"] {
            assert_eq!(bad.parse::<EdgePlace>(), Err(InvalidEdgePlace), "{bad}");
        }
        // Page tokens must be valid after a restart.
        assert_eq!(place.to_string(), "7673af80b319dbebdf9fabf0856017cd");
    }

    #[test]
    fn records_of_an_edge_stay_together() {
        let records: Vec<_> = (0..9)
            .flat_map(|port| {
                ["n1", "n2", "n3"].map(|rule| {
                    let mut record = record_of("n1", 0);
                    let key = Arc::make_mut(&mut record.key);
                    key.port = Some(port);
                    key.ingress.enforced[0].rule = Some(rule.into());
                    record
                })
            })
            .collect();
        let mut joined = join(&records);
        sort_by_place(&mut joined);
        let mut ports: Vec<_> = joined.iter().map(|joined| joined.record.key.port).collect();
        ports.dedup();
        assert_eq!(ports.len(), 9);
    }
}
