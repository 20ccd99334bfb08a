//! The record of an address: its owner, as published to consumers.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use ::identity::{ReservedIdentity, Sid};
use sha2::{Digest, Sha256};

use crate::template::Template;
use crate::version::first_half;

/// A published record. Records with equal published fields are equal, and cheap to compare.
#[derive(Debug, Clone)]
pub struct Record {
    /// Hash of all published fields.
    digest: [u8; 16],
    facts: Facts,
}

#[derive(Debug, Clone)]
pub struct Facts {
    /// The template of the pod, or a substitute if the address belongs to no pod. Unpublished fields of it do not
    /// affect equality.
    pub template: Arc<Template>,
    pub internet_exposed: bool,
    /// A component of a control plane, or an address of one.
    pub control_plane: bool,
    /// The security identity; `None` in a state with a reserved number.
    pub sid: Option<Sid>,
    pub num: u32,
    /// `None` for an ordinary pod.
    pub state: Option<ReservedIdentity>,
    /// Fields that most records lack.
    pub detail: Option<Box<Detail>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    ControlPlane,
    InternetExposed,
    /// Outside of the cluster: the world, and ranges of health checks.
    External,
    Internal,
}

/// Fields that only some records have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detail {
    /// The name of the pod, only with `pod_detail`.
    pub pod: Option<Arc<str>>,
    /// The node of the pod, or the node that owns the address.
    pub node: Option<Arc<str>>,
    /// The cluster of a pod of another cluster.
    pub cluster: Option<Arc<str>>,
    /// The workloads on the host network of the node, which share its addresses, as `namespace/workload`.
    pub host_workloads: Vec<Arc<str>>,
}

/// The reserved identities of records of single addresses. The others are of configured ranges ([`crate::ranges`]).
pub const RECORDED: [ReservedIdentity; 7] = [
    ReservedIdentity::Host,
    ReservedIdentity::Unmanaged,
    ReservedIdentity::Init,
    ReservedIdentity::RemoteNode,
    ReservedIdentity::KubeApiserver,
    ReservedIdentity::Ingress,
    ReservedIdentity::Remote,
];

impl Role {
    pub fn text(self) -> &'static str {
        match self {
            Role::ControlPlane => "control-plane",
            Role::InternetExposed => "internet-exposed",
            Role::External => "external",
            Role::Internal => "internal",
        }
    }
}

impl Facts {
    pub fn role(&self) -> Role {
        let is_external = matches!(self.state, Some(ReservedIdentity::World | ReservedIdentity::Health));
        match (self.control_plane, self.internet_exposed) {
            (true, _) => Role::ControlPlane,
            (false, true) => Role::InternetExposed,
            (false, false) if is_external => Role::External,
            (false, false) => Role::Internal,
        }
    }

    /// The service identity (`Template::service`); empty for a pod of another cluster, whose namespace is not one of
    /// this cluster.
    pub fn service(&self) -> Cow<'_, str> {
        match self.state {
            Some(ReservedIdentity::Remote) => Cow::Borrowed(""),
            Some(
                ReservedIdentity::Host
                | ReservedIdentity::World
                | ReservedIdentity::Unmanaged
                | ReservedIdentity::Health
                | ReservedIdentity::Init
                | ReservedIdentity::RemoteNode
                | ReservedIdentity::KubeApiserver
                | ReservedIdentity::Ingress,
            )
            | None => self.template.service(),
        }
    }
}

impl Record {
    pub fn new(facts: Facts) -> Record {
        Record { digest: digest(&facts), facts }
    }

    /// Contribution of the address to the sum of all records ([`crate::version`]).
    pub(crate) fn digest_at(&self, address: IpAddr) -> u128 {
        let mut bytes = Bytes(Sha256::new());
        match address {
            IpAddr::V4(address) => bytes.text(&address.octets()),
            IpAddr::V6(address) => bytes.text(&address.octets()),
        }
        bytes.text(&self.digest);
        u128::from_be_bytes(bytes.end())
    }
}

impl PartialEq for Record {
    fn eq(&self, other: &Record) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Record {}

impl Hash for Record {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl Deref for Record {
    type Target = Facts;
    fn deref(&self) -> &Facts {
        &self.facts
    }
}

impl Deref for Facts {
    type Target = Template;
    fn deref(&self) -> &Template {
        &self.template
    }
}

fn digest(facts: &Facts) -> [u8; 16] {
    let Facts { template, internet_exposed, control_plane, sid, num, state, detail } = facts;
    let mut bytes = Bytes(Sha256::new());
    for part in [&*template.workload, &*template.namespace, &*template.app, &*facts.service()] {
        bytes.text(part.as_bytes());
    }
    bytes.text(&[u8::from(*internet_exposed), u8::from(*control_plane)]);
    bytes.text(&num.to_be_bytes());
    bytes.text(sid.map_or(vec![], |sid| sid.0.to_be_bytes().to_vec()).as_slice());
    bytes.text(state.map_or("", ReservedIdentity::text).as_bytes());
    let none = Detail::default();
    let Detail { pod, node, cluster, host_workloads } = detail.as_deref().unwrap_or(&none);
    for part in [pod, node] {
        bytes.text(part.as_deref().unwrap_or_default().as_bytes());
    }
    for (key, value) in template.labels() {
        bytes.text(key.as_bytes());
        bytes.text(value.as_bytes());
    }
    // An additional part, which cannot be confused with a label, since labels have two. Most records lack it.
    if cluster.is_some() || !host_workloads.is_empty() {
        let mut rest = Bytes(Sha256::new());
        rest.text(&[u8::from(cluster.is_some())]);
        for part in cluster.iter().chain(host_workloads) {
            rest.text(part.as_bytes());
        }
        bytes.text(&rest.end());
    }
    bytes.end()
}

/// Length-prefixed parts, so that their boundaries are unambiguous.
struct Bytes(Sha256);

impl Bytes {
    fn text(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_be_bytes());
        self.0.update(part);
    }

    fn end(self) -> [u8; 16] {
        first_half(self.0)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{labels, pod_of};

    use super::*;

    fn template() -> Template {
        let labels = [("app", "front"), ("service-identity", "part"), ("pod-template-hash", "5d8f")];
        let pod = pod_of("shop/web-5d8f-x", "ReplicaSet web-5d8f", &labels);
        Template::of(&pod)
    }

    fn facts() -> Facts {
        let template = Arc::new(template());
        Facts {
            template,
            internet_exposed: false,
            control_plane: false,
            sid: Some(Sid(7)),
            num: 263,
            state: None,
            detail: None,
        }
    }

    #[test]
    fn any_differing_field_changes_record() {
        let of = |change: fn(&mut Template)| {
            let mut template = template();
            change(&mut template);
            Facts { template: Arc::new(template), ..facts() }
        };
        let labelled = |pairs: &[(&str, &str)]| {
            let pod_labels = labels(pairs);
            Facts { template: Arc::new(Template { pod_labels, ..template() }), ..facts() }
        };
        let detail = |detail: Detail| Facts { detail: Some(Box::new(detail)), ..facts() };
        let text = |text: &str| Some(Arc::from(text));
        let host = |workloads: &[&str]| {
            detail(Detail { host_workloads: workloads.iter().map(|w| Arc::from(*w)).collect(), ..Detail::default() })
        };
        let all = [
            facts(),
            of(|t| t.workload = "api".into()),
            of(|t| t.namespace = "other".into()),
            of(|t| t.app = "web".into()),
            labelled(&[("app", "web"), ("service-identity", "part")]),
            labelled(&[("app", "front"), ("service-identity", "x")]),
            labelled(&[]),
            Facts { internet_exposed: true, ..facts() },
            Facts { control_plane: true, ..facts() },
            Facts { sid: None, ..facts() },
            Facts { num: 1, ..facts() },
            Facts { state: Some(ReservedIdentity::Init), ..facts() },
            Facts { state: Some(ReservedIdentity::Unmanaged), ..facts() },
            Facts { state: Some(ReservedIdentity::Remote), ..facts() },
            detail(Detail { pod: text("web-1"), ..Detail::default() }),
            detail(Detail { pod: text("web-1"), node: text("node-a"), ..Detail::default() }),
            detail(Detail { node: text("web-1"), ..Detail::default() }),
            detail(Detail { cluster: text("web-1"), ..Detail::default() }),
            host(&["shop/web"]),
            host(&["shop/web", "shop/api"]),
            host(&["shop/api", "shop/web"]),
        ];
        let records = all.map(Record::new);
        for (i, a) in records.iter().enumerate() {
            for (j, b) in records.iter().enumerate() {
                assert_eq!((a == b, a.digest == b.digest), (i == j, i == j), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn labels_not_carried_leave_record_equal() {
        let pod_labels = labels(&[("app", "front"), ("service-identity", "part"), ("pod-template-hash", "7c9b")]);
        let revised = Facts { template: Arc::new(Template { pod_labels, ..template() }), ..facts() };
        assert_eq!(Record::new(revised), Record::new(facts()));
    }

    #[test]
    fn record_digest_differs_by_address() {
        let record = Record::new(facts());
        let digests = ["10.0.0.1", "10.0.0.2", "::10.0.0.1"].map(|a| record.digest_at(a.parse().unwrap()));
        assert!(digests[0] != digests[1] && digests[0] != digests[2]);
    }

    #[test]
    fn documentation_lists_every_state_with_its_number() {
        let text = include_str!("../../../docs/identity.md");
        for state in RECORDED {
            let row = format!("| `{}` | {} |", state.text(), state.num());
            assert!(text.contains(&row), "{row}");
        }
    }

    #[test]
    fn remote_pod_has_no_service_identity() {
        assert_eq!(facts().service(), "shop/part");
        assert_eq!(Facts { state: Some(ReservedIdentity::Remote), ..facts() }.service(), "");
    }

    #[test]
    fn control_plane_role_outranks_internet_exposed() {
        let role = |control_plane, internet_exposed| Facts { control_plane, internet_exposed, ..facts() }.role().text();
        assert_eq!(
            [role(true, true), role(true, false), role(false, true), role(false, false)],
            ["control-plane", "control-plane", "internet-exposed", "internal"]
        );
    }
}
