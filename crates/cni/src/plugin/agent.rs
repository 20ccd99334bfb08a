//! Requests to the agent, with retries.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use pacing::Backoff;

use crate::plugin::print_error;
use crate::protocol::{ProtocolError, Request, Response, read_response, write_request};

/// Timeout of requests that the agent answers immediately.
pub(super) const AT_ONCE: Duration = Duration::from_secs(1);

/// Backoff between attempts to connect to an agent that is starting: short at first, then bounded so that polling costs
/// almost nothing.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_MOST: Duration = Duration::from_millis(50);

/// The runtime shows it as an event of the pod, which may be the only message of Ringfence that the user sees.
const UNREACHABLE_HINT: &str = "No pod starts on this node without the agent. If Ringfence is installed, find out why \
    its pod does not run: kubectl --namespace ringfence get pods --output wide. If Ringfence was deleted, uninstall \
    it from the nodes: kubectl apply -f deploy/uninstall.yaml, or as root on this node: ringfence uninstall";

/// Why the agent's response is missing or unusable.
#[derive(Debug, thiserror::Error)]
pub(super) enum AgentError {
    #[error("cannot connect to the agent at {path}: {error}. {}", UNREACHABLE_HINT)]
    Unreachable { path: String, error: io::Error },
    #[error("no response from the agent at {path}: {error}")]
    Unanswered { path: String, error: ProtocolError },
}

/// Sends one request.
pub(super) fn send_request(socket: &Path, request: &Request, deadline: Instant) -> Result<Response, AgentError> {
    let path = || socket.display().to_string();
    let unreachable = |error| AgentError::Unreachable { path: path(), error };
    let unanswered = |error| AgentError::Unanswered { path: path(), error };
    let stream = reach(socket, deadline).map_err(unreachable)?;
    let mut stream = Until { stream, deadline };
    write_request(&mut stream, request).map_err(unanswered)?;
    read_response(&mut stream).map_err(unanswered)
}

/// Retries until there is a response, since an agent may be restarting. The request is built for the time that is left.
pub(super) fn ask_until(
    socket: &Path,
    request: impl Fn(Duration) -> Request,
    deadline: Instant,
) -> Result<Response, AgentError> {
    let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MOST);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let error = match send_request(socket, &request(left), deadline) {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        let pause = backoff.wait_exactly();
        if Instant::now() + pause >= deadline {
            return Err(error);
        }
        std::thread::sleep(pause);
    }
}

/// Retries until the agent could answer an ADD.
///
/// # Errors
/// Why it could not at the deadline.
pub(super) fn ask_status_until(socket: &Path, deadline: Instant) -> Result<(), String> {
    let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MOST);
    let mut answer: Option<String> = None;
    loop {
        let reason = match send_request(socket, &Request::Status, deadline) {
            Ok(Response::Ok) => return Ok(()),
            Ok(Response::Failed { reason }) => {
                answer = Some(reason.clone());
                reason
            }
            Ok(Response::Enforced | Response::Isolated { .. }) => {
                return Err("unexpected response of the agent".into());
            }
            // The last attempt has no time left; the previous response has the better reason.
            Err(error) if Instant::now() >= deadline => return Err(answer.unwrap_or_else(|| error.to_string())),
            Err(error) => {
                answer = None;
                error.to_string()
            }
        };
        let pause = backoff.wait_exactly();
        if Instant::now() + pause >= deadline {
            return Err(reason);
        }
        std::thread::sleep(pause);
    }
}

/// Notifies the agent of a change that its resync would find later.
pub(super) fn notify(socket: &Path, request: &Request) {
    match send_request(socket, request, Instant::now() + AT_ONCE) {
        Ok(Response::Ok) => {}
        Ok(Response::Failed { reason }) => print_error(format_args!("the agent reports: {reason}")),
        Ok(Response::Enforced | Response::Isolated { .. }) => {
            print_error(format_args!("unexpected response of the agent"));
        }
        Err(error) => print_error(format_args!("{error}")),
    }
}

fn reach(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The send timeout also applies to `connect`, which blocks while the agent's backlog is full.
    set_socket_timeout(&socket, Timeout::Send, Some(left(deadline)?))?;
    connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

/// A stream that fails at the deadline, even if bytes keep arriving.
struct Until {
    stream: UnixStream,
    deadline: Instant,
}

impl Read for Until {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.deadline)?))?;
        self.stream.read(into).map_err(timed_out)
    }
}

impl Write for Until {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.deadline)?))?;
        self.stream.write(from).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    // The kernel would round a timeout below one microsecond to zero, which means no timeout.
    if left < Duration::from_micros(1) { Err(timed_out(ErrorKind::TimedOut.into())) } else { Ok(left) }
}

/// `EAGAIN` prints as "resource temporarily unavailable", which does not help the user.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => io::Error::new(ErrorKind::TimedOut, "timed out"),
        _ => error,
    }
}
