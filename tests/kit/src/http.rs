//! The HTTP server of the fakes: a listener on the loopback with a thread for each connection, and a request parser.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Listens until drop.
pub struct Server {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves each connection in its own thread. Errors of a connection are left to its peer.
    ///
    /// # Panics
    /// If it cannot listen on the loopback.
    pub fn start(serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of the loopback");
        let address = listener.local_addr().expect("a bound socket");
        let (ends, serve) = (Arc::new(AtomicBool::new(false)), Arc::new(serve));
        let over = ends.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let serve = serve.clone();
                std::thread::spawn(move || drop(stream.and_then(|stream| serve(stream))));
            }
        });
        Server { address, ends, thread: Some(thread) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        // Wakes the accept loop, which then sees the stop flag.
        drop(TcpStream::connect(self.address));
        crate::threads::end(self.thread.take());
    }
}

/// A request line with its headers.
pub struct Head {
    pub method: String,
    pub path: String,
    pub query: BTreeMap<String, String>,
    /// By header name in lower case.
    pub headers: BTreeMap<String, String>,
}

impl Head {
    /// The header's value, or "".
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// `Content-Length`; 0 if absent.
    pub fn body_length(&self) -> io::Result<usize> {
        self.headers.get("content-length").map_or(Ok(0), |length| length.parse().map_err(io::Error::other))
    }
}

/// `None` at the end of the connection.
pub fn read_head(reader: &mut impl BufRead) -> io::Result<Option<Head>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let broken = || io::Error::other(format!("no request: {lines:?}"));
    let mut first = lines.first().ok_or_else(broken)?.split(' ');
    let (method, target) = first.next().zip(first.next()).ok_or_else(broken)?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let headers = lines[1..].iter().filter_map(|line| line.split_once(':'));
    Ok(Some(Head {
        method: method.into(),
        path: path.into(),
        query: pairs.map(|(key, value)| (key.into(), value.into())).collect(),
        headers: headers.map(|(name, value)| (name.to_lowercase(), value.trim().into())).collect(),
    }))
}
