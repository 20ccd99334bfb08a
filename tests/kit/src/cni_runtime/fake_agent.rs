//! A fake agent on `cni.sock` with scripted replies.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use cni::protocol::{ProtocolError, Request, Response, read_request, write_response};

/// The reply to a request.
#[derive(Debug, Clone)]
pub enum Reply {
    Answer(Response),
    /// Sends these bytes and closes the connection.
    Bytes(Vec<u8>),
    /// Sends nothing and keeps the connection open until the agent stops.
    Silence,
}

impl Reply {
    pub fn enforced() -> Reply {
        Reply::Answer(Response::Enforced)
    }

    /// The connection closes within the reply, as when an agent restarts.
    pub fn close() -> Reply {
        Reply::Bytes(b"{\"version\":1,\"res".to_vec())
    }
}

/// Answers requests one at a time until drop.
pub struct FakeAgent {
    socket: PathBuf,
    ends: Arc<AtomicBool>,
    requests: Arc<Mutex<Vec<Request>>>,
    thread: Option<JoinHandle<()>>,
}

impl FakeAgent {
    /// # Panics
    /// If it cannot listen on the socket.
    pub fn start(socket: &Path, mut reply: impl FnMut(&Request) -> Reply + Send + 'static) -> FakeAgent {
        fs::create_dir_all(socket.parent().expect("a folder for the socket")).expect("a folder for the socket");
        let listener = UnixListener::bind(socket).expect("a socket");
        let ends = Arc::new(AtomicBool::new(false));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (ending, seen) = (ends.clone(), requests.clone());
        let thread = std::thread::spawn(move || {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().expect("a caller");
                if ending.load(Ordering::Relaxed) {
                    return;
                }
                match read_request(&mut stream) {
                    Ok(request) => {
                        seen.lock().expect("no test has panicked here").push(request.clone());
                        match reply(&request) {
                            Reply::Answer(response) => forgive(write_response(&mut stream, &response)),
                            Reply::Bytes(bytes) => forgive(stream.write_all(&bytes).map_err(ProtocolError::from)),
                            Reply::Silence => open.push(stream),
                        }
                    }
                    // A caller that gave up, or only checked whether the socket is open.
                    Err(ProtocolError::Closed) => {}
                    Err(error) => panic!("invalid request of the plugin: {error}"),
                }
            }
        });
        FakeAgent { socket: socket.into(), ends, requests, thread: Some(thread) }
    }

    /// An agent that reports every attachment as enforced at once.
    pub fn enforcing(socket: &Path) -> FakeAgent {
        FakeAgent::start(socket, |request| match request {
            Request::Add { .. } | Request::Check(_) => Reply::enforced(),
            Request::Delete(_) | Request::Status => Reply::Answer(Response::Ok),
        })
    }

    /// Requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("the agent has not panicked").clone()
    }
}

/// A caller that has closed the connection is not an error.
fn forgive(written: Result<(), ProtocolError>) {
    match written {
        Ok(()) => {}
        Err(ProtocolError::Io(error)) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => panic!("answering: {error}"),
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // The thread waits for a caller; it may also have panicked already, which `join` reports.
        let called = UnixStream::connect(&self.socket);
        fs::remove_file(&self.socket).expect("the socket");
        let thread = self.thread.take().expect("it is dropped once");
        if thread.join().is_err() && !std::thread::panicking() {
            panic!("the fake agent panicked ({called:?})");
        }
    }
}
