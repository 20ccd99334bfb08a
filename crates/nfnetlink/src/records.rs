//! Reads counters without resetting them: those of flows in dynamic sets, and those of chains.

use std::collections::{BTreeMap, BTreeSet};

use nft::{Name, Table};

use crate::decode::{ConntrackRecord, Counter, decode_flow_records, decode_rule_counters};
use crate::message::{NFTABLES, family_number};
use crate::request::{Kernel, RequestError};

/// `NFT_MSG_GETRULE` and `NFT_MSG_GETSETELEM`
const GET_RULES: u16 = NFTABLES | 7;
const GET_ELEMENTS: u16 = NFTABLES | 13;

/// Dumps of one dynamic set per read. Its inserts resize the hash table, under a flood during every dump; each further
/// dump returns most of the elements that the previous one omitted.
const LISTINGS: u32 = 4;

/// Attempts to dump the rules of one chain between two foreign commits. A chain fits one datagram, so that a commit
/// rarely interrupts a dump.
const ATTEMPTS: u32 = 10;

impl Kernel {
    /// The flows that rules have added to the dynamic set, sorted, each with the count since its element was added. The
    /// key is source and destination address, protocol, and optionally destination port. Empty if the table or set does
    /// not exist.
    ///
    /// Every returned flow is in the set, or was until recently. A flow may be omitted if others are added or expire
    /// during the dump, or if the kernel resizes the hash table (`nft_rhash_walk` resumes by count); a later read
    /// returns it with its full count.
    pub fn flow_records(&mut self, table: &Table, set: &Name) -> Result<Vec<ConntrackRecord>, RequestError> {
        let mut found = BTreeMap::new();
        for _ in 0..LISTINGS {
            let (mut keys, mut twice) = (BTreeSet::new(), false);
            let listed = self.dump(
                GET_ELEMENTS,
                family_number(table.family),
                |w| w.put_text(1, table.name.as_str()).put_text(2, set.as_str()),
                |datagram| {
                    for record in decode_flow_records(datagram)? {
                        let ConntrackRecord { source, destination, protocol, port, .. } = record;
                        let key = (source, destination, protocol, port);
                        twice |= !keys.insert(key);
                        // The later count is the larger one, or that of a newer element.
                        found.insert(key, record);
                    }
                    Ok(())
                },
            );
            match listed {
                // A duplicate most likely means that another element was omitted.
                Ok(()) if twice => {}
                Ok(()) => break,
                // Another process committed, perhaps to other tables; the records received are valid nevertheless.
                Err(RequestError::Interrupted) => {}
                Err(RequestError::Refused(e)) if e.raw_os_error() == Some(libc::ENOENT) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(found.into_values().collect())
    }

    /// The sum of the counters of each chain's rules since the rules were added. Chains that do not exist, or have no
    /// rule with a counter, are omitted.
    pub fn chain_counters(&mut self, table: &Table, chains: &[Name]) -> Result<BTreeMap<Name, Counter>, RequestError> {
        let mut found = BTreeMap::new();
        for chain in chains {
            if let Some(counter) = self.chain_counter(table, chain)? {
                found.insert(chain.clone(), counter);
            }
        }
        Ok(found)
    }

    fn chain_counter(&mut self, table: &Table, chain: &Name) -> Result<Option<Counter>, RequestError> {
        let (table_name, chain_name) = (table.name.as_str(), chain.as_str());
        for _ in 0..ATTEMPTS {
            let mut sum: Option<Counter> = None;
            let listed = self.dump(
                GET_RULES,
                family_number(table.family),
                |w| w.put_text(1, table_name).put_text(2, chain_name),
                |datagram| {
                    for record in decode_rule_counters(datagram)? {
                        if record.table == table_name && record.chain == chain_name {
                            sum = Some(sum.map_or(record.counter, |sum| sum.plus(record.counter)));
                        }
                    }
                    Ok(())
                },
            );
            match listed {
                Ok(()) => return Ok(sum),
                Err(RequestError::Interrupted) => {}
                Err(RequestError::Refused(e)) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        Err(RequestError::Interrupted)
    }
}
