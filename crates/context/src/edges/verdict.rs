//! Verdict of a list of declared edges on a flow.

use std::net::IpAddr;
use std::str::FromStr;

use policy::remote::RemoteSet;
use policy::{Block, Direction, ObjectName, Protocol};

use super::statement::{Statement, StatementEnd, StatementPorts};
use super::text::Form;

/// One end of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Party {
    Workload(ObjectName),
    /// An address that belongs to no pod of this cluster.
    Outside(IpAddr),
    /// Pods of other clusters.
    Remote(RemotePods),
}

/// Pods of other clusters: those with an address, or those of a set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemotePods {
    /// An address may be in several sets.
    pub sets: Vec<RemoteSet>,
    /// The known addresses.
    pub addresses: Vec<IpAddr>,
}

/// Port and protocol of the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortQuery {
    /// A port of any protocol that the list allows.
    Number(u16),
    Port(Protocol, u16),
    /// ICMP, and other protocols without ports.
    Portless,
}

/// Parse error of a port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid port '{0}': expected PORT, PORT/PROTOCOL or icmp, with ports from 1 to 65535")]
pub struct NotAsked(String);

impl FromStr for PortQuery {
    type Err = NotAsked;
    fn from_str(text: &str) -> Result<PortQuery, NotAsked> {
        let lower = text.to_ascii_lowercase();
        // Port 0 is not used, and a policy cannot specify it.
        let port = |number: &str| number.parse().ok().filter(|number| *number != 0);
        let asked = match lower.split_once('/') {
            None if lower == "icmp" => Some(PortQuery::Portless),
            None => port(&lower).map(PortQuery::Number),
            Some((number, word)) => {
                let protocol = Protocol::ALL.into_iter().find(|p| super::text::protocol(*p).eq_ignore_ascii_case(word));
                protocol.and_then(|protocol| Some(PortQuery::Port(protocol, port(number)?)))
            }
        };
        asked.ok_or_else(|| NotAsked(text.to_owned()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EdgeVerdict<'a> {
    /// The line that declares the flow: rather one for all pods than for some, and one with both ends than `*/*`.
    Declared(&'a Statement),
    /// The flow is not declared; these lines show that an end of it is governed.
    Violation(Vec<&'a Statement>),
    /// The flow is not declared unless its destination has the domain name of this line, which the nodes alone know.
    OfName(&'a Statement),
    /// Neither end is governed.
    NotGoverned,
}

/// The verdict of a list in a form. In the extended form, blocks cover addresses that belong to no pod of this cluster,
/// and `*/*` does not; the compatible form has only `*/*` for them. The same applies to pods of other clusters, whose
/// sets are named in either form as well.
pub fn verdict<'a>(
    form: Form,
    list: &'a [Statement],
    source: &Party,
    destination: &Party,
    asked: PortQuery,
) -> EdgeVerdict<'a> {
    let governs = |statement: &&Statement| match statement {
        Statement::IngressGoverned(workload) => is(destination, workload),
        Statement::EgressGoverned(workload) | Statement::Governs { workload, direction: Direction::Egress, .. } => {
            is(source, workload)
        }
        Statement::ClusterGoverns { workload, direction: Direction::Egress, .. } => is(source, workload),
        Statement::Governs { workload, direction: Direction::Ingress, .. }
        | Statement::ClusterGoverns { workload, direction: Direction::Ingress, .. } => is(destination, workload),
        Statement::Edge { .. } | Statement::Rule { .. } => false,
    };
    let governing: Vec<&Statement> = list.iter().filter(governs).collect();
    if governing.is_empty() {
        return EdgeVerdict::NotGoverned;
    }
    let declares = |statement: &&Statement| match statement {
        Statement::Edge { source: from, destination: to, ports, .. } => {
            means(form, from, source) && means(form, to, destination) && carries(*ports, asked)
        }
        Statement::IngressGoverned(_)
        | Statement::EgressGoverned(_)
        | Statement::Governs { .. }
        | Statement::ClusterGoverns { .. }
        | Statement::Rule { .. } => false,
    };
    let vague = |statement: &&Statement| match statement {
        Statement::Edge { source, destination, partial, .. } => {
            (*partial, *source == StatementEnd::Any || *destination == StatementEnd::Any)
        }
        Statement::IngressGoverned(_)
        | Statement::EgressGoverned(_)
        | Statement::Governs { .. }
        | Statement::ClusterGoverns { .. }
        | Statement::Rule { .. } => (true, true),
    };
    if let Some(statement) = list.iter().filter(declares).min_by_key(vague) {
        return EdgeVerdict::Declared(statement);
    }
    let may_declare = |statement: &&Statement| match (statement, destination) {
        (Statement::Edge { source: from, destination: StatementEnd::Name(_), ports, .. }, Party::Outside(_)) => {
            means(form, from, source) && carries(*ports, asked)
        }
        (_, _) => false,
    };
    match list.iter().find(may_declare) {
        Some(statement) => EdgeVerdict::OfName(statement),
        None => EdgeVerdict::Violation(governing),
    }
}

/// Whether the list mentions the workload. One that is neither governed nor named may exist all the same.
pub fn mentions(list: &[Statement], workload: &ObjectName) -> bool {
    list.iter().any(|statement| match statement {
        Statement::IngressGoverned(governed) | Statement::EgressGoverned(governed) => governed == workload,
        Statement::Governs { workload: governed, .. } | Statement::ClusterGoverns { workload: governed, .. } => {
            governed == workload
        }
        Statement::Edge { source, destination, .. } | Statement::Rule { source, destination, .. } => {
            [source, destination]
                .into_iter()
                .any(|who| matches!(who, StatementEnd::Workload(named) if named == workload))
        }
    })
}

/// Whether a line names the remote set. One that no policy selects may exist all the same.
pub fn mentions_remote(list: &[Statement], set: &RemoteSet) -> bool {
    list.iter().any(|statement| match statement {
        Statement::Edge { source, destination, .. } => {
            [source, destination].into_iter().any(|who| matches!(who, StatementEnd::Remote(named) if named == set))
        }
        Statement::IngressGoverned(_)
        | Statement::EgressGoverned(_)
        | Statement::Governs { .. }
        | Statement::ClusterGoverns { .. }
        | Statement::Rule { .. } => false,
    })
}

fn is(party: &Party, workload: &ObjectName) -> bool {
    match party {
        Party::Workload(name) => name == workload,
        Party::Outside(_) | Party::Remote(_) => false,
    }
}

fn means(form: Form, who: &StatementEnd, party: &Party) -> bool {
    match (who, party) {
        (StatementEnd::Any, Party::Workload(_)) => true,
        (StatementEnd::Any, Party::Outside(_) | Party::Remote(_)) => form == Form::Compatible,
        (StatementEnd::Workload(workload), party) => is(party, workload),
        (StatementEnd::Remote(set), Party::Remote(pods)) => pods.sets.contains(set),
        (StatementEnd::Remote(_), Party::Workload(_) | Party::Outside(_)) => false,
        (StatementEnd::Block(block), Party::Outside(address)) => holds(block, *address),
        (StatementEnd::Block(block), Party::Remote(pods)) => holds_all(block, &pods.addresses),
        (StatementEnd::Block(_), Party::Workload(_)) | (StatementEnd::Name(_), _) => false,
    }
}

fn holds(block: &Block, address: IpAddr) -> bool {
    block.cidr.contains(&address) && !block.except.iter().any(|except| except.contains(&address))
}

/// Whether the block contains all addresses of its family, and there is at least one. A block of the whole family
/// contains them even if none is known.
fn holds_all(block: &Block, addresses: &[IpAddr]) -> bool {
    let is_whole_family = block.cidr.prefix_len() == 0 && block.except.is_empty();
    let mut of_family = addresses.iter().filter(|address| address.is_ipv4() == block.cidr.addr().is_ipv4()).peekable();
    match of_family.peek() {
        Some(_) => of_family.all(|address| holds(block, *address)),
        None => addresses.is_empty() && is_whole_family,
    }
}

fn carries(ports: StatementPorts, asked: PortQuery) -> bool {
    match (ports, asked) {
        (StatementPorts::Any, _) | (StatementPorts::Portless, PortQuery::Portless) => true,
        (StatementPorts::Portless, PortQuery::Number(_) | PortQuery::Port(..)) => false,
        (_, PortQuery::Portless) => false,
        (StatementPorts::Number(number), PortQuery::Number(asked) | PortQuery::Port(_, asked)) => number == asked,
        (StatementPorts::Span(span), PortQuery::Number(asked)) => (span.first..=span.last).contains(&asked),
        (StatementPorts::Span(span), PortQuery::Port(protocol, asked)) => {
            span.protocol == protocol && (span.first..=span.last).contains(&asked)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::parse;

    const LIST: &str = "# NetworkPolicy-derived declared-edge allow-list (extended)
C 192.0.2.0/24 except 192.0.2.7/32 > shop/web : 443/TCP
E */* > shop/web : 8000-9000/TCP
E shop/web > shop/api : 80/TCP
E shop/web > shop/api : 80/UDP some
E east:shop/web > shop/api : 5432/TCP
E shop/web > east:shop/db : 5432/TCP
G shop/api
G shop/web
N shop/web > *.example.org : 443/TCP
S shop/web
";

    fn said(source: &str, destination: &str, asked: &str) -> String {
        let (form, list) = parse(LIST).unwrap();
        let party = |text: &str| match (text.parse(), text.parse()) {
            (Ok(address), _) => Party::Outside(address),
            (Err(_), Ok(set)) => Party::Remote(RemotePods { sets: vec![set], addresses: vec![] }),
            (Err(_), Err(_)) => Party::Workload(text.parse().unwrap()),
        };
        match verdict(form, &list, &party(source), &party(destination), asked.parse().unwrap()) {
            EdgeVerdict::Declared(Statement::Edge { partial, .. }) => format!("declared {partial}"),
            EdgeVerdict::Declared(other) => panic!("{other:?}"),
            EdgeVerdict::Violation(governing) => format!("violation of {}", governing.len()),
            EdgeVerdict::OfName(line) => line.to_string(),
            EdgeVerdict::NotGoverned => "not governed".into(),
        }
    }

    #[test]
    fn flow_verdict_is_declared_violation_or_not_governed() {
        for (source, destination, asked, expected) in [
            ("shop/web", "shop/api", "80", "declared false"),
            ("shop/web", "shop/api", "80/udp", "declared true"),
            ("shop/web", "shop/api", "81/TCP", "violation of 2"),
            ("shop/web", "shop/api", "icmp", "violation of 2"),
            ("other/x", "shop/web", "8500/tcp", "declared false"),
            ("other/x", "shop/web", "8500/udp", "violation of 1"),
            ("shop/api", "other/x", "1", "not governed"),
            ("shop/web", "other/x", "1", "violation of 1"),
            ("192.0.2.1", "shop/web", "443", "declared false"),
            ("192.0.2.7", "shop/web", "443", "violation of 1"),
            ("192.0.2.1", "shop/web", "8500", "violation of 1"),
            ("shop/api", "198.51.100.1", "443", "not governed"),
            ("shop/web", "198.51.100.1", "443", "N shop/web > *.example.org : 443/TCP"),
            ("shop/web", "198.51.100.1", "80", "violation of 1"),
            ("east/shop/web", "shop/api", "5432", "declared false"),
            ("east/shop/web", "shop/api", "5433", "violation of 1"),
            ("west/shop/web", "shop/api", "5432", "violation of 1"),
            // It is not a pod of the workload of the same name here, and `*/*` does not cover it.
            ("east/shop/web", "shop/api", "80", "violation of 1"),
            ("shop/web", "shop/api", "5432", "violation of 2"),
            ("east/shop/web", "shop/web", "8500", "violation of 1"),
            ("shop/web", "east/shop/db", "5432/tcp", "declared false"),
            ("shop/web", "east/shop/web", "5432/tcp", "violation of 1"),
            ("east/shop/web", "east/shop/db", "1", "not governed"),
        ] {
            assert_eq!(said(source, destination, asked), expected, "{source} > {destination} : {asked}");
        }
        for wrong in ["http", "80/icmp", "70000", "0", "0/tcp", "-1", ""] {
            assert!(wrong.parse::<PortQuery>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn remote_pod_is_declared_by_set_or_block() {
        let text = "# NetworkPolicy-derived declared-edge allow-list (extended)
C 10.9.0.0/24 except 10.9.0.9/32 > shop/api : 443/TCP
C 0.0.0.0/0 > shop/api : 53/UDP
E east:shop/web > shop/api : 80/TCP
E west:shop/jobs > shop/api : 81/TCP
G shop/api
";
        let (form, list) = parse(text).unwrap();
        let pods = |sets: &[&str], addresses: &[&str]| {
            Party::Remote(RemotePods {
                sets: sets.iter().map(|set| set.parse().unwrap()).collect(),
                addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            })
        };
        let both = pods(&["east/shop/web", "west/shop/jobs"], &["10.9.0.1"]);
        let api = Party::Workload("shop/api".parse().unwrap());
        let is_declared = |source: &Party, asked: &str| {
            matches!(verdict(form, &list, source, &api, asked.parse().unwrap()), EdgeVerdict::Declared(_))
        };
        assert!(["80", "81", "443", "53/udp"].iter().all(|asked| is_declared(&both, asked)));
        assert!(!["82", "53/tcp"].iter().any(|asked| is_declared(&both, asked)));
        // A block declares a set by name if it contains all known addresses of a family.
        let web = |addresses: &[&str]| pods(&["east/shop/web"], addresses);
        assert!(is_declared(&web(&["10.9.0.1", "10.9.0.2", "fd00::1"]), "443"));
        assert!(!is_declared(&web(&["10.9.0.1", "10.9.0.9"]), "443") && !is_declared(&web(&[]), "443"));
        assert!(is_declared(&web(&[]), "53/udp") && !is_declared(&web(&["fd00::1"]), "53/udp"));
    }
}
