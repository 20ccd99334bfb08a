//! Leader election on a Lease (coordination.k8s.io/v1): of several processes one leads.
//!
//! [`Election`] decides and does nothing; [`hold_lease`] asks and writes. The rules are client-go's
//! (`tools/leaderelection`): a holder counts as alive for the Lease's duration from the moment at which this process saw
//! the record change, by this process's own clock; times that others wrote are never compared with it. Whoever leads
//! gives up earlier than that if it cannot renew, so that no two lead at once.

mod client;
mod election;
mod hold;
mod record;

use std::time::Duration;

pub use election::{Election, Step};
pub use hold::{Standing, hold_lease};
pub use record::Lease;

/// How long leadership lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Others wait so long after the last sign of a leader before one of them takes its place. Whole seconds.
    pub duration: Duration,
    /// A leader that could not renew for so long leads no more. It is less than `duration`, by more than requests and
    /// clocks are late.
    pub renew_deadline: Duration,
    /// Between two looks at the Lease, for leaders and others.
    pub retry: Duration,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}
