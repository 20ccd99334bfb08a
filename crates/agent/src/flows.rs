//! Flow records of this node (`--flows on`).

#[allow(dead_code, reason = "flow capture asks it")]
pub(crate) mod services;
