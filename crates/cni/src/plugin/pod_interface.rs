//! Reads the link addresses of a pod's interface from the kernel, since a plugin's result may lack them.

use std::fs;
use std::io::ErrorKind;
use std::net::Ipv6Addr;
use std::path::Path;

use crate::plugin::host_interface::peer::hardware_address;
use crate::plugin::sandbox::in_sandbox;

/// Network settings and tables of the calling thread's network namespace.
const PROC_NET: &str = "/proc/thread-self/net";

/// The link of a pod's interface. The agent is less strict where a part is unknown.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PodInterface {
    pub(super) hardware_address: Option<String>,
    /// The error is why they cannot be read.
    pub(super) link_local: Result<Vec<Ipv6Addr>, String>,
}

/// Reads the interface in the network namespace of that path.
pub(super) fn read(sandbox: &str, interface: &str) -> PodInterface {
    let read = in_sandbox(sandbox, || {
        let hardware_address = hardware_address(interface);
        Ok(PodInterface { hardware_address, link_local: read_link_local(Path::new(PROC_NET), interface) })
    });
    read.unwrap_or_else(|error| PodInterface { hardware_address: None, link_local: Err(error) })
}

fn read_link_local(proc_net: &Path, interface: &str) -> Result<Vec<Ipv6Addr>, String> {
    let path = proc_net.join("if_inet6");
    match fs::read_to_string(&path) {
        Ok(text) => {
            parse_link_local(&text, interface).map_err(|line| format!("{}: invalid line {line:?}", path.display()))
        }
        // A kernel without IPv6 lacks the file but not the folder.
        Err(error) if error.kind() == ErrorKind::NotFound && proc_net.join("dev").exists() => Ok(Vec::new()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Parses the link-local addresses of the interface in the text of `/proc/net/if_inet6` (`if6_seq_show`): lines of
/// address, index, prefix length, scope, flags and name. The error is the first invalid line.
fn parse_link_local(text: &str, interface: &str) -> Result<Vec<Ipv6Addr>, String> {
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, _, _, _, _, name] = words[..] else { return Err(line.to_owned()) };
        let address = u128::from_str_radix(address, 16).map_err(|_| line.to_owned())?;
        Ok((Ipv6Addr::from(address), name == interface))
    };
    let addresses = text.lines().map(parse).collect::<Result<Vec<_>, String>>()?;
    let own = addresses.into_iter().filter(|(address, is_own)| *is_own && address.is_unicast_link_local());
    Ok(own.map(|(address, _)| address).collect())
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
        assert_eq!(parse_link_local(text, "eth0"), Ok(vec!["fe80::5e:ffff:fe10:1".parse().unwrap()]));
        assert_eq!(parse_link_local("", "eth0"), Ok(vec![]));
        let changed = "fe80::1 02 40 20 80 eth0";
        assert_eq!(parse_link_local(changed, "eth0"), Err(changed.into()));
    }

    #[test]
    fn unreadable_if_inet6_is_an_error() {
        let folder = tempfile::TempDir::new().unwrap();
        let missing = read_link_local(folder.path(), "eth0").unwrap_err();
        assert!(missing.contains("if_inet6"), "{missing}");
        fs::write(folder.path().join("dev"), "").unwrap();
        assert_eq!(read_link_local(folder.path(), "eth0"), Ok(vec![]), "a kernel without IPv6");
        fs::create_dir(folder.path().join("if_inet6")).unwrap();
        assert!(read_link_local(folder.path(), "eth0").is_err());
    }
}
