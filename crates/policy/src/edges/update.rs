//! Applies a delta to classes, peers and terms, and collects the dirty workloads whose edges must be recomputed.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::classes::peer_index::Matches;
use super::classes::{Class, Classes, Pods};
use super::remote::{RemoteMatches, Sources, TouchedSets, sets_selected};
use super::terms::{ClassPolicies, ClassTerms, TierRule};
use super::vocabulary::{NodeIndex, Vocabulary};
use super::workloads::WorkloadIndex;
use crate::isolating_policies::IsolatingPolicies;
use crate::remote::RemoteSet;
use crate::state::delta::ChangedAddress;
use crate::translate::{NamedPorts, resolved_ports};
use crate::{
    ClusterPolicy, ClusterState, Direction, DirtySet, NamedPort, ObjectName, Pod, PodScope, Policy, Selection,
    StateDelta, Tier,
};

#[derive(Debug, Default)]
pub(super) struct Work {
    /// Workloads with classes that were added, removed or have other terms.
    pub(super) dirty: DirtySet<u32>,
    /// Workloads whose lines for addresses of no pod must be recomputed.
    pub(super) outside: DirtySet<u32>,
    /// Remote sets whose edges with workloads that are not dirty must be recomputed.
    pub(super) touched_sets: TouchedSets,
    added_classes: BTreeSet<u32>,
    empty_classes: BTreeSet<u32>,
    /// Peers that lost a user.
    released_peers: BTreeSet<u32>,
    /// Cache of terms by their inputs: policies by address, since they are not freed during an update.
    compiled: HashMap<TermsKey, Arc<ClassTerms>>,
}

/// The inputs of terms: the direction, the policies, the ports by which the subject resolves names, and the cluster
/// policies with whether they select it.
type TermsKey = (Direction, Vec<*const Policy>, NamedPorts, Vec<(*const ClusterPolicy, Selection)>, Arc<[NamedPort]>);

/// The values from which edges are computed, kept up with the state.
#[derive(Debug, Clone, Default)]
pub(super) struct EdgeInputs {
    /// The whole state was processed once.
    pub(super) begun: bool,
    vocabulary: Vocabulary,
    pub(super) nodes: NodeIndex,
    pods: Pods,
    pub(super) classes: Classes,
    pub(super) matches: Matches,
    pub(super) workloads: WorkloadIndex,
    remote: RemoteMatches,
}

impl EdgeInputs {
    pub(super) fn apply_delta(
        &mut self,
        state: &ClusterState,
        changed: &StateDelta,
        workload_of: &dyn Fn(&Pod) -> Arc<str>,
        renamed: &BTreeSet<ObjectName>,
    ) -> Work {
        let mut work = Work::default();
        let policies: BTreeSet<&ObjectName> = match self.begun {
            true => changed.policies.iter().map(|policy| &policy.name).collect(),
            false => state.policies().map(|policy| &policy.name).collect(),
        };
        let cluster_policies: BTreeSet<&ObjectName> = match self.begun {
            true => changed.cluster_policies.iter().map(|policy| &policy.name).collect(),
            false => state.cluster_policies().map(|policy| &policy.name).collect(),
        };
        let node_addresses = match self.begun {
            true => self.nodes.update(state, &changed.node_peers),
            false => self.nodes.update(state, state.nodes().map(|node| &node.name.name)),
        };
        let vocabulary_delta = self.vocabulary.update(state, policies, cluster_policies);
        let looked_at = |pod: &Pod| {
            pod.labels.keys().any(|key| vocabulary_delta.keys.contains(key))
                || pod
                    .addresses
                    .iter()
                    .any(|address| vocabulary_delta.blocks.iter().any(|block| block.cidr.contains(&address)))
        };
        let mut pods: BTreeSet<ObjectName> = changed.pods.union(renamed).cloned().collect();
        for address in changed.addresses.iter().map(|ChangedAddress { address, .. }| address).chain(&node_addresses) {
            pods.extend(state.contenders(*address).cloned());
        }
        let begins = !std::mem::replace(&mut self.begun, true);
        if begins {
            pods.clear();
            for pod in state.pods() {
                self.place(state, pod.name.clone(), workload_of, &mut work);
            }
        } else if !vocabulary_delta.keys.is_empty() || !vocabulary_delta.blocks.is_empty() {
            pods.extend(state.pods().filter(|pod| looked_at(pod)).map(|pod| pod.name.clone()));
        }
        for name in pods {
            self.place(state, name, workload_of, &mut work);
        }
        self.remove_emptied(&mut work);
        self.find_peers(state, changed, &mut work);
        work.touched_sets = self.remote.update(state, changed, begins, &self.matches);
        let mut judged = std::mem::take(&mut work.added_classes);
        // Subjects of cluster policies are selected by the labels of namespaces, too.
        judged.extend(changed.relabelled.iter().flat_map(|namespace| self.classes.in_namespace(namespace)));
        for policy in &vocabulary_delta.cluster_policies {
            judged.extend(self.subjects(&policy.subject, state));
        }
        for policy in &vocabulary_delta.policies {
            let of_namespace = self.classes.in_namespace(&policy.name.namespace);
            judged.extend(of_namespace.filter(|class| policy.selector.matches(&self.classes.slots[*class].key.labels)));
        }
        for class in judged {
            for direction in Direction::BOTH {
                self.judge(state, class, direction, &mut work);
            }
        }
        for peer in self.matches.sweep(std::mem::take(&mut work.released_peers), &mut self.classes) {
            self.remote.remove_peer(peer);
        }
        self.find_dependents_of_addresses(state, changed, &node_addresses, &mut work);
        let Work { dirty, touched_sets, .. } = &mut work;
        touched_sets.retain(|(_, workload, _)| !dirty.contains(workload));
        work
    }

    /// The inputs of edges with remote sets.
    pub(super) fn sources<'a>(&'a self, state: &'a ClusterState) -> Sources<'a> {
        let EdgeInputs { classes, workloads, remote, nodes, .. } = self;
        Sources { classes, workloads, remote, nodes, state }
    }

    /// The classes that the subject selects, or may.
    fn subjects(&self, subject: &PodScope, state: &ClusterState) -> Vec<u32> {
        let mut found = Vec::new();
        for (namespace, of_namespace) in self.classes.namespaces() {
            let labels = state.namespace_labels(namespace);
            if Selection::of(&subject.namespaces, labels) != Selection::No {
                let is = |class: &&u32| self.classes.slots[**class].selection(subject, labels) != Selection::No;
                found.extend(of_namespace.iter().filter(is));
            }
        }
        found
    }

    /// Adds the workloads and remote sets whose lines depend on which addresses nodes or remote sets have.
    fn find_dependents_of_addresses(
        &self,
        state: &ClusterState,
        changed: &StateDelta,
        nodes: &BTreeSet<IpAddr>,
        work: &mut Work,
    ) {
        if !nodes.is_empty() {
            work.outside.extend(self.matches.node_peers().flat_map(|peer| self.matches.users(peer, Direction::Egress)));
            let sources = self.sources(state);
            for number in &work.outside {
                let sets = sets_selected(&self.workloads.slots[*number], Direction::Egress, sources);
                work.touched_sets.extend(sets.into_iter().map(|set| (Direction::Egress, *number, set)));
            }
        }
        let names_addresses = |(direction, workload, _): &(Direction, u32, Arc<RemoteSet>)| {
            let classes = self.workloads.slots[*workload].classes.iter().map(|class| &self.classes.slots[*class]);
            classes.filter_map(|class| class.terms(*direction)).any(|terms| terms.names_addresses())
        };
        let with_new_owners = changed.addresses.iter().flat_map(|noted| state.remote().with(noted.address));
        let sets: BTreeSet<&RemoteSet> = with_new_owners.map(|(set, _)| set).chain(&changed.remote_sets).collect();
        let users = self.remote.users_of(&sets, &self.matches);
        work.touched_sets.extend(users.into_iter().filter(names_addresses));
    }

    /// Moves the pod to its current classes.
    fn place(
        &mut self,
        state: &ClusterState,
        name: ObjectName,
        workload_of: &dyn Fn(&Pod) -> Arc<str>,
        work: &mut Work,
    ) {
        let mut numbers = Vec::new();
        let mut placed = None;
        if let Some(pod) = state.pod(&name).filter(|pod| state.addresses_of(pod).next().is_some()) {
            let workload = self.workloads.number(&pod.name.namespace, workload_of(pod));
            for key in Classes::keys(state, &mut self.vocabulary, &self.nodes, pod, workload) {
                let (class, is_new) = self.classes.join(key, pod);
                if is_new {
                    work.added_classes.insert(class);
                    work.dirty.mark(workload);
                    self.workloads.slots[workload].classes.insert(class);
                }
                numbers.push(class);
            }
            numbers.sort_unstable();
            placed = Some(pod.clone());
        }
        let before = match placed {
            Some(pod) => self.pods.upsert(pod, numbers.into()),
            None => self.pods.remove(&name),
        };
        for class in before.iter().flat_map(|before| before.iter()).copied() {
            if self.classes.remove_member(class) {
                work.empty_classes.insert(class);
            }
        }
    }

    fn remove_emptied(&mut self, work: &mut Work) {
        for number in std::mem::take(&mut work.empty_classes) {
            if !self.classes.is_empty(number) {
                continue;
            }
            let Some(mut class) = self.classes.remove(number) else { continue };
            self.matches.discard(number, &mut class);
            for direction in Direction::BOTH {
                self.set_terms(&mut class, direction, None, work);
            }
            self.workloads.slots[class.key.workload].classes.remove(number);
            work.added_classes.remove(&number);
            work.dirty.mark(class.key.workload);
        }
    }

    /// Looks up the peers that select new classes, and classes of relabelled namespaces.
    fn find_peers(&mut self, state: &ClusterState, changed: &StateDelta, work: &mut Work) {
        let relabelled = changed.relabelled.iter().flat_map(|namespace| self.classes.in_namespace(namespace));
        let numbers: BTreeSet<u32> = relabelled.chain(work.added_classes.iter().copied()).collect();
        for number in numbers {
            let class = &mut self.classes.slots[number];
            let before = (class.peers.clone(), class.ordinary);
            self.matches.find(number, class, &self.vocabulary, state);
            if before != (class.peers.clone(), class.ordinary) {
                work.dirty.mark(class.key.workload);
            }
        }
    }

    /// Updates the terms of the class from its policies.
    fn judge(&mut self, state: &ClusterState, number: u32, direction: Direction, work: &mut Work) {
        let pod = self.classes.slots[number].pod();
        let policies: Vec<Arc<Policy>> = match pod.unreadable {
            true => vec![],
            false => IsolatingPolicies::of(state, &pod, direction).all().into_iter().cloned().collect(),
        };
        let cluster_policies: Vec<(Arc<ClusterPolicy>, Selection)> = match pod.unreadable {
            true => vec![],
            false => {
                let of_tier = |tier| state.cluster_policies_for(&pod, tier, direction);
                Tier::BOTH.into_iter().flat_map(of_tier).map(|(policy, is)| (policy.clone(), is)).collect()
            }
        };
        let selecting = ClassPolicies { policies, cluster_policies };
        let ClassPolicies { policies, cluster_policies } = &selecting;
        let terms = (pod.unreadable || !policies.is_empty() || !cluster_policies.is_empty()).then(|| {
            let named = match direction {
                Direction::Egress => NamedPorts::new(),
                Direction::Ingress => resolved_ports(&policies.iter().collect::<Vec<_>>(), &pod),
            };
            let mut rules = cluster_policies.iter().flat_map(|(policy, _)| policy.rules(direction));
            let resolves_names = direction == Direction::Ingress && rules.any(TierRule::resolves_names);
            let key = (
                direction,
                policies.iter().map(Arc::as_ptr).collect(),
                named,
                cluster_policies.iter().map(|(policy, selection)| (Arc::as_ptr(policy), *selection)).collect(),
                if resolves_names { pod.ports.clone() } else { Arc::default() },
            );
            let EdgeInputs { classes, matches, vocabulary, remote, .. } = self;
            let compile = || {
                let number = |named| {
                    let (number, is_new) = matches.number(named, classes, vocabulary, state);
                    if let Some(peer) = matches.pod_peer(number).filter(|_| is_new) {
                        remote.add_peer(number, peer, state);
                    }
                    number
                };
                Arc::new(ClassTerms::of(direction, &selecting, &pod, number))
            };
            work.compiled.entry(key).or_insert_with(compile).clone()
        });
        // Compiling may have added new peers to the class, so the class is cloned only now.
        if self.classes.slots[number].terms(direction) == terms.as_ref() {
            return;
        }
        let mut class = self.classes.slots[number].clone();
        self.set_terms(&mut class, direction, terms, work);
        work.dirty.mark(class.key.workload);
        self.classes.slots[number] = class;
    }

    fn set_terms(&mut self, class: &mut Class, direction: Direction, terms: Option<Arc<ClassTerms>>, work: &mut Work) {
        let workload = class.key.workload;
        for peer in terms.iter().flat_map(|terms| terms.mentioned()) {
            self.matches.used(peer, direction, workload);
        }
        let before = std::mem::replace(&mut class.terms[direction as usize], terms);
        for peer in before.iter().flat_map(|terms| terms.mentioned()) {
            self.matches.unused(peer, direction, workload);
            work.released_peers.insert(peer);
        }
    }
}
