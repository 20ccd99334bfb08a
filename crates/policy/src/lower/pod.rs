//! Lowers pods: their node, addresses and ports.

use std::net::IpAddr;
use std::sync::Arc;

use nft::Protocol;
use serde_json::Value;

use super::FieldError;
use super::json::{JsonObject, boolean, field, join, labels, list, object, port, text};
use super::owner::{OwnerReference, read_owner};
use crate::{Addresses, Interner, Kind, Labels, Moment, NamedPort, ObjectName, Pod, Problems, Uid};

const CONSEQUENCE: &str = "no selector matches the pod, and it is isolated without any allowed traffic as far as its \
    node and addresses are known";

pub(super) fn lower(name: ObjectName, object: &Value, interner: &mut Interner) -> Pod {
    let mut reader = PodReader { errors: Vec::new() };
    let metadata = object["metadata"].as_object();
    let stamp = |of: Option<&JsonObject>, path: &str, name: &str, reader: &mut PodReader| {
        let value = of.and_then(|o| field(o, name))?;
        reader.ok_or_record(moment(value, &join(path, name)))
    };
    let spec = reader.part(object, "spec");
    let status = reader.part(object, "status");
    let phase = status.and_then(|s| field(s, "phase")).and_then(|v| reader.ok_or_record(text(v, "status.phase")));
    let host_network = spec.and_then(|s| field(s, "hostNetwork"));
    let mut pod = Pod {
        uid: metadata.and_then(|m| field(m, "uid")).and_then(Value::as_str).unwrap_or("").into(),
        mirror_of: object["metadata"]["annotations"]["kubernetes.io/config.mirror"]
            .as_str()
            .map(|uid| Box::new(Uid::from(uid))),
        labels: match labels(&object["metadata"], "metadata") {
            Ok(labels) => interner.labels(labels),
            Err(error) => {
                reader.errors.push(error);
                Labels::new()
            }
        },
        owner: read_owner(&object["metadata"]).owner.map(|OwnerReference { kind, name }| interner.owner(kind, name)),
        node: spec
            .and_then(|s| field(s, "nodeName"))
            .and_then(|v| reader.ok_or_record(text(v, "spec.nodeName")))
            .filter(|n| !n.is_empty())
            .map(|node| interner.text(node)),
        addresses: status.map_or_else(Addresses::default, |s| addresses(s, &mut reader)),
        host_network: host_network.and_then(|v| reader.ok_or_record(boolean(v, "spec.hostNetwork"))).unwrap_or(false),
        finished: matches!(phase, Some("Succeeded" | "Failed")),
        terminating: metadata.and_then(|m| field(m, "deletionTimestamp")).is_some(),
        started: stamp(status, "status", "startTime", &mut reader).unwrap_or(Moment::UNKNOWN),
        created: stamp(metadata, "metadata", "creationTimestamp", &mut reader).unwrap_or(Moment::UNKNOWN),
        ports: spec.map_or_else(Default::default, |s| ports(s, &mut reader, interner)),
        unreadable: false,
        problems: Problems::default(),
        name,
    };
    pod.unreadable = !reader.errors.is_empty();
    let name = &pod.name;
    pod.problems = reader.errors.into_iter().map(|m| m.diagnose(Kind::Pod, name, CONSEQUENCE)).collect();
    pod
}

/// Continues after an invalid part, and records it.
struct PodReader {
    errors: Vec<FieldError>,
}

impl PodReader {
    fn ok_or_record<T>(&mut self, result: Result<T, FieldError>) -> Option<T> {
        result.map_err(|e| self.errors.push(e)).ok()
    }

    fn part<'a>(&mut self, whole: &'a Value, name: &str) -> Option<&'a JsonObject> {
        let value = whole.get(name).filter(|v| !v.is_null())?;
        self.ok_or_record(object(value, name))
    }

    fn items<'a>(&mut self, whole: &'a JsonObject, name: &str, path: &str) -> &'a [Value] {
        let path = join(path, name);
        field(whole, name).and_then(|v| self.ok_or_record(list(v, &path))).unwrap_or(&[])
    }
}

/// `podIPs` and `podIP`, without duplicates.
fn addresses(status: &JsonObject, reader: &mut PodReader) -> Addresses {
    let mut found: Vec<IpAddr> = Vec::new();
    let mut add = |value: &Value, path: &str, reader: &mut PodReader| {
        let Some(written) = reader.ok_or_record(text(value, path)) else { return };
        match written.parse::<IpAddr>() {
            // Packets carry the IPv4 address of an IPv4-mapped IPv6 address.
            Ok(address) if !found.contains(&address.to_canonical()) => found.push(address.to_canonical()),
            Ok(_) => {}
            Err(_) if written.is_empty() => {}
            Err(_) => reader.errors.push(FieldError::new(path, format!("invalid IP address '{written}'"))),
        }
    };
    for (i, entry) in reader.items(status, "podIPs", "status").iter().enumerate() {
        let path = format!("status.podIPs[{i}]");
        let Some(entry) = reader.ok_or_record(object(entry, &path)) else { continue };
        if let Some(ip) = field(entry, "ip") {
            add(ip, &join(&path, "ip"), reader);
        }
    }
    if let Some(ip) = field(status, "podIP") {
        add(ip, "status.podIP", reader);
    }
    found.into_iter().collect()
}

/// Named ports of containers, then of restartable init containers (`restartPolicy: Always`).
fn ports(spec: &JsonObject, reader: &mut PodReader, interner: &mut Interner) -> Arc<[NamedPort]> {
    let mut found = Vec::new();
    for (i, container) in reader.items(spec, "containers", "spec").iter().enumerate() {
        found.extend(container_ports(container, &format!("spec.containers[{i}]"), reader, interner));
    }
    for (i, container) in reader.items(spec, "initContainers", "spec").iter().enumerate() {
        if container["restartPolicy"] == "Always" {
            found.extend(container_ports(container, &format!("spec.initContainers[{i}]"), reader, interner));
        }
    }
    interner.ports(&found)
}

fn container_ports(container: &Value, path: &str, reader: &mut PodReader, interner: &mut Interner) -> Vec<NamedPort> {
    let Some(container) = reader.ok_or_record(object(container, path)) else { return vec![] };
    let mut found = Vec::new();
    for (i, entry) in reader.items(container, "ports", path).iter().enumerate() {
        let path = format!("{path}.ports[{i}]");
        if let Some(Some(named)) = reader.ok_or_record(named_port(entry, &path, interner)) {
            found.push(named);
        }
    }
    found
}

/// `None` for a port without a name, or of a protocol that no policy can name.
fn named_port(entry: &Value, path: &str, interner: &mut Interner) -> Result<Option<NamedPort>, FieldError> {
    let entry = object(entry, path)?;
    let Some(name) = field(entry, "name") else { return Ok(None) };
    let name = text(name, &join(path, "name"))?;
    if name.is_empty() {
        return Ok(None);
    }
    let protocol = match field(entry, "protocol").map(|p| text(p, &join(path, "protocol"))).transpose()? {
        None | Some("TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        Some(_) => return Ok(None),
    };
    let path = join(path, "containerPort");
    let number = port(field(entry, "containerPort").ok_or_else(|| FieldError::new(&path, "missing"))?, &path)?;
    Ok(Some(NamedPort { name: interner.text(name), protocol, number }))
}

/// A time of the API (RFC 3339).
fn moment(value: &Value, path: &str) -> Result<Moment, FieldError> {
    let written = text(value, path)?;
    let time: jiff::Timestamp =
        written.parse().map_err(|_| FieldError::new(path, format!("invalid time '{written}'")))?;
    Ok(Moment::at(time))
}
