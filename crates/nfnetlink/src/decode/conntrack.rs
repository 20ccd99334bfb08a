//! Conntrack entries in events and in dumps. Attribute numbers are those of
//! `uapi/linux/netfilter/nfnetlink_conntrack.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::attributes::AttributeIndex;
use super::{Counter, DecodeError};
use crate::message::{Attribute, CTNETLINK, Message, Messages, family_and_attributes};

/// `IPCTNL_MSG_CT_NEW` and `IPCTNL_MSG_CT_DELETE`
const NEW_ENTRY: u16 = CTNETLINK;
const DELETED_ENTRY: u16 = CTNETLINK | 2;

/// `CTA_*`
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const MARK: u16 = 8;
const ORIGINAL_COUNTERS: u16 = 9;
const REPLY_COUNTERS: u16 = 10;
const ID: u16 = 12;
const ZONE: u16 = 18;
const TIMESTAMP: u16 = 20;
const EVENT_TIMESTAMP: u16 = 27;

/// `CTA_TUPLE_IP` and `CTA_TUPLE_PROTO`
const TUPLE_ADDRESSES: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;

/// `CTA_IP_*`
const V4_SOURCE: u16 = 1;
const V4_DESTINATION: u16 = 2;
const V6_SOURCE: u16 = 3;
const V6_DESTINATION: u16 = 4;

/// `CTA_PROTO_*`
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
const ICMP_TYPE: u16 = 5;
const ICMPV6_TYPE: u16 = 8;

/// `CTA_COUNTERS_PACKETS` and `CTA_COUNTERS_BYTES`
const PACKETS: u16 = 1;
const BYTES: u16 = 2;

/// `CTA_TIMESTAMP_START` and `CTA_TIMESTAMP_STOP`
const START: u16 = 1;
const STOP: u16 = 2;

/// `IPPROTO_*`
const ICMP: u8 = 1;
const GRE: u8 = 47;
const ICMPV6: u8 = 58;

/// Addresses and ports of one direction of a conntrack entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrackedTuple {
    /// `CTA_IP_V4_SRC` or `CTA_IP_V6_SRC`.
    pub source: IpAddr,
    /// `CTA_IP_V4_DST` or `CTA_IP_V6_DST`.
    pub destination: IpAddr,
    /// IANA number.
    pub protocol: u8,
    /// `None` for protocols without ports. The kernel reports the keys of GRE as ports; they are left out.
    pub source_port: Option<u16>,
    /// `None` as for the source port.
    pub destination_port: Option<u16>,
    /// Type of the ICMP or ICMPv6 message that created the entry, or of the reply to it.
    pub icmp_type: Option<u8>,
}

/// A conntrack entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackedFlow {
    /// `CTA_ID`: the same in all messages about the entry. The kernel may reuse it for a later entry.
    pub id: u32,
    /// 0 is the default zone.
    pub zone: u16,
    /// The tuple of the first packet, before address translation.
    pub original: TrackedTuple,
    /// The tuple of a reply: after destination translation its source is the translated destination.
    pub reply: TrackedTuple,
    /// The connection mark; the kernel leaves out a mark of 0.
    pub mark: u32,
    /// `IPS_*` of `uapi/linux/netfilter/nf_conntrack_common.h`.
    pub status: u32,
    /// Packets and bytes of the original and of the reply direction. `None` in every [`FlowEvent::New`], and for an
    /// entry that was created while accounting was off.
    pub counters: Option<[Counter; 2]>,
    /// Nanoseconds since 1970; `None` without timestamps. The time of a [`FlowEvent::New`] is that of the event, some
    /// microseconds after that of the entry, and only reported since Linux 6.14.
    pub started_ns: Option<u64>,
    /// When the entry was removed; `None` for live entries and without timestamps.
    pub stopped_ns: Option<u64>,
}

/// A conntrack event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowEvent {
    /// The entry was confirmed: the first packet of the flow passed all rules.
    New(TrackedFlow),
    /// The entry expired or was deleted.
    Destroyed(TrackedFlow),
}

/// The new and the removed entries in one datagram of events. Updates of entries are skipped.
///
/// # Errors
/// If the datagram is truncated, or an attribute of an entry is missing or invalid; the error names the attribute.
pub fn decode_flow_events(datagram: &[u8]) -> Result<Vec<FlowEvent>, DecodeError> {
    let mut events = Vec::new();
    for message in Messages::new(datagram) {
        let message = message?;
        // An update has the type of a new entry without this flag (`ctnetlink_conntrack_event`).
        let creates = message.flags & libc::NLM_F_CREATE as u16 != 0;
        match message.kind {
            NEW_ENTRY if creates => events.push(FlowEvent::New(entry(&message)?)),
            DELETED_ENTRY => events.push(FlowEvent::Destroyed(entry(&message)?)),
            _ => {}
        }
    }
    Ok(events)
}

/// The entries in one datagram of a dump.
///
/// # Errors
/// As [`decode_flow_events`].
pub fn decode_tracked_flows(datagram: &[u8]) -> Result<Vec<TrackedFlow>, DecodeError> {
    let mut flows = Vec::new();
    for message in Messages::new(datagram) {
        let message = message?;
        if message.kind == NEW_ENTRY {
            flows.push(entry(&message)?);
        }
    }
    Ok(flows)
}

fn entry(message: &Message<'_>) -> Result<TrackedFlow, DecodeError> {
    let (_, attributes) = family_and_attributes(message)?;
    let f = AttributeIndex::of("a conntrack entry", attributes)?;
    let zone = f.get(ZONE).map(|a| a.be16()).transpose().map_err(within("CTA_ZONE"))?;
    let number = |attribute, name| f.number(attribute).map_err(within(name));
    let needed = |attribute, name| f.need(attribute).map_err(within(name));
    let id = needed(ID, "CTA_ID")?.be32().map_err(within("CTA_ID"))?;
    let status = needed(STATUS, "CTA_STATUS")?.be32().map_err(within("CTA_STATUS"))?;
    let original = needed(ORIGINAL, "CTA_TUPLE_ORIG").and_then(|a| tuple(a).map_err(within("CTA_TUPLE_ORIG")))?;
    let reply = needed(REPLY, "CTA_TUPLE_REPLY").and_then(|a| tuple(a).map_err(within("CTA_TUPLE_REPLY")))?;
    let times = f.get(TIMESTAMP).map(times).transpose().map_err(within("CTA_TIMESTAMP"))?;
    let event = f.get(EVENT_TIMESTAMP).map(|a| a.be64()).transpose().map_err(within("CTA_TIMESTAMP_EVENT"))?;
    let event = event.filter(|_| message.kind == NEW_ENTRY);
    let (started_ns, stopped_ns) = times.unwrap_or((None, None));
    Ok(TrackedFlow {
        id,
        zone: zone.unwrap_or(0),
        original,
        reply,
        mark: number(MARK, "CTA_MARK")?.unwrap_or(0),
        status,
        counters: counters(&f)?,
        started_ns: started_ns.or(event),
        stopped_ns,
    })
}

/// Both directions of a conntrack entry that is an attribute of another message (`NFULA_CT`), the original one first.
pub(super) fn tuples(entry: Attribute<'_>) -> Result<[TrackedTuple; 2], DecodeError> {
    let f = AttributeIndex::of("a conntrack entry", entry.nested())?;
    Ok([
        f.need(ORIGINAL).and_then(tuple).map_err(within("CTA_TUPLE_ORIG"))?,
        f.need(REPLY).and_then(tuple).map_err(within("CTA_TUPLE_REPLY"))?,
    ])
}

/// Adds the name of the entry's attribute to an error.
fn within<E: Into<DecodeError>>(attribute: &'static str) -> impl Fn(E) -> DecodeError {
    move |problem| DecodeError::Entry { attribute, problem: Box::new(problem.into()) }
}

pub(super) fn tuple(attribute: Attribute<'_>) -> Result<TrackedTuple, DecodeError> {
    let parts = AttributeIndex::of("a tuple", attribute.nested())?;
    let (source, destination) =
        addresses(&AttributeIndex::of("a tuple's addresses", parts.need(TUPLE_ADDRESSES)?.nested())?)?;
    let f = AttributeIndex::of("a tuple's protocol", parts.need(TUPLE_PROTOCOL)?.nested())?;
    let protocol = f.need(PROTOCOL_NUMBER)?.byte()?;
    let port = |number| match protocol {
        GRE | ICMP | ICMPV6 => Ok(None),
        _ => f.get(number).map(|a| a.be16()).transpose(),
    };
    let icmp_type = match protocol {
        ICMP => Some(f.need(ICMP_TYPE)?.byte()?),
        ICMPV6 => Some(f.need(ICMPV6_TYPE)?.byte()?),
        _ => None,
    };
    let (source_port, destination_port) = (port(SOURCE_PORT)?, port(DESTINATION_PORT)?);
    Ok(TrackedTuple { source, destination, protocol, source_port, destination_port, icmp_type })
}

/// Source and destination address, both of one family.
fn addresses(f: &AttributeIndex<'_>) -> Result<(IpAddr, IpAddr), DecodeError> {
    let v4 = |number| f.array(number).map(|octets: [u8; 4]| Ipv4Addr::from(octets).into());
    let v6 = |number| f.array(number).map(|octets: [u8; 16]| Ipv6Addr::from(octets).into());
    if f.get(V6_SOURCE).is_some() {
        Ok((v6(V6_SOURCE)?, v6(V6_DESTINATION)?))
    } else {
        Ok((v4(V4_SOURCE)?, v4(V4_DESTINATION)?))
    }
}

/// The counters of both directions or of neither, as the kernel counts (`ctnetlink_dump_acct`).
fn counters(f: &AttributeIndex<'_>) -> Result<Option<[Counter; 2]>, DecodeError> {
    let counter = |attribute: u16, name| {
        let read = || {
            let f = AttributeIndex::of("a conntrack counter", f.need(attribute)?.nested())?;
            Ok(Counter { packets: f.need(PACKETS)?.be64()?, bytes: f.need(BYTES)?.be64()? })
        };
        read().map_err(within::<DecodeError>(name))
    };
    if !f.has_any(&[ORIGINAL_COUNTERS, REPLY_COUNTERS]) {
        return Ok(None);
    }
    let original = counter(ORIGINAL_COUNTERS, "CTA_COUNTERS_ORIG")?;
    Ok(Some([original, counter(REPLY_COUNTERS, "CTA_COUNTERS_REPLY")?]))
}

fn times(attribute: Attribute<'_>) -> Result<(Option<u64>, Option<u64>), DecodeError> {
    let f = AttributeIndex::of("timestamps", attribute.nested())?;
    let start = f.need(START)?.be64()?;
    Ok((Some(start), f.get(STOP).map(|a| a.be64()).transpose()?))
}

#[cfg(test)]
mod tests;
