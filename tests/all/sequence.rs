//! Any sequence of changes, relists and duplicates ends byte for byte in the ruleset of a fresh start, and the
//! committed deltas make the kernel's table equal to it. An incremental translation equals a fresh one after each
//! change.

use std::net::IpAddr;

use kit::netns::in_new_namespace;
use kit::oracle::World;
use nfnetlink::{Kernel, repair};
use nft::{Ruleset, create, difference};
use policy::remote::{LabelPrefix, RemoteChange};
use policy::{
    Attachment, AttachmentId, Change, ClusterState, EdgeHook, Enforcement, Kind, Layout, Object, StateDelta,
    Translation, Translator, translate,
};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use tests::generate::{connected_world, draw_worlds, tiered_world};
use tests::objects::{default_enforcement, label_prefixes, lowered, remote_sets, state_of};

use crate::reporting::GROUP;

const NODE: &str = "node-a";

/// One report of a source that may be stale, ahead, or duplicated.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Set(Index),
    Remove(Index),
    Relist(Kind, usize),
    /// All remote sets of a world.
    Remote(usize),
    /// Adds and removes addresses of a remote set, drawn from all sets.
    Update {
        set: Index,
        adds: Vec<Index>,
        removes: Vec<Index>,
    },
    RemoveCluster(&'static str),
    /// The label prefixes of a world.
    Prefixes(usize),
}

/// A report of a source.
#[derive(Debug, Clone)]
pub(crate) enum StateChange {
    Object(Change),
    Remote(RemoteChange),
    Prefixes(Vec<LabelPrefix>),
    Learn(String, IpAddr),
}

impl StateChange {
    pub(crate) fn apply(self, state: &mut ClusterState) -> StateDelta {
        match self {
            StateChange::Object(change) => state.apply(change),
            StateChange::Remote(change) => state.apply_remote(change),
            StateChange::Prefixes(prefixes) => state.set_remote_prefixes(prefixes),
            StateChange::Learn(name, address) => state.learn(name.into(), address),
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop::sample::select(Kind::ALL.to_vec());
    let some = || prop::collection::vec(any::<Index>(), 0..4);
    prop_oneof![
        6 => any::<Index>().prop_map(Step::Set),
        3 => any::<Index>().prop_map(Step::Remove),
        1 => (kind, 0..3usize).prop_map(|(kind, world)| Step::Relist(kind, world)),
        1 => (0..3usize).prop_map(Step::Remote),
        4 => (any::<Index>(), some(), some()).prop_map(|(set, adds, removes)| Step::Update { set, adds, removes }),
        1 => prop::sample::select(vec!["east", "west"]).prop_map(Step::RemoveCluster),
        1 => (0..3usize).prop_map(Step::Prefixes),
    ]
}

/// Three worlds with overlapping names, of which some have remote sets and others cluster policies, the steps between
/// them, and the order of the last world's relists.
pub(crate) fn story() -> impl Strategy<Value = (Vec<World>, Vec<Step>, Vec<Kind>)> {
    let worlds = prop::collection::vec(prop_oneof![connected_world(), tiered_world()], 3);
    let steps = prop::collection::vec(step(), 0..40);
    (worlds, steps, Just(Kind::ALL.to_vec()).prop_shuffle())
}

fn of_kind(objects: &[Object], kind: Kind) -> Vec<Object> {
    objects.iter().filter(|o| o.kind() == kind).cloned().collect()
}

/// The change of a remote set of some world, with addresses of any world.
fn update(worlds: &[World], set: &Index, adds: &[Index], removes: &[Index]) -> Option<StateChange> {
    let sets: Vec<_> = worlds.iter().flat_map(|world| &world.remote).flat_map(remote_sets).collect();
    let addresses: Vec<IpAddr> = sets.iter().flat_map(|(_, addresses)| addresses.iter().copied()).collect();
    let chosen = |indexes: &[Index]| indexes.iter().map(|index| *index.get(&addresses)).collect();
    let (set, _) = (!sets.is_empty()).then(|| set.get(&sets).clone())?;
    Some(StateChange::Remote(RemoteChange::Update { set, adds: chosen(adds), removes: chosen(removes) }))
}

pub(crate) fn changes(worlds: &[World], steps: &[Step], order: &[Kind]) -> Vec<StateChange> {
    let remote = |world: usize| worlds[world].remote.clone().unwrap_or_default();
    let prefixes = |world: usize| match &worlds[world].remote {
        Some(remote) => StateChange::Prefixes(label_prefixes(remote)),
        None => StateChange::Prefixes(LabelPrefix::defaults()),
    };
    let objects: Vec<Vec<Object>> = worlds.iter().map(lowered).collect();
    let all: Vec<Object> = objects.iter().flatten().cloned().collect();
    let mut changes: Vec<StateChange> = steps
        .iter()
        .filter_map(|step| match step {
            Step::Set(index) => Some(StateChange::Object(Change::Set(index.get(&all).clone()))),
            Step::Remove(index) => {
                let object = index.get(&all);
                Some(StateChange::Object(Change::Remove(object.kind(), object.name().clone())))
            }
            Step::Relist(kind, world) => {
                Some(StateChange::Object(Change::Replace(*kind, of_kind(&objects[*world], *kind))))
            }
            Step::Remote(world) => Some(StateChange::Remote(RemoteChange::Replace(remote_sets(&remote(*world))))),
            Step::Update { set, adds, removes } => update(worlds, set, adds, removes),
            Step::RemoveCluster(cluster) => Some(StateChange::Remote(RemoteChange::RemoveCluster((*cluster).into()))),
            Step::Prefixes(world) => Some(prefixes(*world)),
        })
        .collect();
    let settled = order.iter().map(|kind| StateChange::Object(Change::Replace(*kind, of_kind(&objects[2], *kind))));
    changes.extend(settled);
    changes.extend([StateChange::Remote(RemoteChange::Replace(remote_sets(&remote(2)))), prefixes(2)]);
    changes.extend(worlds[2].learned.iter().map(|(name, address)| StateChange::Learn(name.clone(), *address)));
    changes
}

/// Logs denied packets, which adds chains, rules and sets, and changes nothing else.
fn layout() -> Layout {
    Layout::for_table("ringfence").unwrap().logging_to(Some(GROUP))
}

fn ruleset(state: &ClusterState) -> Ruleset {
    translate(state, NODE, &layout()).ruleset.in_first_generation()
}

#[test]
fn change_sequence_ends_in_ruleset_of_fresh_start() {
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let checked = runner.run(&story(), |(worlds, steps, order)| {
        let mut state = ClusterState::new();
        state.set_default_enforcement(default_enforcement(&worlds[2]));
        for change in changes(&worlds, &steps, &order) {
            let before = state.clone();
            let changed = change.apply(&mut state).any();
            prop_assert_eq!(changed, state != before, "apply says whether anything is different");
        }
        let fresh = state_of(&worlds[2]);
        prop_assert_eq!(ruleset(&state).to_string(), ruleset(&fresh).to_string());
        prop_assert_eq!(state, fresh);
        Ok(())
    });
    if let Err(failure) = checked {
        panic!("{failure}");
    }
}

/// A change of a node's attachments between two changes of objects.
#[derive(Debug, Clone)]
enum Link {
    /// A pod is attached, or one of its name with an unknown UID; the number chooses the interface.
    Attach {
        pod: Index,
        known: bool,
        interface: u8,
        bridged: bool,
    },
    Detach(Index),
    /// The folder is reread and has only some attachments left.
    Reread(Vec<bool>),
}

fn link() -> impl Strategy<Value = Link> {
    let attach = (any::<Index>(), prop::bool::weighted(0.8), 0..4_u8, any::<bool>());
    prop_oneof![
        4 => attach.prop_map(|(pod, known, interface, bridged)| Link::Attach { pod, known, interface, bridged }),
        2 => any::<Index>().prop_map(Link::Detach),
        1 => prop::collection::vec(any::<bool>(), 8).prop_map(Link::Reread),
    ]
}

/// The numbers of attachments follow their order.
fn carry_out(link: &Link, number: u64, objects: &[Object], state: &mut ClusterState) -> StateDelta {
    let attachments: Vec<Attachment> = state.attachments().map(|a| (**a).clone()).collect();
    match link {
        Link::Attach { pod, known, interface, bridged } => {
            let pods: Vec<&policy::Pod> = objects.iter().filter_map(pod_of).collect();
            if pods.is_empty() {
                return StateDelta::default();
            }
            let pod = pod.get(&pods);
            state.attach(Attachment {
                id: AttachmentId { container: format!("c{}", number % 5).as_str().into(), interface: "eth0".into() },
                pod: pod.name.clone(),
                uid: (!known).then(|| "somebody else".into()),
                addresses: pod.addresses.iter().collect(),
                host_interface: nft::InterfaceName::new(&format!("veth{interface}")).ok(),
                bridged: *bridged,
                input_interface: match (bridged, interface) {
                    (true, _) => nft::InterfaceName::new("cni0").ok(),
                    (false, 0) => None,
                    (false, interface) => nft::InterfaceName::new(&format!("veth{interface}")).ok(),
                },
                hardware_address: interface
                    .is_multiple_of(2)
                    .then_some(nft::HardwareAddress([2, 0, 0, 0, 0, *interface])),
                link_local: vec![],
                since: number,
            })
        }
        Link::Detach(_) if attachments.is_empty() => StateDelta::default(),
        Link::Detach(index) => state.detach(&index.get(&attachments).id),
        Link::Reread(kept) => {
            let kept = attachments.into_iter().zip(kept.iter().cycle()).filter(|(_, kept)| **kept);
            state.replace_attachments(kept.map(|(attachment, _)| attachment).collect())
        }
    }
}

fn pod_of(object: &Object) -> Option<&policy::Pod> {
    match object {
        Object::Pod(pod) => Some(pod),
        Object::Namespace(_) | Object::Policy(_) | Object::Node(_) | Object::ClusterPolicy(_) => None,
    }
}

#[test]
fn incremental_translation_equals_fresh_one_after_every_change() {
    let denying = layout().denying_unknown(vec!["10.1.0.0/24".parse().unwrap()]);
    let fallback = layout().with_edge_hook(EdgeHook::Prerouting);
    let layouts = [layout(), denying, layout().checking_sources(false), fallback];
    let drawn = (story(), prop::collection::vec(link(), 0..30), prop::sample::select(layouts.to_vec()), 1..4_usize);
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let checked = runner.run(&drawn, |((worlds, steps, order), links, layout, together)| {
        let objects: Vec<Object> = worlds.iter().flat_map(lowered).collect();
        let (mut state, mut translator) = (ClusterState::new(), Translator::new(NODE, layout.clone()));
        state.set_default_enforcement(default_enforcement(&worlds[2]));
        let (mut links, mut changed) = (links.iter().zip(1..), StateDelta::default());
        for (number, change) in changes(&worlds, &steps, &order).into_iter().enumerate() {
            changed.join(change.apply(&mut state));
            if let Some((link, number)) = links.next() {
                changed.join(carry_out(link, number, &objects, &mut state));
            }
            // Several changes may be applied at once.
            if number % together == 0 {
                translator.update(&state, &std::mem::take(&mut changed));
                let (followed, fresh) = (translator.translation(), translate(&state, NODE, &layout));
                prop_assert_eq!(
                    followed.ruleset.in_first_generation().to_string(),
                    fresh.ruleset.in_first_generation().to_string()
                );
                prop_assert_eq!(followed.ruleset.in_first_generation(), fresh.ruleset.in_first_generation());
                prop_assert_eq!(&followed.bridge, &fresh.bridge);
                prop_assert_eq!(&followed.edge, &fresh.edge);
                prop_assert_eq!(&followed.programs, &fresh.programs);
                prop_assert_eq!(&followed.diagnostics, &fresh.diagnostics);
                prop_assert_eq!(followed.pods_on_node, fresh.pods_on_node);
            }
        }
        Ok(())
    });
    if let Err(failure) = checked {
        panic!("{failure}");
    }
}

/// The world after all its policies got the same enforcement annotation.
fn saying(world: &World, enforcement: &str) -> World {
    let mut world = world.clone();
    for policy in &mut world.policies {
        policy["metadata"]["annotations"] = serde_json::json!({"ringfence.io/enforcement": enforcement});
    }
    world
}

#[test]
fn enforcing_audited_policies_moves_the_generation() {
    let mut moved = 0;
    for world in draw_worlds(200) {
        let [audited, enforced] =
            ["audit", "enforce"].map(|word| translate(&state_of(&saying(&world, word)), NODE, &layout()));
        let programs = |translation: &Translation, enforcement: Enforcement| {
            translation.programs.values().filter(|program| program.enforcement == enforcement).count()
        };
        let judging = programs(&enforced, Enforcement::Enforce);
        assert_eq!(programs(&audited, Enforcement::Audit), judging, "in {world:?}");
        assert_eq!(programs(&enforced, Enforcement::Audit), 0);
        assert_eq!(programs(&audited, Enforcement::Enforce), 0);
        let in_force = audited.ruleset.in_first_generation();
        let operations = difference(&in_force, &enforced.ruleset.in_first_generation());
        assert_eq!(operations.is_empty(), judging == 0);
        assert_eq!(enforced.ruleset.narrows(&in_force), judging != 0, "in {world:?}");
        moved += usize::from(judging != 0);
    }
    assert!(moved > 100, "{moved}");
}

#[test]
fn committed_differences_leave_kernel_equal_to_ruleset() {
    let config = Config { cases: 25, max_shrink_iters: 200, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let checked = runner.run(&story(), |(worlds, steps, order)| {
        in_new_namespace(|| {
            let mut kernel = Kernel::open().expect("nf_tables, as root");
            let mut state = ClusterState::new();
            state.set_default_enforcement(default_enforcement(&worlds[2]));
            let mut live = ruleset(&state);
            let mut generation = kernel.generation().expect("the generation");
            generation = kernel.commit(&create(&live), generation).expect("the first commit").generation;
            for change in changes(&worlds, &steps, &order) {
                change.apply(&mut state);
                let wanted = ruleset(&state);
                let operations = difference(&live, &wanted);
                if !operations.is_empty() {
                    let committed = kernel.commit(&operations, generation);
                    generation = committed.map_err(|e| TestCaseError::fail(e.to_string()))?.generation;
                }
                let observed = kernel.read(&wanted.table).expect("reading the table");
                let left: Vec<String> = repair(observed.as_ref(), &wanted).iter().map(ToString::to_string).collect();
                prop_assert_eq!(left, Vec::<String>::new());
                live = wanted;
            }
            Ok(())
        })
    });
    if let Err(failure) = checked {
        panic!("{failure}");
    }
}
