//! Follows the TCP connections of pods to resolvers, to read the DNS messages on them.
//!
//! Sans-I/O: callers pass the present time. The agent must find the message boundaries that the resolver has sent: a
//! message read from the middle of another one would let the author of the outer one open addresses for any name. The
//! pod forges what it likes; only the resolver's kernel is trusted. It begins a stream of bytes at the number that the
//! first segment with ACK from the pod acknowledges: with SYN cookies not necessarily that of its last SYN-ACK, and it
//! may begin a further connection without a SYN once the earlier one is gone. All segments in both directions are
//! copied on their way, so a stream is read only if
//!
//! - its connection is the only one with its addresses and ports, from the pod's SYN on, within `QUARANTINE`;
//! - the pod has acknowledged nothing else than what the resolver was seen to send in it, in order;
//! - it is no part of a Multipath TCP stream (RFC 8684), which resolvers accept in the option of a SYN, and with SYN cookies
//!   in that of a later segment;
//! - it has no gap, and no message that stays incomplete (`LONGEST_IDLE`).
//!
//! A connection that violates this is ignored until its segments have stopped for `QUARANTINE`. A segment may take longer
//! if it arrives in fragments, or waits in another queue than those after it: a pod that sends such a segment is ignored
//! for `REASSEMBLY`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nfnetlink::TcpSegment;
use policy::PAUSED_SECONDS;

use super::stream::Stream;

/// How long connections stay ignored after their last segment, and new ones of a pod after segments were not copied: longer
/// than a segment takes from the hooks of the node to the resolver.
pub(super) const QUARANTINE: Duration = Duration::from_secs(3);

/// How long a segment in fragments takes at most from its first copied fragment to the resolver: the node and the
/// resolver each keep an incomplete packet for 60 seconds, and each pod's fragments are copied once in a second.
pub(super) const REASSEMBLY: Duration = Duration::from_secs(125);

/// How long the kernel copies no segments between two ends that have exceeded the limit.
const PAUSE: Duration = Duration::from_secs(PAUSED_SECONDS as u64);

/// Streams of one pod, and of all: with the bounds of a stream, 12 MiB of memory.
const MOST_STREAMS_OF_POD: usize = 16;
const MOST_STREAMS: usize = 256;

/// Connections of a pod with one resolver and with segments within [`QUARANTINE`], of 100 bytes each, far more than the
/// limit of copies permits if each has an answer. Such a pair with more is ignored for a while.
const MOST_CONNECTIONS_OF_PAIR: usize = 1024;

/// Pairs of a pod and another end that are followed, and pods that are ignored.
const MOST_PAIRS: usize = 4096;

/// When a segment was copied.
#[derive(Debug, Clone, Copy)]
pub struct CopyTime {
    /// The log was empty then, so no earlier copy waited in it.
    pub earliest: Instant,
    /// When the copy was read.
    pub latest: Instant,
}

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
    /// Its connection may carry a part of a Multipath TCP stream.
    Multipath,
    /// It may arrive at the resolver later than `QUARANTINE`.
    MayBeLate,
    /// It cannot be decoded.
    Unreadable,
}

impl IgnoreReason {
    pub const ALL: [IgnoreReason; 9] = [
        IgnoreReason::StartMissing,
        IgnoreReason::Gap,
        IgnoreReason::Truncated,
        IgnoreReason::TooLong,
        IgnoreReason::NoRoom,
        IgnoreReason::Mismatch,
        IgnoreReason::Multipath,
        IgnoreReason::MayBeLate,
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

/// A pod and the other end of its connections.
type PairKey = (IpAddr, IpAddr);

/// The connections of all pods.
#[derive(Debug)]
pub struct DnsConnections {
    pairs: BTreeMap<PairKey, Pair>,
    /// Those that are read.
    streams: BTreeMap<ConnectionKey, Stream>,
    /// Pods none of whose connections that begin before a time are read.
    ignored_pods: BTreeMap<IpAddr, Instant>,
    /// [`Pair::ignored_until`] of pairs that have no connections yet.
    ignored_until: Instant,
    /// When expired connections were last removed.
    swept: Instant,
}

/// Connections of a pair with recent segments.
#[derive(Debug)]
struct Pair {
    /// Since when the pod's segments have been copied; `None` if that is not known yet.
    copied_since: Option<Instant>,
    connections: BTreeMap<ConnectionKey, RecentConnection>,
    /// No connection that begins before this time is read.
    ignored_until: Instant,
}

#[derive(Debug, Clone, Copy)]
struct RecentConnection {
    phase: Phase,
    /// The latest time of its last segment.
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

impl Pair {
    /// Forgets the connections, and reads none that begins before the time.
    fn ignore_until(&mut self, until: Instant) {
        self.connections.clear();
        self.ignored_until = self.ignored_until.max(until);
    }
}

impl RecentConnection {
    fn is_expired(&self, at: CopyTime) -> bool {
        self.phase != Phase::Read && at.earliest.saturating_duration_since(self.last) >= QUARANTINE
    }
}

impl DnsConnections {
    pub fn new(now: Instant) -> DnsConnections {
        DnsConnections {
            pairs: BTreeMap::new(),
            streams: BTreeMap::new(),
            ignored_pods: BTreeMap::new(),
            ignored_until: now,
            swept: now,
        }
    }

    /// A segment of the pod.
    pub fn pod_sends(&mut self, key: ConnectionKey, segment: TcpSegment<'_>, at: CopyTime) -> Assembly {
        let phase = self.note(key, at);
        let is_plain_syn = segment.syn && segment.acknowledged.is_none() && !segment.rst;
        // A resolver without Multipath TCP ignores the option in a SYN.
        if segment.is_multipath && !is_plain_syn {
            self.ignore(key);
            return Assembly::ignored(IgnoreReason::Multipath);
        }
        match phase {
            None if is_plain_syn => self.set_phase(key, Phase::Opening),
            None => self.ignore(key),
            Some(Phase::Opening) if !is_plain_syn => self.ignore(key),
            Some(Phase::Opening | Phase::Ignored) => {}
            Some(Phase::Read) => return self.pod_answers(key, segment, is_plain_syn, at),
        }
        Assembly::default()
    }

    /// A segment of the pod in a connection that is read.
    fn pod_answers(
        &mut self,
        key: ConnectionKey,
        segment: TcpSegment<'_>,
        is_plain_syn: bool,
        at: CopyTime,
    ) -> Assembly {
        let Some(stream) = self.streams.get_mut(&key).filter(|stream| !stream.is_idle(at.latest)) else {
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
        stream.settle(at.earliest);
        if continues {
            return Assembly::default();
        }
        self.ignore(key);
        Assembly::ignored(IgnoreReason::Mismatch)
    }

    /// A segment of the resolver.
    pub fn resolver_sends(&mut self, key: ConnectionKey, segment: TcpSegment<'_>, at: CopyTime) -> Assembly {
        let phase = self.note(key, at);
        let is_syn_ack = segment.syn && segment.acknowledged.is_some() && !segment.rst;
        let first = segment.sequence.wrapping_add(1);
        if segment.is_multipath {
            self.ignore(key);
            return Assembly::ignored(IgnoreReason::Multipath);
        }
        match phase {
            Some(Phase::Opening) if is_syn_ack => {
                if !self.make_room(key) {
                    self.ignore(key);
                    return Assembly::ignored(IgnoreReason::NoRoom);
                }
                self.streams.insert(key, Stream::new(first, at.earliest));
                self.set_phase(key, Phase::Read);
            }
            Some(Phase::Read) => {}
            Some(Phase::Opening | Phase::Ignored) | None => {
                self.ignore(key);
                return Assembly::of_ignored(&segment);
            }
        }
        let Some(stream) = self.streams.get_mut(&key).filter(|stream| !stream.is_idle(at.latest) && !segment.rst)
        else {
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
        stream.settle(at.earliest);
        let is_finished = stream.is_finished();
        assembled.ignored = outcome.err().or(assembled.ignored);
        if outcome.is_err() || is_finished {
            self.ignore(key);
        }
        assembled
    }

    /// Ignores a connection that may have the segments of another one.
    pub fn reject(&mut self, key: ConnectionKey, at: CopyTime) {
        self.note(key, at);
        self.ignore(key);
    }

    /// The kernel copies no segments between a pod and another end for a while.
    pub fn pause(&mut self, pod: IpAddr, other: IpAddr, at: CopyTime) {
        self.forget_until((pod, other), at.latest + PAUSE + QUARANTINE, at);
    }

    /// Forgets the connections of a pod with another end, and reads no new ones for a while, since a segment is not known.
    pub fn forget(&mut self, pod: IpAddr, other: IpAddr, at: CopyTime) {
        self.forget_until((pod, other), at.latest + QUARANTINE, at);
    }

    fn forget_until(&mut self, key: PairKey, until: Instant, at: CopyTime) {
        self.streams.retain(|of, _| pair_of(of) != key);
        if let Some(pair) = self.pair(key, at) {
            pair.ignore_until(until);
        } else {
            self.ignored_until = self.ignored_until.max(until);
        }
    }

    /// Forgets the connections of a pod, and reads no new ones until any segment of it has arrived at the resolver, since
    /// one is in fragments, or in a queue of its own.
    pub fn expect_late_segment(&mut self, pod: IpAddr, at: CopyTime) {
        self.sweep(at);
        let until = at.latest + REASSEMBLY;
        self.streams.retain(|of, _| of.pod.ip() != pod);
        for (_, pair) in self.pairs.iter_mut().filter(|((of, _), _)| *of == pod) {
            pair.ignore_until(until);
        }
        if self.ignored_pods.len() < MOST_PAIRS || self.ignored_pods.contains_key(&pod) {
            self.ignored_pods.insert(pod, until);
        } else {
            self.ignored_until = self.ignored_until.max(until);
        }
    }

    /// Forgets all connections, and reads no new ones for a while, since copies may have been lost: also of fragments, and
    /// of the begin of pauses, which are shorter.
    pub fn clear(&mut self, now: Instant) {
        *self = DnsConnections { ignored_until: now + REASSEMBLY, ..DnsConnections::new(now) };
    }

    /// Whether the pod has sent segments to the other end recently. Senders that it does not know get no room.
    pub fn follows(&self, pod: IpAddr, other: IpAddr) -> bool {
        self.pairs.contains_key(&(pod, other))
    }

    /// The pod's segments have been copied since this time. Earlier ones are not known.
    pub fn copied_since(&mut self, pod: IpAddr, other: IpAddr, since: Instant, at: CopyTime) {
        let key = (pod, other);
        if let Some(pair) = self.pair(key, at)
            && pair.copied_since != Some(since)
        {
            pair.copied_since = Some(since);
            self.forget_until(key, since + QUARANTINE, at);
        }
    }

    /// Notes that the connection has a segment now. Returns its phase before; `None` if it is a new one. One that begins
    /// while the pair is ignored is ignored.
    fn note(&mut self, key: ConnectionKey, at: CopyTime) -> Option<Phase> {
        let Some(pair) = self.pair(pair_of(&key), at) else { return Some(Phase::Ignored) };
        let recent = pair.connections.get(&key).filter(|recent| !recent.is_expired(at)).map(|recent| recent.phase);
        let before = recent.or_else(|| (at.earliest < pair.ignored_until).then_some(Phase::Ignored));
        let phase = before.unwrap_or(Phase::Opening);
        pair.connections.insert(key, RecentConnection { phase, last: at.latest });
        if pair.connections.len() > MOST_CONNECTIONS_OF_PAIR {
            self.forget(key.pod.ip(), key.resolver.ip(), at);
            return Some(Phase::Ignored);
        }
        before
    }

    /// The pair, or a new one; `None` if there is no room.
    fn pair(&mut self, key: PairKey, at: CopyTime) -> Option<&mut Pair> {
        self.sweep(at);
        if self.pairs.len() >= MOST_PAIRS && !self.pairs.contains_key(&key) {
            self.ignored_until = self.ignored_until.max(at.latest + QUARANTINE);
            return None;
        }
        let of_pod = self.ignored_pods.get(&key.0).copied().unwrap_or(self.ignored_until);
        let ignored_until = self.ignored_until.max(of_pod);
        Some(self.pairs.entry(key).or_insert_with(|| Pair {
            copied_since: None,
            connections: BTreeMap::new(),
            ignored_until,
        }))
    }

    fn set_phase(&mut self, key: ConnectionKey, phase: Phase) {
        let pair = self.pairs.get_mut(&pair_of(&key));
        if let Some(recent) = pair.and_then(|pair| pair.connections.get_mut(&key)) {
            recent.phase = phase;
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
    fn sweep(&mut self, at: CopyTime) {
        if at.earliest.saturating_duration_since(self.swept) < QUARANTINE {
            return;
        }
        self.swept = at.latest;
        let idle: Vec<ConnectionKey> =
            self.streams.iter().filter(|(_, stream)| stream.is_idle(at.latest)).map(|(key, _)| *key).collect();
        for key in idle {
            self.ignore(key);
        }
        for pair in self.pairs.values_mut() {
            pair.connections.retain(|_, recent| !recent.is_expired(at));
        }
        self.pairs.retain(|_, pair| !pair.connections.is_empty() || at.earliest < pair.ignored_until);
        self.ignored_pods.retain(|_, until| at.earliest < *until);
    }
}

fn pair_of(key: &ConnectionKey) -> PairKey {
    (key.pod.ip(), key.resolver.ip())
}

#[cfg(test)]
mod tests;
