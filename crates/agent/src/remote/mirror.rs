//! State of other clusters as published by the provider, and the sets of it that are in force.
//!
//! An outage never removes state. If a provider has an older view of a cluster than the mirror (it has just started and
//! cannot reach the cluster, or it replaces a provider that lost its connection later), the mirror holds its own sets
//! until the provider's view is at least as recent. An address that was removed from a set thus does not return with an
//! older table.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use policy::remote::wire::{ClusterRow, RemoteBaseline, RemoteDelta, SetDelta, SetRow};
use policy::remote::{RemoteChange, RemoteSet};

type Addresses = BTreeSet<IpAddr>;
type Sets = BTreeMap<RemoteSet, Addresses>;

#[derive(Debug, Clone, Default)]
pub struct Mirror {
    clusters: BTreeMap<Arc<str>, Cluster>,
    /// The provider's stream is open and its table is complete.
    connected: bool,
    /// Sets not confirmed for longer than this are dropped.
    max_stale: Option<Duration>,
}

#[derive(Debug, Clone, Default)]
struct Cluster {
    /// As published by the provider that was followed last.
    reported: Option<ReportedCluster>,
    /// Sets held in place of an older view of the provider.
    held: Option<Sets>,
    /// When the sets were last known to be current; `None` if never.
    as_of: Option<Timestamp>,
    /// The sets are stale and not in force.
    dropped: bool,
}

#[derive(Debug, Clone, Default)]
struct ReportedCluster {
    /// The row of the cluster was received; it follows the rows of its sets.
    announced: bool,
    reachable: bool,
    synced_at: Option<Timestamp>,
    sets: Sets,
}

/// Status of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View<'a> {
    pub(crate) cluster: &'a Arc<str>,
    /// The provider is connected and reports the cluster as reachable.
    pub(crate) fresh: bool,
    pub(crate) as_of: Option<Timestamp>,
    /// The sets are held because the provider's view is older.
    pub(crate) held: bool,
    pub(crate) dropped: bool,
    pub(crate) sets: usize,
    pub(crate) addresses: usize,
}

impl ReportedCluster {
    fn of(row: &ClusterRow) -> ReportedCluster {
        ReportedCluster { announced: true, reachable: row.reachable, synced_at: row.synced_at, sets: Sets::new() }
    }

    fn apply(&mut self, SetDelta { set, adds, removes }: &SetDelta) {
        let addresses = self.sets.entry(set.clone()).or_default();
        for address in removes {
            addresses.remove(&address.to_canonical());
        }
        addresses.extend(adds.iter().map(IpAddr::to_canonical));
        if addresses.is_empty() {
            self.sets.remove(set);
        }
    }

    /// Whether the provider's view is at least as recent as `as_of`.
    fn is_as_good_as(&self, as_of: Option<Timestamp>) -> bool {
        let is_later = |as_of| self.synced_at.is_some_and(|synced| synced >= as_of);
        self.announced && (self.reachable || as_of.is_none_or(is_later))
    }
}

static NO_SETS: Sets = Sets::new();

impl Cluster {
    /// All known sets, stale or not.
    fn known(&self) -> &Sets {
        let reported = self.reported.as_ref().map(|reported| &reported.sets);
        self.held.as_ref().or(reported).unwrap_or(&NO_SETS)
    }

    fn in_force(&self) -> &Sets {
        if self.dropped { &NO_SETS } else { self.known() }
    }

    /// The sets are those of the provider, which reports the cluster as reachable.
    fn is_fresh(&self) -> bool {
        self.held.is_none() && self.reported.as_ref().is_some_and(|reported| reported.reachable)
    }

    /// Releases held sets once the provider's view is at least as recent, and drops stale ones.
    fn reconcile(
        &mut self,
        connected: bool,
        max_stale: Option<Duration>,
        now: Timestamp,
        changes: &mut Vec<RemoteChange>,
    ) {
        let was_dropped = self.dropped;
        let mut released = None;
        if let Some(reported) = self.reported.as_ref().filter(|_| connected) {
            if reported.is_as_good_as(self.as_of) {
                released = self.held.take();
            }
            if self.held.is_none() {
                // The sets include deltas sent after the row, so `as_of` must not move back to `synced_at`.
                self.as_of = if reported.reachable { Some(now) } else { self.as_of.max(reported.synced_at) };
            }
        }
        let is_fresh = connected && self.is_fresh();
        self.dropped = !is_fresh && self.as_of.zip(max_stale).is_some_and(|(as_of, max)| is_older(as_of, max, now));
        if released.is_some() || was_dropped != self.dropped {
            let before = if was_dropped { &NO_SETS } else { released.as_ref().unwrap_or(self.known()) };
            differences(before, self.in_force(), changes);
        }
    }
}

fn is_older(as_of: Timestamp, than: Duration, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(as_of)).is_ok_and(|age| age > than)
}

/// Appends the changes that turn the sets `before` into those `after`.
fn differences(before: &Sets, after: &Sets, changes: &mut Vec<RemoteChange>) {
    let none = Addresses::new();
    let names: BTreeSet<&RemoteSet> = before.keys().chain(after.keys()).collect();
    for set in names {
        let (old, new) = (before.get(set).unwrap_or(&none), after.get(set).unwrap_or(&none));
        if old != new {
            let (adds, removes) = ((new - old).into_iter().collect(), (old - new).into_iter().collect());
            changes.push(RemoteChange::Update { set: set.clone(), adds, removes });
        }
    }
}

impl Mirror {
    pub fn new(max_stale: Option<Duration>) -> Mirror {
        Mirror { max_stale, ..Mirror::default() }
    }

    /// Restores the sets persisted by an earlier process. Their reachability is outdated and ignored.
    pub fn recall(&mut self, kept: &RemoteBaseline, now: Timestamp) -> Vec<RemoteChange> {
        let cluster = |row: &ClusterRow| {
            let cluster = Cluster { held: Some(Sets::new()), as_of: row.synced_at, ..Cluster::default() };
            (row.cluster.clone(), cluster)
        };
        let mut clusters: BTreeMap<Arc<str>, Cluster> = kept.clusters.iter().map(cluster).collect();
        for SetRow { set, addresses } in &kept.sets {
            if let Some(Cluster { held: Some(held), .. }) = clusters.get_mut(&set.cluster) {
                held.entry(set.clone()).or_default().extend(addresses.iter().map(IpAddr::to_canonical));
            }
        }
        self.replace(clusters, now)
    }

    /// Applies the provider's complete table. A cluster missing from it is no longer watched.
    pub fn baseline(&mut self, baseline: &RemoteBaseline, now: Timestamp) -> Vec<RemoteChange> {
        self.connected = true;
        let cluster = |row: &ClusterRow| {
            let before = self.clusters.get(&row.cluster);
            let held = before.map_or_else(Sets::new, |before| before.known().clone());
            let as_of = before.and_then(|before| before.as_of);
            (
                row.cluster.clone(),
                Cluster { reported: Some(ReportedCluster::of(row)), held: Some(held), as_of, dropped: false },
            )
        };
        let mut clusters: BTreeMap<Arc<str>, Cluster> = baseline.clusters.iter().map(cluster).collect();
        for SetRow { set, addresses } in &baseline.sets {
            if let Some(Cluster { reported: Some(reported), .. }) = clusters.get_mut(&set.cluster) {
                reported.apply(&SetDelta { set: set.clone(), adds: addresses.clone(), removes: vec![] });
            }
        }
        self.replace(clusters, now)
    }

    /// Applies a delta of the provider.
    pub fn delta(&mut self, delta: &RemoteDelta, now: Timestamp) -> Vec<RemoteChange> {
        self.connected = true;
        let mut changes = vec![];
        for change in &delta.sets {
            let new = || Cluster { held: Some(Sets::new()), ..Cluster::default() };
            let cluster = self.clusters.entry(change.set.cluster.clone()).or_insert_with(new);
            cluster.reported.get_or_insert_default().apply(change);
            if cluster.held.is_none() && !cluster.dropped {
                let SetDelta { set, adds, removes } = change.clone();
                changes.push(RemoteChange::Update { set, adds, removes });
            }
        }
        for row in &delta.clusters {
            let cluster = self.clusters.entry(row.cluster.clone()).or_default();
            let reported = cluster.reported.get_or_insert_default();
            (reported.announced, reported.reachable, reported.synced_at) = (true, row.reachable, row.synced_at);
        }
        changes.append(&mut self.reconcile(now));
        for gone in &delta.gone {
            if self.clusters.remove(gone).is_some() {
                changes.push(RemoteChange::RemoveCluster(gone.clone()));
            }
        }
        changes
    }

    /// The stream resumed at the position of the table. The provider sends reachability again, after the missed deltas.
    pub fn resumed(&mut self, now: Timestamp) -> Vec<RemoteChange> {
        self.connected = true;
        self.reconcile(now)
    }

    /// The stream is lost: sets that were fresh age from `now`.
    pub fn lost(&mut self, now: Timestamp) -> Vec<RemoteChange> {
        let changes = self.reconcile(now);
        self.connected = false;
        // A resumed stream sends reachability again, after the missed deltas.
        for reported in self.clusters.values_mut().filter_map(|cluster| cluster.reported.as_mut()) {
            reported.reachable = false;
        }
        changes
    }

    /// Drops stale sets and moves `as_of` of fresh ones to `now`.
    pub fn reconcile(&mut self, now: Timestamp) -> Vec<RemoteChange> {
        let mut changes = vec![];
        for cluster in self.clusters.values_mut() {
            cluster.reconcile(self.connected, self.max_stale, now, &mut changes);
        }
        changes
    }

    /// When the next set becomes stale without an update.
    pub(crate) fn next_drop(&self) -> Option<Timestamp> {
        let max = self.max_stale?;
        let ages = self.clusters.values().filter(|c| !(c.dropped || self.connected && c.is_fresh()));
        ages.filter_map(|cluster| cluster.as_of?.checked_add(max).ok()).min()
    }

    /// State to persist for the next process: all known sets, stale or not, with `as_of`.
    pub fn to_keep(&self) -> RemoteBaseline {
        let row = |(name, cluster): (&Arc<str>, &Cluster)| ClusterRow {
            cluster: name.clone(),
            reachable: false,
            synced_at: cluster.as_of,
        };
        let set = |(set, addresses): (&RemoteSet, &Addresses)| SetRow {
            set: set.clone(),
            addresses: addresses.iter().copied().collect(),
        };
        RemoteBaseline {
            clusters: self.clusters.iter().map(row).collect(),
            sets: self.clusters.values().flat_map(Cluster::known).map(set).collect(),
            ..RemoteBaseline::default()
        }
    }

    /// Sorted by cluster name.
    pub(crate) fn views(&self) -> impl Iterator<Item = View<'_>> {
        self.clusters.iter().map(|(name, cluster)| View {
            cluster: name,
            fresh: self.connected && cluster.is_fresh(),
            as_of: cluster.as_of,
            held: self.connected && cluster.held.is_some(),
            dropped: cluster.dropped,
            sets: cluster.in_force().len(),
            addresses: cluster.in_force().values().map(BTreeSet::len).sum(),
        })
    }

    /// Replaces all clusters and returns the changes.
    fn replace(&mut self, clusters: BTreeMap<Arc<str>, Cluster>, now: Timestamp) -> Vec<RemoteChange> {
        let old = std::mem::replace(&mut self.clusters, clusters);
        let mut changes = vec![];
        for (name, cluster) in &mut self.clusters {
            cluster.reconcile(self.connected, self.max_stale, now, &mut vec![]);
            differences(old.get(name).map_or(&NO_SETS, Cluster::in_force), cluster.in_force(), &mut changes);
        }
        let gone = old.keys().filter(|name| !self.clusters.contains_key(*name));
        changes.extend(gone.cloned().map(RemoteChange::RemoveCluster));
        changes
    }
}

#[cfg(test)]
mod tests;
