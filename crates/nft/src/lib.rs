//! A subset of the nftables language, as plain values.
//!
//! A [`Ruleset`] is one table: named sets, verdict maps and chains of rules. It can be validated, printed as input of
//! `nft -f`, compared with another one ([`difference()`]) and evaluated for a packet ([`evaluate()`]). This crate
//! depends neither on Kubernetes nor on the kernel: it does no I/O, and everything is deterministic.
//!
//! ```
//! use std::sync::Arc;
//!
//! use nft::{
//!     Action, Chain, Comment, Datum, Element, Family, Field, Hook, Key, KeyType, Match, Name, Packet, Rule, Ruleset,
//!     Set, Stop, Table, Verdict, evaluate,
//! };
//!
//! let blocked = Name::new("blocked")?;
//! let mut set = Set::of(&[KeyType::Ipv4Addr]);
//! set.elements.insert(Key::One(Datum::V4([192, 0, 2, 7].into())), Element::default());
//! let in_set = Match::InSet { fields: vec![Field::Source(Family::V4)], set: blocked.clone() };
//! let drop = Rule::new(vec![in_set], vec![Action::Counter, Action::Verdict(Verdict::Drop)]);
//!
//! let mut ruleset = Ruleset::new(Table::inet(Name::new("example")?), Comment::new("one blocked source"));
//! ruleset.sets.insert(blocked, Arc::new(set));
//! ruleset.chains.insert(Name::new("forward")?, Arc::new(Chain { hook: Some(Hook::Forward), rules: vec![drop] }));
//! assert_eq!(ruleset.validate(), []);
//!
//! let text = ruleset.to_string();
//! assert!(text.starts_with("table inet example {\n"));
//! assert!(text.contains("ip saddr @blocked counter drop"));
//!
//! let packet = |source: [u8; 4]| Packet::first(source.into(), [198, 51, 100, 1].into(), 6, Some(443));
//! assert_eq!(evaluate(&ruleset, &packet([192, 0, 2, 7])).stop, Stop::Dropped);
//! assert_eq!(evaluate(&ruleset, &packet([192, 0, 2, 8])).stop, Stop::Accepted);
//! # Ok::<(), nft::NameError>(())
//! ```

#![warn(missing_docs)]

mod comment;
mod difference;
mod elements;
mod evaluate;
mod hardware;
mod interface;
mod key;
mod name;
mod operation;
mod packet_reads;
mod rule;
mod ruleset;
mod set;
mod table;
mod text;
mod validate;

pub use comment::Comment;
pub use difference::{add_table, comes_and_goes, create, difference, replace};
pub use elements::{ElementChange, Elements};
pub use evaluate::{Evaluation, Flow, Packet, Stop, evaluate, evaluate_at, rules_met};
pub use hardware::{HardwareAddress, HardwareAddressError};
pub use interface::{InterfaceName, InterfaceNameError};
pub use key::{Datum, Family, Key, KeyType, Protocol};
pub use name::{Name, NameError};
pub use operation::Operation;
pub use rule::{
    Action, Chain, ConntrackDirection, EtherType, Field, Hook, IgmpType, Limit, LinkAddressOption, Log, Match,
    PacketPriority, Period, ROUTER_ALERT, ReroutingOption, Rule, State, Verdict,
};
pub use ruleset::{NameMap, Ruleset};
pub use set::{Dynamic, Element, Set};
pub use table::{Table, TableFamily};
pub use validate::{Invalid, InvalidPart, ValidatedRuleset};
