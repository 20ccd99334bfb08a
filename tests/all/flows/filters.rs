//! Filters and sums of `ringfence flows`, compared with the records of `/v1/flows` filtered here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use kit::agent_process::{ended, until};
use serde_json::{Value, json};
use tests::fake_clock::FakeClock;

use super::verb::flows;
use super::{PORT, WINDOW_SECONDS, exchange, records, serve, start, start_with_clock, sum};
use crate::drops::{DB, OTHER, OUTSIDE, WEB, send_datagrams, stage};
use crate::stage::Stage;

const WINDOW: SignedDuration = SignedDuration::from_secs(WINDOW_SECONDS);

/// The agent's clock is ahead by this much in tests of durations.
const AHEAD_SECONDS: i64 = 4 * WINDOW_SECONDS;

/// Fields of a filter with their values.
type Filter<'a> = [(&'a str, &'a str)];

pub(super) fn window_end(record: &Value) -> Timestamp {
    record["window"].as_str().unwrap().parse::<Timestamp>().unwrap() + WINDOW
}

/// Whether the record matches all conditions, as docs/flows.md specifies.
pub(super) fn admits(filter: &Filter, record: &Value) -> bool {
    admits_at(filter, record, Timestamp::now())
}

fn admits_at(filter: &Filter, record: &Value, now: Timestamp) -> bool {
    let ends = [(&record["source"], &record["sources"]), (&record["destination"], &record["destinations"])];
    let is_one = |field: &str, value: &str| match field {
        "since" => window_end(record) > begin(value, now),
        "protocol" => record["protocol"] == number(value),
        "namespace" | "workload" | "peer" => true,
        field => panic!("no field {field} here"),
    };
    let is_end = |field: &str, value: &str, this: usize| match field {
        "namespace" => ends[this].0["namespace"] == value,
        "workload" => is_workload(ends[this].0, value),
        "peer" => is_peer(ends[1 - this], value),
        _ => true,
    };
    filter.iter().all(|(field, value)| is_one(field, value))
        && [0, 1].iter().any(|this| filter.iter().all(|(field, value)| is_end(field, value, *this)))
}

/// Absolute times stay unchanged; durations count back from the agent's time.
fn begin(value: &str, now: Timestamp) -> Timestamp {
    let now = now + SignedDuration::from_secs(AHEAD_SECONDS);
    value.parse().unwrap_or_else(|_| now - value.parse::<SignedDuration>().unwrap())
}

fn number(protocol: &str) -> u64 {
    match protocol {
        "tcp" => 6,
        "udp" => 17,
        number => number.parse().unwrap(),
    }
}

fn is_workload(end: &Value, value: &str) -> bool {
    let is_named = |name: &str| end["kind"] == "pod" && end["name"] == name;
    match value.split_once('/') {
        Some((namespace, name)) => end["namespace"] == namespace && is_named(name),
        None => is_named(value),
    }
}

fn is_peer((end, sample): (&Value, &Value), value: &str) -> bool {
    let network = value.parse::<IpAddr>().map(IpNet::from).or_else(|_| value.parse());
    let has_address = |network: IpNet| {
        let addresses = sample["addresses"].as_array().unwrap().iter();
        addresses.map(|address| address.as_str().unwrap().parse().unwrap()).any(|a: IpAddr| network.contains(&a))
    };
    match network {
        Ok(network) => has_address(network),
        Err(_) if value == "world" => end["kind"] == "world",
        Err(_) if value.contains('/') => is_workload(end, value),
        Err(_) => end["namespace"] == value,
    }
}

/// The fields that are stable while no connection begins and no window closes.
fn settled(record: &Value) -> Value {
    let names = ["window", "source", "destination", "protocol", "port", "verdict", "deniedPackets"];
    let fields = names.map(|name| record[name].clone());
    json!([fields, record["connections"]["started"], record["ingress"]])
}

fn settled_all<'a>(records: impl IntoIterator<Item = &'a Value>) -> Vec<Value> {
    records.into_iter().map(settled).collect()
}

/// The lines that the verb prints with this filter.
fn printed(stage: &Stage, filter: &Filter, more: &[&str]) -> Vec<Value> {
    let flags: Vec<String> = filter.iter().map(|(field, value)| format!("--{field}={value}")).collect();
    let shown = ended(flows(stage, more).args(flags).args(["--output", "json"]));
    assert_eq!(shown.code, Some(0), "{filter:?}: {}", shown.stderr);
    shown.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Connections between all pods.
fn connect_all(stage: &Stage) {
    for family in [0, 1] {
        serve(stage, DB[family], PORT);
        serve(stage, OTHER[family], 80);
        exchange(stage, WEB[family], DB[family], PORT, 1000);
        exchange(stage, OUTSIDE[family], OTHER[family], 80, 10);
        exchange(stage, DB[family], OTHER[family], 80, 10);
        send_datagrams(stage, WEB[family], OTHER[family], 9999, 2);
        send_datagrams(stage, OTHER[family], DB[family], 53, 1);
    }
}

fn is_complete(records: &[Value]) -> bool {
    sum(records, "/connections/started") == 8 && sum(records, "/deniedPackets") == 2
}

/// The records, and the answers while the records are stable, within one window.
#[track_caller]
fn while_settled<T>(stage: &Stage, ask: impl Fn() -> T) -> (Vec<Value>, T) {
    let window = || Timestamp::now().as_second().div_euclid(WINDOW_SECONDS);
    until("the records stay as they are", || {
        let (began, before) = (window(), records(stage, ""));
        let answer = ask();
        let is_settled = settled_all(&before) == settled_all(&records(stage, "")) && window() == began;
        is_settled.then_some((before, answer))
    })
}

#[test]
fn filters_admit_what_they_say_in_combination() {
    let (stage, clock) = (stage(), FakeClock::new());
    let mut agent = start_with_clock(&stage, &clock);
    connect_all(&stage);
    agent.until("all records", |_| is_complete(&records(&stage, "")).then_some(()));
    clock.set(AHEAD_SECONDS);
    // Open connections are in the records of each window.
    let last_window = agent.until("records of some windows", |_| {
        let found = records(&stage, "");
        let windows: BTreeSet<Timestamp> = found.iter().map(window_end).collect();
        (windows.len() > 3).then(|| (*windows.last().unwrap() - WINDOW).to_string())
    });
    let (since, db, everywhere) = (("since", &*last_window), ("peer", "shop/db"), ("peer", "shop"));
    let (web, other) = (("workload", "shop/web"), ("workload", "other"));
    let (tcp, udp) = (("protocol", "tcp"), ("protocol", "udp"));
    let filters: Vec<Vec<(&str, &str)>> = vec![
        vec![],
        vec![since],
        vec![("since", "10m")],
        vec![("since", "30s"), tcp],
        vec![("since", "45s"), web],
        vec![since, web],
        vec![since, other, tcp],
        vec![web],
        vec![web, db],
        vec![web, db, udp],
        vec![web, udp],
        vec![other],
        vec![other, db],
        vec![other, ("peer", "world"), tcp],
        vec![other, everywhere],
        vec![other, everywhere, tcp, ("since", "1h30m")],
        vec![db, ("protocol", "17")],
        vec![("peer", WEB[1])],
        vec![other, ("peer", "10.1.0.0/31")],
        vec![other, ("peer", "fd00:1::/64"), since],
        vec![("namespace", "shop"), ("peer", "world")],
        vec![("namespace", "shop"), web, ("peer", "world")],
        vec![("workload", "ops/web")],
    ];
    let mut numbers = BTreeSet::new();
    // Only a few filters at a time: on a slow machine all of them take longer than a window.
    for some in filters.chunks(4) {
        let (all, answers) = while_settled(&stage, || {
            // Durations count back from this time, within the same window.
            let ask = |filter: &Vec<_>| (printed(&stage, filter, &[]), Timestamp::now());
            some.iter().map(ask).collect::<Vec<(Vec<Value>, Timestamp)>>()
        });
        for (filter, (answer, asked)) in some.iter().zip(&answers) {
            let expected = all.iter().filter(|record| admits_at(filter, record, *asked));
            assert_eq!(settled_all(answer), settled_all(expected), "{filter:?}");
            numbers.insert(answer.len());
        }
    }
    assert!(numbers.len() > 5, "the filters choose alike: {numbers:?}");
}

/// Sums of records that have the same values in some fields.
type Groups = BTreeMap<String, [u64; 3]>;

fn grouped_here<'a>(fields: &[&str], records: impl Iterator<Item = &'a Value>) -> Groups {
    let mut groups = Groups::new();
    for record in records {
        let value = |field: &&str| match *field {
            "src" => json!({"source": record["source"]}),
            "dst" => json!({"destination": record["destination"]}),
            field => json!({field: record[field]}),
        };
        let values: Vec<Value> = fields.iter().map(value).collect();
        let sums = groups.entry(json!(values).to_string()).or_default();
        let started = record["connections"]["started"].as_u64().unwrap();
        for (sum, more) in sums.iter_mut().zip([1, started, record["deniedPackets"].as_u64().unwrap()]) {
            *sum += more;
        }
    }
    groups
}

fn grouped_by_the_verb(printed: &[Value]) -> Groups {
    let figures = |group: &Value| {
        [&group["records"], &group["connections"]["started"], &group["deniedPackets"]].map(|n| n.as_u64().unwrap())
    };
    printed.iter().map(|group| (group["by"].to_string(), figures(group))).collect()
}

#[test]
fn sums_by_fields_are_those_of_filtered_records() {
    let stage = stage();
    let mut agent = start(&stage);
    connect_all(&stage);
    agent.until("all records", |_| is_complete(&records(&stage, "")).then_some(()));
    let questions: [(&str, &Filter); 7] = [
        ("src,dst,port", &[]),
        ("dst", &[]),
        ("verdict,protocol", &[]),
        ("port", &[("workload", "other"), ("peer", "world")]),
        ("src,verdict", &[("peer", "shop/db")]),
        ("service,node", &[("protocol", "udp")]),
        ("src", &[("workload", "nobody")]),
    ];
    let (all, answers) = while_settled(&stage, || {
        questions.map(|(fields, filter)| grouped_by_the_verb(&printed(&stage, filter, &["--by", fields])))
    });
    for ((fields, filter), answer) in questions.iter().zip(answers) {
        let fields: Vec<&str> = fields.split(',').collect();
        let expected = grouped_here(&fields, all.iter().filter(|record| admits(filter, record)));
        assert_eq!(answer, expected, "{fields:?} {filter:?}");
    }
    let table = ended(&mut flows(&stage, &["--by", "src,dst", "--peer", "shop/db", "--workload", "shop/web"]));
    assert!(table.stdout.contains("src=shop/web  dst=shop/db  2 connections"), "{}", table.stdout);
}

#[test]
fn invalid_filters_name_what_was_expected() {
    let stage = stage();
    for (flags, expected) in [
        (vec!["--since", "yesterday"], "expected a duration such as 10m"),
        (vec!["--since=-5m"], "expected a duration such as 10m"),
        (vec!["--protocol", "256"], "expected tcp, udp"),
        (vec!["--workload", "a/b/c"], "expected WORKLOAD or NAMESPACE/WORKLOAD"),
        (vec!["--peer", "10.1.0.0/33"], "expected a namespace"),
        (vec!["--by", "src,colour"], "expected src, dst, port"),
        (vec!["--follow", "--by", "src"], "cannot be used with"),
    ] {
        let refused = ended(&mut flows(&stage, &flags));
        assert_eq!(refused.code, Some(2), "{flags:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(expected), "{flags:?}: {}", refused.stderr);
    }
}
