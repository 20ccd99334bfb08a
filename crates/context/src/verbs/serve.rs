//! `ringfence-context serve`: starts all tasks and waits for shutdown.

use std::process::ExitCode;
use std::sync::Arc;

use access::PortSecurity;
use anyhow::{Context, bail};
use cluster::SourceEvent;
use feed::{Access, Position};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::channel::Channel;
use crate::cli::{ExportForm, ServeArguments};
use crate::edge_publication;
use crate::epoch::epoch_now;
use crate::history::SharedHistory;
use crate::identity;
use crate::leader_election::{self, Assurance};
use crate::listen::{self, ServedFeed, Sources};
use crate::metrics::{FeedFigures, Metrics};
use crate::object::WatchedObject;
use crate::published_tables::Tables;
use crate::publisher::{Parts, Publisher, RemoteSnapshots, Way};
use crate::push::{Outbox, Push, Relay};
use crate::remote;
use crate::status::ProviderStatus;
use crate::store::{Store, StoreSync};

/// Queue limit of events between the source and the publisher.
const REPORTS_QUEUED: usize = 16;

/// Connection and read timeouts of a relay.
const RELAY_CONNECT: std::time::Duration = std::time::Duration::from_secs(10);
const RELAY_SILENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// A feed with its properties.
struct FeedProperties {
    name: &'static str,
    media_type: &'static str,
    nothing: fn(Position) -> Vec<u8>,
    /// Baselines are pushed with the cluster's name.
    names_cluster: bool,
    /// Encodes an empty delta in the form of numbers, if the feed has it.
    no_numbers: Option<fn(Position) -> Vec<u8>>,
}

const FEEDS: [FeedProperties; 2] = [
    FeedProperties {
        name: identity::FEED,
        media_type: identity::MEDIA_TYPE,
        nothing: identity::nothing,
        names_cluster: true,
        no_numbers: Some(identity::number_form::nothing),
    },
    FeedProperties {
        name: edge_publication::FEED,
        media_type: edge_publication::MEDIA_TYPE,
        nothing: edge_publication::nothing,
        names_cluster: false,
        no_numbers: None,
    },
];

impl FeedProperties {
    fn channel(&self, epoch: u64) -> Arc<Channel> {
        match self.no_numbers {
            Some(nothing) => Channel::with_numbers(self.name, epoch, nothing),
            None => Channel::new(self.name, epoch),
        }
    }
}

pub(crate) fn serve(arguments: ServeArguments) -> anyhow::Result<ExitCode> {
    console::log::start(&arguments.log);
    feed::install_tls_provider();
    let file_limit = listener::raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(arguments, file_limit))
}

async fn run(arguments: ServeArguments, file_limit: Option<u64>) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let metrics = Arc::new(Metrics::new());
    let store = arguments.store.as_ref().map(Store::create).transpose()?;
    let listener = TcpListener::bind(arguments.listen)
        .await
        .with_context(|| format!("cannot listen on {}; choose another address with --listen", arguments.listen))?;

    let epoch = epoch_now();
    let feeds = FEEDS.map(|feed| (feed.channel(epoch), metrics.of_feed(feed.name), feed));
    let (status, statuses) = watch::channel(Arc::new(ProviderStatus::default()));
    let served =
        feeds.iter().map(|(channel, figures, _)| ServedFeed { channel: channel.clone(), figures: figures.clone() });
    let connection = match arguments.manifests {
        Some(_) => None,
        None => Some(cluster::connect(arguments.kubeconfig.as_deref()).await?),
    };
    let security = PortSecurity::load(arguments.port_settings(), connection.as_ref(), metrics.of_access())?;
    let mut elsewhere = watch_clusters(&arguments, epoch, &metrics)?;
    let of_remote = elsewhere.as_ref().map(|elsewhere| elsewhere.served.clone());
    let history = arguments.history.bounds().map(SharedHistory::new);
    let ranges = arguments.table.ranges()?;
    let sources = Sources {
        ranges: ranges.clone(),
        status: statuses,
        metrics: metrics.clone(),
        history: history.clone(),
        feeds: served.chain(of_remote).collect(),
        remote: elsewhere.as_ref().map(|elsewhere| elsewhere.reports.clone()),
        security,
    };
    let listens = listener.local_addr()?;
    let mut port = tokio::spawn(listen::serve(listener, sources, file_limit));
    let scheme = if arguments.access.tls().is_some() { "https" } else { "http" };
    tracing::info!(listen = %listens, scheme, version = env!("CARGO_PKG_VERSION"), "ringfence-context started");

    // The cluster's name comes first: identities and pushes depend on it.
    let cluster = tokio::select! {
        cluster = name_of_cluster(&arguments, connection.as_ref()) => cluster?,
        _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
    };
    status.send_replace(Arc::new(ProviderStatus { cluster: cluster.clone(), ..ProviderStatus::default() }));
    let (mut election, elected, assurance) = match &connection {
        Some(connection) if arguments.leader_elect => leader_election::elect(connection.clone(), &arguments),
        Some(_) | None => leader_election::always(),
    };
    let (leads, _) = watch::channel(false);
    let leading = leads.clone();
    let mut exporting = None;
    if let (Some(elsewhere), Some(ExportForm::Calico), Some(connection)) = (&elsewhere, arguments.export, &connection) {
        let export = remote::Export {
            connection: connection.clone(),
            exporter: remote::Exporter::of_lease(&arguments.lease_namespace, &arguments.lease_name),
            snapshots: elsewhere.snapshots.clone(),
            elected: elected.clone(),
            assurance: assurance.clone(),
            figures: metrics.of_remote(),
            failures: elsewhere.failures.clone(),
        };
        exporting = Some(tokio::spawn(export.run()));
    }
    let relay = relay(&arguments, cluster.clone()).await?;
    let ways = feeds.map(|(channel, figures, feed)| {
        start_outlets(&arguments, relay.as_ref(), store.as_ref(), channel, figures, &feed, (&leads, &assurance))
    });
    let [identity, declared] = ways;
    let mut tables = Tables::new(arguments.table.settings(&cluster), arguments.table.edges.into());
    tables.set_remote_prefixes(arguments.remote_label_prefix.clone());
    tables.set_ranges(ranges);
    let parts = Parts {
        tables,
        identity,
        declared,
        remote: elsewhere.as_ref().map(|elsewhere| RemoteSnapshots::new(elsewhere.snapshots.clone())),
        history,
        status,
        metrics,
        elected,
        leads,
    };
    let (reports, events) = mpsc::channel(REPORTS_QUEUED);
    let mut source = start_source(&arguments, connection, reports)?;
    let publisher = Publisher::new(parts);
    let mut publisher = tokio::task::spawn_blocking(move || own_thread(publisher, events));

    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
        ended = &mut source => bail!("the informers have ended: {}", outcome(ended)),
        ended = &mut publisher => bail!("the publisher has ended: {}", outcome(ended)),
        Err(panic) = &mut port => bail!("the HTTP listener has ended: {panic}"),
        ended = end_of(elsewhere.as_mut().map(|elsewhere| &mut elsewhere.task)) => {
            bail!("the watch of other clusters has ended: {ended}")
        }
        ended = end_of(exporting.as_mut()) => bail!("the export has ended: {ended}"),
    }
    // Stop pushing and storing before the Lease is released.
    leading.send_replace(false);
    election.release().await;
    std::process::exit(0);
}

/// The tasks of other clusters.
struct RemoteTasks {
    task: JoinHandle<()>,
    served: ServedFeed,
    reports: watch::Receiver<Arc<remote::RemoteReport>>,
    snapshots: watch::Receiver<Option<Arc<remote::ExportInput>>>,
    failures: watch::Sender<Arc<remote::Failures>>,
}

/// Starts watching other clusters, without waiting for the API server of this one.
fn watch_clusters(arguments: &ServeArguments, epoch: u64, metrics: &Metrics) -> anyhow::Result<Option<RemoteTasks>> {
    let Some(file) = &arguments.remote_clusters else { return Ok(None) };
    let clusters = remote::config::read_clusters(file)?;
    let state = arguments.state_dir.as_ref().map(|folder| {
        let unusable = || format!("--state-dir {} cannot be used", folder.display());
        remote::state::StateDir::create(folder).with_context(unusable)
    });
    let state = state.transpose()?;
    if state.is_none() {
        tracing::warn!("without --state-dir, the sets of unreachable clusters are lost at a restart");
    }
    let (channel, figures) = (Channel::new(remote::FEED, epoch), metrics.of_feed(remote::FEED));
    let (reporting, reports) = watch::channel(Arc::default());
    let (showing, snapshots) = watch::channel(None);
    let (failing, failures) = watch::channel(Arc::default());
    let outlet = remote::Outlet {
        channel: channel.clone(),
        figures: figures.clone(),
        remote: metrics.of_remote(),
        reports: reporting,
        snapshots: showing,
        failures,
    };
    let settings =
        remote::RemoteSettings { file: file.clone(), clusters, state, max_stale: arguments.remote_max_stale };
    let task = tokio::spawn(remote::RemotePublisher::new(settings, outlet).run());
    Ok(Some(RemoteTasks { task, served: ServedFeed { channel, figures }, reports, snapshots, failures: failing }))
}

/// Waits for the end of the task; forever without one.
async fn end_of(task: Option<&mut JoinHandle<()>>) -> String {
    match task {
        Some(task) => task.await.err().map_or("without a reason".into(), |panic| panic.to_string()),
        None => std::future::pending().await,
    }
}

/// The configured name, or the UID of kube-system.
async fn name_of_cluster(
    arguments: &ServeArguments,
    connection: Option<&cluster::ApiClient>,
) -> anyhow::Result<String> {
    match (&arguments.cluster_id, connection) {
        (Some(name), _) => Ok(name.clone()),
        (None, None) => Ok(String::new()),
        (None, Some(connection)) => Ok(leader_election::cluster_uid(connection).await),
    }
}

async fn relay(arguments: &ServeArguments, cluster: String) -> anyhow::Result<Option<Relay>> {
    let Some(base) = &arguments.push_url else { return Ok(None) };
    anyhow::ensure!(
        matches!(base.scheme(), "http" | "https"),
        "invalid --push-url: expected http://HOST/PATH or https://HOST/PATH"
    );
    anyhow::ensure!(
        !cluster.is_empty(),
        "--push-url with --manifests needs --cluster-id, the name of the cluster for the relay"
    );
    let access = Access { token_file: arguments.token_file.clone(), ca_file: arguments.push_ca_file.clone() };
    let client = access.client(base.scheme() == "https", RELAY_CONNECT, RELAY_SILENCE).await?;
    Ok(Some(Relay { base: base.clone(), cluster, client, access }))
}

/// Starts the relay and store outlets of a feed.
fn start_outlets(
    arguments: &ServeArguments,
    relay: Option<&Relay>,
    store: Option<&Store>,
    channel: Arc<Channel>,
    figures: FeedFigures,
    feed: &FeedProperties,
    (leads, assurance): (&watch::Sender<bool>, &Assurance),
) -> Way {
    let outbox = relay.map(|relay| {
        let outbox = Arc::new(Outbox::default());
        let push = Push {
            relay: relay.clone(),
            channel: channel.clone(),
            outbox: outbox.clone(),
            media_type: feed.media_type,
            names_cluster: feed.names_cluster,
            nothing: feed.nothing,
            interval: arguments.baseline_secs,
            leads: leads.subscribe(),
            assurance: assurance.clone(),
            figures: figures.clone(),
        };
        tokio::spawn(push.run());
        outbox
    });
    if let Some(store) = store {
        let keeping = StoreSync {
            store: store.clone(),
            channel: channel.clone(),
            interval: arguments.baseline_secs,
            leads: leads.subscribe(),
            assurance: assurance.clone(),
            figures: figures.clone(),
        };
        tokio::spawn(keeping.run());
    }
    Way { channel, outbox, figures }
}

fn start_source(
    arguments: &ServeArguments,
    connection: Option<cluster::ApiClient>,
    reports: mpsc::Sender<SourceEvent<WatchedObject>>,
) -> anyhow::Result<JoinHandle<anyhow::Result<()>>> {
    Ok(match (&arguments.manifests, connection) {
        (Some(folder), _) => {
            // Read once before anything starts: a missing folder is an error of the command line.
            cluster::read_folder::<WatchedObject>(folder)?;
            let folder = folder.clone();
            tokio::spawn(async move { Ok(cluster::watch_folder::<WatchedObject, _>(&folder, reports).await?) })
        }
        (None, Some(connection)) => tokio::spawn(async move {
            cluster::watch_cluster::<WatchedObject, _>(connection, reports).await;
            Ok(())
        }),
        (None, None) => bail!("no source: neither a cluster nor a folder of manifests"),
    })
}

/// The publisher computes for seconds when a large cluster is listed, so it has its own thread.
fn own_thread(publisher: Publisher, events: mpsc::Receiver<SourceEvent<WatchedObject>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(publisher.run(events));
    Ok(())
}

fn outcome<T, E: std::fmt::Display>(ended: Result<Result<T, E>, tokio::task::JoinError>) -> String {
    match ended {
        Ok(Ok(_)) => "without a reason".into(),
        Ok(Err(error)) => format!("{error:#}"),
        Err(panic) => panic.to_string(),
    }
}
