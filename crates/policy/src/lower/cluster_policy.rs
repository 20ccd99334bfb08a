//! Lowers ClusterNetworkPolicy of `policy.networking.k8s.io`.
//!
//! An invalid part must not open anything: an Accept rule with one matches nothing, and a Deny or Pass rule denies
//! everything from its place on, since a rule that is skipped lets later rules accept.

use std::sync::Arc;

use nft::Protocol;
use serde_json::Value;

use super::document::{ObjectProblems, Side, envelope, spec};
use super::json::{JsonObject, field, join, list, object, only, port, text};
use super::policy::cidr;
use super::{FieldError, enforcement, selector};
use crate::{
    ClusterPeer, ClusterPeers, ClusterPolicy, ClusterRule, DomainPattern, Enforcement, Interner, Kind, ObjectName,
    PodScope, PortMatch, PortRange, Ports, RuleAction, Tier,
};

const API_VERSIONS: [&str; 2] = ["policy.networking.k8s.io/v1alpha2", "policy.networking.k8s.io/v1beta1"];

const FIELDS: [&str; 5] = ["tier", "priority", "subject", "ingress", "egress"];

const LOWEST_PRIORITY: u16 = 1000;

const CLOSED: &str = "its Accept rules match nothing, and its Deny and Pass rules deny everything";
const DIRECTION_DENIES: &str = "the policy denies everything in the direction";

pub(super) fn lower(name: ObjectName, value: &Value, interner: &mut Interner) -> ClusterPolicy {
    let mut problems = ObjectProblems::new(Kind::ClusterNetworkPolicy, name);
    let said = problems.ok_or_record(enforcement::lower(&value["metadata"]), "the policy is enforced");
    let enforcement = said.unwrap_or(Some(Enforcement::Enforce));
    let Some(spec) = problems.ok_or_record(spec(value), "the policy selects every pod and denies everything") else {
        return ClusterPolicy {
            name: problems.name,
            tier: Tier::Admin,
            priority: 0,
            subject: PodScope::everything(),
            ingress: vec![deny_everything(0, None)],
            egress: vec![deny_everything(0, None)],
            enforcement,
            problems: problems.found,
        };
    };
    let mut validity = match problems.ok_or_record(envelope(value, spec, &API_VERSIONS, &FIELDS), CLOSED) {
        Some(()) => Validity::Valid,
        None => Validity::Closed,
    };
    let tier =
        problems.ok_or_record(tier(spec), &format!("the policy is of the Admin tier, {CLOSED}")).unwrap_or_else(|| {
            validity = Validity::Closed;
            Tier::Admin
        });
    let denies = "the policy has priority 0 and denies everything in each direction with rules";
    let priority = problems.ok_or_record(priority(spec), denies).unwrap_or_else(|| {
        validity = Validity::Denying;
        0
    });
    let denies = "the policy selects every pod and denies everything in each direction with rules";
    let subject = problems.ok_or_record(subject(spec, interner), denies).unwrap_or_else(|| {
        validity = Validity::Denying;
        PodScope::everything()
    });
    let ingress = rules(spec, Side::Ingress, validity, &mut problems, interner);
    let egress = rules(spec, Side::Egress, validity, &mut problems, interner);
    problems.found.shrink_to_fit();
    ClusterPolicy {
        name: problems.name,
        tier,
        priority,
        subject,
        ingress,
        egress,
        enforcement,
        problems: problems.found,
    }
}

/// How the rules are lowered, after the rest of the object.
#[derive(Clone, Copy, PartialEq)]
enum Validity {
    Valid,
    /// A part is unknown that may narrow or move the rules.
    Closed,
    /// The pods or the place of the policy are unknown.
    Denying,
}

fn tier(spec: &JsonObject) -> Result<Tier, FieldError> {
    const PATH: &str = "spec.tier";
    match text(needed(spec, "tier", PATH)?, PATH)? {
        "Admin" => Ok(Tier::Admin),
        "Baseline" => Ok(Tier::Baseline),
        other => Err(FieldError::new(PATH, format!("unknown tier '{other}': expected Admin or Baseline"))),
    }
}

fn priority(spec: &JsonObject) -> Result<u16, FieldError> {
    const PATH: &str = "spec.priority";
    let written = needed(spec, "priority", PATH)?;
    let priority = written.as_u64().and_then(|priority| u16::try_from(priority).ok());
    priority
        .filter(|priority| *priority <= LOWEST_PRIORITY)
        .ok_or_else(|| FieldError::new(PATH, format!("invalid priority {written}: expected 0 to {LOWEST_PRIORITY}")))
}

fn subject(spec: &JsonObject, interner: &mut Interner) -> Result<PodScope, FieldError> {
    const PATH: &str = "spec.subject";
    let subject = object(needed(spec, "subject", PATH)?, PATH)?;
    only(subject, &["namespaces", "pods"], PATH)?;
    match one_field(subject, &["namespaces", "pods"], PATH)? {
        ("namespaces", value) => pods_of_namespaces(value, &join(PATH, "namespaces"), interner),
        (_, value) => namespaced_pods(value, &join(PATH, "pods"), interner),
    }
}

fn needed<'a>(fields: &'a JsonObject, name: &str, path: &str) -> Result<&'a Value, FieldError> {
    field(fields, name).ok_or_else(|| FieldError::new(path, "missing"))
}

/// The only field of an object, of which each of these excludes the others.
fn one_field<'a>(
    fields: &'a JsonObject,
    known: &[&'static str],
    path: &str,
) -> Result<(&'static str, &'a Value), FieldError> {
    let mut present = known.iter().filter_map(|name| Some((*name, field(fields, name)?)));
    match (present.next(), present.next()) {
        (Some(found), None) => Ok(found),
        (None, _) => Err(FieldError::new(path, format!("missing one of {}", known.join(", ")))),
        (Some((first, _)), Some((second, _))) => {
            Err(FieldError::new(path, format!("{first} cannot be combined with {second}")))
        }
    }
}

fn pods_of_namespaces(value: &Value, path: &str, interner: &mut Interner) -> Result<PodScope, FieldError> {
    Ok(PodScope { namespaces: selector::lower(value, path, interner)?, ..PodScope::everything() })
}

fn namespaced_pods(value: &Value, path: &str, interner: &mut Interner) -> Result<PodScope, FieldError> {
    let scope = object(value, path)?;
    only(scope, &["namespaceSelector", "podSelector"], path)?;
    let pods_path = join(path, "podSelector");
    let pods = selector::lower(needed(scope, "podSelector", &pods_path)?, &pods_path, interner)?;
    match field(scope, "namespaceSelector") {
        None => Ok(PodScope { pods, ..PodScope::everything() }),
        Some(value) => {
            Ok(PodScope { namespaces: selector::lower(value, &join(path, "namespaceSelector"), interner)?, pods })
        }
    }
}

fn peer_fields(side: Side) -> &'static [&'static str] {
    match side {
        Side::Ingress => &["namespaces", "pods"],
        Side::Egress => &["namespaces", "pods", "nodes", "networks", "domainNames"],
    }
}

fn rules(
    spec: &JsonObject,
    side: Side,
    validity: Validity,
    problems: &mut ObjectProblems,
    interner: &mut Interner,
) -> Vec<ClusterRule> {
    let path = join("spec", side.field());
    let Some(value) = field(spec, side.field()) else { return vec![] };
    let Some(entries) = problems.ok_or_record(list(value, &path), DIRECTION_DENIES) else {
        return vec![deny_everything(0, None)];
    };
    if entries.is_empty() {
        return vec![];
    }
    if validity == Validity::Denying {
        return vec![deny_everything(0, None)];
    }
    let lower = |(index, entry)| rule(entry, index, side, validity, &format!("{path}[{index}]"), problems, interner);
    entries.iter().enumerate().map(lower).collect()
}

fn deny_everything(index: usize, name: Option<Arc<str>>) -> ClusterRule {
    ClusterRule { index, name, action: RuleAction::Deny, peers: ClusterPeers::Any, ports: Ports::Any }
}

fn rule(
    entry: &Value,
    index: usize,
    side: Side,
    validity: Validity,
    path: &str,
    problems: &mut ObjectProblems,
    interner: &mut Interner,
) -> ClusterRule {
    let name = entry["name"].as_str().filter(|name| !name.is_empty()).map(Arc::from);
    let Some(action) = problems.ok_or_record(action(entry, path), "the rule denies everything") else {
        return deny_everything(index, name);
    };
    let parts = match validity {
        Validity::Valid => {
            let consequence = match action {
                RuleAction::Accept => "the rule matches nothing",
                RuleAction::Deny | RuleAction::Pass => "the rule denies everything",
            };
            let parts = parts(entry, action, side, path, problems, interner);
            problems.ok_or_record(parts, consequence)
        }
        Validity::Closed | Validity::Denying => None,
    };
    match (parts, action) {
        (Some((peers, ports)), _) => ClusterRule { index, name, action, peers, ports },
        (None, RuleAction::Accept) => {
            ClusterRule { index, name, action, peers: ClusterPeers::Of(vec![]), ports: Ports::Any }
        }
        (None, RuleAction::Deny | RuleAction::Pass) => deny_everything(index, name),
    }
}

fn action(entry: &Value, path: &str) -> Result<RuleAction, FieldError> {
    let rule = object(entry, path)?;
    let path = join(path, "action");
    match text(needed(rule, "action", &path)?, &path)? {
        "Accept" => Ok(RuleAction::Accept),
        "Deny" => Ok(RuleAction::Deny),
        "Pass" => Ok(RuleAction::Pass),
        other => Err(FieldError::new(path, format!("unknown action '{other}': expected Accept, Deny or Pass"))),
    }
}

/// The peers and ports of a rule that is valid, except for entries that an Accept rule may ignore.
fn parts(
    entry: &Value,
    action: RuleAction,
    side: Side,
    path: &str,
    problems: &mut ObjectProblems,
    interner: &mut Interner,
) -> Result<(ClusterPeers, Ports), FieldError> {
    let rule = object(entry, path)?;
    only(rule, &["name", "action", side.peers_field(), "protocols"], path)?;
    if let Some(name) = field(rule, "name") {
        text(name, &join(path, "name"))?;
    }
    let peers_path = join(path, side.peers_field());
    let entries = one_at_least(needed(rule, side.peers_field(), &peers_path)?, &peers_path)?;
    let lower = |(i, entry)| peer(entry, side, &format!("{peers_path}[{i}]"), interner);
    let mut peers: Vec<ClusterPeer> = entries.iter().enumerate().map(lower).collect::<Result<_, _>>()?;
    let named_ports = match peers.iter().all(|peer| matches!(peer, ClusterPeer::Pods(_))) {
        true => NamedPorts::Resolved,
        false => NamedPorts::OfOtherPeers,
    };
    let ports = ports(rule, action, named_ports, path, problems, interner)?;
    let is_name = |peer: &ClusterPeer| matches!(peer, ClusterPeer::DomainNames(_));
    if let (RuleAction::Deny | RuleAction::Pass, Some(i)) = (action, peers.iter().position(is_name)) {
        let path = format!("{peers_path}[{i}].domainNames");
        return Err(FieldError::new(path, "domain names are only supported in Accept rules"));
    }
    peers.shrink_to_fit();
    Ok((ClusterPeers::Of(peers), ports))
}

/// The entries of a list. An empty one is not valid: a field that is meant to be absent is.
fn one_at_least<'a>(value: &'a Value, path: &str) -> Result<&'a [Value], FieldError> {
    match list(value, path)? {
        [] => Err(FieldError::new(path, "the list is empty")),
        entries => Ok(entries),
    }
}

fn peer(value: &Value, side: Side, path: &str, interner: &mut Interner) -> Result<ClusterPeer, FieldError> {
    let peer = object(value, path)?;
    only(peer, peer_fields(side), path)?;
    let (name, value) = one_field(peer, peer_fields(side), path)?;
    let path = join(path, name);
    match name {
        "namespaces" => Ok(ClusterPeer::Pods(pods_of_namespaces(value, &path, interner)?)),
        "pods" => Ok(ClusterPeer::Pods(namespaced_pods(value, &path, interner)?)),
        "nodes" => Ok(ClusterPeer::Nodes(selector::lower(value, &path, interner)?)),
        "networks" => {
            let lower = |(i, written)| cidr(written, &format!("{path}[{i}]"));
            let networks = one_at_least(value, &path)?.iter().enumerate().map(lower);
            let mut networks = networks.collect::<Result<Vec<_>, _>>()?;
            networks.sort();
            networks.dedup();
            networks.shrink_to_fit();
            Ok(ClusterPeer::Networks(networks))
        }
        _ => {
            let lower = |(i, written)| domain_pattern(written, &format!("{path}[{i}]"));
            let names = one_at_least(value, &path)?.iter().enumerate().map(lower);
            Ok(ClusterPeer::DomainNames(names.collect::<Result<_, _>>()?))
        }
    }
}

fn domain_pattern(value: &Value, path: &str) -> Result<DomainPattern, FieldError> {
    let written = text(value, path)?;
    let (wildcard, name) = match written.strip_prefix("*.") {
        Some(name) => (true, name),
        None => (false, written),
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        is_end(bytes.first())
            && is_end(bytes.last())
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte))
    };
    if !name.contains('.') || !name.split('.').all(is_label) {
        return Err(FieldError::new(path, format!("invalid domain name '{written}'")));
    }
    Ok(DomainPattern { wildcard, name: name.to_ascii_lowercase().into() })
}

/// Whether the peers of the rule have named ports.
#[derive(Clone, Copy, PartialEq)]
enum NamedPorts {
    Resolved,
    /// Some peers are nodes or networks, which have none.
    OfOtherPeers,
}

fn ports(
    rule: &JsonObject,
    action: RuleAction,
    named_ports: NamedPorts,
    path: &str,
    problems: &mut ObjectProblems,
    interner: &mut Interner,
) -> Result<Ports, FieldError> {
    let path = join(path, "protocols");
    let Some(value) = field(rule, "protocols") else { return Ok(Ports::Any) };
    let mut ports = Vec::new();
    for (i, entry) in one_at_least(value, &path)?.iter().enumerate() {
        let matches = protocol(entry, named_ports, &format!("{path}[{i}]"), interner);
        ports.extend(match action {
            RuleAction::Accept => {
                problems.ok_or_record(matches, "the protocol entry matches nothing").unwrap_or_default()
            }
            RuleAction::Deny | RuleAction::Pass => matches?,
        });
    }
    ports.shrink_to_fit();
    Ok(Ports::Of(ports))
}

/// One match, or one of each protocol for a named port.
fn protocol(
    value: &Value,
    named_ports: NamedPorts,
    path: &str,
    interner: &mut Interner,
) -> Result<Vec<PortMatch>, FieldError> {
    const KNOWN: [&str; 4] = ["tcp", "udp", "sctp", "destinationNamedPort"];
    let entry = object(value, path)?;
    only(entry, &KNOWN, path)?;
    let (name, value) = one_field(entry, &KNOWN, path)?;
    let path = join(path, name);
    let protocol = match name {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => return named_port(value, named_ports, &path, interner),
    };
    let attributes = object(value, &path)?;
    only(attributes, &["destinationPort"], &path)?;
    let path = join(&path, "destinationPort");
    Ok(vec![PortMatch { protocol, range: numbers(needed(attributes, "destinationPort", &path)?, &path)? }])
}

fn named_port(
    value: &Value,
    named_ports: NamedPorts,
    path: &str,
    interner: &mut Interner,
) -> Result<Vec<PortMatch>, FieldError> {
    let name = match text(value, path)? {
        "" => return Err(FieldError::new(path, "the name of a named port is empty")),
        name => interner.text(name),
    };
    match named_ports {
        NamedPorts::Resolved => {}
        NamedPorts::OfOtherPeers => {
            return Err(FieldError::new(path, "only pods have named ports, not the rule's peers"));
        }
    }
    let of = |protocol| PortMatch { protocol, range: PortRange::Named(name.clone()) };
    Ok([Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(of).into())
}

fn numbers(value: &Value, path: &str) -> Result<PortRange, FieldError> {
    let written = object(value, path)?;
    only(written, &["number", "range"], path)?;
    match one_field(written, &["number", "range"], path)? {
        ("number", number) => {
            let number = port(number, &join(path, "number"))?;
            Ok(PortRange::Numbers(number, number))
        }
        (_, range) => {
            let path = join(path, "range");
            let range = object(range, &path)?;
            only(range, &["start", "end"], &path)?;
            let bound = |name: &str| {
                let path = join(&path, name);
                port(needed(range, name, &path)?, &path)
            };
            let (start, end) = (bound("start")?, bound("end")?);
            if start >= end {
                return Err(FieldError::new(path, format!("start {start} is not smaller than end {end}")));
            }
            Ok(PortRange::Numbers(start, end))
        }
    }
}

#[cfg(test)]
mod tests;
