//! Arguments of `ringfence-context init-tls`.

use std::path::PathBuf;

use clap::Args;
use console::log::LogArguments;

#[derive(Debug, Args)]
pub(crate) struct InitTlsArguments {
    /// Kubeconfig file of the cluster. Default: the pod's service account.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Namespace of the provider, its Service and the Secrets. Default: the namespace of the pod.
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", default_value = "ringfence")]
    pub(crate) namespace: String,

    /// Name of the provider's Service. The Secrets are NAME-ca, NAME-tls and NAME-metrics, and the ConfigMap is NAME-ca.
    #[arg(long, env = "RINGFENCE_CONTEXT_SERVICE", value_name = "NAME", default_value = "ringfence-context")]
    pub(crate) service: String,

    /// Further host names and addresses of the serving certificate, besides the names of the Service, localhost and the
    /// loopback addresses. Repeatable, or separated by commas.
    #[arg(long, env = "RINGFENCE_TLS_NAMES", value_name = "NAME", value_delimiter = ',')]
    pub(crate) name: Vec<String>,

    /// Keep running: renew certificates before they expire, and restore deleted objects.
    #[arg(long, env = "RINGFENCE_INIT_TLS_WATCH")]
    pub(crate) watch: bool,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}
