//! Compares observed flows with policies.
//!
//! Everything here is a function of values from the caller: [`ObservedEdge`]s, which [`observe()`] makes of joined flow
//! records, and the state of the cluster. Who keeps them and for how long is the caller's matter.
//!
//! [`suggest()`] writes policies that allow what was seen. [`what_if()`] judges the flows of observed edges under a change of policies.

mod difference;
mod directory;
mod existing;
mod observed;
mod sample;
mod suggest;
mod what_if;

pub use difference::line_difference;
pub use directory::Directory;
pub use observed::{ObservedEdge, ObservedEdges, observe};
pub use sample::{Flows, NoFlow, flows_of, traffic_of};
pub use suggest::{EXCLUDED_NAMESPACES, NamespaceChoice, SuggestedPolicy, SuggestionScope, Suggestions, suggest};
pub use what_if::{
    ChangedEdge, EdgeName, Effect, Finding, InvalidChange, PolicyAction, PolicyChange, PolicyChanges, PolicyName,
    UnevaluatedEdge, WhatIf, what_if,
};
