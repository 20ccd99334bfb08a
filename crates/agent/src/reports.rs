//! Reports of packets that the rules deny, or would deny: counted, named, logged and published to subscribers.
//!
//! A thread receives logged packets and reads the kernel's counters ([`watch`]). Bookkeeping that is independent of the
//! kernel turns them into drop events ([`recorded_flows`], [`unrecorded_flows`], [`totals`]). Another thread adds names ([`naming`]) from
//! a snapshot of the cluster's state. Nothing here decides about a packet.

mod coverage;
mod ends;
mod group;
mod ledger;
mod naming;
mod packet_group;
mod recorded_flows;
mod stream;
mod totals;
mod unrecorded_flows;
mod watch;

use std::time::Duration;

pub(crate) use coverage::{coverage, written};
pub(crate) use ends::{AddressContext, Ends};
pub(crate) use group::{DENIED_PACKETS, DNS_ANSWERS, GroupChoice, LogGroup};
pub(crate) use ledger::{AuditLedger, SuggestionInput};
pub(crate) use naming::{name, traffic_of};
#[cfg(test)]
pub(crate) use packet_group::PacketGroup;
pub(crate) use packet_group::{DropEvent, FirstPacket, PacketContent, PacketFlow};
pub(crate) use stream::{DropStream, DropsReader};
pub(crate) use watch::Watch;

/// Interval between two reads of the kernel's counters, and between two reports of an ongoing flow. The kernel keeps a
/// flow for a minute, so several reads see it.
const READ_INTERVAL: Duration = Duration::from_secs(5);

/// How long the kernel keeps an idle flow.
const KEPT_BY_KERNEL: Duration = Duration::from_secs(policy::FLOW_KEPT_SECONDS as u64);

/// Bound on first packets named between two reads, and on flows named at a read. Naming one costs some microseconds and
/// a log line, and more than a hundred lines a second are unreadable.
const NAMED_PER_READ: usize = 256;

/// Queue between the thread and the event loop. If it is full, packets are reported at the next read.
pub(crate) const DROP_EVENTS_QUEUED: usize = 2 * NAMED_PER_READ;
