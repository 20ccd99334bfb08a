//! A server with TLS on the loopback, with its own CA for both ends.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use listener::tls::{HandshakeLimits, TlsFiles};
use listener::{ListenerLimits, Protocols};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::certificates::{TestCa, Validity, mount};

const LIMITS: ListenerLimits = ListenerLimits {
    connections: 8,
    request_head: Duration::from_secs(10),
    lifetime: None,
    protocols: Protocols::Http1AndHttp2,
};

/// Largest request that is forwarded.
const BODY_BYTES: usize = 8 << 20;

/// The server. It stops on drop.
pub struct TlsServer {
    pub address: SocketAddr,
    /// Issuer of the server's certificate, and of those that clients may show.
    pub ca: TestCa,
    _runtime: Runtime,
}

impl TlsServer {
    /// Serves routes. The certificate is in a new folder below `folder`.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn start(folder: &Path, routes: Router) -> TlsServer {
        let ca = TestCa::new("server");
        let folder = folder.join("tls-server");
        std::fs::create_dir(&folder).expect("a folder of ours");
        mount(&folder, "1", &ca.server(Validity::Valid));
        std::fs::write(folder.join("ca.crt"), &ca.pem).expect("a folder of ours");
        let files = TlsFiles {
            certificate: folder.join("data/tls.crt"),
            key: folder.join("data/tls.key"),
            client_ca: Some(folder.join("ca.crt")),
            protocols: LIMITS.protocols,
        };
        let (configs, _, _) = files.load().expect("a certificate");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port of the loopback");
        let address = listener.local_addr().expect("a bound socket");
        let limits = (LIMITS, HandshakeLimits::of_connections(LIMITS.connections));
        runtime.spawn(async move { listener::tls::serve(listener, routes, limits, configs, Arc::new(|_| {})).await });
        TlsServer { address, ca, _runtime: runtime }
    }

    /// Forwards requests to a server without TLS, and its answers.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn in_front_of(folder: &Path, url: &str) -> TlsServer {
        feed::install_tls_provider();
        let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().expect("a client");
        let url = url.to_owned();
        let forward = move |request: Request| forward(client.clone(), url.clone(), request);
        TlsServer::start(folder, Router::new().fallback(forward))
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }
}

async fn forward(client: reqwest::Client, url: String, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, BODY_BYTES).await.expect("a body within its bound");
    // The URI of HTTP/2 has scheme and host.
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let sent = client.request(head.method, format!("{url}{path}")).headers(head.headers).body(body).send().await;
    let answer = |status: StatusCode, body: Body| {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        response
    };
    match sent {
        Ok(response) => answer(response.status(), Body::from(response.bytes().await.unwrap_or_default())),
        Err(error) => answer(StatusCode::BAD_GATEWAY, Body::from(error.to_string())),
    }
}
