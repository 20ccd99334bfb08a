//! The tables in which the CNI plugin isolates pods while no agent answers: the agent adopts their pods individually.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cni::isolation::{SET4, SET6, TABLE, port_chains};
use nfnetlink::{CommitError, Kernel, TableSnapshot};
use nft::{Datum, Key, KeyType, Name, NameError, Set, Table};
use policy::{Attachment, ClusterState};

use crate::earlier_flows::delete_earlier_flows;
use crate::transaction::Transaction;

/// Maximum number of attempts in a row that are lost to foreign commits.
const MOST_RACES: usize = 16;

/// Addresses and interfaces of the pods that the agent's rules cover.
pub(crate) struct CoveredPods {
    addresses: BTreeSet<IpAddr>,
    /// Host-side interfaces of pods.
    interfaces: BTreeSet<String>,
}

impl CoveredPods {
    pub(crate) fn of(state: &ClusterState) -> CoveredPods {
        CoveredPods {
            addresses: state.attachments().flat_map(|a| all_addresses(a)).collect(),
            interfaces: state.attachments().filter_map(|a| a.host_interface).map(|name| name.to_string()).collect(),
        }
    }
}

/// Includes the link-local addresses, which the plugin isolates too.
pub(crate) fn all_addresses(attachment: &Attachment) -> impl Iterator<Item = IpAddr> {
    attachment.addresses.iter().copied().chain(attachment.link_local.iter().copied().map(IpAddr::V6))
}

/// Result of releasing pods from the plugin's tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReleaseResult {
    /// Addresses that were removed.
    pub(crate) released: usize,
    /// Addresses that stay isolated, since the agent does not know their pods.
    pub(crate) kept: usize,
}

/// Removes covered addresses and interfaces from the plugin's tables, and the tables with the last address.
///
/// # Errors
/// If the tables cannot be read or changed; then the pods stay isolated.
pub(crate) fn release(kernel: &mut Kernel, covered: &CoveredPods) -> anyhow::Result<ReleaseResult> {
    let inet = Table::inet(Name::new(TABLE)?);
    let of_ports = [inet.clone(), Table::netdev(Name::new(TABLE)?), Table::bridge(Name::new(TABLE)?)];
    for _ in 0..MOST_RACES {
        let mut tables = Vec::new();
        for table in &of_ports {
            if let Some(observed) = kernel.read(table)? {
                tables.push((table, observed));
            }
        }
        let generations: BTreeSet<u32> = tables.iter().map(|(_, observed)| observed.generation).collect();
        let Some(generation) = generations.first() else { return Ok(ReleaseResult::default()) };
        if generations.len() > 1 {
            continue;
        }
        let of_addresses = tables.iter().find(|(table, _)| **table == inet);
        let addresses = |(_, observed): &(_, TableSnapshot)| [SET4, SET6].map(|set| observed.addresses(set));
        let held = of_addresses.into_iter().flat_map(addresses).flatten();
        let (released, kept): (Vec<IpAddr>, Vec<IpAddr>) = held.partition(|a| covered.addresses.contains(a));
        let release = ReleaseResult { released: released.len(), kept: kept.len() };
        let mut transaction = Transaction::default();
        if kept.is_empty() {
            tables.iter().for_each(|(table, _)| transaction.append(Transaction::deleting((*table).clone())));
        } else {
            for address in &released {
                delete_address(&mut transaction, &inet, *address)?;
            }
            for (table, observed) in &tables {
                for name in covered_chains(observed, covered) {
                    transaction.delete_chain((*table).clone(), Name::new(name)?);
                }
            }
        }
        if transaction.is_empty() {
            return Ok(release);
        }
        // Isolated pods have no flows: these are of earlier pods with their addresses.
        delete_earlier_flows(&released.into_iter().collect())?;
        match transaction.commit(kernel, *generation) {
            Ok(_) => return Ok(release),
            Err(CommitError::Moved) => {}
            Err(error) => return Err(error.into()),
        }
    }
    anyhow::bail!("other programs keep changing the ruleset; find them with 'nft monitor'")
}

/// The chains of covered interfaces: a netdev chain has the interface as its device, others contain its name.
fn covered_chains<'a>(table: &'a TableSnapshot, covered: &'a CoveredPods) -> impl Iterator<Item = &'a str> {
    let named: BTreeSet<String> = covered.interfaces.iter().flat_map(|interface| port_chains(interface)).collect();
    let is_covered = move |(name, chain): &(&'a String, &'a nfnetlink::ObservedChain)| match chain
        .hook
        .as_ref()
        .and_then(|hook| hook.device.as_deref())
    {
        Some(device) => covered.interfaces.contains(device),
        None => named.contains(*name),
    };
    table.chains.iter().filter(is_covered).map(|(name, _)| name.as_str())
}

fn delete_address(transaction: &mut Transaction, table: &Table, address: IpAddr) -> Result<(), NameError> {
    let (name, key_type) = match address {
        IpAddr::V4(_) => (SET4, KeyType::Ipv4Addr),
        IpAddr::V6(_) => (SET6, KeyType::Ipv6Addr),
    };
    let set = Arc::new(Set::of(&[key_type]));
    transaction.delete_element(table.clone(), Name::new(name)?, set, Key::One(Datum::from(address)));
    Ok(())
}
