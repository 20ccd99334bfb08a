//! Acknowledgements and errors.

use super::DecodeError;
use crate::message::{Attributes, HEADER, Messages};

/// `NLM_F_CAPPED` and `NLM_F_ACK_TLVS` of `uapi/linux/netlink.h`.
const CAPPED: u16 = 0x100;
const HAS_ATTRIBUTES: u16 = 0x200;

/// The kernel's answer to one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelReply {
    /// The sequence number of the acknowledged or refused message.
    pub sequence: u32,
    /// 0 for an acknowledgement.
    pub errno: i32,
    /// Offset of the refused attribute in bytes from the start of the message (`NLMSGERR_ATTR_OFFS`).
    pub offset: Option<u32>,
    /// The extended ACK message (`NLMSGERR_ATTR_MSG`).
    pub words: Option<String>,
}

/// The answers in one datagram.
pub fn decode_replies(datagram: &[u8]) -> Result<Vec<KernelReply>, DecodeError> {
    let mut replies = Vec::new();
    for message in Messages::new(datagram) {
        let message = message?;
        if message.kind != libc::NLMSG_ERROR as u16 {
            continue;
        }
        let truncated = DecodeError::from(netlink::MalformedNetlink::Truncated("a netlink error"));
        let Some((errno, rest)) = message.body.split_first_chunk::<4>() else { return Err(truncated) };
        let Some(length) = rest.first_chunk::<4>() else { return Err(truncated) };
        // The kernel's codes are negative; i32::MIN cannot be negated.
        let errno = i32::from_ne_bytes(*errno).saturating_neg();
        let mut reply = KernelReply { sequence: message.sequence, errno, offset: None, words: None };
        if message.flags & HAS_ATTRIBUTES != 0 {
            let echoed = if message.flags & CAPPED != 0 { HEADER } else { u32::from_ne_bytes(*length) as usize };
            let start = echoed.checked_next_multiple_of(4).ok_or(truncated.clone())?;
            let attributes = rest.get(start..).ok_or(truncated)?;
            for attribute in Attributes::new(attributes) {
                let attribute = attribute?;
                match attribute.kind {
                    1 => reply.words = Some(attribute.text()?.into()),
                    // In host order, unlike netfilter's own numbers.
                    2 => reply.offset = attribute.value.try_into().ok().map(u32::from_ne_bytes),
                    _ => {}
                }
            }
        }
        replies.push(reply);
    }
    Ok(replies)
}
