//! Credentials and CA certificates for the receivers of exports.

use tests::certificates::TestCa;
use tests::tls_server::TlsServer;

use super::*;

#[test]
fn credentials_and_tenant_reach_loki() {
    let (loki, folder, address) = (FakeLoki::start(), TempDir::new().unwrap(), free_port());
    loki.demand_tenant("team-a");
    loki.demand_authorization("Basic cmluZ2ZlbmNlOnM6Y3JldA==");
    let file = folder.path().join("basic");
    fs::write(&file, "ringfence:wrong\n").unwrap();
    let file_text = file.display().to_string();
    let more = ["--loki-tenant", "team-a", "--loki-basic-auth-file", &file_text, "--loki-label", "retention=long"];
    let mut aggregator = spooled(address, &loki, &folder.path().join("spool"), &more);
    let agent = Agent::start("n1", 1, plain(address));
    agent.push(vec![settled("n1", "db", 10, 3)]);
    // A wrong password does not invalidate the batch.
    aggregator.until_within(EXPORTED, "it is refused", |_| loki.statuses().contains_key(&401).then_some(()));
    assert!(aggregator.until_logged(&["status 401", "kept and sent later"]).contains("loki"));
    fs::write(&file, "ringfence:s:cret\n").unwrap();
    until_sum(&mut aggregator, &loki, 3);
    assert_eq!(loki.lines()[0].labels["retention"], "long");
    assert!(!aggregator.log().contains("cret"));
}

#[test]
fn token_reaches_loki_over_trusted_tls_only() {
    let (loki, folder, address) = (FakeLoki::start(), TempDir::new().unwrap(), free_port());
    loki.demand_authorization("Bearer secret");
    let front = TlsServer::in_front_of(folder.path(), &loki.url());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (token, ca, spool) = (path("token"), path("ca.crt"), path("spool"));
    fs::write(&token, "secret\n").unwrap();
    fs::write(&ca, TestCa::new("another").pem).unwrap();
    let arguments = ["--loki-url", &front.url(), "--loki-token-file", &token, "--loki-ca-file", &ca];
    let more = ["--spool-dir", &spool];
    let mut aggregator = Provider::start_aggregator(address, [&arguments[..], &more, &START_DELAY].concat());
    aggregator.until_ready();
    let agent = Agent::start("n1", 1, plain(address));
    agent.push(vec![settled("n1", "db", 10, 3)]);
    aggregator.until_within(EXPORTED, "the server is not trusted", |aggregator| {
        problems(aggregator).contains("certificate").then_some(())
    });
    assert_eq!(loki.requests(), 0, "no request is sent to it");
    // The CA is read again after a failure.
    fs::write(&ca, &front.ca.pem).unwrap();
    until_sum(&mut aggregator, &loki, 3);
    assert_eq!(loki.complaints(), [] as [&str; 0]);
    assert!(!aggregator.log().contains("secret"));
}

#[test]
fn unusable_files_are_refused_at_start() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [missing, empty, text] = ["missing", "empty", "text"].map(path);
    fs::write(&empty, "\n").unwrap();
    fs::write(&text, "neither a certificate nor credentials").unwrap();
    let here = folder.path().display().to_string();
    let (loki, otlp) = (["--loki-url", "http://127.0.0.1:1"], ["--otlp-endpoint", "http://127.0.0.1:1"]);
    let metrics = ["--otlp-metrics-endpoint", "http://127.0.0.1:1"];
    for (receiver, flag, files) in [
        (loki, "--loki-token-file", [&missing, &empty, &here]),
        (loki, "--loki-basic-auth-file", [&missing, &empty, &text]),
        (loki, "--loki-ca-file", [&missing, &empty, &text]),
        (otlp, "--otlp-token-file", [&missing, &empty, &here]),
        (otlp, "--otlp-ca-file", [&missing, &empty, &text]),
        (metrics, "--otlp-metrics-token-file", [&missing, &empty, &here]),
        (metrics, "--otlp-metrics-ca-file", [&missing, &empty, &text]),
    ] {
        for file in files {
            let error = refused(&[&receiver[..], &[flag, file]].concat());
            assert!(error.contains("choose a file with") && error.contains(flag), "{error}");
            assert!(error.contains(file), "{error}");
        }
    }
    for file in [&here, &path("missing/flows.jsonl"), &path("text/flows.jsonl")] {
        let error = refused(&["--export-file", file]);
        assert!(
            error.contains(file) && error.contains("choose a file in an existing folder with --export-file"),
            "{error}"
        );
    }
    let plain = refused(&["--loki-url", "http://loki:3100", "--loki-token-file", &missing]);
    assert!(plain.contains("credentials would be sent without TLS"), "{plain}");
    assert!(refused(&["--export-file", &path("flows.jsonl")]).contains("cannot listen on"));
}
