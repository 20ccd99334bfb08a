//! `Flows/Stream` compared with the flows of each window that a filter matches.

use std::collections::BTreeMap;

use tests::goldmane_client::GoldmaneClient;

use super::super::criteria::Criteria;
use super::super::traffic::{Random, Traffic};
use super::GoldmaneKey;

/// Streams, each of which has the flows of up to 20 windows.
const STREAMS: usize = 60;

/// Started connections by window and flow.
type Sums<'a> = BTreeMap<(i64, &'a GoldmaneKey), u64>;

pub(super) fn compare(
    client: &GoldmaneClient,
    traffic: &[Traffic],
    keys: &[GoldmaneKey],
    criteria: &Criteria<'_, GoldmaneKey>,
    random: &mut Random,
) {
    let known: BTreeMap<&GoldmaneKey, usize> = keys.iter().enumerate().map(|(number, key)| (key, number)).collect();
    let mut sums: BTreeMap<(i64, usize), u64> = BTreeMap::new();
    for connections in traffic {
        for key in GoldmaneKey::of(connections) {
            let window = connections.first.window.as_second();
            *sums.entry((window, known[&key])).or_default() += connections.first.connections.started;
        }
    }
    let mut partial = 0;
    for number in 0..STREAMS {
        let drawn = criteria.draw(random, 3, &[9]);
        let windows: Vec<i64> = sums.keys().map(|(window, _)| *window).collect();
        let start = random.pick(&windows);
        let expected: Sums<'_> = sums
            .iter()
            .filter(|((window, key), _)| *window >= start && drawn.matches[*key])
            .map(|((window, key), started)| ((*window, &keys[*key]), *started))
            .collect();
        let total: u64 = expected.values().sum();
        let mut stream = client.stream(&drawn.filter, start).unwrap();
        let (mut seen, mut left, mut last) = (Sums::new(), total, start);
        while left > 0 {
            let flow = stream.next_flow();
            let (window, started) = (flow.number(2), flow.number(10).cast_unsigned());
            assert!(window >= last && flow.number(3) == window + 15, "stream {number}: {window} after {last}");
            last = window;
            let key = GoldmaneKey::read(&flow.message(1));
            let key = known.get(&key).map(|number| &keys[*number]).expect("a flow that was reported");
            *seen.entry((window, key)).or_default() += started;
            left = left.checked_sub(started).expect("flows that match");
        }
        assert!(seen == expected, "stream {number}: {} flows instead of {}", seen.len(), expected.len());
        partial += usize::from(!expected.is_empty() && expected.len() < sums.len());
    }
    assert!(partial * 2 > STREAMS, "only {partial} streams have some flows and not all");
}
