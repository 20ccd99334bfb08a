//! Pods of other clusters: the feed `remote-sets` of a context provider, for the view of the cluster.
//!
//! The aggregator enforces nothing by these sets. So the last known sets stay in memory while no provider answers, and
//! are not saved to disk.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use feed::Access;
use feed::client::{FeedSource, Update, Url, follow, is_exposed, parse_server_url};
use pacing::Backoff;
use policy::remote::LabelPrefix;
use policy::remote::wire::{FEED, RemoteBaseline, RemoteDelta};
use tokio::sync::mpsc;

use crate::cluster_view::ViewEvent;

/// Limit of queued updates for the view. A provider closes the stream of a slow reader.
const UPDATES_QUEUED: usize = 16;

/// Backoff after an update that cannot be decoded.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(next_help_heading = "Pods of other clusters")]
pub(crate) struct RemoteSetArguments {
    /// URL of a context provider with the addresses of other clusters' pods. Repeatable, or separated by commas: if
    /// one fails, the next one is used. Without a provider, it may be unknown whether policies allow edges with these pods.
    #[arg(long, env = "RINGFENCE_CONTEXT_URL", value_name = "URL", value_delimiter = ',', value_parser = parse_server_url)]
    pub(crate) context_url: Vec<Url>,

    /// File with the bearer token for the context providers; reread for each request.
    #[arg(long, env = "RINGFENCE_CONTEXT_TOKEN_FILE", value_name = "FILE", requires = "context_url")]
    context_token_file: Option<PathBuf>,

    /// File with the CA certificates (PEM) for the context providers; reread for each connection. Default: the CA
    /// certificates of the system.
    #[arg(long, env = "RINGFENCE_CONTEXT_CA_FILE", value_name = "FILE", requires = "context_url")]
    context_ca_file: Option<PathBuf>,

    /// Prefix of the labels (PREFIX/cluster, PREFIX/namespace, PREFIX/name) with which policies select pods of other
    /// clusters. Repeatable, or separated by commas. Use the agents' value.
    #[arg(long, env = "RINGFENCE_REMOTE_LABEL_PREFIX", value_name = "PREFIX", value_delimiter = ',',
        default_values = policy::remote::DEFAULT_PREFIXES)]
    pub(crate) remote_label_prefix: Vec<LabelPrefix>,
}

impl RemoteSetArguments {
    /// The providers to follow; `None` without a URL.
    pub(crate) fn source(&self) -> Option<FeedSource> {
        if self.context_url.is_empty() {
            return None;
        }
        for url in self.context_url.iter().filter(|url| is_exposed(url)) {
            tracing::warn!(
                "the context provider {url} is read without TLS: an attacker on the network can change which edges with \
                 pods of other clusters are declared; use an https URL and --context-ca-file"
            );
        }
        let mut source = FeedSource::new(self.context_url.clone(), FEED);
        source.access = Access { token_file: self.context_token_file.clone(), ca_file: self.context_ca_file.clone() };
        Some(source)
    }
}

/// An update of the remote sets.
#[derive(Debug)]
pub(crate) enum RemoteUpdate {
    Baseline(RemoteBaseline),
    Delta(RemoteDelta),
    /// The stream resumed after an interruption, without a lost delta.
    Resumed,
    /// Why there is no subscription to a provider.
    Lost(String),
}

/// Subscribes to one of the providers until the view is dropped.
pub(crate) async fn follow_remote_sets(source: FeedSource, events: mpsc::Sender<ViewEvent>) {
    let mut backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
    while !events.is_closed() {
        let (sender, mut updates) = mpsc::channel(UPDATES_QUEUED);
        let forwarding = async {
            while let Some(update) = updates.recv().await {
                let update = decode(update);
                let is_invalid = update.is_err();
                if !is_invalid {
                    backoff.reset();
                }
                let update = update.unwrap_or_else(RemoteUpdate::Lost);
                if events.send(ViewEvent::Remote(update)).await.is_err() || is_invalid {
                    return;
                }
            }
        };
        tokio::select! {
            () = forwarding => {}
            followed = follow(source.clone(), sender) => if let Err(error) = followed {
                // The URLs were parsed with the arguments.
                tracing::error!("cannot subscribe to the context providers: {error}");
            }
        }
        tokio::time::sleep(backoff.wait()).await;
    }
}

fn decode(update: Update) -> Result<RemoteUpdate, String> {
    match update {
        Update::Baseline { bytes, .. } => serde_json::from_slice(&bytes)
            .map(RemoteUpdate::Baseline)
            .map_err(|error| format!("cannot decode the provider's baseline: {error}")),
        Update::Delta { json, .. } => serde_json::from_slice(&json)
            .map(RemoteUpdate::Delta)
            .map_err(|error| format!("cannot decode the provider's delta: {error}")),
        Update::Resumed { .. } => Ok(RemoteUpdate::Resumed),
        Update::Lost(lost) => Ok(RemoteUpdate::Lost(lost.to_string())),
    }
}
