//! The interfaces of the node's pods, as attachments describe them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use nft::{Family, HardwareAddress, InterfaceName};

use super::EdgeHook;
use crate::translate::Direction;
use crate::{Attachment, ClusterState, ObjectName};

/// The host side of a pod's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::translate) struct PodPort {
    pub(in crate::translate) interface: InterfaceName,
    pub(super) pod: ObjectName,
    /// The interface is a port of a bridge.
    pub(in crate::translate) bridged: bool,
    /// A policy isolates the pod for ingress, or the pod is unknown or unreadable, or a later attachment has one of its
    /// addresses.
    pub(in crate::translate) closed: bool,
    /// The same for egress.
    pub(in crate::translate) confined: bool,
    pub(in crate::translate) addresses: Vec<IpAddr>,
    pub(super) hardware: Option<HardwareAddress>,
    /// The pod's link-local addresses; empty if unknown.
    pub(super) link_local: Vec<Ipv6Addr>,
    /// A tc filter redirects packets at the interface, past the chain there.
    redirecting: bool,
}

impl PodPort {
    /// Whether the port is checked completely at the prerouting hooks. Packets that tc redirects at an interface
    /// (`tcf_mirred_act`) re-enter after the ingress hook (`skb_skip_tc_classify`), as do those of pods with limited
    /// egress bandwidth. Such a port is checked at both.
    pub(in crate::translate) fn is_checked_at_prerouting(&self, hook: EdgeHook) -> bool {
        match hook {
            EdgeHook::Ingress => self.redirecting,
            EdgeHook::Prerouting => true,
        }
    }

    pub(in crate::translate) fn addresses_of(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().copied().filter(move |address| Family::of(*address) == family)
    }
}

/// The interfaces of the node's pods. `isolated` returns whether the pod of an attached address is isolated in a
/// direction.
pub(in crate::translate) fn pod_ports(
    state: &ClusterState,
    isolated: impl Fn(IpAddr, Direction) -> bool,
) -> Vec<PodPort> {
    // A later interface may reuse the name of an earlier one.
    let mut latest: BTreeMap<InterfaceName, &Arc<Attachment>> = BTreeMap::new();
    for attachment in state.attachments() {
        let Some(interface) = attachment.host_interface else { continue };
        let last = latest.entry(interface).or_insert(attachment);
        if (attachment.since, &attachment.id) > (last.since, &last.id) {
            *last = attachment;
        }
    }
    let port = |(interface, attachment): (InterfaceName, &Arc<Attachment>)| {
        let own = attachment.addresses.iter().copied().filter(|address| state.is_attached_as(attachment, *address));
        let derived = attachment.hardware_address.map(link_local_of);
        let link_local = match &attachment.link_local[..] {
            [] => derived.into_iter().collect(),
            known => known.to_vec(),
        };
        // An address that a later attachment has claimed is found by that pod's policies.
        let is_lost = |address: &IpAddr| !state.is_attached_as(attachment, *address);
        let isolated = |direction| attachment.addresses.iter().any(|a| is_lost(a) || isolated(*a, direction));
        PodPort {
            interface,
            pod: attachment.pod.clone(),
            bridged: attachment.bridged || state.is_bridge_port(interface),
            closed: isolated(Direction::Ingress),
            confined: isolated(Direction::Egress),
            addresses: own.collect(),
            hardware: attachment.hardware_address,
            link_local,
            redirecting: state.is_redirecting(interface),
        }
    };
    latest.into_iter().map(port).collect()
}

/// The link-local address that an interface assigns itself (RFC 4291, appendix A).
fn link_local_of(HardwareAddress([a, b, c, d, e, f]): HardwareAddress) -> Ipv6Addr {
    let word = u16::from_be_bytes;
    Ipv6Addr::new(0xfe80, 0, 0, 0, word([a ^ 2, b]), word([c, 0xff]), word([0xfe, d]), word([e, f]))
}
