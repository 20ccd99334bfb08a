//! Keys by which denied packets are grouped, and the drop events about them.

use std::net::IpAddr;

use jiff::Timestamp;
use nfnetlink::{ConntrackRecord, LogRecord, PacketHead};
use nft::Protocol;
use policy::{Cause, Direction, FlowTable, Judgement, ParsedPrefix};

/// Key of packets that are counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PacketGroup {
    pub(crate) judgement: Judgement,
    pub(crate) cause: Cause,
    /// The packets are in the reply direction.
    pub(crate) reply: bool,
    pub(crate) carried: PacketContent,
    /// Interface on the pod's side, where no policy is the cause: addresses may be forged there.
    pub(crate) input: Option<String>,
    pub(crate) output: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PacketContent {
    Flow(PacketFlow),
    /// A frame without an IP packet, by its `ETH_P_*`.
    Frame {
        ether_type: u16,
    },
}

/// Endpoints of a flow, in the original direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PacketFlow {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// IANA number.
    pub(crate) protocol: u8,
    /// Destination port.
    pub(crate) port: Option<u16>,
}

/// Fields of the first logged packet of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FirstPacket {
    /// Type of the ICMP message.
    pub(crate) icmp: Option<u8>,
    /// Address and port that the client asked for, before any destination translation.
    pub(crate) asked: Option<(IpAddr, Option<u16>)>,
}

/// Packets of one group that were denied, or would have been, and were not reported before. It has no names yet: those
/// are unknown before the initial sync, for which it waits in a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DropEvent {
    pub(crate) at: Timestamp,
    pub(crate) group: PacketGroup,
    pub(crate) first: FirstPacket,
    pub(crate) count: u64,
}

impl PacketGroup {
    /// An event of packets of the group, which are reported now.
    pub(super) fn event(&self, first: FirstPacket, count: u64) -> DropEvent {
        DropEvent { at: Timestamp::now(), group: self.clone(), first, count }
    }

    /// Key of a flow in the kernel's tables.
    pub(crate) fn of_record(table: &FlowTable, record: &ConntrackRecord) -> PacketGroup {
        let ConntrackRecord { source, destination, protocol, port, packets: _, bytes: _ } = *record;
        PacketGroup {
            judgement: table.judgement,
            cause: Cause::from(table.direction),
            reply: false,
            carried: PacketContent::Flow(PacketFlow { source, destination, protocol, port }),
            input: None,
            output: None,
        }
    }

    /// Whether the kernel's flow tables count these packets.
    pub(crate) fn is_recorded(&self) -> bool {
        let of_policy: Option<Direction> = self.cause.direction();
        of_policy.is_some() && !self.reply && matches!(self.carried, PacketContent::Flow(_))
    }

    /// Whether a flow table can contain this key: not if the packet was truncated before its ports.
    pub(crate) fn is_whole(&self) -> bool {
        match &self.carried {
            // Parsing of a truncated packet stops at an extension header.
            PacketContent::Flow(PacketFlow { source, protocol, port: None, .. }) => {
                let carried = source.is_ipv4() || !PacketHead::is_extension_header(*protocol);
                carried && Protocol::from_number(*protocol).is_none()
            }
            PacketContent::Flow(PacketFlow { port: Some(_), .. }) => true,
            PacketContent::Frame { .. } => true,
        }
    }
}

impl DropEvent {
    /// An event of one logged packet; `None` if another program's rule logged it.
    pub(crate) fn of_record(record: &LogRecord, at: Timestamp) -> Option<DropEvent> {
        let ParsedPrefix { judgement, cause, reply } = ParsedPrefix::of_prefix(&record.prefix)?;
        let (carried, icmp) = match record.content {
            None => (PacketContent::Frame { ether_type: record.ether_type }, None),
            Some(head) => {
                let (own, other) = head.ports.map_or((None, None), |(from, to)| (Some(from), Some(to)));
                let (source, destination, port) = match reply {
                    false => (head.source, head.destination, other),
                    true => (head.destination, head.source, own),
                };
                let flow = PacketFlow { source, destination, protocol: head.protocol, port };
                (PacketContent::Flow(flow), head.icmp.map(|(kind, _)| kind))
            }
        };
        // Flows denied by policies are grouped by addresses and port only, since their tables have no interfaces.
        let (input, output) = match cause.direction() {
            Some(_) => (None, None),
            None => (record.input.clone(), record.output.clone()),
        };
        let asked = record.original.map(|original| (original.destination, original.destination_port));
        let group = PacketGroup { judgement, cause, reply, carried, input, output };
        Some(DropEvent { at, group, first: FirstPacket { icmp, asked }, count: 1 })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use nfnetlink::PacketHead;

    use super::*;

    /// A denied TCP flow.
    pub(crate) fn denied(direction: Direction, source: &str, destination: &str, port: u16) -> PacketGroup {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        PacketGroup {
            judgement: Judgement::Denied,
            cause: direction.into(),
            reply: false,
            carried: PacketContent::Flow(PacketFlow { source, destination, protocol: 6, port: Some(port) }),
            input: None,
            output: None,
        }
    }

    fn logged(prefix: &str, content: Option<PacketHead>) -> LogRecord {
        LogRecord {
            prefix: prefix.into(),
            ether_type: 0x0800,
            input: Some("veth1".into()),
            output: None,
            sequence: None,
            content,
            bytes: vec![],
            original: None,
            reply: None,
        }
    }

    fn event(record: &LogRecord) -> Option<DropEvent> {
        DropEvent::of_record(record, Timestamp::UNIX_EPOCH)
    }

    fn tcp(source: &str, destination: &str, ports: (u16, u16)) -> PacketHead {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        PacketHead { source, destination, protocol: 6, ports: Some(ports), icmp: None }
    }

    #[test]
    fn reply_packet_belongs_to_flow_of_original_direction() {
        let there = logged("ringfence deny/ingress", Some(tcp("10.1.0.1", "10.1.0.2", (40_000, 80))));
        let back = logged("ringfence deny/ingress reply", Some(tcp("10.1.0.2", "10.1.0.1", (80, 40_000))));
        let [there, back] = [there, back].map(|packet| event(&packet).unwrap().group);
        assert_eq!(there, denied(Direction::Ingress, "10.1.0.1", "10.1.0.2", 80));
        assert_eq!(back, PacketGroup { reply: true, ..there.clone() });
        assert!(there.is_recorded() && !back.is_recorded());
    }

    #[test]
    fn the_interfaces_count_where_addresses_cannot_be_believed() {
        let packet = logged("ringfence deny/source", Some(tcp("10.9.9.9", "10.1.0.2", (40_000, 80))));
        let seen = event(&packet).unwrap().group;
        assert_eq!((seen.cause, seen.input.as_deref()), (Cause::ForgedSource, Some("veth1")));
        assert!(!seen.is_recorded());
    }

    #[test]
    fn frame_has_ether_type_and_foreign_logs_ignored() {
        let frame = event(&logged("ringfence deny/protocol", None)).unwrap();
        assert_eq!(frame.group.carried, PacketContent::Frame { ether_type: 0x0800 });
        assert_eq!(event(&logged("another program", None)), None);
    }

    #[test]
    fn packet_truncated_before_ports_is_not_whole() {
        let cut = PacketHead { ports: None, ..tcp("10.1.0.1", "10.1.0.2", (1, 2)) };
        assert!(!event(&logged("ringfence deny/egress", Some(cut))).unwrap().group.is_whole());
        let stopped = PacketHead { protocol: 60, ..tcp("fd00::1", "fd00::2", (1, 2)) };
        let stopped = PacketHead { ports: None, ..stopped };
        assert!(!event(&logged("ringfence deny/egress", Some(stopped))).unwrap().group.is_whole());
        let echo = PacketHead { protocol: 1, icmp: Some((8, 0)), ..cut };
        let echo = event(&logged("ringfence deny/egress", Some(echo))).unwrap();
        assert_eq!((echo.group.is_whole(), echo.first.icmp), (true, Some(8)));
    }
}
