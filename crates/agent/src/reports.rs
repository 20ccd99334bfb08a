//! What becomes of packets that the rules deny, or would deny: they are counted, named, logged and told to whoever asks.
//!
//! A thread of its own hears of packets and reads the kernel's counts ([`watch`]). What it tells the loop is worked out
//! by bookkeeping that knows no kernel ([`recorded`], [`unrecorded`], [`totals`]). The loop gives names to it
//! ([`naming`]), since it has the cluster's state. Nothing here decides about a packet.

mod coverage;
mod ends;
mod group;
mod ledger;
mod naming;
mod recorded;
mod seen;
mod stream;
mod totals;
mod unrecorded;
mod watch;

use std::time::Duration;

pub(crate) use coverage::{coverage, written};
pub(crate) use ends::{Ends, Place};
pub(crate) use group::{GroupChoice, Reporting};
pub(crate) use ledger::{Ledger, Remaining};
pub(crate) use naming::{name, traffic_of};
pub(crate) use seen::{Carried, FirstPacket, Flow, Observed};
pub(crate) use stream::{Followed, Stream};
pub(crate) use watch::Watch;

/// Between two reads of the kernel's counts: a flow that goes on is told of so often. The kernel keeps a flow for a
/// minute, so several reads find it.
const READ_EVERY: Duration = Duration::from_secs(5);

/// How long the kernel keeps a flow that sends no more.
const KEPT_BY_KERNEL: Duration = Duration::from_secs(policy::FLOW_KEPT_SECONDS as u64);

/// First packets that are named between two reads, and flows that are named at a read. To name one costs some
/// microseconds and a line of the log; nobody reads more than a hundred lines a second.
const NAMED_PER_READ: usize = 256;

/// Observations between the thread and the loop. What does not fit is told at the next read.
pub(crate) const OBSERVATIONS_QUEUED: usize = 2 * NAMED_PER_READ;
