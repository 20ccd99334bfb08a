//! Arguments of flow records: what the agent writes into them, and `ringfence flows`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use flow::{FilterError, GroupField};

use crate::api::flows::FlowsQuery;
use crate::flows::Naming;
use crate::identities::Identities;
use crate::reports::Place;

#[derive(Debug, Args)]
pub(crate) struct FlowNameArguments {
    /// Label of pods that flow records list. Repeatable, or separated by commas.
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
    pub(crate) fn naming(&self, place: Place, identities: Identities) -> Naming {
        let namespaces = self.flow_service_namespace.iter().cloned().collect();
        Naming::new(place, identities, namespaces, self.flow_label.clone())
    }
}

#[derive(Debug, Args)]
pub(crate) struct FlowsArguments {
    /// Follow: print records as their windows of 15 s are closed, until interrupted.
    #[arg(long, short, conflicts_with = "by")]
    pub(crate) follow: bool,

    /// Print only records of windows that ended within this time (90s, 10m, 1h), or since a time (RFC 3339).
    #[arg(long, value_name = "DURATION|TIME")]
    since: Option<String>,

    /// Print only flows with an end in this namespace.
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// Print only flows with an end in this workload.
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    workload: Option<String>,

    /// Print only flows with this other end: a namespace, workload or pod (NAMESPACE/NAME), node, address, range, or world.
    #[arg(long, value_name = "PEER")]
    peer: Option<String>,

    /// Print only flows to this port.
    #[arg(long, short, value_name = "PORT")]
    port: Option<String>,

    /// Print only flows of this protocol: tcp, udp, sctp, icmp, or a number.
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Option<String>,

    /// Print only flows with this verdict: allowed, would-deny or denied.
    #[arg(long, value_name = "VERDICT")]
    verdict: Option<String>,

    /// Print only flows about which this policy decided, or would.
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    policy: Option<String>,

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
    /// The query of the flags.
    ///
    /// # Errors
    /// If the value of a flag cannot be parsed.
    pub(crate) fn query(&self) -> Result<FlowsQuery, FilterError> {
        let given = [
            ("since", &self.since),
            ("namespace", &self.namespace),
            ("workload", &self.workload),
            ("peer", &self.peer),
            ("port", &self.port),
            ("protocol", &self.protocol),
            ("verdict", &self.verdict),
            ("policy", &self.policy),
        ];
        let given = given.into_iter().filter_map(|(field, text)| Some((field, text.clone()?))).collect();
        FlowsQuery::new(self.follow, given)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FlowOutput {
    Table,
    Json,
}
