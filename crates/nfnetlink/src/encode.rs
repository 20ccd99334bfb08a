//! Encodes operations as the netlink messages of one transaction.

use nft::{Hook, Operation, Table};

use crate::lower::{SetHeader, lower_element, lower_rule};
use crate::message::{NFTABLES, Writer, family_number};
use crate::request::LARGEST_BATCH;
use crate::sys::{Buffer, ChainObject, Header, RuleObject, SetObject, TableObject};
use crate::table_snapshot::{ObservedHook, RawElement};
use crate::userdata;

/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`, and the attribute of the expected generation.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const BATCH_GENERATION: u16 = 1;

/// `NFT_MSG_*`
const NEW_TABLE: u16 = 0;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const DELETE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const DELETE_RULES: u16 = 8;
const NEW_SET: u16 = 9;
const DELETE_SET: u16 = 11;
const NEW_ELEMENTS: u16 = 12;
const DELETE_ELEMENTS: u16 = 14;

/// Limit of the bytes of elements in one message. Their list is one attribute, whose length field has 16 bits.
const LARGEST_LIST: usize = 60_000;

/// A transaction, ready to be sent.
pub(crate) struct Batch {
    pub(crate) buffer: Buffer,
    /// The sequence number of its first message, which begins the batch.
    pub(crate) first_sequence: u32,
    /// One entry per message between begin and end, in order.
    pub(crate) parts: Vec<BatchMessage>,
}

/// One message between begin and end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchMessage {
    /// The operation's index.
    pub(crate) operation: usize,
    /// Where the message starts in the buffer.
    pub(crate) start: usize,
    /// Index of the first of the operation's elements that the message carries.
    pub(crate) first_element: usize,
}

/// The transaction has more than [`LARGEST_BATCH`] bytes.
#[derive(Debug)]
pub(crate) struct TooBig;

const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;

/// The number, priority and policy that the kernel reports for a base chain at the hook.
pub(crate) fn observed_hook(hook: Hook) -> ObservedHook {
    let (number, priority, policy, device) = match hook {
        // NF_INET_FORWARD and NF_INET_LOCAL_IN at priority `filter`
        Hook::Forward => (2, 0, NF_ACCEPT, None),
        Hook::Input => (1, 0, NF_ACCEPT, None),
        // NF_INET_FORWARD before the chains of others, which may drop packets
        Hook::EarlyForward => (2, -250, NF_ACCEPT, None),
        // NF_INET_LOCAL_OUT at priority `filter`
        Hook::Output => (3, 0, NF_ACCEPT, None),
        // NF_INET_POST_ROUTING after source NAT (NF_IP_PRI_NAT_SRC, 100)
        Hook::LatePostrouting => (4, 200, NF_ACCEPT, None),
        // NF_INET_PRE_ROUTING before defragmentation (NF_IP_PRI_CONNTRACK_DEFRAG, -400), which replies to fragments
        Hook::EarlyPrerouting => (0, -450, NF_ACCEPT, None),
        // NF_BR_FORWARD at priority `filter` of bridges
        Hook::BridgeForward => (2, -200, NF_ACCEPT, None),
        // NF_BR_LOCAL_OUT at priority `filter` of bridges
        Hook::BridgeOutput => (3, -200, NF_ACCEPT, None),
        // NF_BR_PRE_ROUTING at priority `dstnat` of bridges (NF_BR_PRI_NAT_DST_BRIDGED)
        Hook::Prerouting => (0, -300, NF_ACCEPT, None),
        // NF_NETDEV_INGRESS before foreign chains, whose priorities start at -300 by convention
        Hook::Ingress(interface) => (0, -500, NF_DROP, Some(interface.to_string())),
    };
    ObservedHook { kind: "filter".into(), number, priority, policy, device }
}

/// `NFT_TABLE_F_OWNER` and `NFT_TABLE_F_PERSIST`
pub(crate) const OWNER: u32 = 2;
pub(crate) const PERSIST: u32 = 4;

/// Always sets both flags: the kernel deletes a table with `OWNER` alone when the socket is closed.
pub(crate) fn table_flags(protected: bool) -> u32 {
    if protected { OWNER | PERSIST } else { 0 }
}

/// A `generation` of 0 commits regardless of the kernel generation.
pub(crate) fn encode(operations: &[Operation], generation: u32, first_sequence: u32) -> Result<Batch, TooBig> {
    let mut batch = Batch { buffer: Buffer::default(), first_sequence, parts: Vec::new() };
    let begin = Writer::with_resource(BATCH_BEGIN, 0, first_sequence, 0, NFTABLES >> 8);
    let begin = if generation == 0 { begin } else { begin.put_number(BATCH_GENERATION, generation) };
    batch.buffer.push(&begin.finish());
    for (index, operation) in operations.iter().enumerate() {
        batch.operation(index, operation);
        if batch.buffer.len() > LARGEST_BATCH {
            return Err(TooBig);
        }
    }
    batch.acknowledge_last();
    let end = Writer::with_resource(BATCH_END, 0, batch.next_sequence(), 0, NFTABLES >> 8);
    batch.buffer.push(&end.finish());
    Ok(batch)
}

impl Batch {
    fn next_sequence(&self) -> u32 {
        self.first_sequence.wrapping_add(self.parts.len() as u32 + 1)
    }

    /// The header of the next message, which is recorded as a part.
    fn header(&mut self, operation: usize, table: &Table, kind: u16, flags: i32, first_element: usize) -> Header {
        let sequence = self.next_sequence();
        self.parts.push(BatchMessage { operation, start: self.buffer.len(), first_element });
        Header { kind, flags: flags as u16, family: family_number(table.family), sequence }
    }

    /// Requests an ACK of the last part. The kernel sends it after the commit, and errors of any part even without a
    /// request; before 6.10 it does not acknowledge the message that ends the batch.
    fn acknowledge_last(&mut self) {
        if let Some(part) = self.parts.last() {
            let flags = part.start + 6;
            let bytes = &mut self.buffer.bytes_mut()[flags..flags + 2];
            let with_ack = u16::from_ne_bytes([bytes[0], bytes[1]]) | libc::NLM_F_ACK as u16;
            bytes.copy_from_slice(&with_ack.to_ne_bytes());
        }
    }

    fn operation(&mut self, index: usize, operation: &Operation) {
        match operation {
            Operation::AddTable { table, comment, protected } => {
                let header = self.header(index, table, NEW_TABLE, libc::NLM_F_CREATE, 0);
                let userdata = userdata::of_comment(Some(comment.as_str()), false);
                TableObject::with_contents(table.name.as_str(), table_flags(*protected), &userdata)
                    .append_to(&mut self.buffer, header);
            }
            Operation::DeleteTable { table } => {
                let header = self.header(index, table, DELETE_TABLE, 0, 0);
                TableObject::named(table.name.as_str()).append_to(&mut self.buffer, header);
            }
            Operation::AddChain { table, chain, hook } => {
                let header = self.header(index, table, NEW_CHAIN, libc::NLM_F_CREATE, 0);
                let mut object = ChainObject::named(table.name.as_str(), chain.as_str());
                if let Some(hook) = hook {
                    let ObservedHook { kind, number, priority, policy, device } = observed_hook(*hook);
                    object.hook(&kind, number, priority, policy);
                    device.iter().for_each(|device| object.device(device));
                }
                object.append_to(&mut self.buffer, header);
            }
            Operation::FlushChain { table, chain } => {
                let header = self.header(index, table, DELETE_RULES, 0, 0);
                RuleObject::in_chain(table.name.as_str(), chain.as_str()).append_to(&mut self.buffer, header);
            }
            Operation::DeleteChain { table, chain } => {
                let header = self.header(index, table, DELETE_CHAIN, 0, 0);
                ChainObject::named(table.name.as_str(), chain.as_str()).append_to(&mut self.buffer, header);
            }
            Operation::AddRule { table, chain, rule } => {
                let header = self.header(index, table, NEW_RULE, libc::NLM_F_CREATE | libc::NLM_F_APPEND, 0);
                let mut object = RuleObject::in_chain(table.name.as_str(), chain.as_str());
                for expression in lower_rule(rule, table.family) {
                    object.push(&expression);
                }
                object.comment(&userdata::of_comment(rule.comment.as_ref().map(|c| c.as_str()), false));
                object.append_to(&mut self.buffer, header);
            }
            Operation::AddSet { table, name, set } => {
                let header = self.header(index, table, NEW_SET, libc::NLM_F_CREATE, 0);
                let mut object = SetObject::named(table.name.as_str(), name.as_str());
                // The kernel requires an id by which the same transaction can refer to the set; we refer to sets by
                // name.
                object.header(&SetHeader::of(set), index as u32 + 1, &userdata::of_set(set));
                object.append_to(&mut self.buffer, header);
            }
            Operation::DeleteSet { table, name } => {
                let header = self.header(index, table, DELETE_SET, 0, 0);
                SetObject::named(table.name.as_str(), name.as_str()).append_to(&mut self.buffer, header);
            }
            Operation::AddElements { table, name, set: _, elements } => {
                let new = |e: RawElement| e;
                self.elements(index, (NEW_ELEMENTS, libc::NLM_F_CREATE), table, name, elements, new);
            }
            Operation::DeleteElements { table, name, set: _, elements } => {
                // The kernel looks up the element by its key and by the interval-end flag alone.
                let bare = |e: RawElement| RawElement { end: e.end, ..RawElement::of_key(e.key) };
                self.elements(index, (DELETE_ELEMENTS, 0), table, name, elements, bare);
            }
        }
    }

    fn elements(
        &mut self,
        index: usize,
        (kind, flags): (u16, i32),
        table: &Table,
        name: &nft::Name,
        elements: &[(nft::Key, nft::Element)],
        shape: impl Fn(RawElement) -> RawElement,
    ) {
        let empty = || SetObject::named(table.name.as_str(), name.as_str());
        let (mut object, mut first) = (empty(), 0);
        for (i, (key, element)) in elements.iter().enumerate() {
            let (start, end) = lower_element(key, element);
            object.push(&shape(start));
            if let Some(end) = end {
                object.push(&shape(end));
            }
            if object.room() > LARGEST_LIST || i + 1 == elements.len() {
                let header = self.header(index, table, kind, flags, first);
                object.append_elements_to(&mut self.buffer, header);
                (object, first) = (empty(), i + 1);
            }
        }
    }
}
