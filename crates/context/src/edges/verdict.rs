//! What a list says of a flow.

use std::net::IpAddr;
use std::str::FromStr;

use policy::remote::RemoteSet;
use policy::{Block, Direction, ObjectName, Protocol};

use super::statement::{Ports, Statement, Who};
use super::text::Form;

/// One end of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Party {
    Workload(ObjectName),
    /// An address that is no pod's of this cluster.
    Outside(IpAddr),
    /// Pods of other clusters.
    Remote(RemotePods),
}

/// Pods of other clusters: those that have an address, or those of a set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemotePods {
    /// An address may be in several.
    pub sets: Vec<RemoteSet>,
    /// As far as they are known.
    pub addresses: Vec<IpAddr>,
}

/// What the flow carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// To a port of whichever protocol the list allows it for.
    Number(u16),
    Port(Protocol, u16),
    /// ICMP, and whatever else has no ports.
    Portless,
}

/// Why a text is none that says what a flow carries.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid port '{0}': expected PORT, PORT/PROTOCOL or icmp, with ports from 1 to 65535")]
pub struct NotAsked(String);

impl FromStr for Asked {
    type Err = NotAsked;
    fn from_str(text: &str) -> Result<Asked, NotAsked> {
        let lower = text.to_ascii_lowercase();
        // Nothing is sent to port 0, and no policy can name it.
        let port = |number: &str| number.parse().ok().filter(|number| *number != 0);
        let asked = match lower.split_once('/') {
            None if lower == "icmp" => Some(Asked::Portless),
            None => port(&lower).map(Asked::Number),
            Some((number, word)) => {
                let protocol = Protocol::ALL.into_iter().find(|p| super::text::protocol(*p).eq_ignore_ascii_case(word));
                protocol.and_then(|protocol| Some(Asked::Port(protocol, port(number)?)))
            }
        };
        asked.ok_or_else(|| NotAsked(text.to_owned()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// By this line: one that holds for all pods rather than for some, one that names both ends rather than `*/*`.
    Declared(&'a Statement),
    /// No line declares it, and these say that somebody governs it.
    Violation(Vec<&'a Statement>),
    /// No line speaks of either end.
    NotGoverned,
}

/// What a list in a form says of a flow. Blocks of the extended form speak of addresses that are no pod's of this cluster, and
/// `*/*` does not mean them there; the compatible form has nothing else for them. So it is for pods of other clusters, of
/// whose sets either form speaks as well.
pub fn verdict<'a>(
    form: Form,
    list: &'a [Statement],
    source: &Party,
    destination: &Party,
    asked: Asked,
) -> Verdict<'a> {
    let governs = |statement: &&Statement| match statement {
        Statement::IngressGoverned(workload) => is(destination, workload),
        Statement::EgressGoverned(workload) | Statement::Governs { workload, direction: Direction::Egress, .. } => {
            is(source, workload)
        }
        Statement::Governs { workload, direction: Direction::Ingress, .. } => is(destination, workload),
        Statement::Edge { .. } => false,
    };
    let governing: Vec<&Statement> = list.iter().filter(governs).collect();
    if governing.is_empty() {
        return Verdict::NotGoverned;
    }
    let declares = |statement: &&Statement| match statement {
        Statement::Edge { source: from, destination: to, ports, .. } => {
            means(form, from, source) && means(form, to, destination) && carries(*ports, asked)
        }
        Statement::IngressGoverned(_) | Statement::EgressGoverned(_) | Statement::Governs { .. } => false,
    };
    let vague = |statement: &&Statement| match statement {
        Statement::Edge { source, destination, partial, .. } => {
            (*partial, *source == Who::Any || *destination == Who::Any)
        }
        Statement::IngressGoverned(_) | Statement::EgressGoverned(_) | Statement::Governs { .. } => (true, true),
    };
    match list.iter().filter(declares).min_by_key(vague) {
        Some(statement) => Verdict::Declared(statement),
        None => Verdict::Violation(governing),
    }
}

/// Whether the list says anything of the workload. One that no policy governs and no line names may be there all the same.
pub fn mentions(list: &[Statement], workload: &ObjectName) -> bool {
    list.iter().any(|statement| match statement {
        Statement::IngressGoverned(governed) | Statement::EgressGoverned(governed) => governed == workload,
        Statement::Governs { workload: governed, .. } => governed == workload,
        Statement::Edge { source, destination, .. } => {
            [source, destination].into_iter().any(|who| matches!(who, Who::Workload(named) if named == workload))
        }
    })
}

/// Whether a line names the remote set. One that no policy selects may be there all the same.
pub fn mentions_remote(list: &[Statement], set: &RemoteSet) -> bool {
    list.iter().any(|statement| match statement {
        Statement::Edge { source, destination, .. } => {
            [source, destination].into_iter().any(|who| matches!(who, Who::Remote(named) if named == set))
        }
        Statement::IngressGoverned(_) | Statement::EgressGoverned(_) | Statement::Governs { .. } => false,
    })
}

fn is(party: &Party, workload: &ObjectName) -> bool {
    match party {
        Party::Workload(name) => name == workload,
        Party::Outside(_) | Party::Remote(_) => false,
    }
}

fn means(form: Form, who: &Who, party: &Party) -> bool {
    match (who, party) {
        (Who::Any, Party::Workload(_)) => true,
        (Who::Any, Party::Outside(_) | Party::Remote(_)) => form == Form::Compatible,
        (Who::Workload(workload), party) => is(party, workload),
        (Who::Remote(set), Party::Remote(pods)) => pods.sets.contains(set),
        (Who::Remote(_), Party::Workload(_) | Party::Outside(_)) => false,
        (Who::Block(block), Party::Outside(address)) => holds(block, *address),
        (Who::Block(block), Party::Remote(pods)) => holds_all(block, &pods.addresses),
        (Who::Block(_), Party::Workload(_)) => false,
    }
}

fn holds(block: &Block, address: IpAddr) -> bool {
    block.cidr.contains(&address) && !block.except.iter().any(|except| except.contains(&address))
}

/// Whether the block holds all of the addresses that are of its family, of which there is one at least. A block of the whole
/// family holds them even if none is known.
fn holds_all(block: &Block, addresses: &[IpAddr]) -> bool {
    let is_whole_family = block.cidr.prefix_len() == 0 && block.except.is_empty();
    let mut of_family = addresses.iter().filter(|address| address.is_ipv4() == block.cidr.addr().is_ipv4()).peekable();
    match of_family.peek() {
        Some(_) => of_family.all(|address| holds(block, *address)),
        None => addresses.is_empty() && is_whole_family,
    }
}

fn carries(ports: Ports, asked: Asked) -> bool {
    match (ports, asked) {
        (Ports::Any, _) => true,
        (_, Asked::Portless) => false,
        (Ports::Number(number), Asked::Number(asked) | Asked::Port(_, asked)) => number == asked,
        (Ports::Span(span), Asked::Number(asked)) => (span.first..=span.last).contains(&asked),
        (Ports::Span(span), Asked::Port(protocol, asked)) => {
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
            Verdict::Declared(Statement::Edge { partial, .. }) => format!("declared {partial}"),
            Verdict::Declared(other) => panic!("{other:?}"),
            Verdict::Violation(governing) => format!("violation of {}", governing.len()),
            Verdict::NotGoverned => "not governed".into(),
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
            ("east/shop/web", "shop/api", "5432", "declared false"),
            ("east/shop/web", "shop/api", "5433", "violation of 1"),
            ("west/shop/web", "shop/api", "5432", "violation of 1"),
            // It is no pod of the workload that has the same name here, and `*/*` does not mean it.
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
            assert!(wrong.parse::<Asked>().is_err(), "{wrong}");
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
            matches!(verdict(form, &list, source, &api, asked.parse().unwrap()), Verdict::Declared(_))
        };
        assert!(["80", "81", "443", "53/udp"].iter().all(|asked| is_declared(&both, asked)));
        assert!(!["82", "53/tcp"].iter().any(|asked| is_declared(&both, asked)));
        // A block declares a set by its name if it holds every address of a family that is known.
        let web = |addresses: &[&str]| pods(&["east/shop/web"], addresses);
        assert!(is_declared(&web(&["10.9.0.1", "10.9.0.2", "fd00::1"]), "443"));
        assert!(!is_declared(&web(&["10.9.0.1", "10.9.0.9"]), "443") && !is_declared(&web(&[]), "443"));
        assert!(is_declared(&web(&[]), "53/udp") && !is_declared(&web(&["fd00::1"]), "53/udp"));
    }
}
