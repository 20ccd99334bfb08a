//! Arguments of `ringfence agent` on pods of other clusters.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use feed::Access;
use feed::client::{FeedSource, Url, is_exposed, parse_server_url};
use policy::remote::LabelPrefix;
use policy::remote::wire::FEED;

use crate::remote::{RemoteCache, RemoteSource};

/// Longest backoff: the agent reconnects to a recovered provider within this time.
const RETRY_LONGEST: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(next_help_heading = "Pods of other clusters")]
pub(crate) struct RemoteArguments {
    /// URL of a context provider with the addresses of other clusters' pods. Repeatable, or separated by commas: the
    /// agent falls back to the next one. Without a provider, policies match no pod of another cluster.
    #[arg(long, env = "RINGFENCE_CONTEXT_URL", value_name = "URL", value_delimiter = ',', value_parser = parse_server_url)]
    pub(crate) context_url: Vec<Url>,

    /// File with the bearer token for the context providers; reread for each request.
    #[arg(long, env = "RINGFENCE_CONTEXT_TOKEN_FILE", value_name = "FILE", requires = "context_url")]
    pub(crate) context_token_file: Option<PathBuf>,

    /// File with the CA certificates (PEM) for the context providers; reread for each connection. The agent waits while
    /// it is missing. Default: the CA certificates of the system.
    #[arg(long, env = "RINGFENCE_CONTEXT_CA_FILE", value_name = "FILE", requires = "context_url")]
    pub(crate) context_ca_file: Option<PathBuf>,

    /// Folder in which the agent saves the pods of other clusters, to read them at its next start. Not used without
    /// --context-url.
    #[arg(long, env = "RINGFENCE_STATE_DIR", value_name = "DIR", default_value = "/var/lib/ringfence")]
    pub(crate) state_dir: PathBuf,

    /// Time after which the stale sets of an unreachable cluster expire, as in 90s, 30m, 12h or 7d. Default: they never
    /// expire.
    #[arg(long, env = "RINGFENCE_REMOTE_MAX_STALE", value_name = "DURATION", value_parser = console::duration)]
    pub(crate) remote_max_stale: Option<Duration>,

    /// Prefix of the labels (PREFIX/cluster, PREFIX/namespace, PREFIX/name) with which policies select pods of other
    /// clusters. Repeatable, or separated by commas.
    #[arg(long, env = "RINGFENCE_REMOTE_LABEL_PREFIX", value_name = "PREFIX", value_delimiter = ',',
        default_values = policy::remote::DEFAULT_PREFIXES)]
    pub(crate) remote_label_prefix: Vec<LabelPrefix>,
}

impl RemoteArguments {
    /// The providers to follow; `None` without a URL.
    pub(crate) fn followed(&self) -> anyhow::Result<Option<RemoteSource>> {
        if self.context_url.is_empty() {
            return Ok(None);
        }
        let mut source = FeedSource::new(self.context_url.clone(), FEED);
        source.access = Access { token_file: self.context_token_file.clone(), ca_file: self.context_ca_file.clone() };
        source.timing.retry_longest = RETRY_LONGEST;
        for url in self.context_url.iter().filter(|url| is_exposed(url)) {
            tracing::warn!(
                "the context provider {url} is read without TLS: an attacker on the network can change which addresses \
                 policies admit for other clusters; use an https URL and --context-ca-file"
            );
        }
        Ok(Some(RemoteSource { source, cache: RemoteCache::open(&self.state_dir)?, max_stale: self.remote_max_stale }))
    }
}
