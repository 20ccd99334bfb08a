//! The netlink layer between a [`nft::Ruleset`] and the kernel's nf_tables: operations are encoded and committed in one
//! transaction, the table is read back, and its difference from the wanted ruleset becomes new operations.
//!
//! This crate depends on the language and the netlink protocol, never on Kubernetes. Decisions (lowering, decoding,
//! comparing) are functions on values; [`Kernel`] only sends and receives. Unsafe code is confined to `sys`.

mod commit;
mod conntrack;
mod decode;
mod encode;
mod expression;
mod flow_monitor;
mod hooks;
mod legacy;
mod lower;
mod message;
mod notifications;
mod observed;
mod packet_log;
mod probe;
mod read;
mod records;
mod release;
mod repair;
mod request;
mod sys;
mod userdata;

pub use commit::{CommitError, Committed, Refusal};
pub use conntrack::{CountError, MarkError, clear_marks, count_flows};
pub use decode::{
    ChainCounterRecord, ChainRecord, ChangeRecord, Counter, DecodeError, FlowCount, FlowEvent, FlowRecord,
    FlowtableRecord, MarkWriterRecord, MarkedFlow, PacketHead, PacketRecord, Reply, RuleRecord, SetRecord, TableRecord,
    TcpSegment, TrackedFlow, TrackedTuple, decode_chains, decode_changes, decode_elements, decode_flow_count,
    decode_flow_events, decode_flow_records, decode_flowtables, decode_generation, decode_logged, decode_mark_writers,
    decode_marked_flows, decode_replies, decode_rule_counters, decode_rules, decode_sets, decode_tables,
    decode_tracked_flows,
};
pub use expression::{Base, Compare, CtKey, Expression, Limit, MetaKey, Register, Verdict};
pub use flow_monitor::{FlowEvents, FlowMonitor, FlowMonitorError, ListFlowsError, Subscription, list_flows};
pub use hooks::{BaseChain, ChainName, Flowtable, MarkWriter};
pub use legacy::{LegacyTables, legacy_mark_writers};
pub use lower::{SetHeader, lower_rule};
pub use notifications::{Foreign, Notification, NotificationError, Notifications};
pub use observed::{Observed, ObservedChain, ObservedHook, ObservedRule, ObservedSet, RawElement};
pub use packet_log::{Logged, LoggedPacket, PacketLog, PacketLogError};
pub use probe::{Feature, Features, ProbeError, probe};
pub use read::ReadError;
pub use release::{REQUIREMENTS, Release, Requirement};
pub use repair::repair;
pub use request::{Kernel, OpenError, RequestError};
pub use sys::interface_name;
