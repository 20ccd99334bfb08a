//! Rulesets as text, checked by nft and the kernel.

use ipnet::IpNet;
use nft::{HardwareAddress, InterfaceName};
use policy::{Attachment, AttachmentId, EdgeHook, Layout, translate};
use proptest::strategy::{Strategy, ValueTree};

use super::{NODES, mangle, runner};
use crate::generate::connected_world;
use crate::objects::state_of;
use kit::kernel_table::try_nft;

/// Bytes of the text that names policies or an interface.
const NAME_BYTES: usize = 15;

/// Derives a cluster and the configuration of its nodes from the first bytes, then a name and mutations of policies.
/// nft must accept the text of both nodes' rulesets, and the kernel nft's transaction.
///
/// nft runs once for each input, which takes some milliseconds; it changes nothing (`-c`). The calling thread should
/// still be in a separate network namespace.
///
/// # Panics
/// If nft refuses the text, or cannot be started.
pub fn rulesets(bytes: &[u8]) {
    let Some((seed, rest)) = bytes.split_at_checked(4) else { return };
    let Some((&[flags], rest)) = rest.split_first_chunk::<1>() else { return };
    let (name, edits) = rest.split_at(rest.len().min(NAME_BYTES));
    let name = String::from_utf8_lossy(name);
    let Ok(drawn) = connected_world().new_tree(&mut runner(seed)) else { return };
    let mut world = drawn.current();
    mangle(&mut world.policies, edits, &[]);
    if let Some(first) = world.policies.first_mut().filter(|_| !name.is_empty()) {
        first["metadata"]["name"] = name.as_ref().into();
    }
    let has = |bit: u8| flags >> bit & 1 == 1;
    let mut text = String::new();
    for (number, node) in NODES.iter().enumerate() {
        let mut state = state_of(&world);
        let pods: Vec<_> = state.pods().filter(|pod| pod.node.as_deref() == Some(node)).cloned().collect();
        for (place, pod) in pods.into_iter().enumerate().filter(|_| has(0)) {
            let interface = |text: &str| InterfaceName::new(text).ok();
            let numbered = format!("veth{place}");
            let host_interface = interface(&name).filter(|_| place == 0).or_else(|| interface(&numbered));
            state.attach(Attachment {
                id: AttachmentId { container: format!("container-{place}").into(), interface: "eth0".into() },
                pod: pod.name.clone(),
                uid: None,
                addresses: pod.addresses.iter().collect(),
                host_interface,
                bridged: has(1),
                input_interface: if has(1) { interface("cni0") } else { host_interface },
                hardware_address: has(2).then_some(HardwareAddress([2, 0, 0, 0, 0, place as u8])),
                link_local: vec![],
                since: place as u64,
            });
        }
        let layout = Layout::for_table(&format!("ringfence-{number}")).unwrap_or_else(|e| panic!("{e}"));
        let ranges: Vec<IpNet> = ["10.0.0.0/8", "fd00::/8"].iter().filter_map(|text| text.parse().ok()).collect();
        let layout = layout
            // The hooks at interfaces need interfaces.
            .with_edge_hook(EdgeHook::Prerouting)
            .checking_sources(has(3))
            .denying_unknown(if has(4) { ranges.clone() } else { vec![] })
            .with_tunnels(if has(5) { vec![1, 65_535] } else { vec![] }, if has(6) { ranges } else { vec![] })
            .logging_to(has(7).then_some(7));
        let translation = translate(&state, node, &layout);
        for ruleset in [Some(translation.ruleset.in_first_generation()), translation.bridge].into_iter().flatten() {
            assert_eq!(ruleset.validate(), vec![]);
            text.push_str(&ruleset.to_string());
        }
    }
    if let Err(error) = try_nft(&["-c", "-f", "-"], &text) {
        panic!("nft refuses it: {error}\n{text}");
    }
}
