//! What the kernel sends, as values. Safe code that believes no length and never panics: it is fuzzed.
//!
//! Each function takes one datagram and gives what its messages of one kind say; other messages are stepped over.
//! Unknown attributes are too, where they cannot change what an object does; where they could, the object is `foreign`.

mod attributes;
mod bytecode;
mod element;
mod flow;
mod objects;
mod reply;

pub use element::decode_elements;
pub use flow::{MarkedFlow, decode_marked_flows};
pub use objects::{
    ChainRecord, RuleRecord, SetRecord, TableRecord, decode_chains, decode_generation, decode_rules, decode_sets,
    decode_tables,
};
pub use reply::{Reply, decode_replies};

/// Why bytes are not what the kernel's netlink says they are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("{0} ends before it should")]
    Truncated(&'static str),
    #[error("attribute {attribute} has {length} bytes")]
    Length { attribute: u16, length: usize },
    #[error("attribute {attribute} is no text")]
    Text { attribute: u16 },
    #[error("{object} has no attribute {attribute}")]
    Missing { object: &'static str, attribute: u16 },
}
