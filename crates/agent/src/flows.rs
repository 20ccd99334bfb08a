//! Flow records of this node (docs/flows.md): the connections of its pods, their ends, and the rule that decided.
//!
//! A separate thread reads connection tracking ([`capture`]). It names the ends and the rules ([`attribution`]) with a
//! copy of the cluster state that follows the event loop's ([`replica`], [`mod@feed`]) and lags behind it on purpose: a
//! change is applied only after every connection that began before its commit. So a connection is attributed to the
//! policies that judged it, and the event loop does no work per flow. The crate `flow` counts them, and readers query
//! [`store`].

pub(crate) mod accounting;
mod attribution;
mod capture;
mod delivery;
mod feed;
mod offload;
mod pending_connections;
mod replica;
mod schedule;
pub(crate) mod services;
mod store;

pub(crate) use attribution::NameInputs;
pub(crate) use capture::{Capture, CaptureSettings, GIVE_UP_AT};
pub(crate) use delivery::{UndeliveredFile, finish_delivery, start_delivery};
pub(crate) use feed::{ClockReading, DeniedPackets, FlowFeed, Mutation, feed};
pub(crate) use store::{FlowFigures, FlowItem, FlowStore, FollowedFlows};

use flow::FlowKey;
use nft::Protocol;

/// IANA numbers.
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// The traffic of a record's connections, in the format of `ringfence explain`: `80/tcp`, `icmp`, `protocol 47`.
pub(crate) fn traffic(key: &FlowKey) -> String {
    traffic_to(key.protocol, key.port)
}

/// `80/tcp`, or the protocol without a port.
pub(crate) fn traffic_to(protocol: u8, port: Option<u16>) -> String {
    match (Protocol::from_number(protocol), port, protocol) {
        (Some(protocol), Some(port), _) => format!("{port}/{protocol}"),
        (Some(protocol), None, _) => protocol.to_string(),
        (None, _, ICMP | ICMPV6) => "icmp".into(),
        (None, _, number) => format!("protocol {number}"),
    }
}
