use std::collections::BTreeSet;

use ::identity::ReservedIdentity;
use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::record::Facts;
use crate::template::Template;
use crate::testing::pod_of;

const MINUTE: Duration = Duration::from_secs(60);
const BOUNDS: HistoryBounds = HistoryBounds { age: Duration::from_secs(3600), bytes: 1 << 20 };
const ADDRESSES: [&str; 4] = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1"];

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Records with the same name are equal, but not the same allocation.
fn record(name: &str) -> Arc<Record> {
    let template = Arc::new(Template::of(&pod_of(&format!("shop/{name}"), "", &[("app", name)])));
    Arc::new(Record::new(Facts {
        template,
        internet_exposed: false,
        control_plane: false,
        sid: None,
        num: ReservedIdentity::Init.num(),
        state: Some(ReservedIdentity::Init),
        detail: None,
    }))
}

fn table(records: &BTreeMap<IpAddr, Arc<Record>>) -> IdentityTable {
    records.iter().map(|(address, record)| (*address, record.clone())).collect()
}

/// A table with its history, updated as by the publisher.
struct Published {
    history: History,
    records: BTreeMap<IpAddr, Arc<Record>>,
    /// Every published table, with its moment.
    snapshots: Vec<(Instant, BTreeMap<IpAddr, Arc<Record>>)>,
    evicted: usize,
}

impl Published {
    fn new(bounds: HistoryBounds, now: Instant) -> Published {
        let mut history = History::new(bounds);
        assert_eq!(history.at(address("10.0.0.1"), now, now), Err(HistoryGap::NotStarted));
        history.begin(IdentityTable::default(), now);
        Published { history, records: BTreeMap::new(), snapshots: vec![(now, BTreeMap::new())], evicted: 0 }
    }

    /// Sets or removes the records of the addresses.
    fn change(&mut self, changes: BTreeMap<IpAddr, Option<Arc<Record>>>, now: Instant) {
        let mut past = vec![];
        for (address, new) in changes {
            let old = self.records.get(&address).cloned();
            if old == new {
                continue;
            }
            match new {
                Some(new) => self.records.insert(address, new),
                None => self.records.remove(&address),
            };
            past.push((address, old));
        }
        self.evicted += self.history.record(past, table(&self.records), now);
        self.snapshots.push((now, self.records.clone()));
    }

    fn set(&mut self, text: &str, name: Option<&str>, now: Instant) {
        self.change(BTreeMap::from([(address(text), name.map(record))]), now);
    }

    /// The expected result, from the list of snapshots.
    fn expected(&self, address: IpAddr, moment: Instant, oldest: Instant) -> PastRecord {
        let is_earlier = |(at, _): &&(Instant, _)| *at <= moment;
        let record = |(_, records): &(Instant, BTreeMap<IpAddr, Arc<Record>>)| records.get(&address).cloned();
        let valid = self.snapshots.iter().rfind(is_earlier).and_then(record);
        let earlier: Vec<_> = self.snapshots.iter().take_while(is_earlier).collect();
        let same = earlier.iter().rev().take_while(|snapshot| record(snapshot) == valid).count();
        let from = earlier.len().checked_sub(same + 1).map(|_| earlier[earlier.len() - same].0);
        let mut later = self.snapshots.iter().skip(earlier.len());
        let until = later.find(|snapshot| record(snapshot) != valid).map(|(at, _)| *at);
        PastRecord { record: valid, from: from.filter(|from| *from > oldest), until }
    }
}

#[test]
fn history_lookup_includes_validity_interval() {
    let start = Instant::now();
    let minute = |n: u32| start + n * MINUTE;
    let mut published = Published::new(BOUNDS, start);
    published.set("10.0.0.1", Some("web"), minute(1));
    published.set("10.0.0.1", Some("db"), minute(3));
    published.set("10.0.0.1", None, minute(5));
    let at = |n| published.history.at(address("::ffff:10.0.0.1"), minute(n), minute(6)).unwrap();
    let past = |name: Option<&str>, from: Option<u32>, until: Option<u32>| PastRecord {
        record: name.map(record),
        from: from.map(minute),
        until: until.map(minute),
    };
    assert_eq!(at(0), past(None, None, Some(1)));
    assert_eq!(at(1), past(Some("web"), Some(1), Some(3)));
    assert_eq!(at(2), past(Some("web"), Some(1), Some(3)));
    assert_eq!(at(3), past(Some("db"), Some(3), Some(5)));
    assert_eq!(at(6), past(None, Some(5), None));
}

#[test]
fn moments_outside_the_history_are_gaps() {
    let start = Instant::now() + Duration::from_secs(7200);
    let mut published = Published::new(BOUNDS, start);
    let address = address("10.0.0.1");
    let before = start - Duration::from_nanos(1);
    let limit = |history: &History, now| history.usage(now).map(|usage| (usage.oldest, usage.limit));
    assert!(matches!(published.history.at(address, before, start), Err(HistoryGap::TooOld(_))));
    assert_eq!(limit(&published.history, start), Some((start, HistoryLimit::Start)));
    published.set("10.0.0.1", Some("web"), start + MINUTE);
    let now = start + 90 * MINUTE;
    assert_eq!(published.history.at(address, now + MINUTE, now), Err(HistoryGap::Future));
    assert_eq!(limit(&published.history, now), Some((start + 30 * MINUTE, HistoryLimit::Age)));
    assert!(matches!(published.history.at(address, start + 29 * MINUTE, now), Err(HistoryGap::TooOld(_))));
    let oldest = published.history.at(address, start + 30 * MINUTE, now).unwrap();
    assert_eq!(oldest, PastRecord { record: Some(record("web")), from: None, until: None });
}

#[test]
fn history_evicts_the_oldest_changes_beyond_its_bytes() {
    let start = Instant::now();
    let bounds = HistoryBounds { bytes: 10 * (CHANGE_BYTES + RECORD_BYTES), ..BOUNDS };
    let mut published = Published::new(bounds, start);
    for n in 1..=100 {
        published.set("10.0.0.1", Some(&format!("web-{n}")), start + n * Duration::from_secs(1));
        assert!(published.history.usage(start).unwrap().bytes <= bounds.bytes);
    }
    let usage = published.history.usage(start + 2 * MINUTE).unwrap();
    assert_eq!(usage.limit, HistoryLimit::Bytes);
    assert_eq!(usage.changes + published.evicted, 100);
    assert!((5..10).contains(&usage.changes), "{usage:?}");
    assert_eq!(usage.oldest, start + Duration::from_secs(published.evicted as u64));
}

#[test]
fn history_holds_equal_records_once() {
    let start = Instant::now();
    let mut published = Published::new(BOUNDS, start);
    let names: BTreeMap<IpAddr, Option<Arc<Record>>> =
        (0..200).map(|n| (address(&format!("10.0.0.{n}")), Some(record("web")))).collect();
    let gone = names.keys().map(|address| (*address, None)).collect();
    published.change(names, start + MINUTE);
    published.change(gone, start + 2 * MINUTE);
    let usage = published.history.usage(start + 3 * MINUTE).unwrap();
    assert_eq!((usage.changes, usage.bytes), (400, 400 * CHANGE_BYTES + weight(&record("web"))));
    published.change(BTreeMap::new(), start + 200 * MINUTE);
    let usage = published.history.usage(start + 200 * MINUTE).unwrap();
    assert_eq!((usage.changes, usage.bytes), (0, 0), "all of them are too old");
}

#[derive(Debug, Clone)]
enum Step {
    /// Sets or removes records in one publication.
    Publish(Vec<(usize, Option<u8>)>),
    Seconds(u64),
    /// The wall clock is set forward or back.
    SetClock(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = (0..ADDRESSES.len(), prop::option::weighted(0.7, 0..3_u8));
    let step = prop_oneof![
        4 => prop::collection::vec(change, 0..4).prop_map(Step::Publish),
        3 => (0..900_u64).prop_map(Step::Seconds),
        1 => (-7200..7200_i64).prop_map(Step::SetClock),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// Compares the ring with the list of all snapshots, in queries by a wall clock that is stepped meanwhile.
    #[test]
    fn history_answers_as_full_snapshots_do(
        steps in steps(),
        minutes in 1..90_u64,
        kilobytes in 1..8_usize,
        asked in prop::collection::vec((0..ADDRESSES.len(), 0.0..1.0_f64), 20),
    ) {
        let bounds = HistoryBounds { age: Duration::from_secs(60 * minutes), bytes: kilobytes << 10 };
        let start = Instant::now();
        let mut clock = Clock { instant: start, wall: "2026-11-22T10:00:00Z".parse::<Timestamp>().unwrap() };
        let mut published = Published::new(bounds, start);
        for step in steps {
            match step {
                Step::Publish(changes) => {
                    clock.instant += Duration::from_millis(1);
                    clock.wall += Duration::from_millis(1);
                    let named = |(at, name): (usize, Option<u8>)| {
                        (address(ADDRESSES[at]), name.map(|name| record(&format!("pod-{name}"))))
                    };
                    published.change(changes.into_iter().map(named).collect(), clock.instant);
                }
                Step::Seconds(seconds) => {
                    clock.instant += Duration::from_secs(seconds);
                    clock.wall += Duration::from_secs(seconds);
                }
                Step::SetClock(seconds) => clock.wall += jiff::SignedDuration::from_secs(seconds),
            }
            let usage = published.history.usage(clock.instant).unwrap();
            prop_assert!(usage.bytes <= bounds.bytes);
            prop_assert!(usage.oldest >= usage.started && usage.oldest <= clock.instant);
            let held: BTreeSet<*const Record> = published.history.changes.values().flatten().map(Arc::as_ptr).collect();
            prop_assert_eq!(held.len(), published.history.records.len());
        }
        let usage = published.history.usage(clock.instant).unwrap();
        let moments = published.snapshots.iter().map(|(at, _)| *at).collect::<Vec<_>>();
        let life = clock.instant.duration_since(start);
        let asked = asked.into_iter().map(|(at, part)| (at, start + life.mul_f64(part)));
        let edges = moments.into_iter().flat_map(|at| (0..ADDRESSES.len()).map(move |address| (address, at)));
        for (at, moment) in asked.chain(edges) {
            // As in a query by time: rounded up to milliseconds.
            let moment = clock.instant_of(clock.time_of(moment)).unwrap();
            let address = address(ADDRESSES[at]);
            let answer = published.history.at(address, moment, clock.instant);
            if moment < usage.oldest {
                prop_assert_eq!(answer, Err(HistoryGap::TooOld(usage)));
            } else if moment > clock.instant {
                prop_assert_eq!(answer, Err(HistoryGap::Future));
            } else {
                prop_assert_eq!(answer, Ok(published.expected(address, moment, usage.oldest)));
            }
        }
    }
}
