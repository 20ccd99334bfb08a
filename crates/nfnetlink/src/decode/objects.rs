//! Tables, chains, rules, sets, and the kernel generation.

use super::DecodeError;
use super::attributes::AttributeIndex;
use super::bytecode;
use crate::lower::SetHeader;
use crate::message::{Attributes, Message, Messages, NFTABLES, family_and_attributes};
use crate::table_snapshot::{ObservedChain, ObservedHook, ObservedRule, ObservedSet};
use crate::userdata;

/// `NFT_MSG_NEWTABLE` and so on.
const NEW_TABLE: u16 = NFTABLES;
const NEW_CHAIN: u16 = NFTABLES | 3;
pub(super) const NEW_RULE: u16 = NFTABLES | 6;
const NEW_SET: u16 = NFTABLES | 9;
const NEW_GENERATION: u16 = NFTABLES | 15;
const NEW_FLOWTABLE: u16 = NFTABLES | 22;
/// The subsystem in a message's type.
const SUBSYSTEM: u16 = 0xff00;

/// A table (`NFT_MSG_NEWTABLE`) without its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRecord {
    /// `NFPROTO_*`
    pub family: u8,
    /// Unique within the family.
    pub name: String,
    /// `NFT_TABLE_F_*`
    pub flags: u32,
    /// The port id of the socket that owns the table.
    pub owner: Option<u32>,
    /// From the user data of the table (`NFTA_TABLE_USERDATA`).
    pub comment: Option<String>,
}

/// A chain (`NFT_MSG_NEWCHAIN`) and the table that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainRecord {
    /// `NFPROTO_*`
    pub family: u8,
    /// Table of the chain.
    pub table: String,
    /// Unique within the table.
    pub name: String,
    /// The number of rules in the chain and of jumps to it.
    pub uses: u32,
    /// The chain without its rules.
    pub chain: ObservedChain,
}

/// A flowtable (`NFT_MSG_NEWFLOWTABLE`) and the table that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowtableRecord {
    /// `NFPROTO_*`
    pub family: u8,
    /// Table of the flowtable.
    pub table: String,
    /// Unique within the table.
    pub name: String,
    /// Names of the interfaces whose ingress it is attached to.
    pub devices: Vec<String>,
    /// `NFT_FLOWTABLE_*`
    pub flags: u32,
}

/// A rule (`NFT_MSG_NEWRULE`) and the chain that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRecord {
    /// `NFPROTO_*`
    pub family: u8,
    /// Table of the chain.
    pub table: String,
    /// Chain of the rule. Rules of a chain are dumped in order.
    pub chain: String,
    /// Handle, bytecode and comment.
    pub rule: ObservedRule,
}

/// A set or map (`NFT_MSG_NEWSET`) and the table that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetRecord {
    /// `NFPROTO_*`
    pub family: u8,
    /// Table of the set.
    pub table: String,
    /// Unique within the table; `__set0` and the like for an anonymous set.
    pub name: String,
    /// The set belongs to the rule that created it and is removed with it.
    pub anonymous: bool,
    /// The set without its elements.
    pub set: ObservedSet,
}

/// Passes every message of `kind` to `record`, with its family.
pub(super) fn records<T>(
    datagram: &[u8],
    kind: u16,
    object: &'static str,
    record: impl Fn(u8, AttributeIndex<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let mut found = Vec::new();
    for message in Messages::new(datagram) {
        let message: Message<'_> = message?;
        if message.kind != kind {
            continue;
        }
        let (family, attributes) = family_and_attributes(&message)?;
        found.push(record(family, AttributeIndex::of(object, attributes)?)?);
    }
    Ok(found)
}

/// The kernel generation in the reply to `NFT_MSG_GETGEN`.
pub fn decode_generation(datagram: &[u8]) -> Result<Option<u32>, DecodeError> {
    for message in Messages::new(datagram) {
        let message = message?;
        if message.kind == NEW_GENERATION {
            let (_, attributes) = family_and_attributes(&message)?;
            return Ok(Some(AttributeIndex::of("a generation", attributes)?.need(1)?.be32()?));
        }
    }
    Ok(None)
}

/// One multicast notification about a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeRecord {
    /// The table, or an object in it, was added or removed.
    Table {
        /// `NFPROTO_*`
        family: u8,
        /// Name of the table.
        name: String,
    },
    /// The end of a commit: the process that committed, and the resulting generation.
    Commit {
        /// Generation after the commit, which the next transaction expects (`NFNL_BATCH_GENID`).
        generation: u32,
        /// Thread id in the initial PID namespace (`NFTA_GEN_PROC_PID`).
        process: u32,
        /// Name of the thread, at most 15 bytes (`NFTA_GEN_PROC_NAME`).
        program: String,
    },
}

/// The notifications about commits in one datagram.
pub fn decode_changes(datagram: &[u8]) -> Result<Vec<ChangeRecord>, DecodeError> {
    let mut changes = Vec::new();
    for message in Messages::new(datagram) {
        let message = message?;
        if message.kind & SUBSYSTEM != NFTABLES {
            continue;
        }
        let (family, attributes) = family_and_attributes(&message)?;
        let f = AttributeIndex::of("a notification", attributes)?;
        if message.kind == NEW_GENERATION {
            let (generation, process) = (f.need(1)?.be32()?, f.need(2)?.be32()?);
            let program = String::from_utf8_lossy(f.need(3)?.bytes()).into_owned();
            changes.push(ChangeRecord::Commit { generation, process, program });
        } else {
            // The name of the table is the first attribute of every object (`NFTA_*_TABLE`, `NFTA_TABLE_NAME`).
            changes.push(ChangeRecord::Table { family, name: f.need(1)?.text()?.into() });
        }
    }
    Ok(changes)
}

/// The tables in one datagram.
pub fn decode_tables(datagram: &[u8]) -> Result<Vec<TableRecord>, DecodeError> {
    records(datagram, NEW_TABLE, "a table", |family, f| {
        Ok(TableRecord {
            family,
            name: f.need(1)?.text()?.into(),
            flags: f.number(2)?.unwrap_or(0),
            owner: f.number(7)?,
            comment: f.get(6).and_then(|a| userdata::text(a.value, userdata::COMMENT)),
        })
    })
}

/// The chains in one datagram.
pub fn decode_chains(datagram: &[u8]) -> Result<Vec<ChainRecord>, DecodeError> {
    records(datagram, NEW_CHAIN, "a chain", |family, f| {
        let mut chain = ObservedChain {
            // Flags other than NFT_CHAIN_BASE: hardware offload, a binding. Userdata: a comment.
            foreign: f.number(10)?.is_some_and(|flags| flags & !1 != 0) || f.get(12).is_some(),
            ..ObservedChain::default()
        };
        if let Some(hook) = f.get(4) {
            let h = AttributeIndex::of("a hook", hook.nested())?;
            // A single device is reported as `NFTA_HOOK_DEV` and, since Linux 5.5, in the list `NFTA_HOOK_DEVS` as
            // well; several devices are reported only in the list.
            let device = h.get(3).map(|device| device.text()).transpose()?;
            chain.foreign |= !h.has_only(&[1, 2, 3, 4]) || device.is_none() && h.get(4).is_some();
            chain.hook = Some(ObservedHook {
                kind: f.need(7)?.text()?.into(),
                number: h.need(1)?.be32()?,
                // A signed number (`NFTA_HOOK_PRIORITY`).
                priority: h.need(2)?.be32()? as i32,
                policy: f.need(5)?.be32()?,
                device: device.map(Into::into),
            });
        }
        let uses = f.number(6)?.unwrap_or(0);
        Ok(ChainRecord { family, table: f.need(1)?.text()?.into(), name: f.need(3)?.text()?.into(), uses, chain })
    })
}

/// The flowtables in one datagram.
pub fn decode_flowtables(datagram: &[u8]) -> Result<Vec<FlowtableRecord>, DecodeError> {
    records(datagram, NEW_FLOWTABLE, "a flowtable", |family, f| {
        let mut devices = Vec::new();
        if let Some(hook) = f.get(3)
            && let Some(list) = AttributeIndex::of("a hook", hook.nested())?.get(3)
        {
            for device in list.nested() {
                devices.push(device?.text()?.into());
            }
        }
        let (table, name) = (f.need(1)?.text()?.into(), f.need(2)?.text()?.into());
        Ok(FlowtableRecord { family, table, name, devices, flags: f.number(7)?.unwrap_or(0) })
    })
}

/// The rules in one datagram, in the order of their chains.
pub fn decode_rules(datagram: &[u8]) -> Result<Vec<RuleRecord>, DecodeError> {
    records(datagram, NEW_RULE, "a rule", |family, f| {
        let handle = match *f.need(3)?.value {
            [a, b, c, d, e, g, h, i] => u64::from_be_bytes([a, b, c, d, e, g, h, i]),
            _ => return Err(DecodeError::length(3, f.need(3)?.value.len())),
        };
        let expressions = match f.get(4) {
            Some(list) => bytecode::expressions(list.nested())?,
            None => Some(Vec::new()),
        };
        let rule = ObservedRule {
            handle,
            expressions,
            comment: f.get(7).and_then(|a| userdata::text(a.value, userdata::COMMENT)),
        };
        Ok(RuleRecord { family, table: f.need(1)?.text()?.into(), chain: f.need(2)?.text()?.into(), rule })
    })
}

/// `NFT_SET_ANONYMOUS`
const ANONYMOUS: u32 = 1;
/// `NFT_SET_MAP` and `NFT_SET_OBJECT`: elements have data.
const HOLDING: u32 = 8 | 64;

/// The sets and maps in one datagram.
pub fn decode_sets(datagram: &[u8]) -> Result<Vec<SetRecord>, DecodeError> {
    records(datagram, NEW_SET, "a set", |family, f| {
        let flags = f.number(3)?.unwrap_or(0);
        let header = SetHeader {
            flags,
            key_type: f.number(4)?.unwrap_or(0),
            key_length: f.need(5)?.be32()?,
            data_type: if flags & HOLDING != 0 { Some(f.number(6)?.unwrap_or(0)) } else { None },
            size: f.get(9).map(|a| set_size(a.nested())).transpose()?.flatten(),
            timeout_millis: f.get(11).map(|a| a.be64()).transpose()?,
            comment: f.get(13).and_then(|a| userdata::text(a.value, userdata::SET_COMMENT)),
        };
        // Collection interval, object type, expression, expressions; the lengths of ranges; an eviction policy other
        // than speed.
        let foreign = f.has_any(&[12, 15, 17, 18])
            || f.get(9).map(|a| has_lengths(a.nested())).transpose()?.unwrap_or(false)
            || f.number(8)?.is_some_and(|policy| policy != 0);
        Ok(SetRecord {
            family,
            table: f.need(1)?.text()?.into(),
            name: f.need(2)?.text()?.into(),
            anonymous: flags & ANONYMOUS != 0,
            set: ObservedSet { header, foreign, elements: Vec::new() },
        })
    })
}

/// `NFTA_SET_DESC_SIZE`
fn set_size(description: Attributes<'_>) -> Result<Option<u32>, DecodeError> {
    AttributeIndex::of("a set's description", description)?.number(1)
}

/// `NFTA_SET_DESC_CONCAT`, or anything else that is not the size.
fn has_lengths(description: Attributes<'_>) -> Result<bool, DecodeError> {
    Ok(!AttributeIndex::of("a set's description", description)?.has_only(&[1]))
}
