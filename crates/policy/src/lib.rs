//! Semantics of NetworkPolicy.
//!
//! Kubernetes objects are lowered from JSON to a model ([`lower()`]); [`ClusterState`] stores them and applies
//! [`Change`]s; [`translate()`] compiles it to the ruleset of one node; [`explain()`] shows why a flow is allowed or
//! denied; [`check()`] lints policies for their author; [`suggest()`] writes policies for observed flows. Everything is
//! pure and total: no socket, no clock, no runtime, and no input makes it fail. Invalid input is denied, and reported
//! as a [`Diagnostic`].

mod addresses;
mod ambient;
mod attachment;
mod budget;
mod by_name;
mod changed;
mod check;
mod cluster_policy;
mod diagnostic;
mod directory;
mod edges;
mod explain;
mod footprint;
mod interner;
mod isolating;
mod labels;
mod learned;
mod lower;
mod model;
mod nodes;
mod packed;
mod peers;
mod plain;
mod pods_by_labels;
pub mod remote;
mod selector;
mod state;
mod suggest;
mod sums;
mod tally;
mod translate;
mod uid;

pub use addresses::Addresses;
pub use ambient::explain_ambient;
pub use attachment::{Attachment, AttachmentId, Holder};
pub use changed::Changed;
pub use check::check;
pub use cluster_policy::{
    ClusterPeer, ClusterPeers, ClusterPolicy, ClusterRule, DomainPattern, PodScope, RuleAction, Selection, Tier,
};
pub use diagnostic::{Diagnostic, Severity};
pub use edges::{EdgeChanges, Edges, End, FlowPorts, Line, Lines, MOST_EDGES, PortSpan, TierRuleName, Withheld};
pub use explain::{
    ClusterRuleName, ExplainedSide, Explanation, NamedTraffic, NearMiss, NotTraffic, Party, PartyName, RuleName,
    SideVerdict, Traffic, Unexplained, explain, explain_named, explain_side,
};
pub use interner::Interner;
pub use labels::Labels;
pub use learned::is_learnable;
pub use lower::{
    LONGEST_OWNER_BYTES, Nameless, OwnerReading, OwnerReference, lower, lower_name, lower_with, read_owner,
};
pub use model::{
    Block, Change, ENFORCEMENT_ANNOTATION, Enforcement, Kind, Moment, NamedPort, Namespace, NamespaceScope, Node,
    NotAnObjectName, Object, ObjectName, Owner, Peer, Peers, Pod, Policy, PolicyRule, PortMatch, PortRange, Ports,
    Problems, Tracked,
};
pub use nodes::NodeRanges;
pub use packed::pack_shared;
pub use plain::plain;
pub use selector::{Operator, Requirement, Selector, Values};
pub use state::ClusterState;
pub use suggest::{EndSeen, FlowSeen, Note, Scope, Suggestion, Unsuggested, WhoSeen, Workloads, suggest};
pub use tally::PolicyCounts;
pub use translate::{
    ANSWER_PREFIX, BadMask, COPIED_ANSWER_BYTES, Cause, DEFAULT_MARK_MASK, DENIED_PREFIX, Direction, EdgeHook,
    FLOW_KEPT_SECONDS, FlowTable, Judgement, LOGGED_BYTES, Layout, PAUSED_SECONDS, Program, Reported, TABLE_COMMENT,
    TUNNEL_PORTS, Translation, Translator, counting_chains, flow_tables, leave_out, narrows, stamp, translate,
};
pub use uid::Uid;

pub use nft::Protocol;
