use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::join;
use crate::testing::{at, cluster_records, record_of};

fn counted(records: &[ClusterRecord], given: &[(&str, &str)]) -> u64 {
    let filters = FlowFilters::parse(given.iter().copied(), at(0)).unwrap();
    records.iter().filter(|joined| filters.admits(&joined.record)).count() as u64
}

/// All values that generated records can have, and some that never occur.
fn candidates(field: HintField) -> Vec<&'static str> {
    match field {
        HintField::Namespace => vec!["shop", "pay", "none"],
        HintField::Workload => vec!["shop/web", "shop/db", "pay/web", "pay/db", "none/web"],
        HintField::Peer => {
            let kinds = ["world", "kube-apiserver", "unknown-pod", "remote-cluster"];
            let names = ["shop", "pay", "n1", "web", "shop/web", "shop/db", "pay/web", "pay/db", "none"];
            kinds.into_iter().chain(names).collect()
        }
        HintField::Port => vec!["80", "443", "81"],
        HintField::Protocol => vec!["icmp", "tcp", "udp", "sctp"],
        HintField::Verdict => vec!["allowed", "would-deny", "denied"],
        HintField::Policy => vec!["shop/db", "shop/web", "pay/db", "pay/web"],
    }
}

fn without_pods(mut joined: ClusterRecord) -> ClusterRecord {
    for sample in [&mut joined.record.sources, &mut joined.record.destinations] {
        Arc::make_mut(sample).pods.clear();
    }
    joined
}

proptest! {
    #[test]
    fn hints_count_what_their_filter_admits(
        records in cluster_records(),
        field in select(HintField::ALL.to_vec()),
        given in select(vec![
            vec![],
            vec![("namespace", "shop")],
            vec![("namespace", "shop"), ("peer", "world")],
            vec![("workload", "shop/web"), ("port", "80")],
            vec![("verdict", "denied"), ("verdict", "would-deny")],
        ]),
        prefix in select(vec!["", "s", "we", "1"]),
        most in 1usize..8,
    ) {
        // A workload as a peer also matches a listed pod of that name, which is never suggested.
        let records: Vec<ClusterRecord> = records.into_iter().map(without_pods).collect();
        let given: Vec<_> = given.into_iter().filter(|(name, _)| *name != field.as_str()).collect();
        let filters = FlowFilters::parse(given.iter().copied(), at(0)).unwrap();
        let mut builder = HintBuilder::new(field, filters, prefix.to_owned());
        records.iter().for_each(|joined| builder.add(joined));
        let hints = builder.finish(most);
        let mut expected: Vec<(u64, &str)> = candidates(field)
            .into_iter()
            .filter(|value| value.starts_with(prefix) || value.split('/').skip(1).any(|name| name.starts_with(prefix)))
            .map(|value| (counted(&records, &[&given[..], &[(field.as_str(), value)]].concat()), value))
            .filter(|(records, _)| *records > 0)
            .collect();
        expected.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        let found: Vec<(u64, &str)> = hints.values.iter().map(|hint| (hint.records, hint.value.as_str())).collect();
        prop_assert_eq!(hints.truncated, expected.len() > most);
        expected.truncate(most);
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn counted_values_are_bounded() {
    let records: Vec<_> = (0..20)
        .map(|port| {
            let mut record = record_of("n1", 0);
            Arc::make_mut(&mut record.key).port = Some(port);
            record
        })
        .collect();
    let mut builder = HintBuilder::new(HintField::Port, FlowFilters::default(), String::new());
    join(&records).iter().for_each(|joined| builder.add_within(joined, 8));
    assert_eq!(builder.counts.len(), 8);
    let hints = builder.finish(MOST_HINTS);
    assert_eq!((hints.values.len(), hints.truncated), (8, true));
    assert!("colour".parse::<HintField>().unwrap_err().to_string().contains("expected namespace"));
}
