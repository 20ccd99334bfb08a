//! Runs `ringfence-context` to completion, or as a provider; and the flow aggregator, which has the same endpoints.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::agent_process::{DEPLOYED_WITH, HttpResponse, ProgramExit, WITHIN, built, ended, get, without_variables};
use crate::lab::Lab;
use crate::openmetrics;

const BETWEEN: Duration = Duration::from_millis(5);

/// The `ringfence-context` command without the environment variables that it reads.
///
/// # Panics
/// If it has not been built.
pub fn provider() -> Command {
    program("ringfence-context")
}

/// The command of the flow aggregator without the environment variables that it reads.
///
/// # Panics
/// If it has not been built.
pub fn aggregator() -> Command {
    program("ringfence-flows")
}

fn program(name: &str) -> Command {
    let mut command = Command::new(built(name));
    without_variables(&mut command);
    command.envs(DEPLOYED_WITH);
    command.env_remove("POD_NAME").env_remove("POD_NAMESPACE").stdin(Stdio::null());
    command
}

/// Runs `ringfence-context` to completion.
///
/// # Panics
/// If it does not start, or its output is not UTF-8.
pub fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> ProgramExit {
    ended(provider().args(arguments))
}

/// A free TCP port that no other caller in this process gets. It is below Linux's ephemeral port range, so that no
/// client uses it before a provider listens, or while one restarts.
///
/// # Panics
/// If no port is free.
pub fn free_port() -> SocketAddr {
    const FIRST: u16 = 12_000;
    const COUNT: u16 = 20_000;
    static DRAWN: AtomicU16 = AtomicU16::new(0);
    // Other test processes start elsewhere in the range.
    let start = (std::process::id() % u32::from(COUNT)) as u16;
    let free = (0..COUNT).find_map(|_| {
        let drawn = DRAWN.fetch_add(1, Ordering::Relaxed) % COUNT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST + (start + drawn) % COUNT));
        TcpListener::bind(address).is_ok().then_some(address)
    });
    free.expect("a free port of the loopback")
}

/// A running `ringfence-context` or flow aggregator, killed on drop.
pub struct Provider {
    address: SocketAddr,
    /// Its network namespace, if not the caller's.
    namespace: Option<File>,
    process: Child,
    log: NamedTempFile,
}

impl Provider {
    /// Starts `serve` on the address with the arguments. Does not wait for readiness.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start<A: AsRef<OsStr>>(address: SocketAddr, arguments: impl IntoIterator<Item = A>) -> Provider {
        Provider::spawned(provider(), address, arguments, None, |command| command.spawn())
    }

    /// As [`Provider::start`], with these variables in its environment.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_with<A: AsRef<OsStr>>(
        variables: impl IntoIterator<Item = (&'static str, String)>,
        address: SocketAddr,
        arguments: impl IntoIterator<Item = A>,
    ) -> Provider {
        Provider::spawned(provider(), address, arguments, None, |command| command.envs(variables).spawn())
    }

    /// As [`Provider::start`], in the namespace of a lab's node.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_in<A: AsRef<OsStr>>(
        lab: &Lab,
        node: &str,
        address: SocketAddr,
        arguments: impl IntoIterator<Item = A>,
    ) -> Provider {
        let namespace = File::open(lab.node_namespace_path(node)).expect("the node's namespace");
        let spawn = |command: &mut Command| lab.node_exec(node, || command.spawn());
        Provider::spawned(provider(), address, arguments, Some(namespace), spawn)
    }

    /// As [`Provider::start`], with the flow aggregator, which has the same endpoints.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_aggregator<A: AsRef<OsStr>>(address: SocketAddr, arguments: impl IntoIterator<Item = A>) -> Provider {
        Provider::spawned(aggregator(), address, arguments, None, |command| command.spawn())
    }

    /// As [`Provider::start_aggregator`], with changes to the command, such as a fake clock.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_aggregator_with<A: AsRef<OsStr>>(
        address: SocketAddr,
        arguments: impl IntoIterator<Item = A>,
        change: impl FnOnce(&mut Command),
    ) -> Provider {
        let mut command = aggregator();
        change(&mut command);
        Provider::spawned(command, address, arguments, None, |command| command.spawn())
    }

    /// As [`Provider::start_aggregator`], in the namespace of a lab's node.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_aggregator_in(lab: &Lab, node: &str, address: SocketAddr) -> Provider {
        let namespace = File::open(lab.node_namespace_path(node)).expect("the node's namespace");
        let spawn = |command: &mut Command| lab.node_exec(node, || command.spawn());
        Provider::spawned(aggregator(), address, [] as [&str; 0], Some(namespace), spawn)
    }

    fn spawned<A: AsRef<OsStr>>(
        mut command: Command,
        address: SocketAddr,
        arguments: impl IntoIterator<Item = A>,
        namespace: Option<File>,
        spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
    ) -> Provider {
        let log = NamedTempFile::new().expect("a file for the log");
        let output: File = log.reopen().expect("the log's file");
        command.args(["serve", "--listen", &address.to_string()]).args(arguments);
        let process = spawn(command.stdout(Stdio::null()).stderr(output)).expect("the provider starts");
        Provider { address, namespace, process, log }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process ID.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).expect("the log is UTF-8")
    }

    /// Polls until `ask` returns `Some`.
    ///
    /// # Panics
    /// If the result is still `None` after [`WITHIN`], or the provider exits. Both print its log.
    #[track_caller]
    pub fn until<T>(&mut self, what: &str, ask: impl FnMut(&Provider) -> Option<T>) -> T {
        self.until_within(WITHIN, what, ask)
    }

    /// As [`Provider::until`], with another deadline for slow operations.
    ///
    /// # Panics
    /// If the result is still `None` at the deadline, or the provider exits. Both print its log.
    #[track_caller]
    pub fn until_within<T>(&mut self, within: Duration, what: &str, mut ask: impl FnMut(&Provider) -> Option<T>) -> T {
        let deadline = Instant::now() + within;
        loop {
            if let Some(answer) = ask(self) {
                return answer;
            }
            let ended = self.process.try_wait().expect("try_wait failed");
            assert!(ended.is_none(), "the provider exited ({ended:?}) before {what}:\n{}", self.log());
            assert!(Instant::now() < deadline, "timed out waiting until {what}; the provider's log:\n{}", self.log());
            std::thread::sleep(BETWEEN);
        }
    }

    /// Waits until `/readyz` succeeds.
    ///
    /// # Panics
    /// As [`Provider::until`].
    #[track_caller]
    pub fn until_ready(&mut self) {
        self.until("it is ready", |provider| provider.try_get("/readyz").ok().filter(|answer| answer.status == 200));
    }

    /// Waits until the log has a line with all of these words, and returns it.
    ///
    /// # Panics
    /// As [`Provider::until`].
    #[track_caller]
    pub fn until_logged(&mut self, words: &[&str]) -> String {
        self.until(&format!("the log has a line with {words:?}"), |provider| {
            provider.log().lines().find(|line| words.iter().all(|word| line.contains(word))).map(String::from)
        })
    }

    /// Waits until `/status` meets the condition.
    ///
    /// # Panics
    /// As [`Provider::until`].
    #[track_caller]
    pub fn until_status(&mut self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        self.until(what, |provider| provider.try_status().ok().filter(|status| condition(status)))
    }

    /// Sends a GET request to the provider's port.
    ///
    /// # Errors
    /// If the provider does not listen, or its response is invalid HTTP.
    pub fn try_get(&self, path: &str) -> io::Result<HttpResponse> {
        let stream = self.connected()?;
        stream.set_read_timeout(Some(WITHIN))?;
        get(stream, path)
    }

    fn connected(&self) -> io::Result<TcpStream> {
        let connect = || TcpStream::connect_timeout(&self.address, WITHIN);
        let Some(namespace) = &self.namespace else { return connect() };
        // A socket belongs to the namespace in which it was opened, so it is opened in a thread of that namespace.
        let there = || {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            connect()
        };
        std::thread::scope(|scope| scope.spawn(there).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    /// As [`Provider::try_get`].
    ///
    /// # Panics
    /// If the request fails.
    #[track_caller]
    pub fn get(&self, path: &str) -> HttpResponse {
        self.try_get(path).unwrap_or_else(|e| panic!("{path}: {e}; the provider's log:\n{}", self.log()))
    }

    /// The JSON body of the response to a GET request.
    ///
    /// # Errors
    /// If the request fails, or the body is invalid JSON.
    pub fn try_json(&self, path: &str) -> io::Result<Value> {
        Ok(serde_json::from_str(&self.try_get(path)?.body)?)
    }

    /// The JSON body of the response to `GET /status`.
    ///
    /// # Errors
    /// If the request fails.
    pub fn try_status(&self) -> io::Result<Value> {
        self.try_json("/status")
    }

    /// The value of a metric, summed over its samples that have all of these labels.
    ///
    /// # Panics
    /// If the request fails, or the metric is missing.
    #[track_caller]
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = self.get("/metrics").body;
        let families = openmetrics::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let has = |sample: &&openmetrics::Sample| {
            labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|v| v == value))
        };
        let samples = families.iter().flat_map(|family| &family.samples).filter(|sample| sample.name == name);
        let values: Vec<f64> = samples.filter(has).map(|sample| sample.value).collect();
        assert!(!values.is_empty(), "no {name} in\n{text}");
        values.iter().sum()
    }

    /// Sends SIGTERM.
    ///
    /// # Panics
    /// If the process has exited.
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Sends SIGTERM and waits until the process exits.
    ///
    /// # Panics
    /// If it does not exit.
    #[track_caller]
    pub fn stop(mut self) -> (ExitStatus, String) {
        self.terminate();
        let process = &mut self.process;
        let status = crate::agent_process::until("the provider exits", || process.try_wait().expect("try_wait failed"));
        (status, self.log())
    }

    /// Suspends the process (SIGSTOP) until [`Provider::resume`].
    ///
    /// # Panics
    /// If the process has exited.
    pub fn hang(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Resumes the process (SIGCONT).
    ///
    /// # Panics
    /// If the process has exited.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().cast_signed()), signal).expect("kill failed");
    }

    /// Sends SIGKILL.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // Neither fails if the process has already exited.
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("cannot kill the provider: {error}");
        }
        if std::thread::panicking() {
            eprintln!("log of the provider:\n{}", self.log());
        }
    }
}
