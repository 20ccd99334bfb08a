//! Checks whether the agent knows the UDP ports on which the node receives tunnels.
//!
//! Decapsulated packets may have any source address, so the rules stop pods from sending to known tunnel ports.

use super::finding::{Check, Finding, list};
use crate::rtnetlink::{Link, Rtnetlink};

/// Tunnels with a UDP port that are up, in the network namespace of the calling thread.
pub(super) fn gather() -> Result<Vec<Link>, String> {
    let links = Rtnetlink::open().and_then(|mut socket| socket.links()).map_err(|e| e.to_string())?;
    Ok(links.into_iter().filter(|link| link.is_up && link.tunnel_port.is_some()).collect())
}

/// `known` are the agent's tunnel ports; empty if they are not checked.
pub(super) fn finding(tunnels: &Result<Vec<Link>, String>, known: &[u16]) -> Option<Finding> {
    if known.is_empty() {
        return None;
    }
    let tunnels = match tunnels {
        Ok(tunnels) => tunnels,
        Err(error) => {
            let finding = format!("cannot list the tunnel interfaces of the node: {error}");
            return Some(Finding::warning(
                Check::TunnelPorts,
                finding,
                "run this on the node, in its network namespace",
            ));
        }
    };
    let unknown = |link: &&Link| link.tunnel_port.is_some_and(|port| !known.contains(&port));
    let mut names: Vec<String> = Vec::new();
    let mut ports: Vec<u16> = Vec::new();
    for (link, port) in tunnels.iter().filter(unknown).filter_map(|link| Some((link, link.tunnel_port?))) {
        names.push(format!("{} ({}, UDP port {port})", link.name, link.kind));
        ports.push(port);
    }
    ports.sort_unstable();
    ports.dedup();
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    Some(match names.is_empty() {
        true => Finding::ok(
            Check::TunnelPorts,
            "the agent drops encapsulated packets of pods on the UDP ports of all tunnels of the node",
        ),
        false => Finding::warning(
            Check::TunnelPorts,
            format!(
                "the UDP ports of {} are not configured in the agent: a pod can send encapsulated packets to them \
                 with a forged inner source address",
                list(&names)
            ),
            format!("start the agents of all nodes with --tunnel-port {}", ports.join(",")),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingSeverity;
    use super::*;

    fn tunnel(name: &str, port: u16) -> Link {
        Link { name: name.into(), kind: "vxlan".into(), is_up: true, tunnel_port: Some(port), ..Link::default() }
    }

    #[test]
    fn unknown_tunnel_ports_are_named_with_their_flag() {
        let known = [4789, 8472];
        let severity = |tunnels: &[Link]| finding(&Ok(tunnels.to_vec()), &known).map(|finding| finding.severity);
        assert_eq!(severity(&[]), Some(FindingSeverity::Ok));
        assert_eq!(severity(&[tunnel("flannel.1", 8472)]), Some(FindingSeverity::Ok));
        let tunnels = [tunnel("flannel.1", 8472), tunnel("b", 8473), tunnel("c", 4800), tunnel("d", 8473)];
        assert_eq!(severity(&tunnels), Some(FindingSeverity::Warning));
        let found = finding(&Ok(tunnels.to_vec()), &known).expect("a warning");
        assert!(found.finding.contains("b (vxlan, UDP port 8473), c (vxlan, UDP port 4800)"), "{found}");
        assert!(found.advice.is_some_and(|advice| advice.ends_with("--tunnel-port 4800,8473")));
        assert_eq!(finding(&Err("no".into()), &known).map(|f| f.severity), Some(FindingSeverity::Warning));
        assert_eq!(finding(&Ok(tunnels.to_vec()), &[]), None, "the agent checks no tunnels");
    }
}
