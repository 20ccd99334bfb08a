//! Connections at a rate, each of one packet, while a listener receives their events.

use std::thread;
use std::time::{Duration, Instant};

use nfnetlink::{Subscription, count_flows};

use super::super::ours::Cluster;
use super::super::traffic::Traffic;
use super::Size;
use super::cost::{Events, Node, TrackingConfig};
use super::listener::{Listener, ListenerCounts, Reads, Setup};
use super::set_conntrack;

/// Parameters of one run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scenario {
    /// Connections a second.
    pub(super) rate: u32,
    pub(super) lasting: Duration,
    pub(super) listener: Setup,
    /// Pause of the listener, from a third of the time on, or from the start if it is as long as that.
    pub(super) still: Duration,
    /// Deadline for the last entries to expire.
    pub(super) expiry: Duration,
}

/// Results of one run.
pub(super) struct Run {
    pub(super) connections: u64,
    pub(super) took: Duration,
    pub(super) received: ListenerCounts,
    /// Entries at the end of the listener's pause, including those kept for it.
    pub(super) entries_still: Option<u32>,
    /// The maximum number of entries.
    pub(super) most_entries: u32,
    /// From the last connection until all entries had expired.
    pub(super) emptied: Duration,
    /// Entries that did not expire in time, since long-lived entries of others make the kernel's garbage collection
    /// less frequent.
    pub(super) removed: u32,
}

/// Conntrack timeout. The kernel collects expired entries about as often (`gc_worker`).
const TIMEOUT_SECONDS: u32 = 1;

/// Interval at which the sender reads the clock.
const TICK: Duration = Duration::from_micros(500);

/// Interval at which the number of entries is read.
const SAMPLE: Duration = Duration::from_millis(100);

/// Deadline for the events of the last entries.
const PATIENCE: Duration = Duration::from_secs(60);

/// At this rate the listener is paused for the whole time.
const RATE_STILL: u32 = 10_000;

impl Scenario {
    pub(super) fn all(size: &Size) -> Vec<Scenario> {
        let small = Setup { subscription: Subscription::All, mebibytes: 8, reliable: false, reads: Reads::WhenWoken };
        let of = |rate, listener, still| Scenario { rate, lasting: size.lasting, listener, still, expiry: size.expiry };
        let mut all = Vec::new();
        for reads in [Reads::WhenWoken, Reads::Periodically] {
            all.extend(size.rates.iter().map(|rate| of(*rate, Setup { reads, ..small }, Duration::ZERO)));
        }
        let records =
            Setup { subscription: Subscription::Removed, mebibytes: 32, reliable: true, reads: Reads::Periodically };
        all.extend(size.rates.iter().map(|rate| of(*rate, records, Duration::ZERO)));
        let most = size.rates.last().copied().unwrap_or(RATE_STILL);
        for still in [Duration::ZERO, size.still] {
            for mebibytes in [8, 32] {
                for reliable in [false, true] {
                    let listener = Setup { mebibytes, reliable, ..small };
                    if listener != small || !still.is_zero() {
                        all.push(of(most, listener, still));
                    }
                }
            }
        }
        for reliable in [false, true] {
            all.push(of(most.min(RATE_STILL), Setup { reliable, ..small }, size.lasting));
        }
        all
    }

    /// Whether the listener is paused at this time.
    fn is_still(&self, elapsed: Duration) -> bool {
        let begins = (self.lasting / 3).min(self.lasting.saturating_sub(self.still));
        elapsed >= begins && elapsed < begins + self.still
    }
}

pub(super) fn run(scenario: &Scenario) -> Run {
    // The node's own listener would receive the same events.
    let tracking = TrackingConfig { accounting: true, events: Events::Off };
    let cluster = Cluster { peer_addresses: 258, ..Cluster::SMALLEST };
    let node = Node::new(tracking, &cluster);
    set_conntrack(&node.place, "events", 1);
    set_conntrack(&node.place, "udp_timeout", TIMEOUT_SECONDS);
    let traffic = Traffic::FirstFromWorld { sources: cluster.remote_peers(), destinations: cluster.destinations() };
    let listener = Listener::start(&node.place, scenario.listener);
    let entries = || node.place.on_node(|| count_flows().expect("conntrack").entries);
    let (mut connections, mut most_entries, mut entries_still, mut was_still) = (0u64, 0, None, false);
    let begun = Instant::now();
    let mut next_sample = SAMPLE;
    let took = loop {
        let elapsed = begun.elapsed();
        let is_still = scenario.is_still(elapsed);
        if was_still && !is_still {
            entries_still = Some(entries());
        }
        if was_still != is_still {
            listener.stand_still(is_still);
            was_still = is_still;
        }
        if elapsed >= scenario.lasting {
            break elapsed;
        }
        if elapsed >= next_sample {
            most_entries = most_entries.max(entries());
            next_sample = elapsed + SAMPLE;
        }
        let due = (elapsed.as_secs_f64() * f64::from(scenario.rate)) as u64;
        // At most the packets of 10 ms, so that the clock is read even if the rate is too high.
        let packets = (due - connections.min(due)).min(u64::from(scenario.rate / 100).max(1));
        node.ends.send_all(&traffic, u32::try_from(packets).expect("few packets"));
        connections += packets;
        thread::sleep(TICK);
    };
    let ended = Instant::now();
    let mut removed = None;
    loop {
        let left = entries();
        most_entries = most_entries.max(left);
        if left == 0 {
            break;
        }
        if removed.is_none() && ended.elapsed() >= scenario.expiry {
            removed = Some(left);
            node.place.flush_conntrack();
        }
        assert!(ended.elapsed() < scenario.expiry + PATIENCE, "{left} entries are not removed");
        thread::sleep(SAMPLE);
    }
    let emptied = ended.elapsed();
    let removed = removed.unwrap_or(0);
    Run { connections, took, received: listener.end(), entries_still, most_entries, emptied, removed }
}
