//! Conntrack entries, as the kernel reports them.

use std::iter::Sum;
use std::net::IpAddr;
use std::ops::{Add, AddAssign, Sub};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Addresses and ports of one direction. The original direction has the destination that the client connected to, the
/// reply direction the source that replied, after destination translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// IANA number of the protocol.
    pub protocol: u8,
    /// `None` for protocols without ports.
    pub source_port: Option<u16>,
    pub destination_port: Option<u16>,
    /// Type of the ICMP message; `None` for other protocols.
    pub icmp_type: Option<u8>,
}

/// Identifies an entry among all entries of the node, past ones included: the kernel reuses IDs, and clients reuse ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    /// `CTA_ID`
    pub id: u32,
    pub zone: u16,
    pub original: Tuple,
}

/// Conntrack entry, as reported by one event or one line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedFlow {
    pub id: ConnectionId,
    pub reply: Tuple,
    /// The connection mark, which holds the generation that approved the flow.
    pub mark: u32,
    /// A packet of the reply direction was seen.
    pub has_reply: bool,
    /// Packets and bytes so far of the original and the reply direction; `None` if the entry was created without
    /// accounting.
    pub volume: Option<[Volume; 2]>,
    /// Creation time of the entry; `None` without timestamps.
    pub started: Option<Timestamp>,
}

/// Packets, and bytes with the headers of layer 3 (`CTA_COUNTERS_PACKETS`, `CTA_COUNTERS_BYTES`). Sums and differences
/// saturate.
///
/// ```
/// use flow::Volume;
///
/// let before = Volume { packets: 3, bytes: 180 };
/// let after = Volume { packets: 5, bytes: 1_180 };
/// assert_eq!(after - before, Volume { packets: 2, bytes: 1_000 });
/// assert_eq!(before - after, Volume::default());
/// assert_eq!([before, after].into_iter().sum::<Volume>(), Volume { packets: 8, bytes: 1_360 });
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    pub packets: u64,
    pub bytes: u64,
}

impl Add for Volume {
    type Output = Volume;
    fn add(self, other: Volume) -> Volume {
        Volume { packets: self.packets.saturating_add(other.packets), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl AddAssign for Volume {
    fn add_assign(&mut self, other: Volume) {
        *self = *self + other;
    }
}

impl Sum for Volume {
    fn sum<I: Iterator<Item = Volume>>(volumes: I) -> Volume {
        volumes.fold(Volume::default(), |sum, volume| sum + volume)
    }
}

/// Difference of two readings of the counters; 0 if they were reset in between.
impl Sub for Volume {
    type Output = Volume;
    fn sub(self, other: Volume) -> Volume {
        Volume { packets: self.packets.saturating_sub(other.packets), bytes: self.bytes.saturating_sub(other.bytes) }
    }
}
