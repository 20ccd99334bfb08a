//! Every cell as the running agents explain it: the denied ones by the denying policies, and every disagreement between
//! explanation and connection.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use policy::{Explanation, SideVerdict};

use super::agents::Agents;
use super::matrix::{Matrix, Reachability};
use super::screen::{BAD, FAINT, STRONG, Screen};
use super::shop::{Party, Shop};

/// The side that denies: the source's side if both deny.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Egress,
    Ingress,
}

/// By side and policies: the isolated pods, each with its denied peers.
type Denials<'a> = BTreeMap<(Side, String), BTreeMap<usize, Vec<&'a Party>>>;

/// Prints the denials; returns the cells on which an agent and the connection disagree.
pub(super) fn print(screen: &Screen, shop: &Shop, agents: &Agents, after: &Matrix) -> anyhow::Result<Vec<String>> {
    let mut denials = Denials::new();
    let mut disputed = Vec::new();
    let mut asked = 0;
    for (row, source) in shop.sources.iter().enumerate() {
        for (column, destination) in shop.destinations.iter().enumerate() {
            let Some(reached) = after.cells[row][column] else { continue };
            let explanations = explain(agents, source, destination)?;
            asked += 1;
            let allowed = explanations.iter().all(|explanation| explanation.allowed);
            if (reached == Reachability::BOTH) != allowed {
                let said = if allowed { "allows it" } else { "denies it" };
                let (from, to) = (source.full_name(), destination.full_name());
                disputed.push(format!("{from} {} to {to}, but the agent {said}", reached.described()));
            }
            if let Some(denied) = explanations.iter().find(|explanation| !explanation.allowed) {
                let (side, policies) = deciding(denied);
                let (isolated, other) = match side {
                    Side::Egress => (row, destination),
                    Side::Ingress => (column, source),
                };
                denials.entry((side, policies)).or_default().entry(isolated).or_default().push(other);
            }
        }
    }
    screen.line(
        "   The policies that isolate and do not allow; under them the number of pairs, and which. Where both sides",
    );
    screen.line("   deny, the egress of the source is named.\n");
    for ((side, policies), cells) in &denials {
        print_group(screen, shop, *side, policies, cells);
    }
    let verdict = match disputed.len() {
        0 => "explanation and connection agree on every one".into(),
        count => format!("{BAD}explanation and connection disagree on {count}{BAD:#}"),
    };
    screen.line(format_args!("\n   All {asked} pairs were asked about in both families: {verdict}."));
    Ok(disputed)
}

/// Queries the agent that enforces the flow, in both families.
fn explain(agents: &Agents, source: &Party, destination: &Party) -> anyhow::Result<Vec<Explanation>> {
    let node = destination.node.as_ref().or(source.node.as_ref()).context("neither is on a node")?;
    let port = destination.port.context("the destination has no port")?;
    let mut explanations = Vec::new();
    for (from, to) in source.addresses.iter().zip(&destination.addresses) {
        explanations.extend(agents.explain(node, &from.to_string(), &to.to_string(), &port.to_string())?);
    }
    ensure!(explanations.len() == 2, "the agent gave {} explanations for two flows", explanations.len());
    Ok(explanations)
}

fn deciding(denied: &Explanation) -> (Side, String) {
    let egress = !denied.egress.allows();
    let (side, verdict) = if egress { (Side::Egress, &denied.egress) } else { (Side::Ingress, &denied.ingress) };
    let policies = match verdict {
        SideVerdict::Denied { isolated_by, closest: _, would_allow: _ } => isolated_by.join(", "),
        SideVerdict::DeniedByRule { rule } => rule.to_string(),
        SideVerdict::Unreadable { reason } => format!("(the pod is invalid: {reason})"),
        SideVerdict::NotAPod
        | SideVerdict::NotIsolated
        | SideVerdict::Itself
        | SideVerdict::OwnNode
        | SideVerdict::Allowed { .. }
        | SideVerdict::Accepted { .. }
        | SideVerdict::WouldAccept { .. }
        | SideVerdict::WouldDenyByRule { .. }
        | SideVerdict::WouldAllow { .. }
        | SideVerdict::WouldDeny { .. } => {
            unreachable!("a side that allows")
        }
    };
    (side, policies)
}

fn print_group(screen: &Screen, shop: &Shop, side: Side, policies: &str, cells: &BTreeMap<usize, Vec<&Party>>) {
    let title = match side {
        Side::Egress => "egress ",
        Side::Ingress => "ingress",
    };
    screen.line(format_args!("   {FAINT}{title}{FAINT:#} {STRONG}{policies}{STRONG:#}"));
    // Pods with the same denied peers share a line.
    let mut lines: Vec<(String, Vec<&str>, usize)> = Vec::new();
    for (isolated, others) in cells {
        let (name, everyone) = match side {
            Side::Egress => (&shop.sources[*isolated].name, &shop.destinations),
            Side::Ingress => (&shop.destinations[*isolated].name, &shop.sources),
        };
        let phrase = phrase(name, others, everyone);
        match lines.iter_mut().find(|(known, ..)| *known == phrase) {
            Some((_, names, count)) => {
                names.push(name);
                *count += others.len();
            }
            None => lines.push((phrase, vec![name], others.len())),
        }
    }
    for (phrase, names, count) in lines {
        let arrow = match side {
            Side::Egress => "to",
            Side::Ingress => "from",
        };
        screen.line(format_args!("     {count:4}  {} {FAINT}{arrow}{FAINT:#} {phrase}", names.join(", ")));
    }
}

/// The peers, by the shorter of two descriptions.
fn phrase(name: &str, others: &[&Party], everyone: &[Party]) -> String {
    let names = |parties: &mut dyn Iterator<Item = &Party>| {
        parties.map(|party| party.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let is_other = |party: &Party| others.iter().any(|other| other.name == party.name);
    let rest: Vec<&Party> = everyone.iter().filter(|party| party.name != name && !is_other(party)).collect();
    match rest.len() {
        0 => "everyone".into(),
        few if few < others.len() / 2 => format!("everyone but {}", names(&mut rest.into_iter())),
        _ => names(&mut others.iter().copied()),
    }
}
