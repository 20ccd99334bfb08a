use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use kit::agent_process::{program, without_variables};
use serde_json::json;

use super::{Network, Running, Site, pending};
use crate::stage::{NODE, namespace};

/// Opens connections to the agent's port, reports that, and keeps them idle until it is killed.
const HOLD: &str = r#"$| = 1; my @held; for (1..1500) {
        socket(my $s, AF_INET, SOCK_STREAM, 0) or die "$!"; connect($s, sockaddr_in(9470, INADDR_LOOPBACK)) or die "$!"; push @held, $s }
        print "held\n"; sleep 600"#;

struct Holder(Child);

impl Holder {
    /// An unprivileged process in the node's network namespace.
    fn start(site: &Site) -> Holder {
        let mut command = Command::new("prlimit");
        command.args(["--nofile=4096:4096", "setpriv", "--reuid", "65534", "--clear-groups"]);
        command.args(["perl", "-MSocket", "-e", HOLD]).stdout(Stdio::piped());
        let mut process = site.stage.lab.node_exec(NODE, || command.spawn()).unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let holder = Holder(process);
        assert_eq!(line, "held\n");
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("the holder of connections does not end: {error}");
        }
    }
}

#[test]
fn idle_connections_to_metrics_port_delay_no_pod() {
    let objects = [namespace("shop", ""), pending("web", "app=web")];
    let site = Site::with(&objects);
    let agent = site.agent();
    let mut limited = Command::new("prlimit");
    without_variables(&mut limited);
    limited.arg("--nofile=1024:1024").arg(program()).args(agent.get_args());
    let mut agent = site.stage.start(limited);
    agent.until_ready();
    let holder = Holder::start(&site);
    site.chain("1.1.0", &[site.ours(json!({}))]).status().unwrap();
    let web = Running::start(&site.runtime(Network::Routed, json!({})), "web");
    site.assert_enforced(&objects, &web.addresses);
    // Accepted connections end with the request timeout, and free slots for other clients.
    agent.until("metrics are served", |agent| agent.try_get("/metrics").ok().filter(|answer| answer.status == 200));
    assert!(agent.metric("ringfence_refused_connections_total") >= 1000);
    drop(holder);
}
