//! View of the cluster: pods, namespaces, nodes and policies, and the declared edges computed from them. The informers
//! are those of the agents and of the context provider.
//!
//! With a context provider the view also has the pods of other clusters and declares edges with them.
//!
//! The view only reads the cluster; neither agents nor exports depend on it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::{ApiClient, Problem, SourceEvent, Sync};
use identity::{ClusterScheme, Workload};
use insight::DeclaredEdges;
use policy::remote::LabelPrefix;
use policy::remote::wire::SetRow;
use policy::{Change, ClusterState, Edges, Enforcement, Interner, Kind, Object, ObjectName, Pod, StateDelta};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::remote_sets::{RemoteUpdate, follow_remote_sets};

/// Limit of queued events between the informers and the view.
const EVENTS_QUEUED: usize = 16;

/// Debounce: pause after a snapshot, so that the events that arrive meanwhile are coalesced into the next one. Computing
/// the declared edges costs processor time, and readers do not need a newer snapshot.
const DEBOUNCE: Duration = Duration::from_millis(500);

/// Event for the view.
#[derive(Debug)]
pub(crate) enum ViewEvent {
    Objects(SourceEvent),
    Remote(RemoteUpdate),
}

impl From<SourceEvent> for ViewEvent {
    fn from(event: SourceEvent) -> ViewEvent {
        ViewEvent::Objects(event)
    }
}

/// Settings of the view.
pub(crate) struct ViewSettings {
    pub(crate) source: ViewSource,
    pub(crate) enforcement: Enforcement,
    /// Context providers with the pods of other clusters.
    pub(crate) remote: Option<feed::client::FeedSource>,
    pub(crate) prefixes: Vec<LabelPrefix>,
    pub(crate) identities: ClusterScheme,
}

/// Source of the objects.
#[derive(Clone)]
pub(crate) enum ViewSource {
    Cluster(ApiClient),
    /// A folder of manifests.
    Manifests(PathBuf),
}

/// The last snapshot of the cluster.
#[derive(Debug, Default)]
pub(crate) struct ClusterView(Mutex<Current>);

#[derive(Debug, Default)]
struct Current {
    snapshot: Option<Snapshot>,
    problems: Vec<Problem>,
    /// Why there is no subscription to a context provider.
    remote_problem: Option<String>,
}

/// State, declared edges and the scheme of identities at the same time.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) state: Arc<ClusterState>,
    pub(crate) identities: ClusterScheme,
    pub(crate) declared: Arc<DeclaredEdges>,
}

impl ClusterView {
    /// Starts to watch the source. The task ends only with an error.
    ///
    /// # Errors
    /// If a folder of manifests cannot be read.
    pub(crate) fn start(
        ViewSettings { source, enforcement, remote, prefixes, identities }: ViewSettings,
    ) -> anyhow::Result<(Arc<ClusterView>, JoinHandle<anyhow::Result<()>>)> {
        let view = Arc::new(ClusterView::default());
        let (sender, events) = mpsc::channel(EVENTS_QUEUED);
        let has_remote = remote.is_some();
        if let Some(remote) = remote {
            tokio::spawn(follow_remote_sets(remote, sender.clone()));
        }
        let task = match source {
            ViewSource::Cluster(connection) => tokio::spawn(async move {
                cluster::watch_cluster::<Object, ViewEvent>(connection, sender).await;
                Ok(())
            }),
            ViewSource::Manifests(folder) => {
                // Read once at the start, so that a missing folder is reported as an error of the command line.
                cluster::read_folder::<Object>(&folder)?;
                tokio::spawn(async move { Ok(cluster::watch_folder::<Object, ViewEvent>(&folder, sender).await?) })
            }
        };
        if has_remote {
            view.current().remote_problem = Some("no context provider has answered yet".into());
        }
        let follower = Follower::new(view.clone(), enforcement, prefixes, identities);
        std::thread::Builder::new().name("cluster-view".into()).spawn(move || follower.run(events))?;
        Ok((view, task))
    }

    /// The state of the cluster; `None` before the initial sync.
    pub(crate) fn snapshot(&self) -> Option<Arc<ClusterState>> {
        self.current().snapshot.as_ref().map(|snapshot| snapshot.state.clone())
    }

    /// State, declared edges and identities at the same time; `None` before the initial sync.
    pub(crate) fn full_snapshot(&self) -> Option<Snapshot> {
        self.current().snapshot.clone()
    }

    /// Why the view may be incomplete or stale.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let current = self.current();
        let remote = current.remote_problem.iter().map(|problem| Problem {
            origin: "pods of other clusters".into(),
            message: format!("{problem}; the last known sets are used"),
        });
        current.problems.iter().cloned().chain(remote).collect()
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Applies events and publishes snapshots, on a thread of its own: the initial list of a large cluster takes seconds.
struct Follower {
    view: Arc<ClusterView>,
    state: ClusterState,
    sync: Sync,
    edges: Edges,
    /// Changes that the edges have not applied yet.
    changed: StateDelta,
    renamed: BTreeSet<ObjectName>,
    names: RefCell<Interner>,
    identities: ClusterScheme,
}

impl Follower {
    fn new(
        view: Arc<ClusterView>,
        enforcement: Enforcement,
        prefixes: Vec<LabelPrefix>,
        identities: ClusterScheme,
    ) -> Follower {
        let mut state = ClusterState::new();
        state.set_default_enforcement(enforcement);
        state.set_remote_prefixes(prefixes);
        Follower {
            view,
            state,
            sync: Sync::default(),
            edges: Edges::new(),
            changed: StateDelta::default(),
            renamed: BTreeSet::new(),
            names: RefCell::default(),
            identities,
        }
    }

    /// Runs until the source ends.
    fn run(mut self, mut events: mpsc::Receiver<ViewEvent>) {
        while let Some(event) = events.blocking_recv() {
            self.apply(event);
            while let Ok(event) = events.try_recv() {
                self.apply(event);
            }
            self.publish();
            std::thread::sleep(DEBOUNCE);
        }
    }

    fn apply(&mut self, event: ViewEvent) {
        match event {
            ViewEvent::Objects(event) => self.apply_objects(event),
            ViewEvent::Remote(update) => self.apply_remote(update),
        }
    }

    fn apply_remote(&mut self, update: RemoteUpdate) {
        let (changes, problem) = match update {
            RemoteUpdate::Baseline(mut baseline) => {
                // A provider that has just started has no sets of a cluster that is unreachable; the known ones stay.
                let is_unknown = |cluster: &Arc<str>| {
                    let mut rows = baseline.clusters.iter().filter(|row| row.cluster == *cluster);
                    rows.any(|row| !row.reachable && row.synced_at.is_none())
                };
                let known = self.state.remote_sets().filter(|(set, _)| is_unknown(&set.cluster));
                let kept: Vec<SetRow> = known
                    .map(|(set, addresses)| SetRow { set: set.clone(), addresses: addresses.iter().copied().collect() })
                    .collect();
                baseline.sets.extend(kept);
                (vec![baseline.change()], None)
            }
            RemoteUpdate::Delta(delta) => (delta.changes(), None),
            RemoteUpdate::Resumed => (vec![], None),
            RemoteUpdate::Lost(problem) => (vec![], Some(problem)),
        };
        for change in changes {
            self.changed.join(self.state.apply_remote(change));
        }
        let mut current = self.view.current();
        match (&current.remote_problem, &problem) {
            (None, Some(problem)) => tracing::warn!("pods of other clusters: no context provider available: {problem}"),
            (Some(_), None) => tracing::info!("pods of other clusters: subscribed to a context provider"),
            (Some(_), Some(_)) | (None, None) => {}
        }
        current.remote_problem = problem;
    }

    fn apply_objects(&mut self, event: SourceEvent) {
        match event {
            SourceEvent::Changes(changes) => {
                for timed in changes {
                    self.record_renamed(&timed.change);
                    self.sync.observe([&timed.change]);
                    self.changed.join(self.state.apply(timed.change));
                }
            }
            SourceEvent::Problems(problems) => {
                for problem in &problems {
                    tracing::warn!("the view of the cluster may be incomplete: {problem}");
                }
                self.view.current().problems = problems;
            }
            // Clusters without ClusterNetworkPolicy are common.
            SourceEvent::Unserved(_) => {}
        }
    }

    /// Records pods whose workload changes, which the state does not report because rules do not depend on it.
    fn record_renamed(&mut self, change: &Change) {
        let Follower { state, renamed, names, .. } = self;
        let mut note = |pod: &Arc<Pod>| {
            let before = state.pod(&pod.name).map(|known| Workload::of(known, &mut names.borrow_mut()).name);
            if before.is_some_and(|before| before != Workload::of(pod, &mut names.borrow_mut()).name) {
                renamed.insert(pod.name.clone());
            }
        };
        match change {
            Change::Set(Object::Pod(pod)) => note(pod),
            Change::Replace(Kind::Pod, pods) => {
                for object in pods {
                    if let Object::Pod(pod) = object {
                        note(pod);
                    }
                }
            }
            Change::Set(_) | Change::Remove(..) | Change::Replace(..) => {}
        }
    }

    fn publish(&mut self) {
        if !self.sync.is_complete() {
            return;
        }
        let (changed, renamed) = (std::mem::take(&mut self.changed), std::mem::take(&mut self.renamed));
        let names = &self.names;
        let workload_of = |pod: &Pod| Workload::of(pod, &mut names.borrow_mut()).name;
        let changes = self.edges.update(&self.state, &changed, &workload_of, &renamed);
        let mut current = self.view.current();
        let declared = match &current.snapshot {
            Some(before) if changes.is_empty() && before.declared.withheld() == self.edges.withheld() => {
                before.declared.clone()
            }
            Some(_) | None => Arc::new(DeclaredEdges::new(self.edges.snapshot(), self.edges.withheld())),
        };
        self.identities.update(&self.state);
        let (state, identities) = (Arc::new(self.state.clone()), self.identities.clone());
        current.snapshot = Some(Snapshot { state, identities, declared });
    }
}

#[cfg(test)]
mod tests {
    use identity::{ClusterName, LabelFilter};

    use super::*;

    const SHOP: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
status: {phase: Running, podIPs: [{ip: 10.0.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: api-1, namespace: shop, labels: {app: api}}
status: {phase: Running, podIPs: [{ip: 10.0.0.2}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: api, namespace: shop}
spec:
  podSelector: {matchLabels: {app: api}}
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 8080}]}]
";

    #[tokio::test]
    async fn view_of_manifests_has_state_and_declared_edges() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("shop.yaml"), SHOP).unwrap();
        let settings = ViewSettings {
            source: ViewSource::Manifests(folder.path().to_owned()),
            enforcement: Enforcement::Enforce,
            remote: None,
            prefixes: LabelPrefix::defaults(),
            identities: ClusterScheme::new(ClusterName::Configured("c".into()), LabelFilter::default()),
        };
        let (view, _task) = ClusterView::start(settings).unwrap();
        let snapshot = loop {
            match view.full_snapshot() {
                Some(snapshot) => break snapshot,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        assert_eq!((snapshot.state.pod_count(), snapshot.state.policy_count()), (2, 1));
        let name = |text: &str| text.parse::<ObjectName>().unwrap();
        let declares = |port| {
            let traffic = policy::Traffic::Port(policy::Protocol::Tcp, port);
            snapshot.declared.between(&name("shop/web"), &name("shop/api"), traffic)
        };
        assert_eq!(declares(8080), insight::Declaration::Declared { partial: false });
        assert_eq!(declares(8081), insight::Declaration::Undeclared);
    }
}
