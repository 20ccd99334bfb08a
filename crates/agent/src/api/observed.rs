//! Observed edges from the aggregator or Loki; what-if results and suggestions that the aggregator computes from its own.

use std::collections::BTreeSet;

use flow::{EndSample, Endpoint, FlowVerdict, ServicePort, VerdictCounts};
use insight::{
    LedgerEdge, NamespaceChoice, ObservedEdge, ObservedEdges, PolicyId, SuggestionScope, Suggestions, WhatIf,
};
use jiff::Timestamp;
use serde::Deserialize;

use super::flow_server::FlowServer;
use super::loki::{Loki, TrailQuery};

/// Maximum number of edges in memory: each has some 3 kB with its samples.
const MOST_EDGES: usize = 200_000;

/// Edges per page of `/v1/edges`: an edge with full samples of both ends has some 20 kB.
const PAGE_EDGES: usize = 1_000;

/// Source of flow records.
#[derive(Debug, Clone)]
pub(crate) enum FlowSource {
    Aggregator(FlowServer),
    Loki(Loki),
}

impl FlowSource {
    /// The edges since a time that have an end in one of the namespaces; of all namespaces if there is none.
    pub(crate) async fn edges(
        &self,
        namespaces: &BTreeSet<String>,
        since: Timestamp,
        only_passed: bool,
    ) -> anyhow::Result<Vec<ObservedEdge>> {
        let mut edges = ObservedEdges::default();
        match self {
            FlowSource::Aggregator(server) => {
                let mut filters: Vec<(&'static str, String)> =
                    namespaces.iter().map(|namespace| ("namespace", namespace.clone())).collect();
                filters.push(("since", since.to_string()));
                if server.kept_edges(&filters, since, &mut edges).await? {
                    return Ok(edges.into_vec());
                }
                if let Some(kept) = server.coverage().await?.kept_since {
                    eprintln!(
                        "the aggregator keeps no observed edges (--edges on), and has records since {kept}: \
                         older flows are not considered"
                    );
                }
                server
                    .flows(&filters, |record| {
                        edges.add(&record);
                        check_bound(&edges).map(|()| true)
                    })
                    .await?;
            }
            FlowSource::Loki(loki) => {
                let query = TrailQuery { namespaces: namespaces.clone(), only_passed };
                let mut outcome = Ok(());
                let each = |record: &flow::ClusterRecord| {
                    if outcome.is_ok() {
                        edges.add(record);
                        outcome = check_bound(&edges);
                    }
                };
                let progress = |lines, time| eprintln!("read {lines} lines from Loki, up to {time}");
                loki.records(&query, (since, Timestamp::now()), each, progress).await?;
                outcome?;
            }
        }
        Ok(edges.into_vec())
    }
}

fn check_bound(edges: &ObservedEdges) -> anyhow::Result<()> {
    if edges.len() > MOST_EDGES {
        anyhow::bail!("more than {MOST_EDGES} edges; choose fewer namespaces or days");
    }
    Ok(())
}

/// A page of `/v1/edges`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EdgePage {
    /// False if the aggregator keeps no observed edges.
    kept: bool,
    edges: Vec<KeptEdge>,
    next_page: Option<String>,
}

/// An edge of the aggregator's ledger, with the samples of its ends.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeptEdge {
    source: Endpoint,
    destination: Endpoint,
    protocol: u8,
    port: Option<u16>,
    services: BTreeSet<ServicePort>,
    connections: u64,
    denied_packets: u64,
    verdicts: VerdictCounts,
    first: Timestamp,
    last: Timestamp,
    last_denied: Option<Timestamp>,
    last_passed: Option<Timestamp>,
    exempt: bool,
    sources: EndSample,
    destinations: EndSample,
}

impl From<KeptEdge> for LedgerEdge {
    fn from(edge: KeptEdge) -> LedgerEdge {
        let VerdictCounts { allowed, would_deny, denied } = edge.verdicts;
        let counts =
            [(FlowVerdict::Allowed, allowed), (FlowVerdict::WouldDeny, would_deny), (FlowVerdict::Denied, denied)];
        let verdicts = counts.into_iter().filter(|(_, count)| count.records > 0).map(|(verdict, _)| verdict).collect();
        let observed = ObservedEdge {
            source: edge.source,
            destination: edge.destination,
            protocol: edge.protocol,
            port: edge.port,
            services: edge.services,
            verdicts,
            connections: edge.connections,
            denied_packets: edge.denied_packets,
            sources: edge.sources,
            destinations: edge.destinations,
            first: edge.first,
            last: edge.last,
        };
        let (last_denied, last_passed, exempt) = (edge.last_denied, edge.last_passed, edge.exempt);
        LedgerEdge { observed, by_verdict: edge.verdicts, last_denied, last_passed, exempt }
    }
}

impl FlowServer {
    /// Adds the edges that the aggregator has observed over days, as its own comparisons do; returns false if it keeps none.
    async fn kept_edges(
        &self,
        filters: &[(&'static str, String)],
        since: Timestamp,
        edges: &mut ObservedEdges,
    ) -> anyhow::Result<bool> {
        let mut parameters = filters.to_vec();
        parameters.extend([("samples", "yes".to_owned()), ("limit", PAGE_EDGES.to_string())]);
        loop {
            let page: EdgePage = self.read("/v1/edges", &parameters).await?;
            if !page.kept {
                return Ok(false);
            }
            page.edges
                .into_iter()
                .filter_map(|edge| LedgerEdge::from(edge).observed_since(since))
                .for_each(|edge| edges.merge(edge));
            check_bound(edges)?;
            parameters.retain(|(name, _)| *name != "page");
            match page.next_page {
                Some(next) => parameters.push(("page", next)),
                None => return Ok(true),
            }
        }
    }

    /// The aggregator's comparison of its observed edges with changed policies.
    pub(crate) async fn what_if(
        &self,
        manifests: &str,
        deleted: &[PolicyId],
        since: Timestamp,
    ) -> anyhow::Result<WhatIf> {
        let mut parameters: Vec<(&'static str, String)> =
            deleted.iter().map(|name| ("delete", name.argument())).collect();
        parameters.push(("since", since.to_string()));
        self.post("/v1/what-if", &parameters, manifests).await
    }

    /// The aggregator's suggestions from its observed edges.
    pub(crate) async fn suggestions(&self, scope: &SuggestionScope, since: Timestamp) -> anyhow::Result<Suggestions> {
        let SuggestionScope { namespaces, directions, audit } = scope;
        let (field, names) = match namespaces {
            NamespaceChoice::Named(names) => ("namespace", names),
            NamespaceChoice::AllBut(names) => ("excludeNamespace", names),
        };
        let mut parameters: Vec<(&'static str, String)> = names.iter().map(|name| (field, name.clone())).collect();
        parameters.extend(directions.iter().map(|direction| ("direction", direction.as_str().to_owned())));
        parameters.push(("audit", audit.to_string()));
        parameters.push(("since", since.to_string()));
        self.read("/v1/suggestions", &parameters).await
    }
}
