use super::*;
use nft::Name;

fn cmp(operator: Compare, data: &[u8]) -> Expression {
    Expression::Cmp { operator, from: Register::FIRST, data: data.to_vec() }
}

fn in_set(fields: &[Field]) -> Match {
    Match::InSet { fields: fields.to_vec(), set: Name::new("s").unwrap() }
}

#[test]
fn address_match_adds_family_condition_once_before_key() {
    let fields = [Field::L4Proto, Field::Source(Family::V6), Field::DestinationPort];
    let rule = Rule::new(vec![in_set(&fields), in_set(&[Field::Destination(Family::V6)])], vec![]);
    let lookup = Expression::Lookup { set: "s".into(), from: Register::FIRST, to: None, inverted: false };
    assert_eq!(
        lower_rule(&rule, TableFamily::Inet),
        [
            Expression::Meta { key: MetaKey::Nfproto, to: Register(1) },
            cmp(Compare::Equal, &[10]),
            Expression::Meta { key: MetaKey::L4proto, to: Register(1) },
            Expression::Payload { base: Base::Network, offset: 8, length: 16, to: Register(9) },
            Expression::Payload { base: Base::Transport, offset: 2, length: 2, to: Register(13) },
            lookup.clone(),
            Expression::Payload { base: Base::Network, offset: 24, length: 16, to: Register(1) },
            lookup,
        ]
    );
}

#[test]
fn icmpv6_type_adds_only_missing_conditions() {
    let kinds = Match::Icmpv6Type(133, 137);
    let bare = lower_rule(&Rule::new(vec![kinds.clone()], vec![]), TableFamily::Inet);
    assert_eq!(bare.len(), 7);
    assert_eq!(bare[5..], [cmp(Compare::AtLeast, &[133]), cmp(Compare::AtMost, &[137])]);
    let settled = lower_rule(&Rule::new(vec![Match::Family(Family::V6), kinds], vec![]), TableFamily::Inet);
    assert_eq!(settled, bare);
}

#[test]
fn private_bytes_write_last_byte_back() {
    let conditions = vec![Match::EtherType(EtherType::Ipv4), Match::PrivateBytes(34)];
    let (base, offset, length) = (Base::Network, 33, 1);
    assert_eq!(
        lower_rule(&Rule::new(conditions, vec![]), TableFamily::Netdev)[2..],
        [
            Expression::Payload { base, offset, length, to: Register::FIRST },
            Expression::PayloadSet { base, offset, length, from: Register::FIRST },
        ]
    );
}

#[test]
fn setting_a_mark_keeps_the_other_bits() {
    let rule = Rule::new(vec![], vec![Action::SetMark { mask: 0xfff0_0000, value: 0x0010_0000 }]);
    let (mask, xor) = (0x000f_ffffu32.to_ne_bytes().to_vec(), 0x0010_0000u32.to_ne_bytes().to_vec());
    assert_eq!(
        lower_rule(&rule, TableFamily::Inet)[1],
        Expression::Bitwise { from: Register::FIRST, to: Register::FIRST, mask, xor }
    );
}

#[test]
fn bridge_address_match_adds_frame_protocol_condition() {
    let fields = vec![Field::InInterface, Field::Source(Family::V4)];
    let forged = Match::NotInSet { fields, set: Name::new("s").unwrap() };
    assert_eq!(
        lower_rule(&Rule::new(vec![Match::NotEtherType(EtherType::Arp), forged], vec![]), TableFamily::Bridge),
        [
            Expression::Payload { base: Base::Link, offset: 12, length: 2, to: Register(1) },
            cmp(Compare::NotEqual, &[0x08, 0x06]),
            Expression::Meta { key: MetaKey::Protocol, to: Register(1) },
            cmp(Compare::Equal, &[0x08, 0x00]),
            Expression::Meta { key: MetaKey::InInterfaceName, to: Register(1) },
            Expression::Payload { base: Base::Network, offset: 12, length: 4, to: Register(2) },
            Expression::Lookup { set: "s".into(), from: Register::FIRST, to: None, inverted: true },
        ]
    );
}
