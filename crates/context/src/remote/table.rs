//! The published sets of all clusters: deltas of bounded size, and the baseline.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use feed::Position;
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use policy::remote::wire::{self, ClusterRow, SetDelta, SetRow};
use policy::remote::{RemoteChange, RemoteSet};
use sha2::{Digest, Sha256};

use crate::channel::{self, Baseline, BaselineForm, Encode, Unencodable};
use crate::version::Sum;

const MEDIA_TYPE: &str = "application/json";

/// Address limit of a delta: some 100 KiB of JSON.
const ADDRESSES_OF_DELTA: usize = 2_000;

/// The table, including unpublished changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct RemoteSetTable {
    /// Sorted, none empty.
    sets: OrdMap<RemoteSet, Arc<[IpAddr]>>,
    rows: OrdMap<Arc<str>, ClusterRow>,
    sum: Sum,
}

/// Unpublished changes.
#[derive(Debug, Default)]
pub(crate) struct RemoteSetChanges {
    sets: Vec<SetDelta>,
    rows: Vec<ClusterRow>,
    gone: Vec<Arc<str>>,
}

impl RemoteSetTable {
    /// Sets the addresses of a set. Returns whether they changed.
    pub(crate) fn set(
        &mut self,
        set: RemoteSet,
        addresses: &BTreeSet<IpAddr>,
        difference: &mut RemoteSetChanges,
    ) -> bool {
        let before: BTreeSet<IpAddr> =
            self.sets.get(&set).into_iter().flat_map(|known| known.iter().copied()).collect();
        if before == *addresses {
            return false;
        }
        self.remove_set(&set);
        let adds = addresses.difference(&before).copied().collect();
        let removes = before.difference(addresses).copied().collect();
        difference.sets.push(SetDelta { set: set.clone(), adds, removes });
        if !addresses.is_empty() {
            let addresses: Arc<[IpAddr]> = addresses.iter().copied().collect();
            self.sum.add(digest(&set, &addresses));
            self.sets.insert(set, addresses);
        }
        true
    }

    /// Upserts the row of a cluster.
    pub(crate) fn publish(&mut self, row: ClusterRow, difference: &mut RemoteSetChanges) {
        if self.rows.insert(row.cluster.clone(), row.clone()).as_ref() != Some(&row) {
            difference.rows.push(row);
        }
    }

    /// Removes a cluster.
    pub(crate) fn discard(&mut self, cluster: &Arc<str>, difference: &mut RemoteSetChanges) {
        for set in self.sets_of(cluster) {
            self.remove_set(&set);
        }
        // Pending changes would restore it.
        difference.sets.retain(|change| change.set.cluster != *cluster);
        difference.rows.retain(|row| row.cluster != *cluster);
        if self.rows.remove(cluster).is_some() {
            difference.gone.push(cluster.clone());
        }
    }

    fn remove_set(&mut self, set: &RemoteSet) {
        if let Some(known) = self.sets.remove(set) {
            self.sum.remove(digest(set, &known));
        }
    }

    pub(crate) fn row(&self, cluster: &str) -> Option<&ClusterRow> {
        self.rows.get(cluster)
    }

    pub(crate) fn sets_of(&self, cluster: &str) -> Vec<RemoteSet> {
        let from = RemoteSet::new(cluster, "", "");
        let of_cluster = self.sets.range(from..).map(|(set, _)| set).take_while(|set| &*set.cluster == cluster);
        of_cluster.cloned().collect()
    }

    /// Sets and distinct addresses of a cluster.
    pub(crate) fn counts(&self, cluster: &str) -> (usize, usize) {
        let sets = self.sets_of(cluster);
        let addresses: BTreeSet<&IpAddr> =
            sets.iter().filter_map(|set| self.sets.get(set)).flat_map(|a| a.iter()).collect();
        (sets.len(), addresses.len())
    }

    /// Sorted by cluster, namespace and name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&RemoteSet, &Arc<[IpAddr]>)> {
        self.sets.iter()
    }

    /// The changes from the sets of an older table. The cost depends on the difference only.
    pub(crate) fn changes_since(&self, older: &RemoteSetTable) -> Vec<RemoteChange> {
        let update = |set: &RemoteSet, old: &[IpAddr], new: &[IpAddr]| {
            let without = |of: &[IpAddr], others: &[IpAddr]| -> Vec<IpAddr> {
                of.iter().filter(|address| others.binary_search(address).is_err()).copied().collect()
            };
            RemoteChange::Update { set: set.clone(), adds: without(new, old), removes: without(old, new) }
        };
        let differences = older.sets.diff(&self.sets);
        differences
            .map(|difference| match difference {
                DiffItem::Add(set, new) => update(set, &[], new),
                DiffItem::Update { old: (_, old), new: (set, new) } => update(set, old, new),
                DiffItem::Remove(set, old) => update(set, old, &[]),
            })
            .collect()
    }

    /// The first 64 bits of a hash of everything but the position.
    fn version(&self) -> String {
        let rows: Vec<&ClusterRow> = self.rows.values().collect();
        let hash = Sha256::new_with_prefix(self.sum.version().to_be_bytes()).chain_update(json(&rows)).finalize();
        let [a, b, c, d, e, f, g, h, ..] = hash.0;
        format!("remote-{:016x}", u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// The baseline of the current table.
    pub(crate) fn baseline(&self) -> impl FnOnce(Position) -> Baseline + use<> {
        let table = self.clone();
        move |at| {
            let (version, count) = (table.version(), table.sets.len());
            let encode: Encode = Box::new(move |at, _| table.encode(at));
            let part = BaselineForm { what: "baseline", extension: "json", media_type: MEDIA_TYPE, encode };
            Baseline::new(version, at, count, vec![part])
        }
    }

    fn encode(&self, Position { epoch, seq }: Position) -> Result<Bytes, Unencodable> {
        let row =
            |(set, addresses): (&RemoteSet, &Arc<[IpAddr]>)| SetRow { set: set.clone(), addresses: addresses.to_vec() };
        let clusters = self.rows.values().cloned().collect();
        let baseline = wire::RemoteBaseline { epoch, seq, clusters, sets: self.sets.iter().map(row).collect() };
        serde_json::to_vec(&baseline).map(Bytes::from).map_err(|e| Unencodable(e.to_string()))
    }
}

impl RemoteSetChanges {
    pub(crate) fn is_empty(&self) -> bool {
        let RemoteSetChanges { sets, rows, gone } = self;
        sets.is_empty() && rows.is_empty() && gone.is_empty()
    }

    /// As deltas. Removed clusters come first, since a new one may have the same name; rows come last, since they
    /// confirm the sets before them.
    pub(crate) fn deltas(self) -> Vec<channel::DeltaEncoder> {
        let RemoteSetChanges { mut sets, mut rows, gone } = self;
        sets.sort_by(|a, b| a.set.cmp(&b.set));
        rows.sort_by(|a, b| a.cluster.cmp(&b.cluster));
        let mut deltas = vec![];
        if !gone.is_empty() {
            deltas.push(wire::RemoteDelta { gone, ..wire::RemoteDelta::default() });
        }
        let begins_at = deltas.len();
        let mut room = 0;
        for set in sets.into_iter().flat_map(in_pieces) {
            let length = set.adds.len() + set.removes.len();
            match deltas.last_mut().filter(|_| length <= room) {
                Some(delta) => delta.sets.push(set),
                None => {
                    room = ADDRESSES_OF_DELTA;
                    deltas.push(wire::RemoteDelta { sets: vec![set], ..wire::RemoteDelta::default() });
                }
            }
            room -= length;
        }
        if !rows.is_empty() {
            if deltas.len() == begins_at {
                deltas.push(wire::RemoteDelta::default());
            }
            if let Some(last) = deltas.last_mut() {
                last.clusters = rows;
            }
        }
        let encoded = |delta: wire::RemoteDelta| -> channel::DeltaEncoder {
            Box::new(move |Position { epoch, seq }| json(&wire::RemoteDelta { epoch, seq, ..delta }))
        };
        deltas.into_iter().map(encoded).collect()
    }
}

/// Splits the changes of a set into deltas of bounded size.
fn in_pieces(SetDelta { set, adds, removes }: SetDelta) -> Vec<SetDelta> {
    if adds.len() + removes.len() <= ADDRESSES_OF_DELTA {
        return vec![SetDelta { set, adds, removes }];
    }
    let adds = adds.chunks(ADDRESSES_OF_DELTA).map(|adds| (adds.to_vec(), vec![]));
    let removes = removes.chunks(ADDRESSES_OF_DELTA).map(|removes| (vec![], removes.to_vec()));
    adds.chain(removes).map(|(adds, removes)| SetDelta { set: set.clone(), adds, removes }).collect()
}

fn digest(set: &RemoteSet, addresses: &[IpAddr]) -> u128 {
    let hash = Sha256::digest(json(&SetRow { set: set.clone(), addresses: addresses.to_vec() }));
    hash.iter().take(16).fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}

fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    match serde_json::to_vec(value) {
        Ok(json) => json,
        Err(e) => unreachable!("strings and numbers are serializable: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Plain = BTreeMap<RemoteSet, BTreeSet<IpAddr>>;

    fn addresses(numbers: impl IntoIterator<Item = u16>) -> BTreeSet<IpAddr> {
        numbers.into_iter().map(|n| IpAddr::from([10, 4, (n >> 8) as u8, n as u8])).collect()
    }

    fn set(name: &str) -> RemoteSet {
        RemoteSet::new("east", "shop", name)
    }

    fn row(cluster: &str, reachable: bool) -> ClusterRow {
        ClusterRow { cluster: cluster.into(), reachable, synced_at: None }
    }

    fn encoded(difference: RemoteSetChanges) -> Vec<wire::RemoteDelta> {
        let position = |seq| Position { epoch: 1, seq };
        let deltas = difference.deltas().into_iter().zip(1..);
        deltas.map(|(delta, seq)| serde_json::from_slice(&delta(position(seq))).unwrap()).collect()
    }

    fn apply_delta(plain: &mut Plain, delta: &wire::RemoteDelta) {
        for SetDelta { set, adds, removes } in &delta.sets {
            let known = plain.entry(set.clone()).or_default();
            known.retain(|address| !removes.contains(address));
            known.extend(adds);
        }
        plain.retain(|set, known| !known.is_empty() && !delta.gone.contains(&set.cluster));
    }

    fn baseline(table: &RemoteSetTable) -> (String, wire::RemoteBaseline) {
        let baseline = table.baseline()(Position { epoch: 1, seq: 7 });
        let encoded = baseline.encoded_here().unwrap();
        (baseline.version.clone(), serde_json::from_slice(&encoded.bytes).unwrap())
    }

    #[test]
    fn deltas_add_up_to_baseline() {
        let (mut table, mut plain) = (RemoteSetTable::default(), Plain::new());
        for (name, numbers) in [("web", 0..5), ("api", 3..9), ("web", 2..7), ("api", 0..0), ("web", 2..7)] {
            let mut difference = RemoteSetChanges::default();
            table.set(set(name), &addresses(numbers), &mut difference);
            encoded(difference).iter().for_each(|delta| apply_delta(&mut plain, delta));
            let (_, wire::RemoteBaseline { sets, .. }) = baseline(&table);
            let said: Plain = sets.into_iter().map(|row| (row.set, row.addresses.into_iter().collect())).collect();
            assert_eq!(said, plain);
        }
        assert_eq!(table.counts("east"), (1, 5));
    }

    #[test]
    fn changes_since_older_table_make_this_one() {
        let sets = |table: &RemoteSetTable| -> Plain {
            table.iter().map(|(set, addresses)| (set.clone(), addresses.iter().copied().collect())).collect()
        };
        let (mut table, mut ignored, mut plain) =
            (RemoteSetTable::default(), RemoteSetChanges::default(), Plain::new());
        for step in [&[("web", 0..5), ("api", 3..9)][..], &[("web", 2..7)], &[], &[("api", 0..0), ("db", 1..2)]] {
            let older = table.clone();
            for (name, numbers) in step {
                table.set(set(name), &addresses(numbers.clone()), &mut ignored);
            }
            let changes = table.changes_since(&older);
            assert_eq!(changes.len(), step.len());
            for change in changes {
                let RemoteChange::Update { set, adds, removes } = change else { panic!("{change:?}") };
                let known = plain.entry(set).or_default();
                assert!(removes.iter().all(|address| known.remove(address)) && adds.iter().all(|a| known.insert(*a)));
            }
            plain.retain(|_, known| !known.is_empty());
            assert_eq!(plain, sets(&table));
        }
    }

    #[test]
    fn equal_state_is_not_a_difference() {
        let mut table = RemoteSetTable::default();
        let mut difference = RemoteSetChanges::default();
        table.set(set("web"), &addresses(0..5), &mut difference);
        table.publish(row("east", true), &mut difference);
        assert_eq!(encoded(difference).len(), 1);
        let mut difference = RemoteSetChanges::default();
        table.set(set("web"), &addresses(0..5), &mut difference);
        table.publish(row("east", true), &mut difference);
        assert!(difference.is_empty());
    }

    #[test]
    fn version_changes_with_sets_and_rows() {
        let mut table = RemoteSetTable::default();
        let mut versions = vec![baseline(&table).0];
        let mut ignored = RemoteSetChanges::default();
        table.set(set("web"), &addresses(0..5), &mut ignored);
        versions.push(baseline(&table).0);
        table.publish(row("east", true), &mut ignored);
        versions.push(baseline(&table).0);
        table.publish(row("east", false), &mut ignored);
        versions.push(baseline(&table).0);
        assert_eq!(versions.iter().collect::<BTreeSet<_>>().len(), 4);
        table.discard(&"east".into(), &mut ignored);
        assert_eq!(baseline(&table).0, versions[0]);
    }

    #[test]
    fn removed_cluster_removes_only_its_own_sets() {
        let (mut table, mut ignored) = (RemoteSetTable::default(), RemoteSetChanges::default());
        for cluster in ["a", "a-b", "b"] {
            table.set(RemoteSet::new(cluster, "shop", "web"), &addresses(0..2), &mut ignored);
            table.publish(row(cluster, true), &mut ignored);
        }
        let mut difference = RemoteSetChanges::default();
        table.discard(&"a".into(), &mut difference);
        table.publish(row("a", false), &mut difference);
        let deltas = encoded(difference);
        assert_eq!((&deltas[0].gone, &deltas[1].clusters), (&vec!["a".into()], &vec![row("a", false)]));
        let left: Vec<String> = table.iter().map(|(set, _)| set.cluster.to_string()).collect();
        assert_eq!(left, ["a-b", "b"]);
    }

    #[test]
    fn removing_cluster_discards_its_pending_changes() {
        let (mut table, mut previous) = (RemoteSetTable::default(), RemoteSetChanges::default());
        table.set(RemoteSet::new("a", "shop", "web"), &addresses(0..2), &mut previous);
        table.publish(row("a", true), &mut previous);
        let mut difference = RemoteSetChanges::default();
        table.set(RemoteSet::new("a", "shop", "web"), &addresses(0..3), &mut difference);
        table.publish(row("a", false), &mut difference);
        table.discard(&"a".into(), &mut difference);
        let deltas = encoded(difference);
        assert_eq!(deltas.len(), 1);
        assert!(deltas[0].gone == ["a".into()] && deltas[0].sets.is_empty() && deltas[0].clusters.is_empty());
    }

    #[test]
    fn deltas_are_bounded_with_cluster_rows_last() {
        let (mut table, mut plain) = (RemoteSetTable::default(), Plain::new());
        let mut difference = RemoteSetChanges::default();
        table.set(set("large"), &addresses(0..5_000), &mut difference);
        table.set(set("small"), &addresses(0..10), &mut difference);
        table.publish(row("east", true), &mut difference);
        let deltas = encoded(difference);
        for delta in &deltas {
            let length: usize = delta.sets.iter().map(|set| set.adds.len() + set.removes.len()).sum();
            assert!(length <= ADDRESSES_OF_DELTA);
            apply_delta(&mut plain, delta);
        }
        assert!(deltas.iter().rev().skip(1).all(|delta| delta.clusters.is_empty()));
        assert_eq!(deltas.last().unwrap().clusters.len(), 1);
        assert_eq!(plain[&set("large")].len() + plain[&set("small")].len(), 5_010);
    }
}
