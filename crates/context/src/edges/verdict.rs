//! What a list says of a flow.

use std::net::IpAddr;
use std::str::FromStr;

use policy::{Direction, ObjectName, Protocol};

use super::statement::{Ports, Statement, Who};
use super::text::Form;

/// One end of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Party {
    Workload(ObjectName),
    /// An address that is no pod's.
    Outside(IpAddr),
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

/// What a list in a form says of a flow. Addresses that are no pod's are told of by blocks in the extended form, and there
/// `*/*` does not mean them; the compatible form has nothing else for them.
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

fn is(party: &Party, workload: &ObjectName) -> bool {
    match party {
        Party::Workload(name) => name == workload,
        Party::Outside(_) => false,
    }
}

fn means(form: Form, who: &Who, party: &Party) -> bool {
    match (who, party) {
        (Who::Any, Party::Workload(_)) => true,
        (Who::Any, Party::Outside(_)) => form == Form::Compatible,
        (Who::Workload(workload), party) => is(party, workload),
        (Who::Block(block), Party::Outside(address)) => {
            block.cidr.contains(address) && !block.except.iter().any(|except| except.contains(address))
        }
        (Who::Block(_), Party::Workload(_)) => false,
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
G shop/api
G shop/web
S shop/web
";

    fn said(source: &str, destination: &str, asked: &str) -> String {
        let (form, list) = parse(LIST).unwrap();
        let party = |text: &str| match text.parse() {
            Ok(address) => Party::Outside(address),
            Err(_) => Party::Workload(text.parse().unwrap()),
        };
        match verdict(form, &list, &party(source), &party(destination), asked.parse().unwrap()) {
            Verdict::Declared(Statement::Edge { partial, .. }) => format!("declared {partial}"),
            Verdict::Declared(other) => panic!("{other:?}"),
            Verdict::Violation(governing) => format!("violation of {}", governing.len()),
            Verdict::NotGoverned => "not governed".into(),
        }
    }

    #[test]
    fn a_flow_is_declared_a_violation_or_not_governed() {
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
        ] {
            assert_eq!(said(source, destination, asked), expected, "{source} > {destination} : {asked}");
        }
        for wrong in ["http", "80/icmp", "70000", "0", "0/tcp", "-1", ""] {
            assert!(wrong.parse::<Asked>().is_err(), "{wrong}");
        }
    }
}
