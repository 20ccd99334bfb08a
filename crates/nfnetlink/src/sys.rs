//! Safe wrappers of libnftnl, libmnl and system calls: the only unsafe code of the house. Nothing here decides
//! anything.
//!
//! libnftnl writes messages without knowing how much room there is. So every object counts, as attributes are set, an
//! upper bound of what it will write, and a message is only begun in a buffer that has that much room.

#![allow(unsafe_code)]

mod buffer;
mod interface;
mod namespace;
mod objects;
mod option;
mod socket;

pub(crate) use buffer::Buffer;
pub use interface::interface_name;
pub(crate) use namespace::enter_new_network_namespace;
pub(crate) use objects::{ChainObject, Header, RuleObject, SetObject, TableObject};
pub(crate) use option::read_socket_option;
pub(crate) use socket::{Socket, SocketOption};
