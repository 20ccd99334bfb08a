//! Addresses and subnets of this node's interfaces. The tunnel rules need the subnets for the broadcast and anycast
//! addresses at which other nodes receive. They are read at the start, when an interface address is added or removed,
//! and at each resync.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

/// The subnets of the addresses of all interfaces except loopback, sorted and unique.
pub(crate) fn own_subnets() -> io::Result<Vec<IpNet>> {
    let subnets: BTreeSet<IpNet> = getifaddrs()?.filter_map(|interface| subnet(&interface)).collect();
    Ok(subnets.into_iter().collect())
}

/// The addresses of this node's interfaces, loopback included.
pub(crate) fn own_addresses() -> io::Result<BTreeSet<IpAddr>> {
    Ok(getifaddrs()?.filter_map(|interface| ip(interface.address.as_ref()?)).collect())
}

fn subnet(interface: &InterfaceAddress) -> Option<IpNet> {
    if interface.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
        return None;
    }
    let address = ip(interface.address.as_ref()?)?;
    IpNet::with_netmask(address, ip(interface.netmask.as_ref()?)?).ok().map(|subnet| subnet.trunc())
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}
