//! Asks the running agent. Every verb that wants something of it comes this way.

use std::io;
use std::path::Path;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use policy::Explanation;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::status::StatusReport;
use super::{ApiError, EXPLAIN, ExplainQuery, STATUS, TableVerdict, VERIFY};
use crate::run_dir::socket_path;

/// Largest answer that is taken whole: far above any of them, far below what would hurt.
const LARGEST_ANSWER_BYTES: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    #[error("cannot reach an agent at {path}; is one running here, and are you root?")]
    Unreachable { path: String, source: io::Error },
    /// With what the agent says.
    #[error("{0}")]
    Refused(String),
    #[error("the agent did not answer: {0}")]
    BrokeOff(String),
    #[error("the agent's answer is not what this version understands: {0}")]
    NotUnderstood(serde_json::Error),
}

pub(crate) async fn status(run_dir: &Path) -> Result<StatusReport, Unanswered> {
    get(run_dir, STATUS).await
}

pub(crate) async fn verify(run_dir: &Path) -> Result<TableVerdict, Unanswered> {
    get(run_dir, VERIFY).await
}

pub(crate) async fn explain(run_dir: &Path, query: &ExplainQuery) -> Result<Vec<Explanation>, Unanswered> {
    let ExplainQuery { source, destination, traffic } = query;
    let parameters = [("source", Some(&**source)), ("destination", Some(destination)), ("traffic", Some(traffic))];
    get(run_dir, &target(EXPLAIN, &parameters)).await
}

/// A route with its parameters, without those that have no value.
pub(crate) fn target(route: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| value.map(|v| format!("{name}={}", percent_encoded(v))));
    let query = given.collect::<Vec<String>>().join("&");
    if query.is_empty() { route.into() } else { format!("{route}?{query}") }
}

/// An answer that is read whole.
pub(crate) async fn get<T: DeserializeOwned>(run_dir: &Path, target: &str) -> Result<T, Unanswered> {
    let body = whole(ask(run_dir, target).await?).await?;
    serde_json::from_slice(&body).map_err(Unanswered::NotUnderstood)
}

/// The answer to a question, whose body is still to be read.
pub(crate) async fn ask(run_dir: &Path, target: &str) -> Result<Response<Incoming>, Unanswered> {
    let broke_off = |e: &dyn std::fmt::Display| Unanswered::BrokeOff(e.to_string());
    let path = socket_path(run_dir);
    let unreachable = |source| Unanswered::Unreachable { path: path.display().to_string(), source };
    let stream = UnixStream::connect(&path).await.map_err(unreachable)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| broke_off(&e))?;
    // It ends with the answer; what goes wrong with it shows where the answer is read.
    tokio::spawn(connection);
    let request = Request::get(target).header("host", "ringfence").body(Empty::<Bytes>::new());
    let response = sender.send_request(request.map_err(|e| broke_off(&e))?).await.map_err(|e| broke_off(&e))?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    Err(Unanswered::Refused(match serde_json::from_slice::<ApiError>(&whole(response).await?) {
        Ok(error) => error.error,
        Err(_) => format!("the agent answered {status}"),
    }))
}

async fn whole(response: Response<Incoming>) -> Result<Bytes, Unanswered> {
    let body = Limited::new(response.into_body(), LARGEST_ANSWER_BYTES).collect().await;
    Ok(body.map_err(|e| Unanswered::BrokeOff(e.to_string()))?.to_bytes())
}

/// RFC 3986, section 2: everything but unreserved characters.
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
    fn a_target_holds_what_was_given_and_nothing_else() {
        assert_eq!(target("/v1/x", &[("a", None)]), "/v1/x");
        assert_eq!(target("/v1/x", &[("a", Some("b/c&d")), ("e", None), ("f", Some(""))]), "/v1/x?a=b%2Fc%26d&f=");
    }
}
