//! The lab after the demo: a server on every port, and suggested commands.

use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sched::{CloneFlags, setns};

use super::agents::Agents;
use super::place::{PREFIX, Place};
use super::screen::{FAINT, STRONG, Screen};
use super::shop::{Party, Shop};
use kit::lab::{self, Lab, named};

const SERVED_WITHIN: Duration = Duration::from_secs(5);

/// Printed by the servers when all of them listen.
const LISTENING: &str = "listening";

/// Keeps everything, starts servers, and prints how to explore the lab.
pub(super) fn leave(screen: &Screen, place: Place, lab: Lab, agents: Agents, shop: &Shop) -> anyhow::Result<()> {
    start_servers(&place, screen)?;
    let manifests = place.manifests();
    let (client, server) = (shop.party("debug-1")?, shop.party("db-2")?);
    let node = server.node.as_deref().context("a pod without a node")?;
    let (run_dir, log) = (place.run_dir(node), place.log(node));
    screen.check()?;
    place.keep()?;
    agents.keep();
    lab.keep();

    let (from, to, port) = (client.full_name(), server.full_name(), server.port.unwrap_or(0));
    let program = super::beside(super::AGENT)?;
    let inside = |party: &Party| named(PREFIX, &party.full_name());
    let connect = format!("exec 3<>/dev/tcp/{}/{port}; head -1 <&3", server.addresses[0]);
    screen.line(format_args!("\n{STRONG}The lab stays up.{STRONG:#} To look around:"));
    for (what, command) in [
        ("its namespaces", format!("ip netns list | grep {PREFIX}")),
        (
            "connect, from any pod to any other (every port answers with its pod's name)",
            format!("ip netns exec {} timeout 2 bash -c '{connect}'", inside(client)),
        ),
        ("ask why not", format!("{} explain {from} {to} {port} --run-dir {}", program.display(), run_dir.display())),
        ("who was denied, and why", format!("{} drops --run-dir {}", program.display(), run_dir.display())),
        ("one screen of what an agent does", format!("{} status --run-dir {}", program.display(), run_dir.display())),
        ("the rules of a node", format!("ip netns exec {} nft list table inet ringfence", named(PREFIX, node))),
        ("change the policies: the agents follow the folder", format!("editor {}/policies.yaml", manifests.display())),
        ("what an agent says", format!("tail {}", log.display())),
        ("remove it all", "make demo ARGS=--remove".into()),
    ] {
        screen.line(format_args!("   {FAINT}# {what}{FAINT:#}\n   {command}"));
    }
    Ok(())
}

fn start_servers(place: &Place, screen: &Screen) -> anyhow::Result<()> {
    let log = place.log("servers");
    let output = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
    let errors = output.try_clone()?;
    let mut servers = Command::new(std::env::current_exe()?)
        .arg("--serve")
        .arg(place.manifests())
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .context("cannot start the servers")?;
    let deadline = Instant::now() + SERVED_WITHIN;
    loop {
        screen.check()?;
        let said = fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))?;
        if said.contains(LISTENING) {
            return Ok(());
        }
        if servers.try_wait()?.is_some() || Instant::now() > deadline {
            bail!("the servers of the lab do not listen: {}", said.trim());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Answers every connection in the lab with the name of the pod, until a signal ends this.
pub(super) fn serve(manifests: &Path) -> anyhow::Result<()> {
    // The servers must survive the terminal.
    nix::unistd::setsid().context("a session of its own")?;
    let shop = Shop::read(manifests)?;
    let mut servers = Vec::new();
    for party in &shop.destinations {
        let listeners = thread::scope(|scope| match scope.spawn(|| listeners(party)).join() {
            Ok(listeners) => listeners,
            Err(panic) => std::panic::resume_unwind(panic),
        })?;
        for listener in listeners {
            let name = party.full_name();
            servers.push(thread::spawn(move || answer_all(&listener, &name)));
        }
    }
    println!("{LISTENING}");
    for server in servers {
        if let Err(panic) = server.join() {
            std::panic::resume_unwind(panic);
        }
    }
    Ok(())
}

/// Moves this thread into the party's namespace, and listens there.
fn listeners(party: &Party) -> anyhow::Result<Vec<TcpListener>> {
    let title = if party.is_pod() { party.full_name() } else { lab::WORLD.into() };
    let path = format!("/run/netns/{}", named(PREFIX, &title));
    let namespace = File::open(&path).with_context(|| format!("cannot open {path}"))?;
    setns(namespace, CloneFlags::CLONE_NEWNET).with_context(|| format!("cannot enter {path}"))?;
    let port = party.port.with_context(|| format!("{} has no port", party.name))?;
    let listen = |address: &IpAddr| {
        TcpListener::bind((*address, port)).with_context(|| format!("cannot listen on {address} port {port}"))
    };
    party.addresses.iter().map(listen).collect()
}

fn answer_all(listener: &TcpListener, name: &str) {
    loop {
        let answered = listener.accept().and_then(|(mut client, _)| writeln!(client, "{name}"));
        if let Err(error) = answered {
            eprintln!("{name}: {error}");
        }
    }
}
