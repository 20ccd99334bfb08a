//! Semantics of NetworkPolicy.
//!
//! Kubernetes objects are lowered from JSON to a model ([`lower()`]); [`ClusterState`] stores them and applies
//! [`Change`]s; [`translate()`] compiles it to the ruleset of one node; [`explain()`] shows why a flow is allowed or
//! denied; [`check()`] lints policies for their author; [`suggest()`] writes policies for observed flows. Everything is
//! pure and total: no socket, no clock, no runtime, and no input makes it fail. Invalid input is denied, and reported
//! as a [`Diagnostic`].
//!
//! A policy that lets one pod reach another one, as rules and as an explanation:
//!
//! ```
//! use nft::{Packet, Stop, evaluate};
//! use policy::{Change, ClusterState, Kind, Layout, Protocol, SideVerdict, Traffic, explain, lower, translate};
//! use serde_json::json;
//!
//! let pod = |name: &str, address: &str| {
//!     json!({
//!         "metadata": {"namespace": "shop", "name": name, "labels": {"app": name}},
//!         "spec": {"nodeName": "node-a"},
//!         "status": {"phase": "Running", "podIP": address},
//!     })
//! };
//! let ingress = json!([{
//!     "from": [{"podSelector": {"matchLabels": {"app": "web"}}}],
//!     "ports": [{"port": 5432}],
//! }]);
//! let database = json!({
//!     "apiVersion": "networking.k8s.io/v1",
//!     "kind": "NetworkPolicy",
//!     "metadata": {"namespace": "shop", "name": "database"},
//!     "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"], "ingress": ingress},
//! });
//!
//! let mut state = ClusterState::new();
//! for (kind, object) in [
//!     (Kind::Namespace, json!({"metadata": {"name": "shop"}})),
//!     (Kind::Pod, pod("web", "10.1.0.1")),
//!     (Kind::Pod, pod("batch", "10.1.0.2")),
//!     (Kind::Pod, pod("db", "10.1.0.3")),
//!     (Kind::NetworkPolicy, database),
//! ] {
//!     let object = lower(kind, &object)?;
//!     assert_eq!(object.problems(), []);
//!     state.apply(Change::Set(object));
//! }
//!
//! let translation = translate(&state, "node-a", &Layout::for_table("ringfence")?);
//! let ruleset = translation.ruleset.in_first_generation();
//! assert_eq!(ruleset.validate(), []);
//!
//! let [web, batch, db] = [1, 2, 3].map(|host| [10, 1, 0, host].into());
//! for (source, stop) in [(web, Stop::Accepted), (batch, Stop::Dropped)] {
//!     let packet = Packet::first(source, db, Protocol::Tcp.number(), Some(5432));
//!     assert_eq!(evaluate(&ruleset, &packet).stop, stop);
//! }
//!
//! let port = Traffic::Port(Protocol::Tcp, 5432);
//! let SideVerdict::Allowed { isolated_by, rule } = explain(&state, web, db, port).ingress else { panic!() };
//! assert_eq!((&isolated_by[..], rule.field.as_str()), (&["shop/database".to_owned()][..], "spec.ingress[0]"));
//!
//! let SideVerdict::Denied { closest, .. } = explain(&state, batch, db, port).ingress else { panic!() };
//! assert_eq!(closest.map(|miss| miss.rule), Some(rule));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod address_ranges;
mod addresses;
mod ambient;
mod attachment;
mod check;
mod claim_rank;
mod cluster_policy;
mod diagnostic;
mod dirty_set;
mod edges;
mod explain;
mod isolating_policies;
mod labels;
mod lower;
mod model;
mod peers;
pub mod remote;
mod sanitize;
mod selector;
mod slab;
mod state;
mod suggest;
mod translate;
mod uid;

pub use addresses::Addresses;
pub use ambient::explain_ambient;
pub use attachment::{Attachment, AttachmentId, Holder};
pub use check::check;
pub use claim_rank::ClaimRank;
pub use cluster_policy::{
    ClusterPeer, ClusterPeers, ClusterPolicy, ClusterRule, DomainPattern, PodScope, RuleAction, Selection, Tier,
};
pub use diagnostic::{Diagnostic, Severity};
pub use dirty_set::DirtySet;
pub use edges::{
    DeclaredLine, DeclaredLines, EdgeChanges, EdgeEnd, Edges, FlowPorts, MOST_EDGES, PortSpan, TierRuleName, Withheld,
};
pub use explain::{
    ClusterRuleName, ExplainedSide, Explanation, FlowEnd, NamedTraffic, NearMiss, NotTraffic, PartyError, PartyName,
    RuleName, SideVerdict, Traffic, explain, explain_domain_names, explain_named, explain_side,
};
pub use labels::Labels;
pub use lower::{
    LONGEST_OWNER_BYTES, Nameless, OwnerReading, OwnerReference, lower, lower_name, lower_with, read_owner,
};
pub use model::{
    Block, Change, ENFORCEMENT_ANNOTATION, Enforcement, Kind, Moment, NamedPort, Namespace, NamespaceScope, Node,
    NotAnObjectName, Object, ObjectName, Owner, Peer, Peers, Pod, Policy, PolicyRule, PortMatch, PortRange, Ports,
    Problems, SourceObject,
};
pub use sanitize::plain;
pub use selector::{Operator, Requirement, Selector, Values};
pub use state::{ClusterState, Interner, NodeRanges, PolicyCounts, StateDelta, is_learnable, pack_shared};
pub use suggest::{
    EndSeen, FlowSeen, Note, SuggestedPods, Suggestion, SuggestionObstacle, WhoSeen, Workloads, suggest,
};
pub use translate::{
    BadMask, COPIED_ANSWER_BYTES, Cause, DEFAULT_MARK_MASK, DENIED_PREFIX, Direction, DnsCopy, DraftRuleset, EdgeHook,
    FLOW_KEPT_SECONDS, FORWARD_CHAIN, FlowTable, Generation, Judgement, LOGGED_BYTES, Layout, PAUSED_SECONDS,
    ParsedPrefix, Program, Revocations, TABLE_COMMENT, TUNNEL_PORTS, Translation, Translator, changes_intervals,
    counting_chains, dns_clients, flow_tables, names_without_role, translate,
};
pub use uid::Uid;

pub use nft::Protocol;
