//! What the CNI plugin reported of a pod of this node: its addresses and the host's side of its interface.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use crate::{ObjectName, Pod, Uid};

/// An interface of a container, as CNI names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentId {
    pub container: Arc<str>,
    /// In the pod's namespace.
    pub interface: Arc<str>,
}

impl fmt::Display for AttachmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.container, self.interface)
    }
}

/// One CNI ADD. It ends with its DEL, whatever the API server says of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    pub id: AttachmentId,
    pub pod: ObjectName,
    /// Tells pods apart that follow each other under one name; the runtime may leave it out.
    pub uid: Option<Arc<str>>,
    pub addresses: Vec<IpAddr>,
    /// The host's side of the pod's interface, by its present name; none if it is not known or gone.
    pub host_interface: Option<nft::InterfaceName>,
    /// The host's side is a port of a bridge, so that the forward hook does not see its name.
    pub bridged: bool,
    /// The input interface of the pod's packets at the forward hook: the host's side, or the bridge that it is a port of.
    /// `None` where it is not known.
    pub input_interface: Option<nft::InterfaceName>,
    /// The hardware address of the pod's interface; none where it was not reported.
    pub hardware_address: Option<nft::HardwareAddress>,
    /// The link-local addresses of the pod's interface, as far as they were reported.
    pub link_local: Vec<Ipv6Addr>,
    /// Greater is later. Of two attachments that claim an address the later one has it.
    pub since: u64,
}

impl Attachment {
    /// Whether the object describes the pod that was attached. A static pod is attached under the hash of its manifest,
    /// which its mirror object carries in an annotation. One that has finished is not running here.
    pub(crate) fn is_of(&self, pod: &Pod) -> bool {
        let same = |uid: &Arc<str>| pod.is_called(uid);
        self.pod == pod.name && !pod.finished && !pod.host_network && self.uid.as_ref().is_none_or(same)
    }
}

impl Pod {
    /// Whether a runtime on this node may know the pod by the UID. A pod of a folder of manifests may have none.
    pub fn is_called(&self, uid: &str) -> bool {
        let uid = Uid::from(uid);
        self.uid.is_empty() || uid == self.uid || Some(&uid) == self.mirror_of.as_deref()
    }
}

/// Who has an address.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Holder<'a> {
    Pod(&'a Arc<Pod>),
    /// A pod was attached with the address, and its object is not known: it is isolated and allowed nothing.
    Unknown(&'a Arc<Attachment>),
}

impl<'a> Holder<'a> {
    pub fn pod(self) -> Option<&'a Arc<Pod>> {
        match self {
            Holder::Pod(pod) => Some(pod),
            Holder::Unknown(_) => None,
        }
    }
}
