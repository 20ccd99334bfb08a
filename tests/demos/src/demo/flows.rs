//! The flow records of the running agents.

use anyhow::Context;

use super::agents::Agents;
use super::screen::{FAINT, Screen};
use super::shop::Shop;

/// Lines shown of each verdict.
const SHOWN: usize = 5;

/// Shows some records of the first node; returns what is missing.
pub(super) fn print(screen: &Screen, shop: &Shop, agents: &Agents) -> anyhow::Result<Vec<String>> {
    let node = *shop.nodes().first().context("the shop has no node")?;
    screen.line(format_args!("   {FAINT}{node}{FAINT:#}   ringfence flows"));
    let mut missing = Vec::new();
    for verdict in ["allowed", "denied"] {
        let records = agents.flows(node, verdict)?;
        if records.is_empty() {
            missing.push(format!("{node} has no record of a connection that was {verdict}"));
        }
        records.lines().take(SHOWN).for_each(|line| screen.line(format_args!("     {line}")));
    }
    Ok(missing)
}
