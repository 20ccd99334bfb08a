//! The subset of the nftables language that Ringfence uses, as plain values.
//!
//! A [`Ruleset`] is one table: named sets, verdict maps and chains of rules. It can be validated, printed as input of
//! `nft -f`, compared with another one ([`difference()`]) and evaluated for a packet ([`evaluate()`]). This crate
//! depends neither on Kubernetes nor on the kernel: it does no I/O, and everything is deterministic.

mod comment;
mod difference;
mod elements;
mod evaluate;
mod hardware;
mod interface;
mod key;
mod name;
mod operation;
mod reads;
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
    Action, Chain, Direction, EtherType, Field, Hook, IgmpType, Limit, LinkAddressOption, Log, Match, PacketPriority,
    Period, ROUTER_ALERT, Rerouting, Rule, State, Verdict,
};
pub use ruleset::{NameMap, Ruleset};
pub use set::{Dynamic, Element, Set};
pub use table::{Table, TableFamily};
pub use validate::Invalid;
