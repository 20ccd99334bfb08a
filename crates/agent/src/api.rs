//! What the agent says over its socket and its port: types, routes, and the client that the verbs use.
//!
//! Version 1 of the socket's interface: `GET /v1/status` gives a [`Status`]; `GET /v1/explain?source=&destination=&
//! traffic=` gives a list of [`policy::Explanation`], or an [`ApiError`] with status 404 or 422; `GET /v1/verify` gives a
//! [`TableVerdict`].

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use policy::Diagnostic;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};

/// What the agent knows and has done.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    pub(crate) node: String,
    /// When the loop that owns the state last came round.
    #[serde(skip)]
    pub(crate) turned: Option<Instant>,
    pub(crate) version: &'static str,
    pub(crate) table: String,
    /// Kinds of object that have not been listed yet; nothing is programmed before all are.
    pub(crate) waiting_for: Vec<String>,
    /// Whether the kernel has the rules that the policies ask for, as far as is known.
    pub(crate) in_force: bool,
    /// Why not.
    pub(crate) trouble: Option<String>,
    /// The kernel's ruleset generation after the last commit.
    pub(crate) kernel_generation: Option<u32>,
    /// The number that approved flows carry.
    pub(crate) policy_generation: Option<u32>,
    #[serde(rename = "secondsSinceCommit", serialize_with = "seconds_since")]
    pub(crate) last_commit: Option<Instant>,
    pub(crate) commit_micros: Option<u64>,
    pub(crate) elements: usize,
    pub(crate) programs: usize,
    pub(crate) pods_on_node: usize,
    pub(crate) isolated_pods: usize,
    /// Objects of which something was not understood.
    pub(crate) diagnostics: Vec<Diagnostic>,
    /// Whether other programs can change the tables, and why they can.
    pub(crate) protection: String,
    /// What the kernel refused: it is denied.
    pub(crate) left_out: Vec<String>,
    /// What keeps the source from telling the whole truth.
    pub(crate) problems: Vec<Aged>,
    /// Why policies would not be enforced on this node although their rules are in the kernel.
    pub(crate) unenforced: Vec<String>,
    /// Attachments of the CNI plugin that cannot be read: pods that may be here without their rules.
    pub(crate) attachment_problems: Vec<String>,
    /// The source is a folder, in which a problem means that what somebody wrote is not in force. (A watch that fails
    /// leaves the state as it was known last, and begins again by itself.)
    pub(crate) from_folder: bool,
}

/// A problem, and since when it has been there.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Aged {
    #[serde(flatten)]
    pub(crate) problem: cluster::Problem,
    #[serde(rename = "seconds", serialize_with = "age")]
    pub(crate) since: Instant,
}

fn age<S: Serializer>(since: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
    since.elapsed().as_secs().serialize(serializer)
}

fn seconds_since<S: Serializer>(instant: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
    instant.map(|at| at.elapsed().as_secs()).serialize(serializer)
}

impl Status {
    /// Why the node is not ready; none if it is.
    pub(crate) fn unready(&self) -> Option<String> {
        if !self.waiting_for.is_empty() {
            let mut reason = format!("waiting for the first list of: {}", self.waiting_for.join(", "));
            for problem in &self.problems {
                reason.push_str(&format!("\n{}", problem.problem));
            }
            return Some(reason);
        }
        if self.from_folder && !self.problems.is_empty() {
            let problems: Vec<String> = self.problems.iter().map(|p| p.problem.to_string()).collect();
            return Some(format!("not all manifests are in force:\n{}", problems.join("\n")));
        }
        if let [finding, ..] = &self.unenforced[..] {
            return Some(finding.clone());
        }
        if let [problem, ..] = &self.attachment_problems[..] {
            return Some(problem.clone());
        }
        match (&self.trouble, self.in_force) {
            (Some(trouble), _) => Some(trouble.clone()),
            (None, false) => Some("the rules are not committed yet".into()),
            (None, true) => None,
        }
    }
}

impl Status {
    /// What somebody who reads that the node is ready has to know nevertheless: enforced is what was known before.
    pub(crate) fn notes(&self) -> Vec<String> {
        let note = |Aged { problem, since }: &Aged| {
            format!("for {}, while what was known then stays enforced: {problem}", in_words(since.elapsed()))
        };
        self.problems.iter().map(note).collect()
    }
}

fn in_words(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// `GET /v1/verify`: the kernel's table, read anew and compared with what the state asks for. Nothing is repaired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "camelCase")]
pub(crate) enum TableVerdict {
    /// They are equal.
    Equal,
    /// What would have to be done, in nft's syntax.
    #[serde(rename_all = "camelCase")]
    Different { operations: Vec<String>, more: usize },
    /// There is no table.
    Missing,
    /// It cannot be told.
    #[serde(rename_all = "camelCase")]
    Unknown { reason: String },
}

#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct ExplainQuery {
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) traffic: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ApiError {
    pub(crate) error: String,
}

/// Largest answer that a verb takes: far above any explanation, far below what would hurt.
const LARGEST_ANSWER_BYTES: usize = 16 << 20;

/// Asks the running agent.
pub(crate) async fn get<T: DeserializeOwned>(run_dir: &Path, target: &str) -> anyhow::Result<T> {
    let path = crate::run_dir::socket_path(run_dir);
    let stream = tokio::net::UnixStream::connect(&path).await.with_context(|| {
        format!(
            "cannot reach an agent at {}; is one running here, and are you root? (--manifests DIR needs none)",
            path.display()
        )
    })?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get(target).header("host", "ringfence").body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await.context("the agent did not answer")?;
    let status = response.status();
    let body = Limited::new(response.into_body(), LARGEST_ANSWER_BYTES).collect().await;
    let body = body.map_err(|e| anyhow::anyhow!("the agent's answer broke off: {e}"))?.to_bytes();
    drop(sender);
    connection.await.context("the connection to the agent")??;
    if !status.is_success() {
        match serde_json::from_slice::<ApiError>(&body) {
            Ok(error) => bail!("{}", error.error),
            Err(_) => bail!("the agent answered {status}"),
        }
    }
    serde_json::from_slice(&body).context("the agent's answer is not what this version understands")
}
