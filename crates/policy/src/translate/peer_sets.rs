//! The sets of pod addresses that programs look up, updated incrementally with the state.
//!
//! The elements of such a set for an address depend only on the owner of the address: the pod of this cluster or, if
//! there is none, the remote sets that contain it. So a delta is applied per changed address, to the sets that may hold
//! the address: those of the namespaces involved, and those not bound to a single namespace, which include all sets
//! with remote addresses.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use nft::{Datum, Element, Family, Key, Name, NameMap, Set};

use super::address_key;
use super::set_capacity::room_for_peers;
use super::set_contents::{PeerSet, PeersOf};
use super::tier_rules::{NodesByAddress, PeerEnd, nodes_by_address};
use crate::peers::{Namespaces, PodPeer};
use crate::remote::{LabelFamilies, RemoteLabels};
use crate::state::delta::ChangedAddress;
use crate::{ClusterState, Holder, StateDelta};

/// All peer sets, indexed by the namespaces whose pods they may hold.
#[derive(Debug, Clone, Default)]
pub(super) struct PeerSets {
    sets: ByName,
    by_namespace: BTreeMap<Arc<str>, ByName>,
    anywhere: ByName,
    /// The sets that hold remote addresses, with the peers that select these. The peer sets are never empty.
    reaching: BTreeMap<Name, BTreeSet<PodPeer>>,
    /// Addresses that left a set of learned addresses because they expired, while flows to them stay approved.
    lapsed: BTreeSet<IpAddr>,
    /// Counts deltas after which such flows, or flows to a learned address, may be denied.
    revocations: u64,
}

/// Bound of [`PeerSets::lapsed`]: four times the addresses that an agent learns at most. Beyond it all flows are judged
/// again.
const MOST_LAPSED: usize = 65_536;

type ByName = BTreeMap<Name, Arc<PeerSet>>;

/// Whether sets may currently hold an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Membership {
    Nowhere,
    Perhaps,
}

impl PeerSets {
    pub(super) fn get(&self, name: &Name) -> Option<&Arc<PeerSet>> {
        self.sets.get(name)
    }

    pub(super) fn add(&mut self, name: Name, set: PeerSet, families: &LabelFamilies) {
        let set = Arc::new(set);
        if set.has_blocks() {
            self.anywhere.insert(name.clone(), set.clone());
        }
        for peer in set.peers() {
            let sets = match &peer.namespaces {
                Namespaces::Named(namespace) => self.by_namespace.entry(namespace.clone()).or_default(),
                Namespaces::Selected(_) | Namespaces::Every => &mut self.anywhere,
            };
            sets.insert(name.clone(), set.clone());
        }
        let reaching = set.reaching(families);
        if !reaching.is_empty() {
            self.reaching.insert(name.clone(), reaching);
        }
        self.sets.insert(name, set);
    }

    pub(super) fn remove(&mut self, name: &Name) {
        let Some(set) = self.sets.remove(name) else { return };
        self.anywhere.remove(name);
        self.reaching.remove(name);
        for peer in set.peers() {
            if let Namespaces::Named(namespace) = &peer.namespaces
                && let Some(sets) = self.by_namespace.get_mut(namespace)
            {
                sets.remove(name);
                if sets.is_empty() {
                    self.by_namespace.remove(namespace);
                }
            }
        }
    }

    /// The number of deltas that denied flows to learned addresses for another reason than the end of their lifetime.
    pub(super) fn revocations(&self) -> u64 {
        self.revocations
    }

    /// Applies a delta to the sets.
    pub(super) fn update(&mut self, sets: &mut NameMap<Set>, state: &ClusterState, changed: &StateDelta) {
        if self.sets.is_empty() {
            self.lapsed.clear();
            return;
        }
        let mut lapsed = std::mem::take(&mut self.lapsed);
        let mut revokes = false;
        if changed.families {
            let families = state.remote().families();
            let reaching = self.sets.iter().map(|(name, set)| (name.clone(), set.reaching(families)));
            self.reaching = reaching.filter(|(_, peers)| !peers.is_empty()).collect();
        }
        let nodes = match self.anywhere.values().any(|set| set.names_nodes()) {
            true => nodes_by_address(state),
            false => NodesByAddress::new(),
        };
        let mut concerned: BTreeMap<IpAddr, (Membership, BTreeSet<&str>)> = BTreeMap::new();
        for ChangedAddress { address, namespace, fresh } in &changed.addresses {
            // No set holds a newly owned address, unless the delta contains it twice or as a remote address: changes
            // may repeat.
            let nowhere = *fresh && !changed.remote.contains(address);
            let held = if nowhere { Membership::Nowhere } else { Membership::Perhaps };
            let known = concerned.entry(*address).and_modify(|(held, _)| *held = Membership::Perhaps);
            known.or_insert_with(|| (held, BTreeSet::new())).1.insert(namespace);
        }
        for (address, (held, namespaces)) in &mut concerned {
            namespaces.extend(state.contenders(*address).map(|pod| &*pod.namespace));
            let of_namespaces = namespaces.iter().filter_map(|namespace| self.by_namespace.get(*namespace)).flatten();
            // A set that is in both iterators is up to date after the first visit.
            let sets_of_pods = of_namespaces.chain(&self.anywhere);
            revokes |= lapsed.remove(address) | self.reconcile(sets, state, &nodes, *address, *held, sets_of_pods);
        }
        for address in changed.remote.iter().filter(|address| !concerned.contains_key(address)) {
            match changed.families {
                // Also visit sets that no longer reach remote sets, to remove the address.
                true => self.reconcile(sets, state, &nodes, *address, Membership::Perhaps, &self.anywhere),
                false => {
                    let reaching = self.reaching.keys().filter_map(|name| self.sets.get_key_value(name));
                    self.reconcile(sets, state, &nodes, *address, Membership::Perhaps, reaching)
                }
            };
        }
        for namespace in &changed.relabelled {
            for pod in state.pods_in(namespace) {
                for address in state.addresses_of(pod).filter(|address| !concerned.contains_key(address)) {
                    let left = self.reconcile(sets, state, &nodes, address, Membership::Perhaps, &self.anywhere);
                    revokes |= lapsed.remove(&address) | left;
                }
            }
        }
        revokes |= self.update_decided(sets, state, &nodes, changed);
        if changed.nodes {
            self.update_nodes(sets, state);
        }
        if !changed.node_peers.is_empty() {
            let before = lapsed.len();
            lapsed.retain(|address| !state.is_inside(*address));
            revokes |= lapsed.len() != before;
        }
        let named = || self.anywhere.iter().filter(|(_, set)| set.depends_on_names());
        for address in &changed.learned {
            if self.reconcile(sets, state, &nodes, *address, Membership::Perhaps, named()) {
                lapsed.insert(*address);
            }
        }
        if lapsed.len() > MOST_LAPSED {
            lapsed.clear();
            revokes = true;
        }
        self.lapsed = lapsed;
        self.revocations += u64::from(revokes);
    }

    /// Applies the parts of a delta that concern only what cluster policies decide: addresses of nodes, and those of
    /// attached pods whose objects are unknown, of relabelled namespaces. Returns whether an address left a set of
    /// learned addresses.
    fn update_decided(
        &self,
        sets: &mut NameMap<Set>,
        state: &ClusterState,
        nodes: &NodesByAddress<'_>,
        changed: &StateDelta,
    ) -> bool {
        let mut left = false;
        let unknown = state.attachments().filter(|attachment| changed.relabelled.contains(&attachment.pod.namespace));
        for address in unknown.flat_map(|attachment| &attachment.addresses) {
            let beyond_pods = self.anywhere.iter().filter(|(_, set)| set.reaches_beyond_pods());
            left |= self.reconcile(sets, state, nodes, *address, Membership::Perhaps, beyond_pods);
        }
        if changed.node_peers.is_empty() {
            return left;
        }
        for (name, of) in self.anywhere.iter().filter(|(_, set)| set.names_nodes()) {
            let held = sets.get(name).map(|set| set.elements.keys().collect::<Vec<Key>>()).unwrap_or_default();
            let held = held.into_iter().filter_map(|key| match key {
                Key::One(Datum::V4(address)) => Some(IpAddr::V4(address)),
                Key::One(Datum::V6(address)) => Some(IpAddr::V6(address)),
                Key::One(_) | Key::Two(..) | Key::Three(..) | Key::Range(..) => None,
            });
            let learned = state.learned_addresses().filter(|_| of.is_learned());
            let addresses: BTreeSet<IpAddr> = held.chain(nodes.keys().copied()).chain(learned).collect();
            for address in addresses {
                left |= self.reconcile(sets, state, nodes, address, Membership::Perhaps, [(name, of)]);
            }
        }
        left
    }

    /// Updates the sets that depend on the addresses and pod ranges of nodes.
    fn update_nodes(&self, sets: &mut NameMap<Set>, state: &ClusterState) {
        let of_state = self.sets.iter().filter(|(_, set)| matches!(set.of, PeersOf::Known | PeersOf::Outside));
        for (name, PeerSet { family, of }) in of_state.map(|(name, set)| (name, &**set)) {
            let Some(set) = sets.get(name) else { continue };
            let elements = of.elements(state).remove(family).unwrap_or_default();
            if set.elements != elements {
                let set = Arc::make_mut(&mut sets[name]);
                set.size = set.size.map(|_| room_for_peers(elements.len()));
                set.elements = elements;
            }
        }
    }

    /// The keys that the named set must hold for an address in these remote sets.
    fn wanted_of_remote(&self, name: &Name, of: &PeerSet, address: IpAddr, remote: &[&RemoteLabels]) -> Vec<Key> {
        let stands_for = |peer: &PodPeer| remote.iter().any(|set| peer.selects_remote(set));
        match self.reaching.get(name) {
            Some(peers) if peers.iter().any(stands_for) && of.keeps_remote(remote) => vec![address_key(address)],
            Some(_) | None => vec![],
        }
    }

    /// Updates the elements of these sets for the address. Returns whether it left a set of learned addresses.
    fn reconcile<'a>(
        &self,
        sets: &mut NameMap<Set>,
        state: &ClusterState,
        nodes: &NodesByAddress<'_>,
        address: IpAddr,
        held: Membership,
        concerned: impl IntoIterator<Item = (&'a Name, &'a Arc<PeerSet>)>,
    ) -> bool {
        let mut left = false;
        let family = Family::of(address);
        let end = LazyCell::new(|| PeerEnd::of(state, address, nodes));
        let holder = state.holder(address);
        let labels = holder.and_then(Holder::pod).and_then(|pod| state.namespace_labels(&pod.name.namespace));
        let remote: Vec<&RemoteLabels> = state.labelled_remote_sets_with(address).map(|(_, seen)| seen).collect();
        for (name, of) in concerned.into_iter().filter(|(_, of)| of.family == family) {
            let wanted = match (&of.of, holder) {
                (PeersOf::Decided(decided), _) => decided.keys(&end),
                (PeersOf::Known, _) if holder.is_some() || state.is_of_node(address) => vec![address_key(address)],
                (PeersOf::Known, _) => vec![],
                (_, Some(Holder::Pod(pod))) => of.wanted(address, pod, labels),
                (_, Some(Holder::Unknown(_))) => vec![],
                (_, None) => self.wanted_of_remote(name, of, address, &remote),
            };
            // An address that no pod had may be in a set as that of a node.
            if held == Membership::Nowhere && wanted.is_empty() && !of.reaches_beyond_pods() {
                continue;
            }
            let Some(set) = sets.get(name) else { continue };
            let held = of.held(address, &set.elements);
            let gone: Vec<Key> = held.iter().filter(|key| !wanted.contains(key)).copied().collect();
            let come: Vec<Key> = wanted.into_iter().filter(|key| !held.contains(key)).collect();
            if gone.is_empty() && come.is_empty() {
                continue;
            }
            left |= of.is_learned() && !gone.is_empty();
            let set = Arc::make_mut(&mut sets[name]);
            gone.iter().for_each(|key| {
                set.elements.remove(key);
            });
            set.elements.extend(come.into_iter().map(|key| (key, Element::default())));
            set.size = Some(room_for_peers(set.elements.len()));
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use nft::{Family, Ruleset, Set};
    use serde_json::{Value, json};

    use super::super::roles::SetRole;
    use crate::remote::{RemoteChange, RemoteSet};
    use crate::{
        Attachment, AttachmentId, Change, ClusterState, Kind, Layout, ObjectName, StateDelta, Translator, lower,
        translate,
    };

    /// A state with a translator that follows it. After every change, the translation must equal that of a fresh start.
    struct IncrementalTranslation {
        state: ClusterState,
        translator: Translator,
    }

    impl IncrementalTranslation {
        /// A pod of the node with an ingress rule for this peer.
        fn letting_in(peer: Value) -> IncrementalTranslation {
            let layout = Layout::for_table("ringfence").unwrap();
            let mut followed =
                IncrementalTranslation { state: ClusterState::new(), translator: Translator::new("node-a", layout) };
            let metadata = json!({"namespace": "shop", "name": "db"});
            let spec = json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"from": [peer]}]});
            let policy = json!({"apiVersion": "networking.k8s.io/v1", "metadata": metadata, "spec": spec});
            let shop = json!({"metadata": {"name": "shop"}});
            for (kind, object) in [(Kind::Namespace, shop), (Kind::NetworkPolicy, policy)] {
                followed.apply(Change::Set(lower(kind, &object).unwrap()));
            }
            followed.apply(pod("db", "node-a", "10.1.0.1", "Running"));
            followed
        }

        fn check_update(&mut self, changed: StateDelta) {
            self.translator.update(&self.state, &changed);
            let fresh = translate(&self.state, "node-a", &Layout::for_table("ringfence").unwrap());
            assert_eq!(
                self.translator.translation().ruleset.in_first_generation().to_string(),
                fresh.ruleset.in_first_generation().to_string()
            );
        }

        fn apply(&mut self, change: Change) {
            let changed = self.state.apply(change);
            self.check_update(changed);
        }

        fn apply_remote(&mut self, change: RemoteChange) {
            let changed = self.state.apply_remote(change);
            self.check_update(changed);
        }

        /// The IPv4 addresses in the peer's set.
        fn let_in(&self) -> Vec<String> {
            let ruleset = self.translator.translation().ruleset.in_first_generation();
            peer_set(&ruleset).elements.iter().map(|(key, _)| key.to_string()).collect()
        }
    }

    fn peer_set(ruleset: &Ruleset) -> &Set {
        let mut sets = ruleset.sets.iter().filter(|(name, _)| SetRole::of(name) == SetRole::Pods(Family::V4));
        sets.next().map(|(_, set)| &**set).unwrap()
    }

    fn pod(name: &str, node: &str, address: &str, phase: &str) -> Change {
        let object = json!({
            "metadata": {"namespace": "shop", "name": name, "uid": name, "labels": {"app": name}},
            "spec": {"nodeName": node},
            "status": {"phase": phase, "podIP": address},
        });
        Change::Set(lower(Kind::Pod, &object).unwrap())
    }

    fn update(name: &str, adds: &[&str], removes: &[&str]) -> RemoteChange {
        let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        RemoteChange::Update { set: RemoteSet::new("east", "shop", name), adds: parse(adds), removes: parse(removes) }
    }

    #[test]
    fn peer_set_size_depends_on_current_contents_only() {
        let mut followed = IncrementalTranslation::letting_in(api_of_east());
        let addresses: Vec<String> = (0..65).map(|n| format!("10.9.0.{n}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let size = |followed: &IncrementalTranslation| {
            let ruleset = followed.translator.translation().ruleset.in_first_generation();
            peer_set(&ruleset).size
        };
        followed.apply_remote(update("api", &addresses[..64], &[]));
        assert_eq!((followed.let_in().len(), size(&followed)), (64, Some(64)));
        followed.apply_remote(update("api", &addresses[64..], &[]));
        assert_eq!((followed.let_in().len(), size(&followed)), (65, Some(256)));
        followed.apply_remote(update("api", &[], &addresses[..1]));
        assert_eq!((followed.let_in().len(), size(&followed)), (64, Some(64)));
    }

    #[test]
    fn repeated_delta_leaves_peer_set_correct() {
        let mut followed = IncrementalTranslation::letting_in(json!({"podSelector": {"matchLabels": {"app": "web"}}}));
        let mut delta = followed.state.apply(pod("web", "node-b", "10.1.0.2", "Running"));
        followed.check_update(delta.clone());
        assert_eq!(followed.let_in(), ["10.1.0.2"]);
        followed.check_update(delta.clone());
        assert_eq!(followed.let_in(), ["10.1.0.2"]);
        delta.join(followed.state.apply(Change::Remove(Kind::Pod, ObjectName::new("shop", "web"))));
        followed.check_update(delta);
        assert_eq!(followed.let_in(), Vec::<String>::new());
    }

    /// Remote `api` of cluster east, and a local pod of the same name in the cluster's own namespaces.
    fn api_of_east() -> Value {
        json!({
            "namespaceSelector": {"matchLabels": {"semaphore.uw.systems/cluster": "east"}},
            "podSelector": {"matchLabels": {"semaphore.uw.systems/name": "api"}},
        })
    }

    #[test]
    fn peer_set_follows_remote_set_updates() {
        let mut followed = IncrementalTranslation::letting_in(api_of_east());
        followed.apply_remote(update("api", &["10.9.0.1", "10.9.0.2"], &[]));
        followed.apply_remote(update("web", &["10.9.0.2", "10.9.0.3"], &[]));
        assert_eq!(followed.let_in(), ["10.9.0.1", "10.9.0.2"]);
        followed.apply_remote(update("api", &["10.9.0.4"], &["10.9.0.1", "10.9.0.2"]));
        assert_eq!(followed.let_in(), ["10.9.0.4"]);
        let set = RemoteSet::new("east", "other", "api");
        followed.apply_remote(RemoteChange::Replace(vec![(set, vec!["10.9.0.5".parse().unwrap()])]));
        assert_eq!(followed.let_in(), ["10.9.0.5"]);
        followed.apply_remote(RemoteChange::RemoveCluster("west".into()));
        assert_eq!(followed.let_in(), ["10.9.0.5"]);
        followed.apply_remote(RemoteChange::RemoveCluster("east".into()));
        assert_eq!(followed.let_in(), Vec::<String>::new());
    }

    #[test]
    fn local_pod_address_is_remote_only_after_release() {
        let mut followed = IncrementalTranslation::letting_in(api_of_east());
        followed.apply_remote(update("api", &["10.9.0.1", "10.9.0.2"], &[]));
        for (change, expected) in [
            (pod("web", "node-b", "10.9.0.1", "Running"), &["10.9.0.2"][..]),
            (pod("web", "node-b", "10.9.0.2", "Running"), &["10.9.0.1"]),
            (pod("web", "node-b", "10.9.0.2", "Succeeded"), &["10.9.0.1", "10.9.0.2"]),
            (pod("new", "node-a", "10.9.0.2", "Running"), &["10.9.0.1"]),
            (Change::Remove(Kind::Pod, ObjectName::new("shop", "new")), &["10.9.0.1", "10.9.0.2"]),
        ] {
            followed.apply(change);
            assert_eq!(followed.let_in(), expected);
        }
        // Updates of a remote set while a local pod has the address apply once the pod releases the address.
        followed.apply(pod("web", "node-b", "10.9.0.3", "Running"));
        followed.apply_remote(update("api", &["10.9.0.3"], &["10.9.0.2"]));
        assert_eq!(followed.let_in(), ["10.9.0.1"]);
        followed.apply(Change::Replace(Kind::Pod, vec![]));
        assert_eq!(followed.state.remote_sets_with("10.9.0.3".parse().unwrap()).count(), 1);
    }

    #[test]
    fn attached_address_of_unknown_pod_is_not_remote() {
        let mut followed = IncrementalTranslation::letting_in(api_of_east());
        followed.apply_remote(update("api", &["10.9.0.1"], &[]));
        let id = AttachmentId { container: "c".into(), interface: "eth0".into() };
        let changed = followed.state.attach(Attachment {
            id: id.clone(),
            pod: ObjectName::new("shop", "new"),
            uid: None,
            addresses: vec!["10.9.0.1".parse().unwrap()],
            host_interface: None,
            bridged: false,
            input_interface: None,
            hardware_address: None,
            link_local: vec![],
            since: 1,
        });
        followed.check_update(changed);
        assert_eq!(followed.let_in(), Vec::<String>::new());
        let changed = followed.state.detach(&id);
        followed.check_update(changed);
        assert_eq!(followed.let_in(), ["10.9.0.1"]);
    }

    #[test]
    fn local_pod_matching_remote_selector_is_included() {
        let key = "semaphore.uw.systems/cluster";
        let mut followed = IncrementalTranslation::letting_in(json!({
            "namespaceSelector": {"matchExpressions": [{"key": key, "operator": "Exists"}]}
        }));
        followed.apply_remote(update("api", &["10.9.0.1"], &[]));
        followed.apply(pod("web", "node-b", "10.9.0.1", "Running"));
        assert_eq!(followed.let_in(), Vec::<String>::new());
        let shop = json!({"metadata": {"name": "shop", "labels": {key: "here"}}});
        followed.apply(Change::Set(lower(Kind::Namespace, &shop).unwrap()));
        assert_eq!(followed.let_in(), ["10.1.0.1", "10.9.0.1"]);
        followed.apply(Change::Remove(Kind::Pod, ObjectName::new("shop", "web")));
        assert_eq!(followed.let_in(), ["10.1.0.1", "10.9.0.1"]);
    }

    #[test]
    fn selectors_without_required_cluster_exclude_remote_pods() {
        let by_key = |operator: &str, values: Value| {
            let expression = json!({"key": "semaphore.uw.systems/cluster", "operator": operator, "values": values});
            json!({"namespaceSelector": {"matchExpressions": [expression]}})
        };
        let name = json!({"matchLabels": {"semaphore.uw.systems/name": "api"}});
        let namespace = json!({"matchLabels": {"semaphore.uw.systems/namespace": "shop"}});
        let reaching = [
            api_of_east(),
            by_key("In", json!(["west", "east"])),
            by_key("Exists", json!([])),
            json!({"namespaceSelector": {"matchLabels": {"policy.semaphore.uw.io/cluster": "east"}}}),
        ];
        let others = [
            json!({"namespaceSelector": {}}),
            json!({"namespaceSelector": {}, "podSelector": name}),
            json!({"podSelector": name}),
            json!({"namespaceSelector": namespace}),
            by_key("NotIn", json!(["west"])),
            by_key("DoesNotExist", json!([])),
            by_key("In", json!(["west"])),
            json!({"namespaceSelector": {"matchLabels": {"example.com/cluster": "east"}}}),
        ];
        let lets_in = |peer: &Value| {
            let mut followed = IncrementalTranslation::letting_in(peer.clone());
            followed.apply_remote(update("api", &["10.9.0.1"], &[]));
            followed.let_in().contains(&"10.9.0.1".to_owned())
        };
        assert!(reaching.iter().all(lets_in), "{reaching:?}");
        assert!(!others.iter().any(lets_in), "{others:?}");
    }

    #[test]
    fn with_other_prefixes_other_selectors_reach() {
        let mut followed = IncrementalTranslation::letting_in(api_of_east());
        followed.apply_remote(update("api", &["10.9.0.1"], &[]));
        for (prefixes, expected) in
            [(&["example.com"][..], &[][..]), (&["example.com", "semaphore.uw.systems"], &["10.9.0.1"]), (&[], &[])]
        {
            let prefixes = prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect();
            let changed = followed.state.set_remote_prefixes(prefixes);
            assert!(changed.any());
            followed.check_update(changed);
            assert_eq!(followed.let_in(), expected);
        }
    }
}
