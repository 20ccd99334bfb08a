//! Follows the TCP connections of pods to resolvers, to read the DNS messages on them.
//!
//! Sans-I/O: callers pass the present time. The agent must find the message boundaries that the resolver has sent: a
//! message read from the middle of another one would let the author of the outer one open addresses for any name. The
//! pod forges what it likes; only the resolver's kernel is trusted. It begins a stream of bytes at the number that the
//! first segment with ACK from the pod acknowledges: with SYN cookies not necessarily that of its last SYN-ACK, and it
//! may begin a further connection without a SYN once the earlier one is gone. All segments in both directions are
//! copied on their way, so a stream is read only if
//!
//! - its connection is the only one with its addresses and ports, from the pod's SYN on, within [`QUARANTINE`];
//! - the pod has acknowledged nothing else than what the resolver was seen to send in it, in order;
//! - it has no gap, and no message that stays incomplete (`LONGEST_IDLE`).
//!
//! A connection that violates this is ignored until its segments have stopped for [`QUARANTINE`].

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nfnetlink::TcpSegment;
use policy::PAUSED_SECONDS;

use super::stream::Stream;

/// How long a segment that was copied, or should have been, may take to the resolver. A connection whose segments
/// stopped for as long has none under way.
const IN_FLIGHT: Duration = Duration::from_secs(2);

/// The longest time between two reads of the log after which connections are kept: so much less time may have passed
/// between two segments than between their copies.
pub(super) const LONGEST_LAG: Duration = Duration::from_secs(5);

/// How long connections stay ignored after their last segment, and all of a pod's new ones after copies were missing.
pub(super) const QUARANTINE: Duration = Duration::from_secs(10);
const _: () = assert!(IN_FLIGHT.as_secs() + LONGEST_LAG.as_secs() < QUARANTINE.as_secs());

/// How long the kernel copies no segments of a pod that has exceeded its limit.
const PAUSE: Duration = Duration::from_secs(PAUSED_SECONDS as u64);

/// Streams of one pod, and of all: with the bounds of a stream, 12 MiB of memory.
const MOST_STREAMS_OF_POD: usize = 16;
const MOST_STREAMS: usize = 256;

/// DnsConnections of one pod with segments within [`QUARANTINE`], of 100 bytes each, far more than the limit of copies permits
/// if each has an answer. A pod with more is ignored for a while.
const MOST_CONNECTIONS_OF_POD: usize = 1024;

/// Pods that are followed, far more than a node has.
const MOST_PODS: usize = 4096;

/// The ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionKey {
    pub pod: SocketAddr,
    pub resolver: SocketAddr,
}

/// Why a segment, or the rest of its connection, is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IgnoreReason {
    /// The begin of its connection was not copied, or its stream was removed.
    StartMissing,
    /// Too much of its stream waits for an earlier segment.
    Gap,
    /// Only a part of it was copied.
    Truncated,
    /// It has a message that is longer than any that is decoded.
    TooLong,
    /// There are too many streams.
    NoRoom,
    /// The segments of pod and resolver do not belong to one connection.
    Mismatch,
    /// It cannot be decoded.
    Unreadable,
}

impl IgnoreReason {
    pub const ALL: [IgnoreReason; 7] = [
        IgnoreReason::StartMissing,
        IgnoreReason::Gap,
        IgnoreReason::Truncated,
        IgnoreReason::TooLong,
        IgnoreReason::NoRoom,
        IgnoreReason::Mismatch,
        IgnoreReason::Unreadable,
    ];
}

/// The outcome of a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Assembly {
    /// The messages that it completes.
    pub messages: Vec<Vec<u8>>,
    pub ignored: Option<IgnoreReason>,
}

impl Assembly {
    fn ignored(reason: IgnoreReason) -> Assembly {
        Assembly { messages: vec![], ignored: Some(reason) }
    }

    /// A payload of a connection that is not read.
    fn of_ignored(segment: &TcpSegment<'_>) -> Assembly {
        Assembly { messages: vec![], ignored: (!segment.payload.is_empty()).then_some(IgnoreReason::StartMissing) }
    }
}

/// The connections of all pods.
#[derive(Debug)]
pub struct DnsConnections {
    pods: BTreeMap<IpAddr, Pod>,
    /// Those that are read.
    streams: BTreeMap<ConnectionKey, Stream>,
    /// [`Pod::ignored_until`] of pods that have no connections yet.
    ignored_until: Instant,
    /// When expired connections were last removed.
    swept: Instant,
}

/// DnsConnections of a pod with recent segments.
#[derive(Debug)]
struct Pod {
    connections: BTreeMap<ConnectionKey, RecentConnection>,
    /// No connection that begins before this time is read.
    ignored_until: Instant,
}

#[derive(Debug, Clone, Copy)]
struct RecentConnection {
    phase: Phase,
    /// Time of its last segment.
    last: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The pod has sent a SYN, and nothing else was sent.
    Opening,
    /// It has a stream.
    Read,
    Ignored,
}

impl RecentConnection {
    fn is_expired(&self, now: Instant) -> bool {
        self.phase != Phase::Read && now.saturating_duration_since(self.last) >= QUARANTINE
    }
}

impl DnsConnections {
    pub fn new(now: Instant) -> DnsConnections {
        DnsConnections { pods: BTreeMap::new(), streams: BTreeMap::new(), ignored_until: now, swept: now }
    }

    /// A segment of the pod.
    pub fn pod_sends(&mut self, key: ConnectionKey, segment: TcpSegment<'_>, now: Instant) -> Assembly {
        let phase = self.note(key, now);
        let is_plain_syn = segment.syn && segment.acknowledged.is_none() && !segment.rst;
        match phase {
            None if is_plain_syn => self.set_phase(key, Phase::Opening),
            None => self.ignore(key),
            Some(Phase::Opening) if !is_plain_syn => self.ignore(key),
            Some(Phase::Opening | Phase::Ignored) => {}
            Some(Phase::Read) => return self.pod_answers(key, segment, is_plain_syn, now),
        }
        Assembly::default()
    }

    /// A segment of the pod in a connection that is read.
    fn pod_answers(
        &mut self,
        key: ConnectionKey,
        segment: TcpSegment<'_>,
        is_plain_syn: bool,
        now: Instant,
    ) -> Assembly {
        let Some(stream) = self.streams.get_mut(&key).filter(|stream| !stream.is_idle(now)) else {
            self.ignore(key);
            return Assembly::default();
        };
        let continues = match segment.acknowledged {
            _ if segment.rst => {
                self.ignore(key);
                return Assembly::default();
            }
            Some(to) => !segment.syn && stream.acknowledge(to),
            None => is_plain_syn && stream.is_opening(),
        };
        stream.settle(now);
        if continues {
            return Assembly::default();
        }
        self.ignore(key);
        Assembly::ignored(IgnoreReason::Mismatch)
    }

    /// A segment of the resolver.
    pub fn resolver_sends(&mut self, key: ConnectionKey, segment: TcpSegment<'_>, now: Instant) -> Assembly {
        let phase = self.note(key, now);
        let is_syn_ack = segment.syn && segment.acknowledged.is_some() && !segment.rst;
        let first = segment.sequence.wrapping_add(1);
        match phase {
            Some(Phase::Opening) if is_syn_ack => {
                if !self.make_room(key) {
                    self.ignore(key);
                    return Assembly::ignored(IgnoreReason::NoRoom);
                }
                self.streams.insert(key, Stream::new(first, now));
                self.set_phase(key, Phase::Read);
            }
            Some(Phase::Read) => {}
            Some(Phase::Opening | Phase::Ignored) | None => {
                self.ignore(key);
                return Assembly::of_ignored(&segment);
            }
        }
        let Some(stream) = self.streams.get_mut(&key).filter(|stream| !stream.is_idle(now) && !segment.rst) else {
            self.ignore(key);
            return Assembly::of_ignored(&segment);
        };
        let mut assembled = Assembly::default();
        let sequence = if segment.syn { first } else { segment.sequence };
        let is_expected = match segment.syn {
            true => is_syn_ack && stream.is_start(first),
            false => !stream.is_opening() || segment.payload.is_empty(),
        };
        let mut outcome = if is_expected {
            stream.push(sequence, segment.payload, &mut assembled)
        } else {
            Err(IgnoreReason::Mismatch)
        };
        if !segment.is_whole {
            outcome = Err(IgnoreReason::Truncated);
        }
        if segment.fin {
            stream.end_at(sequence.wrapping_add(segment.payload.len() as u32));
        }
        stream.settle(now);
        let is_finished = stream.is_finished();
        assembled.ignored = outcome.err().or(assembled.ignored);
        if outcome.is_err() || is_finished {
            self.ignore(key);
        }
        assembled
    }

    /// Ignores a connection that may have the segments of another one.
    pub fn reject(&mut self, key: ConnectionKey, now: Instant) {
        self.note(key, now);
        self.ignore(key);
    }

    /// The kernel copies no segments of the pod for a while.
    pub fn pause(&mut self, pod: IpAddr, now: Instant) {
        self.forget_until(pod, now, PAUSE + QUARANTINE);
    }

    /// Forgets the pod's connections, and reads no new ones for a while, since a segment is not known.
    pub fn forget(&mut self, pod: IpAddr, now: Instant) {
        self.forget_until(pod, now, QUARANTINE);
    }

    fn forget_until(&mut self, pod: IpAddr, now: Instant, ignored: Duration) {
        self.streams.retain(|key, _| key.pod.ip() != pod);
        let pod = self.pod(pod, now);
        pod.connections.clear();
        pod.ignored_until = pod.ignored_until.max(now + ignored);
    }

    /// [`DnsConnections::forget`] for all pods, since copies may have been lost.
    pub fn clear(&mut self, now: Instant) {
        *self = DnsConnections { ignored_until: now + QUARANTINE, ..DnsConnections::new(now) };
    }

    /// Notes that the connection has a segment now. Returns its phase before; `None` if it is a new one. One that begins
    /// while the pod is ignored is ignored.
    fn note(&mut self, key: ConnectionKey, now: Instant) -> Option<Phase> {
        self.sweep(now);
        let pod = self.pod(key.pod.ip(), now);
        let is_ignored = now < pod.ignored_until;
        let begins = || RecentConnection { phase: if is_ignored { Phase::Ignored } else { Phase::Opening }, last: now };
        let before = match pod.connections.entry(key) {
            Entry::Occupied(mut entry) if entry.get().is_expired(now) => {
                *entry.get_mut() = begins();
                is_ignored.then_some(Phase::Ignored)
            }
            Entry::Occupied(mut entry) => {
                entry.get_mut().last = now;
                Some(entry.get().phase)
            }
            Entry::Vacant(entry) => {
                entry.insert(begins());
                is_ignored.then_some(Phase::Ignored)
            }
        };
        if pod.connections.len() > MOST_CONNECTIONS_OF_POD {
            self.forget(key.pod.ip(), now);
            return Some(Phase::Ignored);
        }
        before
    }

    fn pod(&mut self, pod: IpAddr, now: Instant) -> &mut Pod {
        if self.pods.len() >= MOST_PODS && !self.pods.contains_key(&pod) {
            self.clear(now);
        }
        let ignored_until = self.ignored_until;
        self.pods.entry(pod).or_insert_with(|| Pod { connections: BTreeMap::new(), ignored_until })
    }

    fn set_phase(&mut self, key: ConnectionKey, phase: Phase) {
        let pod = self.pods.get_mut(&key.pod.ip());
        if let Some(seen) = pod.and_then(|pod| pod.connections.get_mut(&key)) {
            seen.phase = phase;
        }
    }

    fn ignore(&mut self, key: ConnectionKey) {
        self.streams.remove(&key);
        self.set_phase(key, Phase::Ignored);
    }

    /// Ignores the stream that was settled longest ago of the pod, or of the one with most, if there are too many.
    /// Returns whether there is room.
    fn make_room(&mut self, key: ConnectionKey) -> bool {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for key in self.streams.keys() {
            *counts.entry(key.pod.ip()).or_default() += 1;
        }
        let own = counts.get(&key.pod.ip()).copied().unwrap_or(0);
        let full = if own >= MOST_STREAMS_OF_POD {
            Some(key.pod.ip())
        } else if self.streams.len() >= MOST_STREAMS {
            let most = counts.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > own + 1);
            let Some((pod, _)) = most else { return false };
            Some(pod)
        } else {
            None
        };
        let of_full = self.streams.iter().filter(|(of, _)| Some(of.pod.ip()) == full);
        if let Some(oldest) = of_full.min_by_key(|(_, stream)| stream.settled()).map(|(of, _)| *of) {
            self.ignore(oldest);
        }
        true
    }

    /// Removes what has expired, from time to time.
    fn sweep(&mut self, now: Instant) {
        if now.saturating_duration_since(self.swept) < QUARANTINE {
            return;
        }
        self.swept = now;
        let idle: Vec<ConnectionKey> =
            self.streams.iter().filter(|(_, stream)| stream.is_idle(now)).map(|(key, _)| *key).collect();
        for key in idle {
            self.ignore(key);
        }
        for pod in self.pods.values_mut() {
            pod.connections.retain(|_, seen| !seen.is_expired(now));
        }
        self.pods.retain(|_, pod| !pod.connections.is_empty() || now < pod.ignored_until);
    }
}

#[cfg(test)]
mod tests;
