//! The ruleset of a node, kept up with the state at the cost of what changes.
//!
//! A pod elsewhere in the cluster is an element of the peer sets that select it. A pod of this node is a few elements
//! and, if no other pod shares its program, a program. A policy is the programs of the pods that it selects here. The
//! result after any sequence of changes equals that of a fresh start on the same state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use nft::{Family, Hook, InterfaceName, Name, Ruleset};

use super::audit::AuditRole;
use super::edge::{self, EdgeHook, PodPort};
use super::frame::{FrameInput, Judge, discard, dispatch};
use super::layout::{Layout, deny_chain, end_chain};
use super::program_job::Job;
use super::programs::{ProgramJob, Programs};
use super::set_capacity::make_room;
use super::tier_rules::denies_unknown_at_own_node;
use super::tiers::{ProgramHook, TierJob};
use super::{Direction, DraftRuleset, Revocations, Translation, bridge_ports, icmp_errors, tunnels, unknown_addresses};
use crate::state::delta::ChangedAddress;
use crate::{
    ClusterState, Diagnostic, DirtySet, Enforcement, Holder, NodeRanges, ObjectName, Pod, Selection, StateDelta, Tier,
};

/// An incremental translation of the state. It starts empty; [`Translator::begin`] does the initial translation.
#[derive(Debug, Clone)]
pub struct Translator {
    node: Arc<str>,
    layout: Arc<Layout>,
    /// Without a generation: see [`DraftRuleset`].
    ruleset: Ruleset,
    /// The interfaces of the node's pods.
    ports: Vec<PodPort>,
    bridge: Option<Ruleset>,
    edge: Option<Ruleset>,
    /// The address ranges of nodes; `None` while unknown.
    node_ranges: Option<Vec<IpNet>>,
    diagnostics: Arc<[Diagnostic]>,
    /// `None` until the initial translation.
    frame: Option<FrameInput>,
    /// Pods of the node that have an address.
    locals: BTreeMap<ObjectName, Local>,
    on_node: BTreeMap<IpAddr, OnNode>,
    /// The input interfaces of the addresses in `on_node`, if known.
    inputs: BTreeMap<IpAddr, InterfaceName>,
    programs: Programs,
    unknown_pods: UnknownPods,
    /// Translations of the whole state, each of which may deny flows to learned addresses.
    begun: u64,
}

/// Pods that are attached to this node, and whose objects are unknown: any cluster policy may select them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct UnknownPods {
    /// They may not send to this node.
    denied_at_own_node: bool,
    /// They may reach themselves through a Service.
    reach_themselves: bool,
}

impl UnknownPods {
    fn of(state: &ClusterState) -> UnknownPods {
        UnknownPods {
            denied_at_own_node: denies_unknown_at_own_node(state),
            reach_themselves: !state.has_enforced_cluster_policies(),
        }
    }
}

#[derive(Debug, Clone)]
struct Local {
    addresses: Vec<IpAddr>,
    judges: Vec<Judge>,
    /// Its cluster policies have domain names.
    learns: bool,
    /// The chains of all programs that it is assigned to.
    programs: Vec<Name>,
}

/// The owner of an address of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
enum OnNode {
    Pod(ObjectName),
    /// A pod was attached, but its object is unknown: everything is denied.
    Unknown(ObjectName),
}

/// The pods and addresses of this node whose rules are stale.
#[derive(Default)]
struct DirtyPods {
    pods: DirtySet<ObjectName>,
    /// Addresses that may belong to an attached pod whose object is unknown.
    addresses: DirtySet<IpAddr>,
    attachments: bool,
}

impl Translator {
    /// For the node of this name, which is the pods' `spec.nodeName`. The ruleset is empty until [`Translator::begin`].
    pub fn new(node: &str, layout: Layout) -> Translator {
        let empty = FrameInput { families: BTreeSet::new(), audited: false, pending: false };
        Translator {
            node: node.into(),
            ruleset: empty.ruleset(&layout),
            layout: Arc::new(layout),
            ports: vec![],
            bridge: None,
            edge: None,
            node_ranges: None,
            diagnostics: Arc::default(),
            frame: None,
            locals: BTreeMap::new(),
            on_node: BTreeMap::new(),
            inputs: BTreeMap::new(),
            programs: Programs::default(),
            unknown_pods: UnknownPods::default(),
            begun: 0,
        }
    }

    /// Name of the node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The layout that it translates for, with the present own subnets and hook of the interface checks.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether the initial translation is done, so that deltas can be applied.
    pub fn has_begun(&self) -> bool {
        self.frame.is_some()
    }

    /// Translates the whole state, replacing any previous translation.
    pub fn begin(&mut self, state: &ClusterState) {
        let begun = self.begun + 1;
        *self = Translator { begun, ..Translator::new(&self.node, Layout::clone(&self.layout)) };
        self.node_ranges = node_ranges(state);
        self.unknown_pods = UnknownPods::of(state);
        let local = state.pods().filter(|pod| state.is_local(pod, &self.node));
        let dirty = DirtyPods {
            pods: local.map(|pod| pod.name.clone()).collect(),
            addresses: state.attachments().flat_map(|a| a.addresses.iter().copied()).collect(),
            attachments: true,
        };
        self.reconcile(state, &dirty);
        self.diagnostics = state.problems().into();
    }

    /// Applies the delta since the last call. `state` is the state after the changes. `changed` must contain all
    /// changes, and may contain more.
    pub fn update(&mut self, state: &ClusterState, changed: &StateDelta) {
        if !self.has_begun() {
            return self.begin(state);
        }
        self.programs.update(&mut self.ruleset.sets, state, changed);
        if changed.nodes {
            self.node_ranges = node_ranges(state);
            tunnels::place_nodes(&mut self.ruleset, &self.layout, self.node_ranges.as_deref());
        }
        let mut dirty = self.dirty(state, changed);
        if !changed.cluster_policies.is_empty() {
            self.follow_denial_of_unknown(state, &mut dirty);
        }
        if !dirty.is_empty() {
            self.reconcile(state, &dirty);
        }
        if changed.problems {
            self.diagnostics = state.problems().into();
        }
    }

    /// The current translation.
    pub fn translation(&self) -> Translation {
        Translation {
            ruleset: DraftRuleset::new(self.ruleset.clone(), self.layout.clone()),
            bridge: self.bridge.clone(),
            edge: self.edge.clone(),
            programs: self.programs.published().clone(),
            diagnostics: self.diagnostics.clone(),
            pods_on_node: self.locals.len(),
            revocations: Revocations { translations: self.begun, deltas: self.programs.revocations() },
        }
    }

    /// The pods and addresses of this node that a delta affects.
    fn dirty(&self, state: &ClusterState, changed: &StateDelta) -> DirtyPods {
        let is_local = |name: &ObjectName| state.pod(name).is_some_and(|pod| state.is_local(pod, &self.node));
        let here = |name: &ObjectName| self.locals.contains_key(name) || is_local(name);
        let mut dirty = DirtyPods { attachments: changed.attachments, ..DirtyPods::default() };
        dirty.pods.extend(changed.pods.iter().filter(|name| here(name)).cloned());
        for ChangedAddress { address, .. } in &changed.addresses {
            match self.on_node.get(address) {
                Some(OnNode::Pod(name)) => {
                    dirty.pods.mark(name.clone());
                }
                Some(OnNode::Unknown(_)) => {
                    dirty.addresses.mark(*address);
                }
                None => {}
            }
            if let Some(Holder::Unknown(_)) = state.holder(*address) {
                dirty.addresses.mark(*address);
            }
            dirty.pods.extend(state.contenders(*address).filter(|name| here(name)).cloned());
        }
        for policy in &changed.policies {
            let selects = |name: &&ObjectName| state.pod(name).is_some_and(|pod| policy.selector.matches(&pod.labels));
            dirty.pods.extend(self.locals_in(&policy.name.namespace).filter(selects).cloned());
        }
        for policy in &changed.cluster_policies {
            let may_select = |name: &&ObjectName| {
                let labels = state.namespace_labels(&name.namespace);
                state.pod(name).is_some_and(|pod| policy.subject.selects(pod, labels) != Selection::No)
            };
            dirty.pods.extend(self.locals.keys().filter(may_select).cloned());
        }
        // A policy may be removed in the same delta as the labels by which it selected pods.
        let has_cluster_policies = state.cluster_policy_count() > 0 || !changed.cluster_policies.is_empty();
        if has_cluster_policies && changed.node_peers.contains(&*self.node) {
            dirty.pods.extend(self.locals.keys().cloned());
        }
        let relabelled = changed.relabelled.iter().filter(|_| has_cluster_policies);
        for namespace in changed.enforcement.iter().chain(relabelled) {
            dirty.pods.extend(self.locals_in(namespace).cloned());
        }
        dirty
    }

    /// The denial of pods with an unknown object depends on the cluster policies alone.
    fn follow_denial_of_unknown(&mut self, state: &ClusterState, dirty: &mut DirtyPods) {
        let before = std::mem::replace(&mut self.unknown_pods, UnknownPods::of(state));
        if before != self.unknown_pods {
            let unknown = self.on_node.iter().filter(|(_, on_node)| matches!(on_node, OnNode::Unknown(_)));
            dirty.addresses.extend(unknown.map(|(address, _)| *address));
        }
    }

    fn locals_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a ObjectName> {
        let first = ObjectName::new(namespace, "");
        self.locals.range(first..).map(|(name, _)| name).take_while(move |name| *name.namespace == *namespace)
    }

    /// Updates the ruleset for these pods and addresses.
    fn reconcile(&mut self, state: &ClusterState, dirty: &DirtyPods) {
        self.remove_dirty(dirty);
        let mut come = self.upsert(state, dirty);
        let frame = self.wanted_frame();
        if self.frame.as_ref() == Some(&frame) {
            self.programs.reconcile(&mut self.ruleset, &frame.families, state);
        } else {
            // The existing peer sets are up to date and can be reused.
            let before = std::mem::replace(&mut self.ruleset, frame.ruleset(&self.layout));
            self.programs.rebuild(&mut self.ruleset, &frame.families, state, &before.sets);
            tunnels::place_nodes(&mut self.ruleset, &self.layout, self.node_ranges.as_deref());
            come = self.on_node.keys().copied().collect();
            self.frame = Some(frame);
        }
        for address in come {
            let (about, judges) = self.judges_of(address);
            let input = self.inputs.get(&address).copied();
            let learns = self.learns(address);
            dispatch(&mut self.ruleset, address, &about, &judges, input, learns);
        }
        self.place_pod_ports(state);
        make_room(&mut self.ruleset);
    }

    fn remove_dirty(&mut self, dirty: &DirtyPods) {
        for name in &dirty.pods {
            let Some(local) = self.locals.remove(name) else { continue };
            for address in local.addresses {
                self.remove_address(address);
            }
            local.programs.iter().for_each(|chain| self.programs.withdraw(name, chain));
        }
        for address in &dirty.addresses {
            if let Some(OnNode::Unknown(_)) = self.on_node.get(address) {
                self.remove_address(*address);
            }
        }
    }

    fn remove_address(&mut self, address: IpAddr) {
        self.on_node.remove(&address);
        discard(&mut self.ruleset, address, self.inputs.remove(&address));
    }

    /// Adds the elements of the pods' addresses. Returns the new addresses.
    fn upsert(&mut self, state: &ClusterState, dirty: &DirtyPods) -> Vec<IpAddr> {
        let mut come = Vec::new();
        for name in &dirty.pods {
            let Some(pod) = state.pod(name).filter(|pod| state.is_local(pod, &self.node)) else { continue };
            let addresses: Vec<IpAddr> = state.addresses_of(pod).collect();
            if addresses.is_empty() {
                continue;
            }
            let learns = has_domain_names(state, pod);
            let mut local = Local { addresses, judges: vec![], learns, programs: vec![] };
            Direction::BOTH.into_iter().for_each(|direction| self.assign(state, pod, direction, &mut local));
            self.on_node.extend(local.addresses.iter().map(|address| (*address, OnNode::Pod(name.clone()))));
            come.extend(&local.addresses);
            self.locals.insert(name.clone(), local);
        }
        for address in &dirty.addresses {
            if let Some(Holder::Unknown(attachment)) = state.holder(*address) {
                self.on_node.insert(*address, OnNode::Unknown(attachment.pod.clone()));
                come.push(*address);
            }
        }
        let input = |address: &IpAddr| Some((*address, state.attached(*address)?.input_interface?));
        self.inputs.extend(come.iter().filter_map(input));
        come
    }

    /// Assigns the pod to the programs that judge its flows in the direction.
    fn assign(&mut self, state: &ClusterState, pod: &Pod, direction: Direction, local: &mut Local) {
        let mut assign = |job| {
            let chain = self.programs.assign(&pod.name, job);
            local.programs.push(chain.clone());
            chain
        };
        let policies = Job::of(state, pod, direction);
        let own_node = state.node(&self.node).map(|node| &**node);
        let pending =
            TierJob::pending(state, own_node, pod, direction, policies.as_ref().map(|job| job.role)).map(|mut job| {
                job.lead_to(Job::pending(state, pod, direction).map(|job| assign(ProgramJob::Policies(job))));
                assign(ProgramJob::Tiers(job))
            });
        // A pending program evaluates the audited NetworkPolicies, too.
        let policies = policies.filter(|job| job.role == AuditRole::Enforced || pending.is_none());
        let policies = policies.map(|job| (job.role, assign(ProgramJob::Policies(job))));
        // A program of cluster policies leads to that of the NetworkPolicies. At the forward hook an unreadable pod is
        // denied everything.
        let tiers = TierJob::of(state, own_node, pod, direction, policies.clone(), pending);
        let at_own_node = tiers.as_ref().and_then(|job| job.at_own_node(state.node_labels(&self.node)));
        let of_tiers = tiers.filter(|_| !pod.unreadable).into_iter().chain(at_own_node);
        let mut judges: Vec<Judge> = of_tiers
            .map(|job| Judge {
                place: job.place,
                direction,
                enforcement: job.enforcement(),
                chain: assign(ProgramJob::Tiers(job)),
            })
            .collect();
        if judges.iter().all(|judge| judge.place != ProgramHook::Forward) {
            judges.extend(policies.map(|(role, chain)| Judge {
                place: ProgramHook::Forward,
                direction,
                enforcement: role.enforcement(),
                chain,
            }));
        }
        local.judges.extend(judges);
    }

    fn wanted_frame(&self) -> FrameInput {
        let (first, last) = (self.on_node.first_key_value(), self.on_node.last_key_value());
        // IPv4 addresses sort before IPv6 addresses.
        let of_pods = [first, last].into_iter().flatten().map(|(address, _)| Family::of(*address));
        FrameInput {
            families: of_pods.chain(unknown_addresses::families(&self.layout)).collect(),
            audited: self.programs.has(AuditRole::Audited),
            pending: self.programs.has(AuditRole::Pending),
        }
    }

    /// The comment for an address of this node, and the programs that judge its flows.
    fn judges_of(&self, address: IpAddr) -> (String, Vec<Judge>) {
        match self.on_node.get(&address) {
            Some(OnNode::Pod(name)) => {
                let judges = self.locals.get(name).map_or_else(Vec::new, |local| local.judges.clone());
                (name.to_string(), judges)
            }
            Some(OnNode::Unknown(pod)) => {
                let deny = |place, direction| Judge {
                    place,
                    direction,
                    enforcement: Enforcement::Enforce,
                    chain: match self.unknown_pods.reach_themselves {
                        true => end_chain(direction, AuditRole::Enforced),
                        false => deny_chain(direction),
                    },
                };
                let forwarded = Direction::BOTH.map(|direction| deny(ProgramHook::Forward, direction));
                let at_own_node =
                    self.unknown_pods.denied_at_own_node.then(|| deny(ProgramHook::OwnNode, Direction::Egress));
                (format!("{pod}, not known yet"), forwarded.into_iter().chain(at_own_node).collect())
            }
            None => (String::new(), vec![]),
        }
    }

    /// Whether DNS answers to the address are copied.
    fn learns(&self, address: IpAddr) -> bool {
        match self.on_node.get(&address) {
            Some(OnNode::Pod(name)) => self.locals.get(name).is_some_and(|local| local.learns),
            Some(OnNode::Unknown(_)) | None => false,
        }
    }

    /// Updates the rules about the pods' interfaces. What isolated pods receive depends on their bridge ports even if
    /// sources are not checked.
    fn place_pod_ports(&mut self, state: &ClusterState) {
        let isolated = |address: IpAddr, direction: Direction| match self.on_node.get(&address) {
            Some(OnNode::Pod(name)) => self.locals.get(name).is_some_and(|local| {
                local.judges.iter().any(|j| j.direction == direction && j.enforcement == Enforcement::Enforce)
            }),
            Some(OnNode::Unknown(_)) => true,
            None => false,
        };
        let ports = edge::pod_ports(state, isolated);
        let changed = ports != self.ports;
        self.ports = ports;
        edge::place_closed_link_local(&mut self.ruleset, &self.ports);
        if self.layout.checks_sources() {
            self.place_inet_ports();
            self.place_unchecked_pods();
        }
        if changed {
            self.place_ports();
        }
    }

    /// Updates the set of pods whose interfaces are not known.
    fn place_unchecked_pods(&mut self) {
        let checked: BTreeSet<IpAddr> = self.ports.iter().flat_map(|port| port.addresses.iter().copied()).collect();
        let unchecked = self.on_node.keys().filter(|address| !checked.contains(address)).copied().collect();
        icmp_errors::place_unchecked_pods(&mut self.ruleset, &unchecked);
    }

    /// Updates the part of the interface check in the table of family `inet`.
    fn place_inet_ports(&mut self) {
        // Frames to the reserved addresses of a bridge (IEEE 802.1Q, table 8-1) enter by its ports.
        let ports: Vec<&PodPort> = self.ports.iter().collect();
        edge::replace_prerouting(&mut self.ruleset, &self.layout, &ports, Hook::EarlyPrerouting);
    }

    /// Updates the tables of the other families.
    fn place_ports(&mut self) {
        self.bridge = bridge_ports::bridged(&self.layout, &self.ports);
        self.edge = match self.layout.edge_hook() {
            EdgeHook::Ingress if self.layout.checks_sources() => edge::ingress_table(&self.layout, &self.ports),
            EdgeHook::Ingress | EdgeHook::Prerouting => None,
        };
    }

    /// Sets the subnets of the node's interfaces.
    pub fn set_own_subnets(&mut self, subnets: Vec<IpNet>) {
        self.layout = Arc::new(Layout::clone(&self.layout).in_subnets(subnets));
        tunnels::place_nodes(&mut self.ruleset, &self.layout, self.node_ranges.as_deref());
    }

    /// Moves the interface check to the prerouting hooks, for a kernel that refuses chains at interfaces.
    pub fn check_at_prerouting(&mut self) {
        self.change_ports(|layout| layout.with_edge_hook(EdgeHook::Prerouting));
    }

    /// Assumes that bridges call the hooks of IP, for a kernel that refuses [`nft::Match::HasRoute`].
    pub fn assume_hooks_of_bridge(&mut self) {
        self.change_ports(|layout| layout.with_hooks_of_bridge_required(false));
    }

    fn change_ports(&mut self, change: impl FnOnce(Layout) -> Layout) {
        self.layout = Arc::new(change(Layout::clone(&self.layout)));
        if self.layout.checks_sources() {
            self.place_inet_ports();
        }
        self.place_ports();
    }
}

/// Whether a cluster policy, enforced or audited, selects the pod and has domain names.
fn has_domain_names(state: &ClusterState, pod: &Pod) -> bool {
    let of_tier = |tier| state.cluster_policies_for(pod, tier, Direction::Egress);
    let mut policies = Tier::BOTH.into_iter().flat_map(of_tier);
    policies.any(|(policy, _)| policy.egress.iter().any(|rule| rule.domain_names().next().is_some()))
}

fn node_ranges(state: &ClusterState) -> Option<Vec<IpNet>> {
    let NodeRanges { v4, v6 } = state.node_ranges()?;
    Some(v4.into_iter().map(IpNet::V4).chain(v6.into_iter().map(IpNet::V6)).collect())
}

impl DirtyPods {
    fn is_empty(&self) -> bool {
        let DirtyPods { pods, addresses, attachments } = self;
        pods.is_empty() && addresses.is_empty() && !attachments
    }
}
