//! Lists of declared edges, as their consumers decode them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use context::edges::{EdgeDelta, Party, PortQuery, Statement, StatementEnd, mentions, parse, parse_line, verdict};
use policy::{ObjectName, Protocol};

/// Bytes as a list, or as a delta of one. A decoded edge is encoded as an equivalent line.
///
/// # Panics
/// If that does not hold.
pub fn edges(bytes: &[u8]) {
    if let Ok(delta) = serde_json::from_slice::<EdgeDelta>(bytes) {
        let text = serde_json::to_vec(&delta).expect("strings and numbers are serializable");
        assert_eq!(serde_json::from_slice::<EdgeDelta>(&text).expect("it was written by us"), delta);
        delta.adds.iter().chain(&delta.removes).for_each(|line| said_again(line));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    text.lines().for_each(said_again);
    let Ok((form, list)) = parse(text) else { return };
    let mut parties: Vec<Party> = list.iter().flat_map(workloads).take(8).map(Party::Workload).collect();
    parties.push(Party::Outside(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    parties.push(Party::Outside(IpAddr::V6(Ipv6Addr::UNSPECIFIED)));
    for source in &parties {
        for destination in &parties {
            for asked in [PortQuery::Number(80), PortQuery::Port(Protocol::Udp, 65_535), PortQuery::Portless] {
                verdict(form, &list, source, destination, asked);
            }
        }
        if let Party::Workload(workload) = source {
            assert!(mentions(&list, workload), "{workload:?} is in the list");
        }
    }
}

fn said_again(line: &str) {
    if let Ok(statement) = parse_line(line) {
        let written = statement.to_string();
        assert_eq!(parse_line(&written).unwrap_or_else(|e| panic!("{e}: {line:?}")), statement, "{line:?}");
    }
}

fn workloads(statement: &Statement) -> Vec<ObjectName> {
    let of = |who: &StatementEnd| match who {
        StatementEnd::Workload(workload) => Some(workload.clone()),
        StatementEnd::Any | StatementEnd::Remote(_) | StatementEnd::Block(_) | StatementEnd::Name(_) => None,
    };
    match statement {
        Statement::Edge { source, destination, .. } | Statement::Rule { source, destination, .. } => {
            [of(source), of(destination)].into_iter().flatten().collect()
        }
        Statement::IngressGoverned(workload)
        | Statement::EgressGoverned(workload)
        | Statement::Governs { workload, .. }
        | Statement::ClusterGoverns { workload, .. } => vec![workload.clone()],
    }
}
