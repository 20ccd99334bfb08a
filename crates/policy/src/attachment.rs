//! Attachments: the addresses and the host interface of a pod of this node, as reported by the CNI plugin.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use crate::{ObjectName, Pod, Uid};

/// An interface of a container, as CNI identifies it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentId {
    /// `CNI_CONTAINERID`, which for Kubernetes is the id of the pod's sandbox.
    pub container: Arc<str>,
    /// The name in the pod's network namespace.
    pub interface: Arc<str>,
}

impl fmt::Display for AttachmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.container, self.interface)
    }
}

/// One CNI ADD. It lasts until its DEL, whatever the API server reports about the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Unique among the attachments of the node.
    pub id: AttachmentId,
    /// `K8S_POD_NAMESPACE` and `K8S_POD_NAME` of the ADD.
    pub pod: ObjectName,
    /// Distinguishes successive pods of the same name; the runtime may omit it.
    pub uid: Option<Arc<str>>,
    /// The pod's addresses in the result of the CNI plugin, without prefix lengths.
    pub addresses: Vec<IpAddr>,
    /// The host side of the pod's interface, by its current name; `None` if unknown or removed.
    pub host_interface: Option<nft::InterfaceName>,
    /// The host side is a port of a bridge, so the forward hook does not see its name.
    pub bridged: bool,
    /// The input interface of the pod's packets at the forward hook: the host side, or the bridge that it is a port of.
    /// `None` if unknown.
    pub input_interface: Option<nft::InterfaceName>,
    /// The hardware address of the pod's interface; `None` if it was not reported.
    pub hardware_address: Option<nft::HardwareAddress>,
    /// The reported link-local addresses of the pod's interface.
    pub link_local: Vec<Ipv6Addr>,
    /// Greater is later. Of two attachments with the same address, the later one owns it.
    pub since: u64,
}

impl Attachment {
    /// Whether the object describes the attached pod. A static pod is attached with the hash of its manifest as UID,
    /// which its mirror object has in an annotation. A finished pod is not running here.
    pub(crate) fn is_of(&self, pod: &Pod) -> bool {
        let same = |uid: &Arc<str>| pod.is_called(uid);
        self.pod == pod.name && !pod.finished && !pod.host_network && self.uid.as_ref().is_none_or(same)
    }
}

impl Pod {
    /// Whether a runtime on this node may use the UID for the pod. A pod from a folder of manifests may have none.
    pub fn is_called(&self, uid: &str) -> bool {
        let uid = Uid::from(uid);
        self.uid.is_empty() || uid == self.uid || Some(&uid) == self.mirror_of.as_deref()
    }
}

/// The owner of an address.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Holder<'a> {
    /// A pod whose object is known.
    Pod(&'a Arc<Pod>),
    /// An attached pod whose object is unknown: it is isolated and allowed nothing.
    Unknown(&'a Arc<Attachment>),
}

impl<'a> Holder<'a> {
    /// `None` for an attached pod without an object.
    pub fn pod(self) -> Option<&'a Arc<Pod>> {
        match self {
            Holder::Pod(pod) => Some(pod),
            Holder::Unknown(_) => None,
        }
    }
}
