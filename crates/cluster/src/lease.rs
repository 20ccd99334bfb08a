//! Leader election on a Lease (coordination.k8s.io/v1).
//!
//! [`Election`] only decides; [`hold_lease`] sends the requests. The rules are those of client-go
//! (`tools/leaderelection`): the holder is alive for the lease duration after this process observed a change of the
//! Lease, measured by the monotonic clock of this process and not by timestamps of others. A leader that cannot renew
//! steps down before the lease duration is over, so there are never two leaders.

mod client;
mod election;
mod hold;
mod record;

use std::time::Duration;

pub use election::{Election, LeaseAction};
pub use hold::{LeaseState, hold_lease};
pub use record::Lease;

/// The durations of leader election: client-go's LeaseDuration, RenewDeadline and RetryPeriod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Candidates wait this long after the last observed renewal before one of them acquires the Lease. Whole seconds.
    pub duration: Duration,
    /// A leader that could not renew for this long steps down. Less than `duration`, by more than the latency of
    /// requests and the drift of clocks.
    pub renew_deadline: Duration,
    /// Interval between two reads of the Lease, for leaders and candidates.
    pub retry: Duration,
}

impl Default for LeaseTerms {
    fn default() -> LeaseTerms {
        LeaseTerms {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}
