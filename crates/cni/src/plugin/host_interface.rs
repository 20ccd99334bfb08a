//! Which interface of the host a pod's packets come in on.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::attachment::is_interface;

/// The host's end of a pod's link, and the bridge that it is a port of. Where it is not clear, nothing is said.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HostInterface {
    pub(super) name: Option<String>,
    pub(super) bridge: Option<String>,
}

/// Looks among the interfaces of the host that a result names.
pub(super) fn find(named: &[String], sandbox: &str, interface: &str) -> HostInterface {
    find_in(Path::new("/sys/class/net"), named, || index_in(Path::new(sandbox), interface))
}

fn find_in(sysfs: &Path, named: &[String], index_in_pod: impl FnOnce() -> Option<u32>) -> HostInterface {
    let is_end = |name: &&String| {
        let path = sysfs.join(name);
        // An interface with a device is hardware: the traffic of others comes in there, too.
        is_interface(name) && path.exists() && !path.join("bridge").exists() && !path.join("device").exists()
    };
    let mut ends: Vec<&String> = named.iter().filter(is_end).collect();
    ends.sort();
    ends.dedup();
    if ends.len() > 1 {
        let index = index_in_pod();
        ends.retain(|name| index.is_some() && peer_index(&sysfs.join(name)) == index);
    }
    let [name] = ends[..] else { return HostInterface::default() };
    HostInterface { name: Some(name.clone()), bridge: bridge_of(&sysfs.join(name)) }
}

/// The index that the other end of a veth has in its namespace.
fn peer_index(interface: &Path) -> Option<u32> {
    fs::read_to_string(interface.join("iflink")).ok()?.trim().parse().ok()
}

fn bridge_of(interface: &Path) -> Option<String> {
    let master = fs::read_link(interface.join("master")).ok()?;
    if !interface.join("master/bridge").exists() {
        return None;
    }
    Some(master.file_name()?.to_str()?.to_owned())
}

/// The index of the pod's interface, asked from a thread in the pod's namespace.
fn index_in(sandbox: &Path, interface: &str) -> Option<u32> {
    let index = || {
        let namespace = File::open(sandbox).ok()?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).ok()?;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
        netdevice::name_to_index(&socket, interface).ok()
    };
    std::thread::scope(|scope| scope.spawn(index).join().ok().flatten())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// A folder like `/sys/class/net`.
    fn sysfs() -> TempDir {
        let folder = TempDir::new().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("cni0/bridge/bridge_id", "");
        file("ens3/device/vendor", "");
        for (name, peer) in [("veth1", "2\n"), ("veth2", "3\n"), ("veth3", "3\n")] {
            file(&format!("{name}/iflink"), peer);
        }
        symlink("../cni0", folder.path().join("veth1/master")).unwrap();
        file("vrf0/iflink", "9\n");
        symlink("../vrf0", folder.path().join("veth2/master")).unwrap();
        folder
    }

    fn found(named: &[&str], index_in_pod: Option<u32>) -> (Option<String>, Option<String>) {
        let named: Vec<String> = named.iter().map(|name| (*name).into()).collect();
        let HostInterface { name, bridge } = find_in(sysfs().path(), &named, || index_in_pod);
        (name, bridge)
    }

    #[test]
    fn the_one_that_is_no_bridge_no_hardware_and_there_is_it() {
        let port = (Some("veth1".into()), Some("cni0".into()));
        assert_eq!(found(&["cni0", "veth1"], None), port);
        assert_eq!(found(&["veth1", "gone", "../../etc", "ens3", "veth1"], None), port);
        assert_eq!(found(&["veth2"], None), (Some("veth2".into()), None), "a VRF is no bridge");
    }

    #[test]
    fn of_several_the_one_whose_peer_is_the_pods_is_it() {
        assert_eq!(found(&["veth1", "veth2"], Some(3)), (Some("veth2".into()), None));
        for index in [None, Some(7)] {
            assert_eq!(found(&["veth1", "veth2"], index), (None, None));
        }
        assert_eq!(found(&["veth1", "veth2", "veth3"], Some(3)), (None, None));
        assert_eq!(found(&["cni0", "ens3"], Some(3)), (None, None));
        assert_eq!(found(&[], Some(3)), (None, None));
    }
}
