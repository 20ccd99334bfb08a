//! Client of the running agent's API, used by all subcommands that query it.

use std::io;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::audit::{AuditQuery, AuditReport, SuggestionQuery, SuggestionReport};
use super::drops::{Coverage, DropsQuery};
use super::flows::{FlowCoverage, FlowsQuery};
use super::identity::{IdentityQuery, IdentityReport};
use super::rules::{KERNEL_HEADER, KernelMatch, RulesQuery};
use super::status::AgentStatusReport;
use super::{
    AUDIT, ApiError, COVERAGE, DROPS, EXPLAIN, ExplainQuery, ExplainResponse, FLOW_COVERAGE, FLOWS, IDENTITY, RULES,
    STATUS, SUGGESTION, TableVerdict, VERIFY,
};
use crate::run_dir::socket_path;

/// Maximum size of a response that is read into memory; those of the agent are far smaller.
const LARGEST_ANSWER_BYTES: usize = 16 << 20;

/// Timeout for the head of a response, and for its body: for the whole body if it is read into memory, else for each
/// part. The slowest response, a comparison of large tables with the kernel's, takes seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("cannot connect to the agent at {path}; check that the agent runs on this node and that you are root")]
    Unreachable { path: String, source: io::Error },
    /// The agent responded with this error message.
    #[error("{0}")]
    Refused(String),
    #[error("the agent did not answer: {0}")]
    BrokeOff(String),
    #[error(
        "the agent did not answer within {} s: check its log, and that its process is not stopped or short of processor time",
        REQUEST_TIMEOUT.as_secs()
    )]
    TimedOut,
    /// A response with `follow` ended, usually because the agent has exited.
    #[error("the agent closed the connection: it was stopped or restarted")]
    Closed,
    #[error("cannot decode the agent's response: {0}; use ringfence of the same release as the agent")]
    NotUnderstood(serde_json::Error),
}

pub(crate) async fn status(run_dir: &Path) -> Result<AgentStatusReport, RequestError> {
    get(run_dir, STATUS).await
}

/// Requests health or readiness; the response is text.
pub(crate) async fn probe(run_dir: &Path, route: &str) -> Result<String, RequestError> {
    Ok(String::from_utf8_lossy(&whole(request(run_dir, route).await?).await?).into_owned())
}

pub(crate) async fn verify(run_dir: &Path) -> Result<TableVerdict, RequestError> {
    get(run_dir, VERIFY).await
}

pub(crate) async fn explain(run_dir: &Path, query: &ExplainQuery) -> Result<Vec<ExplainResponse>, RequestError> {
    let ExplainQuery { source, destination, traffic } = query;
    let (source, destination, traffic) = (source.to_string(), destination.to_string(), traffic.to_string());
    let parameters = [("source", Some(&*source)), ("destination", Some(&destination)), ("traffic", Some(&traffic))];
    get(run_dir, &target(EXPLAIN, &parameters)).await
}

pub(crate) async fn identity(run_dir: &Path, query: &IdentityQuery) -> Result<IdentityReport, RequestError> {
    let IdentityQuery { subject } = query;
    get(run_dir, &target(IDENTITY, &[("of", Some(&subject.to_string()))])).await
}

pub(crate) async fn audit(run_dir: &Path, query: &AuditQuery) -> Result<AuditReport, RequestError> {
    let AuditQuery { namespace } = query;
    get(run_dir, &target(AUDIT, &[("namespace", namespace.as_deref())])).await
}

pub(crate) async fn suggestion(run_dir: &Path, query: &SuggestionQuery) -> Result<SuggestionReport, RequestError> {
    let SuggestionQuery { namespace, pod, workload } = query;
    let parameters = [("namespace", Some(&**namespace)), ("pod", pod.as_deref()), ("workload", workload.as_deref())];
    get(run_dir, &target(SUGGESTION, &parameters)).await
}

pub(crate) async fn coverage(run_dir: &Path) -> Result<Coverage, RequestError> {
    get(run_dir, COVERAGE).await
}

pub(crate) async fn drops(run_dir: &Path, query: &DropsQuery) -> Result<ResponseLines, RequestError> {
    let DropsQuery { follow, namespace, pod, verdict } = query;
    let parameters = [
        ("follow", follow.then_some("true")),
        ("namespace", namespace.as_deref()),
        ("pod", pod.as_deref()),
        ("verdict", verdict.map(policy::Judgement::as_str)),
    ];
    let body = request(run_dir, &target(DROPS, &parameters)).await?.into_body();
    Ok(ResponseLines { body, unread: Vec::new(), follows: query.follow })
}

pub(crate) async fn flow_coverage(run_dir: &Path) -> Result<FlowCoverage, RequestError> {
    get(run_dir, FLOW_COVERAGE).await
}

pub(crate) async fn flows(run_dir: &Path, query: &FlowsQuery) -> Result<ResponseLines, RequestError> {
    let follow = [("follow", query.follow.then_some("true"))];
    let given = query.given.iter().map(|(name, text)| (*name, Some(text.as_str())));
    let parameters: Vec<(&str, Option<&str>)> = follow.into_iter().chain(given).collect();
    let body = request(run_dir, &target(FLOWS, &parameters)).await?.into_body();
    Ok(ResponseLines { body, unread: Vec::new(), follows: query.follow })
}

pub(crate) async fn rules(run_dir: &Path, query: &RulesQuery) -> Result<RulesText, RequestError> {
    let RulesQuery { family } = query;
    let response = request(run_dir, &target(RULES, &[("family", family.map(nft::TableFamily::as_str))])).await?;
    let word = response.headers().get(KERNEL_HEADER).and_then(|value| value.to_str().ok());
    let matched = word.and_then(KernelMatch::from_word).ok_or_else(|| {
        RequestError::BrokeOff(format!(
            "its answer does not say in {KERNEL_HEADER} whether the kernel has the same rules"
        ))
    })?;
    Ok(RulesText { matched, body: response.into_body() })
}

/// The committed rules as nft text, streamed because they may be too large for memory.
pub(crate) struct RulesText {
    pub(crate) matched: KernelMatch,
    body: Incoming,
}

impl RulesText {
    /// `None` at the end of the text.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, RequestError> {
        loop {
            match in_time(self.body.frame()).await? {
                // Frames without data are trailers.
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(part) => return Ok(Some(part)),
                    Err(_trailers) => {}
                },
                Some(Err(error)) => return Err(RequestError::BrokeOff(error.to_string())),
                None => return Ok(None),
            }
        }
    }
}

/// Maximum size of a line of a streamed response; those of the agent are far smaller.
const LARGEST_LINE_BYTES: usize = 1 << 20;

/// A response streamed line by line.
pub(crate) struct ResponseLines {
    body: Incoming,
    unread: Vec<u8>,
    /// True with `follow`: there is no timeout for the next line.
    follows: bool,
}

impl ResponseLines {
    /// `None` at the end of the response. With `follow`, the end of the response is an error.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, RequestError> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&line).map(Some).map_err(RequestError::NotUnderstood);
            }
            if self.unread.len() > LARGEST_LINE_BYTES {
                return Err(RequestError::BrokeOff("a line of its response is too long".into()));
            }
            let frame = match self.follows {
                true => self.body.frame().await,
                false => in_time(self.body.frame()).await?,
            };
            match frame {
                Some(Ok(frame)) => self.unread.extend(frame.data_ref().into_iter().flatten()),
                Some(Err(_)) if self.follows => return Err(RequestError::Closed),
                Some(Err(error)) => return Err(RequestError::BrokeOff(error.to_string())),
                None if self.follows => return Err(RequestError::Closed),
                None => return Ok(None),
            }
        }
    }
}

async fn in_time<T>(answer: impl Future<Output = T>) -> Result<T, RequestError> {
    tokio::time::timeout(REQUEST_TIMEOUT, answer).await.map_err(|_| RequestError::TimedOut)
}

/// A route with its query string; parameters without a value are left out.
pub(crate) fn target(route: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| value.map(|v| format!("{name}={}", percent_encoded(v))));
    let query = given.collect::<Vec<String>>().join("&");
    if query.is_empty() { route.into() } else { format!("{route}?{query}") }
}

/// Requests a response and decodes it as a whole.
pub(crate) async fn get<T: DeserializeOwned>(run_dir: &Path, target: &str) -> Result<T, RequestError> {
    let body = whole(request(run_dir, target).await?).await?;
    serde_json::from_slice(&body).map_err(RequestError::NotUnderstood)
}

/// Sends a request and returns the response, whose body is still to be read.
pub(crate) async fn request(run_dir: &Path, target: &str) -> Result<Response<Incoming>, RequestError> {
    let broke_off = |e: &dyn std::fmt::Display| RequestError::BrokeOff(e.to_string());
    let path = socket_path(run_dir);
    let unreachable = |source| RequestError::Unreachable { path: path.display().to_string(), source };
    let stream = UnixStream::connect(&path).await.map_err(unreachable)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| broke_off(&e))?;
    // The task ends with the response. Errors of the connection are returned when the response is read.
    tokio::spawn(connection);
    let request = Request::get(target).header("host", "ringfence").body(Empty::<Bytes>::new());
    let request = request.map_err(|e| broke_off(&e))?;
    let response = in_time(sender.send_request(request)).await?.map_err(|e| broke_off(&e))?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body = whole(response).await?;
    Err(RequestError::Refused(match serde_json::from_slice::<ApiError>(&body) {
        Ok(error) => error.error,
        Err(_) => format!("the agent answered {status}: {}", String::from_utf8_lossy(&body).trim_end()),
    }))
}

async fn whole(response: Response<Incoming>) -> Result<Bytes, RequestError> {
    let body = in_time(Limited::new(response.into_body(), LARGEST_ANSWER_BYTES).collect()).await?;
    Ok(body.map_err(|e| RequestError::BrokeOff(e.to_string()))?.to_bytes())
}

/// RFC 3986, section 2: encodes everything except unreserved characters.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_target_encodes_parameters_and_omits_absent() {
        assert_eq!(target("/v1/x", &[("a", None)]), "/v1/x");
        assert_eq!(target("/v1/x", &[("a", Some("b/c&d")), ("e", None), ("f", Some(""))]), "/v1/x?a=b%2Fc%26d&f=");
    }
}
