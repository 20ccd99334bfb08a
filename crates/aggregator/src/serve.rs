//! `ringfence-flows serve`: starts the servers and exports, and runs until a signal.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use access::PortSecurity;
use anyhow::{Context, bail};
use flow::WINDOW_SECONDS;
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::aggregate::Aggregate;
use crate::cli::ServeArguments;
use crate::cluster_view::{ClusterView, ViewSettings, ViewSource};
use crate::edge_metrics::{EdgeCollector, EdgeMetrics};
use crate::export::Exports;
use crate::interfaces::{Archive, BoundInterface, InterfaceAddress};
use crate::listen::{self, Sources};
use crate::metrics::Metrics;
use crate::observation::{Observation, ObservationCollector};
use crate::{goldmane, hubble, ui};

/// Interval of expiring old windows.
const EXPIRE: Duration = Duration::from_secs(WINDOW_SECONDS.unsigned_abs());

/// Deadline of exports at shutdown. Kubernetes kills the process after 30 s (`terminationGracePeriodSeconds`).
const LAST_EXPORTS: Duration = Duration::from_secs(20);

/// Interval of updating the settled watermark.
const SETTLE: Duration = Duration::from_secs(1);

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
    let aggregate = Arc::new(Aggregate::new(arguments.memory_bytes()));
    // Windows that ended before the start must be settled before the first record arrives.
    aggregate.advance_watermark(Timestamp::now());
    let exports = Arc::new(Exports::open(&arguments.export, &aggregate, Timestamp::now()).await?);
    let mut metrics = Metrics::new(aggregate.clone(), exports.clone());
    if let Some(most) = arguments.edge_metrics() {
        let edges = EdgeMetrics::new(most);
        metrics.add_collector(Box::new(EdgeCollector(edges.clone())));
        tokio::spawn(edges.run(aggregate.clone()));
    }
    let given = &arguments.observation;
    let needs_api = arguments.port.auth_token_review || (given.watches_policies() && given.manifests.is_none());
    let connection = match needs_api {
        true => Some(cluster::connect(arguments.kubeconfig.as_deref()).await?),
        false => None,
    };
    let mut view_source = None;
    let view = match (given.watches_policies(), &given.manifests, &connection) {
        (false, _, _) | (true, None, None) => None,
        (true, Some(folder), _) => Some(ViewSource::Manifests(folder.clone())),
        (true, None, Some(connection)) => Some(ViewSource::Cluster(connection.clone())),
    };
    let view = match view {
        Some(source) => {
            let settings = ViewSettings {
                source,
                enforcement: given.enforcement(),
                remote: arguments.remote_sets.source(),
                identities: given.cluster_scheme(),
                prefixes: arguments.remote_sets.remote_label_prefix.clone(),
            };
            let (view, task) = ClusterView::start(settings)?;
            view_source = Some(task);
            Some(view)
        }
        None => None,
    };
    let observation = match given.has_edges() {
        true => Some(Arc::new(Observation::open(given, view.clone(), &aggregate, Timestamp::now())?)),
        false => None,
    };
    if let Some(observation) = &observation {
        metrics.add_collector(Box::new(ObservationCollector(observation.clone())));
    }
    let metrics = Arc::new(metrics);
    let listener = TcpListener::bind(arguments.listen)
        .await
        .with_context(|| format!("cannot listen on {}; choose another address with --listen", arguments.listen))?;
    let settings = arguments.port_settings();
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let reviews = connection.as_ref().filter(|_| arguments.port.auth_token_review);
    let security = PortSecurity::load(settings, reviews, metrics.access_figures())?;
    let listens = listener.local_addr()?;
    let mut interfaces = JoinSet::new();
    let started = Timestamp::now();
    let archive = Archive::new(aggregate.clone(), metrics.clone(), started);
    if let Some(address) = &arguments.hubble_listen {
        let interface = BoundInterface::bind(address, "--hubble-listen").await?;
        let routes = hubble::routes(archive.clone());
        interfaces.spawn(interface.serve(routes, security.clone(), metrics.clone()));
        tracing::info!(listen = %address, "the Observer API of Hubble is served");
    }
    if let Some(address) = &arguments.goldmane_listen {
        let interface = BoundInterface::bind(address, "--goldmane-listen").await?;
        let routes = goldmane::routes(archive);
        interfaces.spawn(interface.serve(routes, security.clone(), metrics.clone()));
        tracing::info!(listen = %address, "the API of Goldmane is served");
    }
    let sources = Sources::new(aggregate.clone(), metrics.clone(), exports.clone(), security.clone(), started)
        .with_observation(observation.clone(), view);
    if let Some(address) = arguments.ui_listen {
        let interface = BoundInterface::bind(&InterfaceAddress::Tcp(address), "--ui-listen").await?;
        let routes = ui::routes(sources.clone(), address.ip().is_loopback());
        interfaces.spawn(interface.serve(routes, security, metrics));
        interfaces.spawn(join_ahead(aggregate.clone()));
        tracing::info!(listen = %address, "the page is served");
    }
    let mut port = tokio::spawn(listen::serve(listener, sources, file_limit));
    tracing::info!(listen = %listens, scheme, version = env!("CARGO_PKG_VERSION"), "ringfence-flows started");
    let (end_exports, exports_end) = oneshot::channel();
    let mut exporting =
        (!exports.is_empty()).then(|| tokio::spawn(exports.clone().run(aggregate.clone(), exports_end)));
    let (end_observing, observing_end) = oneshot::channel();
    let observing =
        observation.map(|observation| tokio::spawn(observation.run(aggregate.clone(), exports.clone(), observing_end)));
    let mut expiry = tokio::time::interval(EXPIRE);
    let mut settling = tokio::time::interval(SETTLE);
    loop {
        tokio::select! {
            _ = terminate.recv() => break tracing::info!("SIGTERM: stopping"),
            _ = interrupt.recv() => break tracing::info!("SIGINT: stopping"),
            Err(panic) = &mut port => bail!("the HTTP listener has ended: {panic}"),
            Some(Err(panic)) = interfaces.join_next() => bail!("the listener of an interface has ended: {panic}"),
            ended = end_of(view_source.as_mut()) => bail!("the view of the cluster has ended: {ended}"),
            _ = settling.tick() => aggregate.advance_watermark(Timestamp::now()),
            _ = expiry.tick() => aggregate.expire(Timestamp::now()),
        }
    }
    port.abort();
    drop(end_observing);
    if let Some(observing) = observing {
        observing.await?;
    }
    drop(end_exports);
    if let Some(exporting) = &mut exporting {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = tokio::time::sleep(LAST_EXPORTS) => {}
            exported = exporting => exported?,
        }
        match exports.unsaved_records() {
            0 => {}
            lost => tracing::warn!(records = lost, "flow records are lost: they could not be exported before the end"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Joins windows as they settle.
async fn join_ahead(aggregate: Arc<Aggregate>) -> Infallible {
    let mut settled = aggregate.settled();
    let mut joined = BTreeMap::new();
    loop {
        settled.changed().await.expect("the aggregate has the sender");
        let aggregate = aggregate.clone();
        let joining = tokio::task::spawn_blocking(move || {
            aggregate.join_ahead(Timestamp::now(), &mut joined);
            joined
        });
        joined = joining.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    }
}

/// Pending without a task.
async fn end_of(task: Option<&mut JoinHandle<anyhow::Result<()>>>) -> String {
    match task {
        None => std::future::pending().await,
        Some(task) => match task.await {
            Ok(Ok(())) => "without a reason".into(),
            Ok(Err(error)) => format!("{error:#}"),
            Err(panic) => panic.to_string(),
        },
    }
}
