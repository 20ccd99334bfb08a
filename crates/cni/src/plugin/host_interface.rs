//! Finds the host interface on which a pod's packets arrive.

pub(super) mod peer;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::attachment::is_interface;

/// The host side of a pod's link, and its bridge. All fields are `None` unless exactly one interface qualifies.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HostInterface {
    pub(super) name: Option<String>,
    pub(super) index: Option<u32>,
    pub(super) bridge: Option<String>,
    /// The input interface of the pod's packets at the forward hook.
    pub(super) input: Option<String>,
}

/// Finds the host side of the pod's link among the host interfaces in the CNI result.
pub(super) fn find(named: &[String], sandbox: &str, interface: &str) -> HostInterface {
    find_in(Path::new("/sys/class/net"), named, || peer::index_on_host(sandbox, interface))
}

fn find_in(sysfs: &Path, named: &[String], other_end: impl FnOnce() -> Option<u32>) -> HostInterface {
    let is_end = |name: &&String| {
        let path = sysfs.join(name);
        // An interface with a `device` link is hardware, which also receives packets of other hosts.
        is_interface(name) && path.exists() && !path.join("bridge").exists() && !path.join("device").exists()
    };
    let mut ends: Vec<&String> = named.iter().filter(is_end).collect();
    ends.sort();
    ends.dedup();
    let other_end = if ends.is_empty() { None } else { other_end() };
    // Without the other end's index only a single name is unambiguous.
    if other_end.is_some() || ends.len() > 1 {
        ends.retain(|name| other_end.is_some() && index(&sysfs.join(name)) == other_end);
    }
    let [name] = ends[..] else { return HostInterface::default() };
    let path = sysfs.join(name);
    let bridge = bridge_of(&path);
    let input = input_of(&path, name, bridge.as_deref());
    HostInterface { name: Some(name.clone()), index: index(&path), bridge, input }
}

/// The input interface, at the forward hook, of packets from the interface. For a bridge port this is the bridge
/// (`brnf_get_logical_dev`, `br_pass_frame_up`). `None` for a bridge with VLAN filtering, where it may also be a VLAN
/// interface, and for a port of a VRF.
fn input_of(interface: &Path, name: &str, bridge: Option<&str>) -> Option<String> {
    match bridge {
        Some(bridge) => {
            let has_vlans = match fs::read_to_string(interface.join("master/bridge/vlan_filtering")) {
                Ok(filtering) => filtering.trim() != "0",
                // Kernels without CONFIG_BRIDGE_VLAN_FILTERING lack the file.
                Err(error) => error.kind() != ErrorKind::NotFound,
            };
            (!has_vlans).then(|| bridge.to_owned())
        }
        None => (!interface.join("master").exists()).then(|| name.to_owned()),
    }
}

fn index(interface: &Path) -> Option<u32> {
    fs::read_to_string(interface.join("ifindex")).ok()?.trim().parse().ok()
}

fn bridge_of(interface: &Path) -> Option<String> {
    let master = fs::read_link(interface.join("master")).ok()?;
    if !interface.join("master/bridge").exists() {
        return None;
    }
    Some(master.file_name()?.to_str()?.to_owned())
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
        file("cni0/bridge/vlan_filtering", "0\n");
        file("tagged0/bridge/vlan_filtering", "1\n");
        file("plain0/bridge/bridge_id", "");
        file("ens3/device/vendor", "");
        for (name, index) in [("veth1", "2\n"), ("veth2", "3\n"), ("veth3", "4\n"), ("veth4", "5\n"), ("veth5", "6\n")]
        {
            file(&format!("{name}/ifindex"), index);
        }
        file("vrf0/ifindex", "9\n");
        for (port, master) in [("veth1", "cni0"), ("veth2", "vrf0"), ("veth3", "tagged0"), ("veth5", "plain0")] {
            symlink(format!("../{master}"), folder.path().join(port).join("master")).unwrap();
        }
        folder
    }

    fn found(named: &[&str], other_end: Option<u32>) -> (Option<String>, Option<String>) {
        let named: Vec<String> = named.iter().map(|name| (*name).into()).collect();
        let HostInterface { name, index: _, bridge, input: _ } = find_in(sysfs().path(), &named, || other_end);
        (name, bridge)
    }

    #[test]
    fn input_interface_is_host_interface_or_its_bridge() {
        let sysfs = sysfs();
        let input = |name: &str| find_in(sysfs.path(), &[name.into()], || None).input;
        assert_eq!(input("veth4").as_deref(), Some("veth4"));
        assert_eq!(input("veth1").as_deref(), Some("cni0"));
        assert_eq!(input("veth5").as_deref(), Some("plain0"), "a kernel without VLANs on bridges");
        assert_eq!(input("veth2"), None, "a port of a VRF");
        assert_eq!(input("veth3"), None, "a port of a bridge with VLANs");
        assert_eq!(input("gone"), None);
    }

    #[test]
    fn host_interface_skips_bridges_hardware_and_missing_ones() {
        let port = (Some("veth1".into()), Some("cni0".into()));
        assert_eq!(found(&["cni0", "veth1"], None), port);
        assert_eq!(found(&["veth1", "gone", "../../etc", "ens3", "veth1"], None), port);
        assert_eq!(found(&["veth2"], None), (Some("veth2".into()), None), "a VRF is not a bridge");
    }

    #[test]
    fn ambiguous_host_interface_resolves_to_veth_peer() {
        assert_eq!(found(&["veth1", "veth2"], Some(3)), (Some("veth2".into()), None));
        for index in [None, Some(7)] {
            assert_eq!(found(&["veth1", "veth2"], index), (None, None));
        }
        assert_eq!(found(&["veth1"], Some(3)), (None, None), "a single name, but not of the pod's link");
        assert_eq!(found(&["cni0", "ens3"], Some(3)), (None, None));
        assert_eq!(found(&[], Some(3)), (None, None));
    }
}
