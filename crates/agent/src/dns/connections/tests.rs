mod cookies;

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
    TcpSegment {
        sequence,
        fin: false,
        syn: false,
        rst: false,
        acknowledged,
        is_multipath: false,
        payload,
        is_whole: true,
    }
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
        ("clear", |c, now| c.clear(now), REASSEMBLY),
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
fn multipath_connection_is_ignored() {
    let multipath = |segment| TcpSegment { is_multipath: true, ..segment };
    let ignored = Some(IgnoreReason::Multipath);
    // The resolver has no Multipath TCP.
    let mut scene = Scene::new();
    assert_eq!(scene.pod(multipath(syn())), None);
    scene.resolver(syn_ack(u32::MAX));
    scene.pod(ack(0));
    assert!(scene.is_read(0));
    // The resolver accepts it, or takes it from a segment after a SYN cookie.
    let mut scene = Scene::new();
    scene.pod(multipath(syn()));
    assert_eq!(scene.resolver(multipath(syn_ack(u32::MAX))).ignored, ignored);
    scene.pod(ack(0));
    assert!(!scene.is_read(0));
    let mut scene = Scene::open();
    assert_eq!(scene.pod(multipath(ack(0))), ignored);
    assert!(!scene.is_read(0));
    let mut scene = Scene::open();
    assert_eq!(scene.resolver(multipath(data(0, &[0]))).ignored, ignored);
    assert!(!scene.is_read(1));
}

#[test]
fn late_segment_is_of_all_pairs_of_pod() {
    let mut scene = Scene::open();
    let now = scene.now;
    scene.connections.expect_late_segment(POD, at(now));
    let of_other = ConnectionKey { pod: (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 200)), 1).into(), ..key(1) };
    let to_other = ConnectionKey { resolver: (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 201)), 53).into(), ..key(2) };
    // It may have reached the node before the pair had a connection.
    assert!(opens(&mut scene.connections, of_other, now + REASSEMBLY / 2));
    assert!(!opens(&mut scene.connections, to_other, now + REASSEMBLY / 2));
    assert!(!opens(&mut scene.connections, key(3), now + REASSEMBLY / 2));
    assert!(opens(&mut scene.connections, key(4), now + REASSEMBLY));
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
            let segment = TcpSegment { sequence, syn, fin, rst, acknowledged, is_multipath: false, payload: &payload, is_whole };
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
