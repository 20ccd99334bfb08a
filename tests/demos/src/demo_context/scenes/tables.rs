//! The tables of a subscriber, implemented without the provider's code.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::Context;
use maxminddb::{Reader, WithinOptions};
use serde::Deserialize;

/// The fields of an identity that this subscriber uses.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct IdentityRecord {
    workload: String,
    namespace: String,
    sid: Option<String>,
    num: u32,
}

#[derive(Debug, Deserialize)]
pub(super) struct IdentityDelta {
    upserts: Vec<Upsert>,
    removes: Vec<IpAddr>,
}

#[derive(Debug, Deserialize)]
struct Upsert {
    ip: IpAddr,
    #[serde(flatten)]
    who: IdentityRecord,
}

impl IdentityDelta {
    /// Whether it only replaces one address of a pod of the workload by another.
    pub(super) fn is_move(&self, from: &str, to: &str, workload: &str) -> bool {
        let [Upsert { ip, who }] = &self.upserts[..] else { return false };
        let [removed] = &self.removes[..] else { return false };
        ip.to_string() == to && removed.to_string() == from && format!("{}/{}", who.namespace, who.workload) == workload
    }
}

#[derive(Debug, PartialEq)]
pub(super) struct Addresses(BTreeMap<IpAddr, IdentityRecord>);

impl Addresses {
    pub(super) fn of(baseline: &[u8]) -> anyhow::Result<Addresses> {
        let reader = Reader::from_source(baseline).context("the baseline of identities")?;
        let mut addresses = BTreeMap::new();
        for network in reader.networks(WithinOptions::default())? {
            let network = network?;
            if let Some(who) = network.decode()? {
                addresses.insert(network.network()?.ip(), who);
            }
        }
        Ok(Addresses(addresses))
    }

    pub(super) fn apply(&mut self, delta: &IdentityDelta) {
        for gone in &delta.removes {
            self.0.remove(gone);
        }
        self.0.extend(delta.upserts.iter().map(|upsert| (upsert.ip, upsert.who.clone())));
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct EdgeDelta {
    pub(super) adds: Vec<String>,
    pub(super) removes: Vec<String>,
}

#[derive(Debug, PartialEq)]
pub(super) struct Lines(BTreeSet<String>);

impl Lines {
    /// All lines except the first, which is the header.
    pub(super) fn of(baseline: &[u8]) -> anyhow::Result<Lines> {
        let text = std::str::from_utf8(baseline).context("the list of declared edges")?;
        Ok(Lines(text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()))
    }

    pub(super) fn apply(&mut self, delta: &EdgeDelta) {
        for gone in &delta.removes {
            self.0.remove(gone);
        }
        self.0.extend(delta.adds.iter().cloned());
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
