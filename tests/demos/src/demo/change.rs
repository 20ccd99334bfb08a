//! A policy is added, and a cell of the matrix opens; it is removed again, and the connection that used it is cut while
//! others continue.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::conversation::Conversation;
use super::matrix::{self, Reachability};
use super::place::Place;
use super::screen::{BAD, FAINT, GOOD, STRONG, Screen, millis};
use super::shop::{Party, Shop};
use kit::lab::Lab;

/// The pod that the change admits, its destination, and the pod whose connection to the same destination stays.
const NEWCOMER: &str = "debug-1";
const TARGET: &str = "db-1";
const BYSTANDER: &str = "api-2";

const FILE: &str = "let-debug-in.yaml";
const POLICY: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: let-debug-in, namespace: data}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ops}}
      podSelector: {matchLabels: {app: debug}}
    ports: [{port: 5432}]
";

/// Deadline for a change to take effect.
const WITHIN: Duration = Duration::from_secs(10);

/// Exchanges of the connections that are shown to work.
const EXCHANGES: usize = 100;

struct Scene<'a> {
    screen: &'a Screen,
    newcomer: &'a Party,
    target: &'a Party,
    bystander: &'a Party,
    lab: &'a Lab,
    place: &'a Place,
    faults: Vec<String>,
}

/// Shows the change; returns the deviations from the expected result.
pub(super) fn show(screen: &Screen, shop: &Shop, lab: &Lab, place: &Place) -> anyhow::Result<Vec<String>> {
    let (newcomer, target, bystander) = (shop.party(NEWCOMER)?, shop.party(TARGET)?, shop.party(BYSTANDER)?);
    let mut scene = Scene { screen, newcomer, target, bystander, lab, place, faults: Vec::new() };
    let file = place.manifests().join(FILE);

    scene.explain()?;
    scene.cell("Without the policy", Reachability::NEITHER);
    let Some(mut other) = scene.open(bystander)? else { return Ok(scene.faults) };

    screen.line("");
    POLICY.lines().for_each(|line| screen.line(format_args!("     {FAINT}|{FAINT:#} {line}")));
    let written = Instant::now();
    fs::write(&file, POLICY).with_context(|| format!("cannot write {}", file.display()))?;
    let Some(mut conversation) = scene.open(newcomer)? else { return Ok(scene.faults) };
    let took = written.elapsed();
    screen.line(format_args!(
        "   {STRONG}Written{STRONG:#} to {}: the first connection succeeded {STRONG}{}{STRONG:#} later.",
        file.display(),
        millis(took)
    ));
    scene.cell("With the policy", Reachability::BOTH);
    for _ in 0..EXCHANGES {
        if !conversation.exchange()? {
            scene.fault("an open connection that is allowed loses bytes");
            break;
        }
    }
    screen.check()?;

    let removed = Instant::now();
    fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    scene.cut(&mut conversation, removed)?;
    scene.still_open(&mut other)?;
    scene.cell("Without it again", Reachability::NEITHER);
    Ok(scene.faults)
}

impl Scene<'_> {
    fn fault(&mut self, what: &str) {
        self.faults.push(format!("{} to {}: {what}", self.newcomer.full_name(), self.target.full_name()));
    }

    fn open(&mut self, source: &Party) -> anyhow::Result<Option<Conversation>> {
        let conversation = Conversation::open(self.lab, source, self.target, WITHIN, self.screen)?;
        if conversation.is_none() {
            let (from, to) = (source.full_name(), self.target.full_name());
            self.faults.push(format!("{from} to {to}: no connection within {WITHIN:?}"));
        }
        Ok(conversation)
    }

    /// Runs `ringfence explain` with the target's agent, and prints the answer.
    fn explain(&mut self) -> anyhow::Result<()> {
        let (from, to) = (self.newcomer.full_name(), self.target.addresses[0].to_string());
        let port = self.target.port.unwrap_or(0).to_string();
        let run_dir = self.place.run_dir(self.target.node.as_deref().context("the target is on no node")?);
        self.screen.line(format_args!(
            "   {FAINT}$ ringfence explain {from} {to} {port} --run-dir {}{FAINT:#}",
            run_dir.display()
        ));
        let mut command = Command::new(super::beside(super::AGENT)?);
        command.args(["explain", &from, &to, &port, "--run-dir"]).arg(run_dir);
        let output = command.env_remove("RINGFENCE_MANIFESTS").process_group(0).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().for_each(|line| self.screen.line(format_args!("   {line}")));
        if !text.starts_with("DENIED") {
            self.fault(&format!("`ringfence explain` does not deny it: {}", String::from_utf8_lossy(&output.stderr)));
        }
        Ok(())
    }

    fn cell(&mut self, when: &str, expected: Reachability) {
        let reached = matrix::measure(self.lab, self.newcomer, self.target);
        let (from, to) = (self.newcomer.full_name(), self.target.full_name());
        let style = match (reached == expected, expected == Reachability::BOTH) {
            (true, true) => GOOD,
            (true, false) => STRONG,
            (false, _) => BAD,
        };
        let described = reached.described();
        self.screen.line(format_args!("   {when}, {from} {style}{described}{style:#} to {to}."));
        if reached != expected {
            self.fault(&format!("{when}, it {described}"));
        }
    }

    /// Exchanges bytes until they no longer arrive.
    fn cut(&mut self, conversation: &mut Conversation, removed: Instant) -> anyhow::Result<()> {
        let mut last = removed;
        let mut exchanged = 0;
        while conversation.exchange()? {
            self.screen.check()?;
            exchanged += 1;
            last = Instant::now();
            if last - removed > WITHIN {
                self.fault("the open connection is not cut");
                return Ok(());
            }
        }
        self.screen.line(format_args!(
            "   {STRONG}Removed{STRONG:#}: on the open connection {exchanged} more bytes went to and fro, the last one \
             {STRONG}{}{STRONG:#} later.",
            millis(last - removed)
        ));
        match (conversation.reaches_server()?, conversation.reaches_client()?) {
            (false, false) => {
                self.screen.line("   Since then no byte arrives on it, neither at the server nor at the client.");
            }
            (true, _) => self.fault("the connection was cut, but bytes reach the server"),
            (_, true) => self.fault("the connection was cut, but bytes reach the client"),
        }
        Ok(())
    }

    fn still_open(&mut self, other: &mut Conversation) -> anyhow::Result<()> {
        for _ in 0..EXCHANGES {
            if !other.exchange()? {
                self.fault("the connection of a bystander was cut too");
                return Ok(());
            }
        }
        let (from, to) = (self.bystander.full_name(), self.target.full_name());
        self.screen.line(format_args!("   The connection from {from} to {to}, open all the while, continues."));
        Ok(())
    }
}
