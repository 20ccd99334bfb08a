//! The table that a consumer of a feed maintains, checked against the rules of the feed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use context::mmdb::read::Database;
use policy::remote::wire;
use serde_json::Value;

use super::{EDGES, IDENTITY, NUMBERS, REMOTE};

/// A consumer's table: baselines replace it, deltas change it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum FollowedTable {
    Identity(BTreeMap<IpAddr, Value>),
    Numbers(BTreeMap<IpAddr, u64>),
    Edges(BTreeSet<String>),
    /// Sets by cluster/namespace/name.
    Remote(BTreeMap<String, BTreeSet<IpAddr>>),
}

impl FollowedTable {
    pub(super) fn empty(feed: &str) -> FollowedTable {
        match feed {
            IDENTITY => FollowedTable::Identity(BTreeMap::new()),
            NUMBERS => FollowedTable::Numbers(BTreeMap::new()),
            EDGES => FollowedTable::Edges(BTreeSet::new()),
            REMOTE => FollowedTable::Remote(BTreeMap::new()),
            other => panic!("unknown feed: {other}"),
        }
    }

    pub(super) fn of(feed: &str, baseline: &[u8]) -> FollowedTable {
        match FollowedTable::empty(feed) {
            FollowedTable::Identity(_) => {
                let database = Database::open(baseline).unwrap();
                database.verify().unwrap();
                let records = database.entries().unwrap().map(|entry| entry.unwrap());
                FollowedTable::Identity(records.map(|(network, record)| (network.addr(), record)).collect())
            }
            FollowedTable::Numbers(_) => {
                let database = Database::open(baseline).unwrap();
                database.verify().unwrap();
                let records = database.entries::<BTreeMap<String, u32>>().unwrap().map(|entry| entry.unwrap());
                let only = |record: BTreeMap<String, u32>| {
                    assert!(record.keys().eq(["num"]), "{record:?}");
                    u64::from(record["num"])
                };
                FollowedTable::Numbers(records.map(|(network, record)| (network.addr(), only(record))).collect())
            }
            FollowedTable::Edges(_) => {
                let text = std::str::from_utf8(baseline).unwrap();
                let mut lines = text.lines();
                assert_eq!(lines.next(), Some("# NetworkPolicy-derived declared-edge allow-list"));
                let list: Vec<&str> = lines.collect();
                assert!(list.is_sorted() && text.ends_with('\n'), "{text}");
                FollowedTable::Edges(list.into_iter().map(String::from).collect())
            }
            FollowedTable::Remote(_) => {
                let baseline: wire::RemoteBaseline = serde_json::from_slice(baseline).unwrap();
                assert!(
                    baseline.sets.is_sorted_by_key(|row| &row.set)
                        && baseline.clusters.is_sorted_by_key(|row| &row.cluster)
                );
                let set = |row: wire::SetRow| (row.set.to_string(), row.addresses.into_iter().collect());
                FollowedTable::Remote(baseline.sets.into_iter().map(set).collect())
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            FollowedTable::Identity(records) => records.len(),
            FollowedTable::Numbers(numbers) => numbers.len(),
            FollowedTable::Edges(lines) => lines.len(),
            FollowedTable::Remote(sets) => sets.len(),
        }
    }

    /// The table of identity numbers that corresponds to this identity table.
    pub(super) fn numbers(&self) -> FollowedTable {
        let FollowedTable::Identity(records) = self else { panic!("expected identity records, got {self:?}") };
        let number = |record: &Value| record["num"].as_u64().unwrap();
        FollowedTable::Numbers(records.iter().map(|(address, record)| (*address, number(record))).collect())
    }

    pub(super) fn apply(&mut self, delta: &Value) {
        let list = |key: &str| delta[key].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        match self {
            FollowedTable::Identity(records) => {
                for upsert in list("upserts") {
                    let mut record = upsert.clone();
                    let ip = record.as_object_mut().unwrap().remove("ip").unwrap();
                    records.insert(text(&ip).parse().unwrap(), record);
                }
                for ip in list("removes") {
                    records.remove(&text(ip).parse::<IpAddr>().unwrap());
                }
            }
            FollowedTable::Numbers(numbers) => {
                for (number, addresses) in delta["upserts"].as_object().unwrap() {
                    let number: u64 = number.parse().unwrap();
                    for ip in addresses.as_array().unwrap() {
                        numbers.insert(text(ip).parse().unwrap(), number);
                    }
                }
                for ip in list("removes") {
                    numbers.remove(&text(ip).parse::<IpAddr>().unwrap());
                }
            }
            FollowedTable::Edges(lines) => {
                lines.extend(list("adds").iter().map(text));
                for line in list("removes") {
                    lines.remove(&text(line));
                }
            }
            FollowedTable::Remote(sets) => {
                let delta: wire::RemoteDelta = serde_json::from_value(delta.clone()).unwrap();
                for wire::SetDelta { set, adds, removes } in delta.sets {
                    let known = sets.entry(set.to_string()).or_default();
                    assert!(
                        adds.iter().all(|address| !known.contains(address)),
                        "{set}: adds {adds:?} are already in {known:?}"
                    );
                    assert!(removes.iter().all(|address| known.remove(address)), "{set} lacks one of {removes:?}");
                    known.extend(adds);
                }
                sets.retain(|set, known| {
                    !known.is_empty() && !delta.gone.iter().any(|cluster| set.starts_with(&format!("{cluster}/")))
                });
            }
        }
    }
}
