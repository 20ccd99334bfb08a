//! Reads what rules have counted, without changing it: flows in dynamic sets, and the counters of chains.

use std::collections::{BTreeMap, BTreeSet};

use nft::{Name, Table};

use crate::decode::{Counter, FlowRecord, decode_flow_records, decode_rule_counters};
use crate::message::{NFTABLES, family_number};
use crate::request::{Kernel, RequestError};

/// `NFT_MSG_GETRULE` and `NFT_MSG_GETSETELEM`
const GET_RULES: u16 = NFTABLES | 7;
const GET_ELEMENTS: u16 = NFTABLES | 13;

/// Listings of one table of flows for one answer. The packets that fill it move its elements about, and a flood does so
/// during every listing; each one more finds most of what the one before missed.
const LISTINGS: u32 = 4;

/// Attempts to list the rules of one chain between two commits of somebody else. A chain is a single datagram, so that
/// a commit rarely falls into one.
const ATTEMPTS: u32 = 10;

impl Kernel {
    /// The flows that rules have put into the dynamic set, in order, each with all its packets since it is there. Its
    /// key is source and destination address, protocol, and perhaps destination port. Empty if there is no such table
    /// or set.
    ///
    /// Every flow that is told is in the set, or was until now. One that is in it may be missing if others come and go
    /// while it is listed, or if the kernel moves them to a larger table (it finds the place to go on at by counting,
    /// `nft_rhash_walk`); it is told another time, with all its packets.
    pub fn flow_records(&mut self, table: &Table, set: &Name) -> Result<Vec<FlowRecord>, RequestError> {
        let mut found = BTreeMap::new();
        for _ in 0..LISTINGS {
            let (mut keys, mut twice) = (BTreeSet::new(), false);
            let listed = self.dump(
                GET_ELEMENTS,
                family_number(table.family),
                |w| w.put_text(1, table.name.as_str()).put_text(2, set.as_str()),
                |datagram| {
                    for record in decode_flow_records(datagram)? {
                        let FlowRecord { source, destination, protocol, port, .. } = record;
                        let key = (source, destination, protocol, port);
                        twice |= !keys.insert(key);
                        // The later count is the larger one, or that of a newer element.
                        found.insert(key, record);
                    }
                    Ok(())
                },
            );
            match listed {
                // What comes twice has most likely taken the place of something that does not come at all.
                Ok(()) if twice => {}
                Ok(()) => break,
                // Somebody committed meanwhile, if anything to other tables; what was told is true all the same.
                Err(RequestError::Interrupted) => {}
                Err(RequestError::Refused(e)) if e.raw_os_error() == Some(libc::ENOENT) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(found.into_values().collect())
    }

    /// What the counters of each chain's rules have counted together since the rules are there. A chain that is not
    /// there, or has no rule with a counter, is not in the answer.
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
