//! The source check of pods in the kernel: read back as committed, and equal to the same rules loaded from text.

use kit::kernel_table::{listing_after_netlink, listing_after_text, load_netlink};
use kit::netns::in_new_namespace;
use nfnetlink::{Kernel, repair};
use policy::{Attachment, AttachmentId, ClusterState, EdgeHook, Layout, ObjectName, translate};

fn attachment(pod: &str, bridged: bool, reported: bool) -> Attachment {
    let last = pod.len();
    Attachment {
        id: AttachmentId { container: pod.into(), interface: "eth0".into() },
        pod: ObjectName::new("shop", pod),
        uid: None,
        addresses: vec![format!("10.1.0.{last}").parse().unwrap(), format!("fd00:1::{last}").parse().unwrap()],
        host_interface: Some("lo".parse().unwrap()).filter(|_| last == 1).or_else(|| pod.parse().ok()),
        bridged,
        input_interface: reported.then(|| if bridged { "cni0" } else { pod }.parse().expect("a name")),
        hardware_address: reported.then_some(nft::HardwareAddress([2, 0, 0x5e, 0x10, 0, last as u8])),
        link_local: vec![],
        since: 1,
    }
}

fn rulesets(hook: EdgeHook) -> Vec<nft::Ruleset> {
    let mut state = ClusterState::new();
    for (pod, bridged, reported) in
        [("a", false, true), ("bb", true, true), ("ccc", true, false), ("dddd", false, false)]
    {
        state.attach(attachment(pod, bridged, reported));
    }
    let layout = Layout::for_table("ringfence").unwrap().with_edge_hook(hook).logging_to(Some(9470));
    let translation = translate(&state, "node-a", &layout);
    [Some(translation.ruleset.in_first_generation()), translation.bridge, translation.edge]
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn edge_rules_read_back_as_committed() {
    for (hook, tables) in [(EdgeHook::Ingress, 3), (EdgeHook::Prerouting, 2)] {
        let rulesets = rulesets(hook);
        assert_eq!(rulesets.len(), tables);
        for ruleset in rulesets {
            assert_eq!(ruleset.validate(), [], "{ruleset}");
            in_new_namespace(|| {
                make_interfaces();
                load_netlink(&ruleset);
                let observed = Kernel::open().unwrap().read(&ruleset.table).unwrap();
                let missing: Vec<String> =
                    repair(observed.as_ref(), &ruleset).iter().map(ToString::to_string).collect();
                assert_eq!(missing, Vec::<String>::new(), "{observed:#?}");
            });
        }
    }
}

/// Before Linux 6.16 a chain requires its interface to exist.
fn make_interfaces() {
    for interface in ["bb", "ccc", "dddd"] {
        let peer = format!("peer-{interface}");
        let words = ["link", "add", interface, "type", "veth", "peer", "name", &peer];
        assert!(std::process::Command::new("ip").args(words).status().unwrap().success());
    }
}

#[test]
fn edge_text_loads_as_committed() {
    for ruleset in [EdgeHook::Ingress, EdgeHook::Prerouting].into_iter().flat_map(rulesets) {
        assert_eq!(listing_after_netlink(&ruleset), listing_after_text(&ruleset), "{ruleset}");
    }
}
