//! Sends the records of the agent's ring to one aggregator, in order, until they are acknowledged.

use std::time::Duration;

use feed::client::with_causes;
use flow::RecordBatch;
use http::uri::PathAndQuery;
use pacing::Backoff;
use tokio::sync::watch;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::PATH;
use crate::figures::DeliveryFigures;
use crate::message::{BATCH_RECORDS, PushReceipt, PushRequest};
use crate::target::Server;

/// First backoff of failed calls. The ring buffers the records meanwhile.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Longest backoff of failed calls: agents reconnect to an aggregator within this time of its start.
pub const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Backoff of failed calls while the agent shuts down.
const FLUSH_RETRY: Duration = Duration::from_millis(250);

/// Consecutive receipts without progress after which the call counts as failed. After the first one the sender resumes
/// from the acknowledged record.
const MOST_FRUITLESS: u32 = 2;

/// First record that counts as missing at the aggregator if it leaves the ring unacknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// The first record of the agent.
    FirstRecord,
    /// The oldest record in the ring, because the aggregator was added later.
    OldestRecord,
}

/// Sender of one agent to one aggregator.
pub(crate) struct Sender {
    node: String,
    epoch: u64,
    server: Server,
    figures: DeliveryFigures,
    channel: Option<Channel>,
    next: u64,
    position: Position,
    fruitless: u32,
}

/// Result of a successful call.
enum Outcome {
    Sent,
    UpToDate,
}

impl Sender {
    pub(crate) fn new(node: String, epoch: u64, server: Server, figures: DeliveryFigures, start: Start) -> Sender {
        let position = Position(match start {
            Start::FirstRecord => Some(0),
            Start::OldestRecord => None,
        });
        Sender { node, epoch, server, figures, channel: None, next: 1, position, fruitless: 0 }
    }

    /// Sends records until the agent shuts down. `batch` reads the ring from a sequence number; `closed` changes when a
    /// window was closed and its records are in the ring.
    pub(crate) async fn run(mut self, mut closed: watch::Receiver<u64>, batch: impl Fn(u64, usize) -> RecordBatch) {
        let mut backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
        loop {
            match self.push(batch(self.next, BATCH_RECORDS)).await {
                Ok(Outcome::Sent) => backoff.reset(),
                Ok(Outcome::UpToDate) => {
                    if closed.changed().await.is_err() {
                        return;
                    }
                }
                Err(why) => {
                    // Reconnects, because certificates may have been replaced.
                    self.channel = None;
                    self.figures.failed(self.server.address(), &self.server.name(), why);
                    tokio::select! {
                        () = tokio::time::sleep(backoff.wait()) => {}
                        () = self.figures.flushing() => tokio::time::sleep(FLUSH_RETRY).await,
                    }
                }
            }
        }
    }

    async fn push(&mut self, batch: RecordBatch) -> Result<Outcome, String> {
        self.figures.add_dropped(self.server.address(), self.position.pass_dropped(batch.oldest));
        self.figures.pass(self.server.address(), self.position.highest());
        let newest = batch.newest;
        let message = PushRequest::new(&self.node, self.epoch, &batch).map_err(|error| error.to_string())?;
        let (first, count) = (message.first, message.records.len());
        let PushReceipt { acknowledged } = self.call(message).await?;
        if acknowledged > newest {
            return Err(format!(
                "the aggregator acknowledged record {acknowledged}, but the newest record is {newest}"
            ));
        }
        // After a window without records an empty call verifies that the receiver still has the earlier ones.
        let is_fruitful = acknowledged >= first || (count == 0 && acknowledged.saturating_add(1) >= first);
        if is_fruitful {
            self.fruitless = 0;
        } else {
            // Another receiver with fewer records answered; the next call resumes at its position.
            self.fruitless += 1;
        }
        self.next = acknowledged + 1;
        if self.fruitless >= MOST_FRUITLESS {
            self.fruitless = 0;
            return Err("the aggregator keeps requesting records that it has acknowledged".into());
        }
        self.position.acknowledge(acknowledged);
        self.figures.pass(self.server.address(), self.position.highest());
        self.figures.succeeded(self.server.address(), &self.server.name(), count, acknowledged);
        Ok(if acknowledged < newest { Outcome::Sent } else { Outcome::UpToDate })
    }

    async fn call(&mut self, message: PushRequest) -> Result<PushReceipt, String> {
        let mut request = tonic::Request::new(message);
        if let Some(value) = self.server.authorization().await? {
            request.metadata_mut().insert("authorization", value);
        }
        let channel = match &self.channel {
            Some(channel) => channel.clone(),
            None => self.channel.insert(self.server.channel().await?).clone(),
        };
        let mut grpc = Grpc::new(channel);
        grpc.ready().await.map_err(|error| format!("not connected: {}", with_causes(&error)))?;
        let codec: ProstCodec<PushRequest, PushReceipt> = ProstCodec::default();
        let answer = grpc.unary(request, PathAndQuery::from_static(PATH), codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| explain(&status))
    }
}

/// The highest record that was acknowledged or has left the ring; `None` before the first batch to an aggregator that
/// was added later.
#[derive(Debug)]
struct Position(Option<u64>);

impl Position {
    /// Skips the records before `oldest`, and returns how many of them left the ring unacknowledged.
    fn pass_dropped(&mut self, oldest: u64) -> u64 {
        let gone = oldest.saturating_sub(1);
        let highest = self.0.unwrap_or(gone);
        self.0 = Some(highest.max(gone));
        gone.saturating_sub(highest)
    }

    fn highest(&self) -> u64 {
        self.0.unwrap_or(0)
    }

    fn acknowledge(&mut self, record: u64) {
        self.0 = self.0.max(Some(record));
    }
}

/// Error message for a failed call.
fn explain(status: &Status) -> String {
    let message = status.message();
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => format!("refused: {message}"),
        Code::Unimplemented => format!("the server does not receive flow records; expected an aggregator: {message}"),
        code => format!("{code:?}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_left_unacknowledged_are_counted_once() {
        let mut position = Position(Some(4));
        for (oldest, dropped) in [(1, 0), (5, 0), (8, 3), (8, 0), (9, 1)] {
            assert_eq!(position.pass_dropped(oldest), dropped, "{oldest}");
        }
        position.acknowledge(20);
        assert_eq!(position.pass_dropped(21), 0);
    }

    #[test]
    fn server_added_later_misses_no_earlier_records() {
        let mut position = Position(None);
        assert_eq!(position.pass_dropped(100), 0);
        assert_eq!(position.pass_dropped(103), 3);
    }
}
