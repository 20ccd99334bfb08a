//! Parses filters from command-line flags and API parameters.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

use super::{FlowFilter, PeerFilter, PolicyName, WorkloadName};
use crate::{EndpointKind, FlowVerdict};

/// Reason for which a filter is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    #[error("unknown filter '{}': expected one of {}", field.escape_debug(), FlowFilter::FIELDS.join(", "))]
    UnknownField { field: String },
    #[error("filter '{field}' appears twice: expected one value")]
    Repeated { field: &'static str },
    #[error("invalid {field} '{}': expected {expected}", text.escape_debug())]
    Invalid { field: &'static str, text: String, expected: &'static str },
    #[error("too many combinations of filter values: expected at most {most}")]
    TooManyCombinations { most: usize },
}

const TIME: &str = "a duration such as 10m or 1h30m, or a time such as 2026-05-04T12:00:00Z";
const NAMESPACE: &str = "the name of a namespace: at most 63 lower-case letters, digits and '-'";
const WORKLOAD: &str = "WORKLOAD or NAMESPACE/WORKLOAD, in letters, digits, '-', '_' and '.'";
const PEER: &str = "a namespace, NAMESPACE/WORKLOAD, NAMESPACE/POD, a node, an address, a CIDR, world, kube-apiserver, \
                    unknown-pod or remote-cluster";
const PORT: &str = "a number from 0 to 65535";
const PROTOCOL: &str = "tcp, udp, sctp, icmp, icmpv6, or a number from 0 to 255";
const VERDICT: &str = "allowed, would-deny or denied";
const POLICY: &str = "POLICY or NAMESPACE/POLICY, in letters, digits, '-', '_' and '.'";

impl FlowFilter {
    /// Names of the fields in flags and parameters.
    pub const FIELDS: [&str; 9] =
        ["since", "until", "namespace", "workload", "peer", "port", "protocol", "verdict", "policy"];

    /// Sets a field by its name. Durations are relative to `now`.
    pub fn set(&mut self, field: &str, text: &str, now: Timestamp) -> Result<(), FilterError> {
        match field {
            "since" => assign(&mut self.since, "since", text, TIME, parse_time(text, now)),
            "until" => assign(&mut self.until, "until", text, TIME, parse_time(text, now)),
            "namespace" => assign(&mut self.namespace, "namespace", text, NAMESPACE, parse_label(text)),
            "workload" => {
                let name = name(text).map(|(namespace, name)| WorkloadName { namespace, name });
                assign(&mut self.workload, "workload", text, WORKLOAD, name)
            }
            "peer" => assign(&mut self.peer, "peer", text, PEER, peer(text)),
            "port" => assign(&mut self.port, "port", text, PORT, number(text)),
            "protocol" => assign(&mut self.protocol, "protocol", text, PROTOCOL, protocol(text)),
            "verdict" => {
                let verdicts = [FlowVerdict::Allowed, FlowVerdict::WouldDeny, FlowVerdict::Denied];
                let verdict = verdicts.into_iter().find(|verdict| verdict.as_str() == text);
                assign(&mut self.verdict, "verdict", text, VERDICT, verdict)
            }
            "policy" => {
                let name = name(text).map(|(namespace, name)| PolicyName { namespace, name });
                assign(&mut self.policy, "policy", text, POLICY, name)
            }
            _ => Err(FilterError::UnknownField { field: field.to_owned() }),
        }
    }
}

fn assign<T>(
    place: &mut Option<T>,
    field: &'static str,
    text: &str,
    expected: &'static str,
    value: Option<T>,
) -> Result<(), FilterError> {
    if place.is_some() {
        return Err(FilterError::Repeated { field });
    }
    let Some(value) = value else {
        return Err(FilterError::Invalid { field, text: text.to_owned(), expected });
    };
    *place = Some(value);
    Ok(())
}

/// Parses a time, or a duration before `now` (`90s`, `10m`, `7d`), for `since` and `until`. `None` if the text is neither.
pub fn parse_time(text: &str, now: Timestamp) -> Option<Timestamp> {
    if let Ok(time) = text.parse() {
        return Some(time);
    }
    // jiff's durations have no days, which differ in length in a time zone; these are 24 hours.
    let ago = match text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok()) {
        Some(days) => SignedDuration::from_hours(24 * i64::from(days)),
        None => text.parse().ok()?,
    };
    if ago.is_negative() {
        return None;
    }
    Some(now.checked_sub(ago).unwrap_or(Timestamp::MIN))
}

/// Parses an RFC 1123 label, such as the name of a namespace. `None` if the text is none.
pub fn parse_label(text: &str) -> Option<Arc<str>> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label =
        (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-');
    is_label.then(|| text.into())
}

/// RFC 1123 subdomain.
fn subdomain(text: &str) -> Option<Arc<str>> {
    let is_subdomain = text.len() <= 253 && text.split('.').all(|part| parse_label(part).is_some());
    is_subdomain.then(|| text.into())
}

/// Name of an object, or a label value: workloads may be named by labels.
fn object_name(text: &str) -> Option<Arc<str>> {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    ((1..=253).contains(&text.len()) && text.bytes().all(inner)).then(|| text.into())
}

fn name(text: &str) -> Option<(Option<Arc<str>>, Arc<str>)> {
    match text.split_once('/') {
        Some((namespace, name)) => Some((Some(parse_label(namespace)?), object_name(name)?)),
        None => Some((None, object_name(text)?)),
    }
}

fn peer(text: &str) -> Option<PeerFilter> {
    let kinds =
        [EndpointKind::World, EndpointKind::KubeApiserver, EndpointKind::UnknownPod, EndpointKind::RemoteCluster];
    if let Some(kind) = kinds.into_iter().find(|kind| kind.as_str() == text) {
        return Some(PeerFilter::Kind(kind));
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        // The kernel reports IPv4-mapped addresses as IPv4.
        return Some(PeerFilter::Network(address.to_canonical().into()));
    }
    if let Ok(network) = text.parse::<IpNet>() {
        return Some(PeerFilter::Network(network));
    }
    match text.split_once('/') {
        Some((namespace, name)) => {
            Some(PeerFilter::NamespacedName { namespace: parse_label(namespace)?, name: object_name(name)? })
        }
        None => Some(PeerFilter::Name(subdomain(text)?)),
    }
}

/// Only digits: Rust's parser would accept `+80`.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// <https://www.iana.org/assignments/protocol-numbers>
fn protocol(text: &str) -> Option<u8> {
    match text {
        "icmp" => Some(1),
        "tcp" => Some(6),
        "udp" => Some(17),
        "icmpv6" => Some(58),
        "sctp" => Some(132),
        _ => number(text),
    }
}
