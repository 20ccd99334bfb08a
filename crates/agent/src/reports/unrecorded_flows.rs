//! Packets without a flow table in the kernel: those denied without a policy, and replies. Only the rate-limited log
//! describes them; the totals have their number.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::packet_group::{DropEvent, FirstPacket, PacketGroup};

/// Bound on distinct keys. Each rule logs some ten packets a second; this is a minute of two such rules.
const KNOWN: usize = 1024;

/// Packets of the same key within this time are reported together.
const TOGETHER: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct UnrecordedFlows {
    known: BTreeMap<PacketGroup, UnrecordedFlow>,
}

#[derive(Debug)]
struct UnrecordedFlow {
    unreported: u64,
    last: Instant,
    first: FirstPacket,
}

impl UnrecordedFlows {
    /// Reports the first packet at once, if there is room; later ones wait for the next read.
    pub(super) fn logged(
        &mut self,
        seen: &PacketGroup,
        first: FirstPacket,
        now: Instant,
        room: bool,
    ) -> Option<DropEvent> {
        if let Some(entry) = self.known.get_mut(seen) {
            entry.unreported += 1;
            entry.last = now;
            return None;
        }
        if self.known.len() >= KNOWN {
            return None;
        }
        let entry = UnrecordedFlow { unreported: 1, last: now, first };
        let entry = self.known.entry(seen.clone()).or_insert(entry);
        room.then(|| entry.report(seen))
    }

    /// Reports unreported packets, of at most `room` keys.
    pub(super) fn report(&mut self, room: usize) -> Vec<DropEvent> {
        let waiting = self.known.iter_mut().filter(|(_, entry)| entry.unreported > 0);
        waiting.take(room).map(|(seen, entry)| entry.report(seen)).collect()
    }

    pub(super) fn expire(&mut self, now: Instant) {
        self.known.retain(|_, entry| now.saturating_duration_since(entry.last) <= TOGETHER);
    }
}

impl UnrecordedFlow {
    fn report(&mut self, seen: &PacketGroup) -> DropEvent {
        seen.event(self.first, std::mem::take(&mut self.unreported))
    }
}

#[cfg(test)]
mod tests {
    use policy::{Cause, Direction};

    use super::super::packet_group::tests::denied;
    use super::*;

    fn stray(port: u16) -> PacketGroup {
        PacketGroup { cause: Cause::Stray, ..denied(Direction::Ingress, "10.1.0.1", "10.1.0.2", port) }
    }

    #[test]
    fn first_packet_is_reported_immediately_and_others_together() {
        let (mut packets, now) = (UnrecordedFlows::default(), Instant::now());
        let first = packets.logged(&stray(1), FirstPacket::default(), now, true).unwrap();
        assert_eq!(first.count, 1);
        for _ in 0..3 {
            assert_eq!(packets.logged(&stray(1), FirstPacket::default(), now, true), None);
        }
        assert_eq!(packets.logged(&stray(2), FirstPacket::default(), now, false), None);
        let counts: Vec<u64> = packets.report(9).iter().map(|o| o.count).collect();
        assert_eq!(counts, [3, 1]);
        assert_eq!(packets.report(9), []);
    }

    #[test]
    fn packet_after_quiet_minute_is_reported_immediately() {
        let (mut packets, now) = (UnrecordedFlows::default(), Instant::now());
        packets.logged(&stray(1), FirstPacket::default(), now, true);
        let later = now + TOGETHER + Duration::from_secs(1);
        packets.expire(later);
        assert!(packets.logged(&stray(1), FirstPacket::default(), later, true).is_some());
    }

    #[test]
    fn unrecorded_packets_are_bounded() {
        let (mut packets, now) = (UnrecordedFlows::default(), Instant::now());
        for port in 0..=u16::try_from(KNOWN).unwrap() {
            packets.logged(&stray(port), FirstPacket::default(), now, false);
        }
        assert_eq!(packets.report(usize::MAX).len(), KNOWN);
    }
}
