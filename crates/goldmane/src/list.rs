//! Lists of flows: sums over a time range, sorted and paged.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use flow::ClusterRecord;
use wire::Strict;

use crate::convert::convert_admitted;
use crate::filter::{Filters, RequestError, known, value};
use crate::message::{Flow, FlowKey, FlowListResult, FlowResult, ListMetadata, SortBy, SortOption};
use crate::{Page, flow_id};

/// Limit of the distinct flows of one list, before paging.
pub const MOST_KEYS: usize = 100_000;

/// Limit of the flows of one response: gRPC clients accept 4 MiB by default.
pub const MOST_FLOWS: usize = 4_000;

/// Sort order of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sorting {
    /// Newest first.
    #[default]
    Time,
    DestName,
    DestNamespace,
    SourceName,
    SourceNamespace,
}

impl Sorting {
    /// # Errors
    /// If Goldmane does not have the order, or several are requested.
    pub fn parse(options: &[Strict<SortOption>]) -> Result<Sorting, RequestError> {
        let [option] = options else {
            return if options.is_empty() { Ok(Sorting::Time) } else { Err(RequestError::SortOrders) };
        };
        match value("sort_by", known(option, "a sort option")?.sort_by)? {
            SortBy::Time => Ok(Sorting::Time),
            SortBy::DestName => Ok(Sorting::DestName),
            SortBy::DestNamespace => Ok(Sorting::DestNamespace),
            SortBy::SourceName => Ok(Sorting::SourceName),
            SortBy::SourceNamespace => Ok(Sorting::SourceNamespace),
            SortBy::DestType => Err(RequestError::SortOrder("DestType")),
            SortBy::SourceType => Err(RequestError::SortOrder("SourceType")),
        }
    }
}

/// Flows by key.
#[derive(Debug, Default)]
pub struct FlowList {
    filters: Filters,
    flows: HashMap<FlowKey, Flow>,
}

impl FlowList {
    pub fn new(filters: Filters) -> FlowList {
        FlowList { filters, flows: HashMap::new() }
    }

    /// Adds the flows of a record. Records must be added in the order of their windows.
    ///
    /// # Errors
    /// If there are too many distinct flows.
    pub fn add(&mut self, record: &ClusterRecord) -> Result<(), RequestError> {
        for mut flow in convert_admitted(record, &self.filters) {
            let Some(key) = flow.key.take() else { continue };
            let is_full = self.flows.len() >= MOST_KEYS;
            match self.flows.entry(key) {
                Entry::Occupied(mut sum) => add(sum.get_mut(), flow),
                Entry::Vacant(_) if is_full => return Err(RequestError::TooManyFlows(MOST_KEYS)),
                Entry::Vacant(place) => {
                    place.insert(flow);
                }
            }
        }
        Ok(())
    }

    /// All flows, ordered by number.
    pub fn into_results(self) -> Vec<FlowResult> {
        let results = self.flows.into_iter().map(|(key, flow)| result(flow_id(&key), key, flow));
        let mut results: Vec<FlowResult> = results.collect();
        results.sort_by_key(|result| result.id);
        results
    }

    /// Flows that count more than in another list of the same window, with the difference, ordered by number. Flows that
    /// the other list does not have are returned as they are, and those that count no more are left out.
    pub fn growth_since(self, before: &FlowList) -> Vec<Flow> {
        let results = self.into_results().into_iter();
        let flows = results.filter_map(|result| result.flow);
        let growth = flows.filter_map(|flow| match flow.key.as_ref().and_then(|key| before.flows.get(key)) {
            Some(before) => difference(flow, before),
            None => Some(flow),
        });
        growth.collect()
    }

    /// A page of the flows.
    ///
    /// # Errors
    /// If the page has too many flows.
    pub fn into_page(self, sorting: Sorting, page: Page) -> Result<FlowListResult, RequestError> {
        let mut flows: Vec<(i64, FlowKey, Flow)> =
            self.flows.into_iter().map(|(key, flow)| (flow_id(&key), key, flow)).collect();
        // Ties are broken by number, so that pages are stable.
        match sorting {
            Sorting::Time => flows.sort_by_key(|(id, _, flow)| Reverse((flow.start_time, *id))),
            Sorting::DestName => flows.sort_by(|a, b| (&a.1.dest_name, a.0).cmp(&(&b.1.dest_name, b.0))),
            Sorting::DestNamespace => flows.sort_by(|a, b| (&a.1.dest_namespace, a.0).cmp(&(&b.1.dest_namespace, b.0))),
            Sorting::SourceName => flows.sort_by(|a, b| (&a.1.source_name, a.0).cmp(&(&b.1.source_name, b.0))),
            Sorting::SourceNamespace => {
                flows.sort_by(|a, b| (&a.1.source_namespace, a.0).cmp(&(&b.1.source_namespace, b.0)));
            }
        }
        let (flows, meta): (_, ListMetadata) = page.of(flows);
        if flows.len() > MOST_FLOWS {
            return Err(RequestError::TooManyFlows(MOST_FLOWS));
        }
        let flows = flows.into_iter().map(|(id, key, flow)| result(id, key, flow)).collect();
        Ok(FlowListResult { meta: Some(meta), flows })
    }
}

fn result(id: i64, key: FlowKey, flow: Flow) -> FlowResult {
    FlowResult { id, flow: Some(Flow { key: Some(key), ..flow }) }
}

/// The flow with the growth of its counts; `None` without growth.
fn difference(mut flow: Flow, before: &Flow) -> Option<Flow> {
    let counts = [
        (&mut flow.packets_in, before.packets_in),
        (&mut flow.packets_out, before.packets_out),
        (&mut flow.bytes_in, before.bytes_in),
        (&mut flow.bytes_out, before.bytes_out),
        (&mut flow.num_connections_started, before.num_connections_started),
        (&mut flow.num_connections_completed, before.num_connections_completed),
        (&mut flow.num_connections_live, before.num_connections_live),
    ];
    let mut has_grown = false;
    for (now, before) in counts {
        *now = now.saturating_sub(before).max(0);
        has_grown |= *now > 0;
    }
    has_grown.then_some(flow)
}

/// Adds a flow of the same or a later window.
fn add(sum: &mut Flow, flow: Flow) {
    let Flow {
        key: _,
        start_time,
        end_time,
        source_labels,
        dest_labels,
        packets_in,
        packets_out,
        bytes_in,
        bytes_out,
        num_connections_started,
        num_connections_completed,
        num_connections_live,
    } = flow;
    for (sum, more) in [
        (&mut sum.packets_in, packets_in),
        (&mut sum.packets_out, packets_out),
        (&mut sum.bytes_in, bytes_in),
        (&mut sum.bytes_out, bytes_out),
        (&mut sum.num_connections_started, num_connections_started),
        (&mut sum.num_connections_completed, num_connections_completed),
    ] {
        *sum = sum.saturating_add(more);
    }
    // Connections live at the end of the newest window.
    sum.num_connections_live = match end_time > sum.end_time {
        true => num_connections_live,
        false => sum.num_connections_live.saturating_add(num_connections_live),
    };
    sum.start_time = sum.start_time.min(start_time);
    sum.end_time = sum.end_time.max(end_time);
    for (sum, more) in [(&mut sum.source_labels, source_labels), (&mut sum.dest_labels, dest_labels)] {
        for label in more {
            if !sum.contains(&label) {
                sum.push(label);
            }
        }
    }
}
