//! The objects of an API server that the oracle evaluates, and the probe.

use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use serde::Serialize;
use serde_json::Value;

/// Every relevant object, and the settings and remote sets of the node's agent. Policies stay JSON, so that they can
/// contain what no typed struct can: unknown fields, operators, protocols, and values of the wrong type.
#[derive(Clone, Default)]
pub struct World {
    pub namespaces: Vec<Namespace>,
    pub pods: Vec<Pod>,
    pub policies: Vec<Value>,
    /// Every ClusterNetworkPolicy.
    pub cluster_policies: Vec<Value>,
    /// Empty if the agent may not list them.
    pub nodes: Vec<Node>,
    /// Policies without an annotation are audited.
    pub audits_by_default: bool,
    /// `None` if the agent has no remote clusters.
    pub remote: Option<Remote>,
    /// Domain names with an address that the node's agent has learned. Names are in lower case, without a final dot.
    pub learned: Vec<(String, IpAddr)>,
}

/// Other clusters as the node's agent receives them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Remote {
    /// Prefixes of the labels by which policies name remote sets.
    pub prefixes: Vec<String>,
    /// Remote sets with unique keys.
    pub sets: Vec<RemoteSet>,
}

/// The pods of a namespace of another cluster that share one name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemoteSet {
    pub cluster: String,
    pub namespace: String,
    pub name: String,
    pub addresses: Vec<IpAddr>,
}

/// The first packet of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probe {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// The IP protocol's number: [`Probe::TCP`] and so on, or any other.
    pub protocol: u8,
    /// The destination port; `None` for protocols without ports.
    pub port: Option<u16>,
}

impl Probe {
    pub const ICMP: u8 = 1;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const ICMPV6: u8 = 58;
    pub const SCTP: u8 = 132;
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Probe::ICMP => f.write_str("icmp")?,
            Probe::TCP => f.write_str("tcp")?,
            Probe::UDP => f.write_str("udp")?,
            Probe::ICMPV6 => f.write_str("icmpv6")?,
            Probe::SCTP => f.write_str("sctp")?,
            other => write!(f, "protocol {other}")?,
        }
        write!(f, " {} -> {}", self.source, self.destination)?;
        match self.port {
            Some(port) => write!(f, " port {port}"),
            None => Ok(()),
        }
    }
}

impl World {
    /// Every object as an API server would show it, with `apiVersion` and `kind`: Namespaces, Pods, policies, cluster
    /// policies, Nodes.
    pub fn documents(&self) -> Vec<Value> {
        let namespaces = self.namespaces.iter().map(document);
        let pods = self.pods.iter().map(document);
        let nodes = self.nodes.iter().map(document);
        let policies = self.policies.iter().chain(&self.cluster_policies).cloned();
        namespaces.chain(pods).chain(policies).chain(nodes).collect()
    }

    /// The documents as one YAML stream, valid for any YAML parser: short values are JSON on their line.
    pub fn to_yaml(&self) -> String {
        let mut text = String::new();
        if self.audits_by_default {
            text.push_str("# --enforcement audit\n");
        }
        if let Some(Remote { prefixes, sets }) = &self.remote {
            text.push_str(&format!("# --remote-label-prefix {}\n", prefixes.join(",")));
            for RemoteSet { cluster, namespace, name, addresses } in sets {
                text.push_str(&format!("# remote {cluster}/{namespace}/{name}: {addresses:?}\n"));
            }
        }
        for document in self.documents() {
            text.push_str("---\n");
            block(&mut text, &document, 0);
        }
        text
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        f.write_str(&self.to_yaml())
    }
}

fn document(object: &impl Serialize) -> Value {
    serde_json::to_value(object).expect("an API object is JSON")
}

/// A value on its own lines, below its key.
fn block(text: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (key, member) in members {
                text.push_str(&format!("{indent}{}:", plain(key)));
                after_marker(text, member, depth);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                text.push_str(&format!("{indent}-"));
                after_marker(text, item, depth);
            }
        }
        scalar => text.push_str(&format!("{indent}{scalar}\n")),
    }
}

/// The value after `key:` or `-`: on the line if it is short, below it otherwise.
fn after_marker(text: &mut String, value: &Value, depth: usize) {
    const WIDTH: usize = 110;
    let inline = spaced(value);
    let nests = matches!(value, Value::Object(o) if !o.is_empty()) || matches!(value, Value::Array(a) if !a.is_empty());
    if nests && inline.len() + 2 * depth > WIDTH {
        text.push('\n');
        block(text, value, depth + 1);
    } else {
        text.push_str(&format!(" {inline}\n"));
    }
}

/// One line of JSON that is also YAML, which requires a space after each colon and comma.
fn spaced(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let members: Vec<String> =
                members.iter().map(|(key, member)| format!("{}: {}", plain(key), spaced(member))).collect();
            format!("{{{}}}", members.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        Value::String(text) => plain(text),
        scalar => scalar.to_string(),
    }
}

/// A string without quotes if YAML reads it as the same string.
fn plain(text: &str) -> String {
    let word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'));
    let meant_otherwise = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "inf", "nan"];
    if word && !meant_otherwise.contains(&text.to_ascii_lowercase().as_str()) {
        text.into()
    } else {
        Value::from(text).to_string()
    }
}
