//! One real `ringfence agent` per node, in the node's namespace: start, readiness, queries, stop.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use policy::Explanation;

use super::http;
use super::place::Place;
use super::screen::{FAINT, Screen, millis};
use super::shop::Shop;
use kit::lab::Lab;

/// Every node has its own loopback, so all agents can use the same port.
const PORT: &str = "127.0.0.1:9470";

const READY_WITHIN: Duration = Duration::from_secs(15);

/// An agent leaves its rules in place, so it ends at once.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

const BETWEEN: Duration = Duration::from_millis(2);

/// An agent answers from memory.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Log lines shown when an agent has ended unexpectedly.
const LOG_LINES: usize = 10;

struct Agent {
    node: String,
    process: Child,
    log: PathBuf,
    socket: PathBuf,
}

/// The agents, stopped on drop.
pub(super) struct Agents {
    running: Vec<Agent>,
}

impl Agents {
    /// Starts an agent on every node, with further arguments, and waits until all are ready.
    pub(super) fn start(
        lab: &Lab,
        shop: &Shop,
        place: &Place,
        more: &[&str],
        screen: &Screen,
    ) -> anyhow::Result<Agents> {
        let program = super::beside(super::AGENT)?;
        let begun = Instant::now();
        let mut agents = Agents { running: Vec::new() };
        for node in shop.nodes() {
            agents.running.push(start(lab, node, &program, place, more)?);
        }
        for agent in &mut agents.running {
            let Agent { node, process, log, socket: _ } = agent;
            lab.node_exec(node, || await_ready(node, process, log, screen))?;
        }
        let took = begun.elapsed();
        for node in shop.nodes() {
            let manifests = place.manifests();
            screen.line(format_args!(
                "   {node}   ringfence agent --node-name {node} --flows on --manifests {}{}",
                manifests.display(),
                more.iter().map(|word| format!(" {word}")).collect::<String>()
            ));
        }
        screen.line(format_args!(
            "   Each answers /readyz: its rules are in the kernel. {FAINT}{}{FAINT:#}",
            millis(took)
        ));
        Ok(agents)
    }

    /// Queries the agent of a node about a flow.
    pub(super) fn explain(
        &self,
        node: &str,
        source: &str,
        destination: &str,
        traffic: &str,
    ) -> anyhow::Result<Vec<Explanation>> {
        let agent = self.running.iter().find(|agent| agent.node == node).context("no agent on this node")?;
        let asked = || format!("asking the agent of {node} about {source} to {destination} {traffic}");
        let stream = UnixStream::connect(&agent.socket).with_context(asked)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        let target = format!("/v1/explain?source={source}&destination={destination}&traffic={traffic}");
        let answer = http::get(stream, &target).with_context(asked)?;
        if answer.status != 200 {
            bail!("{}: {}", asked(), answer.body);
        }
        serde_json::from_str(&answer.body).with_context(asked)
    }

    /// The flow records of a node with this verdict, one per line.
    pub(super) fn flows(&self, node: &str, verdict: &str) -> anyhow::Result<String> {
        let agent = self.running.iter().find(|agent| agent.node == node).context("no agent on this node")?;
        let run_dir = agent.socket.parent().context("the folder of a socket")?;
        let mut command = Command::new(super::beside(super::AGENT)?);
        let shown = command.args(["flows", "--verdict", verdict, "--run-dir"]).arg(run_dir).output()?;
        if !shown.status.success() {
            bail!("ringfence flows: {}", String::from_utf8_lossy(&shown.stderr));
        }
        Ok(String::from_utf8_lossy(&shown.stdout).into_owned())
    }

    /// Lets the agents outlive this process.
    pub(super) fn keep(mut self) {
        self.running.clear();
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        for agent in &self.running {
            let pid = Pid::from_raw(agent.process.id() as i32);
            if let Err(error) = kill(pid, Signal::SIGTERM) {
                eprintln!("the agent of {} takes no signal: {error}", agent.node);
            }
        }
        let deadline = Instant::now() + ENDS_WITHIN;
        for agent in &mut self.running {
            if let Err(error) = end(&mut agent.process, deadline) {
                eprintln!("the agent of {} does not end: {error}", agent.node);
            }
        }
    }
}

fn end(process: &mut Child, deadline: Instant) -> std::io::Result<()> {
    while process.try_wait()?.is_none() {
        if Instant::now() > deadline {
            process.kill()?;
            process.wait()?;
            return Ok(());
        }
        std::thread::sleep(BETWEEN);
    }
    Ok(())
}

fn start(lab: &Lab, node: &str, program: &Path, place: &Place, more: &[&str]) -> anyhow::Result<Agent> {
    let run_dir = place.run_dir(node);
    let log = place.log(node);
    let output = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
    let mut command = Command::new(program);
    command
        .args(["agent", "--node-name", node, "--listen", PORT, "--flows", "on", "--manifests"])
        .arg(place.manifests());
    command.arg("--run-dir").arg(&run_dir).args(more);
    // Only the command line counts, so variables of the environment are removed.
    for (name, _) in std::env::vars_os() {
        if ["RINGFENCE_", "NODE_NAME", "KUBECONFIG"].iter().any(|own| name.to_string_lossy().starts_with(own)) {
            command.env_remove(name);
        }
    }
    // Ctrl-C is for the demo, which then stops its agents.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    let process = lab.node_exec(node, || command.spawn()).context("cannot start an agent")?;
    Ok(Agent { node: node.into(), process, log, socket: run_dir.join("agent.sock") })
}

/// Must run in the node's namespace.
fn await_ready(node: &str, process: &mut Child, log: &Path, screen: &Screen) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        screen.check()?;
        if let Some(status) = process.try_wait()? {
            bail!("the agent of {node} exited ({status}):\n{}", tail(log));
        }
        // The request fails until the agent listens.
        let answer = ask_ready();
        match &answer {
            Ok(answer) if answer.status == 200 => return Ok(()),
            Ok(_) | Err(_) if Instant::now() < deadline => std::thread::sleep(BETWEEN),
            Ok(answer) => bail!("the agent of {node} is not ready: {}\n{}", answer.body.trim(), tail(log)),
            Err(error) => bail!("the agent of {node} does not answer: {error}\n{}", tail(log)),
        }
    }
}

fn ask_ready() -> std::io::Result<http::Response> {
    let port: SocketAddr = PORT.parse().expect("an address");
    let stream = TcpStream::connect_timeout(&port, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    http::get(stream, "/readyz")
}

fn tail(log: &Path) -> String {
    match fs::read_to_string(log) {
        Ok(text) => {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
        }
        Err(error) => format!("({}: {error})", log.display()),
    }
}
