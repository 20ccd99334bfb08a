//! Addresses that were learned for domain names.
//!
//! The names are those of DNS answers; which answers count, and for how long, is decided by whoever learns them. Without
//! an answer a name has no address, so that a rule about it matches nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The domain of Services and pods that the kubelet writes into the search list of pods by default.
const DEFAULT_CLUSTER_DOMAIN: &str = "cluster.local";

/// The learned names, by address. Names are in lower case, without a final dot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LearnedNames {
    by_address: BTreeMap<IpAddr, BTreeSet<Arc<str>>>,
    /// Names in this domain may have addresses of pods and nodes.
    cluster_domain: Arc<str>,
}

impl Default for LearnedNames {
    fn default() -> LearnedNames {
        LearnedNames { by_address: BTreeMap::new(), cluster_domain: DEFAULT_CLUSTER_DOMAIN.into() }
    }
}

impl LearnedNames {
    /// Returns whether anything changed.
    pub(crate) fn insert(&mut self, name: Arc<str>, address: IpAddr) -> bool {
        self.by_address.entry(address).or_default().insert(name)
    }

    /// Returns whether anything changed.
    pub(crate) fn remove(&mut self, name: &str, address: IpAddr) -> bool {
        let Some(names) = self.by_address.get_mut(&address) else { return false };
        let removed = names.remove(name);
        if names.is_empty() {
            self.by_address.remove(&address);
        }
        removed
    }

    pub(crate) fn set_cluster_domain(&mut self, domain: Arc<str>) -> bool {
        let changed = self.cluster_domain != domain;
        self.cluster_domain = domain;
        changed
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.by_address.keys().copied()
    }

    pub(crate) fn names(&self, address: IpAddr) -> impl Iterator<Item = &Arc<str>> {
        self.by_address.get(&address).into_iter().flatten()
    }

    /// Whether the name is the cluster's domain or in it, so that the cluster itself says which addresses it has.
    pub(crate) fn is_of_cluster(&self, name: &str) -> bool {
        let rest = name.strip_suffix(&*self.cluster_domain);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    }
}

/// Metadata services of clouds outside of the link-local range: Alibaba Cloud, Azure, Oracle Cloud.
const METADATA4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];

/// Those of Amazon EC2 and Google Cloud.
const METADATA6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

/// Whether a domain name may open the address: false for addresses that are not unicast ones of another host, which an
/// answer can contain nevertheless, and for metadata services, which hand credentials to whoever reaches them.
pub fn is_learnable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, ..] = v4.octets();
            let is_of_host = first == 0 || v4.is_loopback() || v4.is_link_local();
            !(is_of_host || v4.is_multicast() || v4 == Ipv4Addr::BROADCAST || METADATA4.contains(&v4))
        }
        IpAddr::V6(v6) => {
            // Addresses that contain an IPv4 address may lead to that one (NAT64, 6to4, Teredo, IPv4-mapped and
            // -compatible).
            let segments = v6.segments();
            let embeds_v4 = v6.to_ipv4_mapped().is_some()
                || segments[..6] == [0; 6]
                || segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0]
                || segments[..3] == [0x64, 0xff9b, 1]
                || segments[..2] == [0x2001, 0]
                || segments[0] == 0x2002;
            !(embeds_v4 || v6.is_unicast_link_local() || v6.is_multicast() || METADATA6.contains(&v6))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unicast_addresses_of_other_hosts_are_learnable() {
        let learnable = |address: &str| is_learnable(address.parse().unwrap());
        for address in ["192.0.2.1", "10.0.0.1", "240.0.0.1", "2001:db8::1", "fd00::1"] {
            assert!(learnable(address), "{address}");
        }
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.53",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "100.100.100.200",
            "168.63.129.16",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::10.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "2001::5601:5601",
            "2002:7f00:1::",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!learnable(address), "{address}");
        }
    }

    #[test]
    fn cluster_domain_contains_its_names_alone() {
        let names = LearnedNames::default();
        let is_of_cluster = |name: &str| names.is_of_cluster(name);
        assert!(is_of_cluster("cluster.local") && is_of_cluster("db.shop.svc.cluster.local"));
        assert!(!is_of_cluster("evilcluster.local") && !is_of_cluster("cluster.local.example.org"));
    }
}
