//! Formatting of lines.

use policy::remote::RemoteSet;
use policy::{Block, DeclaredLine, Direction, EdgeEnd, FlowPorts, ObjectName, PortSpan, Protocol, Tier, TierRuleName};

/// Format of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// A port is a number or `*`. Omitted: protocols, addresses outside of the cluster's pods, and differences between
    /// replicas.
    Compatible,
    /// All details.
    Extended,
}

/// The first line of a list.
pub const HEADER: &str = "# NetworkPolicy-derived declared-edge allow-list";

/// Suffix of [`HEADER`] in the extended form.
pub(super) const EXTENDED: &str = " (extended)";

/// A range of more ports than these is `*` in the compatible form. Usual ranges have a few dozens; those of node ports
/// or ephemeral ports would be thousands of lines for each edge.
pub const MOST_PORTS_OF_A_RANGE: usize = 128;

/// Protocols without ports, where some ports are denied: otherwise these protocols are part of `*`.
pub(super) const PORTLESS: &str = "portless";

pub(super) const PARTIAL: &str = " some";

impl Form {
    pub(super) fn header(self) -> String {
        match self {
            Form::Compatible => HEADER.to_owned(),
            Form::Extended => format!("{HEADER}{EXTENDED}"),
        }
    }
}

/// The text of a line: several lines, or none, in the compatible form, where different lines may also have the same
/// text.
pub fn texts(line: &DeclaredLine, form: Form) -> Vec<String> {
    match line {
        DeclaredLine::IngressGoverned(workload) => vec![format!("G {}", name(workload))],
        DeclaredLine::EgressGoverned(workload) => vec![format!("S {}", name(workload))],
        DeclaredLine::Governs { policy, direction, workload } => match form {
            Form::Compatible => vec![],
            Form::Extended => vec![format!("P {} > {} : {}", name(policy), name(workload), side(*direction))],
        },
        DeclaredLine::ClusterGoverns { tier, policy, direction, workload } => match form {
            Form::Compatible => vec![],
            Form::Extended => {
                let policy = cluster_policy(*tier, policy);
                vec![format!("P {policy} > {} : {}", name(workload), side(*direction))]
            }
        },
        DeclaredLine::Edge { source, destination, ports, partial } => {
            let ends = format!("E {} > {}", end(source), end(destination));
            match form {
                Form::Compatible => compatible(ports).into_iter().map(|port| format!("{ends} : {port}")).collect(),
                Form::Extended => extended(&ends, ports, *partial),
            }
        }
        DeclaredLine::Rule { source, destination, ports, partial, rule } => match form {
            Form::Compatible => vec![],
            Form::Extended => {
                let of_edge = extended(&format!("R {} > {}", end(source), end(destination)), ports, *partial);
                of_edge.into_iter().map(|text| format!("{text}{BY}{}", rule_name(rule))).collect()
            }
        },
        DeclaredLine::FromBlock { block, destination, ports, partial } => match form {
            Form::Compatible => vec![],
            Form::Extended => extended(&format!("C {} > {}", cidr(block), name(destination)), ports, *partial),
        },
        DeclaredLine::ToBlock { source, block, ports, partial } => match form {
            Form::Compatible => vec![],
            Form::Extended => extended(&format!("C {} > {}", name(source), cidr(block)), ports, *partial),
        },
        DeclaredLine::ToName { source, name: domain, ports, partial } => match form {
            Form::Compatible => vec![],
            Form::Extended => extended(&format!("N {} > {domain}", name(source)), ports, *partial),
        },
    }
}

/// Separates the ports from the rule that accepts them.
pub(super) const BY: &str = " by ";

/// The policy, the direction with the index of the rule, its action and, if it has one, its name.
pub(super) fn rule_name(rule: &TierRuleName) -> String {
    let TierRuleName { tier, policy, direction, index, name, action } = rule;
    let name = name.as_ref().map_or_else(String::new, |name| format!(" {}", escaped(name, &[])));
    format!("{} {}[{index}] {action}{name}", cluster_policy(*tier, policy), side(*direction))
}

/// `ClusterNetworkPolicy:<tier>/<name>`. No namespace has a `:`, so this is never a NetworkPolicy.
pub(super) fn cluster_policy(tier: Tier, policy: &str) -> String {
    format!("{CLUSTER_POLICY}{tier}/{}", escaped(policy, &[]))
}

pub(super) const CLUSTER_POLICY: &str = "ClusterNetworkPolicy:";

/// Name of the direction in which a policy governs a workload.
pub(super) fn side(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

fn extended(ends: &str, ports: &FlowPorts, partial: bool) -> Vec<String> {
    let partial = if partial { PARTIAL } else { "" };
    let line = |port: &str| format!("{ends} : {port}{partial}");
    match ports.spans() {
        None => vec![line("*")],
        Some(spans) => {
            let portless = ports.has_portless().then(|| line(PORTLESS));
            spans.iter().map(|span| line(&span_text(span))).chain(portless).collect()
        }
    }
}

pub(super) fn span_text(span: &PortSpan) -> String {
    let protocol = protocol(span.protocol);
    match (span.first, span.last) {
        _ if span.is_all() => format!("*/{protocol}"),
        (first, last) if first == last => format!("{first}/{protocol}"),
        (first, last) => format!("{first}-{last}/{protocol}"),
    }
}

/// Name of the protocol in the Kubernetes API.
pub(super) fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}

fn compatible(ports: &FlowPorts) -> Vec<String> {
    let too_many = |span: &PortSpan| usize::from(span.last - span.first) + 1 > MOST_PORTS_OF_A_RANGE;
    match ports.spans() {
        None => vec!["*".into()],
        // Rules of cluster policies deny some ports, and all others are allowed: `*` would declare the denied ports, and
        // ports between denied ones alone would be misleading.
        Some(_) if ports.has_portless() => vec![],
        Some(spans) if spans.iter().any(too_many) => vec!["*".into()],
        Some(spans) => {
            let mut numbers: Vec<u16> = spans.iter().flat_map(|span| span.first..=span.last).collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers.into_iter().map(|number| number.to_string()).collect()
        }
    }
}

fn end(end: &EdgeEnd) -> String {
    match end {
        EdgeEnd::Any => "*/*".into(),
        EdgeEnd::Workload(workload) => name(workload),
        EdgeEnd::Remote(set) => remote(set),
    }
}

/// `cluster:namespace/name`. A Kubernetes namespace cannot contain `:`, so this is never a workload of this cluster.
pub(super) fn remote(set: &RemoteSet) -> String {
    format!(
        "{}:{}/{}",
        escaped(&set.cluster, &[':', '/']),
        escaped(&set.namespace, &[':', '/']),
        escaped(&set.name, &[])
    )
}

pub(super) fn cidr(block: &Block) -> String {
    let except: Vec<String> = block.except.iter().map(ToString::to_string).collect();
    match except.is_empty() {
        true => block.cidr.to_string(),
        false => format!("{} except {}", block.cidr, except.join(",")),
    }
}

pub(super) fn name(workload: &ObjectName) -> String {
    format!("{}/{}", escaped(&workload.namespace, &[':', '/']), escaped(&workload.name, &[]))
}

/// Kubernetes names stay as they are. Owners of pods may have any name: text that would be ambiguous, or contains one
/// of the `separators`, is percent-encoded byte by byte.
fn escaped(text: &str, separators: &[char]) -> String {
    let mut written = String::with_capacity(text.len());
    for byte in text.bytes() {
        let is_separator = separators.contains(&char::from(byte));
        match byte {
            b'%' | b'*' | b'#' | 0..=b' ' | 0x7f..=0xff => written.push_str(&format!("%{byte:02x}")),
            separator if is_separator => written.push_str(&format!("%{separator:02x}")),
            plain => written.push(char::from(plain)),
        }
    }
    written
}

/// `None` if the text is not a result of [`escaped`].
pub(super) fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |d: &u8| char::from(*d).to_digit(16);
                bytes.push(u8::try_from(digit(high)? * 16 + digit(low)?).ok()?);
                after
            }
            (b'%', _) => return None,
            (plain, after) => {
                bytes.push(*plain);
                after
            }
        };
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(protocol: Protocol, first: u16, last: u16) -> PortSpan {
        PortSpan { protocol, first, last }
    }

    fn edge(spans: &[PortSpan], partial: bool) -> DeclaredLine {
        let workload = |text: &str| EdgeEnd::Workload(text.parse().unwrap());
        let ports = FlowPorts::of(spans.iter().copied());
        DeclaredLine::Edge { source: workload("shop/web"), destination: workload("shop/api"), ports, partial }
    }

    #[test]
    fn the_compatible_form_has_numbers_and_no_protocols() {
        let both = edge(&[span(Protocol::Tcp, 53, 53), span(Protocol::Udp, 53, 54)], true);
        assert_eq!(texts(&both, Form::Compatible), ["E shop/web > shop/api : 53", "E shop/web > shop/api : 54"]);
        assert_eq!(
            texts(&both, Form::Extended),
            ["E shop/web > shop/api : 53/TCP some", "E shop/web > shop/api : 53-54/UDP some"]
        );
    }

    #[test]
    fn compatible_form_expands_small_port_ranges_only() {
        let most = edge(&[span(Protocol::Tcp, 8_001, 8_128)], false);
        assert_eq!(texts(&most, Form::Compatible).len(), MOST_PORTS_OF_A_RANGE);
        let more = edge(&[span(Protocol::Tcp, 8_000, 8_128), span(Protocol::Udp, 1, 1)], false);
        assert_eq!(texts(&more, Form::Compatible), ["E shop/web > shop/api : *"]);
        let all_but_tcp = DeclaredLine::Edge {
            source: EdgeEnd::Any,
            destination: EdgeEnd::Workload("shop/api".parse().unwrap()),
            ports: FlowPorts::with_portless([PortSpan::all(Protocol::Udp), PortSpan::all(Protocol::Sctp)]),
            partial: false,
        };
        assert_eq!(texts(&all_but_tcp, Form::Compatible), Vec::<String>::new());
        let all = edge(&[PortSpan::all(Protocol::Udp)], false);
        assert_eq!(texts(&all, Form::Extended), ["E shop/web > shop/api : */UDP"]);
    }

    #[test]
    fn workload_name_is_escaped_in_lines() {
        for odd in ["a > b/c : *", "*", "x\nE */* > */* : *", "größe", "100%", "a/b"] {
            let workload = ObjectName::new("shop", odd);
            let written = name(&workload);
            assert!(!written.contains([' ', '*', '\n']), "{written}");
            assert_eq!(unescaped(written.split_once('/').unwrap().1).as_deref(), Some(odd));
        }
        assert_eq!(name(&ObjectName::new("shop", "web-0.x_y")), "shop/web-0.x_y");
    }

    #[test]
    fn remote_sets_are_written_apart_from_workloads() {
        let from_east = DeclaredLine::Edge {
            source: EdgeEnd::Remote(RemoteSet::new("east", "shop", "web").into()),
            destination: EdgeEnd::Workload("data/db".parse().unwrap()),
            ports: FlowPorts::of([span(Protocol::Tcp, 5432, 5433)]),
            partial: false,
        };
        assert_eq!(texts(&from_east, Form::Extended), ["E east:shop/web > data/db : 5432-5433/TCP"]);
        let compatible = ["E east:shop/web > data/db : 5432", "E east:shop/web > data/db : 5433"];
        assert_eq!(texts(&from_east, Form::Compatible), compatible);
        // Different remote sets never have the same text.
        let odd = [("a:b", "c", "d"), ("a", "b:c", "d"), ("a", "b", "c/d"), ("a", "b/c", "d"), ("a/b", "c", "d")];
        let mut written: Vec<String> = odd.iter().map(|(c, n, name)| remote(&RemoteSet::new(c, n, name))).collect();
        written.push(name(&ObjectName::new("a:b", "c/d")));
        written.push(name(&ObjectName::new("a:b/c", "d")));
        let distinct: std::collections::BTreeSet<&String> = written.iter().collect();
        assert_eq!(distinct.len(), written.len(), "{written:?}");
    }
}
