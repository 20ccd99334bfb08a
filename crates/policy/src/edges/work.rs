//! Applies a delta to classes, peers and terms, and collects the dirty workloads whose edges must be recomputed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::Edges;
use super::classes::{Class, Classes};
use super::remote_matches::TouchedSets;
use super::terms::Terms;
use crate::changed::Noted;
use crate::isolating::Isolating;
use crate::translate::{NamedPorts, resolved_ports};
use crate::{Changed, ClusterState, Direction, ObjectName, Pod, Policy};

#[derive(Debug, Default)]
pub(super) struct Work {
    /// Workloads with classes that were added, removed or have other terms.
    pub(super) dirty: BTreeSet<u32>,
    /// Remote sets whose edges with workloads that are not dirty must be recomputed.
    pub(super) touched_sets: TouchedSets,
    came: BTreeSet<u32>,
    emptied: BTreeSet<u32>,
    /// Peers that lost a user.
    loosened: BTreeSet<u32>,
    /// Cache of terms by their inputs: policies by address, since they are not freed during an update.
    compiled: HashMap<(Direction, Vec<*const Policy>, NamedPorts), Arc<Terms>>,
}

impl Edges {
    pub(super) fn take_in(
        &mut self,
        state: &ClusterState,
        changed: &Changed,
        workload_of: &dyn Fn(&Pod) -> Arc<str>,
        renamed: &BTreeSet<ObjectName>,
    ) -> Work {
        let mut work = Work::default();
        let policies: BTreeSet<&ObjectName> = match self.begun {
            true => changed.policies.iter().map(|policy| &policy.name).collect(),
            false => state.policies().map(|policy| &policy.name).collect(),
        };
        let learnt = self.vocabulary.follow(state, policies);
        let looked_at = |pod: &Pod| {
            pod.labels.keys().any(|key| learnt.keys.contains(key))
                || pod.addresses.iter().any(|address| learnt.blocks.iter().any(|block| block.cidr.contains(&address)))
        };
        let mut pods: BTreeSet<ObjectName> = changed.pods.union(renamed).cloned().collect();
        for Noted { address, .. } in &changed.addresses {
            pods.extend(state.contenders(*address).cloned());
        }
        let begins = !std::mem::replace(&mut self.begun, true);
        if begins {
            pods.clear();
            for pod in state.pods() {
                self.place(state, pod.name.clone(), workload_of, &mut work);
            }
        } else if !learnt.keys.is_empty() || !learnt.blocks.is_empty() {
            pods.extend(state.pods().filter(|pod| looked_at(pod)).map(|pod| pod.name.clone()));
        }
        for name in pods {
            self.place(state, name, workload_of, &mut work);
        }
        self.remove_emptied(&mut work);
        self.find_peers(state, changed, &mut work);
        work.touched_sets = self.remote.follow(state, changed, begins, &self.matches);
        let mut judged = std::mem::take(&mut work.came);
        for policy in &learnt.policies {
            let of_namespace = self.classes.in_namespace(&policy.name.namespace);
            judged.extend(of_namespace.filter(|class| policy.selector.matches(&self.classes.slots[*class].key.labels)));
        }
        for class in judged {
            for direction in Direction::BOTH {
                self.judge(state, class, direction, &mut work);
            }
        }
        for peer in self.matches.sweep(std::mem::take(&mut work.loosened), &mut self.classes) {
            self.remote.remove_peer(peer);
        }
        let Work { dirty, touched_sets, .. } = &mut work;
        touched_sets.retain(|(_, workload, _)| !dirty.contains(workload));
        work
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
            for key in Classes::keys(state, &mut self.vocabulary, pod, workload) {
                let (class, is_new) = self.classes.join(key, pod);
                if is_new {
                    work.came.insert(class);
                    work.dirty.insert(workload);
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
            if self.classes.leave(class) {
                work.emptied.insert(class);
            }
        }
    }

    fn remove_emptied(&mut self, work: &mut Work) {
        for number in std::mem::take(&mut work.emptied) {
            if !self.classes.is_empty(number) {
                continue;
            }
            let Some(mut class) = self.classes.remove(number) else { continue };
            self.matches.discard(number, &mut class);
            for direction in Direction::BOTH {
                self.put_terms(&mut class, direction, None, work);
            }
            self.workloads.slots[class.key.workload].classes.remove(number);
            work.came.remove(&number);
            work.dirty.insert(class.key.workload);
        }
    }

    /// Looks up the peers that select new classes, and classes of relabelled namespaces.
    fn find_peers(&mut self, state: &ClusterState, changed: &Changed, work: &mut Work) {
        let relabelled = changed.relabelled.iter().flat_map(|namespace| self.classes.in_namespace(namespace));
        let numbers: BTreeSet<u32> = relabelled.chain(work.came.iter().copied()).collect();
        for number in numbers {
            let class = &mut self.classes.slots[number];
            let before = (class.peers.clone(), class.ordinary);
            self.matches.find(number, class, &self.vocabulary, state);
            if before != (class.peers.clone(), class.ordinary) {
                work.dirty.insert(class.key.workload);
            }
        }
    }

    /// Updates the terms of the class from its policies.
    fn judge(&mut self, state: &ClusterState, number: u32, direction: Direction, work: &mut Work) {
        let pod = self.classes.slots[number].pod();
        let policies: Vec<Arc<Policy>> = match pod.unreadable {
            true => vec![],
            false => Isolating::of(state, &pod, direction).all().into_iter().cloned().collect(),
        };
        let terms = (pod.unreadable || !policies.is_empty()).then(|| {
            let named = match direction {
                Direction::Egress => NamedPorts::new(),
                Direction::Ingress => resolved_ports(&policies.iter().collect::<Vec<_>>(), &pod),
            };
            let key = (direction, policies.iter().map(Arc::as_ptr).collect(), named);
            let Edges { classes, matches, vocabulary, remote, .. } = self;
            let compile = || {
                let number = |named| {
                    let (number, is_new) = matches.number(named, classes, vocabulary, state);
                    if let Some(peer) = matches.pod_peer(number).filter(|_| is_new) {
                        remote.add_peer(number, peer, state);
                    }
                    number
                };
                Arc::new(Terms::of(direction, &policies, &pod, number))
            };
            work.compiled.entry(key).or_insert_with(compile).clone()
        });
        // Compiling may have added new peers to the class, so the class is cloned only now.
        if self.classes.slots[number].terms(direction) == terms.as_ref() {
            return;
        }
        let mut class = self.classes.slots[number].clone();
        self.put_terms(&mut class, direction, terms, work);
        work.dirty.insert(class.key.workload);
        self.classes.slots[number] = class;
    }

    fn put_terms(&mut self, class: &mut Class, direction: Direction, terms: Option<Arc<Terms>>, work: &mut Work) {
        let workload = class.key.workload;
        for peer in terms.iter().flat_map(|terms| terms.mentioned()) {
            self.matches.used(peer, direction, workload);
        }
        let before = std::mem::replace(&mut class.terms[direction as usize], terms);
        for peer in before.iter().flat_map(|terms| terms.mentioned()) {
            self.matches.unused(peer, direction, workload);
            work.loosened.insert(peer);
        }
    }
}
