//! Safe wrappers of libnftnl and libmnl: the only unsafe code of the house. Nothing here decides anything.
//!
//! libnftnl writes messages without knowing how much room there is. So every object counts, as attributes are set, an
//! upper bound of what it will write, and a message is only begun in a buffer that has that much room.

#![allow(unsafe_code)]

mod buffer;
mod objects;
mod socket;

pub(crate) use buffer::Buffer;
pub(crate) use objects::{ChainObject, Header, RuleObject, SetObject, TableObject};
pub(crate) use socket::{Socket, SocketOption};
