//! A fake relay for pushes of providers: accepts what the protocol defines in its order, records violations, and fails
//! as servers and the networks before them do.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use serde_json::Value;

use kit::http::{Head, Server, read_head};

const BETWEEN: Duration = Duration::from_millis(2);

/// An accepted push.
#[derive(Debug, Clone, PartialEq)]
pub enum ReceivedPush {
    Baseline { version: String, cluster: String, position: Option<String>, bytes: Vec<u8> },
    Delta(Value),
}

/// A fault of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Answers with this status, and accepts nothing.
    Refuse(u16),
    /// Reads the request, and never answers it, not even after the fault has ended.
    Silent,
    /// Resets the connection within the request.
    ResetHalfWay,
    /// Accepts the push, but answers with this status.
    TakeAndRefuse(u16),
    /// Accepts the push, but resets the connection instead of answering.
    TakeAndReset,
}

/// The requests that a fault applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requests {
    All,
    Baselines,
    Deltas,
}

#[derive(Default)]
struct State {
    token: Option<String>,
    fault: Option<(Requests, Fault)>,
    taken: BTreeMap<String, Vec<ReceivedPush>>,
    requests: usize,
    answers: BTreeMap<u16, usize>,
    complaints: Vec<String>,
    /// Whether it reports the version of its baseline.
    reports_versions: bool,
    /// How often it reported the version, by feed.
    reported_versions: BTreeMap<String, usize>,
}

/// The relay. It stops on drop.
pub struct FakeRelay {
    state: Arc<Mutex<State>>,
    server: Server,
}

impl FakeRelay {
    pub fn start() -> FakeRelay {
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        FakeRelay { state, server: Server::start(move |stream| serve(stream, &shared)) }
    }

    /// The `--push-url` of a provider.
    pub fn url(&self) -> String {
        format!("http://{}/relay/v1", self.server.address())
    }

    /// Starts to refuse requests without this token.
    pub fn demand_token(&self, token: &str) {
        self.lock().token = Some(token.into());
    }

    /// Starts to report the version of its baseline.
    pub fn start_reporting_versions(&self) {
        self.lock().reports_versions = true;
    }

    /// How often it reported the version of a feed's baseline.
    pub fn reported_versions(&self, feed: &str) -> usize {
        self.lock().reported_versions.get(feed).copied().unwrap_or_default()
    }

    /// Discards everything accepted.
    pub fn lose_content(&self) {
        self.lock().taken.clear();
    }

    pub fn fail(&self, requests: Requests, fault: Fault) {
        self.lock().fault = Some((requests, fault));
    }

    pub fn heal(&self) {
        self.lock().fault = None;
    }

    /// Accepted pushes of a feed, in the order of arrival.
    pub fn taken(&self, feed: &str) -> Vec<ReceivedPush> {
        self.lock().taken.get(feed).cloned().unwrap_or_default()
    }

    /// Requests so far, answered or not.
    pub fn requests(&self) -> usize {
        self.lock().requests
    }

    /// The number of responses by status.
    pub fn answers(&self) -> BTreeMap<u16, usize> {
        self.lock().answers.clone()
    }

    /// Violations of the protocol.
    pub fn complaints(&self) -> Vec<String> {
        self.lock().complaints.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for FakeRelay {
    fn drop(&mut self) {
        // Ends the fault, so that requests without a response do not delay the end.
        self.heal();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves requests one at a time.
fn serve(stream: TcpStream, state: &Mutex<State>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(head) = read_head(&mut reader)? {
        if head.method == "GET" {
            answer_version(&stream, &head, &mut lock(state))?;
            continue;
        }
        let length = head.body_length()?;
        let fault = {
            let mut state = lock(state);
            state.requests += 1;
            let is_delta = head.path.ends_with("/delta");
            let is_for = |of: Requests| match of {
                Requests::All => true,
                Requests::Baselines => !is_delta,
                Requests::Deltas => is_delta,
            };
            state.fault.filter(|(of, _)| is_for(*of)).map(|(_, fault)| fault)
        };
        if fault == Some(Fault::ResetHalfWay) {
            reader.read_exact(&mut vec![0; length / 2])?;
            return reset(stream);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let is_known = is_known(&head, lock(state).token.as_deref());
        let code = match (fault, is_known) {
            (Some(Fault::Silent), _) => {
                while lock(state).fault.is_some_and(|(_, fault)| fault == Fault::Silent) {
                    std::thread::sleep(BETWEEN);
                }
                return Ok(());
            }
            (Some(Fault::Refuse(code)), _) => code,
            (_, false) => 401,
            (Some(Fault::TakeAndRefuse(code)), true) => {
                record_push(&mut lock(state), &head, body);
                code
            }
            (Some(Fault::TakeAndReset), true) => {
                record_push(&mut lock(state), &head, body);
                return reset(stream);
            }
            (Some(Fault::ResetHalfWay) | None, true) => record_push(&mut lock(state), &head, body),
        };
        *lock(state).answers.entry(code).or_default() += 1;
        let says = if code < 300 { "" } else { "the fake says no\nand more" };
        write!(&stream, "HTTP/1.1 {code} Fake\r\ncontent-length: {}\r\n\r\n{says}", says.len())?;
    }
    Ok(())
}

/// The version of the last baseline of a feed. Faults apply to pushes only.
fn answer_version(mut stream: &TcpStream, head: &Head, state: &mut State) -> io::Result<()> {
    let feed = head.path.strip_prefix("/relay/v1/").and_then(|path| path.strip_suffix("/version")).unwrap_or_default();
    let version = state.taken.get(feed).into_iter().flatten().rev().find_map(|taken| match taken {
        ReceivedPush::Baseline { version, .. } => Some(version),
        ReceivedPush::Delta(_) => None,
    });
    match version.filter(|_| state.reports_versions && is_known(head, state.token.as_deref())) {
        Some(version) => {
            *state.reported_versions.entry(feed.into()).or_default() += 1;
            let body = serde_json::json!({"version": version}).to_string();
            write!(stream, "HTTP/1.1 200 Fake\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        }
        None => write!(stream, "HTTP/1.1 404 Fake\r\ncontent-length: 0\r\n\r\n"),
    }
}

fn is_known(head: &Head, token: Option<&str>) -> bool {
    token.is_none_or(|token| head.header("authorization") == format!("Bearer {token}"))
}

fn reset(stream: TcpStream) -> io::Result<()> {
    setsockopt(&stream, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 })?;
    stream.shutdown(std::net::Shutdown::Read)?;
    drop(stream);
    Ok(())
}

/// Accepts a push, and returns the status. All 2xx are equivalent.
fn record_push(state: &mut State, head: &Head, body: Vec<u8>) -> u16 {
    let Head { method, path, query, .. } = head;
    let media_type = head.header("content-type");
    let words: Vec<&str> = path.split('/').collect();
    let (feed, taken) = match (method.as_str(), &words[..]) {
        ("PUT", ["", "relay", "v1", feed @ ("identity" | "policy-edges"), "upload"]) => {
            let (prefix, meant) = match *feed {
                "identity" => ("id-", "application/octet-stream"),
                _ => ("edges-", "text/plain"),
            };
            let text = |key: &str| query.get(key).cloned().unwrap_or_default();
            let (version, cluster) = (text("version"), text("cluster"));
            let names: Vec<&str> = query.keys().map(String::as_str).collect();
            let known: &[&str] = if *feed == "identity" { &["cluster", "version"] } else { &["version"] };
            let digits = version.strip_prefix(prefix).filter(|d| d.len() == 16);
            if media_type != meant
                || names != known
                || (*feed == "identity" && cluster.is_empty())
                || !digits.is_some_and(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))
            {
                state.complaints.push(format!("{method} {path} {query:?} {media_type}"));
            }
            let position = head.headers.get("ringfence-position").cloned();
            (*feed, ReceivedPush::Baseline { version, cluster, position, bytes: body })
        }
        ("POST", ["", "relay", "v1", feed @ ("identity" | "policy-edges"), "delta"]) => {
            let delta: Result<Value, _> = serde_json::from_slice(&body);
            let has_all = |delta: &Value| {
                let lists = if *feed == "identity" { ["upserts", "removes"] } else { ["adds", "removes"] };
                delta.as_object().is_some_and(|fields| fields.len() == 4)
                    && ["epoch", "seq"].iter().all(|key| delta[key].is_u64())
                    && lists.iter().all(|key| delta[key].is_array())
            };
            match delta {
                Ok(delta) if media_type == "application/json" && has_all(&delta) => (*feed, ReceivedPush::Delta(delta)),
                Ok(_) | Err(_) => {
                    state.complaints.push(format!("{method} {path} {media_type} {}", String::from_utf8_lossy(&body)));
                    return 400;
                }
            }
        }
        _ => {
            state.complaints.push(format!("{method} {path}"));
            return 404;
        }
    };
    let of_feed = state.taken.entry(feed.into()).or_default();
    of_feed.push(taken);
    [200, 202, 204][of_feed.len() % 3]
}
