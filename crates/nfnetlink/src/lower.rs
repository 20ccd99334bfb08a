//! Compiles the language to what the kernel stores, as nft 1.0.6 does: rules to bytecode, sets to headers, keys and
//! ranges to elements. Pure functions, whose results are also compared with the table read back.

mod rule;
mod set;

pub use rule::lower_rule;
pub use set::SetHeader;
pub(crate) use set::{lower_element, raise_elements};
