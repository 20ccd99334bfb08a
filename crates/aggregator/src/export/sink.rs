//! Sinks: the receivers of batches.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use feed::client::with_causes;
use feed::{Access, read_basic_auth};
use jiff::Timestamp;
use reqwest::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, Response, Url};
use tokio::sync::Mutex;
use trail::loki::{self, ExtraLabel};
use trail::{DeliveryOutcome, Entry, SpooledBatch, json_lines, otlp};

use super::goldmane::GoldmaneSink;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Response timeout. After it the batch is retried; a receiver such as Loki stores equal lines once.
const ANSWER: Duration = Duration::from_secs(30);

/// Bytes of a response body that are read.
const ANSWER_BYTES: usize = 64 << 10;

/// A receiver of batches.
pub(super) enum Sink {
    Loki {
        http: HttpSink,
        label: Option<ExtraLabel>,
    },
    Otlp(HttpSink),
    /// Sums of bytes instead of lines.
    OtlpMetrics(HttpSink),
    /// Flows instead of lines.
    Goldmane(GoldmaneSink),
    File(FileSink),
}

/// Authentication of the sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Credentials {
    None,
    Token(PathBuf),
    /// `USER:PASSWORD`
    Basic(PathBuf),
}

pub(super) struct HttpSink {
    url: Url,
    credentials: Credentials,
    access: Access,
    tenant: Option<String>,
    /// Recreated after a failure, since certificates may have been replaced.
    client: Mutex<Option<Client>>,
}

/// Response of a sink to a batch.
pub(super) struct Answer {
    pub(super) outcome: DeliveryOutcome,
    /// Number of records that the receiver rejected despite success, and the reason.
    pub(super) rejected: Option<(u64, String)>,
}

impl Sink {
    /// Name of the sink in metrics, and of its spool folder.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Sink::Loki { .. } => "loki",
            Sink::Otlp(_) => "otlp",
            Sink::OtlpMetrics(_) => "otlp-metrics",
            Sink::Goldmane(_) => "goldmane",
            Sink::File(_) => "file",
        }
    }

    /// Encodes lines; `None` for sinks that do not receive lines.
    pub(super) fn encode_lines(&self, cluster: &str, entries: &[Entry]) -> Option<io::Result<Vec<u8>>> {
        match self {
            Sink::Loki { http: _, label } => Some(loki::encode(cluster, label.as_ref(), entries)),
            Sink::Otlp(_) => Some(otlp::encode(cluster, entries)),
            Sink::File(_) => Some(Ok(json_lines(entries))),
            Sink::OtlpMetrics(_) | Sink::Goldmane(_) => None,
        }
    }

    pub(super) async fn send(&self, spooled: SpooledBatch) -> Answer {
        let SpooledBatch { sequence, batch } = spooled;
        let sent = match self {
            Sink::Loki { http, label: _ } => http.send(batch.body).await.map(|(outcome, _)| (outcome, None)),
            Sink::Otlp(http) | Sink::OtlpMetrics(http) => http.send(batch.body).await.map(|(outcome, answer)| {
                let rejected = otlp::rejected(&answer).filter(|_| outcome == DeliveryOutcome::Delivered);
                (outcome, rejected)
            }),
            Sink::Goldmane(goldmane) => return goldmane.send(sequence, batch, Timestamp::now()).await,
            Sink::File(file) => file.append(batch.body).await.map(|()| (DeliveryOutcome::Delivered, None)),
        };
        match sent {
            Ok((outcome, rejected)) => Answer { outcome, rejected },
            Err(why) => Answer { outcome: DeliveryOutcome::Retry { after: None, why }, rejected: None },
        }
    }

    /// Target of the sink in messages.
    pub(super) fn target(&self) -> String {
        match self {
            Sink::Loki { http, label: _ } | Sink::Otlp(http) | Sink::OtlpMetrics(http) => http.url.to_string(),
            Sink::Goldmane(goldmane) => goldmane.url().to_owned(),
            Sink::File(file) => file.path.display().to_string(),
        }
    }
}

impl HttpSink {
    pub(super) fn new(
        base: &Url,
        path: &str,
        credentials: Credentials,
        ca_file: Option<PathBuf>,
        tenant: Option<String>,
    ) -> anyhow::Result<HttpSink> {
        let has_user = !base.username().is_empty() || base.password().is_some();
        if !matches!(base.scheme(), "http" | "https") || has_user || base.query().is_some() || base.fragment().is_some()
        {
            bail!("invalid URL: expected https://HOST:PORT or http://HOST:PORT, with a path or none");
        }
        if credentials != Credentials::None && base.scheme() == "http" && !is_loopback(base) {
            bail!("credentials would be sent without TLS: expected https://HOST:PORT");
        }
        let mut url = base.clone();
        let prefix = base.path().trim_end_matches('/');
        url.set_path(&format!("{}{path}", prefix.strip_suffix(path).unwrap_or(prefix)));
        let token_file = match &credentials {
            Credentials::Token(path) => Some(path.clone()),
            Credentials::None | Credentials::Basic(_) => None,
        };
        Ok(HttpSink { url, credentials, access: Access { token_file, ca_file }, tenant, client: Mutex::new(None) })
    }

    pub(super) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// # Errors
    /// If the file with the credentials cannot be read or is invalid.
    pub(super) async fn check_credentials(&self) -> anyhow::Result<()> {
        match &self.credentials {
            Credentials::None => {}
            Credentials::Token(_) => drop(self.access.authorization().await?),
            Credentials::Basic(path) => drop(read_basic_auth(path).await?),
        }
        Ok(())
    }

    /// # Errors
    /// If the CA certificates of the file, or those of the system for a URL with TLS, cannot be used.
    pub(super) async fn check_trust(&self) -> anyhow::Result<()> {
        self.access.client(self.url.scheme() == "https", CONNECT_TIMEOUT, ANSWER).await?;
        Ok(())
    }

    /// Sends a request. Returns the outcome and the response body.
    async fn send(&self, body: Vec<u8>) -> Result<(DeliveryOutcome, Vec<u8>), String> {
        let mut client = self.client.lock().await;
        let answer = self.request(&mut client, body).await;
        if answer.is_err() {
            *client = None;
        }
        let response = answer?;
        let status = response.status().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        // If the response body is slow, the status is enough.
        let answer = tokio::time::timeout(ANSWER, read_answer(response)).await.unwrap_or_default();
        Ok((DeliveryOutcome::of_answer(status, retry_after.as_deref(), &answer, Timestamp::now()), answer))
    }

    async fn request(&self, client: &mut Option<Client>, body: Vec<u8>) -> Result<Response, String> {
        let client = match client {
            Some(client) => client,
            None => {
                let made = self.access.client(self.url.scheme() == "https", CONNECT_TIMEOUT, ANSWER).await;
                client.insert(made.map_err(|error| error.to_string())?)
            }
        };
        let mut request = client
            .post(self.url.clone())
            .timeout(ANSWER)
            .header(CONTENT_TYPE, "application/json")
            .header(CONTENT_ENCODING, "gzip");
        if let Some(tenant) = &self.tenant {
            request = request.header("X-Scope-OrgID", tenant);
        }
        match &self.credentials {
            Credentials::None => {}
            Credentials::Token(_) => {
                let value = self.access.authorization().await.map_err(|error| error.to_string())?;
                request = value.into_iter().fold(request, |request, value| request.header(AUTHORIZATION, value));
            }
            Credentials::Basic(path) => {
                let (user, password) = read_basic_auth(path).await.map_err(|error| error.to_string())?;
                request = request.basic_auth(user, Some(password));
            }
        }
        request.body(body).send().await.map_err(|error| with_causes(&error))
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Reads a response body up to the limit; a longer one is truncated, since it only explains the status to people.
async fn read_answer(mut response: Response) -> Vec<u8> {
    let mut answer = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        answer.extend_from_slice(&chunk);
        if answer.len() >= ANSWER_BYTES {
            answer.truncate(ANSWER_BYTES);
            break;
        }
    }
    answer
}

/// A file of JSON lines, or standard output.
pub(super) struct FileSink {
    path: PathBuf,
}

impl FileSink {
    pub(super) fn new(path: PathBuf) -> FileSink {
        FileSink { path }
    }

    /// # Errors
    /// If the file cannot be opened, or the folder of a missing file.
    pub(super) fn check(&self) -> io::Result<()> {
        match self.path.metadata() {
            _ if self.is_standard_output() => return Ok(()),
            Ok(metadata) if metadata.is_file() || metadata.is_dir() => {
                return OpenOptions::new().append(true).open(&self.path).map(drop);
            }
            // To open a named pipe would wait for its reader.
            Ok(_) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => {}
        }
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.read_dir().map(drop),
            Some(_) | None => Ok(()),
        }
    }

    fn is_standard_output(&self) -> bool {
        self.path.as_os_str() == "-"
    }

    async fn append(&self, body: Vec<u8>) -> Result<(), String> {
        let path = self.path.clone();
        let is_standard_output = self.is_standard_output();
        let append = move || if is_standard_output { print(&body) } else { append(&path, &body) };
        match tokio::task::spawn_blocking(append).await {
            Ok(written) => written.map_err(|error| error.to_string()),
            Err(panic) => Err(panic.to_string()),
        }
    }
}

fn print(body: &[u8]) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(body)?;
    output.flush()
}

/// Appends the whole body. On failure the file is truncated to its previous length if possible.
fn append(path: &Path, body: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).mode(0o640).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return file.write_all(body);
    }
    let written = file.write_all(body).and_then(|()| file.sync_data());
    if written.is_err() {
        // Otherwise a retry would repeat lines.
        file.set_len(metadata.len())?;
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(base: &str, path: &str, credentials: Credentials) -> Result<String, String> {
        let sink = HttpSink::new(&base.parse().unwrap(), path, credentials, None, None);
        sink.map(|sink| sink.url.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn credentials_need_tls_or_the_loopback() {
        let token = || Credentials::Token("/token".into());
        for base in ["https://loki", "http://127.0.0.1:3100", "http://localhost:3100", "http://[::1]:3100"] {
            assert!(url(base, loki::PATH, token()).is_ok(), "{base}");
        }
        for base in ["http://loki", "http://192.0.2.1", "http://localhost.example", "http://127.0.0.1.example"] {
            assert!(url(base, loki::PATH, token()).unwrap_err().contains("without TLS"), "{base}");
            assert!(url(base, loki::PATH, Credentials::Basic("/x".into())).is_err(), "{base}");
            assert!(url(base, loki::PATH, Credentials::None).is_ok(), "{base}");
        }
        for base in ["ftp://loki", "https://user@loki", "https://loki?x=y", "https://loki#x"] {
            assert!(url(base, loki::PATH, Credentials::None).is_err(), "{base}");
        }
    }

    #[test]
    fn path_is_appended_to_url_once() {
        for base in ["https://loki", "https://loki/", "https://loki/loki/api/v1/push"] {
            assert_eq!(url(base, loki::PATH, Credentials::None).unwrap(), "https://loki/loki/api/v1/push");
        }
        assert_eq!(url("https://x/prefix/", otlp::PATH, Credentials::None).unwrap(), "https://x/prefix/v1/logs");
    }

    #[test]
    fn file_may_be_renamed_between_batches() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flows.jsonl");
        append(&path, b"1\n").unwrap();
        append(&path, b"2\n").unwrap();
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        append(&path, b"3\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"3\n");
        assert!(append(folder.path(), b"4\n").is_err());
    }
}
