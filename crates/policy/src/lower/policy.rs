//! Lowers NetworkPolicy of `networking.k8s.io/v1`.

use std::net::IpAddr;

use ipnet::IpNet;
use nft::Protocol;
use serde_json::Value;

use super::document::{ObjectProblems, Side, envelope, spec};
use super::json::{JsonObject, field, join, list, object, only, port, text};
use super::{FieldError, enforcement, selector};
use crate::{
    Block, Enforcement, Interner, Kind, NamespaceScope, ObjectName, Peer, Peers, Policy, PolicyRule, PortMatch,
    PortRange, Ports, Selector,
};

const API_VERSION: &str = "networking.k8s.io/v1";

const FIELDS: [&str; 4] = ["podSelector", "policyTypes", "ingress", "egress"];

const DENIES_ALL: &str = "the policy isolates the selected pods and allows nothing";

pub(super) fn lower(name: ObjectName, value: &Value, interner: &mut Interner) -> Policy {
    let mut problems = ObjectProblems::new(Kind::NetworkPolicy, name);
    let said = problems.ok_or_record(enforcement::lower(&value["metadata"]), "the policy is enforced");
    Policy { enforcement: said.unwrap_or(Some(Enforcement::Enforce)), ..without_enforcement(value, problems, interner) }
}

fn without_enforcement(value: &Value, mut problems: ObjectProblems, interner: &mut Interner) -> Policy {
    let Some(spec) =
        problems.ok_or_record(spec(value), "the policy isolates every pod of its namespace and allows nothing")
    else {
        return problems.policy(Selector::everything(), Some(vec![]), Some(vec![]));
    };
    let mut understood = problems.ok_or_record(envelope(value, spec, &[API_VERSION], &FIELDS), DENIES_ALL).is_some();
    let selected = match field(spec, "podSelector") {
        None => Ok(Selector::everything()),
        Some(value) => selector::lower(value, "spec.podSelector", interner),
    };
    let consequence = "the policy isolates every pod of its namespace and allows nothing";
    let selector = problems.ok_or_record(selected, consequence).unwrap_or_else(|| {
        understood = false;
        Selector::everything()
    });
    let types = types(spec, &mut problems);
    let mut direction = |which: Side, isolates: Isolates| match isolates {
        Isolates::No => None,
        Isolates::Yes if understood => Some(rules(spec, which, &mut problems, interner)),
        Isolates::Yes | Isolates::AllowingNothing => Some(vec![]),
    };
    let ingress = direction(Side::Ingress, types.ingress);
    let egress = direction(Side::Egress, types.egress);
    problems.policy(selector, ingress, egress)
}

impl ObjectProblems {
    fn policy(
        mut self,
        selector: Selector,
        ingress: Option<Vec<PolicyRule>>,
        egress: Option<Vec<PolicyRule>>,
    ) -> Policy {
        self.found.shrink_to_fit();
        Policy { name: self.name, selector, ingress, egress, enforcement: None, problems: self.found }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Isolates {
    No,
    Yes,
    /// An unknown policy type could include this direction.
    AllowingNothing,
}

struct Types {
    ingress: Isolates,
    egress: Isolates,
}

fn types(spec: &JsonObject, problems: &mut ObjectProblems) -> Types {
    const PATH: &str = "spec.policyTypes";
    const CONSEQUENCE: &str =
        "the policy isolates the pods in both directions and allows only the rules of its known types";
    let listed = match field(spec, "policyTypes") {
        None => Some(&[][..]),
        Some(value) => problems.ok_or_record(list(value, PATH), CONSEQUENCE),
    };
    if listed.is_some_and(<[Value]>::is_empty) {
        let no_egress = match field(spec, "egress") {
            None => true,
            Some(Value::Array(rules)) => rules.is_empty(),
            Some(_) => false,
        };
        return Types { ingress: Isolates::Yes, egress: if no_egress { Isolates::No } else { Isolates::Yes } };
    }
    let mut types = Types { ingress: Isolates::No, egress: Isolates::No };
    let mut unknown = listed.is_none();
    for (i, entry) in listed.unwrap_or(&[]).iter().enumerate() {
        match entry.as_str() {
            Some("Ingress") => types.ingress = Isolates::Yes,
            Some("Egress") => types.egress = Isolates::Yes,
            Some(_) | None => {
                unknown = true;
                let error = FieldError::new(format!("{PATH}[{i}]"), format!("unknown type {entry}"));
                problems.ok_or_record::<()>(Err(error), CONSEQUENCE);
            }
        }
    }
    for direction in [&mut types.ingress, &mut types.egress] {
        if unknown && *direction == Isolates::No {
            *direction = Isolates::AllowingNothing;
        }
    }
    types
}

fn rules(spec: &JsonObject, side: Side, problems: &mut ObjectProblems, interner: &mut Interner) -> Vec<PolicyRule> {
    let path = join("spec", side.field());
    let Some(value) = field(spec, side.field()) else { return vec![] };
    let Some(entries) = problems.ok_or_record(list(value, &path), "the direction allows nothing") else {
        return vec![];
    };
    let mut rules = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if let Some(parts) = problems.ok_or_record(rule_parts(entry, side, &path), "the rule allows nothing") {
            let peers = peers(parts.peers, &join(&path, side.peers_field()), problems, interner);
            let ports = ports(parts.ports, &join(&path, "ports"), problems, interner);
            rules.push(PolicyRule { index, peers, ports });
        }
    }
    rules.shrink_to_fit();
    rules
}

/// The entries of a rule's lists; an absent list is an empty one and matches everything.
struct RuleParts<'a> {
    peers: &'a [Value],
    ports: &'a [Value],
}

fn rule_parts<'a>(entry: &'a Value, side: Side, path: &str) -> Result<RuleParts<'a>, FieldError> {
    let rule = object(entry, path)?;
    only(rule, &[side.peers_field(), "ports"], path)?;
    let entries = |name: &str| match field(rule, name) {
        Some(value) => list(value, &join(path, name)),
        None => Ok(&[][..]),
    };
    Ok(RuleParts { peers: entries(side.peers_field())?, ports: entries("ports")? })
}

fn peers(entries: &[Value], path: &str, problems: &mut ObjectProblems, interner: &mut Interner) -> Peers {
    if entries.is_empty() {
        return Peers::Any;
    }
    let lower =
        |(i, entry)| problems.ok_or_record(peer(entry, &format!("{path}[{i}]"), interner), "the peer matches nothing");
    Peers::Of(fitting(entries.iter().enumerate().filter_map(lower)))
}

fn peer(value: &Value, path: &str, interner: &mut Interner) -> Result<Peer, FieldError> {
    let peer = object(value, path)?;
    only(peer, &["ipBlock", "namespaceSelector", "podSelector"], path)?;
    let mut selected =
        |name: &str| field(peer, name).map(|v| selector::lower(v, &join(path, name), interner)).transpose();
    match (field(peer, "ipBlock"), selected("namespaceSelector")?, selected("podSelector")?) {
        (Some(value), None, None) => Ok(Peer::Block(block(value, &join(path, "ipBlock"))?)),
        (Some(_), _, _) => Err(FieldError::new(path, "ipBlock cannot be combined with a selector")),
        (None, None, None) => Err(FieldError::new(path, "missing ipBlock or selector")),
        (None, None, Some(pods)) => Ok(Peer::Pods { namespaces: NamespaceScope::Own, pods }),
        (None, Some(namespaces), pods) => Ok(Peer::Pods {
            namespaces: NamespaceScope::Selected(namespaces),
            pods: pods.unwrap_or_else(Selector::everything),
        }),
    }
}

fn block(value: &Value, path: &str) -> Result<Block, FieldError> {
    let block = object(value, path)?;
    only(block, &["cidr", "except"], path)?;
    let cidr_path = join(path, "cidr");
    let written = field(block, "cidr").ok_or_else(|| FieldError::new(&cidr_path, "missing"))?;
    let cidr = cidr(written, &cidr_path)?;
    let mut except = Vec::new();
    if let Some(listed) = field(block, "except") {
        let path = join(path, "except");
        for (i, written) in list(listed, &path)?.iter().enumerate() {
            let path = format!("{path}[{i}]");
            let excepted = self::cidr(written, &path)?;
            if excepted.addr().is_ipv4() != cidr.addr().is_ipv4() {
                return Err(FieldError::new(path, format!("{excepted} has another address family than {cidr}")));
            }
            except.push(excepted);
        }
    }
    except.sort();
    except.dedup();
    except.shrink_to_fit();
    Ok(Block { cidr, except })
}

/// An address and a prefix length, with the host bits cleared.
pub(super) fn cidr(value: &Value, path: &str) -> Result<IpNet, FieldError> {
    let written = text(value, path)?;
    let bad = || FieldError::new(path, format!("invalid CIDR block '{written}'"));
    let (address, length) = written.split_once('/').ok_or_else(bad)?;
    let address: IpAddr = address.parse().map_err(|_| bad())?;
    let plain_number = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    if matches!(address, IpAddr::V6(a) if a.to_ipv4_mapped().is_some()) {
        return Err(FieldError::new(path, format!("'{written}' is an IPv4-mapped IPv6 address; write it as IPv4")));
    }
    let length: u8 = if plain_number { length.parse().map_err(|_| bad())? } else { return Err(bad()) };
    Ok(IpNet::new(address, length).map_err(|_| bad())?.trunc())
}

fn ports(entries: &[Value], path: &str, problems: &mut ObjectProblems, interner: &mut Interner) -> Ports {
    if entries.is_empty() {
        return Ports::Any;
    }
    let lower = |(i, entry)| {
        problems.ok_or_record(port_match(entry, &format!("{path}[{i}]"), interner), "the port entry matches nothing")
    };
    Ports::Of(fitting(entries.iter().enumerate().filter_map(lower)))
}

/// Without spare capacity: policies are many and long-lived.
fn fitting<T>(parts: impl Iterator<Item = T>) -> Vec<T> {
    let mut parts: Vec<T> = parts.collect();
    parts.shrink_to_fit();
    parts
}

fn port_match(value: &Value, path: &str, interner: &mut Interner) -> Result<PortMatch, FieldError> {
    let entry = object(value, path)?;
    only(entry, &["protocol", "port", "endPort"], path)?;
    let protocol_path = join(path, "protocol");
    let protocol = match field(entry, "protocol").map(|v| text(v, &protocol_path)).transpose()? {
        None | Some("TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        Some(other) => return Err(FieldError::new(protocol_path, format!("unknown protocol '{other}'"))),
    };
    let (port_path, end_path) = (join(path, "port"), join(path, "endPort"));
    let range = match (field(entry, "port"), field(entry, "endPort")) {
        (None, None) => PortRange::All,
        (Some(Value::String(name)), None) if name.is_empty() => {
            return Err(FieldError::new(port_path, "the name of a named port is empty"));
        }
        (Some(Value::String(name)), None) => PortRange::Named(interner.text(name)),
        (Some(number), None) => {
            let number = port(number, &port_path)?;
            PortRange::Numbers(number, number)
        }
        (Some(number @ Value::Number(_)), Some(end)) => {
            let (first, last) = (port(number, &port_path)?, port(end, &end_path)?);
            if last < first {
                return Err(FieldError::new(end_path, format!("endPort {last} is smaller than port {first}")));
            }
            PortRange::Numbers(first, last)
        }
        (_, Some(_)) => return Err(FieldError::new(end_path, "endPort needs a numeric port")),
    };
    Ok(PortMatch { protocol, range })
}
