use super::*;
use crate::testing::{at, connection, subject, volume};
use crate::{Connections, FlowRecord};

const BIG: usize = 100;

fn new() -> (Tracker, Windows) {
    (Tracker::new(BIG, 100), Windows::new("worker-1".into(), BIG))
}

fn with(connection: &CountedFlow, volume: Option<[Volume; 2]>) -> CountedFlow {
    CountedFlow { volume, ..connection.clone() }
}

fn open(windows: &Windows, tracker: &Tracker) -> FlowRecord {
    let mut records = windows.open_records(at(1_000), tracker);
    assert_eq!(records.len(), 1);
    records.remove(0)
}

#[test]
fn connection_counts_what_was_added_since_base() {
    let (mut tracker, mut windows) = new();
    let base = [volume(10, 1_000), volume(20, 2_000)];
    let older = CountedFlow { volume: Some(base), ..connection(1, None) };
    tracker.begin(&older, subject(1), Some(base), at(0), &mut windows);
    // The part of its volume sent in this window before the agent started is unknown.
    let record = open(&windows, &tracker);
    assert_eq!((record.sent, record.received, record.unknown_volume), (None, None, 1));
    assert!(tracker.measure(&with(&older, Some([volume(11, 1_100), volume(20, 2_000)])), at(1), &mut windows));
    assert!(tracker.end(&with(&older, Some([volume(12, 1_150), volume(21, 2_001)])), at(2), &mut windows));
    let record = open(&windows, &tracker);
    assert_eq!((record.sent, record.received), (Some(volume(2, 150)), Some(volume(1, 1))));
    assert_eq!(record.connections, Connections { started: 1, ended: 1, live: 0, lost: 0 });
}

#[test]
fn reset_counters_add_nothing_then_count_on() {
    let (mut tracker, mut windows) = new();
    let one = connection(1, None);
    tracker.begin(&one, subject(1), None, at(0), &mut windows);
    for bytes in [1_000, 10, 15] {
        tracker.measure(&with(&one, Some([volume(1, bytes), volume(0, 0)])), at(0), &mut windows);
    }
    assert_eq!(open(&windows, &tracker).sent, Some(volume(1, 1_005)));
}

#[test]
fn unknown_volume_counts_once_per_window() {
    let (mut tracker, mut windows) = new();
    let one = connection(1, None);
    tracker.begin(&one, subject(1), None, at(0), &mut windows);
    let record = open(&windows, &tracker);
    assert_eq!((record.sent, record.unknown_volume), (None, 0));
    tracker.measure(&with(&one, None), at(1), &mut windows);
    tracker.measure(&with(&one, None), at(2), &mut windows);
    let closed = windows.close(at(15_000), &tracker);
    assert_eq!((closed[0].sent, closed[0].received, closed[0].unknown_volume), (None, None, 1));
    tracker.end(&with(&one, None), at(16_000), &mut windows);
    let closed = windows.close(at(30_000), &tracker);
    assert_eq!((closed[0].sent, closed[0].unknown_volume), (None, 1));
}

#[test]
fn duplicate_events_count_once() {
    let (mut tracker, mut windows) = new();
    let one = connection(1, None);
    tracker.begin(&one, subject(1), None, at(0), &mut windows);
    tracker.begin(&one, subject(1), None, at(0), &mut windows);
    assert!(tracker.end(&with(&one, Some([volume(1, 60), volume(1, 60)])), at(0), &mut windows));
    assert!(!tracker.end(&with(&one, Some([volume(1, 60), volume(1, 60)])), at(0), &mut windows));
    let record = open(&windows, &tracker);
    assert_eq!(record.connections, Connections { started: 1, ended: 1, live: 0, lost: 0 });
    assert_eq!(record.sent, Some(volume(1, 60)));
}

#[test]
fn end_that_is_repeated_counts_once() {
    let (mut tracker, mut windows) = new();
    let ended = CountedFlow { volume: Some([volume(3, 300), volume(2, 200)]), ..connection(1, None) };
    assert!(tracker.record_ended(&ended, &subject(1), None, at(0), &mut windows));
    assert!(!tracker.record_ended(&ended, &subject(1), None, at(100), &mut windows));
    let tracked = connection(2, None);
    tracker.begin(&tracked, subject(1), None, at(200), &mut windows);
    assert!(tracker.end(&with(&tracked, None), at(300), &mut windows));
    assert!(!tracker.record_ended(&tracked, &subject(1), None, at(400), &mut windows));
    assert_eq!(tracker.ledger(), ConnectionLedger { started: 2, ended: 2, live: 0, lost: 0, untracked: 0 });
    assert_eq!(open(&windows, &tracker).sent, Some(volume(3, 300)));

    // Its ID and its ports are reused.
    let again = connection(2, Some(at(500)));
    assert!(tracker.record_ended(&again, &subject(1), None, at(600), &mut windows));
    assert_eq!(tracker.ledger().ended, 3);
}

#[test]
fn late_end_of_lost_connection_counts_nothing() {
    let (mut tracker, mut windows) = new();
    let late = CountedFlow { volume: Some([volume(3, 300), volume(2, 200)]), ..connection(1, Some(at(0))) };
    tracker.begin(&connection(1, Some(at(0))), subject(1), None, at(0), &mut windows);
    for _ in 0..2 {
        tracker.begin_listing();
        tracker.finish_listing(at(100), &mut windows);
    }
    assert!(!tracker.record_ended(&late, &subject(1), None, at(200), &mut windows));
    assert_eq!(tracker.ledger(), ConnectionLedger { started: 1, ended: 0, live: 0, lost: 1, untracked: 0 });
}

#[test]
fn reused_id_loses_the_connection_before() {
    let (mut tracker, mut windows) = new();
    tracker.begin(&connection(1, Some(at(0))), subject(1), None, at(0), &mut windows);
    tracker.begin(&connection(1, Some(at(5_000))), subject(1), None, at(5_000), &mut windows);
    let ledger = tracker.ledger();
    assert_eq!(ledger, ConnectionLedger { started: 2, ended: 0, live: 1, lost: 1, untracked: 0 });
    assert_eq!(open(&windows, &tracker).connections, Connections { started: 2, ended: 0, live: 1, lost: 1 });
}

#[test]
fn listed_connection_whose_event_follows_counts_once() {
    let (mut tracker, mut windows) = new();
    tracker.begin(&connection(1, Some(at(0))), subject(1), None, at(0), &mut windows);
    tracker.begin(&connection(1, Some(at(1))), subject(1), None, at(1), &mut windows);
    assert_eq!(tracker.ledger(), ConnectionLedger { started: 1, ended: 0, live: 1, lost: 0, untracked: 0 });
}

#[test]
fn full_tracker_counts_untracked_connections() {
    let (mut tracker, mut windows) = (Tracker::new(1, 100), Windows::new("worker-1".into(), BIG));
    for port in [1, 2, 2] {
        tracker.begin(&connection(port, None), subject(1), None, at(0), &mut windows);
    }
    assert_eq!(tracker.ledger(), ConnectionLedger { started: 1, ended: 0, live: 1, lost: 0, untracked: 2 });
    assert!(tracker.subject(&connection(2, None).id).is_none());
    assert!(!tracker.end(&connection(2, None), at(0), &mut windows));
    let ended = CountedFlow { volume: Some([volume(3, 300), volume(0, 0)]), ..connection(2, None) };
    tracker.record_ended(&ended, &subject(1), Some([volume(1, 50), volume(0, 0)]), at(0), &mut windows);
    assert_eq!(tracker.ledger(), ConnectionLedger { started: 2, ended: 1, live: 1, lost: 0, untracked: 2 });
    assert_eq!(open(&windows, &tracker).sent, Some(volume(2, 250)));
}

#[test]
fn full_tracker_takes_connections_of_known_subjects() {
    let (mut tracker, mut windows) = (Tracker::new(BIG, 1), Windows::new("worker-1".into(), BIG));
    let known = subject(1);
    for (port, subject) in [(1, known.clone()), (2, subject(2)), (3, known)] {
        tracker.begin(&connection(port, None), subject, None, at(0), &mut windows);
    }
    assert_eq!(tracker.ledger(), ConnectionLedger { started: 2, ended: 0, live: 2, lost: 0, untracked: 1 });
    for port in [1, 3] {
        assert!(tracker.end(&connection(port, None), at(0), &mut windows));
    }
    tracker.begin(&connection(2, None), subject(2), None, at(0), &mut windows);
    assert_eq!(tracker.ledger().live, 1, "the first subject has left");
}

#[test]
fn connection_missed_by_two_listings_is_lost() {
    let (mut tracker, mut windows) = new();
    for port in 1..=3 {
        tracker.begin(&connection(port, None), subject(1), None, at(0), &mut windows);
    }
    let mut list = |tracker: &mut Tracker, ports: &[u16]| {
        tracker.begin_listing();
        for port in ports {
            assert!(tracker.measure(&connection(*port, None), at(0), &mut windows));
        }
        tracker.finish_listing(at(0), &mut windows)
    };
    assert_eq!(list(&mut tracker, &[1, 2]), 0);
    assert_eq!(list(&mut tracker, &[1, 3]), 0, "no connection was missed twice in a row");
    assert_eq!(list(&mut tracker, &[1, 3]), 1);
    assert_eq!(tracker.ledger(), ConnectionLedger { started: 3, ended: 0, live: 2, lost: 1, untracked: 0 });
    let record = open(&windows, &tracker);
    assert_eq!((record.connections.lost, record.unknown_volume), (1, 3));
}

#[test]
fn connection_that_begins_during_listing_is_not_missed() {
    let (mut tracker, mut windows) = new();
    for _ in 0..2 {
        tracker.begin_listing();
        tracker.begin(&connection(1, None), subject(1), None, at(0), &mut windows);
        assert_eq!(tracker.finish_listing(at(0), &mut windows), 0);
    }
    assert_eq!(tracker.finish_listing(at(0), &mut windows), 0, "no listing ran");
    tracker.begin_listing();
    tracker.begin_listing();
    assert_eq!(
        tracker.finish_listing(at(0), &mut windows),
        1,
        "missed by the second and the fourth, which both finished"
    );
}

#[test]
fn stale_line_of_ended_connection_begins_nothing() {
    let (mut tracker, mut windows) = new();
    let one = connection(1, None);
    tracker.begin(&one, subject(1), None, at(0), &mut windows);
    tracker.begin_listing();
    assert!(tracker.end(&with(&one, Some([volume(2, 100), volume(0, 0)])), at(0), &mut windows));
    assert!(tracker.measure(&with(&one, Some([volume(1, 50), volume(0, 0)])), at(0), &mut windows));
    tracker.begin(&one, subject(1), None, at(0), &mut windows);
    assert_eq!(tracker.ledger().live, 1, "an event for the same id is another connection");
    tracker.end(&with(&one, None), at(0), &mut windows);
    tracker.finish_listing(at(0), &mut windows);
    assert!(!tracker.measure(&with(&one, None), at(0), &mut windows));
    assert_eq!(open(&windows, &tracker).sent, Some(volume(2, 100)));
}
