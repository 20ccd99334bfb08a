//! Reporting does not affect verdicts: a ruleset that logs denied packets judges, changes and repairs like one that
//! does not, and elements that packets have added to its sets are left alone.

// Elements added by packets survive every change.
mod recorded;

use kit::kernel_table::{listing_after_netlink, listing_after_text, load_netlink};
use kit::netns::in_new_namespace;
use kit::oracle::Probe;
use nfnetlink::{Kernel, repair};
use nft::{Packet, Ruleset, difference, evaluate};
use policy::{Attachment, AttachmentId, ClusterState, DraftRuleset, Layout, Translation, translate};
use tests::generate::{NODES, draw_probes, draw_worlds};
use tests::objects::state_of;

pub(crate) const GROUP: u16 = 9470;

/// Random clusters, and flows of each.
const CLUSTERS: usize = 150;
const FLOWS: usize = 60;

/// Random clusters whose rulesets are committed to the kernel.
const COMMITTED: usize = 15;

fn layout() -> Layout {
    Layout::for_table("ringfence").expect("a name")
}

fn drafted(state: &ClusterState, node: &str, log_group: Option<u16>) -> DraftRuleset {
    translate(state, node, &layout().logging_to(log_group)).ruleset
}

fn translated(state: &ClusterState, node: &str, log_group: Option<u16>) -> Ruleset {
    drafted(state, node, log_group).in_first_generation()
}

/// The mark of a flow that was approved in an earlier generation.
const STALE: u32 = 0x7fff_0000;

/// The packets of a flow that a ruleset distinguishes.
fn packets(flow: &Probe) -> [Packet; 4] {
    let first = Packet::first(flow.source, flow.destination, flow.protocol, flow.port);
    let approved = layout().first_generation().mark();
    [first.clone(), first.reply(0), first.reply(STALE), first.reply(approved)]
}

#[test]
fn reporting_changes_no_verdict() {
    for world in draw_worlds(CLUSTERS) {
        let (state, flows) = (state_of(&world), draw_probes(&world, FLOWS));
        for node in NODES {
            let [silent, telling] = [None, Some(GROUP)].map(|group| translated(&state, node, group));
            assert_eq!(telling.validate(), [], "{telling}");
            for packet in flows.iter().flat_map(packets) {
                assert_eq!(evaluate(&telling, &packet), evaluate(&silent, &packet), "{packet:?} in\n{telling}");
            }
        }
    }
}

#[test]
fn reporting_moves_no_generation_of_its_own() {
    let states: Vec<ClusterState> = draw_worlds(CLUSTERS).iter().map(state_of).collect();
    let mut counts = [0, 0];
    for pair in states.windows(2) {
        for [from, to] in [[&pair[0], &pair[1]], [&pair[1], &pair[0]], [&pair[0], &pair[0]]] {
            let [silent, telling] = [None, Some(GROUP)]
                .map(|group| drafted(to, NODES[0], group).narrows(&translated(from, NODES[0], group)));
            assert_eq!(
                telling,
                silent,
                "from\n{}to\n{}",
                translated(from, NODES[0], None),
                translated(to, NODES[0], None)
            );
            counts[usize::from(telling)] += 1;
        }
        let [silent, telling] = [None, Some(GROUP)].map(|group| translated(&pair[0], NODES[0], group));
        let draft = drafted(&pair[0], NODES[0], Some(GROUP));
        assert!(!draft.narrows(&silent), "to begin to report takes nothing away");
        assert!(!difference(&silent, &telling).is_empty(), "{telling}");
    }
    println!("{counts:?}");
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
}

#[test]
fn what_does_not_narrow_takes_nothing_away() {
    let worlds = draw_worlds(CLUSTERS);
    let mut widened = 0;
    for world in &worlds {
        let flows = draw_probes(world, FLOWS);
        for left_out in 0..world.policies.len() {
            let mut other = world.clone();
            other.policies.remove(left_out);
            let [with, without] = [world, &other].map(|w| drafted(&state_of(w), NODES[0], Some(GROUP)));
            for (from, to) in [(&with, &without), (&without, &with)] {
                let (draft, from, to) = (to, &from.in_first_generation(), &to.in_first_generation());
                if draft.narrows(from) {
                    continue;
                }
                widened += 1;
                for packet in flows.iter().map(|flow| packets(flow)[0].clone()) {
                    let lost = evaluate(from, &packet).stop != evaluate(to, &packet).stop;
                    let passed = evaluate(from, &packet).stop == nft::Stop::Accepted;
                    assert!(!(lost && passed), "{packet:?} from\n{from}to\n{to}");
                }
            }
        }
    }
    println!("{widened} changes that do not narrow");
    assert!(widened > 100, "{widened}");
}

/// The cluster state after the CNI plugin has reported the pods: every other one is on a bridge.
fn attached(mut state: ClusterState) -> ClusterState {
    let pods: Vec<_> = state.pods().filter(|pod| pod.node.as_deref() == Some(NODES[0])).cloned().collect();
    for (index, pod) in pods.iter().enumerate() {
        let interface = format!("veth{index}");
        state.attach(Attachment {
            id: AttachmentId { container: interface.as_str().into(), interface: "eth0".into() },
            pod: pod.name.clone(),
            uid: Some(pod.uid.to_string().into()),
            addresses: pod.addresses.iter().collect(),
            host_interface: Some(interface.parse().expect("a name")),
            bridged: index % 2 == 0,
            input_interface: None,
            hardware_address: None,
            link_local: vec![],
            since: 1,
        });
    }
    state
}

/// All rulesets of a node, with every option on.
fn whole(state: &ClusterState) -> Vec<Ruleset> {
    let cidrs = ["10.1.0.0/24", "fd00:1::/64"].map(|text| text.parse().expect("a range"));
    let layout = layout().logging_to(Some(GROUP)).denying_unknown(cidrs.to_vec());
    let Translation { ruleset, bridge, .. } = translate(state, NODES[0], &layout);
    [Some(ruleset.in_first_generation()), bridge].into_iter().flatten().collect()
}

#[test]
fn rulesets_with_reporting_read_back_as_committed() {
    let mut bridges = 0;
    for world in draw_worlds(COMMITTED) {
        let rulesets = whole(&attached(state_of(&world)));
        bridges += rulesets.len() - 1;
        for ruleset in rulesets {
            assert_eq!(ruleset.validate(), [], "{ruleset}");
            assert_eq!(listing_after_netlink(&ruleset), listing_after_text(&ruleset), "{ruleset}");
            in_new_namespace(|| {
                load_netlink(&ruleset);
                let observed = Kernel::open().expect("nf_tables").read(&ruleset.table).expect("the table is readable");
                let left: Vec<String> = repair(observed.as_ref(), &ruleset).iter().map(ToString::to_string).collect();
                assert_eq!(left, [""; 0], "{ruleset}");
            });
        }
    }
    assert!(bridges > COMMITTED / 2, "{bridges}");
}
