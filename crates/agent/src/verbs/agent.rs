//! `ringfence agent`: starts the components and waits for the end.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use jiff::Timestamp;
use nfnetlink::{KernelRelease, probe};
use policy::{Generation, Layout};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::cli::{AgentArguments, Switch};
use crate::dns::{AnswerReader, DnsClients, SavedNames};
use crate::enforcer::tables::names;
use crate::enforcer::{EarlierTables, Enforcer};
use crate::event_loop::{EVENTS_QUEUED, Event, EventLoop};
use crate::flows::accounting::ConntrackSettings;
use crate::flows::services::{ServiceSource, watch_services};
use crate::flows::{Capture, CaptureSettings, FlowFeed, FlowStore, feed, finish_delivery, start_delivery};
use crate::gate::MOST_WAITING;
use crate::link_watch::LinkWatch;
use crate::listen::{SOCKET_LIMITS, Sources, port_routes, socket_routes};
use crate::metrics::Metrics;
use crate::metrics::labels::Listens;
use crate::pod_lookup::{self, PodRequest};
use crate::reconciler::drop_reporting::DropReporting;
use crate::reconciler::name_learning::NameLearning;
use crate::reconciler::{Dependencies, Reconciler};
use crate::remote::RemoteSubscription;
use crate::reports::{
    AddressContext, DENIED_PACKETS, DNS_ANSWERS, DROP_EVENTS_QUEUED, DropEvent, DropStream, GroupChoice, LogGroup,
    Watch,
};
use crate::run_dir::{RunDir, TableLock};
use crate::status::AgentStatus;
use crate::{cni_socket, kernel_support, kernel_watch, link_watch, port};

/// Capacity of the queue of Service updates.
const SERVICES_QUEUED: usize = 16;

/// Descriptors for everything except connections of peers: netlink, watches, providers, files that are read.
const OTHER_FILES: usize = 256;

/// Minimum limit of open files. Below it, peers could exhaust the descriptors that the CNI plugin's socket and netlink
/// need.
const FILES_NEEDED: usize =
    port::LIMITS.connections + SOCKET_LIMITS.connections + cni_socket::CONNECTIONS + OTHER_FILES;

/// The usual limit, which some runtimes set as the hard limit too.
const _: () = assert!(FILES_NEEDED <= 1024);

pub(crate) fn agent(arguments: AgentArguments) -> anyhow::Result<ExitCode> {
    console::log::start(&arguments.log);
    if let Some(limit) = listener::raise_file_limit().filter(|limit| *limit < FILES_NEEDED as u64) {
        tracing::warn!(
            "the limit of open files (RLIMIT_NOFILE) is {limit}, and the agent may need {FILES_NEEDED}: raise the \
             hard limit"
        );
    }
    let run_dir = RunDir::claim(&arguments.run_dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(serve(arguments, run_dir))
}

async fn serve(arguments: AgentArguments, run_dir: RunDir) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let flow_target = arguments.flow_delivery.target()?;
    let flow_store = (arguments.flows == Switch::On).then(|| Arc::new(FlowStore::new(&arguments.node_name)));
    let metrics = match &flow_store {
        Some(store) => Metrics::new().with_flows(store.clone()),
        None => Metrics::new(),
    };
    let metrics = Arc::new(metrics);
    let probed = probe();
    if let Err(unsupported) = kernel_support::check(&probed, KernelRelease::of_kernel()) {
        match arguments.kernel_check {
            Switch::On => return Err(unsupported.into()),
            Switch::Off => tracing::warn!("unsupported kernel, but --kernel-check is off: {unsupported}"),
        }
    }
    let uncounted_flows = switch_accounting(&arguments);
    let (layout, protection) = arguments.layout(&probed)?;
    let status = AgentStatus {
        node: arguments.node_name.clone(),
        version: env!("CARGO_PKG_VERSION"),
        table: layout.table().to_string(),
        started: Some(Instant::now()),
        kernel_release: KernelRelease::of_kernel().ok().map(|release| release.text),
        protected: layout.is_protected(),
        protection: protection.clone(),
        source_check: layout.checks_sources(),
        tunnel_ports: arguments.tunnel_ports(),
        from_folder: arguments.manifests.is_some(),
        ..AgentStatus::default()
    };
    let _table_lock = TableLock::claim(layout.table())?;
    let tables = names(layout.table());
    let LogGroup { log, words: reporting } = arguments.reporting.nflog_group.open(&tables[0], &DENIED_PACKETS)?;
    let LogGroup { log: dns_log, words: learning } =
        arguments.reporting.dns_nflog_group.open(&tables[0], &DNS_ANSWERS)?;
    let (dns_group, dns_log) = dns_log.map_or((None, None), |(group, log)| (Some(group), Some(log)));
    let (group, log) = log.map_or((None, None), |(group, log)| (Some(group), Some(log)));
    let is_wanted = arguments.reporting.nflog_group != GroupChoice::Off;
    let layout = layout.logging_to(group).copying_dns_answers_to(dns_group);
    let status = AgentStatus { drop_log_group: group, drop_log: reporting.clone(), ..status };
    let (drop_events, received) = mpsc::channel(DROP_EVENTS_QUEUED);
    let drops = Arc::new(DropStream::new());
    let reports = Watch::start(log, tables, drop_events, metrics.clone())?;
    let flow_layout = layout.clone();
    let enforcer = Enforcer::start(&layout, first_generation(&layout), metrics.clone())?;
    let earlier_tables = enforcer.earlier_tables;
    let notifications = enforcer.notifications()?;
    let links = LinkWatch::open().context("cannot watch the node's interfaces (rtnetlink)")?;
    let socket = run_dir.listen("agent.sock")?;
    let cni_socket = run_dir.listen("cni.sock")?;

    let (events, queue) = mpsc::channel(EVENTS_QUEUED);
    let (following, remote) = match arguments.remote.followed()? {
        Some(followed) => {
            let (following, update) = RemoteSubscription::recall(followed);
            (Some(following), Some(update))
        }
        None => (None, None),
    };
    let (mut source, lookups) = start_source(&arguments, events.clone()).await?;
    let place = AddressContext {
        node: arguments.node_name.clone(),
        remote: arguments.remote_cidr.clone(),
        pod_cidrs: arguments.pod_cidr.clone(),
    };
    let identities = arguments.scheme.identities(arguments.manifests.as_deref());
    let flows = match &flow_store {
        Some(store) => {
            if let Some(target) = flow_target {
                start_delivery(&arguments.node_name, target, store, &arguments.run_dir);
            }
            let naming = arguments.flow_names.naming(place.clone(), identities.clone());
            Some(
                start_flows(
                    &arguments,
                    store.clone(),
                    CaptureSettings {
                        naming,
                        layout: flow_layout,
                        accounting: ConntrackSettings::of_node(&arguments.run_dir),
                        problems: uncounted_flows.unwrap_or_default(),
                    },
                )
                .await?,
            )
        }
        None => None,
    };
    let now = Instant::now();
    let lifetimes = arguments.dns.lifetimes();
    let dependencies = Dependencies {
        layout,
        resync: arguments.resync_secs,
        check_interval: arguments.translation_check(),
        enforcement: arguments.enforcement.by_default(),
        drop_reporting: DropReporting::new(place, drops.clone(), identities, Timestamp::now()),
        names: NameLearning::new(
            arguments.dns.resolvers(),
            lifetimes,
            arguments.dns.cluster_domain(),
            SavedNames::in_folder(&arguments.run_dir).read(lifetimes, now),
            dns_group.is_none().then(|| learning.clone()),
        ),
        flows,
        prefixes: arguments.remote.remote_label_prefix.clone(),
        remote,
    };
    let (reconciler, statuses) = Reconciler::new(status, dependencies, metrics.clone(), now);
    let dns_clients = DnsClients::of_agent(earlier_tables, Instant::now());
    let event_loop = EventLoop::new(reconciler, enforcer, &arguments.run_dir, lookups, dns_clients.clone());
    if let Some(log) = dns_log {
        let reader = AnswerReader::new(log, events.clone(), metrics.clone(), dns_clients);
        std::thread::Builder::new().name("dns-answers".into()).spawn(move || reader.run())?;
    }
    let (watched, followed) = (events.clone(), events.clone());
    let mut remote = following.map(|following| tokio::spawn(following.run(events.clone())));
    let mut cni_socket = tokio::spawn(cni_socket::serve(cni_socket, events.clone()));
    let sources = Sources::new(statuses, metrics.clone(), events.clone(), drops).with_flows(flow_store.clone());
    let mut port = tokio::spawn(port::serve(arguments.listen, port_routes(sources.clone()), events, metrics.clone()));
    let refused = move || metrics.refuse_connection(Listens::Socket);
    let mut socket = tokio::spawn(listener::serve(socket, socket_routes(sources), SOCKET_LIMITS, refused));
    std::thread::Builder::new()
        .name("kernel-watch".into())
        .spawn(move || kernel_watch::run(notifications, &watched))?;
    std::thread::Builder::new().name("link-watch".into()).spawn(move || link_watch::run(links, &followed))?;
    std::thread::Builder::new().name("reports".into()).spawn(move || reports.run())?;
    let mut event_loop = tokio::task::spawn_blocking(move || own_thread(event_loop, queue, received));
    tracing::info!(
        node = arguments.node_name,
        listen = %arguments.listen,
        version = env!("CARGO_PKG_VERSION"),
        "ringfence agent started"
    );
    tracing::info!("table owner protection: {protection}");
    match dns_group {
        Some(_) => tracing::info!("DNS answers for the domain names of cluster policies: {learning}"),
        None => tracing::warn!(
            "DNS answers for the domain names of cluster policies: {learning}; the names match no address"
        ),
    }
    match group.is_none() && is_wanted {
        true => tracing::warn!("log of denied packets: {reporting}; denied packets are still counted"),
        false => tracing::info!("log of denied packets: {reporting}"),
    }
    if earlier_tables == EarlierTables::Claimed {
        tracing::info!("adopted the tables of a previous agent; its rules are in force and protected again");
    }

    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping; the rules stay in place"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping; the rules stay in place"),
        ended = &mut source => bail!("the informers have ended: {}", outcome(ended)),
        ended = end_of(&mut remote) => bail!("the subscription to context providers has ended: {}", outcome(ended)),
        ended = &mut event_loop => bail!("the agent's event loop has ended: {}", outcome(ended)),
        Err(panic) = &mut port => bail!("the HTTP listener has ended: {panic}"),
        Err(panic) = &mut socket => bail!("the API socket has ended: {panic}"),
        ended = &mut cni_socket => bail!("the CNI socket has ended: {}", outcome(ended)),
    }
    if let Some(store) = &flow_store {
        tokio::select! {
            () = finish_delivery(store, &arguments.run_dir) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
    // A commit in progress is one system call, which the kernel applies atomically: there is nothing to wait for.
    std::process::exit(0);
}

/// Enables the kernel's accounting of connections, or restores what an agent with `--flows on` has changed. Returns
/// what is not counted; `None` with `--flows off`. Policies are enforced in either case.
fn switch_accounting(arguments: &AgentArguments) -> Option<Vec<String>> {
    let accounting = ConntrackSettings::of_node(&arguments.run_dir);
    match arguments.flows {
        Switch::On => {
            let uncounted = accounting.enable();
            for reason in &uncounted {
                tracing::warn!("flow records lack volumes or times of connections: {reason}");
            }
            Some(uncounted)
        }
        Switch::Off => {
            match accounting.restore() {
                Ok(restored) if restored.is_empty() => {}
                Ok(restored) => tracing::info!("--flows is off: restored {}", restored.join(", ")),
                Err(error) => {
                    tracing::warn!("--flows is off, but settings of connection tracking are not restored: {error}")
                }
            }
            None
        }
    }
}

/// The loop blocks in system calls, so it has its own thread.
fn own_thread(
    event_loop: EventLoop,
    queue: mpsc::Receiver<Event>,
    drop_events: mpsc::Receiver<DropEvent>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(event_loop.run(queue, drop_events));
    Ok(())
}

/// The source's task, and its queue of pod lookups.
type SourceTask = (JoinHandle<anyhow::Result<()>>, Option<mpsc::Sender<PodRequest>>);

async fn start_source(arguments: &AgentArguments, events: mpsc::Sender<Event>) -> anyhow::Result<SourceTask> {
    Ok(match &arguments.manifests {
        Some(folder) => {
            // Read once before anything starts: a missing folder is an error of the command line.
            cluster::read_folder::<policy::Object>(folder)?;
            let folder = folder.clone();
            let watch = async move { Ok(cluster::watch_folder::<policy::Object, _>(&folder, events).await?) };
            (tokio::spawn(watch), None)
        }
        None => {
            let connection = cluster::connect(arguments.kubeconfig.as_deref()).await?;
            let (lookups, wanted) = mpsc::channel(MOST_WAITING);
            tokio::spawn(pod_lookup::run(connection.clone(), wanted, events.clone()));
            let watches = tokio::spawn(async move {
                cluster::watch_cluster::<policy::Object, _>(connection, events).await;
                Ok(())
            });
            (watches, Some(lookups))
        }
    })
}

/// Starts the thread that makes flow records.
async fn start_flows(
    arguments: &AgentArguments,
    store: Arc<FlowStore>,
    settings: CaptureSettings,
) -> anyhow::Result<FlowFeed> {
    let (flows, messages) = feed(store.clone());
    let source = match &arguments.manifests {
        Some(folder) => ServiceSource::Manifests(folder.clone()),
        None => ServiceSource::Cluster(cluster::connect(arguments.kubeconfig.as_deref()).await?),
    };
    let (updates, services) = mpsc::channel(SERVICES_QUEUED);
    tokio::spawn(async move {
        if let Err(error) = watch_services(source, updates).await {
            tracing::warn!("flow records have no Services: {error}");
        }
    });
    let capture = Capture::new(store, messages, services, settings);
    std::thread::Builder::new().name("flows".into()).spawn(move || capture.run())?;
    Ok(flows)
}

/// The generation that begins if there are no tables. It is random, so that marks cannot be predicted.
fn first_generation(layout: &Layout) -> Generation {
    // The hash keys of the standard library are random numbers of the operating system.
    let random = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), ());
    layout.first_generation().drawn_from((random >> 32) as u32)
}

/// Pending without a task.
async fn end_of<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, tokio::task::JoinError> {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}

fn outcome<T, E: std::fmt::Display>(ended: Result<Result<T, E>, tokio::task::JoinError>) -> String {
    match ended {
        Ok(Ok(_)) => "without a reason".into(),
        Ok(Err(error)) => format!("{error:#}"),
        Err(panic) => panic.to_string(),
    }
}
