//! Arguments of flow records: their contents, and `ringfence flows`.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, ValueEnum};
use feed::Access;
use feed::client::Url;
use flow::{FilterError, FlowFilters, GroupField, parse_time};
use identity::ClusterScheme;
use jiff::Timestamp;

use crate::api::flow_server::FlowServer;
use crate::api::flows::FlowsQuery;
use crate::flows::NameInputs;
use crate::reports::AddressContext;

#[derive(Debug, Args)]
pub(crate) struct FlowNameArguments {
    /// Key of a pod label whose values are listed in flow records. Repeatable, or separated by commas.
    #[arg(
        long,
        env = "RINGFENCE_FLOW_LABEL",
        value_name = "KEY",
        value_delimiter = ',',
        default_value = "app,app.kubernetes.io/name,app.kubernetes.io/component,k8s-app,version"
    )]
    pub(crate) flow_label: Vec<String>,

    /// Namespace in which flow records distinguish pods by the label service-identity; * for all. Repeatable, or separated
    /// by commas.
    #[arg(long, env = "RINGFENCE_FLOW_SERVICE_NAMESPACE", value_name = "NAMESPACE", value_delimiter = ',')]
    pub(crate) flow_service_namespace: Vec<String>,
}

impl FlowNameArguments {
    pub(crate) fn naming(&self, place: AddressContext, identities: ClusterScheme) -> NameInputs {
        let namespaces = self.flow_service_namespace.iter().cloned().collect();
        NameInputs::new(place, identities, namespaces, self.flow_label.clone())
    }
}

#[derive(Debug, Args)]
pub(crate) struct FlowsArguments {
    /// Follow: print records as their windows of 15 s are closed, until interrupted. With --server, each
    /// record is printed once, 30 s after the end of its window.
    #[arg(long, short, conflicts_with = "by")]
    pub(crate) follow: bool,

    #[command(flatten)]
    pub(crate) server: FlowServerArguments,

    /// Print only records of windows that ended within this time (90s, 10m, 1h), or since a time (RFC 3339).
    #[arg(long, value_name = "DURATION|TIME")]
    since: Vec<String>,

    /// Print only records of windows that began before a time (RFC 3339), or at least this long ago (90s, 10m, 1h).
    #[arg(long, value_name = "DURATION|TIME", conflicts_with = "follow")]
    until: Vec<String>,

    /// Print only flows with an end in this namespace. With --server, a filter may be repeated; one of its values
    /// must match.
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Vec<String>,

    /// Print only flows with an end in this workload.
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    workload: Vec<String>,

    /// Print only flows with this peer: a namespace, workload or pod (NAMESPACE/NAME), node, address, range, or world.
    #[arg(long, value_name = "PEER")]
    peer: Vec<String>,

    /// Print only flows to this port.
    #[arg(long, short, value_name = "PORT")]
    port: Vec<String>,

    /// Print only flows of this protocol: tcp, udp, sctp, icmp, or a number.
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Vec<String>,

    /// Print only flows with this verdict: allowed, would-deny or denied.
    #[arg(long, value_name = "VERDICT")]
    verdict: Vec<String>,

    /// Print only flows that this policy decided, or would decide if it were enforced.
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    policy: Vec<String>,

    /// Sum the records by these fields: src, dst, port, protocol, service, verdict, policy, node. Separated by commas.
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    pub(crate) by: Vec<GroupField>,

    /// Run directory of the agent, with its socket.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Output format; json prints one object per line.
    #[arg(long, short, value_enum, default_value_t = FlowOutput::Table)]
    pub(crate) output: FlowOutput,
}

impl FlowsArguments {
    /// The query that the flags specify.
    ///
    /// # Errors
    /// If the value of a flag cannot be parsed, or a field is repeated, which the agent does not support.
    pub(crate) fn query(&self) -> Result<FlowsQuery, FilterError> {
        FlowsQuery::new(self.follow, self.parameters())
    }

    /// The filters of the flags, in which a field may appear several times.
    ///
    /// # Errors
    /// If the value of a flag cannot be parsed.
    pub(crate) fn alternatives(&self) -> Result<Vec<(&'static str, String)>, FilterError> {
        let (mut given, now) = (self.parameters(), Timestamp::now());
        FlowFilters::parse(given.iter().map(|(field, text)| (*field, text.as_str())), now)?;
        // All pages and reconnections use the same absolute times.
        for (_, text) in given.iter_mut().filter(|(field, _)| matches!(*field, "since" | "until")) {
            if let Some(time) = parse_time(text, now) {
                *text = time.to_string();
            }
        }
        Ok(given)
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let given = [
            ("since", &self.since),
            ("until", &self.until),
            ("namespace", &self.namespace),
            ("workload", &self.workload),
            ("peer", &self.peer),
            ("port", &self.port),
            ("protocol", &self.protocol),
            ("verdict", &self.verdict),
            ("policy", &self.policy),
        ];
        given.into_iter().flat_map(|(field, texts)| texts.iter().map(move |text| (field, text.clone()))).collect()
    }
}

/// The aggregator, which has the records of all nodes.
#[derive(Debug, Args)]
pub(crate) struct FlowServerArguments {
    /// URL of the aggregator, which has the flows of the whole cluster; for example that of kubectl port-forward.
    #[arg(long, env = "RINGFENCE_FLOWS_URL", value_name = "URL", value_parser = server)]
    server: Option<Url>,

    /// File with the bearer token for the aggregator.
    #[arg(long, env = "RINGFENCE_FLOWS_TOKEN_FILE", value_name = "FILE", requires = "server")]
    server_token_file: Option<PathBuf>,

    /// File with the CA certificates (PEM) for the aggregator. Default: the CA certificates of the system.
    #[arg(long, env = "RINGFENCE_FLOWS_CA_FILE", value_name = "FILE", requires = "server")]
    server_ca_file: Option<PathBuf>,
}

impl FlowServerArguments {
    /// The aggregator to query; `None` for the agent.
    ///
    /// # Errors
    /// If the token would be sent without TLS to another host.
    pub(crate) fn server(&self) -> anyhow::Result<Option<FlowServer>> {
        let Some(url) = self.server.clone() else { return Ok(None) };
        if self.server_token_file.is_some() && url.scheme() != "https" && !is_loopback(&url) {
            bail!("refusing to send a token to {url} without TLS; use an https:// URL");
        }
        let access = Access { token_file: self.server_token_file.clone(), ca_file: self.server_ca_file.clone() };
        Ok(Some(FlowServer { url, access }))
    }
}

pub(super) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The URL of an aggregator. A path is refused, because requests would not contain it.
pub(super) fn server(text: &str) -> Result<Url, String> {
    let url = base_url(text)?;
    match url.path() == "/" && url.query().is_none() {
        true => Ok(url),
        false => Err("expected http(s)://HOST:PORT without a path".into()),
    }
}

/// A URL to which requests add their path.
pub(super) fn base_url(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|_| "expected http(s)://HOST:PORT".to_owned())?;
    match (url.scheme(), url.username(), url.password()) {
        ("http" | "https", "", None) => Ok(url),
        ("http" | "https", ..) => {
            Err("a URL must not contain a user name or password; use the option for a file of credentials".into())
        }
        _ => Err("expected http(s)://HOST:PORT".into()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FlowOutput {
    Table,
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_url_without_path() {
        for url in ["http://localhost:9475", "https://flows.example:9475/"] {
            assert!(server(url).is_ok(), "{url}");
        }
        for url in ["localhost:9475", "http://localhost:9475/v1", "http://localhost:9475/?x=1", "ftp://localhost"] {
            assert!(server(url).unwrap_err().starts_with("expected http(s)://HOST:PORT"), "{url}");
        }
        assert!(base_url("http://localhost:3100/loki-of-east").is_ok());
    }

    #[test]
    fn token_is_sent_over_tls_or_loopback_only() {
        let arguments = |url: &str, token: bool| FlowServerArguments {
            server: Some(server(url).unwrap()),
            server_token_file: token.then(|| PathBuf::from("token")),
            server_ca_file: None,
        };
        let refused = arguments("http://192.0.2.2:9480", true).server().unwrap_err().to_string();
        assert_eq!(refused, "refusing to send a token to http://192.0.2.2:9480/ without TLS; use an https:// URL");
        assert!(arguments("http://localhost.example:9480", true).server().is_err());
        for url in ["https://192.0.2.2:9480", "http://127.0.0.1:9480", "http://[::1]:9480", "http://localhost:9480"] {
            assert!(arguments(url, true).server().unwrap().is_some(), "{url}");
        }
        assert!(arguments("http://192.0.2.2:9480", false).server().unwrap().is_some());
    }
}
