//! Suggested filter values.

use std::collections::BTreeSet;

use flow::ClusterRecord;
use wire::Strict;

use crate::convert::convert_admitted;
use crate::filter::{Filters, RequestError, known, value};
use crate::message::{FilterHint, FilterHintsRequest, FilterHintsResult, FilterType, FlowKey, PolicyHit, PolicyKind};
use crate::{MOST_KEYS, Page};

/// Values of one field in the flows that match a filter.
#[derive(Debug)]
pub struct Hints {
    field: FilterType,
    filters: Filters,
    page: Page,
    values: BTreeSet<String>,
}

impl Hints {
    /// # Errors
    /// If the request is invalid.
    pub fn parse(request: &Strict<FilterHintsRequest>) -> Result<Hints, RequestError> {
        let request = known(request, "the request")?;
        let field = value("type", request.r#type)?;
        if field == FilterType::Unspecified {
            return Err(RequestError::Value { field: "type", value: request.r#type });
        }
        let filters = Filters::parse(request.filter.as_ref())?;
        let page = Page::parse(request.page, request.page_size)?;
        Ok(Hints { field, filters, page, values: BTreeSet::new() })
    }

    /// # Errors
    /// If there are too many values.
    pub fn add(&mut self, record: &ClusterRecord) -> Result<(), RequestError> {
        for key in convert_admitted(record, &self.filters).filter_map(|flow| flow.key) {
            self.add_key(key);
        }
        if self.values.len() > MOST_KEYS { Err(RequestError::TooManyFlows(MOST_KEYS)) } else { Ok(()) }
    }

    fn add_key(&mut self, key: FlowKey) {
        let of_policies = |value: fn(&PolicyHit) -> String| -> Vec<String> {
            let hits =
                key.policies.iter().flat_map(|trace| trace.enforced_policies.iter().chain(&trace.pending_policies));
            hits.map(|hit| value(hit.trigger.as_deref().unwrap_or(hit))).collect()
        };
        match self.field {
            FilterType::Unspecified => {}
            FilterType::DestName => self.values.extend([key.dest_name]),
            FilterType::SourceName => self.values.extend([key.source_name]),
            FilterType::DestNamespace => self.values.extend([key.dest_namespace]),
            FilterType::SourceNamespace => self.values.extend([key.source_namespace]),
            FilterType::PolicyTier => self.values.extend(of_policies(|hit| hit.tier.clone())),
            FilterType::PolicyName => self.values.extend(of_policies(|hit| hit.name.clone())),
            FilterType::PolicyKind => self.values.extend(of_policies(|hit| kind_name(hit.kind()).to_owned())),
            FilterType::PolicyNamespace => self.values.extend(of_policies(|hit| hit.namespace.clone())),
        }
    }

    pub fn into_result(self) -> FilterHintsResult {
        let (values, meta) = self.page.of(self.values.into_iter().collect());
        FilterHintsResult { meta: Some(meta), hints: values.into_iter().map(|value| FilterHint { value }).collect() }
    }
}

/// As the protocol names it.
fn kind_name(kind: PolicyKind) -> &'static str {
    match kind {
        PolicyKind::Unspecified => "KindUnspecified",
        PolicyKind::StagedGlobalNetworkPolicy => "StagedGlobalNetworkPolicy",
        PolicyKind::StagedKubernetesNetworkPolicy => "StagedKubernetesNetworkPolicy",
        PolicyKind::NetworkPolicy => "NetworkPolicy",
        PolicyKind::Profile => "Profile",
        PolicyKind::EndOfTier => "EndOfTier",
        PolicyKind::ClusterNetworkPolicy => "ClusterNetworkPolicy",
    }
}
