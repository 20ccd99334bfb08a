//! Messages of nf_tables and their transaction.

use netlink::{AttributeList, flags};

/// `NFT_MSG_NEWTABLE` and other message types.
pub(super) const NEW_TABLE: u16 = 0;
pub(super) const GET_TABLE: u16 = 1;
pub(super) const NEW_CHAIN: u16 = 3;
pub(super) const GET_CHAIN: u16 = 4;
pub(super) const DELETE_CHAIN: u16 = 5;
pub(super) const NEW_RULE: u16 = 6;
pub(super) const DELETE_RULE: u16 = 8;
pub(super) const NEW_SET: u16 = 9;
pub(super) const NEW_ELEMENT: u16 = 12;
pub(super) const DELETE_ELEMENT: u16 = 14;

/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFPROTO_UNSPEC: u8 = 0;

/// Offset of the flags in `struct nlmsghdr`.
const FLAGS_AT: usize = 6;

/// The family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableFamily {
    Inet,
    Netdev,
    Bridge,
}

impl TableFamily {
    /// `NFPROTO_INET`, `NFPROTO_NETDEV`, `NFPROTO_BRIDGE`
    fn number(self) -> u8 {
        match self {
            TableFamily::Inet => 1,
            TableFamily::Netdev => 5,
            TableFamily::Bridge => 7,
        }
    }
}

/// A list of nf_tables, each of whose items is an attribute of the same type.
pub(super) fn list(items: impl IntoIterator<Item = AttributeList>) -> AttributeList {
    const NFTA_LIST_ELEM: u16 = 1;
    items.into_iter().fold(AttributeList::new(), |list, item| list.put_nested(NFTA_LIST_ELEM, item))
}

/// The messages of one transaction, numbered from 0.
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    /// Description of each message, for errors.
    pub(super) operations: Vec<&'static str>,
    /// Offset of the last message.
    last: usize,
}

impl Batch {
    pub(super) fn new() -> Batch {
        let mut batch = Batch { bytes: Vec::new(), operations: Vec::new(), last: 0 };
        batch.message("commit", BATCH_BEGIN, 0, NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES, AttributeList::new());
        batch
    }

    pub(super) fn push(
        &mut self,
        family: TableFamily,
        operation: &'static str,
        message: u16,
        flags: u16,
        attributes: AttributeList,
    ) {
        self.message(operation, NFNL_SUBSYS_NFTABLES << 8 | message, flags, family.number(), 0, attributes);
    }

    /// Ends the batch and requests an acknowledgement of its last operation; the kernel always sends errors.
    pub(super) fn finish(mut self) -> Batch {
        let flags = &mut self.bytes[self.last + FLAGS_AT..][..2];
        flags.copy_from_slice(&(u16::from_ne_bytes([flags[0], flags[1]]) | flags::ACK).to_ne_bytes());
        self.message("commit", BATCH_END, 0, NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES, AttributeList::new());
        self
    }

    /// Number of the message that is acknowledged.
    pub(super) fn acknowledged(&self) -> usize {
        self.operations.len() - 2
    }

    fn message(
        &mut self,
        operation: &'static str,
        kind: u16,
        flags: u16,
        family: u8,
        resource: u16,
        attributes: AttributeList,
    ) {
        let number = u32::try_from(self.operations.len()).expect("few messages");
        self.last = self.bytes.len();
        self.bytes.extend(message(kind, flags, number, family, resource, &attributes));
        self.operations.push(operation);
    }
}

/// A query outside of a batch.
pub(super) fn get_request(family: TableFamily, kind: u16, attributes: AttributeList) -> Vec<u8> {
    message(NFNL_SUBSYS_NFTABLES << 8 | kind, 0, 0, family.number(), 0, &attributes)
}

fn message(kind: u16, flags: u16, number: u32, family: u8, resource: u16, attributes: &AttributeList) -> Vec<u8> {
    const NFNETLINK_V0: u8 = 0;
    let [high, low] = resource.to_be_bytes();
    netlink::message(kind, flags, number, &[family, NFNETLINK_V0, high, low], attributes)
}

/// One message per line: its description and its bytes.
#[cfg(test)]
impl std::fmt::Display for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut rest = &self.bytes[..];
        for operation in &self.operations {
            let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            let (message, after) = rest.split_at(length);
            write!(f, "{operation}:")?;
            for (index, byte) in message.iter().enumerate() {
                write!(f, "{}{byte:02x}", if index % 4 == 0 { " " } else { "" })?;
            }
            writeln!(f)?;
            rest = after;
        }
        assert!(rest.is_empty());
        Ok(())
    }
}
