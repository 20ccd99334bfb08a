use expect_test::expect;
use proptest::prelude::*;
use proptest::sample::subsequence;

use super::*;
use crate::testing::{at, records, subject};
use crate::{Tracker, Windows};

const ALL: [GroupField; 8] = [
    GroupField::Source,
    GroupField::Destination,
    GroupField::Port,
    GroupField::Protocol,
    GroupField::Service,
    GroupField::Verdict,
    GroupField::Policy,
    GroupField::Node,
];

/// Sum over the records that have the value; `None` if no record has it.
fn sum(records: &[&FlowRecord], part: fn(&FlowRecord) -> Option<u64>) -> Option<u64> {
    records.iter().map(|record| part(record)).fold(None, |sum, part| match (sum, part) {
        (Some(sum), Some(part)) => Some(sum + part),
        (sum, part) => sum.or(part),
    })
}

proptest! {
    #[test]
    fn groups_sum_up_their_records(
        records in records(),
        by in subsequence(ALL.to_vec(), 0..=ALL.len()).prop_shuffle(),
    ) {
        let groups = group(&records, &by);
        prop_assert_eq!(groups.iter().map(|group| group.records).sum::<u64>(), records.len() as u64);
        for one in &groups {
            prop_assert_eq!(groups.iter().filter(|other| other.by == one.by).count(), 1);
            let members: Vec<&FlowRecord> = records
                .iter()
                .filter(|record| by.iter().map(|field| field.value(record)).eq(one.by.iter().cloned()))
                .collect();
            prop_assert_eq!(one.records, members.len() as u64);
            prop_assert_eq!(one.sent.map(|v| v.bytes), sum(&members, |record| record.sent.map(|v| v.bytes)));
            prop_assert_eq!(one.received.map(|v| v.packets), sum(&members, |record| record.received.map(|v| v.packets)));
            prop_assert_eq!(Some(one.connections.started), sum(&members, |record| Some(record.connections.started)));
            prop_assert_eq!(Some(one.connections.ended), sum(&members, |record| Some(record.connections.ended)));
            prop_assert_eq!(Some(one.connections.lost), sum(&members, |record| Some(record.connections.lost)));
            prop_assert_eq!(Some(one.denied_packets), sum(&members, |record| Some(record.denied_packets)));
            prop_assert_eq!(Some(one.unknown_volume), sum(&members, |record| Some(record.unknown_volume)));
            prop_assert_eq!(Some(one.first), members.iter().map(|record| record.first).min());
            prop_assert_eq!(Some(one.last), members.iter().map(|record| record.last).max());
            let live: u64 = members
                .iter()
                .filter(|member| {
                    records.iter().all(|other| other.node != member.node || other.window <= member.window)
                })
                .map(|member| member.connections.live)
                .sum();
            prop_assert_eq!(one.connections.live, live);
        }
        for pair in groups.windows(2) {
            let bytes = |group: &FlowGroup| {
                group.sent.map_or(0, |volume| volume.bytes) + group.received.map_or(0, |volume| volume.bytes)
            };
            let count = |group: &FlowGroup| group.connections.started.max(group.connections.live);
            prop_assert!(
                (bytes(&pair[1]), count(&pair[1])) < (bytes(&pair[0]), count(&pair[0]))
                    || ((bytes(&pair[1]), count(&pair[1])) == (bytes(&pair[0]), count(&pair[0])) && pair[0].by < pair[1].by)
            );
        }
        let json = serde_json::to_string(&groups).unwrap();
        prop_assert_eq!(serde_json::from_str::<Vec<FlowGroup>>(&json).unwrap(), groups);
    }
}

#[test]
fn group_fields_round_trip_through_text() {
    let words: Vec<String> = ALL.iter().map(GroupField::to_string).collect();
    assert_eq!(GroupField::parse_list(&words.join(",")), Ok(ALL.to_vec()));
    let mut errors = String::new();
    for text in ["src,dest", "", "src,dst,src"] {
        errors.push_str(&format!("{}\n", GroupField::parse_list(text).unwrap_err()));
    }
    expect![[r#"
        invalid field 'dest': expected src, dst, port, protocol, service, verdict, policy or node
        invalid field '': expected src, dst, port, protocol, service, verdict, policy or node
        field 'src' appears twice
    "#]]
    .assert_eq(&errors);
}

#[test]
fn group_has_this_json_and_these_cells() {
    let mut windows = Windows::new("worker-1".into(), 10);
    windows.denied(&subject(1), 3, at(0));
    let records = windows.open_records(at(0), &Tracker::new(0, 100));
    let groups = group(&records, &ALL);
    let cells: Vec<String> = groups[0].by.iter().map(GroupValue::to_string).collect();
    expect!["shop/web | shop/db-1 | 5432 | tcp | - | allowed | shop/db | worker-1"].assert_eq(&cells.join(" | "));
    let groups = group(&records, &[GroupField::Port, GroupField::Service, GroupField::Policy]);
    expect![[r#"
        [
          {
            "by": [
              {
                "port": 5432
              },
              {
                "service": null
              },
              {
                "policy": [
                  "shop/db"
                ]
              }
            ],
            "records": 1,
            "connections": {
              "started": 0,
              "ended": 0,
              "live": 0,
              "lost": 0
            },
            "sent": null,
            "received": null,
            "unknownVolume": 0,
            "deniedPackets": 3,
            "first": "2026-05-04T12:00:00Z",
            "last": "2026-05-04T12:00:00Z"
          }
        ]"#]]
    .assert_eq(&serde_json::to_string_pretty(&groups).unwrap());
}
