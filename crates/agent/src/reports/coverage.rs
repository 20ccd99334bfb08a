//! Share of denied packets covered by events, to distinguish an empty list from missing reports.

use jiff::Timestamp;

use super::DropStream;
use crate::api::drops::Coverage;
use crate::api::status::Drops;
use crate::status::AgentStatus;

/// Combines the status of the reports, the counters and the kept events.
pub(crate) fn coverage(status: &AgentStatus, drops: Option<Drops>, stream: &DropStream) -> Coverage {
    let (since, forgotten) = stream.kept_since();
    Coverage {
        reporting: status.drop_log_group.is_some(),
        reporting_reason: status.drop_log.clone(),
        kept_since: written(since),
        forgotten_events: forgotten,
        denied: drops.map(|drops| drops.denied),
        would_deny: drops.map(|drops| drops.would_deny),
        unnamed: drops.map(|drops| drops.unnamed),
    }
}

/// RFC 3339, with milliseconds.
pub(crate) fn written(time: Timestamp) -> String {
    format!("{time:.3}")
}
