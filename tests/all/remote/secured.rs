//! An agent that reads remote sets over TLS with its service account's token.

use std::path::Path;

use kit::fake_api::IssuedToken;
use kit::two_clusters::HOME;
use tests::certificates::{HttpsClient, TestCa, Validity, mount, mounted};

use super::*;

const URL: &str = "https://127.0.0.1:9471";

fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

fn problem(clusters: &TwoClusters) -> String {
    clusters.agent_status()["remote"]["problem"].as_str().unwrap_or("").to_owned()
}

#[test]
fn agent_follows_remote_sets_over_tls() {
    let clusters = TwoClusters::new();
    let (ca, other) = (TestCa::new("ca"), TestCa::new("other"));
    let folder = clusters.path("tls");
    std::fs::create_dir(&folder).unwrap();
    mount(&folder, "first", &ca.server(Validity::Valid));
    let grant = "remote-sets=user:system:serviceaccount:ringfence:ringfence";
    let arguments = [mounted(&folder), ["--auth-token-review", "--allow", grant].map(str::to_owned).to_vec()].concat();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();

    let _east = clusters.east(&[EastPod::web("web-0", 0)]);
    let mut provider = clusters.provider(&arguments);
    let anyone = HttpsClient::new(&ca);
    provider.until("it is ready", |provider| {
        let answer = clusters.lab.node_exec(HOME, || anyone.get(provider.address(), "/readyz"));
        answer.ok().filter(|(status, _)| *status == 200)
    });

    // As in the manifests, the CA may be missing when the agent starts, which enforces meanwhile.
    let (ca_file, token_file) = (folder.join("ca.crt"), folder.join("token"));
    write(&token_file, "agent");
    let (ca_path, token_path) = (ca_file.display().to_string(), token_file.display().to_string());
    let mut agent = clusters.agent_without_provider(&[
        "--context-url",
        URL,
        "--context-ca-file",
        &ca_path,
        "--context-token-file",
        &token_path,
    ]);
    agent.until_ready();
    agent.until_within(WITHIN, "it misses the CA", |_| problem(&clusters).contains("cannot read").then_some(()));
    write(&ca_file, &other.pem);
    agent.until_within(WITHIN, "it refuses another CA", |_| problem(&clusters).contains("UnknownIssuer").then_some(()));
    write(&ca_file, &ca.pem);
    agent.until_within(WITHIN, "the token is unknown", |_| problem(&clusters).contains("401").then_some(()));
    clusters.home.issue_token("consumer", IssuedToken::of_service_account("ringfence", "other", "ringfence-context"));
    write(&token_file, "consumer");
    agent.until_within(WITHIN, "nothing is granted", |_| problem(&clusters).contains("may not use").then_some(()));
    assert_eq!(clusters.admitted(), NOBODY);

    clusters.home.issue_token("agent", IssuedToken::of_service_account("ringfence", "ringfence", "ringfence-context"));
    write(&token_file, "agent");
    agent.until_within(WITHIN, "the set is in the kernel", |_| (!clusters.in_kernel().is_empty()).then_some(()));
    assert_eq!(clusters.admitted(), [[true; 2], [false; 2], [false; 2], [false; 2]]);
    assert_eq!(problem(&clusters), "");
}
