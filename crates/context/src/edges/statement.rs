//! Parsing of lines in either form.

use std::fmt;

use ipnet::IpNet;
use policy::remote::RemoteSet;
use policy::{Block, Direction, DomainPattern, ObjectName, PortSpan, Protocol, RuleAction, Tier, TierRuleName};

use super::text::{
    BY, CLUSTER_POLICY, EXTENDED, Form, HEADER, PARTIAL, PORTLESS, cidr, cluster_policy, name, remote, rule_name, side,
    span_text, unescaped,
};

/// A parsed line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Statement {
    Edge {
        source: StatementEnd,
        destination: StatementEnd,
        ports: StatementPorts,
        partial: bool,
    },
    /// A rule of a ClusterNetworkPolicy accepts these flows of an edge.
    Rule {
        source: StatementEnd,
        destination: StatementEnd,
        ports: StatementPorts,
        partial: bool,
        rule: TierRuleName,
    },
    IngressGoverned(ObjectName),
    EgressGoverned(ObjectName),
    /// The NetworkPolicy is one of those that govern the workload in the direction.
    Governs {
        policy: ObjectName,
        direction: Direction,
        workload: ObjectName,
    },
    /// The same for a ClusterNetworkPolicy.
    ClusterGoverns {
        tier: Tier,
        policy: String,
        direction: Direction,
        workload: ObjectName,
    },
}

/// One end of an edge, which may be a block. The other end of a block or of a remote set is a workload.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StatementEnd {
    Any,
    Workload(ObjectName),
    /// Pods of another cluster.
    Remote(RemoteSet),
    Block(Block),
    /// Addresses of a domain name, as the destination.
    Name(DomainPattern),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StatementPorts {
    Any,
    /// A port of any protocol.
    Number(u16),
    Span(PortSpan),
    /// Every protocol without ports.
    Portless,
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Statement::IngressGoverned(workload) => write!(f, "G {}", name(workload)),
            Statement::EgressGoverned(workload) => write!(f, "S {}", name(workload)),
            Statement::Governs { policy, direction, workload } => {
                write!(f, "P {} > {} : {}", name(policy), name(workload), side(*direction))
            }
            Statement::ClusterGoverns { tier, policy, direction, workload } => {
                write!(f, "P {} > {} : {}", cluster_policy(*tier, policy), name(workload), side(*direction))
            }
            Statement::Rule { source, destination, ports, partial, rule } => {
                let partial = if *partial { PARTIAL } else { "" };
                write!(f, "R {source} > {destination} : {ports}{partial}{BY}{}", rule_name(rule))
            }
            Statement::Edge { source, destination, ports, partial } => {
                let kind = match (source, destination) {
                    (_, StatementEnd::Name(_)) => "N",
                    (StatementEnd::Block(_), _) | (_, StatementEnd::Block(_)) => "C",
                    (_, _) => "E",
                };
                write!(f, "{kind} {source} > {destination} : {ports}{}", if *partial { PARTIAL } else { "" })
            }
        }
    }
}

impl fmt::Display for StatementEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StatementEnd::Any => f.write_str("*/*"),
            StatementEnd::Workload(workload) => f.write_str(&name(workload)),
            StatementEnd::Remote(set) => f.write_str(&remote(set)),
            StatementEnd::Block(block) => f.write_str(&cidr(block)),
            StatementEnd::Name(name) => write!(f, "{name}"),
        }
    }
}

impl fmt::Display for StatementPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StatementPorts::Any => f.write_str("*"),
            StatementPorts::Number(number) => write!(f, "{number}"),
            StatementPorts::Span(span) => f.write_str(&span_text(span)),
            StatementPorts::Portless => f.write_str(PORTLESS),
        }
    }
}

/// Parse error of a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid line '{line}' in a list of declared edges: {why}")]
pub struct NotALine {
    line: String,
    why: &'static str,
}

/// Parse error of a list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAList {
    #[error("expected '{HEADER}' at the beginning")]
    NoHeader,
    #[error("line {number}: {error}")]
    Line { number: usize, error: NotALine },
}

/// Parses a whole list: the form from its first line, and its lines in their order.
pub fn parse(text: &str) -> Result<(Form, Vec<Statement>), NotAList> {
    let mut lines = text.lines().zip(1..);
    let form = match lines.next().and_then(|(first, _)| first.strip_prefix(HEADER)) {
        Some("") => Form::Compatible,
        Some(EXTENDED) => Form::Extended,
        Some(_) | None => return Err(NotAList::NoHeader),
    };
    let read = |(line, number): (&str, usize)| parse_line(line).map_err(|error| NotAList::Line { number, error });
    let meant = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    Ok((form, meant.map(read).collect::<Result<_, _>>()?))
}

/// Parses one line, without its line break.
pub fn parse_line(line: &str) -> Result<Statement, NotALine> {
    statement(line).map_err(|why| NotALine { line: line.chars().take(LONGEST_SHOWN).collect(), why })
}

/// Characters of a line that an error shows.
const LONGEST_SHOWN: usize = 200;

fn statement(line: &str) -> Result<Statement, &'static str> {
    let (kind, rest) = line.split_once(' ').ok_or("expected more than one word")?;
    match kind {
        "G" => Ok(Statement::IngressGoverned(workload(rest)?)),
        "S" => Ok(Statement::EgressGoverned(workload(rest)?)),
        "P" => {
            let (ends, side_of) = rest.rsplit_once(" : ").ok_or("missing ' : ' before the direction")?;
            let (policy, governed) = ends.split_once(" > ").ok_or("missing ' > ' between source and destination")?;
            let direction = Direction::BOTH.into_iter().find(|direction| side(*direction) == side_of);
            let direction = direction.ok_or("invalid direction: expected ingress or egress")?;
            let workload_governed = workload(governed)?;
            match policy.strip_prefix(CLUSTER_POLICY) {
                Some(policy) => {
                    let (tier, policy) = tier_and_policy(policy).ok_or("invalid cluster policy: expected TIER/NAME")?;
                    Ok(Statement::ClusterGoverns { tier, policy, direction, workload: workload_governed })
                }
                None => Ok(Statement::Governs { policy: workload(policy)?, direction, workload: workload_governed }),
            }
        }
        "R" => {
            let (edge, rule) = rest.rsplit_once(BY).ok_or("missing ' by ' before the rule")?;
            let (ends, ports) = edge.rsplit_once(" : ").ok_or("missing ' : ' before the port")?;
            let (source, destination) = ends.split_once(" > ").ok_or("missing ' > ' between source and destination")?;
            let (ports, partial) = match ports.strip_suffix(PARTIAL) {
                Some(ports) => (ports, true),
                None => (ports, false),
            };
            let (source, destination) = ends_of_edge(end(source)?, end(destination)?)?;
            let ports = self::ports(ports).ok_or("invalid port")?;
            let rule =
                rule_of(rule).ok_or("invalid rule: expected POLICY DIRECTION[INDEX] ACTION and a name or none")?;
            Ok(Statement::Rule { source, destination, ports, partial, rule })
        }
        "E" | "C" | "N" => {
            let (ends, ports) = rest.rsplit_once(" : ").ok_or("missing ' : ' before the port")?;
            let (source, destination) = ends.split_once(" > ").ok_or("missing ' > ' between source and destination")?;
            let (ports, partial) = match ports.strip_suffix(PARTIAL) {
                Some(ports) => (ports, true),
                None => (ports, false),
            };
            let (source, destination) = match kind {
                "E" => ends_of_edge(end(source)?, end(destination)?)?,
                "N" => {
                    let name = domain_name(destination).ok_or("invalid domain name")?;
                    (StatementEnd::Workload(workload(source)?), StatementEnd::Name(name))
                }
                _ => match block(source) {
                    Some(source) => (StatementEnd::Block(source), StatementEnd::Workload(workload(destination)?)),
                    None => {
                        let destination = block(destination).ok_or("neither end is a block")?;
                        (StatementEnd::Workload(workload(source)?), StatementEnd::Block(destination))
                    }
                },
            };
            let ports = self::ports(ports).ok_or("invalid port")?;
            Ok(Statement::Edge { source, destination, ports, partial })
        }
        _ => Err("expected C, E, G, N, P, R or S at the beginning"),
    }
}

fn end(text: &str) -> Result<StatementEnd, &'static str> {
    match text {
        "*/*" => Ok(StatementEnd::Any),
        _ if is_remote(text) => Ok(StatementEnd::Remote(remote_set(text)?)),
        _ => Ok(StatementEnd::Workload(workload(text)?)),
    }
}

fn ends_of_edge(source: StatementEnd, destination: StatementEnd) -> Result<(StatementEnd, StatementEnd), &'static str> {
    match (&source, &destination) {
        (StatementEnd::Remote(_), StatementEnd::Any | StatementEnd::Remote(_))
        | (StatementEnd::Any, StatementEnd::Remote(_)) => Err("the other end of a remote set is not a workload"),
        _ => Ok((source, destination)),
    }
}

/// Whether the name of an end is that of a remote set: its cluster and namespace are joined by `:`.
fn is_remote(text: &str) -> bool {
    text.split_once('/').is_some_and(|(place, _)| place.contains(':'))
}

/// Parses `cluster:namespace/name`.
pub(crate) fn remote_set(text: &str) -> Result<RemoteSet, &'static str> {
    let parts = text.split_once('/').and_then(|(place, name)| Some((place.split_once(':')?, name)));
    match parts.map(|((cluster, namespace), name)| [cluster, namespace, name].map(part)) {
        Some([Some(cluster), Some(namespace), Some(name)]) => Ok(RemoteSet::new(&cluster, &namespace, &name)),
        Some(_) | None => Err("invalid remote set: expected CLUSTER:NAMESPACE/NAME"),
    }
}

fn workload(text: &str) -> Result<ObjectName, &'static str> {
    const NOT_A_WORKLOAD: &str = "invalid source or destination: expected NAMESPACE/WORKLOAD";
    let (namespace, name) = text.split_once('/').ok_or(NOT_A_WORKLOAD)?;
    match (part(namespace), part(name)) {
        (Some(namespace), Some(name)) if !is_remote(text) => Ok(ObjectName::new(&namespace, &name)),
        _ => Err(NOT_A_WORKLOAD),
    }
}

fn tier_and_policy(text: &str) -> Option<(Tier, String)> {
    let (tier, policy) = text.split_once('/')?;
    let tier = Tier::BOTH.into_iter().find(|known| known.to_string() == tier)?;
    Some((tier, part(policy)?))
}

/// Parses `ClusterNetworkPolicy:<tier>/<name> <direction>[<index>] <action>`, with the rule's name behind it if it has
/// one.
fn rule_of(text: &str) -> Option<TierRuleName> {
    let mut words = text.strip_prefix(CLUSTER_POLICY)?.split(' ');
    let (tier, policy) = tier_and_policy(words.next()?)?;
    let (side_of, index) = words.next()?.strip_suffix(']')?.split_once('[')?;
    let direction = Direction::BOTH.into_iter().find(|direction| side(*direction) == side_of)?;
    let action = words.next()?;
    let action =
        [RuleAction::Accept, RuleAction::Deny, RuleAction::Pass].into_iter().find(|a| a.to_string() == action)?;
    let name = match words.next() {
        Some(name) => Some(unescaped(name)?.into()),
        None => None,
    };
    let index = index.parse().ok()?;
    words.next().is_none().then_some(TierRuleName { tier, policy: policy.into(), direction, index, name, action })
}

/// Unescapes a part of a name.
fn part(text: &str) -> Option<String> {
    unescaped(text).filter(|part| !part.is_empty() && !text.contains(['*', ' ']))
}

fn block(text: &str) -> Option<Block> {
    let (cidr, except) = text.split_once(" except ").map_or((text, None), |(cidr, except)| (cidr, Some(except)));
    let cidr: IpNet = cidr.parse().ok()?;
    let except = except.map_or(Ok(vec![]), |list| list.split(',').map(str::parse).collect()).ok()?;
    Some(Block { cidr, except })
}

fn domain_name(text: &str) -> Option<DomainPattern> {
    let (wildcard, name) = text.strip_prefix("*.").map_or((false, text), |name| (true, name));
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    let is_name = name.split('.').all(|label| !label.is_empty() && label.bytes().all(is_plain));
    is_name.then(|| DomainPattern { wildcard, name: name.into() })
}

fn ports(text: &str) -> Option<StatementPorts> {
    let Some((numbers, protocol)) = text.split_once('/') else {
        return match text {
            "*" => Some(StatementPorts::Any),
            PORTLESS => Some(StatementPorts::Portless),
            number => number.parse().ok().map(StatementPorts::Number),
        };
    };
    let protocol = Protocol::ALL.into_iter().find(|known| super::text::protocol(*known) == protocol)?;
    if numbers == "*" {
        return Some(StatementPorts::Span(PortSpan::all(protocol)));
    }
    let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some(StatementPorts::Span(PortSpan { protocol, first, last }))
}

#[cfg(test)]
mod tests {
    use policy::{DeclaredLine, EdgeEnd, FlowPorts};

    use super::*;
    use crate::edges::texts;

    #[test]
    fn lines_round_trip_in_extended_form() {
        let workload = |text: &str| text.parse::<ObjectName>().unwrap();
        let ports = FlowPorts::of([
            PortSpan { protocol: Protocol::Tcp, first: 80, last: 80 },
            PortSpan { protocol: Protocol::Tcp, first: 8000, last: 9000 },
            PortSpan::all(Protocol::Udp),
        ]);
        let block = Block {
            cidr: "10.0.0.0/8".parse().unwrap(),
            except: vec!["10.1.0.0/16".parse().unwrap(), "10.2.0.0/16".parse().unwrap()],
        };
        let rule = TierRuleName {
            tier: Tier::Admin,
            policy: "tenants".into(),
            direction: Direction::Egress,
            index: 3,
            name: Some("everyone by name".into()),
            action: RuleAction::Accept,
        };
        let lines = [
            DeclaredLine::Edge {
                source: EdgeEnd::Any,
                destination: EdgeEnd::Workload(workload("a/b")),
                ports,
                partial: true,
            },
            DeclaredLine::FromBlock {
                block,
                destination: workload("a/b"),
                ports: FlowPorts::everything(),
                partial: false,
            },
            DeclaredLine::EgressGoverned(workload("a/b")),
            DeclaredLine::ToName {
                source: workload("a/b"),
                name: DomainPattern { wildcard: true, name: "example.org".into() },
                ports: FlowPorts::of([PortSpan { protocol: Protocol::Tcp, first: 443, last: 443 }]),
                partial: true,
            },
            DeclaredLine::ClusterGoverns {
                tier: Tier::Baseline,
                policy: "tenants".into(),
                direction: Direction::Egress,
                workload: workload("a/b"),
            },
            DeclaredLine::Rule {
                source: EdgeEnd::Workload(workload("a/b")),
                destination: EdgeEnd::Any,
                ports: FlowPorts::everything(),
                partial: true,
                rule: rule.clone().into(),
            },
            DeclaredLine::ToBlock {
                source: workload("a/b"),
                block: Block { cidr: "10.0.0.0/8".parse().unwrap(), except: vec![] },
                ports: FlowPorts::with_portless([PortSpan::all(Protocol::Udp)]),
                partial: true,
            },
            DeclaredLine::Edge {
                source: EdgeEnd::Workload(workload("a/b")),
                destination: EdgeEnd::Remote(RemoteSet::new("east", "shop", "web").into()),
                ports: FlowPorts::everything(),
                partial: true,
            },
        ];
        let written: Vec<String> = lines.iter().flat_map(|line| texts(line, Form::Extended)).collect();
        assert_eq!(
            written,
            [
                "E */* > a/b : 80/TCP some",
                "E */* > a/b : 8000-9000/TCP some",
                "E */* > a/b : */UDP some",
                "C 10.0.0.0/8 except 10.1.0.0/16,10.2.0.0/16 > a/b : *",
                "S a/b",
                "N a/b > *.example.org : 443/TCP some",
                "P ClusterNetworkPolicy:Baseline/tenants > a/b : egress",
                "R a/b > */* : * some by ClusterNetworkPolicy:Admin/tenants egress[3] Accept everyone%20by%20name",
                "C a/b > 10.0.0.0/8 : */UDP some",
                "C a/b > 10.0.0.0/8 : portless some",
                "E a/b > east:shop/web : * some",
            ]
        );
        let read: Vec<Statement> = written.iter().map(|line| parse_line(line).unwrap()).collect();
        let back = |statement: &Statement| match statement {
            Statement::Edge { source: StatementEnd::Any, ports: StatementPorts::Span(span), partial: true, .. } => {
                span.protocol
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(read[..3].iter().map(back).collect::<Vec<_>>(), [Protocol::Tcp, Protocol::Tcp, Protocol::Udp]);
        assert!(matches!(&read[3], Statement::Edge { source: StatementEnd::Block(b), .. } if b.except.len() == 2));
        assert_eq!(read[4], Statement::EgressGoverned(workload("a/b")));
        let remote = RemoteSet::new("east", "shop", "web");
        assert!(
            matches!(&read[6], Statement::ClusterGoverns { tier: Tier::Baseline, policy, .. } if policy == "tenants")
        );
        assert!(matches!(&read[7], Statement::Rule { rule: read, partial: true, .. } if *read == rule));
        assert!(matches!(&read[9], Statement::Edge { ports: StatementPorts::Portless, partial: true, .. }));
        assert!(matches!(&read[10], Statement::Edge { destination: StatementEnd::Remote(set), .. } if *set == remote));
        assert_eq!(read.iter().map(ToString::to_string).collect::<Vec<_>>(), written);
    }

    #[test]
    fn invalid_line_is_refused_with_reason() {
        for (line, why) in [
            ("", "one word"),
            ("X a/b", "at the beginning"),
            ("G a", "NAMESPACE/WORKLOAD"),
            ("G */*", "NAMESPACE/WORKLOAD"),
            ("E a/b > c/d", "' : '"),
            ("E a/b : 80", "' > '"),
            ("E a/b > c/d : http", "port"),
            ("E a/b > c/d : 90-80/TCP", "port"),
            ("E a/b > c/d : 80/tcp", "port"),
            ("C a/b > c/d : 80", "block"),
            ("P ClusterNetworkPolicy:Middle/x > c/d : egress", "TIER/NAME"),
            ("R a/b > c/d : *", "' by '"),
            ("R a/b > c/d : * by ClusterNetworkPolicy:Admin/x egress Accept", "invalid rule"),
            ("P ClusterNetworkPolicy:Admin > c/d : egress", "TIER/NAME"),
            ("G east:shop/web", "NAMESPACE/WORKLOAD"),
            ("E east:/web > c/d : 80", "CLUSTER:NAMESPACE/NAME"),
            ("E east:shop/web > */* : 80", "remote set is not a workload"),
            ("E a:b/c > d:e/f : 80", "remote set is not a workload"),
        ] {
            let error = parse_line(line).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(parse("G a/b\n"), Err(NotAList::NoHeader));
        let numbered = parse(&format!("{HEADER}\nG a/b\nG a\n")).unwrap_err().to_string();
        assert!(numbered.starts_with("line 3: invalid line 'G a'"), "{numbered}");
    }
}
