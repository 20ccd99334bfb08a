//! Safe wrappers of libnftnl, libmnl and system calls, and the only unsafe code of the product. No decisions are made
//! here.
//!
//! libnftnl writes messages without checking the size of the buffer. So every object keeps an upper bound of its
//! encoded size as attributes are set, and a message is only written to a buffer with that much room.

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
