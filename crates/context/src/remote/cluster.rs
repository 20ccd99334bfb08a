//! One other cluster: its watches, how they go, and what follows from it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{Connection, Followed, connect_elsewhere};
use jiff::Timestamp;
use policy::remote::LabelPrefix;
use policy::remote::wire::ClusterRow;
use policy::{Change, Kind, Object, Pod};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::config::ClusterConfig;
use super::limits::Excess;
use super::offers::{Doubt, Offers};
use super::report::ClusterReport;
use super::state::Memory;

/// Until a list that is not believed is asked for again: long enough for a server that is just coming up to know more.
const CONFIRM_AFTER: Duration = Duration::from_secs(1);

/// Sets that exceed the limits and are named in the status.
const EXCESS_SHOWN: usize = 5;

/// What a watch says on its way to the publisher. When there is more, the watch stops reading.
const WORDS_QUEUED: usize = 256;

/// What a watch says.
pub(super) struct Word {
    pub(super) cluster: Arc<str>,
    prefix: LabelPrefix,
    /// Of the watch: one that was replaced is not listened to any more.
    number: u64,
    says: Followed<Object>,
}

impl Word {
    /// True if it is about one pod, of which many may follow each other.
    pub(super) fn is_of_one_pod(&self) -> bool {
        match &self.says {
            Followed::Change(told) => match told.change {
                Change::Set(_) | Change::Remove(..) => true,
                Change::Replace(..) => false,
            },
            Followed::IsCurrent | Followed::Restarts | Followed::Failing(_) => false,
        }
    }
}

pub(super) struct Cluster {
    pub(super) config: ClusterConfig,
    connection: Connection,
    pub(super) offers: Offers,
    watches: BTreeMap<LabelPrefix, Watch>,
    watches_begun: u64,
    restarts: u64,
    /// As it was when this process began, or when its sets were dropped.
    remembered_at: Option<Timestamp>,
    /// Its sets were dropped since nothing was heard of it for too long.
    dropped: bool,
    /// What was wrong with its state on disk when this process began.
    pub(super) damaged: Option<String>,
    /// Why its state on disk is not what it should be now.
    pub(super) unwritten: Option<String>,
}

struct Watch {
    number: u64,
    task: AbortHandle,
    /// When what it had said was last known to be everything.
    current_at: Option<Timestamp>,
    failing: Option<String>,
    doubt: Option<Doubt>,
    /// When to ask for another list.
    confirm_at: Option<Instant>,
}

/// Ends with the last of its senders.
pub(super) type Words = mpsc::Sender<Word>;

pub(super) fn words() -> (Words, mpsc::Receiver<Word>) {
    mpsc::channel(WORDS_QUEUED)
}

impl Cluster {
    /// What is known of it is what is remembered. Nothing is watched yet.
    pub(super) fn new(config: ClusterConfig, memory: Memory) -> Cluster {
        let mut offers = Offers::new(config.rules.clone(), config.prefixes.iter().cloned());
        for (prefix, claims) in memory.claims {
            offers.remember(&prefix, claims);
        }
        Cluster {
            connection: connect_elsewhere(config.way.clone()),
            config,
            offers,
            watches: BTreeMap::new(),
            watches_begun: 0,
            restarts: 0,
            remembered_at: memory.synced_at,
            dropped: false,
            damaged: None,
            unwritten: None,
        }
    }

    pub(super) fn watch_all(&mut self, tasks: &mut JoinSet<()>, words: &Words) {
        for prefix in self.config.prefixes.clone() {
            self.watch(&prefix, tasks, words);
        }
    }

    /// Begins the watch of a family, with a list, in place of the one that there is.
    fn watch(&mut self, prefix: &LabelPrefix, tasks: &mut JoinSet<()>, words: &Words) {
        self.watches_begun += 1;
        let number = self.watches_begun;
        let (sender, mut said) = mpsc::channel(WORDS_QUEUED);
        let selector = prefix.name_label().to_string();
        let most = self.config.rules.limits.pods();
        let following = cluster::watch_labelled::<Object>(self.connection.clone(), Kind::Pod, selector, most, sender);
        let (words, cluster, of) = (words.clone(), self.config.name.clone(), prefix.clone());
        let handing_on = async move {
            while let Some(says) = said.recv().await {
                let word = Word { cluster: cluster.clone(), prefix: of.clone(), number, says };
                if words.send(word).await.is_err() {
                    return;
                }
            }
        };
        let task = tasks.spawn(async move {
            futures::future::join(following, handing_on).await;
        });
        let begun = Watch { number, task, current_at: None, failing: None, doubt: None, confirm_at: None };
        match self.watches.get_mut(prefix) {
            // Nothing is wrong with what is known because it is asked for once more.
            Some(watch) => {
                watch.task.abort();
                let Watch { current_at, failing, doubt, .. } = &watch;
                let (current_at, failing, doubt) = (*current_at, failing.clone(), doubt.clone());
                *watch = Watch { current_at, failing, doubt, ..begun };
            }
            None => drop(self.watches.insert(prefix.clone(), begun)),
        }
    }

    pub(super) fn end(&mut self) {
        for watch in self.watches.values() {
            watch.task.abort();
        }
    }

    /// Takes in what a watch says.
    pub(super) fn take(&mut self, Word { cluster, prefix, number, says }: Word) {
        let Some(watch) = self.watches.get_mut(&prefix).filter(|watch| watch.number == number) else { return };
        match says {
            Followed::Change(told) => match told.change {
                Change::Set(Object::Pod(pod)) => self.offers.set(&prefix, &pod),
                Change::Remove(_, name) => self.offers.remove(&prefix, &name),
                Change::Replace(_, objects) => {
                    let pods: Vec<Arc<Pod>> = objects.into_iter().filter_map(pod).collect();
                    watch.doubt = self.offers.replace(&prefix, pods.iter().map(AsRef::as_ref));
                    watch.confirm_at = watch.doubt.is_some().then(|| Instant::now() + CONFIRM_AFTER);
                    if watch.doubt.is_none() {
                        watch.current_at = Some(Timestamp::now());
                    }
                    if let Some(doubt) = &watch.doubt {
                        tracing::warn!(%cluster, family = %prefix, "suspicious list: {doubt}; nothing is removed \
                            until a relist confirms it");
                    }
                    tracing::debug!(%cluster, family = %prefix, pods = pods.len(), "listed");
                }
                // Only pods are asked for.
                Change::Set(Object::Namespace(_) | Object::Policy(_) | Object::Node(_)) => {}
            },
            Followed::IsCurrent if watch.doubt.is_none() => watch.current_at = Some(Timestamp::now()),
            Followed::IsCurrent => {}
            Followed::Restarts => self.restarts += 1,
            Followed::Failing(now) => {
                match &now {
                    Some(why) if watch.failing.as_ref() != Some(why) => tracing::warn!(%cluster, "{why}"),
                    None if watch.failing.is_some() => {
                        tracing::info!(%cluster, family = %prefix, "cluster reachable again")
                    }
                    Some(_) | None => {}
                }
                watch.failing = now;
            }
        }
        if self.dropped && self.offers.is_listed() {
            self.dropped = false;
        }
    }

    /// When a list is to be asked for again.
    pub(super) fn confirm_at(&self) -> Option<Instant> {
        self.watches.values().filter_map(|watch| watch.confirm_at).min()
    }

    /// Asks again for the lists that are not believed.
    pub(super) fn confirm(&mut self, now: Instant, tasks: &mut JoinSet<()>, words: &Words) {
        let due = |watch: &Watch| watch.confirm_at.is_some_and(|at| at <= now);
        let prefixes: Vec<LabelPrefix> =
            self.watches.iter().filter(|(_, watch)| due(watch)).map(|(prefix, _)| prefix.clone()).collect();
        for prefix in prefixes {
            self.watch(&prefix, tasks, words);
        }
    }

    /// What it offers is dropped if nothing was heard of it for longer than that. Says whether it was.
    pub(super) fn drop_stale(
        &mut self,
        longest: Duration,
        now: Timestamp,
        tasks: &mut JoinSet<()>,
        words: &Words,
    ) -> bool {
        let is_stale = |at: Timestamp| now.duration_since(at).unsigned_abs() > longest && at < now;
        if self.dropped || self.is_reachable() || !self.synced_at().is_some_and(is_stale) {
            return false;
        }
        self.remembered_at = self.synced_at();
        self.dropped = true;
        self.offers = Offers::new(self.config.rules.clone(), self.config.prefixes.iter().cloned());
        // A watch that went on from where it stood would tell only of what changes.
        for watch in std::mem::take(&mut self.watches).into_values() {
            watch.task.abort();
        }
        self.watch_all(tasks, words);
        true
    }

    /// Whether all of its watches go on, and what they say is known and believed.
    pub(super) fn is_reachable(&self) -> bool {
        let is_believed = |watch: &Watch| watch.failing.is_none() && watch.doubt.is_none();
        self.offers.is_listed() && self.watches.values().all(is_believed)
    }

    /// When its sets were last known to be right: for each family, when the server last said something, be it that
    /// nothing has changed.
    pub(super) fn synced_at(&self) -> Option<Timestamp> {
        let families: Option<Vec<Timestamp>> = self.watches.values().map(|watch| watch.current_at).collect();
        families.and_then(|families| families.into_iter().min()).or(self.remembered_at)
    }

    /// Whether anything is known of it, be it that it offers nothing.
    pub(super) fn is_known(&self) -> bool {
        self.offers.is_listed() || self.remembered_at.is_some()
    }

    pub(super) fn row(&self) -> ClusterRow {
        let synced_at = self.synced_at().filter(|_| self.is_known());
        ClusterRow { cluster: self.config.name.clone(), reachable: self.is_reachable(), synced_at }
    }

    pub(super) fn memory(&self) -> Memory {
        Memory { synced_at: self.row().synced_at, claims: self.offers.memory() }
    }

    pub(super) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// What the limits leave out, with a few of the sets. Anybody who writes a pod over there chooses their names.
    pub(super) fn excess_problem(&self) -> Option<String> {
        let Excess { sets, amounts } = self.offers.excess();
        let shown: Vec<String> = sets.iter().take(EXCESS_SHOWN).map(|set| policy::plain(&set.to_string())).collect();
        let more = if sets.len() > shown.len() { ", …" } else { "" };
        (!sets.is_empty()).then(|| {
            format!(
                "the cluster offers more than its limits: {} sets with {} addresses are left out ({}{more}); narrow \
                 'accept' or raise 'limits' of the cluster in the file of clusters",
                amounts.sets,
                amounts.addresses,
                shown.join(", ")
            )
        })
    }

    pub(super) fn report(&self, (sets, addresses): (usize, usize)) -> ClusterReport {
        let ClusterRow { cluster, reachable, synced_at } = self.row();
        let failures = self.watches.values().filter_map(|watch| watch.failing.clone());
        let doubts = self.watches.values().filter_map(|watch| watch.doubt.as_ref().map(ToString::to_string));
        let mut problems: Vec<String> =
            failures.chain(doubts).chain(self.damaged.clone()).chain(self.unwritten.clone()).collect();
        problems.dedup();
        problems.extend(self.excess_problem());
        ClusterReport {
            cluster: cluster.to_string(),
            reachable,
            synced_at,
            sets,
            addresses,
            offered: self.offers.offered(),
            limits: self.config.rules.limits.0,
            left_out: self.offers.excess().amounts,
            watch_restarts: self.restarts,
            dropped: self.dropped,
            problems,
        }
    }
}

fn pod(object: Object) -> Option<Arc<Pod>> {
    match object {
        Object::Pod(pod) => Some(pod),
        Object::Namespace(_) | Object::Policy(_) | Object::Node(_) => None,
    }
}
