use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::super::stream::{LONGEST_IDLE, MOST_MESSAGE_BYTES, MOST_WAITING_BYTES, MOST_WAITING_SEGMENTS};
use super::*;

fn at(now: Instant) -> CopyTime {
    CopyTime { earliest: now, latest: now }
}

const POD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const RESOLVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn key(port: u16) -> ConnectionKey {
    ConnectionKey { pod: (POD, port).into(), resolver: (RESOLVER, 53).into() }
}

fn data(sequence: u32, payload: &[u8]) -> TcpSegment<'_> {
    let acknowledged = Some(0);
    TcpSegment { sequence, fin: false, syn: false, rst: false, acknowledged, payload, is_whole: true }
}

fn syn_ack(sequence: u32) -> TcpSegment<'static> {
    TcpSegment { syn: true, ..data(sequence, &[]) }
}

fn syn() -> TcpSegment<'static> {
    TcpSegment { acknowledged: None, ..syn_ack(7) }
}

fn ack(to: u32) -> TcpSegment<'static> {
    TcpSegment { acknowledged: Some(to), ..data(8, &[]) }
}

fn reset() -> TcpSegment<'static> {
    TcpSegment { rst: true, ..ack(0) }
}

fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
    messages.iter().flat_map(|m| [&(m.len() as u16).to_be_bytes()[..], m].concat()).collect()
}

const MISSING: Option<IgnoreReason> = Some(IgnoreReason::StartMissing);
const MISMATCH: Option<IgnoreReason> = Some(IgnoreReason::Mismatch);

/// The connection of one key, whose resolver's bytes begin at 0.
struct Scene {
    connections: DnsConnections,
    now: Instant,
}

impl Scene {
    fn new() -> Scene {
        let now = Instant::now();
        Scene { connections: DnsConnections::new(now), now }
    }

    /// After the handshake.
    fn open() -> Scene {
        let mut scene = Scene::new();
        scene.shake_hands();
        scene
    }

    #[track_caller]
    fn shake_hands(&mut self) {
        assert_eq!(self.pod(syn()), None);
        assert_eq!(self.resolver(syn_ack(u32::MAX)), Assembly::default());
        assert_eq!(self.pod(ack(0)), None);
    }

    fn pod(&mut self, segment: TcpSegment<'_>) -> Option<IgnoreReason> {
        self.connections.pod_sends(key(1), segment, at(self.now)).ignored
    }

    fn resolver(&mut self, segment: TcpSegment<'_>) -> Assembly {
        self.connections.resolver_sends(key(1), segment, at(self.now))
    }

    /// The last message that the segment completes.
    fn message(&mut self, segment: TcpSegment<'_>) -> Option<Vec<u8>> {
        self.resolver(segment).messages.pop()
    }

    /// Whether an answer at the sequence number is read.
    fn is_read(&mut self, sequence: u32) -> bool {
        self.message(data(sequence, &framed(&[b"answer".to_vec()]))).as_deref() == Some(b"answer")
    }
}

#[test]
fn handshake_begins_stream() {
    let mut scene = Scene::open();
    assert!(scene.is_read(0));
    assert_eq!(scene.pod(ack(8)), None);
    assert!(scene.is_read(8));
    // Both ends may repeat what begins a connection.
    let mut scene = Scene::new();
    for _ in 0..2 {
        assert_eq!(scene.pod(syn()), None);
        assert_eq!(scene.resolver(syn_ack(u32::MAX)), Assembly::default());
    }
    assert_eq!(scene.pod(ack(0)), None);
    assert_eq!(scene.resolver(syn_ack(u32::MAX)), Assembly::default(), "the acknowledgement was lost");
    assert!(scene.is_read(0));
}

#[test]
fn connection_without_start_is_ignored() {
    let bytes = framed(&[b"answer".to_vec()]);
    let mut scene = Scene::new();
    assert_eq!(scene.resolver(data(0, &bytes)).ignored, MISSING);
    assert_eq!(scene.resolver(data(0, &[])), Assembly::default());
    // Its segments stop before another one is read.
    scene.now += QUARANTINE - Duration::from_millis(1);
    scene.shake_hands();
    assert!(!scene.is_read(0));
    scene.now += QUARANTINE;
    scene.shake_hands();
    assert!(scene.is_read(0));
    for before in [vec![ack(0)], vec![reset()], vec![syn(), ack(0)], vec![syn(), reset()]] {
        let mut scene = Scene::new();
        for segment in before.clone() {
            scene.pod(segment);
        }
        scene.shake_hands();
        assert!(!scene.is_read(0), "{before:?}");
    }
    let mut scene = Scene::new();
    scene.pod(syn());
    scene.resolver(data(0, &[]));
    scene.shake_hands();
    assert!(!scene.is_read(0), "the resolver has another connection");
}

#[test]
fn acknowledgement_of_other_bytes_is_a_mismatch() {
    for to in [u32::MAX, 1, 100, u32::MAX - 60] {
        let mut scene = Scene::new();
        scene.pod(syn());
        scene.resolver(syn_ack(u32::MAX));
        assert_eq!(scene.pod(ack(to)), MISMATCH, "{to}");
        assert!(!scene.is_read(0));
    }
    for to in [u32::MAX, 7, 9] {
        let mut scene = Scene::open();
        assert!(scene.is_read(0));
        assert_eq!(scene.pod(ack(8)), None);
        assert_eq!(scene.pod(ack(to)), MISMATCH, "{to}");
        assert!(!scene.is_read(8));
    }
}

#[test]
fn second_start_is_a_mismatch() {
    let mut scene = Scene::new();
    scene.pod(syn());
    scene.resolver(syn_ack(u32::MAX));
    assert_eq!(scene.resolver(syn_ack(99)).ignored, MISMATCH);
    scene.pod(ack(100));
    assert!(!scene.is_read(100));
    let mut scene = Scene::open();
    assert_eq!(scene.pod(syn()), MISMATCH);
    assert!(!scene.is_read(0));
    let mut scene = Scene::open();
    assert!(scene.is_read(0));
    assert_eq!(scene.resolver(syn_ack(u32::MAX)).ignored, MISMATCH);
}

#[test]
fn bytes_before_start_or_handshake_are_a_mismatch() {
    let mut scene = Scene::open();
    assert_eq!(scene.resolver(data(u32::MAX - 40, &[0; 60])).ignored, MISMATCH);
    assert!(!scene.is_read(0));
    let mut scene = Scene::new();
    scene.pod(syn());
    scene.resolver(syn_ack(u32::MAX));
    assert_eq!(scene.resolver(data(0, b"x")).ignored, MISMATCH);
}

#[test]
fn end_and_reset_remove_stream() {
    let bytes = framed(&[b"answer".to_vec()]);
    let mut scene = Scene::open();
    scene.resolver(TcpSegment { fin: true, ..data(4, &bytes[4..]) });
    assert_eq!(scene.message(data(0, &bytes[..4])).as_deref(), Some(&b"answer"[..]), "the end waits");
    assert_eq!(scene.pod(ack(9)), None, "it acknowledges the end");
    assert_eq!(scene.resolver(data(8, &bytes)).ignored, MISSING);
    let mut scene = Scene::open();
    scene.resolver(reset());
    assert!(!scene.is_read(0));
    let mut scene = Scene::open();
    scene.pod(reset());
    assert!(!scene.is_read(0));
}

#[test]
fn idle_or_incomplete_stream_is_removed() {
    let bytes = framed(&[b"answer".to_vec()]);
    let step = Duration::from_secs(5);
    let mut scene = Scene::open();
    scene.now += LONGEST_IDLE - Duration::from_millis(1);
    assert!(scene.is_read(0));
    assert_eq!(scene.pod(ack(8)), None);
    scene.now += LONGEST_IDLE;
    assert!(!scene.is_read(8));
    // Segments continue, but a message stays incomplete, or is not acknowledged.
    for (sent, acknowledged) in [(4, 4), (8, 0)] {
        let mut scene = Scene::open();
        scene.resolver(data(0, &bytes[..sent]));
        for _ in 0..3 {
            assert_eq!(scene.pod(ack(acknowledged)), None);
            scene.now += step;
        }
        scene.resolver(data(sent as u32, &bytes[sent..]));
        assert!(!scene.is_read(8), "{sent}");
    }
    let mut scene = Scene::open();
    for _ in 0..4 {
        assert_eq!(scene.pod(ack(0)), None);
        scene.now += step;
    }
    assert!(scene.is_read(0), "it is complete all the time");
}

#[test]
fn gap_and_truncated_segment_remove_stream() {
    for (sequence, length, is_whole, expected) in [
        (1, MOST_WAITING_BYTES, true, None),
        (1, MOST_WAITING_BYTES + 1, true, Some(IgnoreReason::Gap)),
        (0, 5, false, Some(IgnoreReason::Truncated)),
    ] {
        let mut scene = Scene::open();
        let bytes = vec![0; length];
        assert_eq!(scene.resolver(TcpSegment { is_whole, ..data(sequence, &bytes) }).ignored, expected);
        assert_eq!(scene.resolver(data(0, &[0])).ignored, expected.and(MISSING), "{length}");
    }
    let mut scene = Scene::open();
    let many = (1..=MOST_WAITING_SEGMENTS as u32 + 1).map(|place| scene.resolver(data(2 * place, &[0])).ignored);
    assert_eq!(many.last(), Some(Some(IgnoreReason::Gap)));
}

#[test]
fn long_message_is_skipped() {
    let bytes = framed(&[vec![7; MOST_MESSAGE_BYTES + 1], b"answer".to_vec()]);
    let mut scene = Scene::open();
    let (begin, rest) = bytes.split_at(1000);
    assert_eq!(scene.resolver(data(0, begin)).ignored, Some(IgnoreReason::TooLong));
    assert_eq!(scene.message(data(1000, rest)).as_deref(), Some(&b"answer"[..]));
}

#[test]
fn pause_and_missing_copies_stop_new_streams() {
    let second = Duration::from_secs(1);
    for (name, event, until) in [
        ("pause", (|c, now| c.pause(POD, RESOLVER, at(now))) as fn(&mut DnsConnections, Instant), PAUSE + QUARANTINE),
        ("forget", |c, now| c.forget(POD, RESOLVER, at(now)), QUARANTINE),
        ("clear", |c, now| c.clear(now), QUARANTINE),
        ("reject", |c, now| c.reject(key(1), at(now)), Duration::ZERO),
    ] {
        let mut scene = Scene::open();
        event(&mut scene.connections, scene.now);
        assert!(!scene.is_read(0), "{name}");
        scene.now += until.saturating_sub(second);
        scene.shake_hands();
        assert!(!scene.is_read(0), "{name}");
        scene.now += QUARANTINE + second;
        scene.shake_hands();
        assert!(scene.is_read(0), "{name}");
    }
    // A pause is not shortened by what follows.
    let mut scene = Scene::open();
    scene.connections.pause(POD, RESOLVER, at(scene.now));
    scene.connections.forget(POD, RESOLVER, at(scene.now));
    scene.now += PAUSE;
    scene.shake_hands();
    assert!(!scene.is_read(0));
}

/// Opens a connection; returns whether it is read.
fn opens(connections: &mut DnsConnections, key: ConnectionKey, now: Instant) -> bool {
    connections.pod_sends(key, syn(), at(now));
    let outcome = connections.resolver_sends(key, syn_ack(u32::MAX), at(now));
    connections.pod_sends(key, ack(0), at(now));
    outcome == Assembly::default() && connections.streams.contains_key(&key)
}

#[test]
fn streams_are_bounded_by_pod_and_in_all() {
    let now = Instant::now();
    let mut connections = DnsConnections::new(now);
    for port in 0..1000 {
        let at = now + Duration::from_millis(port.into());
        assert!(opens(&mut connections, key(port), at));
    }
    let ports: Vec<u16> = connections.streams.keys().map(|key| key.pod.port()).collect();
    assert_eq!(ports, (984..1000).collect::<Vec<u16>>(), "the oldest make room");
    let of_pod =
        |pod: u16, port| ConnectionKey { pod: ([10, 1, (pod >> 8) as u8, pod as u8], port).into(), ..key(port) };
    for pod in 0..20 {
        for port in 0..20 {
            opens(&mut connections, of_pod(pod, port), now);
        }
    }
    assert_eq!(connections.streams.len(), MOST_STREAMS);
    assert!((20..250).all(|pod| opens(&mut connections, of_pod(pod, 1), now)), "pods with most streams make room");
    let refused = (256..300).filter(|pod| !opens(&mut connections, of_pod(*pod, 1), now)).count();
    assert!(refused > 20, "each pod has one: {refused}");
    assert_eq!(connections.streams.len(), MOST_STREAMS);
}

#[test]
fn pair_with_too_many_connections_is_ignored() {
    let now = Instant::now();
    let mut connections = DnsConnections::new(now);
    let many = MOST_CONNECTIONS_OF_PAIR as u16;
    for port in 0..many {
        connections.pod_sends(key(port), syn(), at(now));
    }
    assert!(opens(&mut connections, ConnectionKey { pod: ([10, 0, 0, 9], 1).into(), ..key(1) }, now));
    assert!(opens(&mut connections, ConnectionKey { resolver: ([10, 0, 0, 9], 53).into(), ..key(1) }, now));
    assert!(!opens(&mut connections, key(many), now));
    assert!(!opens(&mut connections, key(1), now));
    assert!(opens(&mut connections, key(1), now + QUARANTINE));
    connections.sweep(at(now + LONGEST_IDLE + QUARANTINE));
    connections.sweep(at(now + LONGEST_IDLE + 3 * QUARANTINE));
    assert!(connections.pairs.is_empty() && connections.streams.is_empty());
}

#[test]
fn copies_from_before_are_not_continued() {
    let mut scene = Scene::open();
    let began = scene.now;
    scene.connections.copied_since(POD, RESOLVER, began, at(began));
    scene.now += QUARANTINE;
    scene.connections.copied_since(POD, RESOLVER, began, at(scene.now));
    scene.shake_hands();
    // The same time again changes nothing, a later one ends all connections.
    scene.connections.copied_since(POD, RESOLVER, began, at(scene.now));
    assert!(scene.is_read(0));
    scene.connections.copied_since(POD, RESOLVER, scene.now, at(scene.now));
    assert!(!scene.is_read(8));
    scene.now += QUARANTINE;
    scene.shake_hands();
    assert!(scene.is_read(0));
}

#[test]
fn late_copies_count_from_the_empty_log() {
    let mut scene = Scene::open();
    scene.pod(reset());
    // It is read late; the log was last empty before the quarantine had passed.
    let now = scene.now + 2 * QUARANTINE;
    let late = CopyTime { earliest: scene.now + QUARANTINE / 2, latest: now };
    scene.connections.pod_sends(key(1), syn(), late);
    scene.now = now;
    scene.resolver(syn_ack(u32::MAX));
    scene.pod(ack(0));
    assert!(!scene.is_read(0));
}

#[test]
fn pairs_are_bounded() {
    let now = Instant::now();
    let mut connections = DnsConnections::new(now);
    for other in 0..MOST_PAIRS as u32 {
        let resolver = IpAddr::V4(Ipv4Addr::from_bits(0x0a01_0000 + other));
        let key = ConnectionKey { resolver: (resolver, 53).into(), ..key(1) };
        connections.resolver_sends(key, data(0, &[]), at(now));
    }
    assert!(!opens(&mut connections, key(1), now));
    assert_eq!(connections.pairs.len(), MOST_PAIRS);
    assert!(opens(&mut connections, key(1), now + QUARANTINE));
}

/// A resolver whose kernel sends SYN cookies, the network, and the agent that sees all segments at the node.
struct Cookies {
    connections: DnsConnections,
    now: Instant,
    /// Segments on their way from the node to the resolver.
    to_resolver: Vec<(Instant, TcpSegment<'static>)>,
    /// Segments on their way from the resolver to the node, with their payload.
    to_node: Vec<(Instant, TcpSegment<'static>, Vec<u8>)>,
    connection: Option<Server>,
}

/// The resolver's end of a connection.
struct Server {
    /// Sequence number of the first byte, and of the first that is not sent yet.
    first: u32,
    sent: u32,
    /// It has sent a FIN, and keeps the connection until that is acknowledged.
    is_closing: bool,
}

/// The resolver's bytes on each connection. A message that is read from the middle has another length.
fn answers() -> Vec<u8> {
    framed(&vec![[0, 1].repeat(6); 8])
}

/// The cookie of a SYN, less the pod's sequence number.
const SECRET: u32 = 1000;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Both numbers are shifted by as much, so that the cookie is right. The acknowledgement may be of more.
    PodSends {
        flag: Flag,
        shift: u8,
        more: u8,
        arrives: bool,
    },
    ResolverSends {
        length: u8,
        fin: bool,
        arrives: bool,
    },
    /// A segment that was late.
    ArrivesAtResolver(usize),
    ArrivesAtNode(usize),
    Wait {
        deciseconds: u8,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Flag {
    Syn,
    Ack,
    Rst,
}

fn step() -> impl Strategy<Value = Step> {
    let flag = prop_oneof![3 => Just(Flag::Syn), 5 => Just(Flag::Ack), 2 => Just(Flag::Rst)];
    let shift = || prop_oneof![4 => Just(0_u8), 1 => (0_u8..6).prop_map(|half| 2 * half)];
    let more = prop_oneof![2 => Just(0_u8), 2 => 1_u8..24];
    let arrives = || prop::bool::weighted(0.85);
    let length = (1_u8..12).prop_map(|half| 2 * half);
    prop_oneof![
        10 => (flag, shift(), more, arrives())
            .prop_map(|(flag, shift, more, arrives)| Step::PodSends { flag, shift, more, arrives }),
        6 => (length, prop::bool::weighted(0.1), arrives())
            .prop_map(|(length, fin, arrives)| Step::ResolverSends { length, fin, arrives }),
        2 => (0_usize..3).prop_map(Step::ArrivesAtResolver),
        2 => (0_usize..3).prop_map(Step::ArrivesAtNode),
        1 => (1_u8..120).prop_map(|deciseconds| Step::Wait { deciseconds }),
    ]
}

impl Cookies {
    fn take(&mut self, step: Step) -> Vec<Vec<u8>> {
        match step {
            Step::PodSends { flag, shift, more, arrives } => {
                let (shift, more) = (u32::from(shift), u32::from(more));
                let segment = TcpSegment {
                    sequence: if flag == Flag::Syn { shift } else { 1 + shift },
                    acknowledged: (flag != Flag::Syn).then_some(SECRET + 1 + shift + more),
                    syn: flag == Flag::Syn,
                    rst: flag == Flag::Rst,
                    ..data(0, &[])
                };
                drop(self.connections.pod_sends(key(1), segment, at(self.now)));
                self.to_resolver.push((self.now, segment));
                if arrives { self.arrives_at_resolver(self.to_resolver.len() - 1) } else { vec![] }
            }
            Step::ResolverSends { length, fin, arrives } => {
                let Some(server) = &mut self.connection else { return vec![] };
                let bytes = answers();
                let from = server.sent.wrapping_sub(server.first) as usize;
                let to = if server.is_closing { from } else { (from + usize::from(length)).min(bytes.len()) };
                server.is_closing |= fin;
                let segment = TcpSegment { fin: server.is_closing, ..data(server.sent, &[]) };
                server.sent = server.first.wrapping_add(to as u32);
                self.to_node.push((self.now, segment, bytes[from..to].to_vec()));
                if arrives { self.arrives_at_node(self.to_node.len() - 1) } else { vec![] }
            }
            Step::ArrivesAtResolver(place) if place < self.to_resolver.len() => self.arrives_at_resolver(place),
            Step::ArrivesAtNode(place) if place < self.to_node.len() => self.arrives_at_node(place),
            Step::ArrivesAtResolver(_) | Step::ArrivesAtNode(_) => vec![],
            Step::Wait { deciseconds } => {
                self.now += Duration::from_millis(100) * u32::from(deciseconds);
                let is_under_way = |sent: Instant| self.now - sent < QUARANTINE;
                self.to_resolver.retain(|(sent, _)| is_under_way(*sent));
                self.to_node.retain(|(sent, ..)| is_under_way(*sent));
                vec![]
            }
        }
    }

    /// The messages that the agent reads in the resolver's answer, if there is one and it is not late.
    fn arrives_at_resolver(&mut self, place: usize) -> Vec<Vec<u8>> {
        let (_, segment) = self.to_resolver.remove(place);
        let before = self.to_node.len();
        self.resolver_receives(segment);
        if self.to_node.len() > before && segment.sequence % 4 != 3 { self.arrives_at_node(before) } else { vec![] }
    }

    fn arrives_at_node(&mut self, place: usize) -> Vec<Vec<u8>> {
        let (_, segment, payload) = self.to_node.remove(place);
        let segment = TcpSegment { payload: &payload, ..segment };
        self.connections.resolver_sends(key(1), segment, at(self.now)).messages
    }

    /// As the kernel does with `net.ipv4.tcp_syncookies=2`.
    fn resolver_receives(&mut self, segment: TcpSegment<'static>) {
        match (&self.connection, segment.acknowledged) {
            (Some(_), _) if segment.rst => self.connection = None,
            (Some(server), Some(to)) if server.is_closing && to == server.sent + 1 => self.connection = None,
            // It answers a SYN, and what is out of its window, with an acknowledgement.
            (Some(server), _) => {
                let challenge = data(server.sent, &[]);
                self.to_node.push((self.now, challenge, vec![]));
            }
            (None, None) => {
                let cookie = TcpSegment {
                    acknowledged: Some(segment.sequence.wrapping_add(1)),
                    ..syn_ack(SECRET.wrapping_add(segment.sequence))
                };
                self.to_node.push((self.now, cookie, vec![]));
            }
            (None, Some(to)) => {
                let is_cookie = to.wrapping_sub(1).wrapping_sub(segment.sequence.wrapping_sub(1)) == SECRET;
                if is_cookie && !segment.rst {
                    self.connection = Some(Server { first: to, sent: to, is_closing: false });
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// The pod sends any segments, which arrive in any order.
    #[test]
    fn only_whole_answers_are_read_despite_cookies(steps in prop::collection::vec(step(), 0..60)) {
        let now = Instant::now();
        let mut scene = Cookies {
            connections: DnsConnections::new(now), now, to_resolver: vec![], to_node: vec![], connection: None,
        };
        for step in steps {
            for message in scene.take(step) {
                prop_assert_eq!(message, [0, 1].repeat(6));
            }
        }
    }
}

proptest! {
    /// Segments overlap, repeat and change places with the next one, and sequence numbers wrap around.
    #[test]
    fn any_segments_give_messages_of_whole_stream(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8),
        cuts in prop::collection::vec((any::<usize>(), 0_usize..40, any::<bool>()), 0..20),
        first in any::<u32>(),
    ) {
        let bytes = framed(&messages);
        let mut places: Vec<(usize, usize, bool)> =
            cuts.iter().map(|(place, overlap, swap)| (place % bytes.len(), *overlap, *swap)).collect();
        places.extend([(0, 0, false), (bytes.len(), 0, false)]);
        places.sort_unstable();
        let mut segments: Vec<(usize, usize)> = places
            .windows(2)
            .map(|pair| (pair[0].0.saturating_sub(pair[0].1), pair[1].0))
            .collect();
        for (place, (_, _, swap)) in (1..segments.len()).zip(&places[1..]) {
            if *swap {
                segments.swap(place - 1, place);
            }
        }
        let mut scene = Scene::new();
        scene.pod(syn());
        scene.resolver(syn_ack(first.wrapping_sub(1)));
        scene.pod(ack(first));
        let mut found = Vec::new();
        for (from, to) in segments {
            let sequence = first.wrapping_add(from as u32);
            let assembled = scene.resolver(data(sequence, &bytes[from..to]));
            prop_assert_eq!(assembled.ignored, None);
            found.extend(assembled.messages);
        }
        prop_assert_eq!(scene.pod(ack(first.wrapping_add(bytes.len() as u32))), None);
        prop_assert_eq!(found, messages);
    }

    #[test]
    fn memory_is_bounded_whatever_arrives(
        segments in prop::collection::vec(
            (0_u16..40, any::<u8>(), 0_u32..100_000, 0_usize..20_000, any::<u8>()),
            0..200,
        ),
    ) {
        let mut scene = Scene::new();
        for (port, flags, sequence, length, fill) in segments {
            let [syn, fin, rst, is_whole, from_pod, acknowledges] = [1, 2, 4, 8, 16, 32].map(|flag| flags & flag != 0);
            let payload = vec![fill; length];
            let acknowledged = acknowledges.then_some(sequence);
            let segment = TcpSegment { sequence, syn, fin, rst, acknowledged, payload: &payload, is_whole };
            let connections = &mut scene.connections;
            drop(match from_pod {
                true => connections.pod_sends(key(port), segment, at(scene.now)),
                false => connections.resolver_sends(key(port), segment, at(scene.now)),
            });
            scene.now += Duration::from_millis(u64::from(fill));
        }
        prop_assert!(scene.connections.streams.len() <= MOST_STREAMS_OF_POD);
        prop_assert!(scene.connections.streams.values().all(Stream::has_bounded_memory));
    }
}
