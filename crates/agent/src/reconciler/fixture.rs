//! Objects and initial values for tests of the reconciler and of the event loop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{SourceEvent, TimedChange};
use identity::{ClusterName, ClusterScheme, LabelFilter};
use jiff::Timestamp;
use policy::{Change, Enforcement, Kind, Layout, Object, lower};
use serde_json::{Value, json};

use super::Dependencies;
use super::drop_reporting::DropReporting;
use super::name_learning::NameLearning;
use crate::dns::{DEFAULT_RESOLVER, LearnedTable, Lifetimes, Resolvers};
use crate::reports::{AddressContext, DropStream};

pub(crate) fn object(kind: Kind, object: &Value) -> Object {
    lower(kind, object).unwrap()
}

pub(crate) fn pod(name: &str, app: &str, node: &str, address: &str) -> Object {
    let pod = json!({
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": app}},
        "spec": {"nodeName": node}, "status": {"podIPs": [{"ip": address}]},
    });
    object(Kind::Pod, &pod)
}

/// The lists of the initial sync: a database on this node, which its web server on another node may reach.
pub(crate) fn shop() -> [Change; 4] {
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "db", "namespace": "shop"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}],
        },
    });
    let pods = vec![pod("db", "db", "node-a", "10.1.0.1"), pod("web-1", "web", "node-b", "10.2.0.1")];
    [
        Change::Replace(Kind::Namespace, vec![object(Kind::Namespace, &json!({"metadata": {"name": "shop"}}))]),
        Change::Replace(Kind::Pod, pods),
        Change::Replace(Kind::NetworkPolicy, vec![object(Kind::NetworkPolicy, &policy)]),
        Change::Replace(Kind::ClusterNetworkPolicy, vec![]),
    ]
}

pub(crate) fn source_event(changes: impl IntoIterator<Item = Change>, at: Instant) -> SourceEvent {
    SourceEvent::Changes(changes.into_iter().map(|change| TimedChange { change, at }).collect())
}

/// The resolver [`DEFAULT_RESOLVER`] is trusted, and learned addresses expire after a minute.
pub(crate) fn dependencies(layout: Layout, resync: Duration, check_interval: Option<Duration>) -> Dependencies {
    let place = AddressContext { node: "node-a".into(), remote: vec![], pod_cidrs: vec![] };
    let identities = ClusterScheme::new(ClusterName::Configured("".into()), LabelFilter::default());
    let minute = Duration::from_secs(60);
    let resolvers = Resolvers { addresses: vec![format!("{DEFAULT_RESOLVER}/32").parse().unwrap()], pods: vec![] };
    Dependencies {
        layout,
        resync,
        check_interval,
        enforcement: Enforcement::Enforce,
        drop_reporting: DropReporting::new(place, Arc::new(DropStream::new()), identities, Timestamp::default()),
        names: NameLearning::new(
            resolvers,
            Lifetimes { shortest: minute, longest: minute },
            "cluster.local".into(),
            LearnedTable::default(),
            None,
        ),
        flows: None,
        prefixes: vec![],
        remote: None,
    }
}
