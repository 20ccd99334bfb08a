//! `Statistics/List` compared with sums over the reports of all connections.

use std::collections::{BTreeMap, BTreeSet};

use flow::{FlowVerdict, SideTrace};
use jiff::Timestamp;
use tests::goldmane_client::GoldmaneClient;
use tests::grpc_bytes::{Fields, Writer};

use super::super::traffic::{Random, Traffic};
use super::{GoldmaneHit, NamedPolicy, enforced, of_hit};

/// Requests: each type, grouping and form several times, with random policies.
const REQUESTS: usize = 120;

/// A hit, and the number of its rule.
type RuleHit = (GoldmaneHit, i64);

/// Key of a sum: the policy, and with a grouping by rules action, number of the rule and `RuleDirection`.
type Group = (NamedPolicy, Option<(i64, i64, i64)>);

/// Counts by begin of the window, or by 0: allowed, denied and passed, each in and out.
type Sums = BTreeMap<Group, BTreeMap<i64, [i64; 6]>>;

/// A flow of one reporter.
struct Report {
    window: i64,
    /// `RuleDirection`: 2 for the source, 1 for the destination.
    direction: i64,
    hits: Vec<RuleHit>,
    packets: [i64; 2],
    bytes: [i64; 2],
    live: [i64; 2],
}

/// Hits in the order of the protocol: those of enforced policies, then pending ones, if there are other ones.
fn hits(side: &SideTrace, namespace: Option<&str>) -> Vec<RuleHit> {
    let index = |hit: &flow::PolicyHit| {
        let number = hit.rule.as_deref().and_then(|rule| rule.strip_suffix(']')?.rsplit('[').next()?.parse().ok());
        number.unwrap_or(-1)
    };
    let of_enforced = enforced(side, namespace);
    let numbers: Vec<i64> = side.passed_by.iter().chain(&side.enforced).map(index).collect();
    // A profile has no rule; its number is 0.
    let numbered = of_enforced.into_iter().enumerate().map(|(place, hit)| {
        let number = if hit.policy.kind == 9 { 0 } else { numbers[place] };
        (hit, number)
    });
    let pending = side.pending.iter().map(|hit| (of_hit(hit, 5), index(hit)));
    numbered.chain(pending).collect()
}

/// Traffic of these tests sends 300 bytes in 3 packets, and has two open connections.
fn reports(traffic: &Traffic) -> Vec<Report> {
    let key = traffic.key();
    let report = |direction: i64, verdict: FlowVerdict, hits: Vec<RuleHit>| {
        let is_source = direction == 2;
        // A flow that is denied has the denied packets instead, of which this traffic has none.
        let count = |sent: i64| match (verdict == FlowVerdict::Denied, is_source) {
            (true, _) => [0, 0],
            (false, true) => [0, sent],
            (false, false) => [sent, 0],
        };
        let live = if is_source { [0, 2] } else { [2, 0] };
        let window = traffic.first.window.as_second();
        Report { window, direction, hits, packets: count(3), bytes: count(300), live }
    };
    let mut reports = Vec::new();
    if let Some(verdict) = traffic.source_verdict() {
        reports.push(report(2, verdict, hits(&key.egress, key.source.namespace.as_deref())));
    }
    if let Some(verdict) = traffic.destination_verdict() {
        let trace = &traffic.last_record().key.ingress;
        reports.push(report(1, verdict, hits(trace, key.destination.namespace.as_deref())));
    }
    reports
}

fn expected(
    reports: &[Report],
    kind: i64,
    is_by_rule: bool,
    is_series: bool,
    is_wanted: impl Fn(&GoldmaneHit) -> bool,
) -> Sums {
    let mut sums = Sums::new();
    for report in reports {
        let counts = [report.packets, report.bytes, report.live][kind as usize];
        let mut counted = BTreeSet::new();
        for (hit, number) in report.hits.iter().filter(|(hit, _)| is_wanted(hit)) {
            let policy = hit.trigger.clone().unwrap_or_else(|| hit.policy.clone());
            let group = (policy, is_by_rule.then_some((hit.action, *number, report.direction)));
            if !counted.insert((group.clone(), hit.action)) {
                continue;
            }
            let bucket = if is_series { report.window } else { 0 };
            let sum = sums.entry(group).or_default().entry(bucket).or_default();
            let place = match hit.action {
                1 => 0,
                2 => 2,
                _ => 4,
            };
            sum[place] += counts[0];
            sum[place + 1] += counts[1];
        }
    }
    sums
}

/// Packed numbers of a field; absent ones are none.
fn numbers(result: &Fields, field: u32) -> Vec<i64> {
    let mut numbers = Vec::new();
    for bytes in result.all(field) {
        let (mut number, mut shift) = (0_u64, 0);
        for byte in bytes {
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                numbers.push(number.cast_signed());
                (number, shift) = (0, 0);
            }
        }
    }
    numbers
}

fn read(results: &[Fields], is_by_rule: bool, is_series: bool) -> Sums {
    let mut sums = Sums::new();
    for result in results {
        let hit = result.message(1);
        let rule = is_by_rule.then(|| (hit.number(5), hit.number(7), result.number(2)));
        let starts = if is_series { numbers(result, 11) } else { vec![0] };
        let columns: Vec<Vec<i64>> = (5..=10).map(|field| numbers(result, field)).collect();
        assert!(columns.iter().all(|column| column.len() == starts.len()), "{columns:?} at {starts:?}");
        let buckets = starts.iter().enumerate().map(|(place, start)| {
            let values: Vec<i64> = columns.iter().map(|column| column[place]).collect();
            (*start, values.try_into().expect("six columns"))
        });
        assert!(sums.insert((NamedPolicy::read(&hit), rule), buckets.collect()).is_none(), "two results of {hit:?}");
    }
    sums
}

pub(super) fn compare(client: &GoldmaneClient, traffic: &[Traffic], random: &mut Random) {
    let reports: Vec<Report> = traffic.iter().flat_map(reports).collect();
    let mut partial = 0;
    for number in 0..REQUESTS {
        let (kind, is_by_rule, is_series) = ((number % 3) as i64, number % 2 == 0, number % 4 < 2);
        let (policy_kind, action) = (random.pick(&[0, 0, 4, 5, 6, 9, 10, 11]), random.pick(&[0, 0, 1, 2, 3]));
        let (namespace, name) = (random.pick(&["", "shop", "pay"]), random.pick(&["", "", "db", "kns.shop"]));
        let wanted = Writer::default().number(1, policy_kind).text(3, namespace).text(4, name).number(5, action);
        let is_policy = |policy: &NamedPolicy| {
            (policy_kind == 0 || policy.kind == policy_kind)
                && (namespace.is_empty() || policy.namespace == namespace)
                && (name.is_empty() || policy.name == name)
        };
        let is_wanted = |hit: &GoldmaneHit| {
            (action == 0 || hit.action == action)
                && (is_policy(&hit.policy) || hit.trigger.as_ref().is_some_and(is_policy))
        };
        let request = Writer::default()
            .number(2, Timestamp::now().as_second() + 60)
            .number(3, kind)
            .number(4, i64::from(is_by_rule))
            .message(5, wanted)
            .number(6, i64::from(is_series));
        let seen = read(&client.statistics(request).unwrap(), is_by_rule, is_series);
        let expected = expected(&reports, kind, is_by_rule, is_series, is_wanted);
        let difference = expected.iter().find(|(group, sums)| seen.get(group) != Some(sums));
        assert!(seen.len() == expected.len() && difference.is_none(), "request {number}: {difference:?}");
        partial += usize::from(!seen.is_empty());
    }
    assert!(partial * 4 > REQUESTS, "only {partial} requests have results");
}
