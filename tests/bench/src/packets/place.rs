//! The lab of the packet measurements: a routing node, two of its pods, and the world behind its uplink.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};

use kit::kernel_table::{nft, try_nft};
use kit::lab::{Lab, LabSpec, NodeSpec, PodSpec};

pub(super) const NODE: &str = "node-a";

/// The sender, which a policy allows.
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
/// The receiver.
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
/// The node's ends of their interfaces: the lab numbers them in the order of its pods.
pub(super) const CLIENT_INTERFACE: &str = "pod0";
pub(super) const SERVER_INTERFACE: &str = "pod1";
/// The sender of packets from other nodes, with any source address.
pub(super) const WORLD: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

/// Addresses of pods of the node. All of them are local to the server's namespace, so that a lookup can have many keys
/// without as many namespaces.
pub(super) const LOCAL_RANGE: &str = "10.64.0.0/15";
pub(super) const FIRST_LOCAL: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 0);

/// Families of the tables of a ruleset with source check.
const FAMILIES: [&str; 2] = ["inet", "netdev"];

/// A namespace in which only the active rules are in force.
pub(super) struct Place {
    pub(super) lab: Lab,
    active: Option<Rules>,
}

/// Rules that are loaded in a place and can be activated and deactivated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rules {
    /// No rules.
    None,
    /// The table of family `inet` of this name, dormant while inactive.
    Table(String),
    /// The tables of families `inet` and `netdev` of this name.
    Tables(String),
    /// The iptables chain of this name, without a jump to it while inactive.
    Chain(&'static str, String),
}

impl Place {
    pub(super) fn new() -> Place {
        let pod = |name: &str, address: Ipv4Addr| PodSpec { name: name.into(), addresses: vec![address.into()] };
        let pods = vec![pod("client", CLIENT), pod("server", SERVER)];
        let node = NodeSpec { name: NODE.into(), addresses: vec![], pods };
        let lab = Lab::new(&LabSpec { nodes: vec![node], outside: vec![WORLD.into()] });
        lab.in_namespace_of(SERVER.into(), || run("ip", &["route", "add", "local", LOCAL_RANGE, "dev", "lo"], ""));
        let to = |interface: &str, hop: &str| {
            let route = ["route", "add", LOCAL_RANGE, "via", hop, "dev", interface, "onlink"];
            run("ip", &route, "");
        };
        lab.node_exec(NODE, || {
            let hop = SERVER.to_string();
            to(SERVER_INTERFACE, &hop);
        });
        lab.in_namespace_of(WORLD.into(), || to("node0", "169.254.1.1"));
        Place { lab, active: None }
    }

    /// Runs `work` on a thread in the node's namespace.
    pub(super) fn on_node<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.lab.node_exec(NODE, work)
    }

    /// Runs `work` on a thread in the namespace of the address.
    pub(super) fn at<T: Send>(&self, address: Ipv4Addr, work: impl FnOnce() -> T + Send) -> T {
        self.lab.in_namespace_of(IpAddr::V4(address), work)
    }

    /// Puts only these rules in force.
    pub(super) fn switch_to(&mut self, rules: &Rules) {
        if self.active.as_ref() == Some(rules) {
            return;
        }
        let before = self.active.replace(rules.clone());
        self.on_node(|| {
            match before {
                Some(Rules::Table(table)) => put_to_sleep("inet", &table),
                Some(Rules::Tables(name)) => FAMILIES.iter().for_each(|family| put_to_sleep(family, &name)),
                Some(Rules::Chain(program, _)) => run(program, &["-F", "FORWARD"], ""),
                Some(Rules::None) | None => {}
            }
            match rules {
                Rules::Table(table) => {
                    nft(&format!("add table inet {table}"));
                }
                Rules::Tables(name) => {
                    for family in FAMILIES {
                        nft(&format!("add table {family} {name}"));
                    }
                }
                Rules::Chain(program, chain) => run(program, &["-A", "FORWARD", "-j", chain], ""),
                Rules::None => {}
            }
        });
    }

    /// Flushes the conntrack entries.
    pub(super) fn flush_conntrack(&self) {
        self.on_node(|| run("conntrack", &["-F"], ""));
    }
}

/// Makes the table dormant: it is kept, but its chains are unregistered from their hooks.
pub(super) fn put_to_sleep(family: &str, table: &str) {
    try_nft(&["-f", "-"], &format!("add table {family} {table} {{ flags dormant; }}"))
        .expect("nft puts a table to sleep");
}

/// Runs a program to its end.
///
/// # Panics
/// If it fails.
pub(super) fn run(program: &str, arguments: &[&str], input: &str) {
    try_run(program, arguments, input).unwrap_or_else(|e| panic!("{program} {}: {e}", arguments.join(" ")));
}

/// The program's standard output.
///
/// # Errors
/// Why it did not start, or its standard error if it failed.
pub(super) fn try_run(program: &str, arguments: &[&str], input: &str) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| e.to_string())?;
    let mut stdin = child.stdin.take().expect("standard input is a pipe");
    // None of these programs prints much before it has read its input, so this cannot deadlock.
    let written = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    written.map_err(|e| e.to_string())?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
