//! The baseline of identities, as its consumers decode it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use context::identity::RecordFields;
use context::mmdb::read::Database;

/// Limit of the entries read from a file: a tree may contain more than there are addresses in use.
const ENTRIES: usize = 1_000;

/// Bytes as a MaxMind DB. The last 16 are an address to look up. Any content must be decoded or refused.
///
/// # Panics
/// If an address is found that is missing from the entries.
pub fn records(bytes: &[u8]) {
    let Some((file, address)) = bytes.split_last_chunk::<16>() else { return };
    let Ok(database) = Database::open(file) else { return };
    let asked = Ipv6Addr::from_bits(u128::from_be_bytes(*address));
    let [.., a, b, c, d] = *address;
    for address in [IpAddr::V6(asked), IpAddr::V4(Ipv4Addr::new(a, b, c, d))] {
        drop(database.lookup::<RecordFields<'_>>(address));
    }
    let Ok(entries) = database.entries::<RecordFields<'_>>() else { return };
    // An IPv4-mapped IPv6 address is looked up as IPv4.
    let entries = entries.take(ENTRIES).filter_map(Result::ok).map(|(network, record)| (network.addr(), record));
    let plain = |(address, _): &(IpAddr, _)| *address == address.to_canonical();
    for (address, record) in entries.filter(plain) {
        let found = database.lookup::<RecordFields<'_>>(address);
        assert!(found.as_ref().is_ok_and(|found| found.as_ref() == Some(&record)), "{address}: {found:?}");
    }
}
