//! The layout of other implementations: a chain for each pod, with a jump for each policy. The scripts beside this file
//! write it, so that a reader can check that it is equivalent to ours and as cheap as possible.

use super::place::{CLIENT, Place, Rules, SERVER, put_to_sleep, try_run};
use super::traffic::PORT;
use kit::kernel_table::load_text;

const FOR_NFT: &str = include_str!("linear-nft.sh");
const FOR_IPTABLES: &str = include_str!("linear-iptables.sh");
const FOR_IPSET: &str = include_str!("linear-ipset.sh");

/// Loads the table of nftables as dormant.
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

/// Loads the chains of iptables without a jump to them.
///
/// # Errors
/// The missing program or kernel feature.
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
