//! Switches off the transmit checksum offload of a pod's interface, by the ethtool interface of generic netlink (kernel
//! documentation, networking/ethtool-netlink).
//!
//! With the offload on, a packet leaves the pod with a checksum that a later device completes. A packet socket with
//! `PACKET_VNET_HDR` chooses the offset of that checksum, and the kernel writes two bytes there after policies have
//! judged the packet. With the offload off, the kernel completes every checksum before the packet leaves the pod
//! (`validate_xmit_skb`).

use netlink::{AttributeList, Attributes, Messages, NetlinkProtocol, Socket, flags, message};

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

/// Length of `struct genlmsghdr`.
const GENERIC_HEADER: usize = 4;

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
    socket: Socket,
    family: u16,
}

impl Ethtool {
    fn open() -> Result<Ethtool, String> {
        let socket = Socket::open(NetlinkProtocol::Generic)
            .map_err(|error| format!("cannot open a generic netlink socket: {error}"))?;
        let mut ethtool = Ethtool { socket, family: GENL_ID_CTRL };
        let name = AttributeList::new().put_text(CTRL_ATTR_FAMILY_NAME, "ethtool");
        let answer = ethtool.request(CTRL_CMD_GETFAMILY, 0, &name).map_err(|error| {
            format!("the kernel has no ethtool netlink interface (CONFIG_ETHTOOL_NETLINK): {error}")
        })?;
        let id = Attributes::new(&answer).find_kind(CTRL_ATTR_FAMILY_ID).and_then(|id| id.ne16().ok());
        ethtool.family = id.ok_or("the ethtool netlink family has no number")?;
        Ok(ethtool)
    }

    fn switch_off(&self, interface: &str) -> Result<(), String> {
        // A bit with a name and without a value is cleared.
        let bits = CHECKSUM_FEATURES.into_iter().fold(AttributeList::new(), |bits, name| {
            bits.put_nested(ETHTOOL_A_BITSET_BITS_BIT, AttributeList::new().put_text(ETHTOOL_A_BITSET_BIT_NAME, name))
        });
        let wanted = AttributeList::new().put_nested(ETHTOOL_A_BITSET_BITS, bits);
        let request = device(interface, ETHTOOL_FLAG_OMIT_REPLY).put_nested(ETHTOOL_A_FEATURES_WANTED, wanted);
        self.request(ETHTOOL_MSG_FEATURES_SET, flags::ACK, &request)
            .map(drop)
            .map_err(|error| format!("cannot change the features of {interface}: {error}"))
    }

    fn active_features(&self, interface: &str) -> Result<Vec<String>, String> {
        let answer = self
            .request(ETHTOOL_MSG_FEATURES_GET, 0, &device(interface, 0))
            .map_err(|error| format!("cannot read the features of {interface}: {error}"))?;
        let active = Attributes::new(&answer).find_kind(ETHTOOL_A_FEATURES_ACTIVE);
        let bits = active.and_then(|set| set.nested().find_kind(ETHTOOL_A_BITSET_BITS));
        let bits = bits.ok_or_else(|| format!("the kernel does not list the features of {interface}"))?;
        let malformed = |error| format!("cannot decode the features of {interface}: {error}");
        let mut names = Vec::new();
        for bit in bits.nested() {
            let name = bit.map_err(malformed)?.nested().find_kind(ETHTOOL_A_BITSET_BIT_NAME);
            let name = name.ok_or_else(|| format!("the kernel lists features of {interface} without a name"))?;
            names.push(name.text().map_err(malformed)?.to_owned());
        }
        Ok(names)
    }

    /// Sends a request and returns the attributes of the response; none for an acknowledgement.
    fn request(&self, command: u8, flags: u16, attributes: &AttributeList) -> Result<Vec<u8>, String> {
        // `struct genlmsghdr`: the command, version 1, and two reserved bytes.
        let request = message(self.family, flags, 0, &[command, 1, 0, 0], attributes);
        let answer = self.socket.request(&request).map_err(|error| error.to_string())?;
        parse_answer(&answer)
    }
}

/// The attributes of a response, or its error.
fn parse_answer(answer: &[u8]) -> Result<Vec<u8>, String> {
    let message = Messages::new(answer).next().ok_or("the answer is empty")?.map_err(|error| error.to_string())?;
    match message.acknowledgement().map_err(|error| error.to_string())? {
        Some(acknowledgement) => acknowledgement.result().map(|()| Vec::new()).map_err(|error| error.to_string()),
        None => match message.body.get(GENERIC_HEADER..) {
            Some(attributes) => Ok(attributes.to_vec()),
            None => Err("the answer is too short".to_owned()),
        },
    }
}

fn device(interface: &str, flags: u32) -> AttributeList {
    let header =
        AttributeList::new().put_text(ETHTOOL_A_HEADER_DEV_NAME, interface).put_ne32(ETHTOOL_A_HEADER_FLAGS, flags);
    AttributeList::new().put_nested(ETHTOOL_A_FEATURES_HEADER, header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_the_kernel_is_an_error() {
        let answer = |code: i32| message(netlink::ERROR, 0, 0, &code.to_ne_bytes(), &AttributeList::new());
        assert_eq!(parse_answer(&answer(0)), Ok(vec![]));
        assert!(parse_answer(&answer(-1)).unwrap_err().contains("not permitted"));
        assert!(parse_answer(&answer(-1)[..18]).unwrap_err().contains("truncated"));
    }
}
