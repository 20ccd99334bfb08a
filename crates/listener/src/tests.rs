use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Long enough for a request on a busy machine, short enough to wait for its end.
const REQUEST_HEAD: Duration = Duration::from_secs(3);

/// For tests in which no connection may be closed for idleness.
const LONG_REQUEST_HEAD: Duration = Duration::from_secs(600);

const LIFETIME: Duration = Duration::from_millis(900);

/// Interval between two requests of a busy connection.
const BETWEEN_REQUESTS: Duration = Duration::from_millis(50);

/// Timeout of awaited events.
const WITHIN: Duration = Duration::from_secs(60);

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n";

struct Served {
    address: std::net::SocketAddr,
    refused: Arc<AtomicUsize>,
}

impl Served {
    async fn start(connections: usize, request_head: Duration, lifetime: Option<Duration>) -> Served {
        Served::with(ListenerLimits { connections, request_head, lifetime, protocols: Protocols::Http1 }).await
    }

    async fn with(limits: ListenerLimits) -> Served {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, refused) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counted = refused.clone();
        tokio::spawn(async move {
            let refused = || {
                counted.fetch_add(1, Ordering::Relaxed);
            };
            serve(listener, Router::new().route("/", get(async || "ok")), limits, refused).await
        });
        Served { address, refused }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Whether a new connection gets a response.
    async fn answers(&self) -> bool {
        let mut stream = self.connect().await;
        request(&mut stream).await
    }
}

async fn request(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 15];
    stream.write_all(REQUEST).await.is_ok()
        && timeout(WITHIN, stream.read_exact(&mut answer)).await.unwrap().is_ok()
        && answer.starts_with(b"HTTP/1.1 200 OK")
}

/// Waits until the server closes the connection.
async fn until_closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset connection is closed, too.
    if let Err(error) = timeout(WITHIN, stream.read_to_end(&mut rest)).await.expect("the server closes it") {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn connections_above_the_limit_are_refused_and_counted() {
    let served = Served::start(2, LONG_REQUEST_HEAD, None).await;
    let (mut first, mut second) = (served.connect().await, served.connect().await);
    assert!(request(&mut first).await && request(&mut second).await);
    until_closed(&mut served.connect().await).await;
    assert_eq!(served.refused.load(Ordering::Relaxed), 1);
    drop(first);
    let deadline = Instant::now() + WITHIN;
    while !served.answers().await {
        assert!(Instant::now() < deadline, "a connection that has ended makes room");
    }
}

#[tokio::test]
async fn idle_and_dribbling_connections_are_closed() {
    let served = Served::start(8, REQUEST_HEAD, None).await;
    let (mut idle, mut answered, mut slow) = (served.connect().await, served.connect().await, served.connect().await);
    assert!(request(&mut answered).await);
    slow.write_all(b"GET / HT").await.unwrap();
    for stream in [&mut idle, &mut answered, &mut slow] {
        until_closed(stream).await;
    }
    assert!(served.answers().await);
}

/// The preface of HTTP/2 and a frame of SETTINGS, without a request.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[tokio::test]
async fn http2_connection_without_request_is_closed() {
    let served = Served::with(ListenerLimits {
        connections: 8,
        request_head: REQUEST_HEAD,
        lifetime: Some(LONG_REQUEST_HEAD),
        protocols: Protocols::Http1AndHttp2,
    })
    .await;
    let mut idle = served.connect().await;
    idle.write_all(PREFACE).await.unwrap();
    until_closed(&mut idle).await;
    assert!(served.answers().await);
}

#[tokio::test]
async fn busy_connection_ends_with_its_lifetime() {
    let served = Served::start(8, LONG_REQUEST_HEAD, Some(LIFETIME)).await;
    let mut stream = served.connect().await;
    let began = Instant::now();
    while request(&mut stream).await {
        assert!(began.elapsed() < WITHIN, "it ends");
        // Reads the rest of the response.
        let mut rest = [0; 1024];
        if !matches!(timeout(BETWEEN_REQUESTS, stream.read(&mut rest)).await, Ok(Ok(1..)) | Err(_)) {
            break;
        }
    }
    assert!(began.elapsed() >= LIFETIME, "{:?}", began.elapsed());
}
