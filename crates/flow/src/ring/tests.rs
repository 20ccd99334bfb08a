use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::WINDOW_SECONDS;
use crate::testing::{at, records};

#[derive(Debug, Clone)]
enum Op {
    /// Pushes the records of a window that begins this many windows after the last one. Keys and samples may be shared
    /// with earlier records.
    Push {
        windows_later: i64,
        records: Vec<FlowRecord>,
        shares: bool,
    },
    Expire {
        seconds: i64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (1i64..30, records(), any::<bool>())
            .prop_map(|(windows_later, records, shares)| Op::Push { windows_later, records, shares }),
        1 => (-4_000i64..8_000).prop_map(|seconds| Op::Expire { seconds }),
    ]
}

/// Estimated bytes of records, counting each shared part once.
fn bytes_naively<'a>(records: impl Iterator<Item = &'a Arc<FlowRecord>>) -> usize {
    let mut keys: Vec<&Arc<FlowKey>> = Vec::new();
    let mut samples: Vec<&Arc<EndSample>> = Vec::new();
    let mut bytes = 0;
    for record in records {
        bytes += size::RECORD;
        if !keys.iter().any(|key| Arc::ptr_eq(key, &record.key)) {
            bytes += size::of_key(&record.key);
            keys.push(&record.key);
        }
        for end in [&record.sources, &record.destinations] {
            if !samples.iter().any(|sample| Arc::ptr_eq(sample, end)) {
                bytes += size::of_sample(end);
                samples.push(end);
            }
        }
    }
    bytes
}

proptest! {
    #[test]
    fn ring_keeps_the_newest_within_its_bounds(most_bytes in 0usize..60_000, ops in vec(op(), 0..20)) {
        let mut ring = Ring::new(most_bytes);
        let mut pushed: Vec<Arc<FlowRecord>> = Vec::new();
        let mut window = 0;
        let mut left_by_age = 0;
        for op in ops {
            match op {
                Op::Push { windows_later, records, shares } => {
                    window += windows_later;
                    for mut record in records {
                        record.window = at(window * WINDOW_SECONDS * 1_000);
                        if let Some(earlier) = pushed.last().filter(|_| shares) {
                            record.key = Arc::clone(&earlier.key);
                            record.sources = Arc::clone(&earlier.sources);
                        }
                        let record = Arc::new(record);
                        pushed.push(Arc::clone(&record));
                        ring.push([record]);
                    }
                }
                Op::Expire { seconds } => {
                    let now = at((window * WINDOW_SECONDS + seconds) * 1_000);
                    let oldest = now - RING_AGE;
                    left_by_age += ring.records().filter(|record| record.window_end() < oldest).count() as u64;
                    ring.expire(now);
                    prop_assert!(ring.records().all(|record| record.window_end() >= oldest));
                }
            }
            let kept: Vec<&Arc<FlowRecord>> = ring.records().collect();
            let newest = &pushed[pushed.len() - kept.len()..];
            prop_assert!(kept.iter().zip(newest).all(|(kept, pushed)| Arc::ptr_eq(kept, pushed)));
            prop_assert!(ring.bytes() <= most_bytes);
            prop_assert_eq!(ring.bytes(), bytes_naively(ring.records()));
            let left = (pushed.len() - kept.len()) as u64;
            let left_by_bytes = left - left_by_age;
            prop_assert_eq!(ring.counts(), RingCounts { pushed: pushed.len() as u64, left_by_age, left_by_bytes });
            prop_assert_eq!(ring.since().is_some(), !pushed.is_empty());
            if let Some(since) = ring.since() {
                let gone = &pushed[..left as usize];
                prop_assert!(gone.iter().all(|record| record.window < since));
                prop_assert!(gone.is_empty() || gone.last().is_some_and(|record| record.window_end() == since));
            }
        }
    }
}
