//! Property: any sequence of events ends in the same table as a fresh start with the remaining objects.

use std::collections::BTreeMap;
use std::time::Duration;

use ::identity::ReservedIdentity;
use policy::remote::RemoteSet;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::record_cases::{PodFixture, WEB, namespace, service, settings};
use super::*;
use crate::identity::number_form::tests::NumberTable;
use crate::object::{Exposure, IdentityNode};
use crate::record::RECORDED;
use crate::testing::labels;

/// A few of each, so that events interact.
const NAMESPACES: [&str; 3] = ["shop", "other", "kube-system"];
const PODS: [&str; 8] = [
    "shop/web-1",
    "shop/web-2",
    "shop/db-0",
    "shop/agent",
    "other/web-1",
    "kube-system/etcd-node-a",
    "kube-system/kube-apiserver-node-a",
    "other/agent",
];
const ADDRESSES: [&str; 6] = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "192.0.2.1", "fd00::1", "fd00::a"];
const OWNERS: [&str; 9] = [
    "",
    "ReplicaSet web-77",
    "ReplicaSet web",
    "StatefulSet db",
    "Node node-a",
    "Job web-28912345",
    "DaemonSet agent",
    "DaemonSet etcd",
    "DaemonSet kube-apiserver",
];
type Pairs = &'static [(&'static str, &'static str)];
const LABELS: [Pairs; 6] = [
    &[],
    &[("app", "web"), ("pod-template-hash", "77")],
    &[("app", "web")],
    &[("app", "agent")],
    &[("app", "web"), ("service-identity", "front"), ("tier", "1")],
    &[("kubernetes.io/x", "y"), ("app", "web")],
];
const NAMES: [&str; 3] = ["shop/a", "shop/b", "other/a"];
const KINDS: [WatchedKind; 9] = [
    WatchedKind::Namespace,
    WatchedKind::Pod,
    WatchedKind::NetworkPolicy,
    WatchedKind::Node,
    WatchedKind::Service,
    WatchedKind::EndpointSlice,
    WatchedKind::Ingress,
    WatchedKind::Gateway,
    WatchedKind::HttpRoute,
];
const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];
const SETS: [(&str, &str, &str); 4] =
    [("east", "shop", "web"), ("east", "shop", "api"), ("north", "other", "web"), ("west", "shop", "web")];

#[derive(Debug, Clone)]
enum Event {
    Set(WatchedObject),
    Remove(WatchedKind, ObjectName),
    /// A relist of these objects, and of existing objects at the marked indices.
    Relist(Vec<WatchedObject>, WatchedKind, u32),
    Remote(RemoteChange),
    Minutes(u64),
    Take,
}

fn pods() -> impl Strategy<Value = WatchedObject> {
    let what = (
        select(&PODS[..]),
        select(&OWNERS[..]),
        select(&LABELS[..]),
        prop::collection::vec(select(&ADDRESSES[..]), 0..3),
    );
    let state = (
        select(&["Running", "Running", "Running", "Succeeded", "Pending"][..]),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.7),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.05),
        prop::bool::weighted(0.2),
    );
    (what, state, select(&["node-a", "node-b", ""][..]), 0..3u32, 0..2u32, select(&["1", "2"][..])).prop_map(
        |((name, owner, labels, mut addresses), state, node, started, created, uid)| {
            let (phase, host_network, host_port, ready, terminating, unreadable, failing) = state;
            addresses.sort();
            addresses.dedup();
            let addresses = &addresses;
            let written = PodFixture {
                name,
                owner,
                labels,
                addresses,
                node,
                phase,
                host_network,
                host_port,
                ready,
                failing,
                terminating,
                started,
                created,
                uid,
            };
            let WatchedObject::Pod(pod) = written.object() else { panic!() };
            let base = policy::Pod { unreadable, ..(*pod.base).clone() };
            WatchedObject::Pod(Arc::new(IdentityPod { base: Arc::new(base), ..(*pod).clone() }))
        },
    )
}

fn namespaces() -> impl Strategy<Value = WatchedObject> {
    let what = (select(&NAMESPACES[..]), 0..3u32, prop::bool::weighted(0.2), prop::bool::weighted(0.1));
    what.prop_map(|(name, team, hosts, unreadable)| {
        let mut labels = json!({"team": team.to_string()});
        if hosts {
            labels["ringfence.io/hosted-control-plane"] = "true".into();
        }
        let WatchedObject::Namespace(plain) = namespace(name, labels) else { panic!() };
        WatchedObject::Namespace(Arc::new(policy::Namespace { unreadable, ..(*plain).clone() }))
    })
}

fn others() -> impl Strategy<Value = WatchedObject> {
    let services = (select(&NAMES[..]), select(&LABELS[..]), any::<bool>())
        .prop_map(|(name, selector, exposed)| service(name, selector, exposed));
    let kinds = select(&[WatchedKind::Ingress, WatchedKind::Gateway, WatchedKind::HttpRoute][..]);
    let named = prop::sample::subsequence(&NAMES[..], 0..3);
    let exposures = (kinds, select(&NAMES[..]), named, addresses()).prop_map(|(kind, name, named, addresses)| {
        let services = named.iter().map(|name| name.parse().unwrap()).collect();
        let name = name.parse().unwrap();
        WatchedObject::Exposure(Arc::new(Exposure { kind, name, services, addresses, problems: Box::default() }))
    });
    let slices = (select(&["default/kubernetes", "shop/a"][..]), addresses()).prop_map(|(name, addresses)| {
        let name: ObjectName = name.parse().unwrap();
        let addresses = if &*name.name == "kubernetes" { addresses } else { vec![] };
        WatchedObject::EndpointSlice(Arc::new(EndpointSlice { name, addresses, problems: Box::default() }))
    });
    prop_oneof![services, exposures, slices]
}

/// Sorted and unique.
fn addresses() -> impl Strategy<Value = Vec<IpAddr>> {
    prop::sample::subsequence(&ADDRESSES[..], 0..3).prop_map(|texts| {
        let addresses: BTreeSet<IpAddr> = texts.iter().map(|text| text.parse().unwrap()).collect();
        addresses.into_iter().collect()
    })
}

fn nodes() -> impl Strategy<Value = WatchedObject> {
    (select(&NODES[..]), addresses(), prop::bool::weighted(0.3)).prop_map(|(name, addresses, control_plane)| {
        let entry = |address: &IpAddr| json!({"type": "InternalIP", "address": address});
        let addresses: Vec<_> = addresses.iter().map(entry).collect();
        let object = json!({"metadata": {"name": name}, "status": {"addresses": addresses}});
        let Ok(policy::Object::Node(base)) = policy::lower(policy::Kind::Node, &object) else { panic!() };
        WatchedObject::Node(Arc::new(IdentityNode { base, control_plane }))
    })
}

fn remote_changes() -> impl Strategy<Value = RemoteChange> {
    let set = || select(&SETS[..]).prop_map(|(cluster, namespace, name)| RemoteSet::new(cluster, namespace, name));
    prop_oneof![
        4 => (set(), addresses(), addresses())
            .prop_map(|(set, adds, removes)| RemoteChange::Update { set, adds, removes }),
        1 => prop::collection::vec((set(), addresses()), 0..3).prop_map(RemoteChange::Replace),
        1 => select(&["east", "west"][..]).prop_map(|cluster| RemoteChange::RemoveCluster(cluster.into())),
    ]
}

type RemoteSets = BTreeMap<RemoteSet, BTreeSet<IpAddr>>;

/// Applies a change to the remote sets.
fn apply_change(sets: &mut RemoteSets, change: &RemoteChange) {
    match change {
        RemoteChange::Update { set, adds, removes } => {
            let known = sets.entry(set.clone()).or_default();
            known.retain(|address| !removes.contains(address));
            known.extend(adds);
        }
        RemoteChange::Replace(all) => {
            sets.clear();
            for (set, addresses) in all {
                sets.entry(set.clone()).or_default().extend(addresses);
            }
        }
        RemoteChange::RemoveCluster(cluster) => sets.retain(|set, _| set.cluster != *cluster),
    }
    sets.retain(|_, addresses| !addresses.is_empty());
}

fn objects() -> impl Strategy<Value = WatchedObject> {
    prop_oneof![5 => pods(), 2 => namespaces(), 2 => nodes(), 3 => others()]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => objects().prop_map(Event::Set),
        2 => objects().prop_map(|object| Event::Remove(object.kind(), object.name().clone())),
        1 => (prop::collection::vec(objects(), 0..4), select(&KINDS[..]), any::<u32>())
            .prop_map(|(found, kind, kept)| Event::Relist(found, kind, kept)),
        2 => remote_changes().prop_map(Event::Remote),
        1 => (0..40u64).prop_map(Event::Minutes),
        1 => Just(Event::Take),
    ];
    prop::collection::vec(event, 0..50)
}

fn all_settings() -> impl Strategy<Value = Settings> {
    let spaces = prop_oneof![Just(Space::STANDARD), (1..8u32).prop_map(Space::small)];
    let own_node = prop::option::weighted(0.3, select(&NODES[..]));
    (spaces, prop::bool::weighted(0.2), any::<bool>(), own_node).prop_map(|(numbers, pod_detail, agents, own_node)| {
        let node = own_node.map(Arc::from);
        let agent = AgentSelector { namespace: "shop".into(), labels: labels(&[("app", "agent")]) };
        Settings { numbers, pod_detail, node, agent: agents.then_some(agent), ..settings() }
    })
}

/// All published deltas, applied.
#[derive(Debug, Default, PartialEq)]
struct PublishedRecords {
    table: BTreeMap<IpAddr, Arc<Record>>,
    ids: BTreeMap<Sid, Identity>,
}

impl PublishedRecords {
    fn apply(&mut self, changes: Changes) {
        let Changes { upserts, removes, id_upserts, id_removes, replaced } = changes;
        let mut addresses = upserts.iter().map(|(address, _)| address).chain(&removes);
        assert!(addresses.all(|ip| replaced.records.get(ip) == self.table.get(ip)), "{replaced:?}");
        let sids = || id_upserts.iter().map(|(sid, _)| sid).chain(&id_removes);
        assert!(sids().all(|sid| replaced.ids.get(sid) == self.ids.get(sid)), "{replaced:?}");
        for (address, record) in upserts {
            assert_ne!(self.table.insert(address, record.clone()), Some(record), "published twice");
        }
        for (sid, identity) in id_upserts {
            assert_ne!(self.ids.insert(sid, identity.clone()), Some(identity), "published twice");
        }
        assert!(removes.iter().all(|address| self.table.remove(address).is_some()), "of what is not there");
        assert!(id_removes.iter().all(|sid| self.ids.remove(sid).is_some()), "of what is not there");
    }

    fn of(snapshot: &Snapshot) -> PublishedRecords {
        let Snapshot { table, ids, sum: _ } = snapshot;
        PublishedRecords {
            table: table.iter().map(|(address, record)| (address, record.clone())).collect(),
            ids: ids.iter().map(|(sid, identity)| (*sid, identity.clone())).collect(),
        }
    }
}

/// Checks the invariants of any table.
fn check(directory: &Directory) {
    let snapshot = directory.current();
    let (mut sum, mut references) = (Sum::default(), BTreeMap::<Sid, u32>::new());
    for (address, record) in snapshot.table.iter() {
        sum.add(record.digest_at(address));
        assert_eq!(record.sid.is_none(), record.state.is_some(), "{record:?}");
        match record.sid {
            Some(sid) => {
                assert_eq!(record.num, snapshot.ids[&sid].num);
                *references.entry(sid).or_default() += 1;
            }
            None => assert_eq!(Some(record.num), record.state.map(ReservedIdentity::num)),
        }
    }
    assert_eq!(sum, snapshot.sum);
    for state in RECORDED {
        let count = snapshot.table.iter().filter(|(_, record)| record.state == Some(state)).count();
        assert_eq!(directory.count_in_state(state), count, "{state:?}");
    }
    assert!(
        references.iter().eq(snapshot
            .ids
            .iter()
            .map(|(sid, identity)| (sid, &identity.references))
            .collect::<BTreeMap<_, _>>()
            .iter()
            .map(|(sid, count)| (*sid, *count)))
    );
    for (sid, Identity { namespace, labels, namespace_labels, .. }) in snapshot.ids.iter() {
        assert_eq!(Sid::of("test", namespace, labels, namespace_labels), *sid);
    }
    let nums: Vec<u32> = snapshot.ids.values().map(|identity| identity.num).filter(|num| *num != 0).collect();
    assert_eq!(nums.iter().collect::<BTreeSet<_>>().len(), nums.len(), "numbers are distinct");
}

/// The expected owner of an address, computed from the objects one by one.
#[derive(Debug, PartialEq)]
enum Expected {
    Pod,
    ApiServer,
    Node(BTreeSet<Arc<str>>),
    Ingress,
    Remote(RemoteSet),
    Nobody,
}

fn expected(
    address: IpAddr,
    objects: &BTreeMap<(WatchedKind, ObjectName), WatchedObject>,
    remote: &RemoteSets,
) -> Expected {
    let (mut is_pod, mut is_api_server, mut is_ingress) = (false, false, false);
    let (mut by_object, mut by_pod) = (BTreeSet::new(), BTreeSet::new());
    for object in objects.values() {
        match object {
            WatchedObject::Pod(pod) if pod.base.finished || !pod.base.addresses.iter().any(|own| own == address) => {}
            WatchedObject::Pod(pod) if !pod.base.host_network => is_pod = true,
            WatchedObject::Pod(pod) => {
                let Some(node) = &pod.base.node else { continue };
                by_pod.insert(node.clone());
                is_api_server |= &*pod.base.name.namespace == "kube-system" && &*pod.workload == "kube-apiserver";
            }
            WatchedObject::Node(node) if node.base.addresses.iter().any(|own| own == address) => {
                by_object.insert(node.base.name.name.clone());
            }
            WatchedObject::EndpointSlice(slice) => is_api_server |= slice.addresses.contains(&address),
            WatchedObject::Exposure(exposure) => is_ingress |= exposure.addresses.contains(&address),
            WatchedObject::Node(_)
            | WatchedObject::Namespace(_)
            | WatchedObject::Policy(_)
            | WatchedObject::ClusterPolicy(_)
            | WatchedObject::Service(_) => {}
        }
    }
    let set = remote.iter().find(|(_, addresses)| addresses.contains(&address)).map(|(set, _)| set.clone());
    let nodes = if by_object.is_empty() { by_pod } else { by_object };
    match (is_pod, is_api_server, nodes.is_empty(), is_ingress, set) {
        (true, ..) => Expected::Pod,
        (_, true, ..) => Expected::ApiServer,
        (_, _, false, ..) => Expected::Node(nodes),
        (_, _, _, true, _) => Expected::Ingress,
        (.., Some(set)) => Expected::Remote(set),
        (.., None) => Expected::Nobody,
    }
}

fn check_holders(
    directory: &Directory,
    objects: &BTreeMap<(WatchedKind, ObjectName), WatchedObject>,
    remote: &RemoteSets,
) {
    for address in ADDRESSES.map(|text| text.parse().unwrap()) {
        let record = directory.record(address).map(|record| &**record);
        let found = match (record, record.and_then(|record| record.state)) {
            (None, _) => Expected::Nobody,
            (Some(_), None | Some(ReservedIdentity::Init | ReservedIdentity::Unmanaged)) => Expected::Pod,
            (Some(_), Some(ReservedIdentity::KubeApiserver)) => Expected::ApiServer,
            (Some(record), Some(ReservedIdentity::Host | ReservedIdentity::RemoteNode)) => {
                Expected::Node([record.workload.clone()].into())
            }
            (Some(_), Some(ReservedIdentity::Ingress)) => Expected::Ingress,
            (Some(_), Some(ReservedIdentity::World | ReservedIdentity::Health)) => panic!("{address}: has a record"),
            (Some(record), Some(ReservedIdentity::Remote)) => {
                let cluster = record.detail.as_ref().and_then(|detail| detail.cluster.clone()).unwrap();
                let (namespace, name) = (record.namespace.clone(), record.workload.clone());
                Expected::Remote(RemoteSet { cluster, namespace, name })
            }
        };
        match (&found, expected(address, objects, remote)) {
            (Expected::Node(found), Expected::Node(nodes)) => assert!(found.is_subset(&nodes), "{address}"),
            (found, wanted) => assert_eq!(*found, wanted, "{address}"),
        }
    }
}

proptest! {
    #[test]
    fn any_sequence_ends_where_a_fresh_start_does(settings in all_settings(), events in events()) {
        let mut now = Instant::now();
        let mut directory = Directory::new(settings.clone());
        let mut left: BTreeMap<(WatchedKind, ObjectName), WatchedObject> = BTreeMap::new();
        let (mut published, mut remote) = (PublishedRecords::default(), RemoteSets::new());
        let mut numbers = NumberTable::default();
        for event in events {
            match event {
                Event::Set(object) => {
                    left.insert((object.kind(), object.name().clone()), object.clone());
                    directory.apply(Change::Set(object), now);
                }
                Event::Remove(kind, name) => {
                    left.remove(&(kind, name.clone()));
                    directory.apply(Change::Remove(kind, name), now);
                }
                Event::Relist(found, kind, kept) => {
                    let mut place = 0;
                    left.retain(|(of, _), _| {
                        place += 1;
                        *of != kind || kept & (1 << (place % 32)) != 0
                    });
                    let found = found.into_iter().filter(|object| object.kind() == kind);
                    left.extend(found.map(|object| ((kind, object.name().clone()), object)));
                    let all = left.values().filter(|object| object.kind() == kind).cloned();
                    directory.apply(Change::Replace(kind, all.collect()), now);
                }
                Event::Remote(change) => {
                    apply_change(&mut remote, &change);
                    directory.apply_remote(change, now);
                }
                Event::Minutes(minutes) => {
                    now += Duration::from_secs(60 * minutes);
                    directory.expire(now);
                }
                Event::Take => {
                    let changes = directory.take_changes();
                    numbers.apply_changes(changes.clone());
                    published.apply(changes);
                    prop_assert_eq!(&published, &PublishedRecords::of(directory.published()));
                    prop_assert_eq!(&numbers, &NumberTable::of(directory.published()));
                }
            }
            check(&directory);
            check_holders(&directory, &left, &remote);
        }
        directory.expire(now + crate::numbers::REST);
        let changes = directory.take_changes();
        numbers.apply_changes(changes.clone());
        published.apply(changes);
        prop_assert_eq!(&numbers, &NumberTable::of(directory.published()));

        let mut fresh = Directory::new(settings);
        let remote = remote.into_iter().map(|(set, addresses)| (set, addresses.into_iter().collect()));
        fresh.apply_remote(RemoteChange::Replace(remote.collect()), now);
        for object in left.into_values().rev() {
            fresh.apply(Change::Set(object), now);
        }
        // A fresh start adds and removes identities, too, which may then rest.
        fresh.expire(now + crate::numbers::REST);
        check(&directory);
        prop_assert_eq!(&published, &PublishedRecords::of(&directory.current()));
        prop_assert_eq!(&published, &PublishedRecords::of(&fresh.current()));
        prop_assert_eq!(directory.current().sum, fresh.current().sum);
        prop_assert_eq!(&directory.state, &fresh.state);
        prop_assert_eq!(directory.templates.held(), fresh.templates.held());
        for pod in directory.state.pods() {
            prop_assert_eq!(directory.workload_of(pod), fresh.workload_of(pod));
        }
    }
}

#[test]
fn a_workload_that_moves_keeps_its_record() {
    let mut directory = Directory::new(settings());
    directory.apply(Change::Set(namespace("shop", json!({}))), Instant::now());
    directory.apply(Change::Set(WEB.object()), Instant::now());
    let before = directory.take_changes();
    directory.apply(Change::Set(PodFixture { addresses: &["10.0.0.2"], ..WEB }.object()), Instant::now());
    let after = directory.take_changes();
    assert_eq!(after.removes, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(after.upserts.len(), 1);
    assert!(Arc::ptr_eq(&after.upserts[0].1, &before.upserts[0].1));
    assert!(after.id_upserts.is_empty() && after.id_removes.is_empty());
}
