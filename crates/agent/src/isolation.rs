//! The tables in which the CNI plugin isolates pods while no agent answers: the agent adopts their pods one by one.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cni::isolation::{SET4, SET6, TABLE};
use nfnetlink::{CommitError, Kernel, Observed};
use nft::{Datum, Element, Key, KeyType, Name, NameError, Operation, Set, Table};
use policy::ClusterState;

/// Attempts in a row to which other programs' commits come first.
const MOST_RACES: usize = 16;

/// Addresses and interfaces of the pods that the agent's rules cover.
pub(crate) struct Covered {
    addresses: BTreeSet<IpAddr>,
    /// The host sides of pods' interfaces.
    interfaces: BTreeSet<String>,
}

impl Covered {
    pub(crate) fn of(state: &ClusterState) -> Covered {
        Covered {
            addresses: state.attachments().flat_map(|a| a.addresses.iter().copied()).collect(),
            interfaces: state.attachments().filter_map(|a| a.host_interface).map(|name| name.to_string()).collect(),
        }
    }
}

/// Result of releasing pods from the plugin's tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Release {
    /// Addresses that were removed.
    pub(crate) released: usize,
    /// Addresses that stay isolated, since the agent does not know their pods.
    pub(crate) kept: usize,
}

/// Removes covered addresses and interfaces from the plugin's tables, and the tables with the last address.
///
/// # Errors
/// If the tables cannot be read or changed; then the pods stay isolated.
pub(crate) fn release(kernel: &mut Kernel, covered: &Covered) -> anyhow::Result<Release> {
    let (inet, netdev) = (Table::inet(Name::new(TABLE)?), Table::netdev(Name::new(TABLE)?));
    for _ in 0..MOST_RACES {
        let (of_addresses, of_interfaces) = (kernel.read(&inet)?, kernel.read(&netdev)?);
        let generations: BTreeSet<u32> =
            [&of_addresses, &of_interfaces].into_iter().flatten().map(|observed| observed.generation).collect();
        let Some(generation) = generations.first() else { return Ok(Release::default()) };
        if generations.len() > 1 {
            continue;
        }
        let held = of_addresses.iter().flat_map(|table| [SET4, SET6].into_iter().flat_map(|set| table.addresses(set)));
        let (released, kept): (Vec<IpAddr>, Vec<IpAddr>) = held.partition(|a| covered.addresses.contains(a));
        let release = Release { released: released.len(), kept: kept.len() };
        let operations: Vec<Operation> = match kept.is_empty() {
            true => {
                let tables = [(&inet, &of_addresses), (&netdev, &of_interfaces)].into_iter();
                tables
                    .filter(|(_, observed)| observed.is_some())
                    .map(|(table, _)| Operation::DeleteTable { table: table.clone() })
                    .collect()
            }
            false => {
                let addresses = released.iter().map(|address| removal(&inet, *address));
                let chains = of_interfaces.iter().flat_map(|table| covered_chains(table, covered));
                let chains =
                    chains.map(|name| Ok(Operation::DeleteChain { table: netdev.clone(), chain: Name::new(name)? }));
                addresses.chain(chains).collect::<Result<_, NameError>>()?
            }
        };
        if operations.is_empty() {
            return Ok(release);
        }
        match kernel.commit(&operations, *generation) {
            Ok(_) => return Ok(release),
            Err(CommitError::Moved) => {}
            Err(error) => return Err(error.into()),
        }
    }
    anyhow::bail!("other programs keep changing the ruleset; find them with 'nft monitor'")
}

fn covered_chains<'a>(table: &'a Observed, covered: &'a Covered) -> impl Iterator<Item = &'a str> {
    let device = |chain: &'a nfnetlink::ObservedChain| chain.hook.as_ref().and_then(|hook| hook.device.as_deref());
    let is_covered = move |(_, chain): &(&String, &'a nfnetlink::ObservedChain)| {
        device(chain).is_some_and(|device| covered.interfaces.contains(device))
    };
    table.chains.iter().filter(is_covered).map(|(name, _)| name.as_str())
}

fn removal(table: &Table, address: IpAddr) -> Result<Operation, NameError> {
    let (name, key_type) = match address {
        IpAddr::V4(_) => (SET4, KeyType::Ipv4Addr),
        IpAddr::V6(_) => (SET6, KeyType::Ipv6Addr),
    };
    let elements = vec![(Key::One(Datum::from(address)), Element::default())];
    let set = Arc::new(Set::of(&[key_type]));
    Ok(Operation::DeleteElements { table: table.clone(), name: Name::new(name)?, set, elements })
}
