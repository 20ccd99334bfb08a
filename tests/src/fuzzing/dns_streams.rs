//! DNS answers over TCP.

use std::time::{Duration, Instant};

use agent::dns::connections::{ConnectionKey, CopyTime, DnsConnections};
use agent::dns::stream::MOST_MESSAGE_BYTES;
use nfnetlink::TcpSegment;

use super::dns_answers;

/// Bytes of a stream with messages, behind three bytes by which it is divided: the stream in segments gives the messages
/// that it gives as a whole.
///
/// # Panics
/// If it does not.
pub fn dns_streams(bytes: &[u8]) {
    let Some(([length, overlap, swap], stream)) = bytes.split_first_chunk::<3>() else { return };
    let mut places: Vec<usize> = (0..stream.len()).step_by(usize::from(*length) * 16 + 1).collect();
    places.push(stream.len());
    let overlap = usize::from(*overlap);
    let ends = places.windows(2).filter_map(|pair| pair.first().zip(pair.last()));
    let mut segments: Vec<(usize, usize)> = ends.map(|(from, to)| (from.saturating_sub(overlap), *to)).collect();
    if segments.len() <= usize::from(*swap) + 1 {
        segments.reverse();
    } else {
        segments.swap((*swap).into(), usize::from(*swap) + 1);
    }
    let whole = messages(stream, &[(0, stream.len())]);
    assert!(whole.iter().all(|message| message.len() <= MOST_MESSAGE_BYTES));
    // Too many segments may wait for the first one.
    if segments.len() <= 16 {
        assert_eq!(messages(stream, &segments), whole, "{segments:?}");
    }
    whole.iter().for_each(|message| dns_answers(message));
}

fn messages(stream: &[u8], segments: &[(usize, usize)]) -> Vec<Vec<u8>> {
    let now = Instant::now();
    let at = |milliseconds| {
        let time = now + Duration::from_millis(milliseconds);
        CopyTime { earliest: time, latest: time }
    };
    let mut connections = DnsConnections::new(now);
    let key = ConnectionKey { pod: ([10, 0, 0, 1], 1024).into(), resolver: ([10, 0, 0, 2], 53).into() };
    let segment = |sequence, syn, acknowledged, payload| TcpSegment {
        sequence,
        fin: false,
        syn,
        rst: false,
        acknowledged,
        is_multipath: false,
        payload,
        is_whole: true,
    };
    connections.pod_sends(key, segment(0, true, None, &[]), at(0));
    connections.resolver_sends(key, segment(u32::MAX, true, Some(1), &[]), at(0));
    connections.pod_sends(key, segment(1, false, Some(0), &[]), at(0));
    let push = |(place, (from, to)): (u64, &(usize, usize))| {
        let payload = stream.get(*from..*to).unwrap_or_default();
        let sequence = u32::try_from(*from).unwrap_or_default();
        let segment = segment(sequence, false, Some(1), payload);
        connections.resolver_sends(key, segment, at(place)).messages
    };
    (0..).zip(segments).flat_map(push).collect()
}
