//! The collector of a Goldmane as a sink: flows of settled windows, sent as Calico's agents send theirs.

use std::time::Duration;

use anyhow::Context;
use delivery::GrpcEndpoint;
use feed::client::with_causes;
use flow::join;
use futures::stream;
use goldmane::collector::{CONNECT, KEPT_SECONDS, decode_updates};
use goldmane::message::{Flow, FlowReceipt, FlowUpdate};
use goldmane::{Filters, FlowList, RequestError};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use trail::{Batch, DeliveryOutcome, SettledRecord};

use super::sink::Answer;

/// Longest wait for the next receipt. A Goldmane with a full queue waits for 5 s before it discards a flow.
const RECEIPT: Duration = Duration::from_secs(30);

/// Longest wait for the end of the stream after its last receipt. The flows are received by then.
const STREAM_END: Duration = Duration::from_secs(5);

/// Client of a collector.
pub(super) struct GoldmaneSink {
    endpoint: GrpcEndpoint,
    progress: Mutex<Progress>,
}

/// Connection, and receipts of the batch that is being sent.
#[derive(Default)]
struct Progress {
    /// Recreated after a failure, since certificates may have been replaced.
    channel: Option<Channel>,
    /// Sequence number of the batch in the spool.
    batch: Option<u64>,
    /// Flows at the start of the batch that the collector has acknowledged.
    acknowledged: usize,
}

enum PushError {
    Retry(String),
    /// The collector will never accept the next flow.
    Refused(String),
}

impl GoldmaneSink {
    pub(super) fn new(endpoint: GrpcEndpoint) -> GoldmaneSink {
        GoldmaneSink { endpoint, progress: Mutex::default() }
    }

    pub(super) fn url(&self) -> &str {
        self.endpoint.url()
    }

    /// # Errors
    /// If a file of certificates cannot be used.
    pub(super) async fn check(&self) -> anyhow::Result<()> {
        self.endpoint.check().await.map_err(anyhow::Error::msg).context(
            "cannot use the certificates; choose PEM files with --goldmane-push-ca-file, --goldmane-push-cert and \
             --goldmane-push-key",
        )
    }

    /// Sends the flows of a batch that are not acknowledged yet. `sequence` identifies the batch across retries.
    pub(super) async fn send(&self, sequence: u64, batch: Batch, now: Timestamp) -> Answer {
        let refused = |why: String| Answer { outcome: DeliveryOutcome::Refused { why }, rejected: None };
        if now.duration_since(batch.window) > SignedDuration::from_secs(KEPT_SECONDS) {
            return refused("the flows are older than the hour that a Goldmane keeps".into());
        }
        let updates = match decode_updates(&batch.body) {
            Ok(updates) => updates,
            Err(error) => return refused(format!("damaged batch: {error}")),
        };
        let total = updates.len();
        let mut progress = self.progress.lock().await;
        if progress.batch != Some(sequence) {
            progress.batch = Some(sequence);
            progress.acknowledged = 0;
        }
        let pushed = self.push(&mut progress, updates).await;
        if pushed.is_err() {
            progress.channel = None;
        }
        let (outcome, rejected) = match pushed {
            Ok(()) => (DeliveryOutcome::Delivered, None),
            Err(PushError::Retry(why)) => (DeliveryOutcome::Retry { after: None, why }, None),
            // The flows before it are acknowledged.
            Err(PushError::Refused(why)) => {
                (DeliveryOutcome::Delivered, Some(((total - progress.acknowledged) as u64, why)))
            }
        };
        Answer { outcome, rejected }
    }

    /// Sends the updates on one stream, without a wait for each receipt: HTTP/2 flow control bounds those under way.
    async fn push(&self, progress: &mut Progress, updates: Vec<FlowUpdate>) -> Result<(), PushError> {
        let total = updates.len();
        let channel = match &progress.channel {
            Some(channel) => channel.clone(),
            None => {
                let channel = self.endpoint.channel(None).await.map_err(PushError::Retry)?;
                progress.channel.insert(channel).clone()
            }
        };
        let mut grpc = Grpc::new(channel);
        let not_connected = |error: tonic::transport::Error| PushError::Retry(with_causes(&error));
        grpc.ready().await.map_err(not_connected)?;
        let codec: ProstCodec<FlowUpdate, FlowReceipt> = ProstCodec::default();
        let request = tonic::Request::new(stream::iter(updates.into_iter().skip(progress.acknowledged)));
        let no_receipt = |_| PushError::Retry(format!("no receipt within {} s", RECEIPT.as_secs()));
        let call = grpc.streaming(request, PathAndQuery::from_static(CONNECT), codec);
        let answer = timeout(RECEIPT, call).await.map_err(no_receipt)?;
        let mut receipts = answer.map_err(|status| refusal(&status))?.into_inner();
        while progress.acknowledged < total {
            match timeout(RECEIPT, receipts.message()).await.map_err(no_receipt)? {
                Ok(Some(FlowReceipt {})) => progress.acknowledged += 1,
                Ok(None) => {
                    let missing = total - progress.acknowledged;
                    return Err(PushError::Retry(format!("the stream ended without receipts of {missing} flows")));
                }
                Err(status) => return Err(refusal(&status)),
            }
        }
        // The collector reads the end of the stream, which is a cancellation to it if the connection ends first.
        drop(timeout(STREAM_END, receipts.message()).await);
        Ok(())
    }
}

/// The status of a call that failed. Only statuses about the flow itself end its retries.
fn refusal(status: &Status) -> PushError {
    let why = format!("{:?}: {}", status.code(), status.message());
    match status.code() {
        Code::InvalidArgument | Code::OutOfRange => PushError::Refused(why),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::Unimplemented
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated => PushError::Retry(why),
    }
}

/// Flows of a window that were not exported before, those that a stream of `goldmane.Flows` would have now.
///
/// # Errors
/// If there are too many distinct flows.
pub(super) fn new_flows(records: &[SettledRecord]) -> Result<Vec<Flow>, RequestError> {
    let list = |is_wanted: fn(&SettledRecord) -> bool| {
        let mut list = FlowList::new(Filters::default());
        for joined in join(records.iter().filter(|settled| is_wanted(settled)).map(|settled| &settled.record)) {
            list.add(&joined)?;
        }
        Ok(list)
    };
    Ok(list(|_| true)?.growth_since(&list(|settled| settled.is_exported)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_statuses_about_flows_end_retries() {
        for code in (0..=16).map(Code::from_i32) {
            let is_refused = matches!(refusal(&Status::new(code, "why")), PushError::Refused(_));
            assert_eq!(is_refused, matches!(code, Code::InvalidArgument | Code::OutOfRange), "{code:?}");
        }
    }

    #[tokio::test]
    async fn flows_older_than_an_hour_are_refused() {
        let endpoint = GrpcEndpoint::new("http://127.0.0.1:1", feed::Access::default(), None).unwrap();
        let sink = GoldmaneSink::new(endpoint);
        let window = crate::testing::window(0);
        let mut outcomes = Vec::new();
        for age in [3_600, 3_601] {
            let batch = Batch { window, records: 1, body: b"\x02\x0a\x00".to_vec() };
            outcomes.push(sink.send(1, batch, window + SignedDuration::from_secs(age)).await.outcome);
        }
        assert!(matches!(outcomes[0], DeliveryOutcome::Retry { .. }), "no server: {:?}", outcomes[0]);
        assert!(matches!(&outcomes[1], DeliveryOutcome::Refused { why } if why.contains("older than the hour")));
    }
}
