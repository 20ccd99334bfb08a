//! Conntrack helpers that an administrator assigned: an expected flow (a conntrack expectation of the helper) inherits
//! the connection mark of its parent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use kit::kernel_table::{load_netlink, load_text};
use kit::lab::Lab;
use policy::{Layout, translate};
use serde_json::json;

use super::{Places, lab, places};
use crate::stage::{NODE, namespace, pod, policy, state_of};

const FTP: u16 = 21;
/// The port of the data connection, which no policy allows.
const DATA: u16 = 2000;
const PATIENCE: Duration = Duration::from_secs(1);

/// Assigns the FTP helper to connections of its port.
const ASSIGNMENT: &str = "table inet assistance {\n\
    ct helper ftp4 {\ntype \"ftp\" protocol tcp\nl3proto ip\n}\n\
    ct helper ftp6 {\ntype \"ftp\" protocol tcp\nl3proto ip6\n}\n\
    chain prerouting {\ntype filter hook prerouting priority 0\n\
    meta nfproto ipv4 tcp dport 21 ct helper set \"ftp4\"\nmeta nfproto ipv6 tcp dport 21 ct helper set \"ftp6\"\n}\n}\n";

/// The chains that approve flows. Their first rule accepts flows that involve a helper without approving them.
const APPROVING: [&str; 2] = ["approve", "approve-egress"];

/// A lab in which a policy allows every client to reach the FTP port of `server`. The positive control lacks the first
/// rule of the chains that approve flows.
fn lab_with_helper(is_control: bool) -> Lab {
    let lab = lab();
    let addresses = places().map(|at| at.server.to_string());
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let ingress = json!({"ingress": [{"ports": [{"port": FTP}]}]});
    let objects =
        [namespace("shop", ""), pod("server", NODE, "app=server", &addresses), policy("server", "app=server", ingress)];
    let layout = Layout::for_table("ringfence").unwrap();
    let mut ruleset = translate(&state_of(&objects), NODE, &layout).ruleset.in_first_generation();
    for chain in APPROVING.iter().filter(|_| is_control) {
        let chain = ruleset.chains.get_mut(&nft::Name::new(chain).unwrap()).unwrap();
        Arc::make_mut(chain).rules.remove(0);
    }
    lab.node_exec(NODE, || {
        load_text(ASSIGNMENT);
        load_netlink(&ruleset);
    });
    lab
}

/// The server's answer to the command for a passive data connection (RFC 959, RFC 2428).
fn passive_mode(at: Places) -> String {
    match at.server {
        std::net::IpAddr::V4(address) => {
            let parts = [&address.octets()[..], &DATA.to_be_bytes()].concat();
            let numbers: Vec<String> = parts.iter().map(u8::to_string).collect();
            format!("227 Entering Passive Mode ({})\r\n", numbers.join(","))
        }
        std::net::IpAddr::V6(_) => format!("229 Entering Extended Passive Mode (|||{DATA}|)\r\n"),
    }
}

#[test]
fn expected_flow_requires_a_policy() {
    for is_control in [true, false] {
        let lab = lab_with_helper(is_control);
        places().into_iter().for_each(|at| announce(&lab, at, is_control));
    }
}

/// The server announces a data connection, and the client tries to open it.
fn announce(lab: &Lab, at: Places, passes: bool) {
    let listen = |port| TcpListener::bind(SocketAddr::new(at.server, port)).unwrap();
    let (control, data) = lab.in_namespace_of(at.server, || (listen(FTP), listen(DATA)));
    let connect = |port| {
        let address = SocketAddr::new(at.server, port);
        lab.in_namespace_of(at.client, || TcpStream::connect_timeout(&address, PATIENCE))
    };
    let mut client = connect(FTP).expect("a policy allows it");
    let (mut server, _) = control.accept().unwrap();
    // The FTP helper parses only data that begins right after a newline that it has recorded (`find_nl_seq`).
    for line in ["220 ready\r\n", &passive_mode(at)] {
        server.write_all(line.as_bytes()).unwrap();
        assert!(client.read(&mut [0; 64]).unwrap() > 0);
    }
    assert_eq!(connect(DATA).is_ok(), passes, "{}", at.server);
    drop(data);
    // Both directions of the flow with the helper still pass.
    client.write_all(b"QUIT\r\n").unwrap();
    assert!(server.read(&mut [0; 64]).unwrap() > 0);
}
