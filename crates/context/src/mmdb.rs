//! MaxMind DB 2.0 (<https://maxmind.github.io/MaxMind-DB/>): a database of addresses as a file that any stock reader
//! opens. The module does not depend on the contents of records.
//!
//! A table has one entry per address, /32 or /128. It may also have records of networks, for addresses without an
//! entry; without them only entries are found. IPv4 is at ::/96, as readers expect. The aliases of geographic databases
//! (::ffff:0:0/96, 2002::/16) are omitted: IPv4 lookups do not need them, listing a table would return each entry
//! several times, and addresses that belong to no pod would be found. A mapped address from a socket has to be
//! converted to IPv4 first, as in [`read::Database`].

mod data;
pub mod read;
mod tree;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::str::FromStr;

use feed::Position;
use ipnet::IpNet;

pub use self::value::Value;
use crate::epoch::begun_seconds;
use data::{Data, control, text, unsigned};
use tree::{Leaf, Tree};

/// Contents of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseType {
    /// Identity records.
    Identities,
    /// Identity numbers only.
    Numbers,
}

impl DatabaseType {
    pub const ALL: [DatabaseType; 2] = [DatabaseType::Identities, DatabaseType::Numbers];

    /// `database_type` in the metadata.
    pub fn text(self) -> &'static str {
        match self {
            DatabaseType::Identities => "Workload-Identity",
            DatabaseType::Numbers => "Workload-Identity-Numbers",
        }
    }
}

/// Bits of a tree record, which points to another node or to data.
const RECORD_BITS: u32 = 28;
const LANGUAGE: &str = "en";
/// Separator of the tree and the data section.
const SEPARATOR: [u8; 16] = [0; 16];
const METADATA_MARKER: &[u8] = b"\xab\xcd\xefMaxMind.com";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MmdbWriteError {
    #[error(
        "too many addresses or records: {nodes} nodes and {data} bytes of data exceed the 28-bit offsets of the format"
    )]
    TooLarge { nodes: u64, data: u64 },
    #[error("a string of {bytes} bytes exceeds the limit of the format")]
    TextTooLong { bytes: usize },
}

/// The description in the metadata: `Ringfence workload identities; epoch E, seq S, version V`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Position of the last delta that the table contains.
    pub position: Position,
    /// Version of the content.
    pub version: String,
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { epoch, seq } = self.position;
        write!(f, "Ringfence workload identities; epoch {epoch}, seq {seq}, version {}", self.version)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid description {0:?}: expected the epoch and sequence number of the table")]
pub struct DescriptionError(String);

impl FromStr for Description {
    type Err = DescriptionError;

    fn from_str(text: &str) -> Result<Description, DescriptionError> {
        let parts = || {
            let (epoch, rest) = text.strip_prefix("Ringfence workload identities; epoch ")?.split_once(", seq ")?;
            let (seq, version) = rest.split_once(", version ")?;
            Some(Description { position: format!("{epoch}:{seq}").parse().ok()?, version: version.to_owned() })
        };
        parts().ok_or_else(|| DescriptionError(text.to_owned()))
    }
}

/// Encodes the table of identities. Equal entries give equal bytes; equal records are written once.
///
/// Entries sorted by address, IPv4 first, are cheapest. An IPv6 address within ::/96 is the same as its IPv4 address;
/// if an address has several entries, the first applies.
///
/// # Errors
/// If the table is too large for the format.
pub fn write<'t, R: Eq + Hash + 't>(
    entries: impl Iterator<Item = (IpAddr, &'t R)>,
    description: &Description,
    encode: impl Fn(&'t R) -> Value<'t>,
) -> Result<Vec<u8>, MmdbWriteError> {
    write_as(DatabaseType::Identities, entries, description, encode)
}

/// As [`write()`], with another type in the metadata.
///
/// # Errors
/// If the table is too large for the format.
pub fn write_as<'t, R: Eq + Hash + 't>(
    database_type: DatabaseType,
    entries: impl Iterator<Item = (IpAddr, &'t R)>,
    description: &Description,
    encode: impl Fn(&'t R) -> Value<'t>,
) -> Result<Vec<u8>, MmdbWriteError> {
    write_with_networks(database_type, entries, std::iter::empty(), description, encode)
}

/// As [`write_as()`], with records for addresses that have no entry: the longest network with the address applies. A
/// network without a record is an exception within a wider one.
///
/// Networks of one family do not affect the other: `::/0` does not contain IPv4, neither at ::/96 nor mapped.
///
/// # Errors
/// If the table is too large for the format.
pub fn write_with_networks<'t, R: Eq + Hash + 't>(
    database_type: DatabaseType,
    entries: impl Iterator<Item = (IpAddr, &'t R)>,
    networks: impl Iterator<Item = (IpNet, Option<&'t R>)>,
    description: &Description,
    encode: impl Fn(&'t R) -> Value<'t>,
) -> Result<Vec<u8>, MmdbWriteError> {
    let mut data = Data::new();
    let mut leaves: Vec<Leaf> = vec![];
    for (address, record) in entries {
        leaves.push(Leaf::of_address(bits(address), data.record(record, &encode)?));
    }
    let mut records = BTreeMap::new();
    for (network, record) in networks {
        let leaf = Leaf { first: bits(network.network()), length: prefix_length(network), data: None };
        records.extend(record.map(|record| (leaf.place(), record)));
        leaves.push(leaf);
    }
    if !records.is_empty() {
        leaves.extend(IPV4_IN_IPV6.map(|first| Leaf { first, length: FAMILY_LENGTH, data: None }));
    }
    // A stable sort: the first of equal leaves applies.
    if !leaves.is_sorted_by_key(Leaf::place) {
        leaves.sort_by_key(Leaf::place);
    }
    leaves.dedup_by_key(|leaf| leaf.place());
    for (place, record) in records {
        let Ok(i) = leaves.binary_search_by_key(&place, Leaf::place) else { continue };
        // Readers that verify a file reject unreferenced records.
        if leaves[i].data.is_none() && tree::is_reached(&leaves, i) {
            leaves[i].data = Some(data.record(record, &encode)?);
        }
    }

    let data = data.into_bytes();
    let tree = Tree::of(&leaves, data.len())?;
    let metadata = metadata(tree.nodes, database_type, description)?;
    let mut file = tree.bytes;
    file.reserve_exact(SEPARATOR.len() + data.len() + METADATA_MARKER.len() + metadata.len());
    file.extend_from_slice(&SEPARATOR);
    file.extend_from_slice(&data);
    file.extend_from_slice(METADATA_MARKER);
    file.extend_from_slice(&metadata);
    Ok(file)
}

/// Position of an address in the tree; the most significant bit is the first.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The IPv6 networks of IPv4 addresses, plain and mapped.
const IPV4_IN_IPV6: [u128; 2] = [0, 0xffff << 32];
const FAMILY_LENGTH: u8 = 96;

/// Prefix length of the network in the tree.
fn prefix_length(network: IpNet) -> u8 {
    match network {
        IpNet::V4(network) => FAMILY_LENGTH + network.prefix_len(),
        IpNet::V6(network) => network.prefix_len(),
    }
}

fn metadata(nodes: u32, database_type: DatabaseType, description: &Description) -> Result<Vec<u8>, MmdbWriteError> {
    let mut out = vec![];
    control(&mut out, data::MAP, 9);
    text(&mut out, "binary_format_major_version")?;
    unsigned(&mut out, data::UINT16, 2);
    text(&mut out, "binary_format_minor_version")?;
    unsigned(&mut out, data::UINT16, 0);
    text(&mut out, "build_epoch")?;
    unsigned(&mut out, data::UINT64, begun_seconds(description.position.epoch));
    text(&mut out, "database_type")?;
    text(&mut out, database_type.text())?;
    text(&mut out, "description")?;
    control(&mut out, data::MAP, 1);
    text(&mut out, LANGUAGE)?;
    text(&mut out, &description.to_string())?;
    text(&mut out, "ip_version")?;
    unsigned(&mut out, data::UINT16, 6);
    text(&mut out, "languages")?;
    control(&mut out, data::ARRAY, 1);
    text(&mut out, LANGUAGE)?;
    text(&mut out, "node_count")?;
    unsigned(&mut out, data::UINT32, u64::from(nodes));
    text(&mut out, "record_size")?;
    unsigned(&mut out, data::UINT16, u64::from(RECORD_BITS));
    Ok(out)
}

#[cfg(test)]
mod tests;
