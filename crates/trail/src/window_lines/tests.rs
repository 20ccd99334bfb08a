use flow::FlowVerdict;

use super::*;
use crate::testing::{record, trail_of, window, with_service};

fn settled(record: FlowRecord, is_exported: bool) -> SettledRecord {
    SettledRecord { record, is_exported }
}

fn started(lines: &NewLines) -> Vec<(u64, bool)> {
    lines.records.iter().map(|line| (line.joined.record.connections.started, line.late)).collect()
}

#[test]
fn late_destination_adds_verdicts_and_no_connections() {
    let source = record("n1", 0, &["n1"], &["n2"], 3);
    let mut destination = record("n2", 0, &["n1"], &["n2"], 3);
    Arc::make_mut(&mut destination.key).verdict = FlowVerdict::Denied;
    destination.denied_packets = 4;
    let lines = new_lines(&[settled(source, true), settled(destination, false)], &mut WindowState::default());
    let [line] = &*lines.records else { panic!("{lines:?}") };
    assert_eq!(started(&lines), [(0, true)]);
    assert_eq!((line.joined.destination_verdict, line.joined.record.denied_packets), (Some(FlowVerdict::Denied), 4));
    assert_eq!(line.joined.record.sent, None);
}

#[test]
fn late_source_adds_what_destination_had_not() {
    // Of two clients' nodes the destination saw one; the other went to a pod of a node that is late as well.
    let destination = record("n3", 0, &["n1"], &["n3"], 3);
    let sources = [record("n1", 0, &["n1"], &["n3"], 3), record("n2", 0, &["n2"], &["n4"], 5)];
    let [first, second] = sources.map(|record| settled(record, false));
    let lines = new_lines(&[settled(destination, true), first, second], &mut WindowState::default());
    assert_eq!(lines.records.iter().map(|line| line.joined.record.connections.started).sum::<u64>(), 5);
}

#[test]
fn late_connections_go_to_their_own_service() {
    let early = with_service(record("n1", 0, &["n1"], &["n9"], 3), "a");
    let late = with_service(record("n2", 0, &["n2"], &["n9"], 4), "b");
    let lines = new_lines(&[settled(early, true), settled(late, false)], &mut WindowState::default());
    let [line] = &*lines.records else { panic!("{lines:?}") };
    assert_eq!((started(&lines), &*line.joined.record.key.service.as_ref().unwrap().name), (vec![(4, true)], "b"));
}

#[test]
fn late_record_of_same_key_adds_its_part() {
    let records = [record("n1", 0, &["n1"], &["n9"], 3), record("n2", 0, &["n2"], &["n9"], 4)];
    let [early, late] = records;
    let lines = new_lines(&[settled(early, true), settled(late, false)], &mut WindowState::default());
    assert_eq!(started(&lines), [(4, true)]);
    assert_eq!(lines.records[0].joined.seen_by.source.len(), 2);
    assert_eq!(lines.records[0].joined.record.sent.map(|volume| volume.bytes), Some(400));
}

#[test]
fn connections_of_unknown_nodes_are_not_counted() {
    let late = record("n2", 0, &["n1"], &["n2"], 3);
    let mut state = WindowState { is_late: true, unknown_nodes: ["n1".into()].into(), ..WindowState::default() };
    let lines = new_lines(&[settled(late.clone(), false)], &mut state);
    assert_eq!((started(&lines), lines.uncounted), (vec![(0, true)], 1));
    // Nor later, when the node has sent its records again.
    state.unknown_nodes.clear();
    let records = [settled(late, true), settled(record("n1", 0, &["n1"], &["n2"], 5), false)];
    assert_eq!(started(&new_lines(&records, &mut state)), [(0, true)]);
}

#[test]
fn total_that_falls_is_kept_as_excess() {
    // The sides report different connections, as far as is known: both count.
    let source = record("n1", 0, &["n1"], &["n4"], 2);
    let destination = record("n3", 0, &["n2", "n5"], &["n3"], 5);
    let mut state = WindowState::default();
    let first = new_lines(&[settled(source.clone(), false), settled(destination.clone(), false)], &mut state);
    assert_eq!(first.records.iter().map(|line| line.joined.record.connections.started).sum::<u64>(), 7);
    // A client's node more: now the side that saw more counts, which is less than both.
    let more = record("n2", 0, &["n2"], &["n3"], 1);
    let records = [settled(source.clone(), true), settled(destination.clone(), true), settled(more.clone(), false)];
    assert_eq!(started(&new_lines(&records, &mut state)).iter().map(|line| line.0).sum::<u64>(), 0);
    assert_eq!(state.excess.len(), 1);
    let last = record("n5", 0, &["n5"], &["n3"], 4);
    let records = [source, destination, more].map(|record| settled(record, true));
    let records = [&records[..], &[settled(last, false)]].concat();
    assert_eq!(started(&new_lines(&records, &mut state)).iter().map(|line| line.0).sum::<u64>(), 0);
    assert!(state.excess.is_empty(), "{:?}", state.excess);
}

#[test]
fn lines_do_not_depend_on_order_of_arrival() {
    let records = || vec![record("n1", 0, &["n1"], &["n3"], 1), record("n2", 0, &["n2"], &["n3"], 2)];
    let reversed = records().into_iter().rev().collect();
    assert_eq!(trail_of(records()), trail_of(reversed));
    assert_eq!(trail_of(records())[0].joined.record.window, window(0));
}

#[test]
fn late_sum_of_ports_does_not_count_twice() {
    let destination = record("n2", 0, &["n1"], &["n2"], 3);
    let mut source = record("n1", 0, &["n1"], &["n2"], 5);
    Arc::make_mut(&mut source.key).port = None;
    let lines = new_lines(&[settled(destination, true), settled(source, false)], &mut WindowState::default());
    assert_eq!(started(&lines).iter().map(|line| line.0).sum::<u64>(), 2, "{lines:#?}");
}

/// A scan of all pairs of lines took minutes.
#[test]
fn late_record_among_many_ports_is_quick() {
    let of_port = |port: u16, started: u64| {
        let mut record = record("n1", 0, &["n1"], &["n9"], started);
        Arc::make_mut(&mut record.key).port = Some(port);
        record
    };
    let early = (0..16_000).map(|port| settled(of_port(port, 1), true));
    let late = (8_000..16_000).map(|port| settled(of_port(port, 2), false));
    let records: Vec<SettledRecord> = early.chain(late).collect();
    let begun = std::time::Instant::now();
    let lines = new_lines(&records, &mut WindowState::default());
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    assert_eq!(lines.records.len(), 8_000);
    assert_eq!(started(&lines).iter().map(|line| line.0).sum::<u64>(), 16_000);
}
