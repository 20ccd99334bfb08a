//! The provider as a process, fed by the fake API server, with subscribers on the loopback.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use serde_json::Value;

use super::super::fed::{feed, until_sent};
use super::super::figures::{Figure, Spread};
use super::super::machine::{self, Memory};
use super::subscribers::{ReadExtent, Subscribers};
use super::{Served, Size, freshness};
use generator::cluster::events::{EventKind, Place};
use generator::cluster::{Cluster, Size as ClusterSize};
use kit::fake_api::FakeApi;
use kit::provider_process::{Provider, free_port};

/// Deadline with a large margin for the largest cluster and the slowest provider.
const WITHIN: Duration = Duration::from_secs(600);

const IDENTITY: &str = "identity";
const EDGES: &str = "policy-edges";

/// A provider after the first downloads of its baselines.
struct Started {
    api: FakeApi,
    provider: Provider,
    process: Pid,
    first_download: Duration,
    database_bytes: usize,
    memory: Memory,
}

impl Started {
    fn new(size: ClusterSize) -> Started {
        let api = FakeApi::start();
        api.set_cluster(Cluster::of(size));
        let kubeconfig = api.kubeconfig().display().to_string();
        let begun = Instant::now();
        let mut provider = Provider::start(free_port(), ["--kubeconfig", &kubeconfig, "--cluster-id", "bench"]);
        let database_bytes =
            provider.until_within(WITHIN, "a baseline", |provider| download(provider.address(), IDENTITY, "").ok());
        let first_download = begun.elapsed();
        download(provider.address(), EDGES, "").expect("a baseline");
        let process = Pid::from_raw(provider.id().cast_signed());
        Started { api, provider, process, first_download, database_bytes, memory: machine::memory(process) }
    }
}

/// Memory of a provider after the first downloads of its baselines.
pub(super) fn started(size: ClusterSize) -> Memory {
    Started::new(size).memory
}

pub(super) fn measure(size: ClusterSize, wanted: &Size) -> Served {
    let Started { api, mut provider, process, first_download, database_bytes, memory: started } = Started::new(size);
    let compressed_bytes = download(provider.address(), IDENTITY, "accept-encoding: gzip\r\n").expect("a baseline");
    let addresses = identity(&provider)["count"].as_u64().expect("a number");

    let subscribers = Subscribers::start(provider.address(), wanted.subscribers, ReadExtent::Everything);
    provider.until_within(WITHIN, "every subscriber", |provider| {
        (identity(provider)["subscribers"] == wanted.subscribers).then_some(())
    });
    let subscribed = machine::memory(process);
    let (mut to_the_middle, mut to_the_last) = (Vec::new(), Vec::new());
    for _ in 0..wanted.deltas {
        subscribers.discard_received();
        let begun = Instant::now();
        api.happen(|cluster| (vec![cluster.happen(EventKind::PodRelabelled, Place::Anywhere)], ()));
        let times = subscribers.first_deltas(WITHIN);
        let after: Vec<f64> = times.iter().map(|time| time.duration_since(begun).as_secs_f64()).collect();
        let spread = Spread::of(after).expect("somebody subscribes");
        to_the_middle.push(spread.median);
        to_the_last.push(spread.most);
    }
    drop(subscribers);
    let steady = freshness::measure(&api, provider.address(), wanted.steady);
    // The same number of subscribers as in the steady run. The silent ones get deltas that they do not read.
    let _reading = Subscribers::start(provider.address(), wanted.subscribers - wanted.silent, ReadExtent::Everything);
    let _silent = Subscribers::start(provider.address(), wanted.silent, ReadExtent::Nothing);
    feed(&api, wanted.storm);
    until_sent(&api);
    let stormed = machine::memory(process);
    provider.stop();
    Served {
        first_download,
        started,
        database_bytes,
        compressed_bytes,
        addresses,
        subscribed,
        stormed,
        subscribers: wanted.subscribers,
        to_the_middle: Figure::of(to_the_middle).median(),
        to_the_last: Figure::of(to_the_last).median(),
        steady,
    }
}

/// The length in bytes of a feed's baseline, requested with these headers.
fn download(address: SocketAddr, feed: &str, headers: &str) -> io::Result<usize> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /{feed}/download HTTP/1.0\r\n{headers}\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let head = answer.windows(4).position(|end| end == b"\r\n\r\n");
    let (head, is_there) = head
        .map(|end| (end + 4, answer[..end].split(|b| *b == b' ').nth(1) == Some(b"200")))
        .ok_or(io::ErrorKind::InvalidData)?;
    if is_there { Ok(answer.len() - head) } else { Err(io::ErrorKind::NotFound.into()) }
}

fn identity(provider: &Provider) -> Value {
    provider.try_status().expect("a status")["feeds"]["identity"].clone()
}
