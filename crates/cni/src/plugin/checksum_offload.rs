//! Switches off the transmit checksum offload of a pod's interface, by the ethtool interface of generic netlink (kernel
//! documentation, networking/ethtool-netlink).
//!
//! With the offload on, a packet leaves the pod with a checksum that a later device completes. A packet socket with
//! `PACKET_VNET_HDR` chooses the offset of that checksum, and the kernel writes two bytes there after policies have
//! judged the packet. With the offload off, the kernel completes every checksum before the packet leaves the pod
//! (`validate_xmit_skb`).

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

use crate::plugin::netlink::{
    HEADER_BYTES, NLA_F_NESTED, NLM_F_ACK, NLM_F_REQUEST, acknowledgement, attribute, attributes, find, is_error,
};
use crate::plugin::sandbox::in_sandbox;

/// Features of devices that accept unfinished checksums of TCP, UDP and packet sockets.
const CHECKSUM_FEATURES: [&str; 3] = ["tx-checksum-ipv4", "tx-checksum-ip-generic", "tx-checksum-ipv6"];

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_HEADER_FLAGS: u16 = 3;
const ETHTOOL_FLAG_OMIT_REPLY: u32 = 2;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;

/// Of `struct genlmsghdr`.
const GENERIC_HEADER_BYTES: usize = 4;

/// The kernel lists about 60 features in four sets, of some 40 bytes each.
const ANSWER_BYTES: usize = 64 * 1024;

/// Switches off the offload of the interface in the network namespace of that path.
///
/// # Errors
/// If the offload is or may still be on.
pub(super) fn switch_off(sandbox: &str, interface: &str) -> Result<(), String> {
    in_sandbox(sandbox, || switch_off_here(interface))
}

fn switch_off_here(interface: &str) -> Result<(), String> {
    let ethtool = Ethtool::open()?;
    ethtool.switch_off(interface)?;
    // The kernel ignores features that the device cannot change.
    let on = ethtool.active_features(interface)?;
    let left: Vec<&str> = CHECKSUM_FEATURES.into_iter().filter(|name| on.iter().any(|on| on == name)).collect();
    if left.is_empty() { Ok(()) } else { Err(format!("{interface} keeps {}", left.join(", "))) }
}

struct Ethtool {
    socket: OwnedFd,
    family: u16,
}

impl Ethtool {
    fn open() -> Result<Ethtool, String> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(rustix::net::netlink::GENERIC),
        )
        .map_err(|error| format!("cannot open a generic netlink socket: {error}"))?;
        let mut ethtool = Ethtool { socket, family: GENL_ID_CTRL };
        let name = attribute(CTRL_ATTR_FAMILY_NAME, b"ethtool\0");
        let answer = ethtool.ask(CTRL_CMD_GETFAMILY, 0, &name).map_err(|error| {
            format!("the kernel has no ethtool netlink interface (CONFIG_ETHTOOL_NETLINK): {error}")
        })?;
        let id = find(&answer, CTRL_ATTR_FAMILY_ID).and_then(|value| value.try_into().ok());
        ethtool.family = u16::from_ne_bytes(id.ok_or("the ethtool netlink family has no number")?);
        Ok(ethtool)
    }

    fn switch_off(&self, interface: &str) -> Result<(), String> {
        // A bit with a name and without a value is cleared.
        let bit = |name: &str| {
            let name = attribute(ETHTOOL_A_BITSET_BIT_NAME, &[name.as_bytes(), &[0]].concat());
            attribute(ETHTOOL_A_BITSET_BITS_BIT | NLA_F_NESTED, &name)
        };
        let bits = attribute(ETHTOOL_A_BITSET_BITS | NLA_F_NESTED, &CHECKSUM_FEATURES.map(bit).concat());
        let wanted = attribute(ETHTOOL_A_FEATURES_WANTED | NLA_F_NESTED, &bits);
        let request = [device(interface, ETHTOOL_FLAG_OMIT_REPLY), wanted].concat();
        self.ask(ETHTOOL_MSG_FEATURES_SET, NLM_F_ACK, &request)
            .map(drop)
            .map_err(|error| format!("cannot change the features of {interface}: {error}"))
    }

    fn active_features(&self, interface: &str) -> Result<Vec<String>, String> {
        let answer = self
            .ask(ETHTOOL_MSG_FEATURES_GET, 0, &device(interface, 0))
            .map_err(|error| format!("cannot read the features of {interface}: {error}"))?;
        let active = find(&answer, ETHTOOL_A_FEATURES_ACTIVE).and_then(|set| find(set, ETHTOOL_A_BITSET_BITS));
        let active = active.ok_or_else(|| format!("the kernel does not list the features of {interface}"))?;
        let name = |(_, bit): (u16, &[u8])| {
            let name = find(bit, ETHTOOL_A_BITSET_BIT_NAME)?.strip_suffix(b"\0")?;
            Some(String::from_utf8_lossy(name).into_owned())
        };
        let names: Option<Vec<String>> = attributes(active).map(name).collect();
        names.ok_or_else(|| format!("the kernel lists features of {interface} without a name"))
    }

    /// Sends a request and returns the attributes of the response; none for an acknowledgement.
    fn ask(&self, command: u8, flags: u16, payload: &[u8]) -> Result<Vec<u8>, String> {
        let length = u32::try_from(HEADER_BYTES + GENERIC_HEADER_BYTES + payload.len()).map_err(|e| e.to_string())?;
        let mut request = length.to_ne_bytes().to_vec();
        request.extend(self.family.to_ne_bytes());
        request.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        // Sequence number and port ID are zero: there is one request at a time.
        request.extend([0; 8]);
        request.extend([command, 1, 0, 0]);
        request.extend(payload);
        send(&self.socket, &request, SendFlags::empty()).map_err(|error| error.to_string())?;
        let mut answer = vec![0; ANSWER_BYTES];
        let (_, length) = recv(&self.socket, &mut answer[..], RecvFlags::empty()).map_err(|error| error.to_string())?;
        let answer = answer.get(..length).ok_or("the answer is too long")?;
        parse_answer(answer).ok_or("the answer is too short")?
    }
}

/// The attributes of a response, or its error; `None` if it is truncated.
fn parse_answer(answer: &[u8]) -> Option<Result<Vec<u8>, String>> {
    match acknowledgement(answer) {
        Some(acknowledged) => Some(acknowledged.map(|()| Vec::new()).map_err(|error| error.to_string())),
        None if is_error(answer)? => None,
        None => Some(Ok(answer.get(HEADER_BYTES + GENERIC_HEADER_BYTES..)?.to_vec())),
    }
}

fn device(interface: &str, flags: u32) -> Vec<u8> {
    let name = attribute(ETHTOOL_A_HEADER_DEV_NAME, &[interface.as_bytes(), &[0]].concat());
    let flags = attribute(ETHTOOL_A_HEADER_FLAGS, &flags.to_ne_bytes());
    attribute(ETHTOOL_A_FEATURES_HEADER | NLA_F_NESTED, &[name, flags].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_the_kernel_is_an_error() {
        let answer = |code: i32| {
            let mut bytes = vec![0; 4];
            bytes.extend(2u16.to_ne_bytes());
            bytes.resize(HEADER_BYTES, 0);
            bytes.extend(code.to_ne_bytes());
            bytes
        };
        assert_eq!(parse_answer(&answer(0)), Some(Ok(vec![])));
        assert!(parse_answer(&answer(-1)).unwrap().unwrap_err().contains("not permitted"));
        assert_eq!(parse_answer(&answer(-1)[..18]), None);
    }
}
