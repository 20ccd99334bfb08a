//! A world's objects in the form that the translator reads.

use std::net::IpAddr;

use policy::remote::{self, LabelPrefix, RemoteChange};
use policy::{Change, ClusterState, Enforcement, Kind, Object, lower};
use serde_json::Value;

use kit::oracle::{Remote, RemoteSet, World};

/// The kind of a document, one of those for enforcement.
pub fn kind_of(document: &Value) -> Kind {
    let kind = document["kind"].as_str();
    Kind::ALL.into_iter().find(|k| kind == Some(&k.to_string())).expect("a kind for enforcement")
}

/// Every object, lowered.
pub fn lowered(world: &World) -> Vec<Object> {
    world.documents().iter().map(|d| lower(kind_of(d), d).expect("generated objects have names")).collect()
}

/// The world's default enforcement, a setting of the agent.
pub fn default_enforcement(world: &World) -> Enforcement {
    if world.audits_by_default { Enforcement::Audit } else { Enforcement::Enforce }
}

/// The label prefixes of the world, a setting of the agent.
pub fn label_prefixes(remote: &Remote) -> Vec<LabelPrefix> {
    remote.prefixes.iter().map(|prefix| prefix.parse().expect("generated prefixes are prefixes")).collect()
}

/// Every remote set of the world, as the agent receives it.
pub fn remote_sets(remote: &Remote) -> Vec<(remote::RemoteSet, Vec<IpAddr>)> {
    let entry =
        |set: &RemoteSet| (remote::RemoteSet::new(&set.cluster, &set.namespace, &set.name), set.addresses.clone());
    remote.sets.iter().map(entry).collect()
}

/// The state after a fresh start on the world.
pub fn state_of(world: &World) -> ClusterState {
    let objects = lowered(world);
    let mut state = ClusterState::new();
    state.set_default_enforcement(default_enforcement(world));
    for kind in Kind::ALL {
        let of_kind = objects.iter().filter(|o| o.kind() == kind).cloned().collect();
        state.apply(Change::Replace(kind, of_kind));
    }
    for (name, address) in &world.learned {
        state.learn(name.as_str().into(), *address);
    }
    if let Some(remote) = &world.remote {
        state.set_remote_prefixes(label_prefixes(remote));
        state.apply_remote(RemoteChange::Replace(remote_sets(remote)));
    }
    state
}
