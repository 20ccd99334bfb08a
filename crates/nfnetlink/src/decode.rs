//! Decodes netlink messages of the kernel. The code is safe, checks every length and never panics; it is fuzzed.
//!
//! Each function decodes the messages of one kind in one datagram and skips other messages. Unknown attributes that
//! cannot change the behaviour of an object are skipped; any other unknown attribute makes the object `foreign`.

mod attributes;
mod bytecode;
mod conntrack;
mod element;
mod flow;
mod log_record;
mod mark_writers;
mod objects;
mod packet;
mod records;
mod reply;

pub(crate) use bytecode::{EXTHDR_IPV4, EXTHDR_IPV6, INVERTED};
pub use conntrack::{FlowEvent, TrackedFlow, TrackedTuple, decode_flow_events, decode_tracked_flows};
pub use element::decode_elements;
pub use flow::{
    FlowCount, FlowIdentity, ListedFlow, MarkedFlow, decode_flow_count, decode_listed_flows, decode_marked_flows,
};
pub use log_record::{LogRecord, decode_logged};
pub(crate) use mark_writers::written_by_connmark;
pub use mark_writers::{MarkWriterRecord, decode_mark_writers};
pub use objects::{
    ChainRecord, ChangeRecord, FlowtableRecord, RuleRecord, SetRecord, TableRecord, decode_chains, decode_changes,
    decode_flowtables, decode_generation, decode_rules, decode_sets, decode_tables,
};
pub use packet::{PacketHead, TcpSegment};
pub use records::{ChainCounterRecord, ConntrackRecord, Counter, decode_flow_records, decode_rule_counters};
pub use reply::{KernelReply, decode_replies};

/// Why a datagram is not valid netlink.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Headers or lengths are inconsistent.
    #[error(transparent)]
    Netlink(#[from] netlink::MalformedNetlink),
    /// An attribute that the kernel always sends is missing.
    #[error("missing attribute {attribute} of {object}")]
    Missing {
        /// Noun phrase for messages, such as `a rule`.
        object: &'static str,
        /// Number of the attribute within the object.
        attribute: u16,
    },
    /// An attribute of a conntrack entry is invalid.
    #[error("attribute {attribute} of a conntrack entry: {problem}")]
    Entry {
        /// The kernel's name of the attribute, `CTA_*`.
        attribute: &'static str,
        /// The defect of its value.
        problem: Box<DecodeError>,
    },
}

impl DecodeError {
    /// The length of the attribute's value does not match its type.
    fn length(attribute: u16, length: usize) -> DecodeError {
        netlink::MalformedNetlink::Length { attribute, length }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{NFTABLES, Writer};

    fn nest() -> Writer {
        Writer::new(0, 0, 0, 0)
    }

    fn plain(writer: Writer) -> Vec<u8> {
        writer.finish()[crate::message::HEADER + crate::message::GENERAL..].to_vec()
    }

    /// A dump of one rule: `counter accept comment "x"`.
    fn rule() -> Vec<u8> {
        let verdict = plain(nest().put_number(1, 1));
        let data = plain(nest().put_nested(2, &verdict));
        let immediate = plain(nest().put_number(1, 0).put_nested(2, &data));
        let second = plain(nest().put_text(1, "immediate").put_nested(2, &immediate));
        let first = plain(nest().put_text(1, "counter"));
        let list = plain(nest().put_nested(1, &first).put_nested(1, &second));
        let named = Writer::new(NFTABLES | 6, 0, 1, 1).put_text(1, "t").put_text(2, "c").put(3, &[0; 8]);
        named.put_nested(4, &list).put(7, b"\x00\x02x\x00").finish()
    }

    #[test]
    fn a_rule_is_decoded_with_its_comment() {
        let records = decode_rules(&rule()).unwrap();
        let expressions = records[0].rule.expressions.as_ref().unwrap();
        let accept = crate::Expression::Verdict(crate::VerdictCode::Accept);
        assert_eq!(expressions, &[crate::Expression::Counter, accept]);
        assert_eq!(records[0].rule.comment.as_deref(), Some("x"));
    }

    #[test]
    fn a_flowtable_is_decoded_with_its_devices() {
        let devices = plain(nest().put_text(1, "eth0").put_text(1, "eth1"));
        let hook = plain(nest().put_number(1, 0).put_number(2, 0).put_nested(3, &devices));
        let message = Writer::new(NFTABLES | 22, 0, 1, 1)
            .put_text(1, "fw")
            .put_text(2, "fast")
            .put_nested(3, &hook)
            .put_number(7, 2);
        let devices = vec!["eth0".to_owned(), "eth1".to_owned()];
        let expected = FlowtableRecord { family: 1, table: "fw".into(), name: "fast".into(), devices, flags: 2 };
        assert_eq!(decode_flowtables(&message.finish()), Ok(vec![expected]));
    }

    #[test]
    fn damaged_ruleset_messages_do_not_panic() {
        let whole = rule();
        for length in 0..whole.len() {
            assert!(decode_rules(&whole[..length]).is_err() || length == 0);
        }
        for place in 0..whole.len() {
            for value in [0, 1, 4, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[place] = value;
                drop(decode_rules(&damaged));
                drop(decode_elements(&damaged));
                drop(decode_sets(&damaged));
                drop(decode_replies(&damaged));
                drop(decode_changes(&damaged));
                drop(decode_flowtables(&damaged));
            }
        }
    }
}
