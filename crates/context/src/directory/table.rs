//! Map from addresses to records.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use imbl::OrdMap;
use policy::pack_shared;

use crate::record::Record;

/// The record of every address. Cheap to clone; shares unchanged parts with later versions.
///
/// One map per address family: an entry with room for either family would be twice the size of an IPv4 entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdentityTable {
    v4: OrdMap<Ipv4Addr, Arc<Record>>,
    v6: OrdMap<Ipv6Addr, Arc<Record>>,
}

impl IdentityTable {
    pub fn get(&self, address: IpAddr) -> Option<&Arc<Record>> {
        match address {
            IpAddr::V4(address) => self.v4.get(&address),
            IpAddr::V6(address) => self.v6.get(&address),
        }
    }

    pub(super) fn insert(&mut self, address: IpAddr, record: Arc<Record>) {
        match address {
            IpAddr::V4(address) => drop(self.v4.insert(address, record)),
            IpAddr::V6(address) => drop(self.v6.insert(address, record)),
        }
    }

    pub(super) fn remove(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => drop(self.v4.remove(&address)),
            IpAddr::V6(address) => drop(self.v6.remove(&address)),
        }
    }

    /// Repacks the B-trees: insertion in order leaves their nodes half empty.
    pub(super) fn pack(&mut self) {
        pack_shared(&mut self.v4);
        pack_shared(&mut self.v6);
    }

    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sorted by address.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, &Arc<Record>)> {
        let v4 = self.v4.iter().map(|(address, record)| (IpAddr::V4(*address), record));
        v4.chain(self.v6.iter().map(|(address, record)| (IpAddr::V6(*address), record)))
    }
}

#[cfg(test)]
impl FromIterator<(IpAddr, Arc<Record>)> for IdentityTable {
    fn from_iter<I: IntoIterator<Item = (IpAddr, Arc<Record>)>>(entries: I) -> IdentityTable {
        let mut table = IdentityTable::default();
        entries.into_iter().for_each(|(address, record)| table.insert(address, record));
        table
    }
}
