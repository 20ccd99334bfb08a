//! All probes together: senders of denied packets, flows that were cut and still send, and flows that must stay alive.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Flow, Sent, Shots, Way, arrivals, count_arrivals};
use crate::lab::Lab;

/// Interval between two shots of a sender, which leaves processor time to the system under test.
const BETWEEN_SHOTS: Duration = Duration::from_micros(500);

/// Interval between two round trips, and between two messages of a cut flow.
const BETWEEN_MESSAGES: Duration = Duration::from_millis(1);

/// Minimum number of packets or round trips of each thread, so that even a short run can find a leak.
const AT_LEAST: u64 = 200;

/// Destination port of denied packets. It needs no listener, because packets are counted at the prerouting hook.
const PORT: u16 = 9;

/// Running probes, which [`Probes::end`] stops.
pub struct Probes<'lab> {
    lab: &'lab Lab,
    stop: StopOnDrop,
    senders: Vec<JoinHandle<Sent>>,
    cut: Vec<JoinHandle<u64>>,
    conversations: Vec<JoinHandle<Conversation>>,
    /// Pairs of source and destination between which nothing may arrive.
    silent: Vec<(IpAddr, IpAddr)>,
}

/// Stops the threads on drop, also if a test fails.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Statistics of a flow that must stay alive.
#[derive(Debug, Clone, Copy, Default)]
struct Conversation {
    round_trips: u64,
    longest_gap: Duration,
}

/// Results of the probes.
#[derive(Debug, Clone)]
pub struct ProbeReport {
    pub sent: Sent,
    /// Messages sent on flows that were cut.
    pub sent_on_cut: u64,
    /// Denied packets that arrived: must be empty.
    pub leaked: Vec<String>,
    pub round_trips: u64,
    /// The longest time without a message on a flow that must stay alive.
    pub longest_gap: Duration,
}

impl<'lab> Probes<'lab> {
    /// Starts probing. No flow may start between the sources and destinations of `denied`. Flows of `cut` were allowed
    /// once, and must deliver no more packets in either direction (for TCP only SYN packets
    /// are counted). Flows of `alive` must stay alive. At each end of a denied pair all packets from the other end are
    /// counted, so nothing else may be allowed between them.
    pub fn start(lab: &'lab Lab, denied: &[(IpAddr, IpAddr)], cut: Vec<Flow>, alive: Vec<Flow>) -> Probes<'lab> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut silent = denied.to_vec();
        for flow in &cut {
            let [client, server] = flow.addresses();
            silent.extend([(client, server), (server, client)]);
        }
        let mut ends: Vec<IpAddr> = silent.iter().map(|(_, to)| *to).collect();
        ends.sort();
        ends.dedup();
        for places in lab.by_namespace(&ends) {
            lab.in_namespace_of(places[0], || count_arrivals(&places));
        }
        let sender = |(from, to): (IpAddr, IpAddr)| {
            let stop = stop.clone();
            // A new thread starts in the namespace of its creator.
            lab.in_namespace_of(from, || {
                std::thread::spawn(move || {
                    let mut shots = Shots::new(Some(from), SocketAddr::new(to, PORT));
                    while !stop.load(Ordering::Relaxed) || shots.sent().datagrams < AT_LEAST {
                        shots.fire();
                        std::thread::sleep(BETWEEN_SHOTS);
                    }
                    shots.sent()
                })
            })
        };
        let senders = denied.iter().copied().map(sender).collect();
        let cut = cut.into_iter().map(|flow| spawn(&stop, |stop| keep_probing(flow, stop))).collect();
        let conversations = alive.into_iter().map(|flow| spawn(&stop, |stop| converse(flow, stop))).collect();
        Probes { lab, stop: StopOnDrop(stop), senders, cut, conversations, silent }
    }

    /// Stops all threads and returns the results.
    ///
    /// # Panics
    /// If a flow that must stay alive has lost a datagram, or was silent for too long.
    pub fn end(self) -> ProbeReport {
        drop(self.stop);
        let mut sent = Sent::default();
        for one in self.senders.into_iter().map(|s| s.join().expect("a sender thread without a panic")) {
            sent.datagrams += one.datagrams;
            sent.connections += one.connections;
        }
        let sent_on_cut = self.cut.into_iter().map(|c| c.join().expect("a probe of a cut flow")).sum();
        let conversations: Vec<Conversation> =
            self.conversations.into_iter().map(|t| t.join().expect("a thread without a panic")).collect();
        let mut leaked = Vec::new();
        for (from, to) in self.silent {
            if let Some(arrived) = self.lab.in_namespace_of(to, arrivals).get(&from) {
                leaked.push(format!("{from} to {to}: {arrived:?}"));
            }
        }
        let round_trips = conversations.iter().map(|t| t.round_trips).sum();
        let longest_gap = conversations.iter().map(|t| t.longest_gap).max().unwrap_or(Duration::ZERO);
        ProbeReport { sent, sent_on_cut, leaked, round_trips, longest_gap }
    }
}

fn spawn<T: Send + 'static>(
    stop: &Arc<AtomicBool>,
    work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
) -> JoinHandle<T> {
    let stop = stop.clone();
    std::thread::spawn(move || work(&stop))
}

fn keep_probing(mut flow: Flow, stop: &AtomicBool) -> u64 {
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) || sent < AT_LEAST {
        for way in Way::BOTH {
            flow.send(way);
            sent += 1;
        }
        std::thread::sleep(BETWEEN_MESSAGES);
    }
    sent
}

fn converse(mut flow: Flow, stop: &AtomicBool) -> Conversation {
    let mut conversation = Conversation::default();
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) || conversation.round_trips < AT_LEAST {
        for way in Way::BOTH {
            flow.assert_alive(way);
            conversation.longest_gap = conversation.longest_gap.max(last.elapsed());
            last = Instant::now();
        }
        conversation.round_trips += 1;
        std::thread::sleep(BETWEEN_MESSAGES);
    }
    conversation
}
