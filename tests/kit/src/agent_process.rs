//! The `ringfence` program as a process: run to its end, or as an agent in the namespace of a lab's node.
//!
//! Every wait polls, and panics with the agent's log after [`WITHIN`].

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::NamedTempFile;

use crate::lab::Lab;
use crate::openmetrics;

/// Deadline of every poll. Long, because it is only reached when a test fails, and a busy machine is slow.
pub const WITHIN: Duration = Duration::from_secs(60);

/// Environment variables that the manifests set for the agent; tests and benchmarks use the same values.
pub const DEPLOYED_WITH: [(&str, &str); 3] =
    [("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "65536"), ("MALLOC_TRIM_THRESHOLD_", "131072")];

const BETWEEN: Duration = Duration::from_millis(2);

/// Default listen address of an agent. Every node of a lab has its own loopback.
const PORT: &str = "127.0.0.1:9470";

/// Polls until `ask` returns `Some`.
///
/// # Panics
/// If the result is still `None` after [`WITHIN`].
#[track_caller]
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WITHIN;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::sleep(BETWEEN);
    }
}

/// The `ringfence` command without the environment variables that it reads.
///
/// # Panics
/// If it has not been built.
pub fn ringfence() -> Command {
    let mut command = Command::new(program());
    without_variables(&mut command);
    command.stdin(Stdio::null());
    command
}

/// The path of the program.
///
/// # Panics
/// If it has not been built.
pub fn program() -> PathBuf {
    built("ringfence")
}

/// The path of one of our programs: in the same folder as this one, or in the parent folder for a test binary.
///
/// # Panics
/// If it has not been built.
pub fn built(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("the path of this program");
    let found = this.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|program| program.exists());
    found.unwrap_or_else(|| panic!("{name} is missing: build it with 'cargo build --workspace'"))
}

/// Removes the variables that the program reads from a command's environment.
pub fn without_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        let read = ["RINGFENCE_", "NODE_NAME", "KUBECONFIG", "KUBERNETES_", "RUST_LOG", "AWS_"];
        if read.iter().any(|prefix| name_text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
}

/// Exit code and output of a finished program.
#[derive(Debug)]
pub struct ProgramExit {
    /// `None` if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the program to its end.
///
/// # Panics
/// If it does not start, or prints what is not UTF-8.
pub fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> ProgramExit {
    ended(ringfence().args(arguments))
}

/// Runs a command to its end.
///
/// # Panics
/// As [`run`].
pub fn ended(command: &mut Command) -> ProgramExit {
    let output = command.output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    ProgramExit { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Runs the program with a closed pipe as standard output.
///
/// # Panics
/// As [`run`].
pub fn run_unread<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> ProgramExit {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let child = ringfence().args(arguments).stdout(writer).stderr(Stdio::piped()).spawn().expect("the program starts");
    let output = child.wait_with_output().expect("wait failed");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    ProgramExit { code: output.status.code(), stdout: String::new(), stderr }
}

/// An HTTP response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: u16,
    /// Header lines, in lower case.
    pub head: String,
    pub body: String,
}

/// An agent in a node's namespace. Killed on drop.
pub struct AgentProcess<'lab> {
    lab: &'lab Lab,
    node: String,
    process: Child,
    log: NamedTempFile,
}

impl<'lab> AgentProcess<'lab> {
    /// Starts the command (see [`ringfence`]) in the node's namespace, with its standard error in a log file and
    /// [`DEPLOYED_WITH`] in its environment. Does not wait for readiness.
    ///
    /// # Panics
    /// If the node does not exist, or the command does not start.
    pub fn start(lab: &'lab Lab, node: &str, mut command: Command) -> AgentProcess<'lab> {
        let log = NamedTempFile::new().expect("a file for the log");
        let output: File = log.reopen().expect("the log's file");
        command.envs(DEPLOYED_WITH).stdout(Stdio::null()).stderr(output);
        let process = lab.node_exec(node, || command.spawn()).expect("the agent starts");
        AgentProcess { lab, node: node.into(), process, log }
    }

    /// The log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).expect("the log is UTF-8")
    }

    /// Polls until `ask` returns `Some`.
    ///
    /// # Panics
    /// If the result is still `None` after [`WITHIN`], or the agent ends. Both print its log.
    #[track_caller]
    pub fn until<T>(&mut self, what: &str, ask: impl FnMut(&AgentProcess) -> Option<T>) -> T {
        self.until_within(WITHIN, what, ask)
    }

    /// As [`AgentProcess::until`], with another deadline for slow operations.
    ///
    /// # Panics
    /// If the result is still `None` at the deadline, or the agent ends. Both print its log.
    #[track_caller]
    pub fn until_within<T>(
        &mut self,
        within: Duration,
        what: &str,
        mut ask: impl FnMut(&AgentProcess) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + within;
        loop {
            if let Some(answer) = ask(self) {
                return answer;
            }
            let ended = self.process.try_wait().expect("try_wait failed");
            assert!(ended.is_none(), "the agent exited ({ended:?}) before {what}:\n{}", self.log());
            assert!(Instant::now() < deadline, "timed out waiting until {what}; the agent's log:\n{}", self.log());
            std::thread::sleep(BETWEEN);
        }
    }

    /// Waits until `/readyz` succeeds.
    ///
    /// # Panics
    /// As [`AgentProcess::until`].
    #[track_caller]
    pub fn until_ready(&mut self) {
        self.until("it is ready", |agent| agent.try_get("/readyz").ok().filter(|answer| answer.status == 200));
    }

    /// Waits until the log has a line with all of these words, and returns it.
    ///
    /// # Panics
    /// As [`AgentProcess::until`].
    #[track_caller]
    pub fn until_logged(&mut self, words: &[&str]) -> String {
        self.until(&format!("a line of the log with {words:?}"), |agent| {
            agent.log().lines().find(|line| words.iter().all(|word| line.contains(word))).map(String::from)
        })
    }

    /// Sends a GET request to the agent's HTTP port.
    ///
    /// # Errors
    /// If the agent does not listen, or its response is invalid HTTP.
    pub fn try_get(&self, path: &str) -> io::Result<HttpResponse> {
        let port: SocketAddr = PORT.parse().expect("an address");
        self.lab.node_exec(&self.node, || {
            let stream = TcpStream::connect_timeout(&port, WITHIN)?;
            stream.set_read_timeout(Some(WITHIN))?;
            get(stream, path)
        })
    }

    /// As [`AgentProcess::try_get`].
    ///
    /// # Panics
    /// If the request fails.
    #[track_caller]
    pub fn get(&self, path: &str) -> HttpResponse {
        self.try_get(path).unwrap_or_else(|e| panic!("{path}: {e}; the agent's log:\n{}", self.log()))
    }

    /// The value of a metric, summed over its labels.
    ///
    /// # Panics
    /// If the request fails, or the metric is missing.
    #[track_caller]
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics").body;
        let families = openmetrics::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let samples = families.iter().flat_map(|family| &family.samples).filter(|sample| sample.name == name);
        let values: Vec<f64> = samples.map(|sample| sample.value).collect();
        assert!(!values.is_empty(), "no {name} in\n{text}");
        values.iter().sum::<f64>() as u64
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If the process has exited.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("kill failed");
    }

    /// Sends SIGTERM and waits until the process exits.
    ///
    /// # Panics
    /// If it does not exit.
    #[track_caller]
    pub fn stop(mut self) -> (ExitStatus, String) {
        self.signal(Signal::SIGTERM);
        self.until_ended()
    }

    /// Suspends the process (SIGSTOP) until [`AgentProcess::resume`].
    ///
    /// # Panics
    /// If the process has exited.
    pub fn hang(&self) {
        kill(self.pid(), Signal::SIGSTOP).expect("kill failed");
    }

    /// Resumes the process (SIGCONT) after [`AgentProcess::hang`].
    ///
    /// # Panics
    /// If the process has exited.
    pub fn resume(&self) {
        kill(self.pid(), Signal::SIGCONT).expect("kill failed");
    }

    /// Waits until the process exits.
    ///
    /// # Panics
    /// If it does not exit.
    #[track_caller]
    pub fn until_ended(&mut self) -> (ExitStatus, String) {
        let process = &mut self.process;
        let status = until("the agent exits", || process.try_wait().expect("try_wait failed"));
        (status, self.log())
    }

    /// The process ID.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id().cast_signed())
    }
}

impl Drop for AgentProcess<'_> {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("the agent of {} does not end: {error}", self.node);
        }
        if std::thread::panicking() {
            eprintln!("log of the agent of {}:\n{}", self.node, self.log());
        }
    }
}

/// Sends a GET request to an agent's Unix socket.
///
/// # Panics
/// If the request fails.
pub fn ask_socket(run_dir: &Path, target: &str) -> HttpResponse {
    let stream = UnixStream::connect(run_dir.join("agent.sock")).expect("the agent's socket");
    stream.set_read_timeout(Some(WITHIN)).expect("a timeout");
    get(stream, target).expect("an answer")
}

/// HTTP/1.0, so that the response ends with the stream.
pub(crate) fn get(mut stream: impl Read + Write, target: &str) -> io::Result<HttpResponse> {
    write!(stream, "GET {target} HTTP/1.0\r\nhost: ringfence\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let parsed = answer.split_once("\r\n\r\n").and_then(|(head, body)| {
        let status = head.split_whitespace().nth(1)?.parse().ok()?;
        Some(HttpResponse { status, head: head.to_lowercase(), body: body.into() })
    });
    parsed.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("no HTTP answer: {answer:?}")))
}
