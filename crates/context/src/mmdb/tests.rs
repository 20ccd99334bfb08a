//! A stock reader finds exactly the written entries.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use serde_json::json;

use super::read::{Database, MmdbReadError};
use super::*;

type AddressTable = BTreeMap<IpAddr, String>;

fn description() -> Description {
    let position = Position { epoch: 1_700_000_000_123 << 10, seq: 42 };
    Description { position, version: "id-0123456789abcdef".into() }
}

fn file(table: &AddressTable) -> Vec<u8> {
    let entries = table.iter().map(|(address, record)| (*address, record));
    write(entries, &description(), |record: &String| Value::text(record.as_str())).unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn next_to(address: IpAddr) -> Vec<IpAddr> {
    match address {
        IpAddr::V4(v4) => {
            let bits = v4.to_bits();
            [bits.wrapping_sub(1), bits.wrapping_add(1), bits ^ 1 << 31].map(|b| Ipv4Addr::from_bits(b).into()).into()
        }
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            [bits.wrapping_sub(1), bits.wrapping_add(1), bits ^ 1 << 127].map(|b| Ipv6Addr::from_bits(b).into()).into()
        }
    }
}

/// Position of the address in the format.
fn place(address: IpAddr) -> u128 {
    bits(address.to_canonical())
}

/// Every address has its record, in iteration and lookup; neighbours and the other addresses have none.
fn check(table: &AddressTable, others: &[IpAddr]) {
    let file = file(table);
    let database = Database::open(&file).unwrap();
    database.verify().unwrap();
    assert_eq!(database.description(), &description());
    let wanted: BTreeMap<u128, &String> = table.iter().map(|(address, record)| (place(*address), record)).collect();
    let near = table.keys().flat_map(|address| next_to(*address));
    for asked in near.chain(table.keys().copied()).chain(others.iter().copied()) {
        let found: Option<&str> = database.lookup(asked).unwrap();
        assert_eq!(found, wanted.get(&place(asked)).map(|record| record.as_str()), "{asked}");
    }
    let listed: Vec<(u128, String)> = database
        .entries()
        .unwrap()
        .map(|entry| entry.map(|(network, record)| (bits(network.addr()), record)).unwrap())
        .collect();
    assert_eq!(listed, wanted.into_iter().map(|(place, record)| (place, record.clone())).collect::<Vec<_>>());
}

#[test]
fn tables_of_boundary_addresses_are_read_back() {
    let notable: Vec<IpAddr> = [
        "0.0.0.0",
        "0.0.0.1",
        "10.0.0.4",
        "10.0.0.5",
        "100.64.0.1",
        "255.255.255.255",
        "::1:0:0",
        "fd00::1",
        "fd00::2",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    ]
    .map(address)
    .into();
    for chosen in 0..1_u32 << notable.len() {
        let table: AddressTable = notable
            .iter()
            .enumerate()
            .filter(|(i, _)| chosen >> i & 1 == 1)
            .map(|(i, address)| (*address, format!("record {}", i % 3)))
            .collect();
        check(&table, &notable);
    }
}

#[test]
fn all_zero_ipv6_address_equals_ipv4_one() {
    let table = AddressTable::from([(address("::"), "it".into())]);
    let file = file(&table);
    let database = Database::open(&file).unwrap();
    for asked in ["::", "0.0.0.0", "::ffff:0.0.0.0"] {
        assert_eq!(database.lookup::<&str>(address(asked)).unwrap(), Some("it"), "{asked}");
    }
    let both = AddressTable::from([(address("::a00:1"), "IPv6".into()), (address("10.0.0.1"), "IPv4".into())]);
    let file = self::file(&both);
    assert_eq!(Database::open(&file).unwrap().lookup::<&str>(address("::a00:1")).unwrap(), Some("IPv4"));
}

#[test]
fn mapped_address_finds_ipv4_and_aliases_are_unlisted() {
    let table = AddressTable::from([(address("10.0.0.1"), "it".into())]);
    let file = file(&table);
    let database = Database::open(&file).unwrap();
    assert_eq!(database.lookup::<&str>(address("::ffff:10.0.0.1")).unwrap(), Some("it"));
    assert_eq!(database.lookup::<&str>(address("2002:a00:1::")).unwrap(), None);
    assert_eq!(database.entries::<&str>().unwrap().count(), 1);
}

#[test]
fn metadata_is_what_readers_expect() {
    let file = file(&AddressTable::from([(address("10.0.0.1"), "it".into())]));
    let reader = maxminddb::Reader::from_source(&file).unwrap();
    let metadata = serde_json::to_value(reader.metadata()).unwrap();
    let says = "Ringfence workload identities; epoch 1740800000125952, seq 42, version id-0123456789abcdef";
    assert_eq!(
        metadata,
        json!({
            "binary_format_major_version": 2,
            "binary_format_minor_version": 0,
            "build_epoch": 1_700_000_000,
            "database_type": "Workload-Identity",
            "description": {"en": says},
            "ip_version": 6,
            "languages": ["en"],
            "node_count": 128,
            "record_size": 28,
        })
    );
}

#[test]
fn values_of_every_kind_are_read_back() {
    let long = "x".repeat(70_000);
    let record = || {
        Value::Map(vec![
            ("text", Value::text("web")),
            ("empty", Value::text("")),
            ("long", Value::text(long.as_str())),
            ("umlaut", Value::text("größe")),
            ("yes", Value::Bool(true)),
            ("no", Value::Bool(false)),
            ("zero", Value::Uint32(0)),
            ("most", Value::Uint32(u32::MAX)),
            ("labels", Value::Map(vec![("app.kubernetes.io/name", Value::text("web"))])),
            ("nothing", Value::Map(vec![])),
            ("list", Value::Array(vec![Value::text("a name that is long"), Value::Bool(true), Value::Array(vec![])])),
        ])
    };
    // Enough entries for every pointer size but the longest.
    let numbers: Vec<u32> = (0..20_000).collect();
    let entries = numbers.iter().map(|n| (Ipv4Addr::from_bits(*n).into(), n));
    let file = write(entries, &description(), |n| {
        let mut pairs = match record() {
            Value::Map(pairs) => pairs,
            other => panic!("{other:?}"),
        };
        pairs.push(("number", Value::text(format!("number {n} of many, each with a name as long as this"))));
        Value::Map(pairs)
    })
    .unwrap();
    assert!(file.len() > 1_000_000, "{}", file.len());
    let database = Database::open(&file).unwrap();
    database.verify().unwrap();
    for n in (0..20_000).step_by(97) {
        let found: serde_json::Value = database.lookup(Ipv4Addr::from_bits(n).into()).unwrap().unwrap();
        let wanted = json!({
            "text": "web", "empty": "", "long": &long, "umlaut": "größe", "yes": true, "no": false, "zero": 0,
            "most": u32::MAX, "labels": {"app.kubernetes.io/name": "web"}, "nothing": {},
            "list": ["a name that is long", true, []],
            "number": format!("number {n} of many, each with a name as long as this"),
        });
        assert_eq!(found, wanted);
    }
}

#[test]
fn a_thousand_replicas_cost_one_record() {
    let one = AddressTable::from([(address("10.0.0.0"), "frontend".into())]);
    let many: AddressTable =
        (0..1_000).map(|n| (IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + n)), "frontend".to_owned())).collect();
    // 7 bytes per node: an address in a dense range takes one.
    assert!(file(&many).len() < file(&one).len() + 1_100 * 7);
}

#[test]
fn the_order_of_the_entries_does_not_matter() {
    let table: AddressTable = ["10.0.0.9", "fd00::1", "10.0.0.3"].map(|text| (address(text), "same".into())).into();
    let backwards =
        write(table.iter().rev().map(|(a, r)| (*a, r)), &description(), |r: &String| Value::text(r.as_str()));
    assert_eq!(backwards.unwrap(), file(&table));
}

#[test]
fn descriptions_are_read_back_and_others_refused() {
    assert_eq!(description().to_string().parse(), Ok(description()));
    for text in ["", "GeoLite2 City database", "Ringfence workload identities; epoch 1, seq x, version v"] {
        assert!(text.parse::<Description>().is_err(), "{text}");
    }
}

#[test]
fn foreign_or_truncated_database_is_refused() {
    let file = file(&AddressTable::from([(address("10.0.0.1"), "it".into())]));
    let other = String::from_utf8_lossy(&file).contains("Workload-Identity");
    assert!(other);
    let place = file.windows(17).position(|window| window == b"Workload-Identity").unwrap();
    let mut renamed = file.clone();
    renamed[place..place + 17].copy_from_slice(b"Workload-Whatever");
    assert!(matches!(Database::open(renamed).err(), Some(MmdbReadError::OtherType(_))));
    for len in [0, 1, file.len() / 2, file.len() - 1] {
        assert!(matches!(Database::open(&file[..len]).err(), Some(MmdbReadError::Format(_))), "{len}");
    }
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0_u32..64).prop_map(|n| Ipv4Addr::from_bits(0x0a00_0000 + n).into()),
        any::<u32>().prop_map(|n| Ipv4Addr::from_bits(n).into()),
        (0_u128..64).prop_map(|n| Ipv6Addr::from_bits((0xfd << 120) + n).into()),
        any::<u128>().prop_map(|n| Ipv6Addr::from_bits(n).into()),
    ]
}

/// Networks of either family, many of them nested or containing the addresses.
fn any_network() -> impl Strategy<Value = IpNet> {
    (any_address(), 0_u8..=128).prop_map(|(address, length)| {
        let length = if address.is_ipv4() { length % 33 } else { length };
        IpNet::new(address, length).unwrap().trunc()
    })
}

/// The record of the address, else that of the longest network of its family.
fn expected<'t>(
    table: &'t AddressTable,
    networks: &'t BTreeMap<IpNet, Option<String>>,
    asked: IpAddr,
) -> Option<&'t String> {
    let asked = asked.to_canonical();
    let holding = networks.iter().filter(|(network, _)| network.contains(&asked));
    let longest = holding.max_by_key(|(network, _)| network.prefix_len());
    table.get(&asked).or_else(|| longest.and_then(|(_, record)| record.as_ref()))
}

/// IPv6 addresses and networks within ::/96 or ::ffff:0:0/96 belong to IPv4 in the format.
fn is_plain(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !IPV4_IN_IPV6.contains(&(v6.to_bits() >> 32 << 32)),
    }
}

fn file_with_networks(table: &AddressTable, networks: &BTreeMap<IpNet, Option<String>>) -> Vec<u8> {
    let entries = table.iter().map(|(address, record)| (*address, record));
    let networks = networks.iter().map(|(network, record)| (*network, record.as_ref()));
    write_with_networks(DatabaseType::Identities, entries, networks, &description(), |record: &String| {
        Value::text(record.as_str())
    })
    .unwrap()
}

#[test]
fn world_networks_answer_for_addresses_without_record() {
    let table = AddressTable::from([(address("10.0.0.4"), "v4".into()), (address("fd00::1"), "v6".into())]);
    let world = |text: &str| (text.parse::<IpNet>().unwrap(), Some("world".to_owned()));
    let networks = BTreeMap::from([world("0.0.0.0/0"), world("::/0"), ("10.0.0.0/24".parse().unwrap(), None)]);
    let file = file_with_networks(&table, &networks);
    let database = Database::open(&file).unwrap();
    database.verify().unwrap();
    for (asked, record) in [
        ("10.0.0.4", Some("v4")),
        ("10.0.0.5", None),
        ("10.0.1.0", Some("world")),
        ("::ffff:10.0.0.4", Some("v4")),
        ("::ffff:10.0.1.0", Some("world")),
        ("fd00::1", Some("v6")),
        ("fd00::2", Some("world")),
    ] {
        assert_eq!(database.lookup::<&str>(address(asked)).unwrap(), record, "{asked}");
    }
    let reader = maxminddb::Reader::from_source(&file).unwrap();
    let mapped = reader.lookup(address("::ffff:10.0.1.0")).unwrap();
    assert!(!mapped.has_data(), "a reader that does not map the address finds nothing, and nothing wrong");
    let of_v6_alone = file_with_networks(&table, &BTreeMap::from([world("::/0")]));
    let database = Database::open(&of_v6_alone).unwrap();
    assert_eq!(database.lookup::<&str>(address("192.0.2.1")).unwrap(), None);
    assert_eq!(database.lookup::<&str>(address("2001:db8::1")).unwrap(), Some("world"));
}

#[test]
fn record_of_a_covered_network_is_left_out() {
    let table = AddressTable::from([(address("10.0.0.4"), "a".into()), (address("10.0.0.5"), "b".into())]);
    for network in ["10.0.0.4/31", "10.0.0.4/32"] {
        let networks = BTreeMap::from([(network.parse().unwrap(), Some("covered".to_owned()))]);
        let file = file_with_networks(&table, &networks);
        Database::open(&file).unwrap().verify().unwrap();
        assert!(!file.windows(7).any(|bytes| bytes == b"covered"), "{network}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn longest_network_answers_where_no_address_does(
        table in prop::collection::btree_map(any_address(), "[a-d]{0,9}", 0..40),
        networks in prop::collection::btree_map(any_network(), prop::option::of("[e-h]{1,3}"), 0..20),
        others in prop::collection::vec(any_address(), 50),
    ) {
        let table: AddressTable = table.into_iter().filter(|(address, _)| is_plain(*address)).collect();
        let networks: BTreeMap<IpNet, Option<String>> =
            networks.into_iter().filter(|(network, _)| network.prefix_len() < 96 || is_plain(network.addr())).collect();
        let file = file_with_networks(&table, &networks);
        let database = Database::open(&file).unwrap();
        database.verify().unwrap();
        let near = table.keys().copied().chain(networks.keys().map(IpNet::addr)).flat_map(next_to);
        let edges = networks.keys().flat_map(|network| [network.addr(), network.broadcast()]);
        let asked = near.chain(edges).chain(table.keys().copied()).chain(others);
        for asked in asked.filter(|asked| is_plain(*asked)) {
            let found: Option<String> = database.lookup(asked).unwrap();
            assert_eq!(found.as_ref(), expected(&table, &networks, asked), "{asked}");
        }
        for entry in database.entries::<String>().unwrap() {
            let (network, record) = entry.unwrap();
            // The reader lists the whole of IPv4 as its place in the format, and other IPv4 networks as such.
            let is_all_of_v4 = network == "::/96".parse().unwrap();
            let first = if is_all_of_v4 { Ipv4Addr::UNSPECIFIED.into() } else { network.addr() };
            assert_eq!(Some(&record), expected(&table, &networks, first), "{network}");
        }
    }

    #[test]
    fn random_tables_are_read_back(
        table in prop::collection::btree_map(any_address(), "[a-d]{0,9}", 0..100),
        others in prop::collection::vec(any_address(), 100),
    ) {
        check(&table, &others);
    }
}
