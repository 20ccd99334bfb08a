//! Estimates of memory, for a 64-bit allocator with headers of 8 bytes and steps of 16 (glibc's malloc).

use std::collections::BTreeSet;
use std::mem::size_of;
use std::net::IpAddr;
use std::sync::Arc;

use identity::EndIdentity;

use crate::{EndSample, Endpoint, FlowKey, FlowRecord, PolicyHit, SeenBy, SideTrace};

/// Counters of an `Arc`.
const COUNTS: usize = 16;

/// A record with its place in the ring, whose capacity is up to twice its length.
pub(crate) const RECORD: usize = allocated(COUNTS + size_of::<FlowRecord>()) + 2 * size_of::<Arc<FlowRecord>>();

/// A key or sample in the map that counts its records: pointer, count and control byte at a load of at least 7/16.
const PART: usize = 17 * 16 / 7;

/// A key or sample in the interner of the cluster's records: pointer, number and control byte at a load of at least 7/16, and
/// an entry of the slab, whose capacity is up to twice its length.
const INTERNED: usize = 17 * 16 / 7 + 2 * 24;

/// Items of a B-tree's node, and the space of its parent pointer and lengths (`alloc::collections::btree::node`).
const NODE_ITEMS: usize = 11;
const NODE_HEAD: usize = 12;
/// Items of a node after it was split.
const SPLIT_ITEMS: usize = 6;

const fn allocated(bytes: usize) -> usize {
    (bytes + 8).next_multiple_of(16)
}

fn text(text: &str) -> usize {
    allocated(COUNTS + text.len())
}

fn optional(name: &Option<Arc<str>>) -> usize {
    name.as_deref().map_or(0, text)
}

fn set<T>(items: &BTreeSet<T>) -> usize {
    let leaf = allocated(NODE_HEAD + NODE_ITEMS * size_of::<T>());
    match items.len() {
        0 => 0,
        few if few <= NODE_ITEMS => leaf,
        many => (many.div_ceil(SPLIT_ITEMS) + 1) * leaf + (NODE_ITEMS + 1) * size_of::<usize>(),
    }
}

fn names(names: &BTreeSet<Arc<str>>) -> usize {
    set(names) + names.iter().map(|name| text(name)).sum::<usize>()
}

/// Bytes of a sample in the ring of an agent.
pub(crate) fn of_sample(sample: &EndSample) -> usize {
    PART + of_sample_value(sample)
}

/// Bytes of a sample among the records of a cluster.
pub(crate) fn of_interned_sample(sample: &EndSample) -> usize {
    INTERNED + of_sample_value(sample)
}

fn of_sample_value(sample: &EndSample) -> usize {
    let EndSample { addresses, pods, nodes, labels, identities, truncated: _ } = sample;
    let identities: usize = match identities.capacity() {
        0 => 0,
        capacity => {
            let services = identities.iter().filter_map(|identity| identity.service.as_ref());
            allocated(capacity * size_of::<EndIdentity>())
                + services.map(|service| allocated(service.capacity())).sum::<usize>()
        }
    };
    allocated(COUNTS + size_of::<EndSample>())
        + set::<IpAddr>(addresses)
        + names(pods)
        + names(nodes)
        + names(labels)
        + identities
}

/// Bytes of a key in the ring of an agent.
pub(crate) fn of_key(key: &FlowKey) -> usize {
    PART + of_key_value(key)
}

/// Bytes of a key among the records of a cluster.
pub(crate) fn of_interned_key(key: &FlowKey) -> usize {
    INTERNED + of_key_value(key)
}

/// Bytes of the observing nodes among the joined records of a cluster.
pub(crate) fn of_interned_seen_by(seen_by: &SeenBy) -> usize {
    let SeenBy { source, destination, other } = seen_by;
    let nodes: usize = [source, destination, other].into_iter().map(names).sum();
    INTERNED + allocated(COUNTS + size_of::<SeenBy>()) + nodes
}

fn of_key_value(key: &FlowKey) -> usize {
    let service = key
        .service
        .as_ref()
        .map_or(0, |service| text(&service.namespace) + text(&service.name) + optional(&service.port_name));
    allocated(COUNTS + size_of::<FlowKey>())
        + of_endpoint(&key.source)
        + of_endpoint(&key.destination)
        + service
        + optional(&key.drop_cause)
        + of_trace(&key.egress)
        + of_trace(&key.ingress)
}

fn of_endpoint(endpoint: &Endpoint) -> usize {
    let Endpoint { kind: _, namespace, name, service, cluster, network: _ } = endpoint;
    [namespace, name, service, cluster].into_iter().map(optional).sum()
}

fn of_trace(trace: &SideTrace) -> usize {
    [&trace.enforced, &trace.pending, &trace.passed_by]
        .into_iter()
        .filter(|hits| hits.capacity() > 0)
        .map(|hits| {
            let texts = hits.iter().map(|hit| {
                let PolicyHit { kind, namespace, name, tier: _, rule, rule_name, action: _ } = hit;
                text(kind) + text(namespace) + text(name) + optional(rule) + optional(rule_name)
            });
            allocated(hits.capacity() * size_of::<PolicyHit>()) + texts.sum::<usize>()
        })
        .sum()
}
