//! Applies the planned writes while this process leads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cluster::ApiClient;
use cluster::network_sets::{NetworkSet, NetworkSets};
use pacing::Backoff;
use tokio::sync::watch;
use tokio::time::sleep;

use super::{ExportInput, Exporter, MANAGERS, SetWrite, plan};
use crate::leader_election::Assurance;
use crate::metrics::RemoteFigures;

/// Relist interval, to detect foreign changes.
const LISTED_EVERY: Duration = Duration::from_secs(60);

const AFTER_A_FAILURE: Duration = Duration::from_secs(1);
const AFTER_MANY: Duration = Duration::from_secs(30);

/// Current errors by cluster; the empty name is for errors of the whole export.
pub(crate) type Failures = BTreeMap<Arc<str>, BTreeSet<String>>;

/// Reconciles the objects.
pub(crate) struct Export {
    pub(crate) connection: ApiClient,
    pub(crate) exporter: Exporter,
    /// `None` before the first publication.
    pub(crate) snapshots: watch::Receiver<Option<Arc<ExportInput>>>,
    pub(crate) elected: watch::Receiver<bool>,
    pub(crate) assurance: Assurance,
    pub(crate) figures: RemoteFigures,
    pub(crate) failures: watch::Sender<Arc<Failures>>,
}

/// The existing objects.
struct ExistingObjects {
    client: NetworkSets,
    sets: BTreeMap<String, NetworkSet>,
}

impl Export {
    /// Runs until the channel of snapshots or of the election closes.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::new(AFTER_A_FAILURE, AFTER_MANY);
        loop {
            if self.elected.wait_for(|leads| *leads).await.is_err() {
                return;
            }
            let Ok(snapshot) = self.snapshots.wait_for(Option::is_some).await.map(|snapshot| snapshot.clone()) else {
                return;
            };
            self.snapshots.mark_unchanged();
            let failures = match self.list().await {
                Ok(mut there) => self.apply_until_relist(&mut there, snapshot).await,
                Err(why) => BTreeMap::from([("".into(), BTreeSet::from([why]))]),
            };
            self.publish(&failures);
            let wait = if failures.is_empty() {
                backoff.reset();
                continue;
            } else {
                backoff.wait()
            };
            // A new snapshot is not delayed by the backoff of a failed write, but retries are still rate-limited.
            let news = async {
                sleep(AFTER_A_FAILURE).await;
                self.snapshots.changed().await
            };
            tokio::select! {
                () = sleep(wait) => {}
                changed = news => if changed.is_err() { return },
                ended = self.elected.wait_for(|leads| !leads) => if ended.is_err() { return },
            }
        }
    }

    async fn list(&self) -> Result<ExistingObjects, String> {
        let client = NetworkSets::find(&self.connection, &MANAGERS).await?;
        let sets = client.list().await?;
        Ok(ExistingObjects { client, sets: sets.into_iter().map(|set| (set.name().to_owned(), set)).collect() })
    }

    /// Applies published snapshots until the next relist is due. Failures are returned, and retried after a relist.
    async fn apply_until_relist(
        &mut self,
        there: &mut ExistingObjects,
        mut snapshot: Option<Arc<ExportInput>>,
    ) -> Failures {
        let look_again = sleep(LISTED_EVERY);
        tokio::pin!(look_again);
        loop {
            let failures = match snapshot.take() {
                Some(snapshot) => self.write(there, &snapshot).await,
                None => return Failures::new(),
            };
            if !failures.is_empty() {
                return failures;
            }
            self.publish(&failures);
            tokio::select! {
                () = &mut look_again => return failures,
                ended = self.elected.changed() => if ended.is_err() || !*self.elected.borrow() { return failures },
                changed = self.snapshots.changed() => if changed.is_err() { return failures },
            }
            snapshot = self.snapshots.borrow_and_update().clone();
        }
    }

    async fn write(&self, there: &mut ExistingObjects, snapshot: &ExportInput) -> Failures {
        let wanted = snapshot.wanted(&self.exporter);
        let mut failures = Failures::new();
        let mut written = vec![];
        for (cluster, step) in plan(snapshot, &self.exporter, &wanted, &there.sets) {
            let mut elected = self.elected.clone();
            tokio::select! {
                () = self.assurance.wait() => {}
                // Leadership was lost.
                _ = elected.wait_for(|leads| !leads) => break,
            }
            let (name, outcome) = match &step {
                SetWrite::Create(wanted) => (wanted.name.clone(), there.client.create(wanted).await.map(Some)),
                SetWrite::Replace(seen, wanted) => {
                    (wanted.name.clone(), there.client.replace(seen, wanted).await.map(Some))
                }
                SetWrite::Delete(seen) => (seen.name().to_owned(), there.client.delete(seen).await.map(|()| None)),
            };
            match outcome {
                Ok(now) => written.push((name, now)),
                Err(why) => {
                    self.figures.export_failed(&cluster);
                    failures.entry(cluster).or_default().insert(format!("GlobalNetworkSet {name}: {why}"));
                }
            }
        }
        for (name, now) in written {
            match now {
                Some(set) => drop(there.sets.insert(name, set)),
                None => drop(there.sets.remove(&name)),
            }
        }
        let mut counts: BTreeMap<&str, usize> = snapshot.families.keys().map(|cluster| (&**cluster, 0)).collect();
        let is_exported = |name: &String| there.sets.get(name).is_some_and(|set| snapshot.owns(&self.exporter, set));
        for (cluster, _) in wanted.iter().filter(|(name, _)| is_exported(name)).map(|(_, wanted)| wanted) {
            *counts.entry(cluster).or_default() += 1;
        }
        counts.into_iter().for_each(|(cluster, count)| self.figures.exported(cluster, count));
        failures
    }

    fn publish(&self, failures: &Failures) {
        let known = self.failures.borrow().clone();
        for why in failures.values().flatten().filter(|why| !known.values().any(|before| before.contains(*why))) {
            tracing::error!("export of GlobalNetworkSets failed: {why}");
        }
        self.failures.send_replace(Arc::new(failures.clone()));
    }
}
