//! Flow records of this node (`--flows on`).

pub(crate) mod accounting;
#[allow(dead_code, reason = "flow capture asks it")]
pub(crate) mod services;
