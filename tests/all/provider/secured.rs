//! The port over TLS: authentication, authorization, and rotation of certificates and tokens.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use feed::Access;
use feed::client::FeedSource;
use kit::agent_process::{ProgramExit, until};
use kit::fake_api::Kind;
use kit::fake_api::{FakeApi, IssuedToken};
use kit::provider_process::{Provider, free_port, run};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::certificates::{HttpsClient, TestCa, Validity, mount, mounted};

use super::follower::Follower;
use super::table::FollowedTable;
use super::{IDENTITY, namespace, pod};

const AUDIENCE: &str = "ringfence-context";

/// A provider of a cluster with one pod, with a certificate of a test CA.
struct Stage {
    api: FakeApi,
    ca: TestCa,
    folder: TempDir,
    address: SocketAddr,
}

impl Stage {
    fn new() -> Stage {
        let stage = Stage {
            api: FakeApi::start(),
            ca: TestCa::new("ca"),
            folder: TempDir::new().unwrap(),
            address: free_port(),
        };
        stage.api.set(Kind::Namespace, namespace("kube-system", json!({})));
        stage.api.set(Kind::Namespace, namespace("shop", json!({})));
        stage.api.set(Kind::Pod, pod("shop", "web-1", "web", &["10.0.0.1"]));
        mount(stage.folder.path(), "first", &stage.ca.server(Validity::Valid));
        stage
    }

    fn client(&self) -> HttpsClient {
        HttpsClient::new(&self.ca)
    }

    /// A client with a token of this name, issued to a service account.
    fn account(&self, token: &str, namespace: &str, name: &str) -> HttpsClient {
        self.api.issue_token(token, IssuedToken::of_service_account(namespace, name, AUDIENCE));
        self.client().with_token(token)
    }

    /// Starts the provider with TLS, and waits until it is ready.
    fn start(&self, more: &[&str]) -> Provider {
        let kubeconfig = self.api.kubeconfig().display().to_string();
        let mut arguments = vec!["--kubeconfig".to_owned(), kubeconfig];
        arguments.extend(mounted(self.folder.path()));
        arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
        let mut provider = Provider::start(self.address, arguments);
        let client = self.client();
        provider.until("it is ready", |provider| {
            client.get(provider.address(), "/readyz").ok().filter(|(status, _)| *status == 200)
        });
        provider
    }

    fn get(&self, client: &HttpsClient, path: &str) -> (u16, String) {
        client.get(self.address, path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn port_status(&self, client: &HttpsClient) -> Value {
        let (code, status) = self.get(client, "/status");
        assert_eq!(code, 200, "{status}");
        serde_json::from_str::<Value>(&status).unwrap()["port"].clone()
    }

    /// The value of a sample, by its full name with labels.
    fn metric(&self, client: &HttpsClient, sample: &str) -> f64 {
        let (code, text) = self.get(client, "/metrics");
        assert_eq!(code, 200, "{text}");
        let value = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {sample} in\n{text}")).parse().unwrap()
    }

    fn follow(&self, client: &HttpsClient, name: &str) -> Follower {
        let folder = self.folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let (ca, token) = client.files(&folder);
        let token_file = client.token.as_ref().map(|_| token);
        let mut source = FeedSource::new(vec![format!("https://{}", self.address).parse().unwrap()], IDENTITY);
        source.access = Access { token_file, ca_file: Some(ca) };
        Follower::of(source, IDENTITY)
    }
}

fn is_followed(follower: &Follower) -> bool {
    follower.seen().table != FollowedTable::empty(IDENTITY)
}

fn until_lost(follower: &Follower, words: &[&str]) {
    until(&format!("the feed is lost because of {words:?}"), || {
        let lost = follower.seen().lost;
        lost.iter().any(|why| words.iter().all(|word| why.contains(word))).then_some(())
    });
}

#[test]
fn tokens_are_reviewed_and_grants_apply() {
    let stage = Stage::new();
    let provider =
        stage.start(&["--auth-token-review", "--allow", "metrics=user:system:serviceaccount:monitoring:prometheus"]);
    let own = stage.account("own", "ringfence", "consumer");
    let prometheus = stage.account("scrape", "monitoring", "prometheus");
    stage.api.issue_token("elsewhere", IssuedToken::of_service_account("ringfence", "consumer", "vault"));
    for path in ["/healthz", "/readyz"] {
        assert_eq!(stage.get(&stage.client(), path).0, 200, "{path}");
    }
    for path in ["/identity/version", "/identity/deltas", "/policy-edges/download", "/metrics", "/status"] {
        assert_eq!(stage.get(&stage.client(), path).0, 401, "{path} without a token");
        assert_eq!(stage.get(&stage.client().with_token("made-up"), path).0, 401, "{path}");
        assert_eq!(stage.get(&stage.client().with_token("elsewhere"), path).0, 401, "{path} for another audience");
    }
    for path in ["/identity/version", "/identity/download", "/policy-edges/download?part=extended", "/status"] {
        assert_eq!(stage.get(&own, path).0, 200, "{path}");
        let (code, message) = stage.get(&prometheus, path);
        assert!(code == 403 && message.contains("prometheus' may not use") && message.contains("--allow"), "{message}");
    }
    assert_eq!((stage.get(&own, "/metrics").0, stage.get(&prometheus, "/metrics").0), (403, 200));
    assert_eq!((stage.get(&own, "/nowhere/version").0, stage.get(&stage.client(), "/").0), (404, 404));

    let reviews = stage.api.token_reviews();
    for _ in 0..10 {
        assert_eq!(stage.get(&own, "/identity/version").0, 200);
    }
    assert_eq!(stage.api.token_reviews(), reviews, "decisions are cached");
    assert_eq!(stage.port_status(&own)["authentication"], json!(["tokens"]));
    assert!(stage.metric(&prometheus, "ringfence_context_denied_requests_total{reason=\"forbidden\"}") >= 5.0);
    assert!(stage.metric(&prometheus, "ringfence_context_token_reviews_total{result=\"rejected\"}") >= 2.0);
    assert_eq!(stage.metric(&prometheus, "ringfence_context_cached_tokens"), 2.0);
    assert!(!provider.log().contains("made-up"), "tokens are in no log");
}

#[test]
fn revoked_token_ends_open_streams() {
    let stage = Stage::new();
    let _provider = stage.start(&["--auth-token-review", "--auth-token-cache-ttl", "1s"]);
    let (own, other) = (stage.account("own", "ringfence", "agent"), stage.account("other", "ringfence", "other"));
    let follower = stage.follow(&own, "own");
    until("it is followed", || is_followed(&follower).then_some(()));
    stage.api.revoke_token("own");
    until_lost(&follower, &["closed the stream"]);
    until_lost(&follower, &["returned 401"]);
    assert_eq!(stage.metric(&other, "ringfence_context_revoked_streams_total"), 1.0);
}

#[test]
fn new_tokens_wait_for_the_api_server() {
    let stage = Stage::new();
    let _provider = stage.start(&["--auth-token-review", "--auth-token-cache-ttl", "5s"]);
    let (known, fresh) = (stage.account("known", "ringfence", "a"), stage.account("fresh", "ringfence", "b"));
    assert_eq!(stage.get(&known, "/identity/version").0, 200);
    let follower = stage.follow(&known, "known");
    until("it is followed", || is_followed(&follower).then_some(()));
    let accepted = Instant::now();
    stage.api.faults(|faults| faults.token_review_refusal = Some(500));
    let (code, message) = stage.get(&fresh, "/identity/version");
    assert!(code == 503 && message.contains("cannot authenticate at present"), "{code} {message}");
    if accepted.elapsed() < Duration::from_secs(2) {
        assert_eq!(stage.get(&known, "/identity/version").0, 200, "a cached decision counts");
    }
    until("the decision expires", || (stage.get(&known, "/identity/version").0 == 503).then_some(()));
    assert_eq!(follower.seen().lost, Vec::<String>::new(), "an open stream continues");
    stage.api.faults(|faults| faults.token_review_refusal = None);
    assert_eq!(stage.get(&fresh, "/identity/version").0, 200);
    assert_eq!(stage.port_status(&fresh).get("tokenReviewFailure"), None);
}

#[test]
fn client_certificates_authenticate_users_and_groups() {
    let stage = Stage::new();
    let clients = TestCa::new("clients");
    let client_ca = stage.folder.path().join("clients.pem");
    std::fs::write(&client_ca, &clients.pem).unwrap();
    let _provider = stage.start(&[
        "--client-ca",
        client_ca.to_str().unwrap(),
        "--allow",
        "metrics=user:scraper,identity=group:readers,status=group:readers",
    ]);
    let valid =
        |user: &str, groups: &[&str]| stage.client().with_certificate(clients.client(user, groups, Validity::Valid));
    let (scraper, reader) = (valid("scraper", &[]), valid("someone", &["readers"]));
    assert_eq!((stage.get(&scraper, "/metrics").0, stage.get(&scraper, "/identity/version").0), (200, 403));
    assert_eq!((stage.get(&reader, "/metrics").0, stage.get(&reader, "/identity/version").0), (403, 200));
    assert_eq!(stage.get(&stage.client(), "/metrics").0, 401);
    assert_eq!(stage.get(&stage.client(), "/readyz").0, 200);
    assert_eq!(stage.port_status(&reader)["authentication"], json!(["certificates"]));
    for refused in [
        TestCa::new("clients").client("scraper", &[], Validity::Valid),
        clients.client("scraper", &[], Validity::Expired),
        clients.server(Validity::Valid),
    ] {
        let answer = stage.client().with_certificate(refused).get(stage.address, "/metrics");
        assert!(answer.is_err(), "{answer:?}");
    }
    let failed = "ringfence_context_refused_handshakes_total{reason=\"failed\"}";
    until("failed handshakes are counted", || (stage.metric(&scraper, failed) >= 3.0).then_some(()));
}

#[test]
fn rotated_certificate_keeps_streams_open() {
    let stage = Stage::new();
    let mut provider = stage.start(&[]);
    let client = stage.client();
    let follower = stage.follow(&client, "follower");
    until("it is followed", || is_followed(&follower).then_some(()));
    let next = TestCa::new("next");
    mount(stage.folder.path(), "second", &next.server(Validity::Valid));
    let of_next = HttpsClient::new(&next);
    until("the new certificate is served", || of_next.get(stage.address, "/readyz").ok());
    let refused = client.get(stage.address, "/readyz");
    assert!(refused.as_ref().is_err_and(|error| error.contains("UnknownIssuer")), "{refused:?}");
    stage.api.set(Kind::Pod, pod("shop", "web-2", "web", &["10.0.0.2"]));
    until("a delta comes over the open stream", || (follower.seen().deltas > 0).then_some(()));
    assert_eq!(follower.seen().lost, Vec::<String>::new());

    // A follower also reloads its CA file.
    let folder = stage.folder.path().join("follower");
    provider = restarted(provider, &stage, &of_next);
    until_lost(&follower, &["UnknownIssuer"]);
    let before = follower.seen().baselines;
    of_next.files(&folder);
    until("it follows with the new CA", || (follower.seen().baselines > before).then_some(()));
    drop(provider);
}

fn restarted(provider: Provider, stage: &Stage, client: &HttpsClient) -> Provider {
    provider.kill();
    let kubeconfig = stage.api.kubeconfig().display().to_string();
    let arguments = ["--kubeconfig".to_owned(), kubeconfig].into_iter().chain(mounted(stage.folder.path()));
    let mut provider = Provider::start(stage.address, arguments);
    provider.until("it is ready", |provider| {
        client.get(provider.address(), "/readyz").ok().filter(|(status, _)| *status == 200)
    });
    provider
}

#[test]
fn unusable_new_certificate_is_reported() {
    let stage = Stage::new();
    let mut provider = stage.start(&[]);
    let client = stage.client();
    let mut mixed = stage.ca.server(Validity::Valid);
    mixed.key = stage.ca.server(Validity::Valid).key;
    mount(stage.folder.path(), "mixed", &mixed);
    provider.until_logged(&["ERROR", "cannot be used", "the previous certificate stays in use"]);
    let port = stage.port_status(&client);
    assert!(port["tls"]["failure"].as_str().unwrap().contains("cannot be used"), "{port}");
    assert!(port["tls"]["certificateExpires"].as_str().unwrap().starts_with("2100-01-01T"), "{port}");
    for (sample, value) in [("tls_reload_failing", 1.0), ("tls_reload_failures_total", 1.0), ("tls_reloads_total", 0.0)]
    {
        assert_eq!(stage.metric(&client, &format!("ringfence_context_{sample}")), value, "{sample}");
    }
    let expiry = stage.metric(&client, "ringfence_context_tls_certificate_expiry_timestamp_seconds");
    assert_eq!(expiry, 4_102_444_800.0);
    mount(stage.folder.path(), "good", &stage.ca.server(Validity::Valid));
    until("it recovers", || (stage.metric(&client, "ringfence_context_tls_reloads_total") == 1.0).then_some(()));
    assert_eq!(stage.metric(&client, "ringfence_context_tls_reload_failing"), 0.0);
}

#[test]
fn followers_refuse_wrong_and_expired_certificates() {
    let stage = Stage::new();
    let provider = stage.start(&[]);
    let stranger = stage.follow(&HttpsClient::new(&TestCa::new("other")), "stranger");
    until_lost(&stranger, &["UnknownIssuer"]);
    provider.kill();
    mount(stage.folder.path(), "expired", &stage.ca.server(Validity::Expired));
    let kubeconfig = stage.api.kubeconfig().display().to_string();
    let arguments = ["--kubeconfig".to_owned(), kubeconfig].into_iter().chain(mounted(stage.folder.path()));
    let _provider = Provider::start(stage.address, arguments);
    let follower = stage.follow(&stage.client(), "follower");
    until_lost(&follower, &["xpired"]);
    assert!(!is_followed(&stranger) && !is_followed(&follower));
}

#[test]
fn idle_handshakes_do_not_stop_consumers() {
    let stage = Stage::new();
    let _provider = stage.start(&[]);
    let idle: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(stage.address).unwrap()).collect();
    let client = stage.client();
    for _ in 0..5 {
        assert_eq!(stage.get(&client, "/identity/version").0, 200);
    }
    let ended = || {
        let of = |reason: &str| format!("ringfence_context_refused_handshakes_total{{reason=\"{reason}\"}}");
        stage.metric(&client, &of("timed-out")) + stage.metric(&client, &of("evicted"))
    };
    until("idle handshakes end", || (ended() >= 400.0).then_some(()));
    drop(idle);
}

#[test]
fn consumers_read_over_tls_with_a_token() {
    let stage = Stage::new();
    let _provider = stage.start(&["--auth-token-review"]);
    let own = stage.account("own", "ringfence", "consumer");
    let (ca, token) = own.files(stage.folder.path());
    let (ca, token) = (ca.display().to_string(), token.display().to_string());
    let from = format!("https://{}", stage.address);
    let lookup = |more: &[&str]| run([&["lookup", "10.0.0.1", "--from", &from], more].concat());
    let ProgramExit { code, stdout, stderr } = lookup(&["--ca-file", &ca, "--token-file", &token]);
    assert!(code == Some(0) && stdout.contains("shop/web"), "{stdout}{stderr}");
    for (more, says) in [
        (&["--ca-file", &ca][..], "401"),
        (&["--token-file", &token][..], "cannot connect"),
        (&["--ca-file", "/nowhere"][..], "/nowhere"),
    ] {
        let ProgramExit { code, stderr, .. } = lookup(more);
        assert!(code == Some(2) && stderr.contains(says), "{more:?}: {stderr}");
    }
    let plain = run(["lookup", "10.0.0.1", "--from", "http://192.0.2.1:9471", "--token-file", &token]);
    assert!(plain.code == Some(2) && plain.stderr.contains("without TLS"), "{plain:?}");
}

#[test]
fn exposed_port_without_protection_warns() {
    let shop = format!("{}/../examples/shop", env!("CARGO_MANIFEST_DIR"));
    let everywhere = SocketAddr::new("0.0.0.0".parse().unwrap(), free_port().port());
    let mut provider = Provider::start(everywhere, ["--manifests", &shop]);
    provider.until_ready();
    provider.until_logged(&["WARN", "without TLS"]);
    provider.until_logged(&["WARN", "without authentication"]);
    let port = provider.try_status().unwrap()["port"].clone();
    assert_eq!(port["warnings"].as_array().map(Vec::len), Some(2), "{port}");
    let mut local = Provider::start(free_port(), ["--manifests", &shop]);
    local.until_ready();
    assert_eq!(local.try_status().unwrap()["port"], json!({"authentication": [], "warnings": []}));
    assert!(!local.log().contains("WARN"), "{}", local.log());
}

#[test]
fn contradicting_flags_are_refused() {
    let stage = Stage::new();
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| stage.folder.path().join("data").join(name));
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    for (arguments, says) in [
        (&["--tls-cert", certificate][..], "--tls-key"),
        (&["--client-ca", certificate][..], "--tls-cert"),
        (&["--allow", "metrics=user:x"][..], "--allow needs"),
        (&["--tls-cert", key, "--tls-key", certificate][..], "tls.key"),
        (&["--tls-cert", "/nowhere", "--tls-key", key][..], "/nowhere"),
        (&["--auth-token-review", "--auth-token-cache-ttl", "1h"][..], "10m"),
        (&["--auth-token-review", "--allow", "metric=user:x"][..], "remote-sets"),
    ] {
        let kubeconfig = stage.api.kubeconfig().display().to_string();
        let serve = ["serve", "--listen", "127.0.0.1:0", "--kubeconfig", &kubeconfig];
        let ProgramExit { code, stderr, .. } = run([&serve[..], arguments].concat());
        assert!(code == Some(2) && stderr.contains(says), "{arguments:?}: {code:?} {stderr}");
    }
    let folder = run(["serve", "--manifests", stage.folder.path().to_str().unwrap(), "--auth-token-review"]);
    assert!(folder.code == Some(2) && folder.stderr.contains("needs a cluster"), "{folder:?}");
}
