//! The identity feed in the form of numbers, for data planes: an address has only a number. Positions and versions are
//! those of the whole form, so a delta that changes no number is empty here, and is still sent.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ::identity::Sid;
use bytes::Bytes;
use feed::Position;
use serde::Serialize;

use super::{IdentityDelta, MEDIA_TYPE, Row};
use crate::channel::{BaselineForm, Encode, FeedForm, Unencodable};
use crate::directory::IdentityTable;
use crate::mmdb::{self, DatabaseType, Description, Value};
use crate::ranges::RangeRecords;
use crate::record::Record;

/// The JSON of a delta. Rows precede the addresses with their numbers.
#[derive(Serialize)]
struct NumberDelta<'a> {
    #[serde(flatten)]
    position: Position,
    #[serde(skip_serializing_if = "Option::is_none")]
    ids: Option<NumberRows<'a>>,
    /// Addresses by number, so that the replicas of a workload share one.
    upserts: BTreeMap<u32, Vec<IpAddr>>,
    removes: &'a [IpAddr],
}

#[derive(Serialize)]
struct NumberRows<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    upserts: Vec<NumberRow>,
    #[serde(skip_serializing_if = "<[Sid]>::is_empty")]
    removes: &'a [Sid],
}

/// A row of the table of identities without its number of references, which changes with every pod.
#[derive(Serialize)]
struct NumberRow {
    sid: Sid,
    num: u32,
    namespace: String,
    labels: BTreeMap<String, String>,
    namespace_labels: BTreeMap<String, String>,
}

impl From<Row> for NumberRow {
    fn from(row: Row) -> NumberRow {
        let Row { sid, num, namespace, labels, namespace_labels, references: _ } = row;
        NumberRow { sid, num, namespace, labels, namespace_labels }
    }
}

impl IdentityDelta {
    /// The delta in the form of numbers.
    pub(crate) fn number_json(&self, position: Position) -> Vec<u8> {
        let rows = self.id_upserts.iter().filter(|row| row.renumbered);
        let rows: Vec<NumberRow> = rows.map(|row| Row::of(row.sid, &row.identity).into()).collect();
        let has_rows = !rows.is_empty() || !self.id_removes.is_empty();
        let mut upserts: BTreeMap<u32, Vec<IpAddr>> = BTreeMap::new();
        for upsert in self.upserts.iter().filter(|upsert| upsert.renumbered) {
            upserts.entry(upsert.record.num).or_default().push(upsert.address);
        }
        let ids = has_rows.then_some(NumberRows { upserts: rows, removes: &self.id_removes });
        match serde_json::to_vec(&NumberDelta { position, ids, upserts, removes: &self.removes }) {
            Ok(json) => json,
            Err(e) => unreachable!("strings and numbers are serializable: {e}"),
        }
    }
}

/// The empty delta.
pub(crate) fn nothing(at: Position) -> Vec<u8> {
    IdentityDelta::default().number_json(at)
}

/// The baseline: a database whose records have the field `num` alone.
pub(super) fn part(table: IdentityTable, ranges: Arc<RangeRecords>) -> BaselineForm {
    let encode: Encode = Box::new(move |position, version| {
        let description = Description { position, version: version.to_owned() };
        let entries = table.iter().map(|(address, record)| (address, number(record)));
        let value = |num: &u32| Value::Map(vec![("num", Value::Uint32(*num))]);
        let networks = ranges.iter().map(|(range, record)| (range, record.map(number)));
        let database = mmdb::write_with_networks(DatabaseType::Numbers, entries, networks, &description, value);
        database.map(Bytes::from).map_err(|e| Unencodable(e.to_string()))
    });
    BaselineForm { what: FeedForm::NUMBERS, extension: "numbers.mmdb", media_type: MEDIA_TYPE, encode }
}

fn number(record: &Record) -> &u32 {
    &record.num
}

#[cfg(test)]
pub(crate) mod tests;
