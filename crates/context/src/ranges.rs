//! Records of address ranges that no Kubernetes object names: the world, and sources of health checks. They are
//! settings, the same in every baseline, so that no delta carries them; an address with its own record is never
//! affected.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ::identity::ReservedIdentity;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sha2::{Digest, Sha256};

use crate::record::{Facts, Record};
use crate::template::Template;
use crate::version::first_half;

/// Limit of ranges per kind: vendors document a handful.
pub const MOST_RANGES: usize = 256;

/// The record of each range. The longest range with the address applies; one without a record is an exception within a
/// wider one.
#[derive(Debug, Clone, Default)]
pub struct RangeRecords(BTreeMap<IpNet, Option<Arc<Record>>>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("{0}")]
    NotARange(String),
    #[error("{0} has host bits; expected {1}")]
    HostBits(IpNet, IpNet),
    #[error("{0} lies within ::/96 or ::ffff:0:0/96; write IPv4 ranges as A.B.C.D/N")]
    Embedded(IpNet),
}

/// Parses a range of the command line: `CIDR` without host bits.
///
/// # Errors
/// If it is not a CIDR without host bits, or an IPv4 range in the form of an IPv6 one.
pub fn parse_range(text: &str) -> Result<IpNet, RangeError> {
    let range: IpNet =
        text.parse().map_err(|_| RangeError::NotARange("expected a CIDR, as in 10.244.0.0/16".into()))?;
    if range != range.trunc() {
        return Err(RangeError::HostBits(range, range.trunc()));
    }
    let embeds = [Ipv6Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED.to_ipv6_mapped()];
    let is_embedded = |range: Ipv6Net| embeds.iter().any(|first| Ipv6Net::new_assert(*first, 96).contains(&range));
    match range {
        IpNet::V6(v6) if is_embedded(v6) => Err(RangeError::Embedded(range)),
        IpNet::V6(_) | IpNet::V4(_) => Ok(range),
    }
}

impl RangeRecords {
    /// `world` is the list of exceptions from the record of the world; `None` for no such record. Health ranges
    /// override equal exceptions.
    pub fn new(world: Option<&[IpNet]>, health: &[IpNet]) -> RangeRecords {
        let mut ranges = BTreeMap::new();
        if let Some(exceptions) = world {
            let record = Arc::new(record(ReservedIdentity::World));
            ranges.insert(IpNet::V4(Ipv4Net::default()), Some(record.clone()));
            ranges.insert(IpNet::V6(Ipv6Net::default()), Some(record));
            ranges.extend(exceptions.iter().map(|range| (range.trunc(), None)));
        }
        if !health.is_empty() {
            let record = Arc::new(record(ReservedIdentity::Health));
            ranges.extend(health.iter().map(|range| (range.trunc(), Some(record.clone()))));
        }
        RangeRecords(ranges)
    }

    /// The record of the longest range with the address.
    pub fn get(&self, address: IpAddr) -> Option<&Arc<Record>> {
        let address = address.to_canonical();
        let ranges = self.0.iter().filter(|(range, _)| range.contains(&address));
        ranges.max_by_key(|(range, _)| range.prefix_len()).and_then(|(_, record)| record.as_ref())
    }

    /// Each range with its record, if it has one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (IpNet, Option<&Record>)> {
        self.0.iter().map(|(range, record)| (*range, record.as_deref()))
    }

    /// Contribution of the ranges to the sum of all records ([`crate::version`]); `None` without ranges.
    pub(crate) fn digest(&self) -> Option<u128> {
        if self.0.is_empty() {
            return None;
        }
        let mut hash = Sha256::new_with_prefix("ranges");
        for (range, record) in self.iter() {
            let number = record.map_or(0, |record| record.num);
            hash.update(format!("{range} {number}\n"));
        }
        Some(u128::from_be_bytes(first_half(hash)))
    }
}

fn record(state: ReservedIdentity) -> Record {
    Record::new(Facts {
        template: Arc::new(Template::of_range(state)),
        internet_exposed: false,
        control_plane: false,
        sid: None,
        num: state.num(),
        state: Some(state),
        detail: None,
    })
}

#[cfg(test)]
mod tests;
