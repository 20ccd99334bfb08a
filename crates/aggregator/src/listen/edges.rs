//! `GET /v1/edges`: observed edges over days, each with its declaration; `/v1/edges/unseen`: declared edges that
//! were not seen; `/v1/edges/first-seen`: events of new edges.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use flow::{
    Connections, EndSample, Endpoint, FlowFilters, FlowKey, FlowRecord, FlowVerdict, ServicePort, SideTrace,
    TraceVerdict, VerdictCounts,
};
use insight::{
    Declaration, DeclaredEdges, DeclaredEnd, FirstSeen, LedgerCounts, LedgerEdge, ObservedEdge, WorkloadIndex,
    is_violation,
};
use jiff::Timestamp;
use policy::{ClusterState, Explanation, FlowPorts, ObjectName, PortSpan, SideVerdict, Traffic, Withheld, explain};
use serde::Serialize;

use super::Sources;
use super::query::{QueryParameters, Refusal, blocking};
use crate::aggregate::window_of;

const USUAL_EDGES: usize = 1_000;
const MOST_EDGES: usize = 10_000;
const USUAL_UNSEEN: usize = 500;
const MOST_UNSEEN: usize = 2_000;

/// Limits of the search for the rules of an unseen edge: pods of an end, and flows that are explained. Where an edge is
/// `partial`, rules allow some pairs of pods only; the first ones of workloads usually suffice.
const MOST_RULE_PODS: usize = 8;
const MOST_RULE_FLOWS: usize = 128;

/// State of the view of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PolicyKnowledge {
    Known,
    /// `--watch-policies` is off.
    NotWatched,
    /// The initial sync is incomplete.
    NotSynced,
    /// There are more declared edges than are derived, or policies that they do not cover.
    Withheld,
}

/// The state of the cluster, and its declared edges.
type KnownPolicies = (Arc<ClusterState>, Arc<DeclaredEdges>);

/// Fields of every answer about observed edges.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    /// False without `--edges on`; the other fields are then null or empty.
    kept: bool,
    policies: PolicyKnowledge,
    since: Option<Timestamp>,
    learned_at: Option<Timestamp>,
    counts: Option<LedgerCounts>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EdgesAnswer {
    #[serde(flatten)]
    head: Head,
    edges: Vec<EdgeLine>,
    next_page: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EdgeLine {
    source: Endpoint,
    destination: Endpoint,
    protocol: u8,
    port: Option<u16>,
    services: Vec<ServicePort>,
    connections: u64,
    denied_packets: u64,
    verdicts: VerdictCounts,
    first: Timestamp,
    last: Timestamp,
    last_denied: Option<Timestamp>,
    last_passed: Option<Timestamp>,
    exempt: bool,
    #[serde(flatten)]
    declaration: Declaration,
    declared: Option<bool>,
    violation: bool,
    /// Only with `samples=yes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    sources: Option<EndSample>,
    #[serde(skip_serializing_if = "Option::is_none")]
    destinations: Option<EndSample>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct UnseenAnswer {
    #[serde(flatten)]
    head: Head,
    edges: Vec<UnseenLine>,
    truncated: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct UnseenLine {
    source: String,
    destination: String,
    /// The ends as those of records, if they are workloads or remote sets.
    source_end: Option<Endpoint>,
    destination_end: Option<Endpoint>,
    ports: Vec<String>,
    partial: bool,
    /// Rules that allow the first and the last port of each span, of the side of the source and of the destination.
    rules: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EventsAnswer {
    #[serde(flatten)]
    head: Head,
    /// The newest first.
    events: Vec<FirstSeen>,
}

impl Sources {
    /// The state and the declared edges, or why there are none.
    fn policies(&self) -> (PolicyKnowledge, Option<KnownPolicies>) {
        let Some(view) = &self.view else { return (PolicyKnowledge::NotWatched, None) };
        let Some(snapshot) = view.full_snapshot() else { return (PolicyKnowledge::NotSynced, None) };
        let knowledge = match snapshot.declared.withheld() {
            None => PolicyKnowledge::Known,
            Some(Withheld::TooMany) => PolicyKnowledge::Withheld,
        };
        (knowledge, Some((snapshot.state, snapshot.declared)))
    }

    fn head(&self, policies: PolicyKnowledge) -> Head {
        let Some(observation) = &self.observation else {
            return Head { kept: false, policies, since: None, learned_at: None, counts: None };
        };
        let core = observation.core();
        let ledger = &core.ledger;
        Head {
            kept: true,
            policies,
            since: Some(ledger.since()),
            learned_at: Some(ledger.learned_at()),
            counts: Some(ledger.counts()),
        }
    }
}

pub(super) async fn edges(
    State(sources): State<Sources>,
    Query(given): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let mut given = QueryParameters::new(given);
    let limit = given.limit(MOST_EDGES)?.unwrap_or(USUAL_EDGES);
    let after = given.take("page")?;
    let with_samples = yes_or_no(&mut given, "samples")?.unwrap_or(false);
    let (declared, violation) = (yes_or_no(&mut given, "declared")?, yes_or_no(&mut given, "violation")?);
    if !given.take_all("policy").is_empty() {
        return Err(Refusal::bad_request("observed edges have no policies: use /v1/flows"));
    }
    let filters = given.filters()?;
    let permit = sources.start_query()?;
    let answer = blocking(move || {
        let (knowledge, known) = sources.policies();
        let head = sources.head(knowledge);
        let mut answer = EdgesAnswer { head, edges: Vec::new(), next_page: None };
        let Some(observation) = &sources.observation else { return Ok(answer) };
        let core = observation.core();
        let mut waits = after.is_some();
        for edge in core.ledger.edges() {
            if waits {
                waits = after.as_deref() != Some(&*token(&edge.observed));
                continue;
            }
            if !admits(&filters, edge) {
                continue;
            }
            let line = EdgeLine::of(edge, known.as_ref(), with_samples);
            if declared.is_some_and(|wanted| line.declared != Some(wanted))
                || violation.is_some_and(|wanted| line.violation != wanted)
            {
                continue;
            }
            if answer.edges.len() == limit {
                let last =
                    answer.edges.last().map(|line| token_of(&line.source, &line.destination, line.protocol, line.port));
                answer.next_page = last;
                break;
            }
            answer.edges.push(line);
        }
        drop(permit);
        match waits {
            true => Err(Refusal {
                code: axum::http::StatusCode::GONE,
                reason: "the page is gone: its last edge is not kept any more; begin with the first page".into(),
            }),
            false => Ok(answer),
        }
    });
    Ok(Json(answer.await??).into_response())
}

pub(super) async fn unseen(
    State(sources): State<Sources>,
    Query(given): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let mut given = QueryParameters::new(given);
    let limit = given.limit(MOST_UNSEEN)?.unwrap_or(USUAL_UNSEEN);
    let namespace = given.take("namespace")?;
    given.end()?;
    let permit = sources.start_query()?;
    let answer = blocking(move || {
        let (knowledge, known) = sources.policies();
        let head = sources.head(knowledge);
        let mut answer = UnseenAnswer { head, edges: Vec::new(), truncated: false };
        let (Some(observation), Some((state, declared))) = (&sources.observation, known) else { return answer };
        let mut unseen = declared.unseen(&observation.core().ledger, &state);
        if let Some(namespace) = &namespace {
            let is_of = |end: &DeclaredEnd| match end {
                DeclaredEnd::Workload(name) => *name.namespace == **namespace,
                DeclaredEnd::Any | DeclaredEnd::Remote(_) | DeclaredEnd::Block(_) => false,
            };
            unseen.retain(|edge| is_of(&edge.source) || is_of(&edge.destination));
        }
        answer.truncated = unseen.len() > limit;
        unseen.truncate(limit);
        let rules = Rules { state: &state, directory: WorkloadIndex::of(&state) };
        answer.edges = unseen
            .into_iter()
            .map(|edge| UnseenLine {
                rules: rules.of(&edge.source, &edge.destination, &edge.ports),
                source: end_text(&edge.source),
                destination: end_text(&edge.destination),
                source_end: endpoint_of(&edge.source),
                destination_end: endpoint_of(&edge.destination),
                ports: ports_text(&edge.ports),
                partial: edge.partial,
            })
            .collect();
        drop(permit);
        answer
    });
    Ok(Json(answer.await?).into_response())
}

pub(super) async fn first_seen(
    State(sources): State<Sources>,
    Query(given): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    QueryParameters::new(given).end()?;
    let (knowledge, _) = sources.policies();
    let events = sources.observation.iter().flat_map(|observation| {
        let core = observation.core();
        core.ledger.recent().rev().cloned().collect::<Vec<_>>()
    });
    Ok(Json(EventsAnswer { head: sources.head(knowledge), events: events.collect() }).into_response())
}

impl EdgeLine {
    fn of(edge: &LedgerEdge, known: Option<&KnownPolicies>, with_samples: bool) -> EdgeLine {
        let declaration =
            known.map_or(Declaration::Unknown, |(state, declared)| declared.declaration(&edge.observed, state));
        let violation = is_violation(edge, declaration);
        let LedgerEdge { observed, by_verdict, last_denied, last_passed, exempt } = edge;
        EdgeLine {
            source: observed.source.clone(),
            destination: observed.destination.clone(),
            protocol: observed.protocol,
            port: observed.port,
            services: observed.services.iter().cloned().collect(),
            connections: observed.connections,
            denied_packets: observed.denied_packets,
            verdicts: *by_verdict,
            first: observed.first,
            last: observed.last,
            last_denied: *last_denied,
            last_passed: *last_passed,
            exempt: *exempt,
            declaration,
            declared: declaration.is_declared(),
            violation,
            sources: with_samples.then(|| observed.sources.clone()),
            destinations: with_samples.then(|| observed.destinations.clone()),
        }
    }
}

fn yes_or_no(given: &mut QueryParameters, name: &str) -> Result<Option<bool>, Refusal> {
    match given.take(name)?.as_deref() {
        None => Ok(None),
        Some("yes") => Ok(Some(true)),
        Some("no") => Ok(Some(false)),
        Some(other) => {
            Err(Refusal::bad_request(format!("invalid {name} '{}': expected yes or no", other.escape_debug())))
        }
    }
}

/// Whether the filters admit the edge as a record of its last window, with one of its Services and verdicts.
fn admits(filters: &FlowFilters, edge: &LedgerEdge) -> bool {
    let ObservedEdge { source, destination, protocol, port, services, verdicts, sources, destinations, .. } =
        &edge.observed;
    let side = SideTrace {
        verdict: TraceVerdict::Unknown,
        enforced_here: false,
        enforced: vec![],
        pending: vec![],
        passed_by: vec![],
    };
    let record = |service: Option<&ServicePort>, verdict: FlowVerdict| FlowRecord {
        window: window_of(edge.observed.last),
        node: "".into(),
        key: Arc::new(FlowKey {
            source: source.clone(),
            destination: destination.clone(),
            protocol: *protocol,
            port: *port,
            icmp_type: None,
            service: service.cloned(),
            verdict,
            drop_cause: None,
            egress: side.clone(),
            ingress: side.clone(),
        }),
        sources: Arc::new(sources.clone()),
        destinations: Arc::new(destinations.clone()),
        connections: Connections::default(),
        sent: None,
        received: None,
        unknown_volume: 0,
        denied_packets: 0,
        generation: None,
        first: edge.observed.first,
        last: edge.observed.last,
    };
    let services = services.iter().map(Some).chain([None]);
    let mut records = services.flat_map(|service| verdicts.iter().map(move |verdict| (service, *verdict)));
    *filters == FlowFilters::default() || records.any(|(service, verdict)| filters.admits(&record(service, verdict)))
}

fn token(edge: &ObservedEdge) -> String {
    token_of(&edge.source, &edge.destination, edge.protocol, edge.port)
}

/// A token of the page after an edge: FNV-1a of its key, so that it says nothing about the edge.
fn token_of(source: &Endpoint, destination: &Endpoint, protocol: u8, port: Option<u16>) -> String {
    let text = format!("{source:?} {destination:?} {protocol} {port:?}");
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

fn end_text(end: &DeclaredEnd) -> String {
    match end {
        DeclaredEnd::Any => "*/*".to_owned(),
        DeclaredEnd::Workload(name) => name.to_string(),
        DeclaredEnd::Remote(set) => set.to_string(),
        DeclaredEnd::Block(block) if block.except.is_empty() => block.cidr.to_string(),
        DeclaredEnd::Block(block) => {
            let except: Vec<String> = block.except.iter().map(ToString::to_string).collect();
            format!("{} except {}", block.cidr, except.join(", "))
        }
    }
}

fn endpoint_of(end: &DeclaredEnd) -> Option<Endpoint> {
    let (kind, namespace, name, cluster) = match end {
        DeclaredEnd::Workload(ObjectName { namespace, name }) => (flow::EndpointKind::Pod, namespace, name, None),
        DeclaredEnd::Remote(set) => {
            (flow::EndpointKind::RemoteCluster, &set.namespace, &set.name, Some(set.cluster.clone()))
        }
        DeclaredEnd::Any | DeclaredEnd::Block(_) => return None,
    };
    let (namespace, name) = (Some(namespace.clone()), Some(name.clone()));
    Some(Endpoint { kind, namespace, name, service: None, cluster, network: None })
}

fn ports_text(ports: &FlowPorts) -> Vec<String> {
    let span = |PortSpan { protocol, first, last }: &PortSpan| match (first, last) {
        (0, &u16::MAX) => format!("*/{protocol}"),
        (first, last) if first == last => format!("{first}/{protocol}"),
        (first, last) => format!("{first}-{last}/{protocol}"),
    };
    ports.spans().map_or_else(|| vec!["*".to_owned()], |spans| spans.iter().map(span).collect())
}

/// Finds the rules of declared edges, by explaining flows between pairs of pods.
struct Rules<'a> {
    state: &'a ClusterState,
    directory: WorkloadIndex<'a>,
}

impl Rules<'_> {
    /// Rules of both sides, in the order of the ports. For each port the first pair of pods that no side denies is explained,
    /// so that a `partial` edge has rules, too. Empty if no pair of pods exists now, or the search reached its limit.
    fn of(&self, source: &DeclaredEnd, destination: &DeclaredEnd, ports: &FlowPorts) -> Vec<String> {
        let traffics: Vec<Traffic> = match ports.spans() {
            None => vec![Traffic::Portless],
            Some(spans) => spans.iter().flat_map(ends_of).collect(),
        };
        let (from, to) = (self.addresses(source, destination), self.addresses(destination, source));
        let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to)));
        let pairs: Vec<(IpAddr, IpAddr)> =
            pairs.filter(|(from, to)| from != to && from.is_ipv4() == to.is_ipv4()).collect();
        let (mut rules, mut explained) = (Vec::new(), 0);
        for traffic in traffics {
            for (from, to) in &pairs {
                if explained == MOST_RULE_FLOWS {
                    return rules;
                }
                explained += 1;
                let Explanation { egress, ingress, .. } = explain(self.state, *from, *to, traffic);
                if denies(&egress) || denies(&ingress) {
                    continue;
                }
                let both = [("egress", egress), ("ingress", ingress)].into_iter();
                for rule in both.filter_map(|(side, verdict)| Some(format!("{side}: {}", rule_of(&verdict)?))) {
                    if !rules.contains(&rule) {
                        rules.push(rule);
                    }
                }
                break;
            }
        }
        rules
    }

    fn addresses(&self, end: &DeclaredEnd, other: &DeclaredEnd) -> Vec<IpAddr> {
        match end {
            DeclaredEnd::Workload(name) => self.of_workload(name),
            DeclaredEnd::Block(block) => {
                let holds = |address: &IpAddr| !block.except.iter().any(|except| except.contains(address));
                [block.cidr.network(), block.cidr.broadcast()].into_iter().filter(holds).collect()
            }
            DeclaredEnd::Any => {
                let excluded = match other {
                    DeclaredEnd::Workload(name) => self.of_workload(name),
                    DeclaredEnd::Any | DeclaredEnd::Remote(_) | DeclaredEnd::Block(_) => Vec::new(),
                };
                let all = self.state.pods().flat_map(|pod| self.state.addresses_of(pod));
                all.filter(|address| !excluded.contains(address)).take(MOST_RULE_PODS).collect()
            }
            DeclaredEnd::Remote(set) => {
                self.state.remote_addresses_of(set).into_iter().flatten().take(MOST_RULE_PODS).collect()
            }
        }
    }

    fn of_workload(&self, name: &ObjectName) -> Vec<IpAddr> {
        let pods = self.directory.pods_of(name);
        pods.iter().take(MOST_RULE_PODS).flat_map(|pod| self.state.addresses_of(pod)).collect()
    }
}

/// The first and the last port of a span: several rules may allow adjacent ports.
fn ends_of(PortSpan { protocol, first, last }: &PortSpan) -> BTreeSet<Traffic> {
    [*first, *last].map(|port| Traffic::Port(*protocol, port.max(1))).into()
}

/// Whether the side denies the flow, or audited policies would. Declared edges count audited policies as enforced.
fn denies(verdict: &SideVerdict) -> bool {
    !verdict.allows() || verdict.would_deny()
}

/// The rule that allows, or would allow.
fn rule_of(verdict: &SideVerdict) -> Option<String> {
    match verdict {
        SideVerdict::Allowed { rule, .. } | SideVerdict::WouldAllow { rule, .. } => Some(rule.to_string()),
        SideVerdict::Accepted { rule } | SideVerdict::WouldAccept { rule } => Some(rule.to_string()),
        SideVerdict::NotAPod
        | SideVerdict::NotIsolated
        | SideVerdict::Itself
        | SideVerdict::OwnNode
        | SideVerdict::Denied { .. }
        | SideVerdict::WouldDeny { .. }
        | SideVerdict::DeniedByRule { .. }
        | SideVerdict::WouldDenyByRule { .. }
        | SideVerdict::Unreadable { .. } => None,
    }
}
