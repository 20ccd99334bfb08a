//! The layout that others use: a chain for each pod, in it a jump for each policy. The scripts beside this file write it,
//! so that a reader can check that it says the same as ours and is as cheap as it can be.

use super::place::{CLIENT, Place, Rules, SERVER, put_to_sleep, try_run};
use super::traffic::PORT;
use crate::kernel_table::load_text;

const FOR_NFT: &str = include_str!("linear-nft.sh");
const FOR_IPTABLES: &str = include_str!("linear-iptables.sh");
const FOR_IPSET: &str = include_str!("linear-ipset.sh");

/// The table of nftables is asleep.
pub(super) fn load_nft(place: &Place, policies: u32) -> Rules {
    let table = format!("linear-{policies}");
    let arguments = [&table, &policies.to_string(), &CLIENT.to_string(), &SERVER.to_string(), &PORT.to_string()];
    let text = written_by(FOR_NFT, &arguments);
    place.on_node(|| {
        load_text(&text);
        put_to_sleep("inet", &table);
    });
    Rules::Table(table)
}

/// The chains of iptables, to which nothing leads.
///
/// # Errors
/// What is missing: one of the programs, or what the kernel needs for them.
pub(super) fn load_iptables(place: &Place, policies: u32) -> Result<Rules, String> {
    let program = "iptables-legacy";
    let name = format!("L{policies}");
    let (count, server) = (policies.to_string(), SERVER.to_string());
    let sets = written_by(FOR_IPSET, &[&name, &count, &CLIENT.to_string()]);
    let chains = written_by(FOR_IPTABLES, &[&name, &count, &server, &PORT.to_string()]);
    place.on_node(|| {
        try_run("ipset", &["restore"], &sets).map_err(|e| format!("ipset: {e}"))?;
        let restore = try_run("iptables-legacy-restore", &["--noflush"], &chains);
        restore.map_err(|e| format!("iptables-legacy-restore: {e}"))
    })?;
    Ok(Rules::Chain(program, name))
}

fn written_by(script: &str, arguments: &[&String]) -> String {
    let mut words = vec!["-s", "--"];
    words.extend(arguments.iter().map(|a| a.as_str()));
    try_run("sh", &words, script).unwrap_or_else(|e| panic!("a script of the test kit fails: {e}"))
}
