//! A copy of the cluster state and the Services that lags behind the event loop's: connections get the policies and
//! names of the time when they began.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use cluster::{ServiceKind, ServiceObject};
use jiff::Timestamp;
use policy::{Change, ClusterState, Kind, Object, SourceObject};

use super::feed::{EnforcedState, Mutation, Progress};
use super::services::ServiceDirectory;

/// Maximum number of changes that wait for earlier connections. Beyond it the oldest change is applied early.
const MOST_WAITING: usize = 4096;

/// Number of applied generations that are remembered.
const GENERATIONS_REMEMBERED: usize = 64;

/// The state as of some time.
#[derive(Default)]
pub(crate) struct Replica {
    state: ClusterState,
    generation: Option<u32>,
    /// When the first state came into force; earlier states are unknown.
    since: Option<Timestamp>,
    /// When the present state came into force.
    present_since: Option<Timestamp>,
    /// Addresses of Node objects.
    nodes: BTreeMap<IpAddr, Arc<str>>,
    services: ServiceDirectory,
    /// Kinds whose initial list was applied.
    listed: BTreeSet<ServiceKind>,
    /// Applied generations.
    applied: VecDeque<u32>,
    /// Sorted by time.
    waiting: VecDeque<ScheduledChange>,
    /// Number of waiting changes that were applied.
    revision: u64,
    /// Number of initial lists of Services, which did not wait.
    first_lists: u64,
}

/// A change that is applied once all earlier connections are attributed.
enum ScheduledChange {
    Commit(EnforcedState),
    /// Changes of Services, and when this process received them.
    Services(Vec<Change<ServiceObject>>, Timestamp),
}

impl ScheduledChange {
    /// Connections that began before this time do not see the change.
    fn before(&self) -> Timestamp {
        match self {
            ScheduledChange::Commit(update) => update.before,
            ScheduledChange::Services(_, at) => *at,
        }
    }

    /// Connections that began at this time or later see the change.
    fn after(&self) -> Timestamp {
        match self {
            ScheduledChange::Commit(update) => update.after,
            ScheduledChange::Services(_, at) => *at,
        }
    }
}

impl Replica {
    pub(crate) fn state(&self) -> &ClusterState {
        &self.state
    }

    /// Generation of approvals at that time; `None` before the first update.
    pub(crate) fn generation(&self) -> Option<u32> {
        self.generation
    }

    /// Whether the replica has the states in force at that time and later. It has none from before the agent's start.
    pub(crate) fn has_state_of(&self, time: Timestamp) -> bool {
        self.since.is_some_and(|since| since <= time)
    }

    /// Whether the present state was in force at that time.
    pub(crate) fn is_at(&self, time: Timestamp) -> bool {
        self.present_since.is_some_and(|since| since <= time)
    }

    /// Whether a state with this generation of approvals was recently applied, or waits.
    pub(crate) fn knows_generation(&self, generation: u32) -> bool {
        self.applied.contains(&generation) || self.awaits_generation(generation)
    }

    pub(crate) fn services(&self) -> &ServiceDirectory {
        &self.services
    }

    /// Number of changes that were applied in order.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// A value that differs between two times if any change was applied in between.
    pub(crate) fn version(&self) -> (u64, u64) {
        (self.revision, self.first_lists)
    }

    /// The node whose object has the address.
    pub(crate) fn node_with(&self, address: IpAddr) -> Option<&Arc<str>> {
        self.nodes.get(&address)
    }

    /// Adds an update, which is applied later.
    pub(crate) fn enqueue(&mut self, update: EnforcedState) {
        self.insert(ScheduledChange::Commit(update));
    }

    /// Adds changes of Services at that time. The initial list of a kind is applied at once: it is not a change, and is
    /// the only source of names for older connections.
    pub(crate) fn enqueue_services(&mut self, changes: Vec<Change<ServiceObject>>, at: Timestamp) {
        let mut later = Vec::new();
        for change in changes {
            let kind = match &change {
                Change::Set(object) => object.kind(),
                Change::Remove(kind, _) | Change::Replace(kind, _) => *kind,
            };
            if self.listed.contains(&kind) {
                later.push(change);
                continue;
            }
            if matches!(change, Change::Replace(..)) {
                self.listed.insert(kind);
            }
            self.services.apply(change);
            self.first_lists += 1;
        }
        if !later.is_empty() {
            self.insert(ScheduledChange::Services(later, at));
        }
    }

    fn insert(&mut self, change: ScheduledChange) {
        let place = self.waiting.partition_point(|earlier| earlier.before() <= change.before());
        self.waiting.insert(place, change);
        if self.waiting.len() > MOST_WAITING {
            self.apply_next();
        }
    }

    /// Applies the changes that were in force by that time.
    pub(crate) fn advance_to(&mut self, time: Timestamp) {
        while self.waiting.front().is_some_and(|change| change.after() <= time) {
            self.apply_next();
        }
    }

    /// Number of waiting changes.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of applied and waiting changes: [`Replica::revision`] once all of them are applied.
    pub(crate) fn announced(&self) -> u64 {
        self.revision + self.waiting.len() as u64
    }

    /// When the first change after this many waiting ones began; `None` if there is none.
    pub(crate) fn commit_behind(&self, updates: usize) -> Option<Timestamp> {
        self.waiting.get(updates).map(ScheduledChange::before)
    }

    /// Whether an update of the generation waits.
    pub(crate) fn awaits_generation(&self, generation: u32) -> bool {
        self.waiting
            .iter()
            .any(|change| matches!(change, ScheduledChange::Commit(update) if update.generation == generation))
    }

    /// Applies changes until only this many wait. Unlike times, their number does not depend on clock changes.
    pub(crate) fn advance_until_waiting(&mut self, left: usize) {
        while self.waiting.len() > left {
            self.apply_next();
        }
    }

    /// Applies the next change if its commit had begun by that time. Returns whether it did.
    pub(crate) fn advance_within_commit(&mut self, time: Timestamp) -> bool {
        let begun = self.waiting.front().is_some_and(|change| change.before() <= time);
        if begun {
            self.apply_next();
        }
        begun
    }

    fn apply_next(&mut self) {
        match self.waiting.pop_front() {
            Some(ScheduledChange::Commit(update)) => self.apply_update(update),
            Some(ScheduledChange::Services(changes, _)) => {
                changes.into_iter().for_each(|change| self.services.apply(change))
            }
            None => return,
        }
        self.revision += 1;
    }

    fn apply_update(&mut self, update: EnforcedState) {
        let EnforcedState { progress, generation, before, after } = update;
        self.since = self.since.or(Some(before));
        self.present_since = Some(after);
        let mut nodes_changed = false;
        match progress {
            Progress::State(state) => (self.state, nodes_changed) = (*state, true),
            Progress::Mutations(mutations) => {
                for mutation in mutations {
                    nodes_changed |= concerns_nodes(&mutation);
                    self.apply(mutation);
                }
            }
        }
        if nodes_changed {
            let addresses = |node: &Arc<policy::Node>| {
                let name = node.name.name.clone();
                node.addresses.iter().map(move |address| (address, name.clone())).collect::<Vec<_>>()
            };
            self.nodes = self.state.nodes().flat_map(addresses).collect();
        }
        if self.generation.replace(generation) != Some(generation) {
            self.applied.push_back(generation);
            if self.applied.len() > GENERATIONS_REMEMBERED {
                self.applied.pop_front();
            }
        }
    }

    fn apply(&mut self, mutation: Mutation) {
        // Nothing needs the delta: attributions are recomputed when the revision differs.
        drop(match mutation {
            Mutation::Object(change) => self.state.apply(change),
            Mutation::Remote(change) => self.state.apply_remote(change),
            Mutation::Attach(attachment) => self.state.attach(attachment),
            Mutation::Detach(id) => self.state.detach(&id),
            Mutation::ReplaceAttachments(attachments) => self.state.replace_attachments(attachments),
            Mutation::Learn(name, address) => self.state.learn(name, address),
            Mutation::RemoveLearned(name, address) => self.state.remove_learned(&name, address),
        });
    }
}

fn concerns_nodes(mutation: &Mutation) -> bool {
    match mutation {
        Mutation::Object(policy::Change::Set(object)) => matches!(object, Object::Node(_)),
        Mutation::Object(policy::Change::Remove(kind, _) | policy::Change::Replace(kind, _)) => *kind == Kind::Node,
        Mutation::Remote(_)
        | Mutation::Attach(_)
        | Mutation::Detach(_)
        | Mutation::ReplaceAttachments(_)
        | Mutation::Learn(..)
        | Mutation::RemoveLearned(..) => false,
    }
}

#[cfg(test)]
mod tests {
    use cluster::Watchable as _;
    use policy::{Interner, ObjectName, lower};
    use serde_json::json;

    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    fn update(name: &str, generation: u32, before: i64, after: i64) -> EnforcedState {
        let object = lower(Kind::Namespace, &json!({"metadata": {"name": name}})).unwrap();
        let progress = Progress::Mutations(vec![Mutation::Object(Change::Set(object))]);
        EnforcedState { progress, generation, before: at(before), after: at(after) }
    }

    fn names(replica: &Replica) -> Vec<String> {
        replica.state().namespaces().map(|namespace| namespace.name.name.to_string()).collect()
    }

    #[test]
    fn updates_apply_when_their_commit_is_past() {
        let mut replica = Replica::default();
        replica.enqueue(update("a", 1, 10, 20));
        replica.enqueue(update("b", 1, 30, 40));
        replica.advance_to(at(19));
        assert_eq!((names(&replica), replica.generation()), (vec![], None));
        replica.advance_to(at(20));
        assert_eq!((names(&replica), replica.generation()), (vec!["a".into()], Some(1)));
        assert!(!replica.advance_within_commit(at(29)));
        assert!(replica.advance_within_commit(at(30)));
        assert_eq!(names(&replica), ["a", "b"]);
    }

    #[test]
    fn replica_finds_queued_updates_by_generation_and_commit() {
        let mut replica = Replica::default();
        for (name, generation) in [("a", 1), ("b", 2), ("c", 2), ("d", 3)] {
            replica.enqueue(update(name, generation, 10, 20));
        }
        replica.advance_until_waiting(2);
        assert_eq!((names(&replica), replica.generation()), (vec!["a".into(), "b".into()], Some(2)));
        assert!(replica.awaits_generation(3) && !replica.awaits_generation(1));
        assert!([1, 2, 3].into_iter().all(|generation| replica.knows_generation(generation)));
        assert!(!replica.knows_generation(9));
        assert_eq!((replica.revision(), replica.announced()), (2, 4));
        assert_eq!((replica.commit_behind(1), replica.commit_behind(2)), (Some(at(10)), None));
    }

    fn service(name: &str) -> ServiceObject {
        let object = json!({
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
        });
        ServiceObject::lower(&mut Interner::new(), ServiceKind::Service, &object).unwrap()
    }

    fn service_name(replica: &Replica) -> Option<String> {
        let found = replica.services().service_port("10.96.0.1".parse().unwrap(), false, 6, 80)?;
        Some(found.name.to_string())
    }

    #[test]
    fn first_list_of_services_applies_at_once() {
        let mut replica = Replica::default();
        let version = replica.version();
        replica.enqueue_services(vec![Change::Replace(ServiceKind::Service, vec![service("old")])], at(50));
        assert_eq!((service_name(&replica), replica.waiting()), (Some("old".into()), 0));
        assert_ne!(replica.version(), version);
        replica.enqueue_services(vec![Change::Replace(ServiceKind::Service, vec![service("new")])], at(60));
        assert_eq!((service_name(&replica), replica.waiting()), (Some("old".into()), 1));
    }

    #[test]
    fn services_change_between_the_commits_of_their_time() {
        let mut replica = Replica::default();
        replica.enqueue_services(vec![Change::Replace(ServiceKind::Service, vec![service("old")])], at(0));
        replica.enqueue(update("a", 1, 10, 20));
        replica.enqueue(update("b", 2, 50, 60));
        let name = service("old").name().clone();
        let changes = vec![Change::Remove(ServiceKind::Service, name), Change::Set(service("new"))];
        replica.enqueue_services(changes, at(30));
        replica.advance_to(at(29));
        assert_eq!((names(&replica), service_name(&replica)), (vec!["a".into()], Some("old".into())));
        replica.advance_to(at(30));
        assert_eq!((names(&replica), service_name(&replica)), (vec!["a".into()], Some("new".into())));
        assert_eq!((replica.revision(), replica.announced()), (2, 3));
        assert!(replica.awaits_generation(2) && replica.knows_generation(1));
    }

    #[test]
    fn addresses_of_nodes_follow_their_objects() {
        let mut replica = Replica::default();
        let node = |address: &str| {
            let object = json!({
                "metadata": {"name": "node-b"},
                "status": {"addresses": [{"type": "InternalIP", "address": address}]},
            });
            lower(Kind::Node, &object).unwrap()
        };
        let mutations = |changes: Vec<Change>| EnforcedState {
            progress: Progress::Mutations(changes.into_iter().map(Mutation::Object).collect()),
            generation: 1,
            before: at(0),
            after: at(0),
        };
        let (old, new) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        replica.enqueue(mutations(vec![Change::Set(node("192.0.2.1"))]));
        replica.advance_to(at(0));
        assert_eq!(replica.node_with(old).map(|name| &**name), Some("node-b"));
        replica.enqueue(mutations(vec![Change::Set(node("192.0.2.2"))]));
        replica.advance_to(at(0));
        assert_eq!((replica.node_with(old), replica.node_with(new).is_some()), (None, true));
        replica.enqueue(mutations(vec![Change::Remove(Kind::Node, ObjectName::new("", "node-b"))]));
        replica.advance_to(at(0));
        assert_eq!(replica.node_with(new), None);
    }
}
