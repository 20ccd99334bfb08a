//! Conntrack entries with marks, and conntrack statistics.

use super::DecodeError;
use super::attributes::AttributeIndex;
use super::conntrack::{TrackedTuple, tuple};
use crate::message::{CTNETLINK, Messages, family_and_attributes};

/// `IPCTNL_MSG_CT_NEW`
const NEW_ENTRY: u16 = CTNETLINK;

/// `IPCTNL_MSG_CT_GET_STATS`
const STATISTICS: u16 = CTNETLINK | 5;

/// Usage of the conntrack table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowCount {
    /// Number of entries in the network namespace.
    pub entries: u32,
    /// Maximum number of entries; kernels before 4.18 do not report it.
    pub limit: Option<u32>,
}

/// Decodes the reply to `IPCTNL_MSG_CT_GET_STATS`.
pub fn decode_flow_count(datagram: &[u8]) -> Result<Option<FlowCount>, DecodeError> {
    for message in Messages::new(datagram) {
        let message = message?;
        if message.kind == STATISTICS {
            let (_, attributes) = family_and_attributes(&message)?;
            let f = AttributeIndex::of("connection tracking's numbers", attributes)?;
            return Ok(Some(FlowCount { entries: f.need(1)?.be32()?, limit: f.number(2)? }));
        }
    }
    Ok(None)
}

/// The attributes that identify a conntrack entry to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowIdentity {
    /// `AF_INET` or `AF_INET6`.
    pub family: u8,
    /// The undecoded attributes within `CTA_TUPLE_ORIG`.
    pub original: Vec<u8>,
    /// The undecoded value of `CTA_ZONE`.
    pub zone: Option<Vec<u8>>,
}

/// A conntrack entry with a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkedFlow {
    /// Identifies the entry.
    pub identity: FlowIdentity,
    /// `CTA_MARK`, never 0.
    pub mark: u32,
}

/// A conntrack entry with its ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFlow {
    /// Identifies the entry.
    pub identity: FlowIdentity,
    /// `CTA_TUPLE_ORIG` and `CTA_TUPLE_REPLY`.
    pub tuples: [TrackedTuple; 2],
}

/// The entries with a mark in one datagram of a dump.
pub fn decode_marked_flows(datagram: &[u8]) -> Result<Vec<MarkedFlow>, DecodeError> {
    decode_entries(datagram, |family, f| {
        // CTA_MARK is left out when it is 0 (`ctnetlink_dump_mark`).
        let Some(mark) = f.number(8)? else { return Ok(None) };
        Ok(Some(MarkedFlow { identity: identity(family, f)?, mark }))
    })
}

/// The entries in one datagram of a dump.
pub fn decode_listed_flows(datagram: &[u8]) -> Result<Vec<ListedFlow>, DecodeError> {
    decode_entries(datagram, |family, f| {
        let tuples = [tuple(f.need(1)?)?, tuple(f.need(2)?)?];
        Ok(Some(ListedFlow { identity: identity(family, f)?, tuples }))
    })
}

/// Reads each entry of a dump, with its family; `None` is left out.
fn decode_entries<T>(
    datagram: &[u8],
    read: impl Fn(u8, &AttributeIndex<'_>) -> Result<Option<T>, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let mut entries = Vec::new();
    for message in Messages::new(datagram) {
        let message = message?;
        if message.kind == NEW_ENTRY {
            let (family, attributes) = family_and_attributes(&message)?;
            entries.extend(read(family, &AttributeIndex::of("a connection", attributes)?)?);
        }
    }
    Ok(entries)
}

fn identity(family: u8, f: &AttributeIndex<'_>) -> Result<FlowIdentity, DecodeError> {
    let zone = f.get(18).map(|a| a.value.to_vec());
    Ok(FlowIdentity { family, original: f.need(1)?.value.to_vec(), zone })
}
