//! The model: Kubernetes objects, reduced to the fields that enforcement uses, without ambiguity.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use ipnet::IpNet;
use nft::Protocol;
use serde::{Deserialize, Serialize};

use crate::plain::plain;
use crate::{Addresses, ClusterPolicy, Diagnostic, Labels, Selector, Uid};

/// The kinds of objects that enforcement depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    Namespace,
    Pod,
    NetworkPolicy,
    Node,
    ClusterNetworkPolicy,
}

impl Kind {
    pub const ALL: [Kind; 5] =
        [Kind::Namespace, Kind::Pod, Kind::NetworkPolicy, Kind::Node, Kind::ClusterNetworkPolicy];

    /// The kinds required for a ruleset. While no Node is known, stricter rules apply; many clusters do not serve
    /// ClusterNetworkPolicy.
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
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ObjectName {
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
pub trait Tracked: fmt::Debug + Clone + PartialEq {
    type Kind: fmt::Debug + fmt::Display + Copy + Ord + Send + Sync + 'static;

    fn kind(&self) -> Self::Kind;
    fn name(&self) -> &ObjectName;
}

/// A change of one kind's objects, as reported by a watch or a manifest folder.
#[derive(Debug, Clone, PartialEq)]
pub enum Change<O: Tracked = Object> {
    /// Upserts the object under its name.
    Set(O),
    Remove(O::Kind, ObjectName),
    /// Replaces all objects of the kind.
    Replace(O::Kind, Vec<O>),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    Namespace(Arc<Namespace>),
    Pod(Arc<Pod>),
    Policy(Arc<Policy>),
    Node(Arc<Node>),
    ClusterPolicy(Arc<ClusterPolicy>),
}

impl Tracked for Object {
    type Kind = Kind;

    fn kind(&self) -> Kind {
        self.kind()
    }

    fn name(&self) -> &ObjectName {
        self.name()
    }
}

impl Object {
    pub fn kind(&self) -> Kind {
        match self {
            Object::Namespace(_) => Kind::Namespace,
            Object::Pod(_) => Kind::Pod,
            Object::Policy(_) => Kind::NetworkPolicy,
            Object::Node(_) => Kind::Node,
            Object::ClusterPolicy(_) => Kind::ClusterNetworkPolicy,
        }
    }

    pub fn name(&self) -> &ObjectName {
        match self {
            Object::Namespace(o) => &o.name,
            Object::Pod(o) => &o.name,
            Object::Policy(o) => &o.name,
            Object::Node(o) => &o.name,
            Object::ClusterPolicy(o) => &o.name,
        }
    }

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

#[derive(Debug, Clone, PartialEq)]
pub struct Namespace {
    pub name: ObjectName,
    /// Empty if the object has none, as in manifests.
    pub uid: Uid,
    /// Always includes `kubernetes.io/metadata.name`.
    pub labels: Labels,
    /// The labels are invalid: no selector matches the namespace, not even a negative one.
    pub unreadable: bool,
    /// The enforcement of its policies without their own annotation.
    pub enforcement: Option<Enforcement>,
    pub problems: Vec<Diagnostic>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    pub name: ObjectName,
    pub uid: Uid,
    /// Set if the pod is the mirror object of a static pod: the UID that the kubelet uses for the static pod.
    pub mirror_of: Option<Box<Uid>>,
    pub labels: Labels,
    /// The controller of the pod, for display only: no rule depends on it.
    pub owner: Option<Arc<Owner>>,
    /// The node it is bound to.
    pub node: Option<Arc<str>>,
    /// Both families, without duplicates, in the order of the status.
    pub addresses: Addresses,
    pub host_network: bool,
    /// Phase Succeeded or Failed: it has no address, whatever the status contains.
    pub finished: bool,
    /// It has a deletion timestamp. It keeps its addresses until it is deleted.
    pub terminating: bool,
    pub started: Moment,
    pub created: Moment,
    /// In lookup order of a name: containers first, then restartable init containers.
    pub ports: Arc<[NamedPort]>,
    /// The object is partly invalid: on its own node the pod is isolated and allowed nothing, and no peer selects it.
    pub unreadable: bool,
    pub problems: Problems,
}

/// The owner reference with `controller: true`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// `ReplicaSet`, `Node`.
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

/// A node of the cluster, reduced to its labels and the addresses at which it receives packets.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
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
    pub problems: Problems,
}

/// A time in seconds, or unknown if the object has none; unknown sorts first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(i64);

impl Moment {
    pub const UNKNOWN: Moment = Moment(i64::MIN);

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

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamedPort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub number: u16,
}

/// The annotation for the enforcement of a NetworkPolicy, or on a Namespace of its policies without their own
/// annotation: `audit` or `enforce`.
pub const ENFORCEMENT_ANNOTATION: &str = "ringfence.io/enforcement";

/// Whether a policy denies, or only reports what it would deny.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    #[default]
    Enforce,
    Audit,
}

/// A policy, with its invalid parts lowered to denial.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    pub name: ObjectName,
    /// Selects the pods of the policy's namespace that it isolates.
    pub selector: Selector,
    /// Isolates for ingress, and allows what the rules match.
    pub ingress: Option<Vec<PolicyRule>>,
    /// Isolates for egress, and allows what the rules match.
    pub egress: Option<Vec<PolicyRule>>,
    /// The object's own annotation; see [`crate::ClusterState::enforcement`].
    pub enforcement: Option<Enforcement>,
    pub problems: Vec<Diagnostic>,
}

/// One entry of `ingress` or `egress`: it allows a flow whose peer and whose port both match.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyRule {
    /// The index in the object's list.
    pub index: usize,
    pub peers: Peers,
    pub ports: Ports,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Peers {
    /// Every address, including those outside of the cluster.
    Any,
    /// Any of these; an empty list matches no address.
    Of(Vec<Peer>),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    Pods { namespaces: NamespaceScope, pods: Selector },
    Block(Block),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamespaceScope {
    /// The namespace of the policy.
    Own,
    Selected(Selector),
}

/// An ipBlock: the addresses of `cidr` outside of every `except`. Host bits are cleared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Block {
    pub cidr: IpNet,
    pub except: Vec<IpNet>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    /// Every port and every protocol, including those without ports.
    Any,
    /// Any of these; an empty list matches no port.
    Of(Vec<PortMatch>),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortMatch {
    pub protocol: Protocol,
    pub range: PortRange,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortRange {
    /// Every port of the protocol.
    All,
    /// From the first to the last, both included.
    Numbers(u16, u16),
    /// Resolved by the destination pod.
    Named(Arc<str>),
}
