//! Reads one table back as a snapshot of one generation.

use nft::{Name, Table};

use crate::decode::{decode_chains, decode_elements, decode_rules, decode_sets, decode_tables};
use crate::message::{NFTABLES, Writer, family_number};
use crate::request::{Kernel, RequestError};
use crate::table_snapshot::{RawElement, TableSnapshot};

// Message types of the requests (`NFT_MSG_GET*`).
const GET_TABLE: u16 = NFTABLES | 1;
const GET_CHAINS: u16 = NFTABLES | 4;
const GET_RULES: u16 = NFTABLES | 7;
const GET_SETS: u16 = NFTABLES | 10;
const GET_ELEMENTS: u16 = NFTABLES | 13;

/// Attempts to read a table between two foreign commits. kube-proxy commits about once a second at its busiest, and
/// reading a large table takes a few hundred milliseconds, so this many failures mean an abnormal rate of commits.
const ATTEMPTS: u32 = 10;

/// Attempts to dump one set. A large hash set keeps resizing its table for some milliseconds after a commit, in a few
/// steps each of which can corrupt one dump.
const LISTINGS: u32 = 20;

/// Why a table could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TableReadError {
    /// The socket failed, or the kernel refused a dump.
    #[error("cannot read the table: {0}")]
    Request(#[from] RequestError),
    /// Other processes commit faster than the table is read.
    #[error("the ruleset changed during each of {ATTEMPTS} attempts to read the table")]
    Restless,
    /// Dumps of the named hash set had gaps or duplicates.
    #[error("the kernel resized set {0} during each of {LISTINGS} attempts to dump it")]
    Unordered(String),
}

impl Kernel {
    /// Whether the table contains the chain.
    pub fn has_chain(&mut self, table: &Table, chain: &Name) -> Result<bool, RequestError> {
        let sequence = self.reserve_sequences(1);
        let request = Writer::new(GET_CHAINS, 0, sequence, family_number(table.family));
        let request = request.put_text(1, table.name.as_str()).put_text(3, chain.as_str()).finish();
        match self.request(&request, sequence, |_| Ok(())) {
            Ok(()) => Ok(true),
            Err(RequestError::Refused(e)) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Reads a complete snapshot of the table at one generation; `None` if the table does not exist.
    pub fn read(&mut self, table: &Table) -> Result<Option<TableSnapshot>, TableReadError> {
        for _ in 0..ATTEMPTS {
            let before = self.generation()?;
            let observed = match self.read_once(table, before) {
                Ok(observed) => observed,
                Err(TableReadError::Request(RequestError::Interrupted)) => continue,
                // An object was removed between two of the requests.
                Err(TableReadError::Request(RequestError::Refused(e))) if e.raw_os_error() == Some(libc::ENOENT) => {
                    continue;
                }
                Err(e) => return Err(e),
            };
            if self.generation()? == before {
                return Ok(observed);
            }
        }
        Err(TableReadError::Restless)
    }

    fn read_once(&mut self, table: &Table, generation: u32) -> Result<Option<TableSnapshot>, TableReadError> {
        let Some(mut observed) = self.read_table(table)? else { return Ok(None) };
        observed.generation = generation;
        let (family, name) = (family_number(table.family), table.name.as_str());
        self.dump(
            GET_CHAINS,
            family,
            |w| w,
            |datagram| {
                for record in decode_chains(datagram)?.into_iter().filter(|r| r.table == name) {
                    observed.chains.insert(record.name, record.chain);
                }
                Ok(())
            },
        )?;
        let of_table = |w: Writer| w.put_text(1, name);
        self.dump(GET_RULES, family, of_table, |datagram| {
            for record in decode_rules(datagram)?.into_iter().filter(|r| r.table == name) {
                observed.chains.entry(record.chain).or_default().rules.push(record.rule);
            }
            Ok(())
        })?;
        self.dump(GET_SETS, family, of_table, |datagram| {
            // Anonymous sets belong to rules that the `nft` crate cannot express. The kernel removes them with the
            // rules.
            for record in decode_sets(datagram)?.into_iter().filter(|r| r.table == name && !r.anonymous) {
                observed.sets.insert(record.name, record.set);
            }
            Ok(())
        })?;
        for (set_name, set) in observed.sets.iter_mut().filter(|(_, set)| !set.header.is_dynamic()) {
            set.elements = self.read_elements(table, set_name)?;
        }
        Ok(Some(observed))
    }

    /// Reads the elements of the set, sorted by key.
    ///
    /// A dump of a hash set resumes by count: each step skips as many elements as the previous steps returned. If the
    /// kernel resizes the table meanwhile (`nft_rhash_walk`) some elements are returned twice and others not at all, at
    /// the same generation. Each omitted element leads to a duplicate, so a dump without duplicates is complete.
    fn read_elements(&mut self, table: &Table, set: &str) -> Result<Vec<RawElement>, TableReadError> {
        for _ in 0..LISTINGS {
            let mut elements: Vec<RawElement> = Vec::new();
            self.dump(
                GET_ELEMENTS,
                family_number(table.family),
                |w| w.put_text(1, table.name.as_str()).put_text(2, set),
                |datagram| {
                    elements.extend(decode_elements(datagram)?);
                    Ok(())
                },
            )?;
            // At equal keys, the end of a range precedes the start of the next one.
            elements.sort_unstable_by(|a, b| a.key.cmp(&b.key).then(b.end.cmp(&a.end)));
            if elements.windows(2).all(|pair| pair[0].key != pair[1].key || pair[0].end != pair[1].end) {
                return Ok(elements);
            }
        }
        Err(TableReadError::Unordered(set.to_owned()))
    }

    fn read_table(&mut self, table: &Table) -> Result<Option<TableSnapshot>, RequestError> {
        let sequence = self.reserve_sequences(1);
        let request =
            Writer::new(GET_TABLE, 0, sequence, family_number(table.family)).put_text(1, table.name.as_str()).finish();
        let mut found = None;
        let asked = self.request(&request, sequence, |datagram| {
            found = decode_tables(datagram)?.into_iter().find(|r| r.name == table.name.as_str());
            Ok(())
        });
        match asked {
            Ok(()) => {}
            Err(RequestError::Refused(e)) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(e) => return Err(e),
        }
        Ok(found.map(|t| TableSnapshot {
            flags: t.flags,
            owner: t.owner,
            comment: t.comment,
            ..TableSnapshot::default()
        }))
    }
}
