use std::time::Instant;

use ::identity::{LabelFilter, Space};
use cluster::Watchable;
use ipnet::IpNet;
use policy::{Change, Interner};
use serde_json::{Value as Json, json};

use super::*;
use crate::directory::{Changes, Settings, Snapshot};
use crate::edges::Form;
use crate::frame::{ContentCoding, EventFrame};
use crate::identity::chunks;
use crate::mmdb::read::{Database, MmdbReadError};
use crate::object::{WatchedKind, WatchedObject};
use crate::published_tables::Tables;

/// Smaller numbers are reserved and have no row.
const FIRST_IDENTITY: u32 = 256;

const START: Position = Position { epoch: 7, seq: 0 };

/// The table of a consumer of the form of numbers.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct NumberTable {
    addresses: BTreeMap<IpAddr, u32>,
    /// Numbers by identity.
    identities: BTreeMap<String, u32>,
}

impl NumberTable {
    pub(crate) fn of(snapshot: &Snapshot) -> NumberTable {
        NumberTable {
            addresses: snapshot.table.iter().map(|(address, record)| (address, record.num)).collect(),
            identities: snapshot.ids.iter().map(|(sid, identity)| (sid.to_string(), identity.num)).collect(),
        }
    }

    pub(crate) fn apply_changes(&mut self, changes: Changes) {
        for chunk in chunks(changes) {
            self.apply(&serde_json::from_slice(&chunk.number_json(START)).unwrap());
        }
    }

    /// # Panics
    /// If a delta changes nothing in an entry, or an address gets a number without a row.
    pub(crate) fn apply(&mut self, delta: &Json) {
        let list = |value: &Json| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Json| value.as_str().unwrap().to_owned();
        let number = |value: &Json| u32::try_from(value.as_u64().unwrap()).unwrap();
        for row in list(&delta["ids"]["upserts"]) {
            let num = number(&row["num"]);
            assert_ne!(self.identities.insert(text(&row["sid"]), num), Some(num), "{row}");
        }
        for (num, addresses) in delta["upserts"].as_object().unwrap() {
            let num = num.parse().unwrap();
            assert!(num < FIRST_IDENTITY || self.identities.values().any(|known| *known == num), "{delta}");
            for address in list(addresses) {
                assert_ne!(self.addresses.insert(text(&address).parse().unwrap(), num), Some(num), "{delta}");
            }
        }
        for address in list(&delta["removes"]) {
            self.addresses.remove(&text(&address).parse().unwrap()).unwrap();
        }
        for sid in list(&delta["ids"]["removes"]) {
            self.identities.remove(&text(&sid)).unwrap();
        }
    }
}

const NAMESPACES: u8 = 5;
const DEPLOYMENTS: u8 = 10;
const REPLICAS: u8 = 20;

/// 1,000 pods of 50 Deployments.
struct Cluster {
    tables: Tables,
    interner: Interner,
}

impl Cluster {
    fn new() -> Cluster {
        let (filter, numbers) = (LabelFilter::default(), Space::STANDARD);
        let settings =
            Settings { cluster_id: "test".into(), filter, pod_detail: false, agent: None, node: None, numbers };
        let mut cluster = Cluster { tables: Tables::new(settings, Form::Compatible), interner: Interner::new() };
        for namespace in 0..NAMESPACES {
            let name = format!("shop-{namespace}");
            let labels = json!({"kubernetes.io/metadata.name": name, "team": "checkout", "env": "prod"});
            cluster.set(WatchedKind::Namespace, &json!({"metadata": {"name": name, "labels": labels}}));
        }
        cluster.set_pods(1, |_| "1.4.2".into());
        cluster.tables.begin();
        cluster
    }

    fn set(&mut self, kind: WatchedKind, value: &Json) {
        let Ok(object) = WatchedObject::lower(&mut self.interner, kind, value) else { panic!("{value}") };
        self.tables.apply(Change::Set(object), Instant::now());
    }

    /// Replaces the addresses of the pods, which keep their names, with versions by index.
    fn set_pods(&mut self, network: u8, version: impl Fn(usize) -> String) {
        for (place, (namespace, deployment, replica)) in all().enumerate() {
            let version = version(place);
            let app = format!("service-{deployment}");
            let pod = json!({
                "metadata": {
                    "namespace": format!("shop-{namespace}"),
                    "name": format!("{app}-5d8f7c9b4-{replica}"),
                    "uid": format!("{namespace}-{deployment}-{replica}"),
                    "ownerReferences": [{"kind": "ReplicaSet", "name": format!("{app}-5d8f7c9b4"), "controller": true}],
                    "labels": {
                        "app.kubernetes.io/name": app,
                        "app.kubernetes.io/component": "api",
                        "app.kubernetes.io/version": version,
                        "pod-template-hash": "5d8f7c9b4",
                    },
                },
                "spec": {"nodeName": "node-a", "containers": []},
                "status": {
                    "phase": "Running",
                    "podIPs": [{"ip": format!("10.{network}.{}.{}", 10 * namespace + deployment, 100 + replica)}],
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            });
            self.set(WatchedKind::Pod, &pod);
        }
    }

    /// Sizes of the deltas since the last call: in the whole form, in the form of numbers, and of the latter
    /// compressed.
    fn delta_bytes(&mut self) -> [usize; 3] {
        let deltas = self.tables.take_deltas();
        let bytes = |deltas: &[Vec<u8>]| deltas.iter().map(Vec::len).sum();
        let numbers = deltas.number_json(START);
        let [whole, _] = deltas.into_json(START);
        let compressed =
            numbers.iter().map(|json| EventFrame::new(json.clone().into()).bytes(ContentCoding::Gzip).len());
        [bytes(&whole), bytes(&numbers), compressed.sum()]
    }
}

fn all() -> impl Iterator<Item = (u8, u8, u8)> {
    let deployments = |namespace| (0..DEPLOYMENTS).map(move |deployment| (namespace, deployment));
    let replicas = |(namespace, deployment)| (0..REPLICAS).map(move |replica| (namespace, deployment, replica));
    (0..NAMESPACES).flat_map(deployments).flat_map(replicas)
}

#[test]
fn thousand_replaced_pods_take_40_bytes_each() {
    let mut cluster = Cluster::new();
    cluster.set_pods(2, |_| "1.4.2".into());
    let [whole, numbers, _] = cluster.delta_bytes();
    assert!(numbers <= 40_000 && numbers * 10 <= whole, "{numbers} of {whole} bytes");
}

#[test]
fn thousand_relabelled_pods_take_40_bytes_each() {
    let mut cluster = Cluster::new();
    cluster.set_pods(1, |_| "1.5.0".into());
    let [whole, numbers, _] = cluster.delta_bytes();
    assert!(numbers <= 40_000 && numbers * 10 <= whole, "{numbers} of {whole} bytes");
}

/// The worst case: no two pods have the same identity, so that there is a row for each.
#[test]
fn thousand_new_identities_take_40_compressed_bytes_each() {
    let mut cluster = Cluster::new();
    cluster.set_pods(1, |place| format!("1.5.{place}"));
    let [whole, numbers, compressed] = cluster.delta_bytes();
    assert!(compressed <= 40_000, "{compressed} bytes, {numbers} without compression, {whole} in the whole form");
}

#[test]
fn delta_without_another_number_is_empty() {
    let mut cluster = Cluster::new();
    let ports = json!([{"port": 80}]);
    let spec = json!({"type": "LoadBalancer", "selector": {"app.kubernetes.io/name": "service-1"}, "ports": ports});
    cluster.set(WatchedKind::Service, &json!({"metadata": {"namespace": "shop-1", "name": "front"}, "spec": spec}));
    let deltas = cluster.tables.take_deltas();
    let number_deltas = deltas.number_json(START);
    let [delta] = &number_deltas[..] else { panic!("one delta") };
    let delta: Json = serde_json::from_slice(delta).unwrap();
    assert_eq!(delta, json!({"epoch": 7, "seq": 1, "upserts": {}, "removes": []}));
    let [records, _] = deltas.into_json(START);
    let records: Json = serde_json::from_slice(&records[0]).unwrap();
    assert_eq!(records["upserts"].as_array().unwrap().len(), usize::from(REPLICAS));
}

#[test]
fn number_delta_names_rows_before_addresses() {
    let mut cluster = Cluster::new();
    let pod = json!({
        "metadata": {"namespace": "shop-0", "name": "new", "uid": "new", "labels": {"app": "new"}},
        "spec": {"nodeName": "node-a", "containers": []},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.9.0.1"}, {"ip": "fd00::1"}]},
    });
    cluster.set(WatchedKind::Pod, &pod);
    let delta = cluster.tables.take_deltas().number_json(START);
    let text = std::str::from_utf8(&delta[0]).unwrap();
    let json: Json = serde_json::from_str(text).unwrap();
    let row = &json["ids"]["upserts"][0];
    assert_eq!(json["upserts"], json!({(row["num"].to_string()): ["10.9.0.1", "fd00::1"]}));
    assert_eq!(row["labels"], json!({"app": "new"}));
    assert_eq!(row.get("references"), None);
    assert!(text.find("\"ids\"").unwrap() < text.find("10.9.0.1").unwrap(), "{text}");
}

fn one(entry: Result<(IpNet, Json), MmdbReadError>) -> (IpAddr, Json) {
    let (network, record) = entry.unwrap();
    (network.addr(), record)
}

#[tokio::test]
async fn number_baseline_has_numbers_of_whole_baseline() {
    let cluster = Cluster::new();
    let baseline = cluster.tables.identities()(START);
    let whole = Database::open(baseline.encoded().await.unwrap().bytes.clone()).unwrap();
    let encoded = baseline.encoded_form(FeedForm::Numbers).await.unwrap().unwrap();
    let numbers = Database::open(encoded.bytes.clone()).unwrap();
    numbers.verify().unwrap();
    assert_eq!([whole.database_type(), numbers.database_type()], [DatabaseType::Identities, DatabaseType::Numbers]);
    assert_eq!(numbers.description(), whole.description());
    let all: BTreeMap<IpAddr, Json> = whole.entries().unwrap().map(one).collect();
    let wanted = all.into_iter().map(|(address, record)| (address, json!({"num": record["num"]})));
    let got: BTreeMap<IpAddr, Json> = numbers.entries().unwrap().map(one).collect();
    assert_eq!(got, wanted.collect());
    assert!(baseline.parts().all(|(what, _)| what != FeedForm::NUMBERS), "stores do not encode it");
}
