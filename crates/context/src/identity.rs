//! Publication of identities: the JSON of deltas, the table of identities, and the forms of the baseline.

pub(crate) mod difference;
pub(crate) mod number_form;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ::identity::{ReservedIdentity, Sid};
use bytes::Bytes;
use feed::Position;
use imbl::OrdMap;
use policy::remote::RemoteSet;
use serde::{Deserialize, Serialize, Serializer};

use crate::channel::{Baseline, BaselineForm, Encode, Unencodable};
use crate::directory::{Changes, Identity, Snapshot};
use crate::labels::bounded;
use crate::mmdb::{self, DatabaseType, Description, Value};
use crate::ranges::RangeRecords;
use crate::record::{Detail, Record};

/// The name of the feed.
pub(crate) const FEED: &str = "identity";

pub(crate) const MEDIA_TYPE: &str = "application/octet-stream";

/// Entry limit of a delta: some 200 KiB of JSON besides labels, which any relay accepts.
const ENTRIES_OF_DELTA: usize = 1_000;
/// Limit of all labels in a delta.
const LABEL_BYTES_OF_DELTA: usize = 256 << 10;

/// One delta.
#[derive(Debug, Default)]
pub(crate) struct IdentityDelta {
    upserts: Vec<Upsert>,
    removes: Vec<IpAddr>,
    id_upserts: Vec<IdUpsert>,
    id_removes: Vec<Sid>,
}

#[derive(Debug, Clone)]
struct Upsert {
    address: IpAddr,
    record: Arc<Record>,
    /// The number of the address is new or has changed.
    renumbered: bool,
}

#[derive(Debug, Clone)]
struct IdUpsert {
    sid: Sid,
    identity: Identity,
    /// The identity is new or has another number; otherwise only its number of references differs.
    renumbered: bool,
}

/// The audience of a delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeltaAudience {
    /// A subscriber of the provider: with rows of the table of identities.
    Follower,
    /// A relay: addresses only.
    Relay,
}

/// Splits changes into deltas of bounded size, ordered so that each step is a valid table: an identity is added before
/// its first address, and removed after its last.
pub(crate) fn chunks(changes: Changes) -> Vec<IdentityDelta> {
    let Changes { upserts, removes, id_upserts, id_removes, replaced } = changes;
    let mut chunks: Vec<IdentityDelta> = Vec::new();
    let (mut entries, mut bytes) = (0, 0);
    let mut put = |chunks: &mut Vec<IdentityDelta>, weight: usize, entry: &mut dyn FnMut(&mut IdentityDelta)| {
        if chunks.is_empty() || entries == ENTRIES_OF_DELTA || bytes + weight > LABEL_BYTES_OF_DELTA {
            chunks.push(IdentityDelta::default());
            (entries, bytes) = (0, 0);
        }
        (entries, bytes) = (entries + 1, bytes + weight);
        if let Some(chunk) = chunks.last_mut() {
            entry(chunk);
        }
    };
    for (sid, identity) in id_upserts {
        let weight = weight(bounded(&identity.labels).chain(bounded(&identity.namespace_labels)));
        let renumbered = replaced.ids.get(&sid).is_none_or(|old| old.num != identity.num);
        let upsert = IdUpsert { sid, identity, renumbered };
        put(&mut chunks, weight, &mut |chunk| chunk.id_upserts.push(upsert.clone()));
    }
    for (address, record) in upserts {
        let weight = weight(record.labels());
        let renumbered = replaced.records.get(&address).is_none_or(|old| old.num != record.num);
        let upsert = Upsert { address, record, renumbered };
        put(&mut chunks, weight, &mut |chunk| chunk.upserts.push(upsert.clone()));
    }
    for address in removes {
        put(&mut chunks, 0, &mut |chunk| chunk.removes.push(address));
    }
    for sid in id_removes {
        put(&mut chunks, 0, &mut |chunk| chunk.id_removes.push(sid));
    }
    chunks
}

fn weight<'a>(labels: impl Iterator<Item = (&'a Arc<str>, &'a Arc<str>)>) -> usize {
    labels.map(|(key, value)| key.len() + value.len()).sum()
}

/// The JSON of a delta.
#[derive(Serialize)]
struct Delta<'a> {
    #[serde(flatten)]
    position: Position,
    upserts: Vec<UpsertBody<'a>>,
    removes: &'a [IpAddr],
    #[serde(skip_serializing_if = "Option::is_none")]
    ids: Option<Rows>,
}

#[derive(Serialize)]
struct UpsertBody<'a> {
    ip: IpAddr,
    #[serde(flatten)]
    record: RecordFields<'a>,
}

impl<'a> From<&'a Upsert> for UpsertBody<'a> {
    fn from(upsert: &'a Upsert) -> UpsertBody<'a> {
        UpsertBody { ip: upsert.address, record: (&*upsert.record).into() }
    }
}

/// A record as consumers read it; fields and names are those of the database.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordFields<'a> {
    pub(crate) workload: Cow<'a, str>,
    pub(crate) namespace: Cow<'a, str>,
    pub(crate) app: Cow<'a, str>,
    pub(crate) internet_exposed: bool,
    pub(crate) control_plane: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    pub(crate) role: Cow<'a, str>,
    pub(crate) service: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sid: Option<Sid>,
    pub(crate) num: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<Cow<'a, str>>,
    /// The cluster of a pod of another cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<Cow<'a, str>>,
    /// For a node: workloads that share its addresses, as `namespace/workload`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) host_workloads: Vec<Cow<'a, str>>,
}

impl RecordFields<'_> {
    /// The remote set of a pod of another cluster: the first set with the address.
    pub(crate) fn remote_set(&self) -> Option<RemoteSet> {
        self.cluster.as_ref().map(|cluster| RemoteSet::new(cluster, &self.namespace, &self.workload))
    }

    /// True for a pod of this cluster that is not on the host network: declared edges name it `namespace/workload`. Any
    /// other address is not covered by that name, even if its record has a workload.
    pub(crate) fn is_workload(&self) -> bool {
        match self.state.as_deref() {
            None => !self.namespace.is_empty(),
            Some(state) => state == ReservedIdentity::Init.text() || state == ReservedIdentity::Unmanaged.text(),
        }
    }
}

impl<'a> From<&'a Record> for RecordFields<'a> {
    fn from(record: &'a Record) -> RecordFields<'a> {
        let detail = record.detail.as_deref();
        let part = |part: fn(&Detail) -> &Option<Arc<str>>| {
            detail.and_then(|detail| part(detail).as_deref()).map(Cow::Borrowed)
        };
        RecordFields {
            workload: Cow::Borrowed(&record.workload),
            namespace: Cow::Borrowed(&record.namespace),
            app: Cow::Borrowed(&record.app),
            internet_exposed: record.internet_exposed,
            control_plane: record.control_plane,
            labels: record.labels().map(|(key, value)| (Cow::Borrowed(&**key), Cow::Borrowed(&**value))).collect(),
            role: Cow::Borrowed(record.role().text()),
            service: record.service(),
            sid: record.sid,
            num: record.num,
            state: record.state.map(|state| Cow::Borrowed(state.text())),
            cluster: part(|detail| &detail.cluster),
            pod: part(|detail| &detail.pod),
            node: part(|detail| &detail.node),
            host_workloads: detail
                .iter()
                .flat_map(|detail| &detail.host_workloads)
                .map(|workload| Cow::Borrowed(&**workload))
                .collect(),
        }
    }
}

/// A record as the database stores it.
fn value(record: &Record) -> Value<'_> {
    let mut fields = vec![
        ("workload", Value::text(&*record.workload)),
        ("namespace", Value::text(&*record.namespace)),
        ("app", Value::text(&*record.app)),
        ("internet_exposed", Value::Bool(record.internet_exposed)),
        ("control_plane", Value::Bool(record.control_plane)),
    ];
    let labels: Vec<_> = record.labels().map(|(key, value)| (&**key, Value::text(&**value))).collect();
    if !labels.is_empty() {
        fields.push(("labels", Value::Map(labels)));
    }
    fields.extend([("role", Value::text(record.role().text())), ("service", Value::text(record.service()))]);
    fields.extend(record.sid.map(|sid| ("sid", Value::text(sid.to_string()))));
    fields.push(("num", Value::Uint32(record.num)));
    fields.extend(record.state.map(|state| ("state", Value::text(state.text()))));
    if let Some(detail) = record.detail.as_deref() {
        let Detail { pod, node, cluster, host_workloads } = detail;
        let named = [("cluster", cluster), ("pod", pod), ("node", node)].into_iter();
        fields.extend(named.filter_map(|(name, part)| Some((name, Value::text(part.as_deref()?)))));
        if !host_workloads.is_empty() {
            let names = host_workloads.iter().map(|name| Value::text(&**name)).collect();
            fields.push(("host_workloads", Value::Array(names)));
        }
    }
    Value::Map(fields)
}

#[derive(Serialize)]
struct Rows {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    upserts: Vec<Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    removes: Vec<Sid>,
}

/// A row of the table of identities.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) sid: Sid,
    pub(crate) num: u32,
    pub(crate) namespace: String,
    /// Identity labels of the pods.
    pub(crate) labels: BTreeMap<String, String>,
    /// Identity labels of the namespace.
    pub(crate) namespace_labels: BTreeMap<String, String>,
    /// Number of addresses with this identity.
    pub(crate) references: u32,
}

impl Row {
    fn of(sid: Sid, identity: &Identity) -> Row {
        let owned = |labels| bounded(labels).map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Row {
            sid,
            num: identity.num,
            namespace: identity.namespace.to_string(),
            labels: owned(&identity.labels),
            namespace_labels: owned(&identity.namespace_labels),
            references: identity.references,
        }
    }
}

/// The table of identities, published with a baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Identities {
    #[serde(flatten)]
    pub(crate) position: Position,
    pub(crate) version: String,
    pub(crate) identities: Vec<Row>,
    /// The ledger: identities whose number is not their home.
    pub(crate) exceptions: Vec<Exception>,
    /// Identities that are not computed from labels. Tables of earlier releases have none.
    #[serde(default)]
    pub(crate) reserved: Vec<ReservedRow>,
}

/// A reserved identity, whether addresses have it or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReservedRow {
    pub(crate) num: u32,
    pub(crate) state: ReservedIdentity,
}

impl ReservedRow {
    fn all() -> Vec<ReservedRow> {
        ReservedIdentity::ALL.map(|state| ReservedRow { num: state.num(), state }).into()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Exception {
    pub(crate) sid: Sid,
    /// `None` if there are more identities than numbers.
    pub(crate) num: Option<u32>,
}

impl IdentityDelta {
    pub(crate) fn json(&self, position: Position, reader: DeltaAudience) -> Vec<u8> {
        let has_rows = !self.id_upserts.is_empty() || !self.id_removes.is_empty();
        let rows = || Rows {
            upserts: self.id_upserts.iter().map(|row| Row::of(row.sid, &row.identity)).collect(),
            removes: self.id_removes.clone(),
        };
        let delta = Delta {
            position,
            upserts: self.upserts.iter().map(UpsertBody::from).collect(),
            removes: &self.removes,
            ids: (reader == DeltaAudience::Follower && has_rows).then(rows),
        };
        match serde_json::to_vec(&delta) {
            Ok(json) => json,
            Err(e) => unreachable!("strings and numbers are serializable: {e}"),
        }
    }
}

/// The empty delta.
pub(crate) fn nothing(at: Position) -> Vec<u8> {
    IdentityDelta::default().json(at, DeltaAudience::Relay)
}

/// The version of a table.
fn version(snapshot: &Snapshot, ranges: &RangeRecords) -> String {
    let mut sum = snapshot.sum;
    if let Some(digest) = ranges.digest() {
        sum.add(digest);
    }
    format!("id-{:016x}", sum.version())
}

/// The baseline of a table at the position, with the records of ranges.
pub(crate) fn baseline(
    snapshot: Snapshot,
    exceptions: Vec<Exception>,
    ranges: Arc<RangeRecords>,
    position: Position,
) -> Baseline {
    let (version, count) = (version(&snapshot, &ranges), snapshot.table.len());
    let Snapshot { table, ids, .. } = snapshot;
    let numbers = number_form::part(table.clone(), ranges.clone());
    let database: Encode = Box::new(move |position, version| {
        let description = Description { position, version: version.to_owned() };
        let entries = table.iter().map(|(address, record)| (address, &**record));
        let database = DatabaseType::Identities;
        let written = mmdb::write_with_networks(database, entries, ranges.iter(), &description, value);
        written.map(Bytes::from).map_err(|e| Unencodable(e.to_string()))
    });
    let identities: Encode = Box::new(move |position, version| {
        let reserved = ReservedRow::all();
        let written = IdentityRows { position, version, identities: Ids(&ids), exceptions: &exceptions, reserved };
        serde_json::to_vec(&written).map(Bytes::from).map_err(|e| Unencodable(e.to_string()))
    });
    let parts = vec![
        BaselineForm { what: "baseline", extension: "mmdb", media_type: MEDIA_TYPE, encode: database },
        BaselineForm { what: "ids", extension: "ids.json", media_type: "application/json", encode: identities },
    ];
    Baseline::with_forms(version, position, count, parts, vec![numbers])
}

/// [`Identities`], serialized row by row.
#[derive(Serialize)]
struct IdentityRows<'a> {
    #[serde(flatten)]
    position: Position,
    version: &'a str,
    identities: Ids<'a>,
    exceptions: &'a [Exception],
    reserved: Vec<ReservedRow>,
}

struct Ids<'a>(&'a OrdMap<Sid, Identity>);

impl Serialize for Ids<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|(sid, identity)| Row::of(*sid, identity)))
    }
}
