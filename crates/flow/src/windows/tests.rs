use super::*;
use crate::CountedFlow;
use crate::testing::{at, connection, subject, volume};

fn new() -> (Tracker, Windows) {
    (Tracker::new(100, 100), Windows::new("worker-1".into(), 100))
}

/// Window in seconds, and what the record counts.
fn counts(records: &[Arc<FlowRecord>]) -> Vec<(i64, Connections)> {
    records.iter().map(|record| ((record.window - at(0)).get_seconds(), record.connections)).collect()
}

fn connections(started: u64, ended: u64, live: u64) -> Connections {
    Connections { started, ended, live, lost: 0 }
}

#[test]
fn window_lists_live_connections_without_events() {
    let (mut tracker, mut windows) = new();
    tracker.begin(&connection(1, None), subject(1), None, at(100), &mut windows);
    assert!(windows.close(at(14_999), &tracker).is_empty());
    let records = windows.close(at(45_000), &tracker);
    assert_eq!(counts(&records), [(0, connections(1, 0, 1)), (15, connections(0, 0, 1)), (30, connections(0, 0, 1))]);
    assert_eq!((records[1].first, records[1].last), (at(15_000), at(30_000)));
    assert_eq!(records[1].sent, None);
    assert!(Arc::ptr_eq(&records[0].sources, &records[2].sources), "an equal sample is shared");
}

#[test]
fn late_close_counts_live_at_each_end() {
    let (mut tracker, mut windows) = new();
    let (one, two, three) = (connection(1, None), connection(2, None), connection(3, None));
    tracker.begin(&one, subject(1), None, at(0), &mut windows);
    tracker.begin(&two, subject(1), None, at(0), &mut windows);
    tracker.end(&one, at(15_100), &mut windows);
    tracker.begin(&three, subject(2), None, at(15_200), &mut windows);
    let records = windows.close(at(30_000), &tracker);
    assert_eq!(counts(&records), [(0, connections(2, 0, 2)), (15, connections(0, 1, 1)), (15, connections(1, 0, 1))]);
}

#[test]
fn open_window_is_finished_without_live() {
    let (mut tracker, mut windows) = new();
    let (one, two) = (connection(1, None), connection(2, None));
    tracker.begin(&one, subject(1), None, at(0), &mut windows);
    tracker.begin(&two, subject(2), None, at(15_100), &mut windows);
    tracker.end(&one, at(15_200), &mut windows);
    let records = windows.finish(at(15_300), &tracker);
    assert_eq!(counts(&records), [(0, connections(1, 0, 1)), (15, connections(0, 1, 0)), (15, connections(1, 0, 0))]);
    assert_eq!(windows.finish(at(15_400), &tracker), []);
}

#[test]
fn event_before_the_open_window_counts_in_it() {
    let (mut tracker, mut windows) = new();
    windows.denied(&subject(1), 1, at(0));
    assert_eq!(windows.close(at(30_000), &tracker).len(), 1);
    tracker.begin(&connection(1, None), subject(1), None, at(-100_000), &mut windows);
    assert_eq!(windows.ahead_of(at(-100_000)), Some(SignedDuration::from_secs(130)));
    assert!(windows.close(at(-100_000), &tracker).is_empty());
    let records = windows.close(at(45_000), &tracker);
    assert_eq!(counts(&records), [(30, connections(1, 0, 1))]);
    assert_eq!((records[0].first, records[0].last), (at(30_000), at(30_000)));
    assert_eq!(windows.ahead_of(at(45_000)), None);
}

#[test]
fn event_far_ahead_counts_in_the_next_window() {
    let (tracker, mut windows) = new();
    windows.close(at(1_000), &tracker);
    windows.denied(&subject(1), 1, at(1_000_000_000));
    assert!(windows.close(at(15_000), &tracker).is_empty());
    let records = windows.close(at(30_000), &tracker);
    assert_eq!((records[0].window, records[0].first), (at(15_000), at(16_000)));
}

#[test]
fn long_gap_closes_few_windows_of_live_connections() {
    let (mut tracker, mut windows) = new();
    tracker.begin(&connection(1, None), subject(1), None, at(0), &mut windows);
    let year = 365 * 86_400_000;
    let records = windows.close(at(year), &tracker);
    assert_eq!(records.len() as i64, 1 + MOST_SILENT_WINDOWS);
    assert_eq!(records[1].window, at(year - MOST_SILENT_WINDOWS * 15_000));
    assert_eq!(windows.skipped_windows(), 365 * 86_400 / 15 - 1 - MOST_SILENT_WINDOWS.unsigned_abs());
}

#[test]
fn full_window_counts_dropped_records() {
    let (mut tracker, mut windows) = (Tracker::new(100, 100), Windows::new("worker-1".into(), 1));
    tracker.begin(&connection(1, None), subject(1), None, at(0), &mut windows);
    tracker.begin(&connection(2, None), subject(2), None, at(0), &mut windows);
    let measured = CountedFlow { volume: Some([volume(1, 60), volume(2, 120)]), ..connection(2, None) };
    tracker.measure(&measured, at(0), &mut windows);
    windows.denied(&subject(3), 9, at(0));
    assert_eq!(counts(&windows.close(at(15_000), &tracker)), [(0, connections(1, 0, 1))]);
    let dropped = DroppedRecords {
        connection_observations: 2,
        denial_observations: 1,
        connections: connections(1, 0, 1),
        sent: volume(1, 60),
        received: volume(2, 120),
        unknown_volume: 0,
        denied_packets: 9,
    };
    assert_eq!(windows.dropped_records(), dropped);
}

#[test]
fn open_records_include_live_connections() {
    let (mut tracker, mut windows) = new();
    tracker.begin(&connection(1, None), subject(1), None, at(0), &mut windows);
    windows.close(at(15_000), &tracker);
    tracker.begin(&connection(2, None), subject(2), None, at(16_000), &mut windows);
    let open: Vec<Arc<FlowRecord>> = windows.open_records(at(17_000), &tracker).into_iter().map(Arc::new).collect();
    assert_eq!(counts(&open), [(15, connections(0, 0, 1)), (15, connections(1, 0, 1))]);
    assert_eq!((open[0].first, open[0].last), (at(15_000), at(17_000)));
    assert_eq!(windows.open_records(at(17_000), &tracker).len(), 2, "reading changes nothing");
}

#[test]
fn windows_keep_to_the_ends_of_time() {
    for ends in [[Timestamp::MIN, Timestamp::MAX], [Timestamp::MAX, Timestamp::MIN]] {
        let (mut tracker, mut windows) = new();
        for (port, at) in (0..).zip(ends.into_iter().chain(ends)) {
            tracker.begin(&connection(port, None), subject(1), None, at, &mut windows);
            windows.close(at, &tracker);
            windows.open_records(at, &tracker);
        }
        assert_eq!(tracker.ledger().live, 4);
    }
}
