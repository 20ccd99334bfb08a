//! The plugin's own tables, for pods that start while the agent does not answer (`onTimeout: isolate`): all traffic of
//! these pods is dropped until the agent adopts them.
//!
//! The table of family `inet` drops forwarded packets from and to a pod's addresses. It sees neither packets with a
//! forged source, nor packets to the node, nor frames between the ports of a bridge, so a chain of family `netdev`
//! drops all ingress at the pod's interface. Packets that tc redirects there to another interface skip that chain
//! (`skb_skip_tc_classify`), so chains at the prerouting hooks of `inet` and `bridge` drop them too. Chains of family
//! `bridge` drop all frames that a bridge forwards to the pod or the node sends to it: the pod may have addresses that
//! no plugin reported. A redirected packet may have an IP option that the node answers before any of these hooks, so a
//! chain at the output hook drops such answers.
//!
//! The batches are encoded without libnftnl, so that the plugin needs no C library but libc. They are idempotent: a repeated batch
//! leaves the same tables, even if another program changed them. Messages, attributes and constants are those of the
//! kernel's `include/uapi/linux/netfilter/nf_tables.h`; the userdata is what nft 1.0.6 writes.

mod commit;
mod encode;

use std::net::IpAddr;

pub use commit::IsolationError;
use encode::{Batch, TableFamily};
use netlink::{AttributeList, flags};

/// Name of the tables of the families inet, netdev and bridge.
pub const TABLE: &str = "ringfence-isolated";

/// The comment of the tables.
pub const TABLE_COMMENT: &str = "pods that started without the agent, kept by ringfence-cni";

/// The set of isolated IPv4 addresses.
pub const SET4: &str = "pods4";

/// The set of isolated IPv6 addresses.
pub const SET6: &str = "pods6";

/// Name of the chain that drops by address.
const FORWARD: &str = "forward";

/// Name of the chain at the output hook.
const OUTPUT: &str = "output";

/// Maximum number of elements in a message: their attribute must be shorter than 64 KiB.
const ELEMENTS: usize = 1000;

/// The host side of a pod's interface.
#[derive(Debug, Clone, Copy)]
pub struct HostPort<'a> {
    pub interface: &'a str,
    /// True if the interface is a port of a bridge.
    pub is_bridged: bool,
}

/// Drops all traffic of the addresses and of the host side of the pod's interface, in the network namespace of this
/// thread.
///
/// # Errors
/// If the kernel refuses, as kernels without chains of family netdev do, and for a bridged pod kernels without chains
/// of family bridge. Nothing has changed then.
pub fn add(addresses: &[IpAddr], port: Option<HostPort>) -> Result<(), IsolationError> {
    commit::commit(&batch_to_add(addresses, port))
}

/// Removes the addresses and the interface from the tables. Does nothing if the tables do not exist.
///
/// # Errors
/// If the kernel refuses. Then nothing has changed, or only the addresses or some of the interface's chains are
/// removed.
pub fn remove(addresses: &[IpAddr], host_interface: Option<&str>) -> Result<(), IsolationError> {
    remove_chains(addresses, host_interface.into_iter().flat_map(PortChain::all))
}

/// [`remove`] for a deleted pod. The chain of family netdev stays until the kernel removes it with the interface:
/// otherwise packets that the pod has queued for neighbour resolution could leave before the interface is removed.
///
/// # Errors
/// As [`remove`].
pub fn remove_deleted(addresses: &[IpAddr], host_interface: Option<&str>) -> Result<(), IsolationError> {
    let chains = host_interface.into_iter().flat_map(PortChain::all);
    remove_chains(addresses, chains.filter(|chain| chain.family != TableFamily::Netdev))
}

fn remove_chains<'a>(addresses: &[IpAddr], chains: impl Iterator<Item = PortChain<'a>>) -> Result<(), IsolationError> {
    // A query is cheaper than a commit that fails: the kernel's rollback takes 10 ms, and more if there are large
    // tables.
    if !addresses.is_empty() && commit::is_there(&get_table_request())? {
        commit::commit(&batch_to_remove(addresses))?;
    }
    for chain in chains {
        if commit::is_there(&chain.get_request())? {
            commit::commit(&chain.batch_to_remove())?;
        }
    }
    Ok(())
}

/// The names of the chains of an interface in the tables of the families inet and bridge.
pub fn port_chains(interface: &str) -> [String; 3] {
    [Drops::SentByPod, Drops::BetweenPorts, Drops::SentByNode].map(|drops| drops.chain_name(interface))
}

/// Direction of the traffic that a chain of an interface drops.
#[derive(Debug, Clone, Copy)]
enum Drops {
    SentByPod,
    /// From other ports of the bridge to the pod.
    BetweenPorts,
    /// From the node to the pod, including packets that the node forwards.
    SentByNode,
}

impl Drops {
    /// Escapes characters of interface names that nft does not accept in a chain name.
    fn chain_name(self, interface: &str) -> String {
        let part = |byte: u8| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' => char::from(byte).to_string(),
            other => format!("_{other:02x}"),
        };
        let prefix = match self {
            Drops::SentByPod => "pod",
            Drops::BetweenPorts => "to-pod",
            Drops::SentByNode => "node-to-pod",
        };
        format!("{prefix}/{}", interface.bytes().map(part).collect::<String>())
    }
}

/// One of the chains of an interface.
#[derive(Debug, Clone, Copy)]
struct PortChain<'a> {
    family: TableFamily,
    drops: Drops,
    interface: &'a str,
}

impl<'a> PortChain<'a> {
    fn all(interface: &'a str) -> [PortChain<'a>; 5] {
        let chain = |(family, drops)| PortChain { family, drops, interface };
        [
            (TableFamily::Inet, Drops::SentByPod),
            (TableFamily::Netdev, Drops::SentByPod),
            (TableFamily::Bridge, Drops::SentByPod),
            (TableFamily::Bridge, Drops::BetweenPorts),
            (TableFamily::Bridge, Drops::SentByNode),
        ]
        .map(chain)
    }

    fn of(port: HostPort<'a>) -> impl Iterator<Item = PortChain<'a>> {
        let is_wanted = move |chain: &PortChain| match chain.family {
            TableFamily::Inet | TableFamily::Netdev => true,
            TableFamily::Bridge => port.is_bridged,
        };
        PortChain::all(port.interface).into_iter().filter(is_wanted)
    }

    fn attributes(&self) -> AttributeList {
        AttributeList::new().put_text(CHAIN_TABLE, TABLE).put_text(CHAIN_NAME, &self.drops.chain_name(self.interface))
    }

    fn get_request(&self) -> Vec<u8> {
        encode::get_request(self.family, encode::GET_CHAIN, self.attributes())
    }

    fn push(&self, batch: &mut Batch) {
        batch.push(self.family, "add chain", encode::NEW_CHAIN, flags::CREATE, self.base_chain());
        let Some(key) = self.interface_key() else { return };
        let chain = rules_of(&self.drops.chain_name(self.interface));
        batch.push(self.family, "flush chain", encode::DELETE_RULE, 0, chain);
        let rule = interface_rule(&self.drops.chain_name(self.interface), key, self.interface);
        batch.push(self.family, "add rule", encode::NEW_RULE, flags::CREATE | flags::APPEND, rule);
    }

    fn batch_to_remove(&self) -> Batch {
        let mut batch = Batch::new();
        batch.push(self.family, "delete chain", encode::DELETE_CHAIN, 0, self.attributes());
        batch.finish()
    }

    /// A chain of family netdev is bound to the interface and drops by its policy, so it needs no key.
    fn interface_key(&self) -> Option<u32> {
        const NFT_META_IIFNAME: u32 = 6;
        const NFT_META_OIFNAME: u32 = 7;
        match (self.family, self.drops) {
            (TableFamily::Netdev, _) => None,
            (TableFamily::Inet | TableFamily::Bridge, Drops::SentByPod) => Some(NFT_META_IIFNAME),
            (TableFamily::Inet | TableFamily::Bridge, Drops::BetweenPorts | Drops::SentByNode) => {
                Some(NFT_META_OIFNAME)
            }
        }
    }

    fn base_chain(&self) -> AttributeList {
        const POLICY_DROP: u32 = 0;
        // The priority is before the agent's chains at the same hooks, and before defragmentation (-400).
        const PRIORITY: i32 = -510;
        const INGRESS_OR_PREROUTING: u32 = 0;
        let (hook, policy) = match (self.family, self.drops) {
            (TableFamily::Netdev, _) => (INGRESS_OR_PREROUTING, POLICY_DROP),
            (TableFamily::Inet | TableFamily::Bridge, Drops::SentByPod) => (INGRESS_OR_PREROUTING, POLICY_ACCEPT),
            (TableFamily::Inet | TableFamily::Bridge, Drops::BetweenPorts) => (HOOK_FORWARD, POLICY_ACCEPT),
            (TableFamily::Inet | TableFamily::Bridge, Drops::SentByNode) => (HOOK_OUTPUT, POLICY_ACCEPT),
        };
        let hook = AttributeList::new().put_be32(HOOK_NUMBER, hook).put_be32(HOOK_PRIORITY, PRIORITY.cast_unsigned());
        let hook = match self.family {
            TableFamily::Netdev => hook.put_text(HOOK_DEVICE, self.interface),
            TableFamily::Inet | TableFamily::Bridge => hook,
        };
        self.attributes().put_nested(CHAIN_HOOK, hook).put_be32(CHAIN_POLICY, policy).put_text(CHAIN_TYPE, "filter")
    }
}

/// One address family of the table.
struct Side {
    set: &'static str,
    /// A number that is unique in the batch.
    set_id: u32,
    /// nft's number of the key type.
    key_type: u32,
    key_bytes: u32,
    /// `NFPROTO_IPV4` or `NFPROTO_IPV6`
    protocol: u8,
    /// Offsets of the source and destination address in the header.
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
        // The kernel accepts a duplicate element in an add but not in a delete.
        keys.sort();
        keys.dedup();
        keys
    }
}

fn batch_to_add(addresses: &[IpAddr], port: Option<HostPort>) -> Batch {
    let mut batch = Batch::new();
    batch.push(TableFamily::Inet, "add table", encode::NEW_TABLE, flags::CREATE, table());
    for side in &SIDES {
        batch.push(TableFamily::Inet, "add set", encode::NEW_SET, flags::CREATE, set(side));
    }
    for (name, hook) in [(FORWARD, HOOK_FORWARD), (OUTPUT, HOOK_OUTPUT)] {
        batch.push(TableFamily::Inet, "add chain", encode::NEW_CHAIN, flags::CREATE, chain(name, hook));
        // Existing rules, from an earlier start of a pod or from another program, are replaced.
        batch.push(TableFamily::Inet, "flush chain", encode::DELETE_RULE, 0, rules_of(name));
    }
    let of_addresses = SIDES.iter().flat_map(|side| side.offsets.map(|offset| rule(side, offset)));
    for rule in of_addresses.chain([option_answer_rule()]) {
        batch.push(TableFamily::Inet, "add rule", encode::NEW_RULE, flags::CREATE | flags::APPEND, rule);
    }
    push_elements(&mut batch, "add element", encode::NEW_ELEMENT, flags::CREATE, addresses);
    if let Some(port) = port {
        let families =
            if port.is_bridged { &[TableFamily::Netdev, TableFamily::Bridge][..] } else { &[TableFamily::Netdev] };
        for family in families {
            batch.push(*family, "add table", encode::NEW_TABLE, flags::CREATE, table());
        }
        PortChain::of(port).for_each(|chain| chain.push(&mut batch));
    }
    batch.finish()
}

/// Elements are added before they are deleted: deleting a missing element would be an error.
fn batch_to_remove(addresses: &[IpAddr]) -> Batch {
    let mut batch = Batch::new();
    push_elements(&mut batch, "add element", encode::NEW_ELEMENT, flags::CREATE, addresses);
    push_elements(&mut batch, "delete element", encode::DELETE_ELEMENT, 0, addresses);
    batch.finish()
}

fn get_table_request() -> Vec<u8> {
    const NAME: u16 = 1;
    encode::get_request(TableFamily::Inet, encode::GET_TABLE, AttributeList::new().put_text(NAME, TABLE))
}

fn push_elements(batch: &mut Batch, operation: &'static str, message: u16, flags: u16, addresses: &[IpAddr]) {
    for side in &SIDES {
        for keys in side.keys(addresses).chunks(ELEMENTS) {
            batch.push(TableFamily::Inet, operation, message, flags, elements(side, keys));
        }
    }
}

fn table() -> AttributeList {
    const NAME: u16 = 1;
    const FLAGS: u16 = 2;
    const USERDATA: u16 = 6;
    const COMMENT: u8 = 0;
    let mut comment = vec![COMMENT, TABLE_COMMENT.len() as u8 + 1];
    comment.extend_from_slice(TABLE_COMMENT.as_bytes());
    comment.push(0);
    AttributeList::new().put_text(NAME, TABLE).put_be32(FLAGS, 0).put(USERDATA, &comment)
}

fn set(side: &Side) -> AttributeList {
    const TABLE_NAME: u16 = 1;
    const NAME: u16 = 2;
    const FLAGS: u16 = 3;
    const KEY_TYPE: u16 = 4;
    const KEY_LENGTH: u16 = 5;
    const ID: u16 = 10;
    const USERDATA: u16 = 13;
    // `NFTNL_UDATA_SET_KEYBYTEORDER`: 4 bytes in host byte order, which declare the keys big-endian.
    let mut byte_order = vec![0, 4];
    byte_order.extend_from_slice(&2_u32.to_ne_bytes());
    AttributeList::new()
        .put_text(TABLE_NAME, TABLE)
        .put_text(NAME, side.set)
        .put_be32(FLAGS, 0)
        .put_be32(KEY_TYPE, side.key_type)
        .put_be32(KEY_LENGTH, side.key_bytes)
        .put_be32(ID, side.set_id)
        .put(USERDATA, &byte_order)
}

const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const HOOK_DEVICE: u16 = 3;

const HOOK_FORWARD: u32 = 2;
const HOOK_OUTPUT: u32 = 3;
const POLICY_ACCEPT: u32 = 1;

fn chain(name: &str, hook: u32) -> AttributeList {
    const PRIORITY_FILTER: u32 = 0;
    let hook = AttributeList::new().put_be32(HOOK_NUMBER, hook).put_be32(HOOK_PRIORITY, PRIORITY_FILTER);
    AttributeList::new()
        .put_text(CHAIN_TABLE, TABLE)
        .put_text(CHAIN_NAME, name)
        .put_nested(CHAIN_HOOK, hook)
        .put_be32(CHAIN_POLICY, POLICY_ACCEPT)
        .put_text(CHAIN_TYPE, "filter")
}

const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;

/// Selects all rules of the chain.
fn rules_of(chain: &str) -> AttributeList {
    AttributeList::new().put_text(RULE_TABLE, TABLE).put_text(RULE_CHAIN, chain)
}

const REGISTER: u32 = 1;

/// `iifname "veth1" drop`, or the same with `oifname`.
fn interface_rule(chain: &str, key: u32, interface: &str) -> AttributeList {
    const NAME_BYTES: usize = 16;
    let mut name = interface.as_bytes().to_vec();
    name.resize(NAME_BYTES, 0);
    // NFTA_META_DREG, NFTA_META_KEY
    let meta = AttributeList::new().put_be32(1, REGISTER).put_be32(2, key);
    rule_of(chain, [("meta", meta), ("cmp", is_equal(&name)), ("immediate", drop_verdict())])
}

fn rule_of<const COUNT: usize>(chain: &str, expressions: [(&str, AttributeList); COUNT]) -> AttributeList {
    const EXPRESSIONS: u16 = 4;
    let list = encode::list(expressions.map(|(name, data)| expression(name, data)));
    rules_of(chain).put_nested(EXPRESSIONS, list)
}

/// NFTA_CMP_SREG, NFTA_CMP_OP: NFT_CMP_EQ, NFTA_CMP_DATA
fn is_equal(value: &[u8]) -> AttributeList {
    const VALUE: u16 = 1;
    AttributeList::new().put_be32(1, REGISTER).put_be32(2, 0).put_nested(3, AttributeList::new().put(VALUE, value))
}

fn drop_verdict() -> AttributeList {
    const VERDICT_REGISTER: u32 = 0;
    const VERDICT: u16 = 2;
    const VERDICT_CODE: u16 = 1;
    const NF_DROP: u32 = 0;
    // NFTA_IMMEDIATE_DREG, NFTA_IMMEDIATE_DATA
    let verdict = AttributeList::new().put_nested(VERDICT, AttributeList::new().put_be32(VERDICT_CODE, NF_DROP));
    AttributeList::new().put_be32(1, VERDICT_REGISTER).put_nested(2, verdict)
}

/// NFTA_META_DREG, NFTA_META_KEY: NFT_META_NFPROTO
fn address_family() -> AttributeList {
    AttributeList::new().put_be32(1, REGISTER).put_be32(2, 15)
}

/// NFTA_PAYLOAD_DREG, NFTA_PAYLOAD_BASE: NFT_PAYLOAD_NETWORK_HEADER, NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN
fn network_header(offset: u32, bytes: u32) -> AttributeList {
    AttributeList::new().put_be32(1, REGISTER).put_be32(2, 1).put_be32(3, offset).put_be32(4, bytes)
}

/// Drops the node's answers to unknown IPv6 hop-by-hop options (parameter problem, RFC 4443, section 3.4): their
/// destination is a source address that no chain has checked.
fn option_answer_rule() -> AttributeList {
    const NFPROTO_IPV6: u8 = 10;
    const NEXT_HEADER_AT: u32 = 6;
    const ICMPV6_TYPE_AT: u32 = 40;
    const QUOTED_NEXT_HEADER_AT: u32 = 54;
    const ICMPV6: u8 = 58;
    const PARAMETER_PROBLEM: u8 = 4;
    const HOP_BY_HOP_OPTIONS: u8 = 0;
    let expressions = [
        ("meta", address_family()),
        ("cmp", is_equal(&[NFPROTO_IPV6])),
        ("payload", network_header(NEXT_HEADER_AT, 1)),
        ("cmp", is_equal(&[ICMPV6])),
        ("payload", network_header(ICMPV6_TYPE_AT, 1)),
        ("cmp", is_equal(&[PARAMETER_PROBLEM])),
        ("payload", network_header(QUOTED_NEXT_HEADER_AT, 1)),
        ("cmp", is_equal(&[HOP_BY_HOP_OPTIONS])),
        ("immediate", drop_verdict()),
    ];
    rule_of(OUTPUT, expressions)
}

/// `ip saddr @pods4 drop` and similar rules.
fn rule(side: &Side, offset: u32) -> AttributeList {
    let address = network_header(offset, side.key_bytes);
    // NFTA_LOOKUP_SET, NFTA_LOOKUP_SREG, NFTA_LOOKUP_SET_ID
    let is_isolated = AttributeList::new().put_text(1, side.set).put_be32(2, REGISTER).put_be32(4, side.set_id);
    let is_family = is_equal(&[side.protocol]);
    let expressions = [
        ("meta", address_family()),
        ("cmp", is_family),
        ("payload", address),
        ("lookup", is_isolated),
        ("immediate", drop_verdict()),
    ];
    rule_of(FORWARD, expressions)
}

fn expression(name: &str, data: AttributeList) -> AttributeList {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    AttributeList::new().put_text(NAME, name).put_nested(DATA, data)
}

fn elements(side: &Side, keys: &[Vec<u8>]) -> AttributeList {
    const TABLE_NAME: u16 = 1;
    const SET_NAME: u16 = 2;
    const ELEMENTS: u16 = 3;
    const KEY: u16 = 1;
    const VALUE: u16 = 1;
    let element = |key: &Vec<u8>| AttributeList::new().put_nested(KEY, AttributeList::new().put(VALUE, key));
    AttributeList::new()
        .put_text(TABLE_NAME, TABLE)
        .put_text(SET_NAME, side.set)
        .put_nested(ELEMENTS, encode::list(keys.iter().map(element)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_name_escapes_characters_invalid_in_nft() {
        assert_eq!(port_chains("veth1a-2.b"), ["pod/veth1a-2.b", "to-pod/veth1a-2.b", "node-to-pod/veth1a-2.b"]);
        assert_eq!(port_chains("a\"_b"), ["pod/a_22_5fb", "to-pod/a_22_5fb", "node-to-pod/a_22_5fb"]);
    }

    /// One message per line in hexadecimal, with little-endian host byte order.
    #[cfg(target_endian = "little")]
    #[test]
    fn the_batches_are_these_bytes() {
        let addresses: Vec<IpAddr> =
            ["fd00:1::7", "10.1.0.7", "10.1.0.7"].iter().map(|address| address.parse().unwrap()).collect();
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let [_, at_ingress, _, to_pod, _] = PortChain::all("veth1");
        let port = HostPort { interface: "veth1", is_bridged: true };
        let batches =
            [batch_to_add(&addresses, Some(port)), batch_to_remove(&addresses[..1]), to_pod.batch_to_remove()];
        let requests = [get_table_request(), at_ingress.get_request()];
        let text =
            batches.map(|batch| format!("{batch}\n")).concat() + &requests.map(|request| hex(request) + "\n").concat();
        let golden = include_str!("isolation/golden.txt");
        assert_eq!(text, golden, "\n{text}");
    }
}
