//! The addresses of a pod: usually one, or one per family, stored inline; others are allocated.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// A list of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses(AddressStorage);

#[derive(Debug, Clone, PartialEq, Eq)]
enum AddressStorage {
    /// At most one of each family.
    Few { v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>, v6_first: bool },
    /// Any others.
    Many(Arc<[IpAddr]>),
}

impl Addresses {
    /// In the original order.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let (few, many) = match &self.0 {
            AddressStorage::Few { v4, v6, v6_first } => {
                let (v4, v6) = (v4.map(IpAddr::V4), v6.map(IpAddr::V6));
                (if *v6_first { [v6, v4] } else { [v4, v6] }, &[][..])
            }
            AddressStorage::Many(addresses) => ([None, None], &addresses[..]),
        };
        few.into_iter().flatten().chain(many.iter().copied())
    }

    /// Heap memory in bytes.
    pub(crate) fn bytes_apart(&self) -> usize {
        match &self.0 {
            AddressStorage::Few { .. } => 0,
            AddressStorage::Many(addresses) => size_of_val(&addresses[..]),
        }
    }
}

impl Default for Addresses {
    fn default() -> Addresses {
        Addresses(AddressStorage::Few { v4: None, v6: None, v6_first: false })
    }
}

impl FromIterator<IpAddr> for Addresses {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Addresses {
        let addresses: Vec<IpAddr> = addresses.into_iter().collect();
        Addresses(match addresses[..] {
            [] => return Addresses::default(),
            [IpAddr::V4(v4)] => AddressStorage::Few { v4: Some(v4), v6: None, v6_first: false },
            [IpAddr::V6(v6)] => AddressStorage::Few { v4: None, v6: Some(v6), v6_first: false },
            [IpAddr::V4(v4), IpAddr::V6(v6)] => AddressStorage::Few { v4: Some(v4), v6: Some(v6), v6_first: false },
            [IpAddr::V6(v6), IpAddr::V4(v4)] => AddressStorage::Few { v4: Some(v4), v6: Some(v6), v6_first: true },
            _ => AddressStorage::Many(addresses.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_keep_order_and_equality_depends_on_it() {
        let lists: [&[&str]; 8] = [
            &[],
            &["10.0.0.1"],
            &["fd00::1"],
            &["10.0.0.1", "fd00::1"],
            &["fd00::1", "10.0.0.1"],
            &["10.0.0.1", "10.0.0.2"],
            &["fd00::1", "10.0.0.1", "fd00::2"],
            &["10.0.0.1", "fd00::1", "fd00::2"],
        ];
        let parse = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        for a in lists {
            let addresses: Addresses = parse(a).into_iter().collect();
            assert_eq!(addresses.iter().collect::<Vec<_>>(), parse(a));
            for b in lists {
                assert_eq!(addresses == parse(b).into_iter().collect(), a == b);
            }
        }
    }

    #[test]
    fn dual_stack_addresses_need_no_allocation() {
        let both: Addresses = ["10.0.0.1", "fd00::1"].map(|text| text.parse().unwrap()).into_iter().collect();
        assert_eq!((size_of::<Addresses>(), both.bytes_apart()), (24, 0));
    }
}
