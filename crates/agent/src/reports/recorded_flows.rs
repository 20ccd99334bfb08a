//! Flows counted by the kernel's tables, and how many of their packets are not yet reported.
//!
//! NFLOG delivers the first packet of a flow; the counter of the flow's element, read every few seconds, has all
//! packets. Reported packets of a flow add up to the kernel's count. An element expires a minute after its last packet,
//! and a later packet of the flow creates a new one, which counts from zero.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::packet_group::{DropEvent, FirstPacket, PacketGroup};
use super::{KEPT_BY_KERNEL, READ_INTERVAL};

/// Bound on known flows: four full tables of the kernel, some 6 MB. Packets of further flows are only in the totals.
const FLOWS: usize = 16_384;

/// A flow idle for this long is expired: its element no longer exists, however late the reads were.
const FORGOTTEN: Duration = KEPT_BY_KERNEL.saturating_add(Duration::from_secs(15));

/// An element idle for this long may have been replaced by a new one.
const DOUBTFUL: Duration = KEPT_BY_KERNEL.saturating_sub(READ_INTERVAL.saturating_mul(2));

#[derive(Debug, Default)]
pub(super) struct RecordedFlows {
    flows: BTreeMap<PacketGroup, RecordedFlow>,
}

#[derive(Debug)]
struct RecordedFlow {
    /// Counter of the current element at the last read.
    element: u64,
    /// Packets of all elements of the flow, and how many of them were reported.
    seen: u64,
    reported: u64,
    grown: Instant,
    /// A packet was logged while it was unclear to which element it belonged.
    logged_again: bool,
    first: FirstPacket,
}

impl RecordedFlows {
    /// Counts existing elements as reported: the previous agent may have reported them.
    pub(super) fn adopt(&mut self, records: impl IntoIterator<Item = (PacketGroup, u64)>, now: Instant) {
        self.read(records, now);
        self.flows.values_mut().for_each(|entry| entry.reported = entry.seen);
    }

    /// Records a logged packet: the first of a flow, or one of a flow that has lasted a minute. Returns an event
    /// for a first packet if there is room.
    pub(super) fn logged(
        &mut self,
        seen: &PacketGroup,
        first: FirstPacket,
        now: Instant,
        room: bool,
    ) -> Option<DropEvent> {
        let new = RecordedFlow { element: 1, seen: 1, reported: 0, grown: now, logged_again: false, first };
        let full = self.flows.len() >= FLOWS;
        let entry = match self.flows.get_mut(seen) {
            None if full => return None,
            None => self.flows.entry(seen.clone()).or_insert(new),
            Some(entry) => {
                let age = now.saturating_duration_since(entry.grown);
                // The element may have been read before the logged packet.
                if entry.first == FirstPacket::default() {
                    entry.first = first;
                }
                if age <= KEPT_BY_KERNEL {
                    entry.logged_again |= age >= DOUBTFUL;
                    return None;
                }
                *entry = RecordedFlow { seen: entry.seen + 1, reported: entry.reported, ..new };
                entry
            }
        };
        room.then(|| entry.report(seen))
    }

    /// Records the counters of the tables' elements.
    pub(super) fn read(&mut self, records: impl IntoIterator<Item = (PacketGroup, u64)>, now: Instant) {
        for (seen, packets) in records {
            let full = self.flows.len() >= FLOWS;
            match self.flows.get_mut(&seen) {
                None if full => {}
                None => {
                    let entry = RecordedFlow {
                        element: packets,
                        seen: packets,
                        reported: 0,
                        grown: now,
                        logged_again: false,
                        first: FirstPacket::default(),
                    };
                    self.flows.insert(seen, entry);
                }
                Some(entry) => {
                    let is_new = packets < entry.element || packets == entry.element && entry.logged_again;
                    let grown = if is_new { packets } else { packets - entry.element };
                    entry.element = packets;
                    entry.logged_again = false;
                    if grown > 0 {
                        entry.seen += grown;
                        entry.grown = now;
                    }
                }
            }
        }
    }

    /// Reports flows with unreported packets, at most `room`: new flows first, then the busiest. The others wait.
    pub(super) fn report(&mut self, room: usize) -> Vec<DropEvent> {
        let mut waiting: Vec<(&PacketGroup, &mut RecordedFlow)> =
            self.flows.iter_mut().filter(|(_, entry)| entry.seen > entry.reported).collect();
        waiting.sort_by_key(|(_, entry)| (entry.reported > 0, Reverse(entry.seen - entry.reported)));
        waiting.into_iter().take(room).map(|(seen, entry)| entry.report(seen)).collect()
    }

    /// Expires idle flows. Their unreported packets are never reported.
    pub(super) fn expire(&mut self, now: Instant) {
        self.flows.retain(|_, entry| now.saturating_duration_since(entry.grown) <= FORGOTTEN);
    }
}

impl RecordedFlow {
    fn report(&mut self, seen: &PacketGroup) -> DropEvent {
        let count = self.seen - std::mem::replace(&mut self.reported, self.seen);
        seen.event(self.first, count)
    }
}

#[cfg(test)]
mod tests {
    use policy::Direction;

    use super::super::packet_group::tests::denied;
    use super::*;

    const MUCH: usize = 100;

    fn flow(port: u16) -> PacketGroup {
        denied(Direction::Ingress, "10.1.0.1", "10.1.0.2", port)
    }

    /// Reported counts, in the order of the reports.
    fn counts(events: &[DropEvent]) -> Vec<u64> {
        events.iter().map(|o| o.count).collect()
    }

    /// Converts seconds to instants.
    fn clock() -> impl Fn(u64) -> Instant {
        let start = Instant::now();
        move |seconds| start + Duration::from_secs(seconds)
    }

    #[test]
    fn reported_packets_add_up_to_element_count() {
        let (mut flows, at) = (RecordedFlows::default(), clock());
        let first = flows.logged(&flow(80), FirstPacket::default(), at(0), true).unwrap();
        assert_eq!(first.count, 1);
        for (seconds, packets, expected) in [(5, 3, 2), (10, 3, 0), (15, 10, 7)] {
            flows.read([(flow(80), packets)], at(seconds));
            let count: u64 = flows.report(MUCH).iter().map(|o| o.count).sum();
            assert_eq!(count, expected, "after {seconds} s");
        }
    }

    #[test]
    fn flow_read_before_its_log_is_reported_once() {
        let (mut flows, at) = (RecordedFlows::default(), clock());
        flows.read([(flow(80), 4)], at(5));
        assert_eq!(counts(&flows.report(MUCH)), [4]);
        assert_eq!(flows.logged(&flow(80), FirstPacket::default(), at(5), true), None);
        flows.read([(flow(80), 4)], at(10));
        assert_eq!(flows.report(MUCH), []);
    }

    #[test]
    fn ongoing_flow_logged_again_is_not_counted_twice() {
        let (mut flows, at) = (RecordedFlows::default(), clock());
        flows.logged(&flow(80), FirstPacket::default(), at(0), true);
        let mut sum = 1;
        for seconds in 1..=130 {
            if seconds % 60 == 0 {
                assert_eq!(flows.logged(&flow(80), FirstPacket::default(), at(seconds), true), None);
            }
            if seconds % 5 == 0 {
                flows.read([(flow(80), seconds + 1)], at(seconds));
                flows.expire(at(seconds));
                sum += flows.report(MUCH).iter().map(|o| o.count).sum::<u64>();
            }
        }
        assert_eq!(sum, 131);
    }

    #[test]
    fn recreated_element_counts_from_zero() {
        let (mut flows, at) = (RecordedFlows::default(), clock());
        flows.read([(flow(80), 9)], at(5));
        flows.report(MUCH);
        flows.read([(flow(80), 2)], at(70));
        assert_eq!(counts(&flows.report(MUCH)), [2]);
    }

    #[test]
    fn retry_after_element_expiry_is_reported_again() {
        let (mut flows, at) = (RecordedFlows::default(), clock());
        flows.logged(&flow(80), FirstPacket::default(), at(0), true);
        flows.read([(flow(80), 1)], at(4));
        // Within the seconds in which the element may be the old one.
        assert_eq!(flows.logged(&flow(80), FirstPacket::default(), at(60), true), None);
        flows.read([(flow(80), 1)], at(64));
        assert_eq!(counts(&flows.report(MUCH)), [1]);
        // After them.
        let again = flows.logged(&flow(80), FirstPacket::default(), at(130), true).unwrap();
        assert_eq!(again.count, 1);
        flows.read([(flow(80), 1)], at(134));
        assert_eq!(flows.report(MUCH), []);
    }

    #[test]
    fn excess_flows_wait_with_new_ones_first() {
        let (mut flows, at) = (RecordedFlows::default(), clock());
        flows.read([(flow(1), 5)], at(5));
        flows.report(MUCH);
        flows.read([(flow(1), 100), (flow(2), 1), (flow(3), 2)], at(10));
        assert_eq!(flows.logged(&flow(4), FirstPacket::default(), at(11), false), None);
        assert_eq!(counts(&flows.report(2)), [2, 1]);
        assert_eq!(counts(&flows.report(MUCH)), [1, 95]);
        assert_eq!(flows.report(MUCH), []);
    }

    #[test]
    fn counts_before_agent_start_are_not_reported() {
        let (mut flows, at) = (RecordedFlows::default(), clock());
        flows.adopt([(flow(80), 7)], at(0));
        assert_eq!(flows.report(MUCH), []);
        flows.read([(flow(80), 8)], at(5));
        assert_eq!(flows.report(MUCH).iter().map(|o| o.count).collect::<Vec<u64>>(), [1]);
    }

    #[test]
    fn recorded_flows_are_bounded_and_expire() {
        let (mut flows, at) = (RecordedFlows::default(), clock());
        let all = |first: u16| (0..u16::try_from(FLOWS).unwrap()).map(move |n| (flow(first + n), 1));
        flows.read(all(0), at(0));
        flows.read(all(30_000), at(0));
        assert_eq!(flows.logged(&flow(65_000), FirstPacket::default(), at(0), true), None);
        assert_eq!(flows.flows.len(), FLOWS);
        flows.expire(at(76));
        assert_eq!(flows.flows.len(), 0);
    }
}
