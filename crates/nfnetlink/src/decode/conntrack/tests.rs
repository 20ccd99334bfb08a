//! Datagrams that a kernel 6.18 sent about real flows in a network namespace.

use super::*;
use crate::message::{Writer, family_and_attributes};

const TCP_NEW: &str = "\
    cc000000000100060000000000000000020000003400018014000180080001000a000001080002000a0000031c0002800500010006000000\
    060002009c41000006000300005000003400028014000180080001000a000002080002000a0000011c000280050001000600000006000200\
    1f900000060003009c41000008000c00b5dc7fa608000300000001a80800070000000078300004802c000180050001000100000005000200\
    0a0000000500030000000000060004000300000006000500000000000800080000420007";
const TCP_DESTROY_WITHOUT_COUNTERS: &str = "\
    ac0000000201000000000000c902cefa020000003400018014000180080001000a000001080002000a0000031c0002800500010006000000\
    060002009c41000006000300005000003400028014000180080001000a000002080002000a0000011c000280050001000600000006000200\
    1f900000060003009c41000008000c00b5dc7fa608000300000003ae080007000006977f100004800c000180050001000300000008000800\
    00420007";
const UDP6_NEW_WITH_TIMESTAMP: &str = "\
    d80000000001000600000000000000000a0000004c0001802c00018014000300fd00000000000000000000000000000114000400fd000000\
    0000000000000000000000021c0002800500010011000000060002009c42000006000300003500004c0002802c00018014000300fd000000\
    00000000000000000000000214000400fd0000000000000000000000000000011c0002800500010011000000060002000035000006000300\
    9c42000008000c00ec42a8400800030000000008080007000000001e08000800003000000c001b0018eaa8115652dac7";
const UDP6_DESTROY: &str = "\
    2c0100000201000000000000af14afef0a0000004c0001802c00018014000300fd00000000000000000000000000000114000400fd000000\
    0000000000000000000000021c0002800500010011000000060002009c42000006000300003500004c0002802c00018014000300fd000000\
    00000000000000000000000214000400fd0000000000000000000000000000011c0002800500010011000000060002000035000006000300\
    9c42000008000c00ec42a840080003000000020a080007000000001d1c0009800c00010000000000000000010c000200000000000000004e\
    1c000a800c00010000000000000000010c00020000000000000000941c0014800c00010018eaa8115652e70e0c00020018eaa81169191420\
    08000800003000000c001b0018eaa811691915de";
const ICMP_NEW: &str = "\
    a4000000000100060000000000000000020000003c00018014000180080001000a000001080002000a000002240002800500010001000000\
    06000400004d0000050005000800000005000600000000003c00028014000180080001000a000002080002000a0000012400028005000100\
    0100000006000400004d00000500050000000000050006000000000008000c000daf83510800030000000188080007000000001e";
const ICMPV6_DESTROY: &str = "\
    34010000020100000000000077cc4db80a000000540001802c00018014000300fd00000000000000000000000000000114000400fd000000\
    00000000000000000000000224000280050001003a00000006000700004e000005000800800000000500090000000000540002802c000180\
    14000300fd00000000000000000000000000000214000400fd00000000000000000000000000000124000280050001003a00000006000700\
    004e00000500080081000000050009000000000008000c0072c1f686080003000000020a080007000000001d1c0009800c00010000000000\
    000000010c00020000000000000000401c000a800c00010000000000000000010c00020000000000000000401c0014800c00010018eaa811\
    7bd344400c00020018eaa81194d7d1800c001b0018eaa81194d7d202";
const SCTP_DESTROY: &str = "\
    04010000020100000000000092172fc8020000003400018014000180080001000a000001080002000a0000021c0002800500010084000000\
    060002009c430000060003000f1c00003400028014000180080001000a000002080002000a0000011c000280050001008400000006000200\
    0f1c0000060003009c43000008000c008745141a080003000000038808000700000000091c0009800c00010000000000000000010c000200\
    00000000000000341c000a800c00010000000000000000000c00020000000000000000001c0014800c00010018eaa811a7b746550c000200\
    18eaa811ba68390b100004800c00038005000100010000000c001b0018eaa811ba6839c3";
const ZONE_NEW: &str = "\
    9c000000000100060000000000000000020000003400018014000180080001000a000001080002000a0000021c0002800500010011000000\
    060002009c4400000600030014e900003400028014000180080001000a000002080002000a0000011c000280050001001100000006000200\
    14e90000060003009c440000060012000007000008000c00ed28f4160800030000000188080007000000001e";
const GRE_NEW: &str = "\
    94000000000100060000000000000000020000003400018014000180080001000a000001080002000a0000021c000280050001002f000000\
    060002000000000006000300000000003400028014000180080001000a000002080002000a0000011c000280050001002f00000006000200\
    00000000060003000000000008000c00a6b116440800030000000188080007000000001e";
const LISTED_UDP6: &str = "\
    1c0100000001020005000000c36c57940a0000004c0001802c00018014000300fd00000000000000000000000000000114000400fd000000\
    0000000000000000000000021c0002800500010011000000060002009c42000006000300003500004c0002802c00018014000300fd000000\
    00000000000000000000000214000400fd0000000000000000000000000000011c0002800500010011000000060002000035000006000300\
    9c420000080003000000000a080008000030000008000c009af59f5a08000b0000000001080007000000001d1c0009800c00010000000000\
    000000010c000200000000000000004e1c000a800c00010000000000000000010c0002000000000000000094100014800c00010018eaa812\
    18a4127c";

/// `IPS_*` of `uapi/linux/netfilter/nf_conntrack_common.h`.
const SEEN_REPLY: u32 = 1 << 1;
const CONFIRMED: u32 = 1 << 3;
const DYING: u32 = 1 << 9;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().map(|digit| char::from(digit).to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn event(hex: &str) -> FlowEvent {
    let mut events = decode_flow_events(&bytes(hex)).unwrap();
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

fn new(hex: &str) -> TrackedFlow {
    match event(hex) {
        FlowEvent::New(flow) => flow,
        FlowEvent::Destroyed(flow) => panic!("{flow:?} is removed"),
    }
}

fn destroyed(hex: &str) -> TrackedFlow {
    match event(hex) {
        FlowEvent::Destroyed(flow) => flow,
        FlowEvent::New(flow) => panic!("{flow:?} is new"),
    }
}

fn tuple_of(protocol: u8, source: &str, destination: &str, ports: Option<(u16, u16)>) -> TrackedTuple {
    TrackedTuple {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        protocol,
        source_port: ports.map(|(source, _)| source),
        destination_port: ports.map(|(_, destination)| destination),
        icmp_type: None,
    }
}

fn counted(packets: u64, bytes: u64) -> Counter {
    Counter { packets, bytes }
}

#[test]
fn tcp_event_has_both_tuples_and_mark() {
    let flow = new(TCP_NEW);
    assert_eq!(flow.original, tuple_of(6, "10.0.0.1", "10.0.0.3", Some((40_001, 80))));
    assert_eq!(flow.reply, tuple_of(6, "10.0.0.2", "10.0.0.1", Some((8080, 40_001))), "after destination translation");
    assert_eq!((flow.mark, flow.zone), (0x0042_0007, 0));
    assert_eq!((flow.counters, flow.started_ns, flow.stopped_ns), (None, None, None));
    let end = destroyed(TCP_DESTROY_WITHOUT_COUNTERS);
    assert_eq!((end.id, end.original, end.reply, end.mark), (flow.id, flow.original, flow.reply, flow.mark));
    assert_eq!((end.counters, end.started_ns, end.stopped_ns), (None, None, None), "accounting was off");
    assert_eq!((flow.status & DYING, end.status & DYING), (0, DYING));
}

#[test]
fn udp_destroy_has_counters_and_timestamps() {
    let (flow, end) = (new(UDP6_NEW_WITH_TIMESTAMP), destroyed(UDP6_DESTROY));
    let expected = TrackedFlow {
        id: flow.id,
        zone: 0,
        original: tuple_of(17, "fd00::1", "fd00::2", Some((40_002, 53))),
        reply: tuple_of(17, "fd00::2", "fd00::1", Some((53, 40_002))),
        mark: 0x0030_0000,
        status: SEEN_REPLY | CONFIRMED | DYING,
        // Headers of IPv6 and UDP, and 30 and 100 bytes.
        counters: Some([counted(1, 78), counted(1, 148)]),
        started_ns: Some(1_795_432_193_876_748_046),
        stopped_ns: Some(1_795_432_194_191_725_600),
    };
    assert_eq!(end, expected);
    assert_eq!(flow.stopped_ns, None);
    let apart = flow.started_ns.unwrap().abs_diff(end.started_ns.unwrap());
    assert!(apart < 10_000, "{apart} ns between the time of the event and that of the entry");
}

#[test]
fn icmp_tuples_have_types_and_no_ports() {
    let flow = new(ICMP_NEW);
    let typed = |tuple: TrackedTuple, icmp_type| TrackedTuple { icmp_type: Some(icmp_type), ..tuple };
    assert_eq!(flow.original, typed(tuple_of(1, "10.0.0.1", "10.0.0.2", None), 8));
    assert_eq!(flow.reply, typed(tuple_of(1, "10.0.0.2", "10.0.0.1", None), 0));
    let end = destroyed(ICMPV6_DESTROY);
    assert_eq!(end.original, typed(tuple_of(58, "fd00::1", "fd00::2", None), 128));
    assert_eq!(end.reply, typed(tuple_of(58, "fd00::2", "fd00::1", None), 129));
    assert_eq!(end.counters, Some([counted(1, 64), counted(1, 64)]));
}

#[test]
fn sctp_destroy_counts_unanswered_direction_as_zero() {
    let end = destroyed(SCTP_DESTROY);
    assert_eq!(end.original, tuple_of(132, "10.0.0.1", "10.0.0.2", Some((40_003, 3868))));
    assert_eq!(end.counters, Some([counted(1, 52), counted(0, 0)]));
}

#[test]
fn zone_of_entry_is_decoded() {
    let flow = new(ZONE_NEW);
    assert_eq!((flow.zone, flow.original.destination_port), (7, Some(5353)));
}

#[test]
fn gre_keys_are_not_ports() {
    assert_eq!(new(GRE_NEW).original, tuple_of(47, "10.0.0.1", "10.0.0.2", None));
}

#[test]
fn listed_entry_has_counters_and_no_end() {
    let flows = decode_tracked_flows(&bytes(LISTED_UDP6)).unwrap();
    let [flow] = &flows[..] else { panic!("{flows:?}") };
    assert_eq!(flow.original, destroyed(UDP6_DESTROY).original);
    assert_eq!(flow.counters, Some([counted(1, 78), counted(1, 148)]));
    assert!(flow.started_ns.is_some() && flow.stopped_ns.is_none(), "{flow:?}");
    // An entry of a dump is not an event.
    assert_eq!(decode_flow_events(&bytes(LISTED_UDP6)), Ok(vec![]));
}

#[test]
fn events_of_one_datagram_stay_in_order() {
    let update = {
        let mut update = bytes(TCP_NEW);
        // `nlmsg_flags`
        update[6..8].fill(0);
        update
    };
    let done = Writer::new(libc::NLMSG_DONE as u16, 0, 0, 0).finish();
    let datagram = [bytes(TCP_NEW), update, bytes(UDP6_DESTROY), done].concat();
    assert_eq!(decode_flow_events(&datagram), Ok(vec![event(TCP_NEW), event(UDP6_DESTROY)]));
}

/// The message of one entry with the attribute `without` removed and `further` ones appended.
fn changed(hex: &str, without: u16, further: &[(u16, &[u8])]) -> Vec<u8> {
    let datagram = bytes(hex);
    let message = Messages::new(&datagram).next().unwrap().unwrap();
    let (family, attributes) = family_and_attributes(&message).unwrap();
    let empty = Writer::new(message.kind, message.flags.into(), 0, family);
    let kept = attributes.map(Result::unwrap).filter(|a| a.kind != without).map(|a| (a.kind, a.value));
    kept.chain(further.iter().copied()).fold(empty, |w, (kind, value)| w.put(kind, value)).finish()
}

#[test]
fn error_names_missing_or_invalid_attribute() {
    let error = |datagram: Vec<u8>| decode_flow_events(&datagram).unwrap_err().to_string();
    let missing = |attribute| error(changed(UDP6_DESTROY, attribute, &[]));
    let expected = "attribute CTA_TUPLE_ORIG of a conntrack entry: missing attribute 1 of a conntrack entry";
    assert_eq!(missing(ORIGINAL), expected);
    let named = [(REPLY, "CTA_TUPLE_REPLY"), (ID, "CTA_ID"), (STATUS, "CTA_STATUS")];
    for (attribute, name) in named.into_iter().chain([(REPLY_COUNTERS, "CTA_COUNTERS_REPLY")]) {
        assert!(missing(attribute).starts_with(&format!("attribute {name} ")), "{}", missing(attribute));
    }
    for (attribute, name) in [
        (ORIGINAL, "CTA_TUPLE_ORIG"),
        (MARK, "CTA_MARK"),
        (ZONE, "CTA_ZONE"),
        (ORIGINAL_COUNTERS, "CTA_COUNTERS_ORIG"),
        (TIMESTAMP, "CTA_TIMESTAMP"),
        (EVENT_TIMESTAMP, "CTA_TIMESTAMP_EVENT"),
    ] {
        let said = error(changed(UDP6_DESTROY, attribute, &[(attribute, &[1, 2, 3])]));
        assert!(said.starts_with(&format!("attribute {name} ")), "{said}");
    }
}

#[test]
fn damaged_datagrams_never_panic() {
    for hex in [TCP_NEW, UDP6_DESTROY, ICMP_NEW, ZONE_NEW, LISTED_UDP6] {
        let whole = bytes(hex);
        for length in 1..whole.len() {
            assert!(decode_flow_events(&whole[..length]).is_err());
            assert!(decode_tracked_flows(&whole[..length]).is_err());
        }
        for place in 0..whole.len() {
            for value in [0, 1, 4, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[place] = value;
                drop(decode_flow_events(&damaged));
                drop(decode_tracked_flows(&damaged));
            }
        }
    }
}
