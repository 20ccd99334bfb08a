//! What the kernel says of a pod's interface: the addresses of its link, which no result of a plugin has to name.

use std::fs::{self, File};
use std::net::Ipv6Addr;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// As the kernel has them, as far as they can be read. Without them the agent is less strict.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PodInterface {
    pub(super) hardware_address: Option<String>,
    pub(super) link_local: Vec<Ipv6Addr>,
}

/// Reads the interface in the network namespace of that path.
pub(super) fn read(sandbox: &str, interface: &str) -> PodInterface {
    let ask = || {
        let namespace = File::open(sandbox).ok()?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).ok()?;
        let hardware_address = super::host_interface::peer::hardware_address(interface);
        // IPv6 may be switched off.
        let addresses = fs::read_to_string(Path::new("/proc/thread-self/net/if_inet6")).unwrap_or_default();
        Some(PodInterface { hardware_address, link_local: link_local(&addresses, interface) })
    };
    // Only the thread moves into the pod.
    std::thread::scope(|scope| scope.spawn(ask).join().ok().flatten()).unwrap_or_default()
}

/// The link-local addresses of the interface in the text of `/proc/net/if_inet6` (`if6_seq_show`): lines of address,
/// index, prefix length, scope, flags and name.
fn link_local(text: &str, interface: &str) -> Vec<Ipv6Addr> {
    let address = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, _, _, _, _, name] = words[..] else { return None };
        let address = Ipv6Addr::from(u128::from_str_radix(address, 16).ok()?);
        (name == interface && address.is_unicast_link_local()).then_some(address)
    };
    text.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_addresses_are_those_of_the_interface() {
        let text = "fd000001000000000000000000000005 02 40 00 80     eth0\n\
                    fe80000000000000005efffffe100001 02 40 20 80     eth0\n\
                    fe80000000000000005efffffe100002 03 40 20 80     net1\n\
                    00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(link_local(text, "eth0"), ["fe80::5e:ffff:fe10:1".parse::<Ipv6Addr>().unwrap()]);
        assert_eq!(link_local("", "eth0"), Vec::<Ipv6Addr>::new());
    }
}
