//! The thread that receives copied DNS answers.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nfnetlink::{LogEvent, LogRecord, PacketHead, PacketLog, PacketLogError, TrackedTuple};
use nft::Protocol;
use policy::{Direction, DnsCopy};
use tokio::sync::mpsc;

use super::answer::{DnsAnswer, answer};
use super::clients::DnsClients;
use super::connections::{Assembly, ConnectionKey, CopyTime, DnsConnections, IgnoreReason};
use crate::event_loop::Event;
use crate::metrics::Metrics;
use crate::metrics::labels::AnswerOutcome;

/// The longest wait for an answer, after which a closed queue is noticed; also the pause after an error.
const WAIT: Duration = Duration::from_secs(1);

/// Limit of answers in one event. Further ones wait in the socket's buffer; the kernel counts those that do not fit.
const MOST_IN_EVENT: usize = 64;

/// A DNS answer on its way to a pod of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopiedAnswer {
    pub(crate) resolver: IpAddr,
    pub(crate) answer: DnsAnswer,
    /// When the agent received it.
    pub(crate) at: Instant,
}

pub(crate) struct AnswerReader {
    log: PacketLog,
    events: mpsc::Sender<Event>,
    metrics: Arc<Metrics>,
    clients: DnsClients,
    connections: DnsConnections,
    /// The last time at which the log had no further copies.
    empty: Instant,
}

impl AnswerReader {
    pub(crate) fn new(
        log: PacketLog,
        events: mpsc::Sender<Event>,
        metrics: Arc<Metrics>,
        clients: DnsClients,
    ) -> AnswerReader {
        let now = Instant::now();
        AnswerReader { log, events, metrics, clients, connections: DnsConnections::new(now), empty: now }
    }

    /// Runs until the queue of events is closed.
    pub(crate) fn run(mut self) {
        while !self.events.is_closed() {
            let mut answers = Vec::new();
            while answers.len() < MOST_IN_EVENT {
                // Answers that are already queued share an event with the first one.
                let logged = match self.next_queued() {
                    Ok(None) if answers.is_empty() => self.log.next(WAIT),
                    logged => logged,
                };
                match logged {
                    Ok(None) => break,
                    Ok(Some(LogEvent::Packet(packet))) => self.read(&packet, &mut answers),
                    Ok(Some(LogEvent::Lost { messages })) => self.count_lost(messages.unwrap_or(0)),
                    Err(PacketLogError::Decode(error)) => {
                        self.count_lost(1);
                        tracing::debug!("cannot decode a copied DNS answer (NFLOG): {error}");
                    }
                    Err(error) => {
                        self.connections.clear(Instant::now());
                        tracing::warn!("cannot receive copied DNS answers (NFLOG): {error}");
                        std::thread::sleep(WAIT);
                        break;
                    }
                }
            }
            if !answers.is_empty() && self.events.blocking_send(Event::DnsAnswers(answers)).is_err() {
                return;
            }
        }
    }

    /// The next copy that is already in the log.
    fn next_queued(&mut self) -> Result<Option<LogEvent>, PacketLogError> {
        let before = Instant::now();
        let logged = self.log.next(Duration::ZERO);
        if let Ok(None) = logged {
            self.empty = before;
        }
        logged
    }

    /// Counts lost copies and forgets all connections.
    fn count_lost(&mut self, messages: u64) {
        self.connections.clear(Instant::now());
        self.metrics.dns_answer(AnswerOutcome::Lost, messages);
    }

    /// Adds the answers with addresses that the packet completes.
    fn read(&mut self, packet: &LogRecord, answers: &mut Vec<CopiedAnswer>) {
        let Some(copy) = DnsCopy::of(&packet.prefix) else { return };
        let at = CopyTime { earliest: self.empty, latest: Instant::now() };
        let Some(head) = packet.content else {
            self.connections.clear(at.latest);
            return self.metrics.ignore_dns_segment(IgnoreReason::Unreadable);
        };
        let mut add = |message: &[u8]| match answer(message) {
            Some(answer) => answers.push(CopiedAnswer { resolver: head.source, answer, at: at.latest }),
            None => self.metrics.dns_answer(AnswerOutcome::WithoutAddresses, 1),
        };
        if copy == DnsCopy::Answer && head.protocol == Protocol::Udp.number() {
            if let Some(payload) = PacketHead::udp_payload(packet.ether_type, &packet.bytes) {
                add(payload);
            }
            return;
        }
        let assembled = follow(&mut self.connections, &self.clients, copy, &head, packet, at);
        assembled.messages.iter().for_each(|message| add(message));
        if let Some(reason) = assembled.ignored {
            self.metrics.ignore_dns_segment(reason);
        }
    }
}

/// Follows the connection of a segment, or a pause of its pod.
fn follow(
    connections: &mut DnsConnections,
    clients: &DnsClients,
    copy: DnsCopy,
    head: &PacketHead,
    packet: &LogRecord,
    at: CopyTime,
) -> Assembly {
    let sender_is_pod = match copy {
        DnsCopy::PodSegment | DnsCopy::PodFragment | DnsCopy::Pause(Direction::Egress) => true,
        DnsCopy::Answer | DnsCopy::Translated | DnsCopy::Pause(Direction::Ingress) => false,
    };
    let (pod, resolver) = if sender_is_pod { (head.source, head.destination) } else { (head.destination, head.source) };
    if matches!(copy, DnsCopy::Answer | DnsCopy::Translated) && !connections.follows(pod, resolver) {
        return Assembly::default();
    }
    match clients.since(pod) {
        Some(since) => connections.copied_since(pod, resolver, since, at),
        None => {
            connections.forget(pod, resolver, at);
            return Assembly::default();
        }
    }
    if copy == DnsCopy::PodFragment || (sender_is_pod && may_be_late(packet)) {
        connections.expect_late_segment(pod, at);
        return Assembly { ignored: Some(IgnoreReason::MayBeLate), ..Assembly::default() };
    }
    if let DnsCopy::Pause(_) = copy {
        connections.pause(pod, resolver, at);
        return Assembly::default();
    }
    let segment = PacketHead::tcp_segment(packet.ether_type, &packet.bytes);
    let Some((segment, (from, to))) = segment.zip(head.ports) else {
        connections.forget(pod, resolver, at);
        return Assembly { ignored: Some(IgnoreReason::Unreadable), ..Assembly::default() };
    };
    let (pod_port, resolver_port) = if sender_is_pod { (from, to) } else { (to, from) };
    let key = ConnectionKey { pod: SocketAddr::new(pod, pod_port), resolver: SocketAddr::new(resolver, resolver_port) };
    if copy == DnsCopy::Translated {
        connections.reject(key, at);
        match packet.reply.and_then(|reply| resolver_side(&reply)) {
            Some(key) if key.pod.ip() == pod => connections.reject(key, at),
            // The source is translated to the address of the node.
            Some(_) => {}
            None => connections.forget(pod, resolver, at),
        }
        Assembly::default()
    } else if sender_is_pod {
        connections.pod_sends(key, segment, at)
    } else {
        connections.resolver_sends(key, segment, at)
    }
}

/// Whether a segment of a pod may arrive long after later ones: in fragments, or from a queue that others precede. Those
/// of the usual class are in one queue.
fn may_be_late(packet: &LogRecord) -> bool {
    let has_own_class = PacketHead::service_class(packet.ether_type, &packet.bytes) != Some(0);
    has_own_class || PacketHead::may_be_fragmented(packet.ether_type, &packet.bytes)
}

/// The ends of the connection that the resolver sees.
fn resolver_side(reply: &TrackedTuple) -> Option<ConnectionKey> {
    let pod = SocketAddr::new(reply.destination, reply.destination_port?);
    Some(ConnectionKey { pod, resolver: SocketAddr::new(reply.source, reply.source_port?) })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::connections::QUARANTINE;
    use super::*;
    use crate::enforcer::EarlierTables;

    const POD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const RESOLVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    /// A copy of a segment without payload between the pod's port and the resolver.
    fn record(copy: DnsCopy, port: u16, [sequence, acknowledged]: [u32; 2], flags: u8) -> LogRecord {
        let is_from_pod = copy == DnsCopy::PodSegment;
        let ends = if is_from_pod { [(POD, port), (RESOLVER, 53)] } else { [(RESOLVER, 53), (POD, port)] };
        let octets = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets(),
            IpAddr::V6(_) => unreachable!("both are of IPv4"),
        };
        let mut bytes = vec![0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0];
        bytes.extend(ends.map(|(address, _)| octets(address)).concat());
        bytes.extend(ends.map(|(_, port)| port.to_be_bytes()).concat());
        bytes.extend([sequence, acknowledged].map(u32::to_be_bytes).concat());
        bytes.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
        LogRecord {
            prefix: copy.prefix().into(),
            ether_type: 0x0800,
            input: None,
            output: None,
            sequence: None,
            content: PacketHead::parse(0x0800, &bytes),
            bytes,
            original: None,
            reply: None,
        }
    }

    fn take(connections: &mut DnsConnections, clients: &DnsClients, record: &LogRecord, now: Instant) -> Assembly {
        let copy = DnsCopy::of(&record.prefix).unwrap();
        let at = CopyTime { earliest: now, latest: now };
        follow(connections, clients, copy, &record.content.unwrap(), record, at)
    }

    /// Takes the copy after the handshake of port 1000, and returns what becomes of its next segment.
    fn next_after(record_of: impl FnOnce() -> LogRecord) -> Option<IgnoreReason> {
        let clients = DnsClients::of_agent(EarlierTables::Missing, Instant::now());
        clients.publish(&[POD].into(), Instant::now());
        let now = Instant::now() + QUARANTINE;
        let mut connections = DnsConnections::new(now);
        for (copy, numbers, flags) in [
            (DnsCopy::PodSegment, [5, 0], 0x02),
            (DnsCopy::Answer, [99, 6], 0x12),
            (DnsCopy::PodSegment, [6, 100], 0x10),
        ] {
            assert_eq!(take(&mut connections, &clients, &record(copy, 1000, numbers, flags), now), Assembly::default());
        }
        take(&mut connections, &clients, &record_of(), now);
        let mut bytes = record(DnsCopy::Answer, 1000, [100, 6], 0x18);
        bytes.bytes[3] += 1;
        bytes.bytes.push(0);
        take(&mut connections, &clients, &bytes, now).ignored
    }

    #[test]
    fn translated_segment_ends_connection_that_resolver_sees() {
        let ignored = Some(IgnoreReason::StartMissing);
        let of_port = |port, destination| {
            let tuple = TrackedTuple {
                source: RESOLVER,
                destination,
                protocol: 6,
                source_port: Some(53),
                destination_port: Some(port),
                icmp_type: None,
            };
            move || LogRecord { reply: Some(tuple), ..record(DnsCopy::Translated, 2000, [100, 6], 0x04) }
        };
        assert_eq!(next_after(of_port(1000, POD)), ignored);
        assert_eq!(next_after(of_port(1001, POD)), None, "another connection");
        assert_eq!(next_after(of_port(1000, RESOLVER)), None, "of an address of the node");
        assert_eq!(
            next_after(|| record(DnsCopy::Translated, 2000, [100, 6], 0x04)),
            ignored,
            "it may be any connection"
        );
    }

    /// Anyone can send from port 53.
    #[test]
    fn senders_unknown_to_pod_get_no_room() {
        let now = Instant::now();
        let clients = DnsClients::of_agent(EarlierTables::Missing, now);
        clients.publish(&[POD].into(), now);
        let mut connections = DnsConnections::new(now);
        for copy in [DnsCopy::Answer, DnsCopy::Translated] {
            take(&mut connections, &clients, &record(copy, 1000, [1, 1], 0x10), now);
            assert!(!connections.follows(POD, RESOLVER));
        }
        take(&mut connections, &clients, &record(DnsCopy::PodSegment, 1000, [1, 0], 0x02), now);
        assert!(connections.follows(POD, RESOLVER));
    }

    #[test]
    fn pod_that_was_no_client_has_no_connections() {
        let now = Instant::now();
        let clients = DnsClients::of_agent(EarlierTables::Missing, now);
        let mut connections = DnsConnections::new(now);
        let syn = record(DnsCopy::PodSegment, 1000, [5, 0], 0x02);
        let syn_ack = record(DnsCopy::Answer, 1000, [99, 6], 0x12);
        let mut opens = |now| {
            take(&mut connections, &clients, &syn, now);
            take(&mut connections, &clients, &syn_ack, now);
            let payload = record(DnsCopy::PodSegment, 1000, [6, 1], 0x10);
            // A connection that is followed has a mismatch.
            take(&mut connections, &clients, &payload, now).ignored.is_some()
        };
        let later = |quarantines| now + quarantines * QUARANTINE;
        assert!(!opens(later(1)), "no commit yet");
        clients.publish(&[POD].into(), later(2));
        assert!(!opens(later(2)));
        assert!(opens(later(3)));
        clients.publish(&[].into(), later(4));
        clients.publish(&[POD].into(), later(5));
        assert!(!opens(later(5)));
        assert!(opens(later(6)));
    }

    /// Its fragments may wait at the resolver, and its class is that of a queue.
    #[test]
    fn segment_that_may_be_late_ends_all_connections() {
        let ignored = Some(IgnoreReason::StartMissing);
        let with = |place: usize, byte| {
            move || {
                let mut record = record(DnsCopy::PodSegment, 2000, [1, 1], 0x10);
                record.bytes[place] = byte;
                record
            }
        };
        let fragment = || LogRecord {
            prefix: DnsCopy::PodFragment.prefix().into(),
            ..record(DnsCopy::PodSegment, 2000, [1, 1], 0x10)
        };
        assert_eq!(next_after(with(1, 0x20)), ignored, "class CS1");
        assert_eq!(next_after(with(1, 0x03)), None, "congestion experienced");
        assert_eq!(next_after(with(2, 3)), ignored, "808 bytes");
        assert_eq!(next_after(fragment), ignored);
    }

    #[test]
    fn pause_or_unreadable_segment_ends_all_connections() {
        let ignored = Some(IgnoreReason::StartMissing);
        let pause = |direction| {
            move || {
                let copy = if direction == Direction::Egress { DnsCopy::PodSegment } else { DnsCopy::Answer };
                let prefix = DnsCopy::Pause(direction).prefix().into();
                LogRecord { prefix, ..record(copy, 2000, [1, 1], 0x10) }
            }
        };
        assert_eq!(Direction::BOTH.map(|direction| next_after(pause(direction))), [ignored; 2]);
        let truncated = || {
            let mut record = record(DnsCopy::PodSegment, 2000, [1, 1], 0x10);
            record.bytes.truncate(30);
            record
        };
        assert_eq!(next_after(truncated), ignored);
        assert_eq!(next_after(|| record(DnsCopy::PodSegment, 2000, [1, 1], 0x10)), None, "another connection");
    }
}
