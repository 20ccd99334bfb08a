//! The plugin's own tables, for pods that are started although the agent does not answer (`onTimeout: isolate`): nothing
//! passes from or to these pods until the agent adopts them.
//!
//! The table of family `inet` drops what is forwarded from or to a pod's addresses. It sees neither packets with a forged
//! source, nor packets to the node, nor frames between the ports of a bridge, so a chain of family `netdev` drops all
//! that enters the node by the pod's interface.
//!
//! The batches are encoded by hand, so that the plugin needs no library but libc, and are idempotent: a second one leaves
//! the same tables, also where another program has changed them. Messages, attributes and constants are those of the
//! kernel's `include/uapi/linux/netfilter/nf_tables.h`; the userdata is what nft 1.0.6 writes.

mod commit;
mod encode;

use std::net::IpAddr;

pub use commit::IsolationError;
use encode::{Attributes, Batch, Family};

/// The tables, of the families inet and netdev.
pub const TABLE: &str = "ringfence-isolated";

/// The comment of the tables.
pub const TABLE_COMMENT: &str = "pods that started without the agent, kept by ringfence-cni";

/// The set of isolated IPv4 addresses.
pub const SET4: &str = "pods4";

/// The set of isolated IPv6 addresses.
pub const SET6: &str = "pods6";

const CHAIN: &str = "forward";

/// In one message: an attribute that holds them is shorter than 64 KiB.
const ELEMENTS: usize = 1000;

/// Denies everything from and to the addresses, and all that enters by the host's side of the pod's interface, in the
/// network namespace of this thread.
///
/// # Errors
/// If the kernel refuses, as one without chains of family netdev does. Then nothing has changed.
pub fn add(addresses: &[IpAddr], host_interface: Option<&str>) -> Result<(), IsolationError> {
    commit::commit(&batch_to_add(addresses, host_interface))
}

/// Removes the addresses and the interface from the tables. Where there are no tables there is nothing to do.
///
/// # Errors
/// If the kernel refuses. Then nothing has changed, or the interface alone is removed.
pub fn remove(addresses: &[IpAddr], host_interface: Option<&str>) -> Result<(), IsolationError> {
    if let Some(interface) = host_interface
        && commit::is_there(&chain_question(interface))?
    {
        commit::commit(&batch_to_remove_interface(interface))?;
    }
    // It is asked for, rather than found out by a commit that fails: undoing one costs the kernel 10 ms, and more where
    // there are large tables.
    if addresses.is_empty() || !commit::is_there(&table_question())? {
        return Ok(());
    }
    commit::commit(&batch_to_remove(addresses))
}

/// One address family of the table.
struct Side {
    set: &'static str,
    /// Any number that no other set of the batch has.
    set_id: u32,
    /// nft's number for the type of the key.
    key_type: u32,
    key_bytes: u32,
    /// `NFPROTO_IPV4` or `NFPROTO_IPV6`
    protocol: u8,
    /// Where the two addresses are in the header.
    offsets: [u32; 2],
}

const SIDES: [Side; 2] = [
    Side { set: SET4, set_id: 1, key_type: 7, key_bytes: 4, protocol: 2, offsets: [12, 16] },
    Side { set: SET6, set_id: 2, key_type: 8, key_bytes: 16, protocol: 10, offsets: [8, 24] },
];

impl Side {
    fn keys(&self, addresses: &[IpAddr]) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = addresses
            .iter()
            .map(|address| match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            })
            .filter(|key| key.len() == self.key_bytes as usize)
            .collect();
        // The kernel takes an element twice in one transaction, and deletes it once only.
        keys.sort();
        keys.dedup();
        keys
    }
}

fn batch_to_add(addresses: &[IpAddr], host_interface: Option<&str>) -> Batch {
    let mut batch = Batch::new();
    batch.push(Family::Inet, "add table", encode::NEW_TABLE, encode::CREATE, table());
    for side in &SIDES {
        batch.push(Family::Inet, "add set", encode::NEW_SET, encode::CREATE, set(side));
    }
    batch.push(Family::Inet, "add chain", encode::NEW_CHAIN, encode::CREATE, chain());
    // Whatever rules are there, by an earlier start of a pod or by another program, are replaced.
    batch.push(Family::Inet, "flush chain", encode::DELETE_RULE, 0, rules());
    for side in &SIDES {
        for offset in side.offsets {
            let flags = encode::CREATE | encode::APPEND;
            batch.push(Family::Inet, "add rule", encode::NEW_RULE, flags, rule(side, offset));
        }
    }
    push_elements(&mut batch, "add element", encode::NEW_ELEMENT, encode::CREATE, addresses);
    if let Some(interface) = host_interface {
        batch.push(Family::Netdev, "add table", encode::NEW_TABLE, encode::CREATE, table());
        batch.push(Family::Netdev, "add chain", encode::NEW_CHAIN, encode::CREATE, ingress_chain(interface));
    }
    batch.finish()
}

fn batch_to_remove_interface(interface: &str) -> Batch {
    let mut batch = Batch::new();
    batch.push(Family::Netdev, "delete chain", encode::DELETE_CHAIN, 0, chain_of(interface));
    batch.finish()
}

/// Elements are added before they are deleted: to delete what is not there would be an error.
fn batch_to_remove(addresses: &[IpAddr]) -> Batch {
    let mut batch = Batch::new();
    push_elements(&mut batch, "add element", encode::NEW_ELEMENT, encode::CREATE, addresses);
    push_elements(&mut batch, "delete element", encode::DELETE_ELEMENT, 0, addresses);
    batch.finish()
}

fn table_question() -> Vec<u8> {
    const NAME: u16 = 1;
    encode::question(Family::Inet, encode::GET_TABLE, Attributes::new().text(NAME, TABLE))
}

fn chain_question(interface: &str) -> Vec<u8> {
    encode::question(Family::Netdev, encode::GET_CHAIN, chain_of(interface))
}

fn push_elements(batch: &mut Batch, operation: &'static str, message: u16, flags: u16, addresses: &[IpAddr]) {
    for side in &SIDES {
        for keys in side.keys(addresses).chunks(ELEMENTS) {
            batch.push(Family::Inet, operation, message, flags, elements(side, keys));
        }
    }
}

fn table() -> Attributes {
    const NAME: u16 = 1;
    const FLAGS: u16 = 2;
    const USERDATA: u16 = 6;
    const COMMENT: u8 = 0;
    let mut comment = vec![COMMENT, TABLE_COMMENT.len() as u8 + 1];
    comment.extend_from_slice(TABLE_COMMENT.as_bytes());
    comment.push(0);
    Attributes::new().text(NAME, TABLE).number(FLAGS, 0).bytes(USERDATA, &comment)
}

fn set(side: &Side) -> Attributes {
    const TABLE_NAME: u16 = 1;
    const NAME: u16 = 2;
    const FLAGS: u16 = 3;
    const KEY_TYPE: u16 = 4;
    const KEY_LENGTH: u16 = 5;
    const ID: u16 = 10;
    const USERDATA: u16 = 13;
    // `NFTNL_UDATA_SET_KEYBYTEORDER`: 4 bytes in the order of the host, which say that keys are big-endian.
    let mut byte_order = vec![0, 4];
    byte_order.extend_from_slice(&2_u32.to_ne_bytes());
    Attributes::new()
        .text(TABLE_NAME, TABLE)
        .text(NAME, side.set)
        .number(FLAGS, 0)
        .number(KEY_TYPE, side.key_type)
        .number(KEY_LENGTH, side.key_bytes)
        .number(ID, side.set_id)
        .bytes(USERDATA, &byte_order)
}

const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const HOOK_DEVICE: u16 = 3;

fn chain() -> Attributes {
    const HOOK_FORWARD: u32 = 2;
    const PRIORITY_FILTER: u32 = 0;
    const POLICY_ACCEPT: u32 = 1;
    let hook = Attributes::new().number(HOOK_NUMBER, HOOK_FORWARD).number(HOOK_PRIORITY, PRIORITY_FILTER);
    Attributes::new()
        .text(CHAIN_TABLE, TABLE)
        .text(CHAIN_NAME, CHAIN)
        .nested(CHAIN_HOOK, hook)
        .number(CHAIN_POLICY, POLICY_ACCEPT)
        .text(CHAIN_TYPE, "filter")
}

/// The chain that drops what enters by the interface. It needs no rules.
fn ingress_chain(interface: &str) -> Attributes {
    const HOOK_INGRESS: u32 = 0;
    /// Before the agent's chain at the same hook.
    const PRIORITY: i32 = -510;
    const POLICY_DROP: u32 = 0;
    let hook = Attributes::new()
        .number(HOOK_NUMBER, HOOK_INGRESS)
        .number(HOOK_PRIORITY, PRIORITY.cast_unsigned())
        .text(HOOK_DEVICE, interface);
    chain_of(interface).nested(CHAIN_HOOK, hook).number(CHAIN_POLICY, POLICY_DROP).text(CHAIN_TYPE, "filter")
}

fn chain_of(interface: &str) -> Attributes {
    Attributes::new().text(CHAIN_TABLE, TABLE).text(CHAIN_NAME, &chain_name(interface))
}

/// Interfaces may have names with characters that nft does not read in the name of a chain.
fn chain_name(interface: &str) -> String {
    let part = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' => char::from(byte).to_string(),
        other => format!("_{other:02x}"),
    };
    format!("pod/{}", interface.bytes().map(part).collect::<String>())
}

const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;

/// All rules of the chain.
fn rules() -> Attributes {
    Attributes::new().text(RULE_TABLE, TABLE).text(RULE_CHAIN, CHAIN)
}

/// `ip saddr @pods4 drop` and its like.
fn rule(side: &Side, offset: u32) -> Attributes {
    const EXPRESSIONS: u16 = 4;
    const REGISTER: u32 = 1;
    const VERDICT_REGISTER: u32 = 0;
    const VALUE: u16 = 1;
    const VERDICT: u16 = 2;
    const VERDICT_CODE: u16 = 1;
    const NF_DROP: u32 = 0;
    // NFTA_META_DREG, NFTA_META_KEY: NFT_META_NFPROTO
    let family = Attributes::new().number(1, REGISTER).number(2, 15);
    // NFTA_CMP_SREG, NFTA_CMP_OP: NFT_CMP_EQ, NFTA_CMP_DATA
    let is_ours =
        Attributes::new().number(1, REGISTER).number(2, 0).nested(3, Attributes::new().bytes(VALUE, &[side.protocol]));
    // NFTA_PAYLOAD_DREG, NFTA_PAYLOAD_BASE: NFT_PAYLOAD_NETWORK_HEADER, NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN
    let address = Attributes::new().number(1, REGISTER).number(2, 1).number(3, offset).number(4, side.key_bytes);
    // NFTA_LOOKUP_SET, NFTA_LOOKUP_SREG, NFTA_LOOKUP_SET_ID
    let is_isolated = Attributes::new().text(1, side.set).number(2, REGISTER).number(4, side.set_id);
    // NFTA_IMMEDIATE_DREG, NFTA_IMMEDIATE_DATA
    let verdict = Attributes::new().nested(VERDICT, Attributes::new().number(VERDICT_CODE, NF_DROP));
    let drop = Attributes::new().number(1, VERDICT_REGISTER).nested(2, verdict);
    let expressions =
        [("meta", family), ("cmp", is_ours), ("payload", address), ("lookup", is_isolated), ("immediate", drop)];
    rules().nested(EXPRESSIONS, Attributes::list(expressions.map(|(name, data)| expression(name, data))))
}

fn expression(name: &str, data: Attributes) -> Attributes {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    Attributes::new().text(NAME, name).nested(DATA, data)
}

fn elements(side: &Side, keys: &[Vec<u8>]) -> Attributes {
    const TABLE_NAME: u16 = 1;
    const SET_NAME: u16 = 2;
    const ELEMENTS: u16 = 3;
    const KEY: u16 = 1;
    const VALUE: u16 = 1;
    let element = |key: &Vec<u8>| Attributes::new().nested(KEY, Attributes::new().bytes(VALUE, key));
    Attributes::new()
        .text(TABLE_NAME, TABLE)
        .text(SET_NAME, side.set)
        .nested(ELEMENTS, Attributes::list(keys.iter().map(element)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_name_escapes_what_nft_cannot_read() {
        assert_eq!(chain_name("veth1a-2.b"), "pod/veth1a-2.b");
        assert_eq!(chain_name("a\"_b"), "pod/a_22_5fb");
    }

    /// One message a line, as hexadecimal digits; the host's byte order is little.
    #[cfg(target_endian = "little")]
    #[test]
    fn the_batches_are_these_bytes() {
        let addresses: Vec<IpAddr> =
            ["fd00:1::7", "10.1.0.7", "10.1.0.7"].iter().map(|address| address.parse().unwrap()).collect();
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let batches = [
            batch_to_add(&addresses, Some("veth1")),
            batch_to_remove(&addresses[..1]),
            batch_to_remove_interface("veth1"),
        ];
        let questions = [table_question(), chain_question("veth1")];
        let text = batches.map(|batch| format!("{batch}\n")).concat() + &questions.map(|q| hex(q) + "\n").concat();
        let golden = include_str!("isolation/golden.txt");
        assert_eq!(text, golden, "\n{text}");
    }
}
