//! Follows the aggregator's stream of closed windows and reconnects when a connection ends.

use std::time::Duration;

use anyhow::Context;
use feed::client::with_causes;
use feed::sse::Parser;
use flow::ClusterRecord;
use pacing::Backoff;
use serde::{Deserialize, Serialize};

use super::flow_server::{FlowServer, FlowServerError};

/// Time without data after which the connection is broken. The aggregator sends a heartbeat every 15 s, so two were
/// lost.
const READ_TIMEOUT: Duration = Duration::from_secs(45);

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Item of the aggregator's stream of records.
#[derive(Debug)]
pub(crate) enum StreamItem {
    Record(Box<ClusterRecord>),
    Gap(StreamGap),
    /// The connection ended; the client reconnects.
    Interrupted(String),
}

/// Windows with missing records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamGap {
    pub(crate) from: String,
    pub(crate) until: String,
    pub(crate) reason: String,
}

/// Data of an event with records.
#[derive(Debug, Deserialize)]
struct WindowData {
    records: Vec<ClusterRecord>,
}

impl FlowServer {
    /// Passes each record to `each` once its window is closed, until `each` returns false. Resumes after the last event
    /// when a connection ends.
    ///
    /// # Errors
    /// If the first connection fails, or the aggregator refuses the query.
    pub(crate) async fn follow(
        &self,
        filters: &[(&'static str, String)],
        mut each: impl FnMut(StreamItem) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let mut backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
        let mut last_event_id: Option<String> = None;
        loop {
            let opened = self.open("/v1/flows/stream", filters, (READ_TIMEOUT, last_event_id.as_deref())).await;
            let why = match opened {
                Ok(mut response) => {
                    let mut parser = Parser::new();
                    loop {
                        let part = match response.chunk().await {
                            Ok(Some(part)) => part,
                            Ok(None) => break "the aggregator closed the connection".to_owned(),
                            Err(error) => break with_causes(&error.without_url()),
                        };
                        let mut events = Vec::new();
                        parser.push(&part, &mut events)?;
                        for event in events {
                            backoff.reset();
                            if !hand_on(&event.event, &event.data, &mut each)? {
                                return Ok(());
                            }
                            // Resume after this event only once it was handed on.
                            last_event_id = Some(event.id).filter(|id| !id.is_empty()).or(last_event_id);
                        }
                    }
                }
                Err(FlowServerError::Refused { status, says }) if status.is_client_error() => {
                    return Err(FlowServerError::Refused { status, says }.into());
                }
                Err(error) if last_event_id.is_none() => return Err(error.into()),
                Err(error) => error.to_string(),
            };
            if !each(StreamItem::Interrupted(why))? {
                return Ok(());
            }
            tokio::time::sleep(backoff.wait()).await;
        }
    }
}

fn hand_on(
    event: &str,
    data: &[u8],
    each: &mut impl FnMut(StreamItem) -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    let undecodable =
        || format!("cannot decode an event '{event}'; use ringfence of the same release as the aggregator");
    match event {
        "flows" => {
            let WindowData { records } = serde_json::from_slice(data).with_context(undecodable)?;
            for record in records {
                if !each(StreamItem::Record(Box::new(record)))? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        "gap" => each(StreamItem::Gap(serde_json::from_slice(data).with_context(undecodable)?)),
        // Ignore event types of newer aggregators.
        _ => Ok(true),
    }
}
