//! The agent's side: sends the records of its ring, in order, until each is acknowledged.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use feed::client::with_causes;
use feed::{Access, Backoff};
use flow::RecordBatch;
use http::uri::PathAndQuery;
use tokio::sync::watch;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::PATH;
use crate::message::{BATCH_RECORDS, PushReceipt, PushRequest};

const CONNECT: Duration = Duration::from_secs(10);

/// Deadline of one call.
const CALL: Duration = Duration::from_secs(30);

/// Backoff of failed calls. The ring buffers the records meanwhile.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Consecutive receipts without progress until the call counts as failed. After the first one the sender resumes from the
/// acknowledged record.
const MOST_FRUITLESS: u32 = 2;

/// URL of the aggregator, and the credentials of the agent.
#[derive(Debug, Clone)]
pub struct DeliveryTarget {
    url: String,
    access: Access,
    /// PEM files of certificate and key.
    certificate: Option<(PathBuf, PathBuf)>,
}

/// A URL that is not one of an aggregator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryTargetError {
    #[error("invalid URL '{}': expected https://HOST:PORT, or http://HOST:PORT for tests", .0.escape_debug())]
    Url(String),
    #[error("a bearer token or certificate would be sent without TLS: expected https://HOST:PORT")]
    Plain,
}

impl DeliveryTarget {
    /// # Errors
    /// If the URL is invalid, or credentials would be sent without TLS.
    pub fn new(
        url: &str,
        access: Access,
        certificate: Option<(PathBuf, PathBuf)>,
    ) -> Result<DeliveryTarget, DeliveryTargetError> {
        let invalid = || DeliveryTargetError::Url(url.to_owned());
        let uri: http::Uri = url.parse().map_err(|_| invalid())?;
        let has_user = uri.authority().is_none_or(|authority| authority.as_str().contains('@'));
        let is_secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => return Err(invalid()),
        };
        if has_user || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(invalid());
        }
        if !is_secure && (access.token_file.is_some() || certificate.is_some()) {
            return Err(DeliveryTargetError::Plain);
        }
        Ok(DeliveryTarget { url: url.to_owned(), access, certificate })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Connects with the current content of the certificate files.
    async fn channel(&self) -> Result<Channel, String> {
        feed::install_tls_provider();
        let mut endpoint = Endpoint::from_shared(self.url.clone())
            .map_err(|error| error.to_string())?
            .connect_timeout(CONNECT)
            .timeout(CALL)
            .tcp_keepalive(Some(CALL));
        if self.url.starts_with("https:") {
            let read = async |path: &PathBuf| {
                tokio::fs::read(path).await.map_err(|error| format!("cannot read {}: {error}", path.display()))
            };
            let mut tls = ClientTlsConfig::new();
            tls = match &self.access.ca_file {
                Some(path) => tls.ca_certificate(Certificate::from_pem(read(path).await?)),
                None => tls.with_native_roots(),
            };
            if let Some((certificate, key)) = &self.certificate {
                tls = tls.identity(Identity::from_pem(read(certificate).await?, read(key).await?));
            }
            endpoint = endpoint.tls_config(tls).map_err(|error| with_causes(&error))?;
        }
        endpoint.connect().await.map_err(|error| format!("cannot connect: {}", with_causes(&error)))
    }

    async fn authorization(&self) -> Result<Option<MetadataValue<Ascii>>, String> {
        let value = self.access.authorization().await.map_err(|error| error.to_string())?;
        let value = value.map(|value| MetadataValue::try_from(value.as_bytes()));
        let mut value = value.transpose().map_err(|error| error.to_string())?;
        if let Some(value) = &mut value {
            value.set_sensitive(true);
        }
        Ok(value)
    }
}

/// Snapshot of the figures of delivery.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliveryView {
    /// Records in calls that succeeded; a record that is sent again counts again.
    pub sent: u64,
    /// The last record that was acknowledged.
    pub acknowledged: u64,
    /// Records that left the ring before they were acknowledged.
    pub dropped: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Why the last call failed, while none has succeeded since.
    pub failure: Option<String>,
}

/// Figures of a delivery, for metrics and status.
#[derive(Debug, Clone, Default)]
pub struct DeliveryFigures(Arc<Mutex<DeliveryView>>);

impl DeliveryFigures {
    pub fn view(&self) -> DeliveryView {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, DeliveryView> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the records before `oldest` that left the ring without an acknowledgement.
    fn note_oldest(&self, oldest: u64, highest: &mut u64) {
        let gone = oldest.saturating_sub(1);
        if gone > *highest {
            self.lock().dropped += gone - *highest;
            *highest = gone;
        }
    }

    fn succeeded(&self, sent: usize, acknowledged: u64) {
        let mut view = self.lock();
        if view.failure.take().is_some() {
            tracing::info!("flow records are delivered again");
        }
        view.sent += sent as u64;
        view.acknowledged = acknowledged;
    }

    fn failed(&self, url: &str, why: String) {
        let mut view = self.lock();
        view.failures += 1;
        if view.failure.as_ref() != Some(&why) {
            tracing::warn!("cannot deliver flow records to {url}, they are kept and sent later: {why}");
        }
        view.failure = Some(why);
    }
}

/// One agent's delivery.
pub struct Delivery {
    node: String,
    epoch: u64,
    target: DeliveryTarget,
    figures: DeliveryFigures,
    channel: Option<Channel>,
    next: u64,
    /// The highest record that was acknowledged, or is gone.
    highest: u64,
    fruitless: u32,
}

/// Result of a successful call.
enum Outcome {
    Sent,
    UpToDate,
}

impl Delivery {
    /// `epoch` names the process of the agent: greater at every start.
    pub fn new(node: String, epoch: u64, target: DeliveryTarget) -> Delivery {
        Delivery {
            node,
            epoch,
            target,
            figures: DeliveryFigures::default(),
            channel: None,
            next: 1,
            highest: 0,
            fruitless: 0,
        }
    }

    pub fn figures(&self) -> DeliveryFigures {
        self.figures.clone()
    }

    /// Sends records until the agent ends. `batch` reads the ring from a sequence number; `closed` changes when records were
    /// pushed.
    pub async fn run(mut self, mut closed: watch::Receiver<u64>, batch: impl Fn(u64, usize) -> RecordBatch) {
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
                    // Certificates may have been replaced.
                    self.channel = None;
                    self.figures.failed(self.target.url(), why);
                    tokio::time::sleep(backoff.wait()).await;
                }
            }
        }
    }

    async fn push(&mut self, batch: RecordBatch) -> Result<Outcome, String> {
        self.figures.note_oldest(batch.oldest, &mut self.highest);
        let newest = batch.newest;
        let message = PushRequest::new(&self.node, self.epoch, &batch).map_err(|error| error.to_string())?;
        let (first, count) = (message.first, message.records.len());
        let PushReceipt { acknowledged } = self.call(message).await?;
        if acknowledged > newest {
            return Err(format!("record {acknowledged} was acknowledged, and {newest} is the newest"));
        }
        // Without records, after a window that had none, the call asks whether the receiver still has the earlier ones.
        let is_fruitful = acknowledged >= first || (count == 0 && acknowledged.saturating_add(1) >= first);
        if is_fruitful {
            self.fruitless = 0;
        } else {
            // Another receiver answered, which has fewer records; the next call resumes there.
            self.fruitless += 1;
        }
        self.next = acknowledged + 1;
        if self.fruitless >= MOST_FRUITLESS {
            self.fruitless = 0;
            return Err("the receiver asks for earlier records again and again".into());
        }
        self.highest = self.highest.max(acknowledged);
        self.figures.succeeded(count, acknowledged);
        Ok(if acknowledged < newest { Outcome::Sent } else { Outcome::UpToDate })
    }

    async fn call(&mut self, message: PushRequest) -> Result<PushReceipt, String> {
        let mut request = tonic::Request::new(message);
        if let Some(value) = self.target.authorization().await? {
            request.metadata_mut().insert("authorization", value);
        }
        let channel = match &self.channel {
            Some(channel) => channel.clone(),
            None => self.channel.insert(self.target.channel().await?).clone(),
        };
        let mut grpc = Grpc::new(channel);
        grpc.ready().await.map_err(|error| format!("not connected: {}", with_causes(&error)))?;
        let codec: ProstCodec<PushRequest, PushReceipt> = ProstCodec::default();
        let answer = grpc.unary(request, PathAndQuery::from_static(PATH), codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| explain(&status))
    }
}

/// Error message for a failed call.
fn explain(status: &Status) -> String {
    let message = status.message();
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => format!("refused: {message}"),
        Code::Unimplemented => format!("this is no aggregator of flow records: {message}"),
        code => format!("{code:?}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_a_url_that_shows_no_secrets() {
        let with_token = || Access { token_file: Some("/token".into()), ca_file: None };
        assert!(DeliveryTarget::new("https://flows.ringfence:9475", with_token(), None).is_ok());
        assert!(DeliveryTarget::new("http://127.0.0.1:9475", Access::default(), None).is_ok());
        for bad in ["flows:9475", "ftp://flows", "https://user@flows", "https://flows/path", "https://flows?x=y", ""] {
            let refused = DeliveryTarget::new(bad, Access::default(), None).unwrap_err();
            assert_eq!(refused, DeliveryTargetError::Url(bad.to_owned()));
        }
        let plain = DeliveryTarget::new("http://flows", with_token(), None).unwrap_err();
        assert_eq!(plain, DeliveryTargetError::Plain);
    }

    #[test]
    fn records_that_left_unacknowledged_are_counted_once() {
        let (figures, mut highest) = (DeliveryFigures::default(), 4);
        for (oldest, dropped) in [(1, 0), (5, 0), (8, 3), (8, 3), (9, 4)] {
            figures.note_oldest(oldest, &mut highest);
            assert_eq!(figures.view().dropped, dropped, "{oldest}");
        }
    }
}
