//! Lists all nf_tables objects of this network namespace that are attached to a hook, foreign ones included.

use crate::decode::{
    ChainRecord, FlowtableRecord, MarkWriterRecord, TableRecord, decode_chains, decode_flowtables, decode_mark_writers,
    decode_tables,
};
use crate::message::NFTABLES;
use crate::request::{Kernel, RequestError};
use crate::table_snapshot::ObservedHook;

/// `NFT_MSG_GET*`
const GET_TABLES: u16 = NFTABLES | 1;
const GET_CHAINS: u16 = NFTABLES | 4;
const GET_RULES: u16 = NFTABLES | 7;
const GET_FLOWTABLES: u16 = NFTABLES | 23;

/// `NFT_FLOWTABLE_COUNTER`
const FLOWTABLE_COUNTER: u32 = 2;

/// `NFPROTO_UNSPEC`: all families.
const ALL_FAMILIES: u8 = 0;

/// Attempts to finish a dump while other processes commit.
const ATTEMPTS: u32 = 10;

/// A chain that is attached to a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseChain {
    /// As nft spells it: `inet`, `ip`, `ip6`, `arp`, `bridge`, `netdev`.
    pub family: &'static str,
    /// Table of the chain.
    pub table: String,
    /// Unique within the table.
    pub name: String,
    /// `filter`, `nat` or `route`.
    pub kind: String,
    /// As nft spells it, such as `forward`.
    pub hook: &'static str,
    /// The chains of a hook run in order of their priorities.
    pub priority: i32,
    /// The policy is drop.
    pub drops: bool,
    /// The use counter of the chain (`NFTA_CHAIN_USE`), which counts rules alone: nothing jumps to a base chain.
    pub rules: u32,
}

/// A chain of any kind, whose name may identify its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainName {
    /// As nft spells it.
    pub family: &'static str,
    /// Table of the chain.
    pub table: String,
    /// Unique within the table.
    pub name: String,
}

/// A flowtable: its connections are forwarded past the hooks, so no forward chain sees their packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flowtable {
    /// As nft spells it.
    pub family: &'static str,
    /// Table of the flowtable.
    pub table: String,
    /// Unique within the table.
    pub name: String,
    /// Names of the interfaces between which it forwards.
    pub devices: Vec<String>,
    /// Whether conntrack counts the packets that it forwards (flag `counter`, Linux 5.7).
    pub counts: bool,
}

/// A rule that sets the connection mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkWriter {
    /// As nft spells it.
    pub family: &'static str,
    /// Table of the rule; for legacy tables `mangle` and the like.
    pub table: String,
    /// Chain of the rule; for legacy tables the hook, such as `PREROUTING`.
    pub chain: String,
    /// The bits whose value the rule may change.
    pub bits: u32,
}

impl Kernel {
    /// The tables of all families. The chains of a dormant table (`NFT_TABLE_F_DORMANT`, 1) are not attached to hooks.
    pub fn tables(&mut self) -> Result<Vec<TableRecord>, RequestError> {
        self.list(GET_TABLES, decode_tables)
    }

    /// The base chains of all families.
    pub fn base_chains(&mut self) -> Result<Vec<BaseChain>, RequestError> {
        Ok(self.list(GET_CHAINS, decode_chains)?.into_iter().filter_map(base_chain).collect())
    }

    /// The names of all chains of all families, including base chains.
    pub fn chain_names(&mut self) -> Result<Vec<ChainName>, RequestError> {
        let chain_name =
            |ChainRecord { family, table, name, .. }| ChainName { family: family_word(family), table, name };
        Ok(self.list(GET_CHAINS, decode_chains)?.into_iter().map(chain_name).collect())
    }

    /// The rules of all families that set the connection mark, including those of iptables-nft.
    pub fn mark_writers(&mut self) -> Result<Vec<MarkWriter>, RequestError> {
        let writer = |MarkWriterRecord { family, table, chain, bits }| {
            let family = family_word(family);
            MarkWriter { family, table, chain, bits }
        };
        Ok(self.list(GET_RULES, decode_mark_writers)?.into_iter().map(writer).collect())
    }

    /// The flowtables of all families.
    pub fn flowtables(&mut self) -> Result<Vec<Flowtable>, RequestError> {
        let flowtable = |FlowtableRecord { family, table, name, devices, flags }| {
            let family = family_word(family);
            Flowtable { family, table, name, devices, counts: flags & FLOWTABLE_COUNTER != 0 }
        };
        Ok(self.list(GET_FLOWTABLES, decode_flowtables)?.into_iter().map(flowtable).collect())
    }

    fn list<T>(
        &mut self,
        kind: u16,
        decode: fn(&[u8]) -> Result<Vec<T>, crate::decode::DecodeError>,
    ) -> Result<Vec<T>, RequestError> {
        let mut outcome = Err(RequestError::Interrupted);
        for _ in 0..ATTEMPTS {
            let mut all = Vec::new();
            let listed = self.dump(
                kind,
                ALL_FAMILIES,
                |w| w,
                |datagram| {
                    all.extend(decode(datagram)?);
                    Ok(())
                },
            );
            outcome = listed.map(|()| all);
            if !matches!(outcome, Err(RequestError::Interrupted)) {
                break;
            }
        }
        outcome
    }
}

fn base_chain(record: ChainRecord) -> Option<BaseChain> {
    let ChainRecord { family, table, name, uses, chain } = record;
    let ObservedHook { kind, number, priority, policy, device: _ } = chain.hook?;
    let (family, hook) = (family_word(family), hook_word(family, number));
    // No rule can jump to a base chain, so its use count is the number of its rules. NF_DROP is 0.
    Some(BaseChain { family, table, name, kind, hook, priority, drops: policy == 0, rules: uses })
}

/// `NFPROTO_*`
fn family_word(family: u8) -> &'static str {
    match family {
        1 => "inet",
        2 => "ip",
        3 => "arp",
        5 => "netdev",
        7 => "bridge",
        10 => "ip6",
        _ => "unknown",
    }
}

/// `NF_INET_*`, `NF_BR_*`, `NF_ARP_*` and `NF_NETDEV_*`
fn hook_word(family: u8, number: u32) -> &'static str {
    match (family, number) {
        (3, 0) => "input",
        (3, 1) => "output",
        (3, 2) => "forward",
        (5, 0) => "ingress",
        (5, 1) => "egress",
        (1 | 2 | 7 | 10, 0) => "prerouting",
        (1 | 2 | 7 | 10, 1) => "input",
        (1 | 2 | 7 | 10, 2) => "forward",
        (1 | 2 | 7 | 10, 3) => "output",
        (1 | 2 | 7 | 10, 4) => "postrouting",
        (1, 5) => "ingress",
        _ => "unknown",
    }
}
