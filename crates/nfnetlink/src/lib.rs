//! The netlink layer between a [`nft::Ruleset`] and the kernel's nf_tables: operations are encoded and committed in one
//! transaction, the table is read back, and its difference from the wanted ruleset becomes new operations.
//!
//! This crate depends on the language and the netlink protocol, never on Kubernetes. Decisions (lowering, decoding,
//! comparing) are functions on values; [`Kernel`] only sends and receives. Unsafe code is confined to `sys`.
//!
//! Without a kernel: the bytecode of a rule, and the operations that turn the table as read into the wanted one.
//!
//! ```
//! use nfnetlink::{Compare, Expression, MetaKey, Register, TableSnapshot, VerdictCode, lower_rule, repair};
//! use nft::{Action, Comment, Match, Name, Protocol, Rule, Ruleset, Table, TableFamily};
//!
//! let drop = Action::Verdict(nft::Verdict::Drop);
//! let rule = Rule::new(vec![Match::Protocol(Protocol::Sctp)], vec![Action::Counter, drop]);
//! assert_eq!(
//!     lower_rule(&rule, TableFamily::Inet),
//!     [
//!         Expression::Meta { key: MetaKey::L4proto, to: Register::FIRST },
//!         Expression::Cmp { operator: Compare::Equal, from: Register::FIRST, data: vec![132] },
//!         Expression::Counter,
//!         Expression::Verdict(VerdictCode::Drop),
//!     ]
//! );
//!
//! let wanted = Ruleset::new(Table::inet(Name::new("example")?), Comment::new("mine"));
//! let text = |observed| repair(observed, &wanted).iter().map(ToString::to_string).collect::<Vec<_>>();
//! assert_eq!(text(None), [r#"add table inet example { comment "mine"; }"#]);
//!
//! // A table with another comment is foreign: it is replaced as a whole.
//! let foreign = TableSnapshot { comment: Some("other".to_owned()), ..TableSnapshot::default() };
//! assert_eq!(text(Some(&foreign))[0], "delete table inet example");
//! # Ok::<(), nft::NameError>(())
//! ```

#![warn(missing_docs)]

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
mod packet_log;
mod probe;
mod read;
mod records;
mod release;
mod repair;
mod request;
mod sys;
mod table_snapshot;
mod userdata;

pub use commit::{CommitError, CommitReceipt, Refusal};
pub use conntrack::{ChangeFlowsError, CountError, clear_marks, count_flows, delete_flows};
pub use decode::{
    ChainCounterRecord, ChainRecord, ChangeRecord, ConntrackRecord, Counter, DecodeError, FlowCount, FlowEvent,
    FlowIdentity, FlowtableRecord, KernelReply, ListedFlow, LogRecord, MarkWriterRecord, MarkedFlow, PacketHead,
    RuleRecord, SetRecord, TableRecord, TcpSegment, TrackedFlow, TrackedTuple, decode_chains, decode_changes,
    decode_elements, decode_flow_count, decode_flow_events, decode_flow_records, decode_flowtables, decode_generation,
    decode_listed_flows, decode_logged, decode_mark_writers, decode_marked_flows, decode_replies, decode_rule_counters,
    decode_rules, decode_sets, decode_tables, decode_tracked_flows,
};
pub use expression::{Base, Compare, CtKey, Expression, LimitExpression, MetaKey, Register, VerdictCode};
pub use flow_monitor::{FlowEvents, FlowMonitor, FlowMonitorError, ListFlowsError, Subscription, list_flows};
pub use hooks::{BaseChain, ChainName, Flowtable, MarkWriter};
pub use legacy::{LegacyTables, legacy_mark_writers};
pub use lower::{SetHeader, lower_rule};
pub use notifications::{Foreign, Notification, NotificationError, Notifications};
pub use packet_log::{LogEvent, PacketLog, PacketLogError};
pub use probe::{Feature, Features, ProbeError, probe};
pub use read::TableReadError;
pub use release::KernelRelease;
pub use repair::repair;
pub use request::{Kernel, OpenError, RequestError};
pub use sys::interface_name;
pub use table_snapshot::{ObservedChain, ObservedHook, ObservedRule, ObservedSet, RawElement, TableSnapshot};
