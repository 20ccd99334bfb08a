//! How soon a change reaches a subscriber while the API server reports a steady stream of events.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use feed::sse::{DELTA, Parser};
use kit::fake_api::Kind;
use serde_json::{Value, json};

use super::super::figures::Spread;
use kit::fake_api::FakeApi;

/// 100 events per second.
const EVENT_INTERVAL: Duration = Duration::from_millis(10);

/// Deadline for the last change.
const WITHIN: Duration = Duration::from_secs(60);

/// A namespace of every generated cluster.
const NAMESPACE: &str = "monitoring";

/// Applies this many events, of which every second one adds a pod; returns the seconds from there to a subscriber of
/// identities. The others are of the usual mixture.
///
/// # Panics
/// If an added pod does not arrive.
pub(super) fn measure(api: &FakeApi, provider: SocketAddr, events: usize) -> Spread {
    let subscriber = Subscriber::start(provider).expect("a stream of deltas");
    let begun = Instant::now();
    let mut missing = BTreeMap::new();
    for number in 0..events {
        let next = EVENT_INTERVAL * u32::try_from(number).expect("a moderate number of events");
        std::thread::sleep(next.saturating_sub(begun.elapsed()));
        match number % 2 {
            0 => {
                missing.insert(address(number), Instant::now());
                api.set(Kind::Pod, pod(number));
            }
            _ => api.happen(|cluster| (vec![cluster.next_event()], ())),
        }
    }
    let deadline = Instant::now() + WITHIN;
    let mut delays = Vec::new();
    while !missing.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let (address, at) = subscriber.upserts.recv_timeout(left).expect("every added pod is published");
        // A pod's record may be published again.
        delays.extend(missing.remove(&address).map(|since| at.duration_since(since).as_secs_f64()));
    }
    drop(subscriber);
    (0..events).step_by(2).for_each(|number| api.remove(Kind::Pod, NAMESPACE, &name(number)));
    Spread::of(delays).expect("some events")
}

fn name(number: usize) -> String {
    format!("probe-{number}")
}

/// From the range for benchmarks (RFC 2544), which no generated cluster uses.
fn address(number: usize) -> IpAddr {
    let number = u32::try_from(number).expect("a moderate number of events");
    Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 1).to_bits() + number).into()
}

fn pod(number: usize) -> Value {
    let address = address(number);
    json!({
        "metadata": {"namespace": NAMESPACE, "name": name(number), "labels": {"app": "probe"}},
        "spec": {"nodeName": "node-of-probes", "containers": []},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    })
}

/// A stream of deltas. It ends on drop.
struct Subscriber {
    stream: TcpStream,
    /// Addresses with upserted records, and when.
    upserts: Receiver<(IpAddr, Instant)>,
    thread: Option<JoinHandle<()>>,
}

impl Subscriber {
    fn start(provider: SocketAddr) -> io::Result<Subscriber> {
        let mut stream = TcpStream::connect(provider)?;
        // HTTP/1.0, so that the body is the stream and nothing else.
        stream.write_all(b"GET /identity/deltas HTTP/1.0\r\n\r\n")?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        while reader.read_line(&mut line)? > 0 && line != "\r\n" {
            line.clear();
        }
        let (sender, upserts) = channel();
        let thread = std::thread::spawn(move || read(reader, &sender));
        Ok(Subscriber { stream, upserts, thread: Some(thread) })
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        if let Err(error) = self.stream.shutdown(Shutdown::Both) {
            eprintln!("the stream had ended before: {error}");
        }
        kit::threads::end(self.thread.take());
    }
}

fn read(mut stream: BufReader<TcpStream>, upserts: &Sender<(IpAddr, Instant)>) {
    let (mut parser, mut events, mut buffer) = (Parser::new(), Vec::new(), vec![0; 64 << 10]);
    while let Ok(length) = stream.read(&mut buffer)
        && length > 0
    {
        parser.push(&buffer[..length], &mut events).expect("events of bounded size");
        let now = Instant::now();
        for event in events.drain(..).filter(|event| event.event == DELTA) {
            let delta: Value = serde_json::from_slice(&event.data).expect("JSON");
            for upsert in delta["upserts"].as_array().into_iter().flatten() {
                let address = upsert["ip"].as_str().and_then(|ip| ip.parse().ok()).expect("an address");
                if upserts.send((address, now)).is_err() {
                    return;
                }
            }
        }
    }
}
