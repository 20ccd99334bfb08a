//! The aggregator as a process, and its answers.

use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use nix::unistd::Pid;
use serde::Deserialize;
use serde_json::Value;

use super::super::machine::{self, Memory};
use kit::provider_process::{Provider, free_port};

pub(super) struct Aggregator(Provider);

/// Records missing from the aggregator, by cause.
#[derive(Debug, Clone, Default)]
pub(super) struct Losses {
    pub(super) missed: u64,
    pub(super) evicted: u64,
    /// Records older than an hour.
    pub(super) expired: u64,
    pub(super) refused: u64,
    pub(super) kept_since: Option<Timestamp>,
}

/// Sums over an answer.
#[derive(Debug, Default)]
pub(super) struct AnswerSums {
    pub(super) records: u64,
    pub(super) connections: u64,
}

#[derive(Deserialize)]
struct AnsweredRecord {
    connections: Started,
}

#[derive(Deserialize)]
struct Started {
    started: u64,
}

impl Aggregator {
    pub(super) fn start() -> Aggregator {
        let mut provider = Provider::start_aggregator(free_port(), [] as [&str; 0]);
        provider.until_ready();
        Aggregator(provider)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.0.address()
    }

    fn process(&self) -> Pid {
        Pid::from_raw(self.0.id().cast_signed())
    }

    pub(super) fn processor_time(&self) -> Duration {
        machine::processor_time(self.process())
    }

    pub(super) fn memory(&self) -> Memory {
        machine::memory(self.process())
    }

    pub(super) fn estimated_bytes(&self) -> u64 {
        self.0.metric("ringfence_flows_memory_bytes", &[]) as u64
    }

    pub(super) fn losses(&self) -> Losses {
        let metric = |name: &str| self.0.metric(name, &[]) as u64;
        let coverage: Value = serde_json::from_str(&self.0.get("/v1/flows/coverage").body).expect("JSON");
        let number = |field: &str| coverage[field].as_u64().expect("a number");
        let refused = number("refused");
        let received = metric("ringfence_flows_received_records_total");
        let evicted = number("evicted");
        Losses {
            missed: number("missed"),
            evicted,
            expired: received - refused - evicted - number("records"),
            refused,
            kept_since: coverage["keptSince"].as_str().map(|text| text.parse().expect("a time")),
        }
    }

    /// Reads the whole response, line by line.
    pub(super) fn flows(&self) -> AnswerSums {
        let mut answered = AnswerSums::default();
        self.read("/v1/flows", |line| {
            let AnsweredRecord { connections } = serde_json::from_slice(line).expect("a record");
            answered.records += 1;
            answered.connections += connections.started;
        });
        answered
    }

    pub(super) fn request(&self, path: &str) {
        let mut bytes = 0;
        self.read(path, |line| bytes += line.len());
        assert!(bytes > 0, "{path} is answered");
    }

    fn read(&self, path: &str, mut each: impl FnMut(&[u8])) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        feed::install_tls_provider();
        runtime.block_on(async {
            let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().expect("a client");
            let mut response = client.get(format!("{}{path}", self.0.url())).send().await.expect("an answer");
            assert!(response.status().is_success(), "{path}: {}", response.status());
            let mut unread = Vec::new();
            while let Some(part) = response.chunk().await.expect("all of the answer") {
                unread.extend_from_slice(&part);
                let mut read = 0;
                while let Some(length) = unread[read..].iter().position(|byte| *byte == b'\n') {
                    each(&unread[read..read + length]);
                    read += length + 1;
                }
                unread.drain(..read);
            }
            if !unread.is_empty() {
                each(&unread);
            }
        });
    }
}
