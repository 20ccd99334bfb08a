//! The record of an address: who has it, and what consumers are told of them.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use ::identity::Sid;
use sha2::{Digest, Sha256};

use crate::template::Template;
use crate::version::first_half;

/// What consumers are told. Records that say the same are equal, and cheap to compare.
#[derive(Debug, Clone)]
pub struct Record {
    /// Of all that consumers are told.
    digest: [u8; 16],
    facts: Facts,
}

#[derive(Debug, Clone)]
pub struct Facts {
    /// Of the pod, or of the node for its own record. What it has beside what consumers are told makes no other record.
    pub template: Arc<Template>,
    pub internet_exposed: bool,
    /// The security identity; none in a state that has a reserved number.
    pub sid: Option<Sid>,
    pub num: u32,
    /// None for an ordinary pod.
    pub state: Option<State>,
    /// Only where it was asked for: replicas differ in it.
    pub replica: Option<Box<Replica>>,
}

/// Why a record has no security identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// The address is a node's own.
    Host,
    /// The pod's labels, or those of its namespace, are not known.
    Init,
    /// No agent runs on the pod's node.
    Unmanaged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    ControlPlane,
    InternetExposed,
    Internal,
}

/// Which of the workload's pods it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    pub pod: Arc<str>,
    pub node: Option<Arc<str>>,
}

/// Numbers with a meaning, below those of identities ([`crate::numbers`]).
pub mod reserved {
    /// Of an identity for which there is no number left.
    pub const NONE: u32 = 0;
    pub const HOST: u32 = 1;
    pub const WORLD: u32 = 2;
    pub const UNMANAGED: u32 = 3;
    pub const HEALTH: u32 = 4;
    pub const INIT: u32 = 5;
    pub const REMOTE_NODE: u32 = 6;
    pub const KUBE_APISERVER: u32 = 7;
    pub const INGRESS: u32 = 8;
}

impl State {
    pub fn num(self) -> u32 {
        match self {
            State::Host => reserved::HOST,
            State::Init => reserved::INIT,
            State::Unmanaged => reserved::UNMANAGED,
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            State::Host => "host",
            State::Init => "init",
            State::Unmanaged => "unmanaged",
        }
    }
}

impl Role {
    pub fn text(self) -> &'static str {
        match self {
            Role::ControlPlane => "control-plane",
            Role::InternetExposed => "internet-exposed",
            Role::Internal => "internal",
        }
    }
}

impl Facts {
    pub fn role(&self) -> Role {
        match (self.control_plane, self.internet_exposed) {
            (true, _) => Role::ControlPlane,
            (false, true) => Role::InternetExposed,
            (false, false) => Role::Internal,
        }
    }
}

impl Record {
    pub fn new(facts: Facts) -> Record {
        Record { digest: digest(&facts), facts }
    }

    /// What the record of the address adds to the sum of all ([`crate::version`]).
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
    let Facts { template, internet_exposed, sid, num, state, replica } = facts;
    let mut bytes = Bytes(Sha256::new());
    for part in [&*template.workload, &*template.namespace, &*template.app, &*template.service()] {
        bytes.text(part.as_bytes());
    }
    bytes.text(&[u8::from(*internet_exposed), u8::from(template.control_plane)]);
    bytes.text(&num.to_be_bytes());
    bytes.text(sid.map_or(vec![], |sid| sid.0.to_be_bytes().to_vec()).as_slice());
    bytes.text(state.map_or("", State::text).as_bytes());
    for part in [replica.as_ref().map(|r| &r.pod), replica.as_ref().and_then(|r| r.node.as_ref())] {
        bytes.text(part.map_or("", |part| part).as_bytes());
    }
    for (key, value) in template.labels() {
        bytes.text(key.as_bytes());
        bytes.text(value.as_bytes());
    }
    bytes.end()
}

/// Parts with their lengths, so that none runs into the next.
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
        Facts { template, internet_exposed: false, sid: Some(Sid(7)), num: 263, state: None, replica: None }
    }

    #[test]
    fn whatever_differs_makes_another_record() {
        let of = |change: fn(&mut Template)| {
            let mut template = template();
            change(&mut template);
            Facts { template: Arc::new(template), ..facts() }
        };
        let labelled = |pairs: &[(&str, &str)]| {
            let pod_labels = labels(pairs);
            Facts { template: Arc::new(Template { pod_labels, ..template() }), ..facts() }
        };
        let replica = |node: Option<&str>| {
            let replica = Some(Box::new(Replica { pod: "web-1".into(), node: node.map(Arc::from) }));
            Facts { replica, ..facts() }
        };
        let all = [
            facts(),
            of(|t| t.workload = "api".into()),
            of(|t| t.namespace = "other".into()),
            of(|t| t.app = "web".into()),
            of(|t| t.control_plane = true),
            labelled(&[("app", "web"), ("service-identity", "part")]),
            labelled(&[("app", "front"), ("service-identity", "x")]),
            labelled(&[]),
            Facts { internet_exposed: true, ..facts() },
            Facts { sid: None, ..facts() },
            Facts { num: 1, ..facts() },
            Facts { state: Some(State::Init), ..facts() },
            Facts { state: Some(State::Unmanaged), ..facts() },
            replica(None),
            replica(Some("node-a")),
        ];
        let records = all.map(Record::new);
        for (i, a) in records.iter().enumerate() {
            for (j, b) in records.iter().enumerate() {
                assert_eq!((a == b, a.digest == b.digest), (i == j, i == j), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn what_consumers_are_not_told_makes_no_other_record() {
        let pod_labels = labels(&[("app", "front"), ("service-identity", "part"), ("pod-template-hash", "7c9b")]);
        let revised = Facts { template: Arc::new(Template { pod_labels, ..template() }), ..facts() };
        assert_eq!(Record::new(revised), Record::new(facts()));
    }

    #[test]
    fn the_same_record_at_another_address_counts_as_another() {
        let record = Record::new(facts());
        let digests = ["10.0.0.1", "10.0.0.2", "::10.0.0.1"].map(|a| record.digest_at(a.parse().unwrap()));
        assert!(digests[0] != digests[1] && digests[0] != digests[2]);
    }

    #[test]
    fn the_greater_role_is_told() {
        let role = |control_plane, internet_exposed| {
            let template = Arc::new(Template { control_plane, ..template() });
            Facts { template, internet_exposed, ..facts() }.role().text()
        };
        assert_eq!(
            [role(true, true), role(true, false), role(false, true), role(false, false)],
            ["control-plane", "control-plane", "internet-exposed", "internal"]
        );
    }
}
