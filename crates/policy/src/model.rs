//! The model: Kubernetes objects, reduced to the fields that enforcement uses, without ambiguity.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use ipnet::IpNet;
use nft::Protocol;
use serde::{Deserialize, Serialize};

use crate::sanitize::plain;
use crate::{Addresses, ClusterPolicy, Diagnostic, Labels, Selector, Uid};

/// The kinds of objects that enforcement depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// `v1`, of the cluster.
    Namespace,
    /// `v1`, namespaced.
    Pod,
    /// `networking.k8s.io/v1`, namespaced.
    NetworkPolicy,
    /// `v1`, of the cluster.
    Node,
    /// `policy.networking.k8s.io/v1alpha2` or `v1beta1`, of the cluster.
    ClusterNetworkPolicy,
}

impl Kind {
    /// Every kind that a source may publish.
    pub const ALL: [Kind; 5] =
        [Kind::Namespace, Kind::Pod, Kind::NetworkPolicy, Kind::Node, Kind::ClusterNetworkPolicy];

    /// The kinds required for a ruleset. While no Node is known, stricter rules about tunnels apply; many clusters do not
    /// serve ClusterNetworkPolicy.
    pub const NEEDED: [Kind; 3] = [Kind::Namespace, Kind::Pod, Kind::NetworkPolicy];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Namespace => "Namespace",
            Kind::Pod => "Pod",
            Kind::NetworkPolicy => "NetworkPolicy",
            Kind::Node => "Node",
            Kind::ClusterNetworkPolicy => "ClusterNetworkPolicy",
        })
    }
}

/// `namespace/name`; the namespace of an object without one (Namespace, Node, ClusterNetworkPolicy) is
/// empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// `metadata.namespace`
    pub namespace: Arc<str>,
    /// `metadata.name`
    pub name: Arc<str>,
}

impl ObjectName {
    /// Accepts any text: [`Display`](fmt::Display) replaces control characters.
    pub fn new(namespace: &str, name: &str) -> ObjectName {
        ObjectName { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names in manifests may be arbitrary text.
        if !self.namespace.is_empty() {
            write!(f, "{}/", plain(&self.namespace))?;
        }
        f.write_str(&plain(&self.name))
    }
}

impl Serialize for ObjectName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The text is not `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid name '{0}': expected NAMESPACE/NAME")]
pub struct NotAnObjectName(String);

impl std::str::FromStr for ObjectName {
    type Err = NotAnObjectName;
    fn from_str(text: &str) -> Result<ObjectName, NotAnObjectName> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(ObjectName::new(namespace, name))
            }
            _ => Err(NotAnObjectName(text.into())),
        }
    }
}

/// Objects that a source publishes changes of. Each has a kind, and a name unique within the kind.
pub trait SourceObject: fmt::Debug + Clone + PartialEq {
    /// Key of an object together with its name.
    type Kind: fmt::Debug + fmt::Display + Copy + Ord + Send + Sync + 'static;

    /// Decides which objects [`Change::Replace`] replaces.
    fn kind(&self) -> Self::Kind;
    /// Unique within the kind.
    fn name(&self) -> &ObjectName;
}

/// A change of one kind's objects, as reported by a watch or a manifest folder.
#[derive(Debug, Clone, PartialEq)]
pub enum Change<O: SourceObject = Object> {
    /// Upserts the object under its name.
    Set(O),
    /// Removes the object of that name; no change if there is none.
    Remove(O::Kind, ObjectName),
    /// Replaces all objects of the kind.
    Replace(O::Kind, Vec<O>),
}

/// An object of the model, shared by the states that hold it.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// See [`Kind::Namespace`].
    Namespace(Arc<Namespace>),
    /// See [`Kind::Pod`].
    Pod(Arc<Pod>),
    /// See [`Kind::NetworkPolicy`].
    Policy(Arc<Policy>),
    /// See [`Kind::Node`].
    Node(Arc<Node>),
    /// See [`Kind::ClusterNetworkPolicy`].
    ClusterPolicy(Arc<ClusterPolicy>),
}

impl SourceObject for Object {
    type Kind = Kind;

    fn kind(&self) -> Kind {
        self.kind()
    }

    fn name(&self) -> &ObjectName {
        self.name()
    }
}

impl Object {
    /// The API kind of the object.
    pub fn kind(&self) -> Kind {
        match self {
            Object::Namespace(_) => Kind::Namespace,
            Object::Pod(_) => Kind::Pod,
            Object::Policy(_) => Kind::NetworkPolicy,
            Object::Node(_) => Kind::Node,
            Object::ClusterPolicy(_) => Kind::ClusterNetworkPolicy,
        }
    }

    /// Unique within the kind.
    pub fn name(&self) -> &ObjectName {
        match self {
            Object::Namespace(o) => &o.name,
            Object::Pod(o) => &o.name,
            Object::Policy(o) => &o.name,
            Object::Node(o) => &o.name,
            Object::ClusterPolicy(o) => &o.name,
        }
    }

    /// Findings about the object as read: invalid parts, and parts that may not be intended.
    pub fn problems(&self) -> &[Diagnostic] {
        match self {
            Object::Namespace(o) => &o.problems,
            Object::Pod(o) => &o.problems,
            Object::Policy(o) => &o.problems,
            Object::Node(o) => &o.problems,
            Object::ClusterPolicy(o) => &o.problems,
        }
    }
}

/// A Namespace: labels for namespaceSelectors, and the enforcement of its policies.
#[derive(Debug, Clone, PartialEq)]
pub struct Namespace {
    /// The namespace part of the name is empty.
    pub name: ObjectName,
    /// Empty if the object has none, as in manifests.
    pub uid: Uid,
    /// Always includes `kubernetes.io/metadata.name`.
    pub labels: Labels,
    /// The labels are invalid: no selector matches the namespace, not even a negative one.
    pub unreadable: bool,
    /// The enforcement of its policies without their own annotation.
    pub enforcement: Option<Enforcement>,
    /// Problems of labels and annotations.
    pub problems: Vec<Diagnostic>,
}

/// A Pod, as the end of flows and as the subject of policies.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// `metadata.namespace` and `metadata.name`.
    pub name: ObjectName,
    /// `metadata.uid`; distinguishes successive pods of one name.
    pub uid: Uid,
    /// Set if the pod is the mirror object of a static pod: the UID that the kubelet uses for the static pod.
    pub mirror_of: Option<Box<Uid>>,
    /// Empty if they are invalid.
    pub labels: Labels,
    /// The controller of the pod, for display only: no rule depends on it.
    pub owner: Option<Arc<Owner>>,
    /// The node it is bound to.
    pub node: Option<Arc<str>>,
    /// Both families, without duplicates, in the order of the status.
    pub addresses: Addresses,
    /// `spec.hostNetwork`: its addresses are the node's, and policies neither select it nor allow it as a peer.
    pub host_network: bool,
    /// Phase Succeeded or Failed: it has no address, whatever the status contains.
    pub finished: bool,
    /// It has a deletion timestamp. It keeps its addresses until it is deleted.
    pub terminating: bool,
    /// `status.startTime`. Of two pods with one address, one that is not terminating has it, then the later one.
    pub started: Moment,
    /// `metadata.creationTimestamp`, where the start times are equal or unknown.
    pub created: Moment,
    /// In lookup order of a name: containers first, then restartable init containers.
    pub ports: Arc<[NamedPort]>,
    /// The object is partly invalid: on its own node the pod is isolated and allowed nothing, and no peer selects it.
    pub unreadable: bool,
    /// Problems of labels, addresses and ports.
    pub problems: Problems,
}

/// The owner reference with `controller: true`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// `ReplicaSet`, `Node`.
    pub kind: Arc<str>,
    /// `metadata.name` of the controller, in the pod's namespace.
    pub name: Arc<str>,
}

/// A node of the cluster, reduced to its labels and the addresses at which it receives packets.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The namespace part of the name is empty.
    pub name: ObjectName,
    /// Empty if they are invalid.
    pub labels: Labels,
    /// The labels are invalid: no Accept rule matches the node, and Deny and Pass rules that might match it deny.
    pub unlabelled: bool,
    /// Internal and external addresses of its status, and addresses in its annotations, without duplicates.
    pub addresses: Addresses,
    /// Those of its status alone.
    pub status_addresses: Addresses,
    /// The pod address ranges, which also contain its gateway and tunnel addresses.
    pub pod_ranges: Box<[IpNet]>,
    /// The object is partly invalid, so some of its addresses are unknown.
    pub unreadable: bool,
    /// Problems of labels, addresses and ranges.
    pub problems: Problems,
}

/// A time in seconds, or unknown if the object has none; unknown sorts first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(i64);

impl Moment {
    /// Sorts before every time.
    pub(crate) const UNKNOWN: Moment = Moment(i64::MIN);

    /// Truncates to seconds, the precision of timestamps in the API.
    pub fn at(time: jiff::Timestamp) -> Moment {
        Moment(time.as_second())
    }
}

/// The problems of an object. Compact when empty, as for most of the many objects.
#[derive(Debug, Clone, PartialEq)]
pub struct Problems<T = Diagnostic>(Option<Box<ProblemList<T>>>);

#[derive(Debug, Clone, PartialEq)]
struct ProblemList<T>(Vec<T>);

impl<T> Default for Problems<T> {
    fn default() -> Problems<T> {
        Problems(None)
    }
}

impl<T> FromIterator<T> for Problems<T> {
    fn from_iter<I: IntoIterator<Item = T>>(found: I) -> Problems<T> {
        let found: Vec<T> = found.into_iter().collect();
        Problems((!found.is_empty()).then(|| Box::new(ProblemList(found))))
    }
}

impl<T> Deref for Problems<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.0.as_ref().map_or(&[], |found| &found.0)
    }
}

/// A container port with a name, by which policies may refer to its number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamedPort {
    /// `ports[].name`, an IANA service name (RFC 6335).
    pub name: Arc<str>,
    /// `ports[].protocol`, TCP by default.
    pub protocol: Protocol,
    /// `ports[].containerPort`, 1 to 65535.
    pub number: u16,
}

/// The annotation for the enforcement of a NetworkPolicy, or on a Namespace of its policies without their own
/// annotation: `audit` or `enforce`.
pub const ENFORCEMENT_ANNOTATION: &str = "ringfence.io/enforcement";

/// Whether a policy denies, or only reports what it would deny.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// Flows that no rule allows are dropped.
    #[default]
    Enforce,
    /// Flows that no rule allows pass and are reported, unless an enforced policy denies them.
    Audit,
}

/// A policy, with its invalid parts lowered to denial.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// `metadata.namespace` and `metadata.name`.
    pub name: ObjectName,
    /// Selects the pods of the policy's namespace that it isolates.
    pub selector: Selector,
    /// Isolates for ingress, and allows what the rules match.
    pub ingress: Option<Vec<PolicyRule>>,
    /// Isolates for egress, and allows what the rules match.
    pub egress: Option<Vec<PolicyRule>>,
    /// The object's own annotation; see [`crate::ClusterState::enforcement`].
    pub enforcement: Option<Enforcement>,
    /// Problems of the spec and of the enforcement annotation.
    pub problems: Vec<Diagnostic>,
}

/// One entry of `ingress` or `egress`: it allows a flow whose peer and whose port both match.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyRule {
    /// The index in the object's list.
    pub index: usize,
    /// `from` of an ingress rule, `to` of an egress rule.
    pub peers: Peers,
    /// `ports`
    pub ports: Ports,
}

/// The other end of the flows that a rule allows.
#[derive(Debug, Clone, PartialEq)]
pub enum Peers {
    /// Every address, including those outside of the cluster.
    Any,
    /// Any of these; an empty list matches no address.
    Of(Vec<Peer>),
}

/// An entry of `from` or `to`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// `podSelector`, `namespaceSelector`, or both. Never matches pods on the host network.
    Pods {
        /// Without a namespaceSelector, the policy's namespace.
        namespaces: NamespaceScope,
        /// Without a podSelector, every pod of these namespaces.
        pods: Selector,
    },
    /// `ipBlock`, which also contains addresses of pods.
    Block(Block),
}

/// The namespaces of a peer's pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamespaceScope {
    /// The namespace of the policy.
    Own,
    /// `namespaceSelector`; a namespace with invalid labels never matches.
    Selected(Selector),
}

/// An ipBlock: the addresses of `cidr` outside of every `except`. Host bits are cleared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Block {
    /// The network; its family decides which flows match.
    pub cidr: IpNet,
    /// Networks within `cidr`.
    pub except: Vec<IpNet>,
}

/// The destination ports that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    /// Every port and every protocol, including those without ports.
    Any,
    /// Any of these; an empty list matches no port.
    Of(Vec<PortMatch>),
}

/// An entry of `ports`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortMatch {
    /// `protocol`, TCP by default.
    pub protocol: Protocol,
    /// `port` and `endPort`.
    pub range: PortRange,
}

/// The destination ports of one protocol.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortRange {
    /// Every port of the protocol.
    All,
    /// From the first to the last, both included.
    Numbers(u16, u16),
    /// Resolved by the destination pod.
    Named(Arc<str>),
}
