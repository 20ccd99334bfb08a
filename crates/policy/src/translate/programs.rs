//! The compiled programs of a node, the pods assigned to them, and their parts of the ruleset.
//!
//! A program is only recompiled when one of its policies changes. Shared objects are reference-counted and removed with
//! the last program that needs them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nft::{Family, Name, NameMap, Ruleset, Set};

use super::Program;
use super::audit::AuditRole;
use super::peer_sets::PeerSets;
use super::plan::Plan;
use super::program_job::Job;
use super::program_objects::{Fragment, SharedSet, compile};
use super::set_contents::Looks;
use super::tiers::{self, TierJob};
use crate::{ClusterState, DirtySet, Enforcement, ObjectName, StateDelta};

#[derive(Debug, Clone, Default)]
pub(super) struct Programs {
    compiled: BTreeMap<Name, CompiledProgram>,
    /// The programs as published in a translation.
    published: NameMap<Program>,
    /// Reference counts of shared objects, by programs.
    needed_by: BTreeMap<Name, usize>,
    peer_sets: PeerSets,
    /// Dirty programs: their pods or policies changed since the last update of the ruleset.
    dirty: DirtySet<Name>,
}

/// The inputs of a program of NetworkPolicies or of cluster policies.
#[derive(Debug, Clone)]
pub(super) enum ProgramJob {
    Policies(Job),
    Tiers(TierJob),
}

#[derive(Debug, Clone)]
struct CompiledProgram {
    job: ProgramJob,
    pods: BTreeSet<ObjectName>,
    /// Empty until the program is compiled.
    added: AddedObjects,
    /// Not compiled yet, or a policy changed since.
    outdated: bool,
}

/// The names of the objects that a program added.
#[derive(Debug, Clone, Default)]
struct AddedObjects {
    own_chains: Vec<Name>,
    own_sets: Vec<Name>,
    chains: Vec<Name>,
    sets: Vec<Name>,
}

impl Programs {
    pub(super) fn published(&self) -> &NameMap<Program> {
        &self.published
    }

    /// Whether there is any program of the role.
    pub(super) fn has(&self, role: AuditRole) -> bool {
        self.compiled.values().any(|program| !program.pods.is_empty() && program.job.role() == role)
    }

    /// Assigns the pod to the job's program. Returns the program's chain.
    pub(super) fn assign(&mut self, pod: &ObjectName, job: ProgramJob) -> Name {
        let chain = job.chain();
        let new = || CompiledProgram {
            job: job.clone(),
            pods: BTreeSet::new(),
            added: AddedObjects::default(),
            outdated: true,
        };
        let program = self.compiled.entry(chain.clone()).or_insert_with(new);
        if !program.job.is_same(&job) {
            (program.job, program.outdated) = (job, true);
        }
        program.pods.insert(pod.clone());
        self.dirty.mark(chain.clone());
        chain
    }

    pub(super) fn withdraw(&mut self, pod: &ObjectName, chain: &Name) {
        if let Some(program) = self.compiled.get_mut(chain) {
            program.pods.remove(pod);
            self.dirty.mark(chain.clone());
        }
    }

    /// Applies a delta to the sets of pod addresses.
    pub(super) fn update(&mut self, sets: &mut NameMap<Set>, state: &ClusterState, changed: &StateDelta) {
        self.peer_sets.update(sets, state, changed);
    }

    /// See [`PeerSets::revocations`].
    pub(super) fn revocations(&self) -> u64 {
        self.peer_sets.revocations()
    }

    /// Updates the ruleset for the dirty programs.
    pub(super) fn reconcile(&mut self, ruleset: &mut Ruleset, families: &BTreeSet<Family>, state: &ClusterState) {
        for chain in self.dirty.take() {
            let Some(mut program) = self.compiled.remove(&chain) else { continue };
            if program.pods.is_empty() {
                self.published.remove(&chain);
                self.remove_objects(ruleset, &program.added, &AddedObjects::default());
                continue;
            }
            if program.outdated {
                let added = self.add_objects(ruleset, fragment(&chain, &program.job, families), state, &NameMap::new());
                self.remove_objects(ruleset, &program.added, &added);
                (program.added, program.outdated) = (added, false);
            }
            if program.job.role() != AuditRole::Pending {
                self.published.insert(chain.clone(), Arc::new(program.publish()));
            }
            self.compiled.insert(chain, program);
        }
    }

    /// Adds all programs to a ruleset without any. `before` are sets of this state that can be reused as filled.
    pub(super) fn rebuild(
        &mut self,
        ruleset: &mut Ruleset,
        families: &BTreeSet<Family>,
        state: &ClusterState,
        before: &NameMap<Set>,
    ) {
        self.dirty.clear();
        self.needed_by.clear();
        let known = std::mem::take(&mut self.peer_sets);
        let reusable: NameMap<Set> =
            before.iter().filter(|(name, _)| known.get(name).is_some()).map(|(n, s)| (n.clone(), s.clone())).collect();
        self.compiled.retain(|_, program| !program.pods.is_empty());
        let deciding = self.compiled.iter().filter(|(_, program)| program.job.role() != AuditRole::Pending);
        self.published = deciding.map(|(chain, program)| (chain.clone(), Arc::new(program.publish()))).collect();
        for (chain, mut program) in std::mem::take(&mut self.compiled) {
            let added = self.add_objects(ruleset, fragment(&chain, &program.job, families), state, &reusable);
            (program.added, program.outdated) = (added, false);
            self.compiled.insert(chain, program);
        }
    }

    fn add_objects(
        &mut self,
        ruleset: &mut Ruleset,
        fragment: Fragment,
        state: &ClusterState,
        reusable: &NameMap<Set>,
    ) -> AddedObjects {
        let Fragment { own_chains, own_sets, chains, sets } = fragment;
        let mut added = AddedObjects {
            own_chains: own_chains.keys().cloned().collect(),
            own_sets: own_sets.keys().cloned().collect(),
            ..AddedObjects::default()
        };
        ruleset.chains.extend(own_chains);
        ruleset.sets.extend(own_sets);
        for (name, chain) in chains {
            if self.acquire(&name) {
                ruleset.chains.insert(name.clone(), chain);
            }
            added.chains.push(name);
        }
        let mut looks = Looks::default();
        for (name, SharedSet { set, peers }) in sets {
            if self.acquire(&name) {
                let set = match (peers, reusable.get(&name)) {
                    (None, _) => Arc::new(set),
                    (Some(peers), reusable) => {
                        let set = reusable.cloned().unwrap_or_else(|| Arc::new(looks.filled(set, &peers, state)));
                        self.peer_sets.add(name.clone(), peers, state.remote().families());
                        set
                    }
                };
                ruleset.sets.insert(name.clone(), set);
            }
            added.sets.push(name);
        }
        added
    }

    /// Increments the reference count. Returns whether it was zero.
    fn acquire(&mut self, name: &Name) -> bool {
        let programs = self.needed_by.entry(name.clone()).or_default();
        *programs += 1;
        *programs == 1
    }

    /// Decrements the reference count. Returns whether it is zero now.
    fn release(&mut self, name: &Name) -> bool {
        let Some(programs) = self.needed_by.get_mut(name) else { return false };
        *programs -= 1;
        let last = *programs == 0;
        if last {
            self.needed_by.remove(name);
        }
        last
    }

    /// Removes objects of the old version of a program that the new version does not have.
    fn remove_objects(&mut self, ruleset: &mut Ruleset, old: &AddedObjects, new: &AddedObjects) {
        for name in old.own_chains.iter().filter(|name| !new.own_chains.contains(name)) {
            ruleset.chains.remove(name);
        }
        for name in old.own_sets.iter().filter(|name| !new.own_sets.contains(name)) {
            ruleset.sets.remove(name);
        }
        for name in &old.chains {
            if self.release(name) {
                ruleset.chains.remove(name);
            }
        }
        for name in &old.sets {
            if self.release(name) {
                ruleset.sets.remove(name);
                self.peer_sets.remove(name);
            }
        }
    }
}

impl CompiledProgram {
    fn publish(&self) -> Program {
        let (direction, policies) = match &self.job {
            ProgramJob::Policies(job) => {
                (job.direction, job.policies.iter().map(|policy| policy.name.clone()).collect())
            }
            ProgramJob::Tiers(job) => (job.direction, job.policies()),
        };
        let pods = self.pods.iter().cloned().collect();
        Program { direction, enforcement: self.job.enforcement(), policies, pods }
    }
}

impl ProgramJob {
    fn role(&self) -> AuditRole {
        match self {
            ProgramJob::Policies(job) => job.role,
            ProgramJob::Tiers(job) => job.role(),
        }
    }

    fn enforcement(&self) -> Enforcement {
        match self {
            ProgramJob::Policies(job) => job.role.enforcement(),
            ProgramJob::Tiers(job) => job.enforcement(),
        }
    }

    fn chain(&self) -> Name {
        match self {
            ProgramJob::Policies(job) => job.chain(),
            ProgramJob::Tiers(job) => job.chain(),
        }
    }

    /// Whether both compile to the same program.
    fn is_same(&self, other: &ProgramJob) -> bool {
        match (self, other) {
            (ProgramJob::Policies(job), ProgramJob::Policies(other)) => job.is_same(other),
            (ProgramJob::Tiers(job), ProgramJob::Tiers(other)) => job.is_same(other),
            (ProgramJob::Policies(_), ProgramJob::Tiers(_)) | (ProgramJob::Tiers(_), ProgramJob::Policies(_)) => false,
        }
    }
}

/// The objects of the job's program; empty if everything is denied, for which there is always a chain.
fn fragment(chain: &Name, job: &ProgramJob, families: &BTreeSet<Family>) -> Fragment {
    let job = match job {
        ProgramJob::Policies(job) => job,
        ProgramJob::Tiers(job) => return tiers::compile(chain, job, families),
    };
    let Job { direction, role, policies, named, reaches_itself: _ } = job;
    match &policies[..] {
        [] => Fragment::default(),
        policies => compile(*direction, *role, chain, &Plan::of(*direction, policies, named), families),
    }
}
