//! Index from addresses to records, updated incrementally from the objects, with the delta since the last publication.
//!
//! The table is a function of the current objects, not of the order of events, except for resting numbers
//! ([`crate::numbers`]). The cost of a change depends on the addresses, templates and nodes that it affects.

mod holder;
mod nodes;
mod pods;
mod problems;
mod published;
mod reconcile;
#[cfg(test)]
mod record_cases;
#[cfg(test)]
mod sequences;
#[cfg(test)]
mod shared_address_cases;
mod shared_addresses;
mod table;
mod templates;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ::identity::{LabelFilter, ReservedIdentity, Sid, Space};
use cluster::Problem;
use imbl::OrdMap;
use policy::remote::{LabelPrefix, RemoteChange};
use policy::{Change, ClusterState, DirtySet, Interner, ObjectName, StateDelta};

use crate::exposure::{ExposureChange, Exposures, ReclassifiedPods};
use crate::numbers::Numbers;
use crate::object::{EndpointSlice, Exposure, IdentityPod, WatchedKind, WatchedObject};
use crate::record::Record;
use crate::template::Template;
use crate::version::Sum;
use nodes::Nodes;
use pods::{PodEntry, Pods};
use templates::Templates;

pub use nodes::AgentSelector;
pub use published::{Changes, Identity, ReplacedEntries, Snapshot};
pub use table::IdentityTable;

/// Settings that are fixed for the life of a provider.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Part of every security identity. By default the UID of the namespace `kube-system`.
    pub cluster_id: Arc<str>,
    pub filter: LabelFilter,
    /// True if records include the pod and its node; replicas then have separate records instead of a shared one.
    pub pod_detail: bool,
    /// Selects the agents' pods. Without it every node is considered to have an agent.
    pub agent: Option<AgentSelector>,
    /// The local node: in the records, all other nodes are remote nodes. If `None`, no node is remote.
    pub node: Option<Arc<str>>,
    pub numbers: Space,
}

/// The objects, and the table of addresses derived from them.
#[derive(Debug)]
pub struct Directory {
    settings: Settings,
    state: ClusterState,
    pods: Pods,
    templates: Templates,
    nodes: Nodes,
    exposures: Exposures,
    slices: BTreeMap<ObjectName, Arc<EndpointSlice>>,
    /// Addresses of API servers, from the slices of their Service.
    api_servers: BTreeSet<IpAddr>,
    /// Problems by object, for objects with any.
    problems: BTreeMap<(WatchedKind, ObjectName), Vec<Problem>>,
    numbers: Numbers,
    table: IdentityTable,
    /// Number of records without a security identity, by state.
    reserved: BTreeMap<ReservedIdentity, usize>,
    ids: OrdMap<Sid, Identity>,
    sum: Sum,
    interner: Interner,
    stale: Stale,
    published: Snapshot,
    /// Addresses and identities that may differ from the published snapshot.
    unpublished: UnpublishedChanges,
    resolved: u64,
}

/// Number of identities, and how many of them do not have their home number, which follows from the identity alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberUsage {
    /// Identities that at least one address has.
    pub identities: usize,
    /// Identities, including resting ones, that do not have their home number.
    pub exceptions: usize,
    /// Exceptions without a number, since none is free.
    pub unnumbered: usize,
}

/// Effects of a change on the state that enforcement depends on, for users of [`Directory::state`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StateEffects {
    pub changed: StateDelta,
    /// Existing pods whose workload has changed. For enforcement, their objects may be unchanged.
    pub renamed: BTreeSet<ObjectName>,
    /// True if [`Directory::problems`] has changed.
    pub problems: bool,
}

/// Dirty addresses, templates and nodes, until the table is reconciled with them.
#[derive(Debug, Default)]
struct Stale {
    addresses: DirtySet<IpAddr>,
    /// Templates whose identity or classification may have changed; entries may be duplicated.
    templates: Vec<Arc<Template>>,
    /// Nodes whose own record may have changed.
    nodes: DirtySet<Arc<str>>,
}

#[derive(Debug, Default)]
struct UnpublishedChanges {
    addresses: DirtySet<IpAddr>,
    ids: DirtySet<Sid>,
}

impl Directory {
    pub fn new(settings: Settings) -> Directory {
        Directory {
            numbers: Numbers::new(settings.numbers),
            nodes: Nodes::new(settings.agent.clone()),
            settings,
            state: ClusterState::new(),
            pods: Pods::default(),
            templates: Templates::default(),
            exposures: Exposures::default(),
            slices: BTreeMap::new(),
            api_servers: BTreeSet::new(),
            problems: BTreeMap::new(),
            table: IdentityTable::default(),
            reserved: BTreeMap::new(),
            ids: OrdMap::new(),
            sum: Sum::default(),
            interner: Interner::new(),
            stale: Stale::default(),
            published: Snapshot::default(),
            unpublished: UnpublishedChanges::default(),
            resolved: 0,
        }
    }

    /// Applies a change.
    pub fn apply(&mut self, change: Change<WatchedObject>, now: Instant) -> StateEffects {
        let mut applied = StateEffects::default();
        match change {
            Change::Set(object) => self.set(object, &mut applied),
            Change::Remove(kind, name) => self.remove(kind, &name, &mut applied),
            Change::Replace(kind, objects) => {
                let kept: BTreeSet<&ObjectName> = objects.iter().map(WatchedObject::name).collect();
                let gone: Vec<ObjectName> = self.names(kind).filter(|n| !kept.contains(n)).cloned().collect();
                for name in gone {
                    self.remove(kind, &name, &mut applied);
                }
                for object in objects.into_iter().filter(|object| object.kind() == kind) {
                    self.set(object, &mut applied);
                }
                if kind == WatchedKind::Pod {
                    self.state.pack();
                }
            }
        }
        self.reconcile(now);
        applied
    }

    /// Applies a change of remote sets: addresses of pods of other clusters.
    pub fn apply_remote(&mut self, change: RemoteChange, now: Instant) -> StateEffects {
        let changed = self.state.apply_remote(change);
        self.stale.addresses.extend(changed.remote_addresses());
        self.reconcile(now);
        StateEffects { changed, ..StateEffects::default() }
    }

    /// Sets the label prefixes with which policies select remote sets.
    pub fn set_remote_prefixes(&mut self, prefixes: Vec<LabelPrefix>) -> StateEffects {
        StateEffects { changed: self.state.set_remote_prefixes(prefixes), ..StateEffects::default() }
    }

    /// Releases the numbers whose rest has expired.
    pub fn expire(&mut self, now: Instant) {
        self.reconcile(now);
    }

    /// The next time at which [`Directory::expire`] has an effect.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.numbers.next_expiry()
    }

    /// Namespaces, pods, policies, nodes and remote sets.
    pub fn state(&self) -> &ClusterState {
        &self.state
    }

    /// The workload of a pod, derived from its name if the pod is missing or has finished.
    pub fn workload_of(&self, pod: &policy::Pod) -> Arc<str> {
        let template = self.pods.get(&pod.name).and_then(|known| known.template.as_ref());
        template.map_or(&pod.name.name, |template| &template.workload).clone()
    }

    /// The current record of an address, published or not.
    pub fn record(&self, address: IpAddr) -> Option<&Arc<Record>> {
        self.table.get(address)
    }

    /// Number of times that the owner of an address was resolved, a measure of the cost of all changes so far.
    pub fn resolved(&self) -> u64 {
        self.resolved
    }

    /// The ledger: identities, including resting ones, that do not have their home number. The number is `None` if
    /// there are more identities than numbers.
    pub fn exceptions(&self) -> impl Iterator<Item = (Sid, Option<u32>)> {
        self.numbers.exceptions()
    }

    /// Usage of the numbers.
    pub fn number_usage(&self) -> NumberUsage {
        let (mut exceptions, mut unnumbered) = (0, 0);
        for (_, number) in self.exceptions() {
            exceptions += 1;
            unnumbered += usize::from(number.is_none());
        }
        NumberUsage { identities: self.ids.len(), exceptions, unnumbered }
    }

    /// Addresses whose records have this state.
    pub fn count_in_state(&self, state: ReservedIdentity) -> usize {
        self.reserved.get(&state).copied().unwrap_or(0)
    }

    /// Changes whenever the ledger changes.
    pub fn ledger_revision(&self) -> u64 {
        self.numbers.revision()
    }

    /// Problems of objects besides those of [`ClusterState::problems`].
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.values().flatten()
    }

    fn set(&mut self, object: WatchedObject, applied: &mut StateEffects) {
        let name = object.name().clone();
        let (key, found) = ((object.kind(), name.clone()), problems::of(&object));
        applied.problems |= self.problems.get(&key).map_or(&[][..], Vec::as_slice) != found;
        match found.is_empty() {
            true => self.problems.remove(&key),
            false => self.problems.insert(key, found),
        };
        match object {
            WatchedObject::Namespace(o) => self.apply_namespace(&name, set(policy::Object::Namespace(o)), applied),
            WatchedObject::Policy(o) => applied.changed.join(self.state.apply(set(policy::Object::Policy(o)))),
            WatchedObject::Pod(o) => self.apply_pod(&name, Some(o), applied),
            WatchedObject::Node(o) => {
                applied.changed.join(self.state.apply(set(policy::Object::Node(o.base.clone()))));
                self.nodes.set_object(&name.name, Some(o), &mut self.stale);
            }
            WatchedObject::ClusterPolicy(o) => {
                applied.changed.join(self.state.apply(set(policy::Object::ClusterPolicy(o))))
            }
            WatchedObject::Service(o) => {
                let reclassified = self.exposures.set_service(&name, Some(o));
                self.reclassify(reclassified);
            }
            WatchedObject::EndpointSlice(o) => self.apply_slice(&name, Some(o)),
            WatchedObject::Exposure(o) => self.apply_exposure(o.kind, &name, Some(o)),
        }
    }

    fn remove(&mut self, kind: WatchedKind, name: &ObjectName, applied: &mut StateEffects) {
        applied.problems |= self.problems.remove(&(kind, name.clone())).is_some();
        match kind {
            WatchedKind::Namespace => self.apply_namespace(name, remove(policy::Kind::Namespace, name), applied),
            WatchedKind::NetworkPolicy => {
                applied.changed.join(self.state.apply(remove(policy::Kind::NetworkPolicy, name)))
            }
            WatchedKind::Pod => self.apply_pod(name, None, applied),
            WatchedKind::Node => {
                applied.changed.join(self.state.apply(remove(policy::Kind::Node, name)));
                self.nodes.set_object(&name.name, None, &mut self.stale);
            }
            WatchedKind::ClusterNetworkPolicy => {
                applied.changed.join(self.state.apply(remove(policy::Kind::ClusterNetworkPolicy, name)));
            }
            WatchedKind::Service => {
                let reclassified = self.exposures.set_service(name, None);
                self.reclassify(reclassified);
            }
            WatchedKind::EndpointSlice => self.apply_slice(name, None),
            WatchedKind::Ingress
            | WatchedKind::Gateway
            | WatchedKind::HttpRoute
            | WatchedKind::GrpcRoute
            | WatchedKind::TlsRoute
            | WatchedKind::TcpRoute
            | WatchedKind::UdpRoute => self.apply_exposure(kind, name, None),
        }
    }

    fn names(&self, kind: WatchedKind) -> Box<dyn Iterator<Item = &ObjectName> + '_> {
        match kind {
            WatchedKind::Namespace => Box::new(self.state.namespaces().map(|o| &o.name)),
            WatchedKind::NetworkPolicy => Box::new(self.state.policies().map(|o| &o.name)),
            WatchedKind::Pod => Box::new(self.pods.names()),
            WatchedKind::Node => Box::new(self.state.nodes().map(|o| &o.name)),
            WatchedKind::ClusterNetworkPolicy => Box::new(self.state.cluster_policies().map(|o| &o.name)),
            WatchedKind::Service => Box::new(self.exposures.service_names()),
            WatchedKind::EndpointSlice => Box::new(self.slices.keys()),
            WatchedKind::Ingress
            | WatchedKind::Gateway
            | WatchedKind::HttpRoute
            | WatchedKind::GrpcRoute
            | WatchedKind::TlsRoute
            | WatchedKind::TcpRoute
            | WatchedKind::UdpRoute => Box::new(self.exposures.exposure_names(kind)),
        }
    }

    fn apply_namespace(&mut self, name: &ObjectName, change: Change, applied: &mut StateEffects) {
        let before = self.state.namespace_labels(&name.name).cloned();
        applied.changed.join(self.state.apply(change));
        if self.state.namespace_labels(&name.name) != before.as_ref() {
            self.stale.templates.extend(self.templates.of_namespace(&name.name).cloned());
        }
    }

    fn apply_pod(&mut self, name: &ObjectName, new: Option<Arc<IdentityPod>>, applied: &mut StateEffects) {
        let old = self.pods.get(name).cloned();
        if old.as_ref().map(|known| &known.pod) == new.as_ref() {
            return;
        }
        let new = new.map(|pod| {
            let template = (!pod.base.finished).then(|| self.templates.template_of(&pod));
            PodEntry { pod, template }
        });
        if let (Some(old), Some(new)) = (&old, &new)
            && old.workload() != new.workload()
        {
            applied.renamed.insert(name.clone());
        }
        applied.changed.join(self.state.apply(match &new {
            Some(known) => set(policy::Object::Pod(known.pod.base.clone())),
            None => remove(policy::Kind::Pod, name),
        }));
        for known in [&old, &new].into_iter().flatten() {
            self.stale.addresses.extend(known.pod.base.addresses.iter());
        }
        self.nodes.update_pod(old.as_ref().map(|k| &k.pod), new.as_ref().map(|k| &k.pod), &mut self.stale);
        let before = old.as_ref().and_then(|known| Some((&known.pod, known.template.as_ref()?)));
        let after = new.as_ref().and_then(|known| Some((&known.pod, known.template.as_ref()?)));
        let stale = &mut self.stale.templates;
        match (before, after) {
            (Some((old, of)), Some((new, to))) if of == to => self.templates.exchange(of, old, new),
            (before, after) => {
                // The pod is added to its new template before it is removed from the old one, so that a workload with
                // one pod always has a template.
                if let Some((pod, template)) = after {
                    self.templates.upsert(template, pod, &self.exposures, stale);
                }
                if let Some((pod, template)) = before {
                    self.templates.remove(template, pod, stale);
                }
            }
        }
        match new {
            Some(known) => self.pods.upsert(known),
            None => self.pods.remove(name),
        }
    }

    /// Applies an endpoint slice. Any slice may contain addresses of API servers.
    fn apply_slice(&mut self, name: &ObjectName, new: Option<Arc<EndpointSlice>>) {
        let addresses = |slice: &Option<Arc<EndpointSlice>>| -> BTreeSet<IpAddr> {
            slice.iter().flat_map(|slice| slice.addresses.iter().copied()).collect()
        };
        let added = addresses(&new);
        let old = match new {
            Some(slice) => self.slices.insert(name.clone(), slice),
            None => self.slices.remove(name),
        };
        let removed = addresses(&old);
        self.stale.addresses.extend(added.symmetric_difference(&removed).copied());
        self.api_servers.retain(|address| !removed.contains(address));
        self.api_servers.extend(added);
    }

    fn apply_exposure(&mut self, kind: WatchedKind, name: &ObjectName, new: Option<Arc<Exposure>>) {
        let ExposureChange { reclassified, addresses } = self.exposures.set_exposure(kind, name, new);
        self.stale.addresses.extend(addresses);
        self.reclassify(reclassified);
    }

    fn reclassify(&mut self, reclassified: ReclassifiedPods) {
        for (namespace, selector) in reclassified {
            self.templates.classify(&namespace, &selector, &self.exposures, &mut self.stale.templates);
        }
    }
}

impl StateEffects {
    /// Merges the effects of a later change.
    pub fn join(&mut self, later: StateEffects) {
        let StateEffects { changed, renamed, problems } = later;
        self.changed.join(changed);
        self.renamed.extend(renamed);
        self.problems |= problems;
    }

    /// True if declared edges or problems may have changed.
    pub fn any(&self) -> bool {
        self.changed.any() || !self.renamed.is_empty() || self.problems
    }
}

fn set(object: policy::Object) -> Change {
    Change::Set(object)
}

fn remove(kind: policy::Kind, name: &ObjectName) -> Change {
    Change::Remove(kind, name.clone())
}
