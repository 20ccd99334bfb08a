//! Observed edges from the aggregator or Loki; what-if results and suggestions that the aggregator computes from its own.

use std::collections::BTreeSet;

use insight::{NamespaceChoice, PolicyId};
use insight::{ObservedEdge, ObservedEdges, SuggestionScope, Suggestions, WhatIf};
use jiff::Timestamp;

use super::flow_server::FlowServer;
use super::loki::{Loki, TrailQuery};

/// Maximum number of edges in memory: each has some 3 kB with its samples.
const MOST_EDGES: usize = 200_000;

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
                if let Some(kept) = server.coverage().await?.kept_since {
                    eprintln!("the aggregator has records since {kept}");
                }
                let mut filters: Vec<(&'static str, String)> =
                    namespaces.iter().map(|namespace| ("namespace", namespace.clone())).collect();
                filters.push(("since", since.to_string()));
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

impl FlowServer {
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
        parameters.extend(directions.iter().map(|direction| ("direction", direction.word().to_owned())));
        parameters.push(("audit", audit.to_string()));
        parameters.push(("since", since.to_string()));
        self.read("/v1/suggestions", &parameters).await
    }
}
