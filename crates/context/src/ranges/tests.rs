use std::time::Instant;

use ::identity::{LabelFilter, Space};
use cluster::Watchable;
use feed::Position;
use policy::{Change, Interner};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::channel::FeedForm;
use crate::directory::Settings;
use crate::edges::Form;
use crate::mmdb::read::Database;
use crate::object::{WatchedKind, WatchedObject};
use crate::published_tables::Tables;

const START: Position = Position { epoch: 1, seq: 0 };

fn net(text: &str) -> IpNet {
    parse_range(text).unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn state(ranges: &RangeRecords, asked: &str) -> Option<ReservedIdentity> {
    ranges.get(address(asked)).and_then(|record| record.state)
}

/// A pod with each of the addresses, and a node.
fn tables(pods: &[IpAddr], ranges: RangeRecords) -> Tables {
    let (filter, numbers) = (LabelFilter::default(), Space::STANDARD);
    let settings = Settings { cluster_id: "test".into(), filter, pod_detail: false, agent: None, node: None, numbers };
    let mut tables = Tables::new(settings, Form::Compatible);
    tables.set_ranges(Arc::new(ranges));
    let mut set = |kind, value: Value| {
        let Ok(object) = WatchedObject::lower(&mut Interner::new(), kind, &value) else { panic!("{value}") };
        tables.apply(Change::Set(object), Instant::now());
    };
    set(WatchedKind::Namespace, json!({"metadata": {"name": "shop"}}));
    for (place, ip) in pods.iter().enumerate() {
        set(
            WatchedKind::Pod,
            json!({
                "metadata": {"namespace": "shop", "name": format!("web-{place}"), "uid": place.to_string()},
                "spec": {"nodeName": "node-a", "containers": []},
                "status": {"phase": "Running", "podIPs": [{"ip": ip.to_string()}]},
            }),
        );
    }
    let node = json!({"metadata": {"name": "node-a"}, "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    set(WatchedKind::Node, node);
    tables.begin();
    tables
}

#[test]
fn ranges_with_host_bits_or_embedded_are_refused() {
    for good in ["10.244.0.0/16", "0.0.0.0/0", "::/0", "fd00::/8", "192.0.2.1/32"] {
        assert!(parse_range(good).is_ok(), "{good}");
    }
    for (bad, says) in [
        ("10.244.0.1/16", "10.244.0.1/16 has host bits; expected 10.244.0.0/16"),
        ("10.244.0.0", "expected a CIDR, as in 10.244.0.0/16"),
        ("::ffff:10.0.0.0/104", "write IPv4 ranges as A.B.C.D/N"),
        ("::/96", "write IPv4 ranges as A.B.C.D/N"),
    ] {
        let error = parse_range(bad).unwrap_err().to_string();
        assert!(error.contains(says), "{bad}: {error}");
    }
}

#[test]
fn longest_range_decides_identity_of_address() {
    let except = [net("10.0.0.0/8"), net("fd00::/8")];
    let ranges = RangeRecords::new(Some(&except), &[net("35.191.0.0/16"), net("10.9.0.0/24")]);
    for (asked, expected) in [
        ("203.0.113.5", Some(ReservedIdentity::World)),
        ("::ffff:203.0.113.5", Some(ReservedIdentity::World)),
        ("2001:db8::1", Some(ReservedIdentity::World)),
        ("10.1.0.1", None),
        ("fd00::1", None),
        ("10.9.0.7", Some(ReservedIdentity::Health)),
        ("35.191.3.4", Some(ReservedIdentity::Health)),
    ] {
        assert_eq!(state(&ranges, asked), expected, "{asked}");
    }
    assert_eq!(state(&RangeRecords::new(None, &[net("35.191.0.0/16")]), "203.0.113.5"), None);
    assert_eq!(state(&RangeRecords::default(), "203.0.113.5"), None);
}

#[test]
fn records_of_ranges_have_an_external_role() {
    let ranges = RangeRecords::new(Some(&[]), &[net("35.191.0.0/16")]);
    for (asked, text, num) in [("203.0.113.5", "world", 2), ("35.191.0.1", "health", 4)] {
        let record = ranges.get(address(asked)).unwrap();
        assert_eq!((&*record.workload, &*record.namespace, &*record.service()), (text, "", ""));
        assert_eq!((record.num, record.role().text(), record.sid), (num, "external", None));
    }
}

#[test]
fn version_differs_between_tables_with_different_ranges() {
    let version = |ranges: RangeRecords| tables(&[address("10.0.0.1")], ranges).identities()(START).version;
    let all = [
        RangeRecords::default(),
        RangeRecords::new(Some(&[]), &[]),
        RangeRecords::new(Some(&[net("10.0.0.0/8")]), &[]),
        RangeRecords::new(Some(&[net("10.0.0.0/9")]), &[]),
        RangeRecords::new(None, &[net("10.0.0.0/8")]),
        RangeRecords::new(Some(&[]), &[net("10.0.0.0/8")]),
    ]
    .map(version);
    assert!(all.iter().enumerate().all(|(i, version)| !all[..i].contains(version)), "{all:?}");
}

#[test]
fn table_counts_addresses_and_not_ranges() {
    let ranges = RangeRecords::new(Some(&[]), &[]);
    assert_eq!(tables(&[address("10.0.0.1")], ranges).identities()(START).count, 2);
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0_u32..64).prop_map(|n| Ipv4Addr::from_bits(0x0a00_0000 + n).into()),
        any::<u32>().prop_map(|n| Ipv4Addr::from_bits(n | 1 << 28).into()),
        (0_u128..64).prop_map(|n| Ipv6Addr::from_bits((0xfd << 120) + n).into()),
        any::<u128>().prop_map(|n| Ipv6Addr::from_bits(n | 1 << 127).into()),
    ]
}

fn any_range() -> impl Strategy<Value = IpNet> {
    (any_address(), 0_u8..=128).prop_map(|(address, length)| {
        let length = if address.is_ipv4() { length % 33 } else { length };
        IpNet::new(address, length).unwrap().trunc()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Both forms of the baseline return for every address its own record, else that of its longest range.
    #[test]
    fn baselines_answer_with_own_record_or_range(
        pods in prop::collection::btree_set(any_address(), 0..20),
        world in prop::option::of(prop::collection::vec(any_range(), 0..6)),
        health in prop::collection::vec(any_range(), 0..4),
        others in prop::collection::vec(any_address(), 20),
    ) {
        let pods: Vec<IpAddr> = pods.into_iter().collect();
        let tables = tables(&pods, RangeRecords::new(world.as_deref(), &health));
        let baseline = tables.identities()(START);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (whole, numbers) = runtime.block_on(async {
            let whole = baseline.encoded().await.unwrap().bytes.clone();
            (whole, baseline.encoded_form(FeedForm::Numbers).await.unwrap().unwrap().bytes.clone())
        });
        let (whole, numbers) = (Database::open(whole).unwrap(), Database::open(numbers).unwrap());
        whole.verify().unwrap();
        numbers.verify().unwrap();
        let ends = health.iter().chain(world.iter().flatten()).flat_map(|range| [range.addr(), range.broadcast()]);
        // The database has IPv4 addresses there.
        let is_embedded = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.to_bits() >> 32 == 0);
        let ends = ends.filter(|address| !is_embedded(address));
        for asked in pods.iter().copied().chain(others).chain(ends) {
            let longest = |ranges: &[IpNet]| {
                ranges.iter().filter(|range| range.contains(&asked)).map(IpNet::prefix_len).max()
            };
            // Precedence of equal ranges: health, exception, world.
            let of_world = world.as_ref().map(|_| (0, 0, Some(2)));
            let exception = world.as_deref().and_then(longest).map(|length| (length, 1, None));
            let of_health = longest(&health).map(|length| (length, 2, Some(4)));
            let of_range = [of_world, exception, of_health].into_iter().flatten().max().and_then(|(.., num)| num);
            let num = tables.directory().record(asked).map(|record| record.num).or(of_range);
            let number = |database: &Database<bytes::Bytes>| {
                database.lookup::<Value>(asked).unwrap().map(|record| record["num"].as_u64().unwrap())
            };
            assert_eq!(number(&whole), num.map(u64::from), "{asked}");
            assert_eq!(number(&numbers), num.map(u64::from), "{asked}");
        }
    }
}
