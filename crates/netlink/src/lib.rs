//! Netlink (netlink(7), `include/uapi/linux/netlink.h`): requests as bytes, datagrams from the kernel as messages and
//! attributes, and a socket for requests that the kernel answers at once. The crate knows no family of netlink: message
//! types, attribute types and the fixed headers of messages belong to its users.
//!
//! Lengths, message types and flags are in host byte order. Numbers in attributes are in host byte order too, except
//! those of netfilter, which are in network byte order; methods name the order.
//!
//! ```
//! use netlink::{AttributeList, Messages, flags, message};
//!
//! // RTM_GETLINK with an empty `struct ifinfomsg` and the attribute IFLA_IFNAME.
//! let request = message(18, flags::DUMP, 7, &[0; 16], &AttributeList::new().put_text(3, "eth0"));
//!
//! let message = Messages::new(&request).next().unwrap()?;
//! let (_header, mut attributes) = message.split(16)?;
//! assert_eq!((message.kind, message.sequence), (18, 7));
//! assert_eq!(attributes.next().unwrap()?.text(), Ok("eth0"));
//! # Ok::<(), netlink::MalformedNetlink>(())
//! ```

#![warn(missing_docs)]

mod decode;
mod encode;
pub mod flags;
mod socket;

pub use decode::{Acknowledgement, Attribute, Attributes, MalformedNetlink, Message, Messages};
pub use encode::{AttributeList, NESTED, message};
pub use socket::{NetlinkProtocol, Socket};

/// Length of `struct nlmsghdr` in bytes.
pub const HEADER: usize = 16;

/// `NLMSG_ERROR`, the type of acknowledgements and errors.
pub const ERROR: u16 = 2;

/// `NLMSG_DONE`, the type of the message that ends a dump.
pub const DONE: u16 = 3;
