//! Flags of exports.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use delivery::{GrpcEndpoint, LONGEST_RETRY};
use feed::Access;
use flow::WINDOW_SECONDS;
use reqwest::Url;
use trail::loki::{self, ExtraLabel};
use trail::otlp;

use super::goldmane::GoldmaneSink;
use super::sink::{Credentials, FileSink, HttpSink, Sink};

/// Default of --export-start-delay: the longest backoff of agents, and one window, after which an agent without records
/// calls. Records of agents that reconnect later are exported as late lines.
pub(super) const START_DELAY: Duration = Duration::from_secs(LONGEST_RETRY.as_secs() + WINDOW_SECONDS.unsigned_abs());

/// Greatest --export-start-delay: windows stay in memory for an hour, and have to be exported before they are evicted.
const LONGEST_START_DELAY: Duration = Duration::from_secs(600);

#[derive(Debug, Args)]
#[command(next_help_heading = "Exports")]
pub(crate) struct ExportArguments {
    /// Name of the cluster in exported records.
    #[arg(long, env = "RINGFENCE_FLOWS_CLUSTER", value_name = "NAME", default_value = "default", value_parser = cluster)]
    pub(super) cluster: String,

    /// Send settled windows to Loki at this URL (POST URL/loki/api/v1/push).
    #[arg(long, env = "RINGFENCE_FLOWS_LOKI_URL", value_name = "URL")]
    loki_url: Option<Url>,

    /// Tenant, sent as X-Scope-OrgID.
    #[arg(long, env = "RINGFENCE_FLOWS_LOKI_TENANT", value_name = "TENANT", requires = "loki_url", value_parser = tenant)]
    loki_tenant: Option<String>,

    /// File with a bearer token for Loki, read again for each request.
    #[arg(
        long,
        env = "RINGFENCE_FLOWS_LOKI_TOKEN_FILE",
        value_name = "FILE",
        requires = "loki_url",
        conflicts_with = "loki_basic_auth_file"
    )]
    loki_token_file: Option<PathBuf>,

    /// File with USER:PASSWORD for Loki, read again for each request.
    #[arg(long, env = "RINGFENCE_FLOWS_LOKI_BASIC_AUTH_FILE", value_name = "FILE", requires = "loki_url")]
    loki_basic_auth_file: Option<PathBuf>,

    /// File with the CA certificates (PEM) of Loki. Default: the CA certificates of the system.
    #[arg(long, env = "RINGFENCE_FLOWS_LOKI_CA_FILE", value_name = "FILE", requires = "loki_url")]
    loki_ca_file: Option<PathBuf>,

    /// A label for all streams, for example to select a retention in Loki.
    #[arg(long, env = "RINGFENCE_FLOWS_LOKI_LABEL", value_name = "NAME=VALUE", requires = "loki_url")]
    loki_label: Option<ExtraLabel>,

    /// Append settled windows as JSON lines to this file; - is standard output. The file is opened anew for each batch, so
    /// it may be renamed or truncated at any time.
    #[arg(long, env = "RINGFENCE_FLOWS_EXPORT_FILE", value_name = "FILE|-")]
    export_file: Option<PathBuf>,

    /// Send settled windows as logs to this OTLP/HTTP receiver (POST URL/v1/logs).
    #[arg(long, env = "RINGFENCE_FLOWS_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<Url>,

    /// File with a bearer token for the OTLP receiver, read again for each request.
    #[arg(long, env = "RINGFENCE_FLOWS_OTLP_TOKEN_FILE", value_name = "FILE", requires = "otlp_endpoint")]
    otlp_token_file: Option<PathBuf>,

    /// File with the CA certificates (PEM) of the OTLP receiver. Default: the CA certificates of the system.
    #[arg(long, env = "RINGFENCE_FLOWS_OTLP_CA_FILE", value_name = "FILE", requires = "otlp_endpoint")]
    otlp_ca_file: Option<PathBuf>,

    /// Send bytes of edges as a metric to this OTLP/HTTP receiver (POST URL/v1/metrics): ringfence.network.flow.bytes, a
    /// cumulative sum by workloads, server port and direction.
    #[arg(long, env = "RINGFENCE_FLOWS_OTLP_METRICS_ENDPOINT", value_name = "URL")]
    otlp_metrics_endpoint: Option<Url>,

    /// File with a bearer token for the receiver of the metric, read again for each request.
    #[arg(
        long,
        env = "RINGFENCE_FLOWS_OTLP_METRICS_TOKEN_FILE",
        value_name = "FILE",
        requires = "otlp_metrics_endpoint"
    )]
    otlp_metrics_token_file: Option<PathBuf>,

    /// File with the CA certificates (PEM) of the receiver of the metric. Default: the CA certificates of the system.
    #[arg(long, env = "RINGFENCE_FLOWS_OTLP_METRICS_CA_FILE", value_name = "FILE", requires = "otlp_metrics_endpoint")]
    otlp_metrics_ca_file: Option<PathBuf>,

    /// Series of the metric, from 1 to 20000. Bytes of other edges are in one series with the attribute
    /// otel.metric.overflow.
    #[arg(long, env = "RINGFENCE_FLOWS_OTLP_METRICS_SERIES", value_name = "COUNT", default_value_t = 2_000, requires = "otlp_metrics_endpoint", value_parser = clap::value_parser!(u16).range(1..=20_000))]
    otlp_metrics_series: u16,

    /// Push the flows of settled windows to the collector of a Goldmane at this URL, as https://HOST:PORT.
    #[arg(long, env = "RINGFENCE_FLOWS_GOLDMANE_PUSH", value_name = "URL")]
    goldmane_push: Option<String>,

    /// File with the CA certificates (PEM) of the Goldmane; reread for each connection. Default: the CA certificates of
    /// the system.
    #[arg(long, env = "RINGFENCE_FLOWS_GOLDMANE_PUSH_CA_FILE", value_name = "FILE", requires = "goldmane_push")]
    goldmane_push_ca_file: Option<PathBuf>,

    /// File with the client certificate (PEM) for the Goldmane; reread for each connection.
    #[arg(long, env = "RINGFENCE_FLOWS_GOLDMANE_PUSH_CERT", value_name = "FILE", requires_all = ["goldmane_push_key", "goldmane_push"])]
    goldmane_push_cert: Option<PathBuf>,

    /// File with the private key of the client certificate (PEM); reread for each connection.
    #[arg(long, env = "RINGFENCE_FLOWS_GOLDMANE_PUSH_KEY", value_name = "FILE", requires_all = ["goldmane_push_cert", "goldmane_push"])]
    goldmane_push_key: Option<PathBuf>,

    /// Time from the start to the first export, in which agents reconnect and resend the records in their rings; from 1s
    /// to 10m. Default: 45s.
    #[arg(long, env = "RINGFENCE_FLOWS_EXPORT_START_DELAY", value_name = "DURATION", value_parser = start_delay)]
    export_start_delay: Option<Duration>,

    /// Folder for records that wait to be sent, and for the position of the exports. Without it records wait in
    /// memory, and windows from before a restart are not exported.
    #[arg(long, env = "RINGFENCE_FLOWS_SPOOL_DIR", value_name = "DIR")]
    pub(super) spool_dir: Option<PathBuf>,

    /// Disk space for waiting records of each export, in MiB. When it is used up, the oldest are evicted.
    #[arg(long, env = "RINGFENCE_FLOWS_SPOOL_MIB", value_name = "MIB", default_value_t = 1024, requires = "spool_dir", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    spool_mib: u32,
}

impl ExportArguments {
    pub(super) fn spool_bytes(&self) -> u64 {
        u64::from(self.spool_mib) << 20
    }

    pub(super) fn start_delay(&self) -> Duration {
        self.export_start_delay.unwrap_or(START_DELAY)
    }

    /// Whether a spool folder is configured without any export.
    pub(crate) fn has_unused_spool(&self) -> bool {
        self.spool_dir.is_some() && !self.has_sink()
    }

    /// Whether anything is exported.
    pub(crate) fn has_sink(&self) -> bool {
        self.loki_url.is_some()
            || self.otlp_endpoint.is_some()
            || self.otlp_metrics_endpoint.is_some()
            || self.goldmane_push.is_some()
            || self.export_file.is_some()
    }

    /// Bound of the series of the metric; `None` without a receiver of it.
    pub(super) fn metric_series(&self) -> Option<usize> {
        self.otlp_metrics_endpoint.as_ref().map(|_| usize::from(self.otlp_metrics_series))
    }

    /// The receivers, with their credentials and certificates checked: a file that is missing at the start is probably a
    /// mistyped path, which no retry would correct.
    pub(super) async fn sinks(&self) -> anyhow::Result<Vec<Sink>> {
        let mut sinks = Vec::new();
        if let Some(url) = &self.loki_url {
            let credentials = match (&self.loki_token_file, &self.loki_basic_auth_file) {
                (Some(path), _) => Credentials::Token(path.clone()),
                (None, Some(path)) => Credentials::Basic(path.clone()),
                (None, None) => Credentials::None,
            };
            let http = HttpSink::new(url, loki::PATH, credentials, self.loki_ca_file.clone(), self.loki_tenant.clone())
                .context("--loki-url")?;
            check(&http, "loki").await?;
            sinks.push(Sink::Loki { http, label: self.loki_label.clone() });
        }
        if let Some(url) = &self.otlp_endpoint {
            let credentials = self.otlp_token_file.clone().map_or(Credentials::None, Credentials::Token);
            let http = HttpSink::new(url, otlp::PATH, credentials, self.otlp_ca_file.clone(), None)
                .context("--otlp-endpoint")?;
            check(&http, "otlp").await?;
            sinks.push(Sink::Otlp(http));
        }
        if let Some(url) = &self.otlp_metrics_endpoint {
            let credentials = self.otlp_metrics_token_file.clone().map_or(Credentials::None, Credentials::Token);
            let http = HttpSink::new(url, otlp::METRICS_PATH, credentials, self.otlp_metrics_ca_file.clone(), None)
                .context("--otlp-metrics-endpoint")?;
            check(&http, "otlp-metrics").await?;
            sinks.push(Sink::OtlpMetrics(http));
        }
        if let Some(url) = &self.goldmane_push {
            let access = Access { token_file: None, ca_file: self.goldmane_push_ca_file.clone() };
            let certificate = self.goldmane_push_cert.clone().zip(self.goldmane_push_key.clone());
            let goldmane = GoldmaneSink::new(GrpcEndpoint::new(url, access, certificate).context("--goldmane-push")?);
            goldmane.check().await?;
            sinks.push(Sink::Goldmane(goldmane));
        }
        if let Some(path) = &self.export_file {
            let file = FileSink::new(path.clone());
            file.check().with_context(|| {
                format!("cannot append to {}; choose a file in an existing folder with --export-file", path.display())
            })?;
            sinks.push(Sink::File(file));
        }
        Ok(sinks)
    }
}

/// Reads the files of a receiver once. `prefix` is the prefix of the receiver's flags.
async fn check(http: &HttpSink, prefix: &str) -> anyhow::Result<()> {
    let expected = match http.credentials() {
        Credentials::None => None,
        Credentials::Token(_) => Some(("token", "a bearer token in one line")),
        Credentials::Basic(_) => Some(("basic-auth", "USER:PASSWORD in one line")),
    };
    if let Some((flag, content)) = expected {
        let remedy =
            || format!("cannot read the credentials; choose a file with {content} with --{prefix}-{flag}-file");
        http.check_credentials().await.with_context(remedy)?;
    }
    let remedy =
        || format!("cannot trust the receiver; choose a file with CA certificates (PEM) with --{prefix}-ca-file");
    http.check_trust().await.with_context(remedy)
}

fn start_delay(text: &str) -> Result<Duration, String> {
    let delay = console::duration(text)?;
    if delay <= LONGEST_START_DELAY { Ok(delay) } else { Err("expected at most 10m".into()) }
}

fn cluster(text: &str) -> Result<String, String> {
    let is_label = (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    if is_label { Ok(text.to_owned()) } else { Err("expected a name of at most 128 printable characters".into()) }
}

fn tenant(text: &str) -> Result<String, String> {
    let is_tenant = (1..=150).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    if is_tenant { Ok(text.to_owned()) } else { Err("expected a tenant of at most 150 printable characters".into()) }
}
