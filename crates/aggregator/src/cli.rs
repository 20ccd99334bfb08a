//! The command line: flags, environment variables, help.

use std::net::SocketAddr;
use std::path::PathBuf;

use access::{Grant, GrantScope, GrantSubject, Grants, PortArguments, PortSettings, Risks};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use console::Switch;
use console::log::LogArguments;
use listener::Protocols;

use crate::export::ExportArguments;
use crate::interfaces::InterfaceAddress;
use crate::observation::ObservationArguments;
use crate::remote_sets::RemoteSetArguments;
use crate::ui;

/// Scopes of grants: sending records, reading them, the metrics, the status, and reading records as Hubble or Goldmane.
pub(crate) const SCOPES: &[GrantScope] = &[
    GrantScope { name: "push", segment: delivery::SERVICE },
    GrantScope { name: "flows", segment: "v1" },
    // The page: its files, and `/`.
    GrantScope { name: "flows", segment: ui::SEGMENT },
    GrantScope { name: "flows", segment: "" },
    GrantScope { name: "metrics", segment: "metrics" },
    GrantScope { name: "status", segment: "status" },
    GrantScope { name: "hubble", segment: hubble::SERVICE },
    GrantScope { name: "hubble", segment: hubble::HEALTH_SERVICE },
    GrantScope { name: "goldmane", segment: goldmane::FLOWS },
    GrantScope { name: "goldmane", segment: goldmane::STATISTICS },
    GrantScope { name: "goldmane", segment: goldmane::FLOW_COLLECTOR },
];

/// Default of --edge-metrics-top.
const EDGE_METRICS_TOP: u16 = 100;

/// Collect the flow records of all nodes, and answer who talked to whom in the cluster.
#[derive(Debug, Parser)]
#[command(name = "ringfence-flows", version, arg_required_else_help = true, max_term_width = 110)]
#[command(after_help = "Exit status: 0 done; 2 could not run.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Receive flow records of agents and answer queries until SIGTERM or SIGINT.
    Serve(Box<ServeArguments>),
    /// Print a completion script for a shell.
    Completions { shell: clap_complete::Shell },
}

/// Why an argument of exports has no effect.
macro_rules! needs_sink {
    ($argument:literal, $reason:literal) => {
        concat!(
            $argument,
            " needs --loki-url, --otlp-endpoint, --otlp-metrics-endpoint, --goldmane-push or --export-file: ",
            $reason
        )
    };
}

#[derive(Debug, Args)]
#[command(mut_arg("auth_token_audiences", |argument| argument.default_value("ringfence-flows")))]
pub(crate) struct ServeArguments {
    /// Listen address of agents, queries, /healthz, /readyz, /status and /metrics. Every address but those of the loopback
    /// needs TLS and authentication.
    #[arg(long, env = "RINGFENCE_FLOWS_LISTEN", value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9475", value_parser = socket_address)]
    pub(crate) listen: SocketAddr,

    /// Serve Hubble's Observer API on this address: plain on the loopback and on a Unix socket, with TLS and authentication
    /// otherwise. Default: not served.
    #[arg(long, env = "RINGFENCE_FLOWS_HUBBLE_LISTEN", value_name = "ADDRESS:PORT|unix:PATH", value_parser = InterfaceAddress::parse)]
    pub(crate) hubble_listen: Option<InterfaceAddress>,

    /// Serve Goldmane's API on this address, as with --hubble-listen. Default: not served.
    #[arg(long, env = "RINGFENCE_FLOWS_GOLDMANE_LISTEN", value_name = "ADDRESS:PORT|unix:PATH", value_parser = InterfaceAddress::parse)]
    pub(crate) goldmane_listen: Option<InterfaceAddress>,

    /// Serve a page for browsers on this address: on the loopback to everyone who reaches it, for kubectl port-forward, and
    /// otherwise with TLS and authentication. Default: not served.
    #[arg(long, env = "RINGFENCE_FLOWS_UI_LISTEN", value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub(crate) ui_listen: Option<SocketAddr>,

    /// Memory for records, in MiB. The oldest are evicted beyond it.
    #[arg(long, env = "RINGFENCE_FLOWS_MEMORY_MIB", value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=16_384))]
    memory_mib: u16,

    /// Metrics of connections, bytes and denied packets by pair of namespaces.
    #[arg(long, env = "RINGFENCE_FLOWS_EDGE_METRICS", value_enum, default_value_t = Switch::Off)]
    edge_metrics: Switch,

    /// Pairs of namespaces that have metrics of their own; all others are summed up. Default: 100.
    #[arg(long, env = "RINGFENCE_FLOWS_EDGE_METRICS_TOP", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    edge_metrics_top: Option<u16>,

    /// Kubeconfig file of the API server that reviews tokens. Default: the pod's service account.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) port: PortArguments,

    /// Grant a scope to a user or group, as SCOPE=user:NAME or SCOPE=group:NAME; repeatable, or separated by commas. The
    /// scopes are push, flows, metrics, status, hubble, goldmane, and * for all. Default of a scope without a grant: the service accounts of
    /// the aggregator's own namespace (--namespace).
    #[arg(long, env = "RINGFENCE_ALLOW", value_name = "SCOPE=SUBJECT", value_delimiter = ',', value_parser = grant)]
    allow: Vec<Grant>,

    /// Namespace of the aggregator.
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", default_value = "ringfence")]
    namespace: String,

    #[command(flatten)]
    pub(crate) log: LogArguments,

    // The last ones: their headings hold for the flags that follow.
    #[command(flatten)]
    pub(crate) observation: ObservationArguments,

    #[command(flatten)]
    pub(crate) remote_sets: RemoteSetArguments,

    #[command(flatten)]
    pub(crate) export: ExportArguments,
}

/// Parses the arguments of the process. Exits after `--help`, or if they are invalid.
pub(crate) fn parse() -> Command {
    console::parse(read).command
}

fn read(matches: &ArgMatches) -> Result<Cli, clap::Error> {
    let cli = Cli::from_arg_matches(matches)?;
    if let (Command::Serve(arguments), Some((_, given))) = (&cli.command, matches.subcommand())
        && let Some(message) = arguments.conflict(given)
    {
        return Err(conflict_of_serve(message));
    }
    Ok(cli)
}

/// The error of conflicting arguments, with the usage of `serve`.
fn conflict_of_serve(message: &str) -> clap::Error {
    let mut program = Cli::command();
    // Gives subcommands the program's name in their usage.
    program.build();
    match program.find_subcommand_mut("serve") {
        Some(serve) => serve.error(ErrorKind::ArgumentConflict, message),
        None => program.error(ErrorKind::ArgumentConflict, message),
    }
}

impl ServeArguments {
    pub(crate) fn memory_bytes(&self) -> usize {
        usize::from(self.memory_mib) << 20
    }

    /// Pairs of namespaces that have metrics; `None` if none is to have any.
    pub(crate) fn edge_metrics(&self) -> Option<usize> {
        match self.edge_metrics {
            Switch::On => Some(usize::from(self.edge_metrics_top.unwrap_or(EDGE_METRICS_TOP))),
            Switch::Off => None,
        }
    }

    pub(crate) fn port_settings(&self) -> PortSettings {
        let own_namespace = GrantSubject::Group(format!("system:serviceaccounts:{}", self.namespace));
        PortSettings {
            listen: self.listen,
            tls: self.port.tls(Protocols::Http1AndHttp2),
            tokens: self.port.tokens(),
            token_ttl: self.port.auth_token_cache_ttl,
            scopes: SCOPES,
            grants: Grants::new(&self.allow, SCOPES, own_namespace),
            risks: Risks {
                without_tls: "read and change flow records",
                without_authentication: "read all flow records and add false ones",
            },
        }
    }

    /// Arguments that are mutually exclusive, or have no effect without another.
    fn conflict(&self, matches: &ArgMatches) -> Option<&'static str> {
        let authenticates = self.port.authenticates();
        let is_protected = self.port.tls_cert.is_some() && authenticates;
        if !self.listen.ip().is_loopback() && !is_protected {
            return Some(
                "--listen with an address that others reach needs --tls-cert and --tls-key, and --auth-token-review or \
                 --client-ca: flow records say who talks to whom, and only agents may add any",
            );
        }
        let mut interfaces = self.hubble_listen.iter().chain(&self.goldmane_listen);
        if interfaces.any(|address| !address.is_local()) && !is_protected {
            return Some(
                "--hubble-listen and --goldmane-listen with an address that others reach need --tls-cert and --tls-key, and \
                 --auth-token-review or --client-ca: flow records say who talks to whom",
            );
        }
        if self.ui_listen.is_some_and(|address| !address.ip().is_loopback()) && !is_protected {
            return Some(
                "--ui-listen with an address that others reach needs --tls-cert and --tls-key, and --client-ca or \
                 --auth-token-review: flow records say who talks to whom",
            );
        }
        if self.edge_metrics_top.is_some() && self.edge_metrics().is_none() {
            return Some("--edge-metrics-top needs --edge-metrics on");
        }
        if let Some(message) = self.observation.conflict() {
            return Some(message);
        }
        if !self.remote_sets.context_url.is_empty() && !self.observation.watches_policies() {
            return Some("--context-url needs --watch-policies on: pods of other clusters are compared with policies");
        }
        if self.export.has_unused_spool() {
            return Some(needs_sink!("--spool-dir", "nothing is exported"));
        }
        if let Some(message) = self.port.conflict_of_grants(&self.allow) {
            return Some(message);
        }
        self.unused(matches)
    }

    /// An argument that was given and has no effect. Variables that a pod has for other reasons are no error.
    fn unused(&self, matches: &ArgMatches) -> Option<&'static str> {
        let is_given =
            |id: &str| matches!(matches.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable));
        let is_flag = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let exports = self.export.has_sink();
        let authenticates = self.port.authenticates();
        let observation = &self.observation;
        let watches = observation.watches_policies();
        let asks_api = self.port.auth_token_review || (watches && observation.manifests.is_none());
        let unused = [
            (is_given("cluster") && !exports, needs_sink!("--cluster", "it is the cluster's name in exported records")),
            (is_given("export_start_delay") && !exports, needs_sink!("--export-start-delay", "nothing is exported")),
            (is_given("edge_memory_mib") && !observation.has_edges(), "--edge-memory-mib needs --edges on"),
            (is_given("edge_retention") && !observation.has_edges(), "--edge-retention needs --edges on"),
            (is_given("edge_learning") && !observation.has_edges(), "--edge-learning needs --edges on"),
            (is_flag("enforcement") && !watches, "--enforcement needs --watch-policies on"),
            (is_flag("identity_labels") && !watches, "--identity-labels needs --watch-policies on"),
            (is_flag("cluster_id") && !watches, "--cluster-id needs --watch-policies on"),
            (is_given("remote_label_prefix") && !watches, "--remote-label-prefix needs --watch-policies on"),
            (
                is_given("auth_token_audiences") && !self.port.auth_token_review,
                "--auth-token-audiences needs --auth-token-review",
            ),
            (
                is_given("auth_token_cache_ttl") && !authenticates,
                "--auth-token-cache-ttl needs --auth-token-review or --client-ca",
            ),
            (
                is_flag("kubeconfig") && !asks_api,
                "--kubeconfig needs --auth-token-review, or --watch-policies on without --manifests: no API server is asked",
            ),
            (
                is_flag("namespace") && !authenticates,
                "--namespace needs --client-ca or --auth-token-review: without authentication everyone may read",
            ),
        ];
        unused.into_iter().find_map(|(is_unused, message)| is_unused.then_some(message))
    }
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected ADDRESS:PORT, such as 127.0.0.1:9476".into())
}

fn grant(text: &str) -> Result<Grant, String> {
    Grant::parse(text, SCOPES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conflict(arguments: &[&str]) -> Option<&'static str> {
        let given = ["ringfence-flows", "serve"].iter().chain(arguments);
        let matches = Cli::command().try_get_matches_from(given).unwrap();
        let Command::Serve(arguments) = Cli::from_arg_matches(&matches).unwrap().command else { panic!("serve") };
        arguments.conflict(matches.subcommand().unwrap().1)
    }

    #[test]
    fn reachable_port_needs_tls_and_authentication() {
        let tls = ["--tls-cert", "c", "--tls-key", "k"];
        let reachable = ["--listen", "0.0.0.0:9475"];
        assert_eq!(conflict(&[]), None);
        assert!(conflict(&reachable).is_some());
        assert!(conflict(&[&reachable[..], &tls].concat()).is_some());
        assert!(conflict(&[&reachable[..], &["--auth-token-review"]].concat()).is_some());
        assert_eq!(conflict(&[&reachable[..], &tls, &["--auth-token-review"]].concat()), None);
        assert_eq!(conflict(&[&reachable[..], &tls, &["--client-ca", "ca"]].concat()), None);
        assert!(conflict(&["--allow", "flows=user:x"]).is_some());
        for flag in ["--hubble-listen", "--goldmane-listen"] {
            assert_eq!(conflict(&[flag, "127.0.0.1:4245"]), None);
            assert_eq!(conflict(&[flag, "unix:/run/flows.sock"]), None);
            assert!(conflict(&[flag, "0.0.0.0:4245"]).is_some());
            assert_eq!(conflict(&[&[flag, "0.0.0.0:4245"], &tls[..], &["--client-ca", "ca"]].concat()), None);
        }
    }

    #[test]
    fn reachable_page_needs_tls_and_authentication() {
        let reachable = ["--ui-listen", "0.0.0.0:9476"];
        let tls = ["--tls-cert", "c", "--tls-key", "k"];
        assert_eq!(conflict(&["--ui-listen", "127.0.0.1:9476"]), None);
        assert_eq!(conflict(&["--ui-listen", "[::1]:9476"]), None);
        assert!(conflict(&reachable).is_some());
        assert!(conflict(&[&reachable[..], &tls].concat()).is_some());
        assert_eq!(conflict(&[&reachable[..], &tls, &["--client-ca", "ca"]].concat()), None);
    }

    #[test]
    fn invalid_listen_address_names_expected_form() {
        for flag in ["--listen", "--ui-listen"] {
            for address in ["9476", ":9476", "localhost:9476", "127.0.0.1", "127.0.0.1:80x"] {
                let error = Cli::try_parse_from(["ringfence-flows", "serve", flag, address]).err().unwrap().to_string();
                assert!(error.contains("expected ADDRESS:PORT, such as 127.0.0.1:9476"), "{address}: {error}");
            }
        }
    }

    #[test]
    fn flags_without_effect_are_refused() {
        assert!(conflict(&["--edge-metrics-top", "5"]).is_some());
        assert_eq!(conflict(&["--edge-metrics-top", "5", "--edge-metrics", "on"]), None);
        assert!(conflict(&["--spool-dir", "/var/lib/flows"]).is_some());
        assert_eq!(conflict(&["--spool-dir", "/var/lib/flows", "--export-file", "-"]), None);
        assert!(conflict(&["--state-dir", "/var/lib/edges"]).is_some());
        assert_eq!(conflict(&["--state-dir", "/var/lib/edges", "--edges", "on"]), None);
        assert!(conflict(&["--manifests", "shop"]).is_some());
        assert_eq!(conflict(&["--manifests", "shop", "--watch-policies", "on"]), None);
        assert!(conflict(&["--context-url", "https://context:9471"]).is_some());
        assert_eq!(conflict(&["--context-url", "https://context:9471", "--watch-policies", "on"]), None);
        let export = ["--export-file", "-"];
        let edges = ["--edges", "on"];
        let watch = ["--watch-policies", "on"];
        let review = ["--auth-token-review"];
        let authority = ["--tls-cert", "c", "--tls-key", "k", "--client-ca", "ca"];
        for (flag, value, needed) in [
            ("--cluster", "east", &export[..]),
            ("--export-start-delay", "1s", &export),
            ("--edge-memory-mib", "1", &edges),
            ("--edge-retention", "1d", &edges),
            ("--edge-learning", "1h", &edges),
            ("--enforcement", "audit", &watch),
            ("--identity-labels", "!team", &watch),
            ("--cluster-id", "east", &watch),
            ("--remote-label-prefix", "example.com", &watch),
            ("--auth-token-audiences", "flows", &review),
            ("--auth-token-cache-ttl", "2m", &review),
            ("--auth-token-cache-ttl", "2m", &authority),
            ("--kubeconfig", "k", &review),
            ("--kubeconfig", "k", &watch),
            ("--namespace", "flows", &review),
            ("--namespace", "flows", &authority),
        ] {
            let message = conflict(&[flag, value]).unwrap_or_else(|| panic!("{flag} is accepted"));
            assert!(message.starts_with(&format!("{flag} needs --")), "{message}");
            assert_eq!(conflict(&[&[flag, value], needed].concat()), None);
        }
        assert!(conflict(&["--kubeconfig", "k", "--watch-policies", "on", "--manifests", "shop"]).is_some());
        let given = ["ringfence-flows", "serve", "--spool-mib", "1", "--export-file", "-"];
        assert!(Cli::try_parse_from(given).is_err_and(|error| error.to_string().contains("--spool-dir")));
    }

    #[test]
    fn conflict_shows_usage_of_serve() {
        let error = conflict_of_serve("--a needs --b").to_string();
        assert!(error.contains("--a needs --b") && error.contains("Usage: ringfence-flows serve"), "{error}");
    }

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
