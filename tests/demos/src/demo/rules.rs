//! The rules of one node as `nft` lists them: the base chains, and the programs of a pod for egress and ingress.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anstyle::Style;
use anyhow::{Context, ensure};

use super::place::PREFIX;
use super::screen::{FAINT, STRONG, Screen};
use super::shop::Shop;
use kit::lab::{Lab, named};

const LIST: [&str; 4] = ["list", "table", "inet", "ringfence"];

/// The pods whose programs are shown: one with few egress peers, one with few ingress peers.
const SHOWN: [(&str, &str); 2] = [("egress4", "worker-1"), ("ingress4", "db-2")];

pub(super) fn print(screen: &Screen, shop: &Shop, lab: &Lab) -> anyhow::Result<()> {
    let node = shop.party(SHOWN[0].1)?.node.as_deref().context("a pod without a node")?;
    let listing = lab.node_exec(node, list)?;
    let blocks = blocks(&listing);
    let text_of = |title: &str| blocks.iter().find(|block| block.title == title).map(|block| block.lines.join("\n"));

    let mut shown = BTreeSet::new();
    let mut show = |title: &str| {
        let new = blocks.iter().find(|block| block.title == title).filter(|_| shown.insert(title.to_owned()));
        new.into_iter().for_each(|block| block.print(screen));
    };
    screen.line("   Every packet that the node forwards:");
    show("chain forward");
    for (map, pod) in SHOWN {
        let party = shop.party(pod)?;
        let program = text_of(&format!("map {map}"))
            .and_then(|text| program_of(&text, &party.addresses[0].to_string()))
            .with_context(|| format!("{pod} has no program in {map} of {node}"))?;
        let chain = format!("chain {program}");
        let rules = text_of(&chain).with_context(|| format!("{node} has no {chain}"))?;
        screen.line(format_args!("\n   Where map {map} sends the packets of {}:", party.full_name()));
        show(&chain);
        for set in sets_of(&rules) {
            show(&format!("set {set}"));
        }
    }
    let shown: usize = blocks.iter().filter(|block| shown.contains(&block.title)).map(|block| block.lines.len()).sum();
    let all = listing.lines().count();
    let namespace = named(PREFIX, node);
    screen.line(format_args!(
        "\n   {FAINT}{shown} of {all} lines: the sets of IPv6 and the other pods are left out. All of them, with --keep:"
    ));
    screen.line(format_args!("   ip netns exec {namespace} nft {}{FAINT:#}", LIST.join(" ")));
    Ok(())
}

fn list() -> anyhow::Result<String> {
    let output = Command::new("nft").args(LIST).process_group(0).output().context("cannot run nft")?;
    ensure!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr).trim());
    String::from_utf8(output.stdout).context("what nft lists")
}

/// A chain, set or map of a listing.
struct Block<'a> {
    /// The first line, for example `chain forward`.
    title: String,
    lines: Vec<&'a str>,
}

impl Block<'_> {
    /// Prints with small indents instead of nft's tabs of eight columns, and one element per line as nft has them.
    fn print(&self, screen: &Screen) {
        const TAB: usize = 8;
        const INDENT: usize = 2;
        for (index, line) in self.lines.iter().enumerate() {
            let text = line.trim_start();
            let column: usize = line[..line.len() - text.len()].chars().map(|c| if c == '\t' { TAB } else { 1 }).sum();
            let column = column.saturating_sub(TAB).checked_sub(TAB).map_or(0, |deeper| deeper + INDENT);
            let style = if index == 0 { STRONG } else { Style::new() };
            screen.line(format_args!("   {:column$}{style}{text}{style:#}", ""));
        }
    }
}

fn blocks(listing: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut inside = false;
    for line in listing.lines() {
        if let Some(title) = line.strip_prefix('\t').and_then(|line| line.strip_suffix(" {"))
            && !inside
        {
            blocks.push(Block { title: title.into(), lines: Vec::new() });
            inside = true;
        }
        if inside && let Some(block) = blocks.last_mut() {
            block.lines.push(line);
        }
        inside &= line != "\t}";
    }
    blocks
}

/// The chain to which a verdict map dispatches an address.
fn program_of(map: &str, address: &str) -> Option<String> {
    let elements = map.split_once("elements = {")?.1;
    let element = elements.split(',').find(|element| element.split_whitespace().next() == Some(address))?;
    let program = element.split_once(" jump ")?.1;
    Some(program.split_whitespace().next()?.into())
}

/// The IPv4 sets that rules look up.
fn sets_of(rules: &str) -> BTreeSet<&str> {
    let names = rules.split('@').skip(1).filter_map(|rest| rest.split_whitespace().next());
    names.filter(|name| name.split('/').next().is_some_and(|kind| kind.ends_with('4'))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "table inet ringfence {
\tmap egress4 {
\t\ttype ipv4_addr : verdict
\t\telements = { 10.2.0.4 comment \"shop/worker-1\" : jump egress/shop/worker-egress,
\t\t             10.2.0.41 : jump egress/other }
\t}

\tchain egress/shop/worker-egress {
\t\tip daddr @nets4/a goto ingress comment \"shop/worker-egress\"
\t\tip6 daddr @nets6/a goto ingress
\t}
}
";

    #[test]
    fn a_listing_falls_into_its_blocks() {
        let blocks = blocks(LISTING);
        let titles: Vec<&str> = blocks.iter().map(|block| block.title.as_str()).collect();
        assert_eq!(titles, ["map egress4", "chain egress/shop/worker-egress"]);
        let map = blocks[0].lines.join("\n");
        assert_eq!(program_of(&map, "10.2.0.4").as_deref(), Some("egress/shop/worker-egress"));
        assert_eq!(program_of(&map, "10.2.0.41").as_deref(), Some("egress/other"));
        assert_eq!(program_of(&map, "10.2.0.5"), None);
        assert_eq!(sets_of(&blocks[1].lines.join("\n")), BTreeSet::from(["nets4/a"]));
    }
}
