use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::testing::cluster_records;

/// One hit of a record, read from its JSON form.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hit {
    policy: String,
    rule: Option<String>,
    direction: &'static str,
    stage: &'static str,
    decision: &'static str,
}

fn hits_naively(record: &Value) -> Vec<Hit> {
    let mut hits: Vec<Hit> = Vec::new();
    for direction in ["egress", "ingress"] {
        let side = &record[direction];
        for (field, stage) in [("enforced", "enforced"), ("pending", "pending"), ("passedBy", "enforced")] {
            for hit in side[field].as_array().into_iter().flatten() {
                let decision = match (stage, hit["action"].as_str().unwrap()) {
                    (_, "allow") => "allowed",
                    (_, "pass") => "passed",
                    ("enforced", "deny") => "denied",
                    _ => "wouldDeny",
                };
                let policy = format!("{}/{}", hit["namespace"].as_str().unwrap(), hit["name"].as_str().unwrap());
                let rule = hit["rule"].as_str().map(str::to_owned);
                let hit = Hit { policy, rule, direction, stage, decision };
                if side["enforcedHere"] == true && !hits.contains(&hit) {
                    hits.push(hit);
                }
            }
        }
    }
    hits
}

/// `[connections, packets, bytes, deniedPackets]` of a record.
fn amounts(record: &Value, decision: &str) -> [u64; 4] {
    let number = |pointer: &str| record.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let denied = if decision == "allowed" { 0 } else { number("/deniedPackets") };
    [
        number("/connections/started"),
        number("/sent/packets") + number("/received/packets"),
        number("/sent/bytes") + number("/received/bytes"),
        denied,
    ]
}

/// Checks an entry against the sums over the records with a hit that `is_meant` selects.
fn assert_entry(entry: &Value, records: &[Value], is_meant: impl Fn(&Hit) -> bool) -> Result<(), TestCaseError> {
    let mut last: Option<&str> = None;
    for decision in ["allowed", "denied", "wouldDeny", "passed"] {
        let mut expected = [0; 4];
        for record in records {
            if hits_naively(record).iter().any(|hit| hit.decision == decision && is_meant(hit)) {
                let amounts = amounts(record, decision);
                expected.iter_mut().zip(amounts).for_each(|(sum, more)| *sum += more);
                last = last.max(record["last"].as_str());
            }
        }
        let fields = ["connections", "packets", "bytes", "deniedPackets"];
        prop_assert_eq!(
            fields.map(|field| entry[decision][field].as_u64().unwrap()),
            expected,
            "{} {}",
            decision,
            entry
        );
    }
    let seen: Timestamp = entry["lastSeen"].as_str().unwrap().parse().unwrap();
    let last: Timestamp = records
        .iter()
        .filter(|record| hits_naively(record).iter().any(&is_meant))
        .map(|record| record["last"].as_str().unwrap().parse().unwrap())
        .max()
        .unwrap();
    prop_assert_eq!(seen, last);
    Ok(())
}

fn names(entry: &Value, hit: &Hit) -> bool {
    let policy = format!("{}/{}", entry["namespace"].as_str().unwrap(), entry["name"].as_str().unwrap());
    policy == hit.policy && entry["direction"] == hit.direction && entry["stage"] == hit.stage
}

proptest! {
    #[test]
    fn statistics_are_sums_over_hits(records in cluster_records()) {
        let mut builder = StatisticsBuilder::new();
        records.iter().for_each(|joined| builder.add(joined));
        let statistics = serde_json::to_value(builder.finish()).unwrap();
        let records: Vec<Value> = records.iter().map(|joined| serde_json::to_value(joined).unwrap()).collect();
        let hits: Vec<Hit> = records.iter().flat_map(hits_naively).collect();
        let rules = statistics["rules"].as_array().unwrap();
        let policies = statistics["policies"].as_array().unwrap();
        for hit in &hits {
            let rule_of = |entry: &&Value| names(entry, hit) && entry["rule"].as_str() == hit.rule.as_deref();
            prop_assert_eq!(rules.iter().filter(rule_of).count(), 1);
            prop_assert_eq!(policies.iter().filter(|entry| names(entry, hit)).count(), 1);
        }
        for entry in rules {
            assert_entry(entry, &records, |hit| names(entry, hit) && entry["rule"].as_str() == hit.rule.as_deref())?;
        }
        for entry in policies {
            assert_entry(entry, &records, |hit| names(entry, hit))?;
        }
        prop_assert_eq!(&statistics["truncated"], false);
        let total: u64 = records.iter().map(|record| record["connections"]["started"].as_u64().unwrap()).sum();
        prop_assert_eq!(&statistics["totals"]["connections"], total);
    }

    #[test]
    fn rules_beyond_the_bound_are_other(records in cluster_records(), most in 0usize..6) {
        let [mut bounded, mut whole] = [StatisticsBuilder::new(), StatisticsBuilder::new()];
        for joined in &records {
            bounded.add_within(joined, most);
            whole.add(joined);
        }
        let (bounded, whole) = (bounded.finish(), whole.finish());
        prop_assert!(bounded.rules.len() <= most && bounded.policies.len() <= most);
        prop_assert_eq!(bounded.truncated, whole.rules.len() > most);
        let sum = |statistics: &Statistics| {
            let rules = statistics.rules.iter().map(|rule| rule.traffic).chain([statistics.other]);
            rules.fold(DecidedTraffic::default(), |mut sum, RuleTraffic { allowed, denied, would_deny, passed, last_seen: _ }| {
                [allowed, denied, would_deny, passed].into_iter().for_each(|traffic| sum += traffic);
                sum
            })
        };
        prop_assert_eq!(sum(&bounded), sum(&whole));
    }
}
