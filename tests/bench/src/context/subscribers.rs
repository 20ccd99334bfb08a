//! Thousands of streams, read by one thread.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use feed::sse::{DELTA, Parser};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// HTTP/1.0, so that the body is the stream and nothing else.
const REQUEST: &[u8] = b"GET /identity/deltas HTTP/1.0\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadExtent {
    Everything,
    Nothing,
}

/// Streams of deltas. They end on drop.
pub(super) struct Subscribers {
    count: usize,
    /// Index of the subscriber that received a delta, and when.
    deltas: Receiver<(usize, Instant)>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Subscribers {
    /// Opens the streams, and waits until each has a response.
    ///
    /// # Panics
    /// If one has none.
    pub(super) fn start(address: SocketAddr, count: usize, reading: ReadExtent) -> Subscribers {
        allow_files();
        let (sender, deltas) = channel();
        let (ready, opened) = channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
            runtime.block_on(async move {
                let mut streams = Vec::with_capacity(count);
                for _ in 0..count {
                    streams.push(open(address).await.expect("a stream of deltas"));
                }
                ready.send(()).expect("a waiting receiver");
                let mut readers = JoinSet::new();
                if reading == ReadExtent::Everything {
                    for (number, stream) in streams.drain(..).enumerate() {
                        readers.spawn(read(number, stream, sender.clone()));
                    }
                }
                // The sender is dropped without a message.
                stopped.await.ok();
            });
        });
        opened.recv().expect("the streams are open");
        Subscribers { count, deltas, stop: Some(stop), thread: Some(thread) }
    }

    /// Discards the deltas received so far.
    pub(super) fn discard_received(&self) {
        while self.deltas.try_recv().is_ok() {}
    }

    /// When each received its next delta.
    ///
    /// # Panics
    /// If one receives none within the time.
    pub(super) fn first_deltas(&self, within: Duration) -> Vec<Instant> {
        let deadline = Instant::now() + within;
        let mut times: Vec<Option<Instant>> = vec![None; self.count];
        let mut missing = self.count;
        while missing > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((number, time)) = self.deltas.recv_timeout(left) else {
                panic!("{missing} of {} subscribers got no delta within {within:?}", self.count)
            };
            missing -= usize::from(times[number].is_none());
            times[number].get_or_insert(time);
        }
        times.into_iter().flatten().collect()
    }
}

impl Drop for Subscribers {
    fn drop(&mut self) {
        drop(self.stop.take());
        kit::threads::end(self.thread.take());
    }
}

/// Sends the request, and reads the response head, which arrives with or without the first event.
async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(REQUEST).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    if head.starts_with(b"HTTP/1.0 200") || head.starts_with(b"HTTP/1.1 200") {
        return Ok(stream);
    }
    Err(io::Error::other(String::from_utf8_lossy(&head).into_owned()))
}

async fn read(number: usize, mut stream: TcpStream, deltas: Sender<(usize, Instant)>) {
    let (mut parser, mut events, mut buffer) = (Parser::new(), Vec::new(), vec![0; 16 << 10]);
    // A subscriber that the provider has disconnected gets no delta, which the wait for a delta detects.
    while let Ok(length) = stream.read(&mut buffer).await
        && length > 0
    {
        parser.push(&buffer[..length], &mut events).expect("events of bounded size");
        let now = Instant::now();
        for event in events.drain(..) {
            if event.event == DELTA && deltas.send((number, now)).is_err() {
                return;
            }
        }
    }
}

fn allow_files() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a process's limits");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("as many files as are allowed");
}
