//! The table in which the CNI plugin isolates pods while there is no agent: its pods are taken over one by one.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cni::isolation::{SET4, SET6, TABLE};
use nfnetlink::{CommitError, Kernel};
use nft::{Datum, Element, Key, KeyType, Name, Operation, Set, Table};

/// Attempts in a row to which other programs' commits come first.
const MOST_RACES: usize = 16;

/// What became of the plugin's table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Release {
    /// Addresses that were taken out.
    pub(crate) released: usize,
    /// Addresses that are still in it, since nobody is known to have them.
    pub(crate) kept: usize,
}

/// Takes these addresses out of the plugin's table, which goes with the last one.
///
/// # Errors
/// If the table cannot be read or changed; then they stay isolated.
pub(crate) fn release(kernel: &mut Kernel, covered: &BTreeSet<IpAddr>) -> anyhow::Result<Release> {
    let table = Table::inet(Name::new(TABLE)?);
    for _ in 0..MOST_RACES {
        let Some(observed) = kernel.read(&table)? else { return Ok(Release::default()) };
        let held = [SET4, SET6].into_iter().flat_map(|set| observed.addresses(set));
        let (released, kept): (Vec<IpAddr>, Vec<IpAddr>) = held.partition(|a| covered.contains(a));
        let release = Release { released: released.len(), kept: kept.len() };
        if released.is_empty() && !kept.is_empty() {
            return Ok(release);
        }
        let operations = match kept.is_empty() {
            true => vec![Operation::DeleteTable { table: table.clone() }],
            false => released.iter().map(|address| removal(&table, *address)).collect::<Result<_, _>>()?,
        };
        match kernel.commit(&operations, observed.generation) {
            Ok(_) => return Ok(release),
            Err(CommitError::Moved) => {}
            Err(error) => return Err(error.into()),
        }
    }
    anyhow::bail!("other programs keep changing the ruleset; find them with 'nft monitor'")
}

fn removal(table: &Table, address: IpAddr) -> Result<Operation, nft::NameError> {
    let (name, key_type) = match address {
        IpAddr::V4(_) => (SET4, KeyType::Ipv4Addr),
        IpAddr::V6(_) => (SET6, KeyType::Ipv6Addr),
    };
    let elements = vec![(Key::One(Datum::from(address)), Element::default())];
    let set = Arc::new(Set::of(&[key_type]));
    Ok(Operation::DeleteElements { table: table.clone(), name: Name::new(name)?, set, elements })
}
