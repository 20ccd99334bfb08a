//! The provider as a process on a copy of the manifests, and its subcommands.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::demo::http;
use crate::demo::screen::{FAINT, Screen, millis};
use kit::agent_process::without_variables;

const PROGRAM: &str = "ringfence-context";

const READY_WITHIN: Duration = Duration::from_secs(15);
const BETWEEN: Duration = Duration::from_millis(2);

/// Log lines shown when the provider has ended unexpectedly.
const LOG_LINES: usize = 10;

/// The process and its folder, removed on drop.
pub(super) struct Provider {
    process: Child,
    address: SocketAddr,
    folder: TempDir,
}

/// Exit code and output of a subcommand.
pub(super) struct ProviderOutput {
    pub(super) code: Option<i32>,
    pub(super) text: String,
}

impl Provider {
    /// Starts it on a copy of the example, and waits until it is ready.
    pub(super) fn start(example: &Path, screen: &Screen) -> anyhow::Result<Provider> {
        let folder = TempDir::with_prefix("ringfence-demo-context-").context("cannot make a folder")?;
        let manifests = folder.path().join("shop");
        copy(example, &manifests)?;
        let address = free_port()?;
        let log = File::create(folder.path().join("log")).context("cannot write a log")?;
        let begun = Instant::now();
        let mut command = program()?;
        command.args(["serve", "--listen", &address.to_string(), "--manifests"]).arg(&manifests);
        let process = command.stdout(Stdio::null()).stderr(log).spawn().context("the provider does not start")?;
        let mut provider = Provider { process, address, folder };
        screen.line(format_args!(
            "   {FAINT}$ {PROGRAM} serve --manifests {} --listen {address}{FAINT:#}",
            manifests.display()
        ));
        provider.until_ready(screen)?;
        let took = millis(begun.elapsed());
        screen.line(format_args!("   It answers /readyz: everything is known and published. {FAINT}{took}{FAINT:#}"));
        Ok(provider)
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn manifests(&self) -> PathBuf {
        self.folder.path().join("shop")
    }

    /// A folder beside the manifests, for the output of `build`.
    pub(super) fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// The body of a response.
    pub(super) fn get(&self, target: &str) -> anyhow::Result<String> {
        let stream = TcpStream::connect(self.address).context("the provider does not answer")?;
        let answer = http::get(stream, target).with_context(|| format!("asking for {target}"))?;
        anyhow::ensure!(answer.status == 200, "{target}: {} {}", answer.status, answer.body.trim());
        Ok(answer.body)
    }

    /// Runs a subcommand that queries this provider.
    pub(super) fn run_verb(&self, verb: &[&str]) -> anyhow::Result<ProviderOutput> {
        let mut command = program()?;
        command.args(verb).args(["--from", &self.url()]);
        said(&mut command)
    }

    /// Runs `build` on the current manifests.
    pub(super) fn build(&self) -> anyhow::Result<ProviderOutput> {
        let mut command = program()?;
        command.arg("build").arg("--manifests").arg(self.manifests()).arg("--out").arg(self.out());
        said(&mut command)
    }

    fn until_ready(&mut self, screen: &Screen) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        while self.get("/readyz").is_err() {
            screen.check()?;
            if let Some(status) = self.process.try_wait()? {
                bail!("the provider has ended: {status}\n{}", self.end_of_log()?);
            }
            if Instant::now() > deadline {
                bail!("the provider is not ready within {READY_WITHIN:?}\n{}", self.end_of_log()?);
            }
            std::thread::sleep(BETWEEN);
        }
        Ok(())
    }

    fn end_of_log(&self) -> anyhow::Result<String> {
        let log = fs::read_to_string(self.folder.path().join("log"))?;
        let lines: Vec<&str> = log.lines().collect();
        Ok(lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"))
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // It has no state to save, and only this process is connected.
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("the provider does not end: {error}");
        }
    }
}

fn program() -> anyhow::Result<Command> {
    let mut command = Command::new(crate::demo::beside(PROGRAM)?);
    without_variables(&mut command);
    command.stdin(Stdio::null());
    Ok(command)
}

fn said(command: &mut Command) -> anyhow::Result<ProviderOutput> {
    let output = command.output().with_context(|| format!("{PROGRAM} does not start"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Ok(ProviderOutput { code: output.status.code(), text })
}

/// A currently unused port.
fn free_port() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port on the loopback")?;
    Ok(listener.local_addr()?)
}

fn copy(example: &Path, target: &Path) -> anyhow::Result<()> {
    fs::create_dir(target).with_context(|| format!("cannot make {}", target.display()))?;
    for entry in fs::read_dir(example).with_context(|| format!("cannot read {}", example.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml" || extension == "json") {
            let name = path.file_name().unwrap_or_default();
            fs::copy(&path, target.join(name)).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}
