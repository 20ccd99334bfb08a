//! Messages of netfilter over netlink: behind the netlink header they have `struct nfgenmsg`.

use netlink::AttributeList;
pub(crate) use netlink::{Attribute, Attributes, HEADER, Message, Messages};
use nft::TableFamily;

use crate::decode::DecodeError;

/// Length of `struct nfgenmsg`.
pub(crate) const GENERAL: usize = 4;

/// `NFNL_SUBSYS_NFTABLES`, `NFNL_SUBSYS_CTNETLINK` and `NFNL_SUBSYS_ULOG`, in the upper byte of a message's type.
pub(crate) const NFTABLES: u16 = 10 << 8;
pub(crate) const CTNETLINK: u16 = 1 << 8;
pub(crate) const ULOG: u16 = 4 << 8;

/// `NFPROTO_INET`, `NFPROTO_NETDEV` and `NFPROTO_BRIDGE`
const INET: u8 = 1;
const NETDEV: u8 = 5;
const BRIDGE: u8 = 7;

/// The family as netlink encodes it.
pub(crate) fn family_number(family: TableFamily) -> u8 {
    match family {
        TableFamily::Inet => INET,
        TableFamily::Bridge => BRIDGE,
        TableFamily::Netdev => NETDEV,
    }
}

/// The family and the attributes of a netfilter message.
pub(crate) fn family_and_attributes<'a>(message: &Message<'a>) -> Result<(u8, Attributes<'a>), DecodeError> {
    let (general, attributes) = message.split(GENERAL)?;
    Ok((general[0], attributes))
}

/// A request of one message.
pub(crate) struct Writer {
    kind: u16,
    flags: u16,
    sequence: u32,
    general: [u8; GENERAL],
    attributes: AttributeList,
}

impl Writer {
    pub(crate) fn new(kind: u16, flags: i32, sequence: u32, family: u8) -> Writer {
        Writer::with_resource(kind, flags, sequence, family, 0)
    }

    /// `resource` is the `res_id` of `struct nfgenmsg`, which holds the subsystem in messages that begin or end a
    /// batch.
    pub(crate) fn with_resource(kind: u16, flags: i32, sequence: u32, family: u8, resource: u16) -> Writer {
        let [high, low] = resource.to_be_bytes();
        let general = [family, 0, high, low];
        Writer { kind, flags: flags as u16, sequence, general, attributes: AttributeList::new() }
    }

    pub(crate) fn put(self, kind: u16, value: &[u8]) -> Writer {
        Writer { attributes: self.attributes.put(kind, value), ..self }
    }

    pub(crate) fn put_nested(self, kind: u16, attributes: &[u8]) -> Writer {
        Writer { attributes: self.attributes.put_nested(kind, attributes), ..self }
    }

    pub(crate) fn put_text(self, kind: u16, text: &str) -> Writer {
        Writer { attributes: self.attributes.put_text(kind, text), ..self }
    }

    pub(crate) fn put_number(self, kind: u16, number: u32) -> Writer {
        Writer { attributes: self.attributes.put_be32(kind, number), ..self }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        let Writer { kind, flags, sequence, general, attributes } = self;
        netlink::message(kind, flags, sequence, &general, &attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn general_header_holds_family_and_resource() {
        let bytes = Writer::with_resource(NFTABLES | 1, 0, 7, 1, 10).put_number(2, 5).finish();
        let message = Messages::new(&bytes).next().unwrap().unwrap();
        assert_eq!((message.kind, message.sequence, &message.body[..GENERAL]), (NFTABLES | 1, 7, &[1, 0, 0, 10][..]));
        let (family, mut attributes) = family_and_attributes(&message).unwrap();
        assert_eq!((family, attributes.next().unwrap().unwrap().be32()), (1, Ok(5)));
    }

    #[test]
    fn message_without_general_header_is_an_error() {
        let bytes = netlink::message(0, 0, 0, &[], &AttributeList::new());
        assert!(family_and_attributes(&Messages::new(&bytes).next().unwrap().unwrap()).is_err());
    }
}
