//! Three unnamed network namespaces: a forwarding node, the pod behind it, and the senders.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use super::packets::ProbeSockets;
use super::{SelfTestError, TestedFamily};
use crate::rtnetlink::{Rtnetlink, VethEnd};

/// Addresses of a pod, from the documentation ranges (RFC 5737, RFC 3849). They are used only in the scratch
/// namespaces.
pub(super) struct PodAddresses {
    pub(super) ipv4: Ipv4Addr,
    pub(super) ipv6: Ipv6Addr,
}

impl PodAddresses {
    const fn new(network: u8, host: u8) -> PodAddresses {
        let ipv4 = Ipv4Addr::new(192, 0, 2, network * 16 + host);
        PodAddresses { ipv4, ipv6: Ipv6Addr::new(0x2001, 0xdb8, 0, network as u16, 0, 0, 0, host as u16) }
    }

    pub(super) fn address(&self, family: TestedFamily) -> IpAddr {
        match family {
            TestedFamily::Ipv4 => self.ipv4.into(),
            TestedFamily::Ipv6 => self.ipv6.into(),
        }
    }
}

const TO_SERVER: PodAddresses = PodAddresses::new(1, 1);
pub(super) const SERVER: PodAddresses = PodAddresses::new(1, 2);
const TO_SENDERS: PodAddresses = PodAddresses::new(2, 1);
pub(super) const FRIEND: PodAddresses = PodAddresses::new(2, 2);
pub(super) const STRANGER: PodAddresses = PodAddresses::new(2, 3);

/// Fixed indices and hardware addresses of the links make queries unnecessary. An index is unique in its namespace, a
/// hardware address on its link.
const POD_LINK: VethEnd = VethEnd { name: "eth0", index: 10, hardware: [2, 0, 0, 0, 0, 2] };
const SERVER_LINK: VethEnd = VethEnd { name: "server", index: 11, hardware: [2, 0, 0, 0, 0, 1] };
const SENDERS_LINK: VethEnd = VethEnd { name: "senders", index: 12, hardware: [2, 0, 0, 0, 0, 1] };

pub(super) struct Scratch {
    node: File,
    server: File,
    senders: File,
    families: Vec<TestedFamily>,
}

impl Scratch {
    /// Leaves the calling thread in one of the namespaces.
    pub(super) fn build() -> Result<Scratch, SelfTestError> {
        let (server, senders, node) = (new_namespace()?, new_namespace()?, new_namespace()?);
        let families = families();
        forward(&families)?;
        let scratch = Scratch { node, server, senders, families };
        let could_not =
            |error: io::Error| SelfTestError::CouldNotRun(format!("cannot connect the scratch namespaces: {error}"));
        scratch.connect().map_err(could_not)?;
        Ok(scratch)
    }

    pub(super) fn families(&self) -> &[TestedFamily] {
        &self.families
    }

    /// Moves the calling thread to the node's namespace.
    pub(super) fn enter_node(&self) -> Result<(), SelfTestError> {
        enter(&self.node).map_err(|e| {
            SelfTestError::CouldNotRun(format!("cannot enter the network namespace of the scratch node: {e}"))
        })
    }

    /// Opens sockets of the pod and of both senders.
    pub(super) fn open_sockets(&self, family: TestedFamily) -> Result<ProbeSockets, SelfTestError> {
        let open = || -> io::Result<ProbeSockets> {
            enter(&self.server)?;
            let server = ProbeSockets::socket(SERVER.address(family))?;
            enter(&self.senders)?;
            let (friend, stranger) = (FRIEND.address(family), STRANGER.address(family));
            Ok(ProbeSockets::new(family, server, ProbeSockets::socket(friend)?, ProbeSockets::socket(stranger)?))
        };
        open().map_err(|e| {
            SelfTestError::CouldNotRun(format!("cannot open sockets in the scratch namespaces ({family}): {e}"))
        })
    }

    fn connect(&self) -> io::Result<()> {
        enter(&self.node)?;
        let mut node = Rtnetlink::open()?;
        node.add_veth(&SERVER_LINK, &POD_LINK, self.server.as_fd())?;
        node.add_veth(&SENDERS_LINK, &POD_LINK, self.senders.as_fd())?;
        for (namespace, link, gateway, places) in [
            (&self.server, SERVER_LINK, TO_SERVER, &[SERVER][..]),
            (&self.senders, SENDERS_LINK, TO_SENDERS, &[FRIEND, STRANGER][..]),
        ] {
            enter(namespace)?;
            let mut pod = Rtnetlink::open()?;
            pod.set_up(POD_LINK.index)?;
            for family in &self.families {
                let gateway = gateway.address(*family);
                node.add_address(link.index, gateway, prefix(*family))?;
                for place in places {
                    let address = place.address(*family);
                    pod.add_address(POD_LINK.index, address, prefix(*family))?;
                    node.add_neighbour(link.index, address, POD_LINK.hardware)?;
                }
                pod.add_neighbour(POD_LINK.index, gateway, link.hardware)?;
                pod.add_default_route(POD_LINK.index, gateway)?;
            }
        }
        Ok(())
    }
}

/// Prefix length of the networks on both links.
fn prefix(family: TestedFamily) -> u8 {
    match family {
        TestedFamily::Ipv4 => 28,
        TestedFamily::Ipv6 => 64,
    }
}

/// Moves the calling thread into a new namespace.
fn new_namespace() -> Result<File, SelfTestError> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
        Errno::EPERM => SelfTestError::NotPermitted,
        other => SelfTestError::CouldNotRun(format!("cannot create a network namespace: {other}")),
    })?;
    File::open("/proc/thread-self/ns/net")
        .map_err(|e| SelfTestError::CouldNotRun(format!("/proc/thread-self/ns/net: {e}")))
}

fn enter(namespace: &File) -> io::Result<()> {
    Ok(setns(namespace, CloneFlags::CLONE_NEWNET)?)
}

/// Address families enabled in this kernel.
fn families() -> Vec<TestedFamily> {
    let is_off = |path: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() != "0");
    let ipv6 = Path::new(FORWARD_IPV6).exists()
        && !is_off("/proc/sys/net/ipv6/conf/all/disable_ipv6")
        && !is_off("/proc/sys/net/ipv6/conf/default/disable_ipv6");
    if ipv6 { vec![TestedFamily::Ipv4, TestedFamily::Ipv6] } else { vec![TestedFamily::Ipv4] }
}

const FORWARD_IPV4: &str = "/proc/sys/net/ipv4/ip_forward";
const FORWARD_IPV6: &str = "/proc/sys/net/ipv6/conf/all/forwarding";

/// Enables forwarding in the namespace of the calling thread.
fn forward(families: &[TestedFamily]) -> Result<(), SelfTestError> {
    for family in families {
        let path = match family {
            TestedFamily::Ipv4 => FORWARD_IPV4,
            TestedFamily::Ipv6 => FORWARD_IPV6,
        };
        let written = match fs::write(path, "1") {
            Err(error) if error.raw_os_error() == Some(libc::EROFS) => {
                writable_settings().and_then(|()| fs::write(path, "1"))
            }
            written => written,
        };
        written.map_err(|error| {
            SelfTestError::CouldNotRun(format!("cannot enable forwarding in the scratch namespace: {path}: {error}"))
        })?;
    }
    Ok(())
}

/// In containers `/proc/sys` is read-only. It becomes writable in a mount namespace of the calling thread only.
fn writable_settings() -> io::Result<()> {
    const SETTINGS: &str = "/proc/sys";
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    Ok(mount(none, SETTINGS, none, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | flags, none)?)
}
