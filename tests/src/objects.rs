//! A world's objects as the translator takes them.

use policy::{Change, ClusterState, Enforcement, Kind, Object, lower};
use serde_json::Value;

use crate::oracle::World;

/// The kind of a document of one of the three kinds.
pub fn kind_of(document: &Value) -> Kind {
    let kind = document["kind"].as_str();
    Kind::ALL.into_iter().find(|k| kind == Some(&k.to_string())).expect("a Namespace, Pod or NetworkPolicy")
}

/// Every object, lowered.
pub fn lowered(world: &World) -> Vec<Object> {
    world.documents().iter().map(|d| lower(kind_of(d), d).expect("generated objects have names")).collect()
}

/// What the agent of the world is told.
pub fn default_enforcement(world: &World) -> Enforcement {
    if world.audits_by_default { Enforcement::Audit } else { Enforcement::Enforce }
}

/// The state of a fresh start on the world.
pub fn state_of(world: &World) -> ClusterState {
    let objects = lowered(world);
    let mut state = ClusterState::new();
    state.set_default_enforcement(default_enforcement(world));
    for kind in Kind::ALL {
        let of_kind = objects.iter().filter(|o| o.kind() == kind).cloned().collect();
        state.apply(Change::Replace(kind, of_kind));
    }
    state
}
