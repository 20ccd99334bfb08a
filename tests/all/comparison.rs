//! `suggest` and `what-if`, from the aggregator, from Loki and on the page.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use generator::flows::{GeneratedCluster, NODES, pod_of_deployment};
use jiff::{SignedDuration, Timestamp};
use kit::agent_process::{ProgramExit, built, ended, ringfence};
use kit::fake_agent::{Agent, plain};
use kit::fake_loki::FakeLoki;
use kit::provider_process::{Provider, free_port};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::chromium::Tab;

/// Workloads of the generated shop; the number of the address is the place in this list.
const WORKLOADS: [(&str, &str); 9] = [
    ("shop", "web"),
    ("shop", "checkout"),
    ("shop", "api"),
    ("shop", "worker"),
    ("data", "db"),
    ("data", "cache"),
    ("data", "backup"),
    ("ops", "prometheus"),
    ("ops", "debug"),
];

/// Windows become final every 15 s, and the aggregator waits for its agents.
const EXPORTED: Duration = Duration::from_secs(100);

const DENY_API: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: api}
spec:
  podSelector: {matchLabels: {app: api}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 9090}]
"#;

/// The pods of the generated shop, as `kubectl get --output json` prints them, with a policy.
fn manifests() -> TempDir {
    let pod = |(number, (namespace, name)): (usize, &(&str, &str))| {
        pod_of_deployment(namespace, name, NODES[number % 2], IpAddr::from([10, 0, 0, number as u8 + 1]))
    };
    let mut items: Vec<Value> = WORKLOADS.iter().enumerate().map(pod).collect();
    items.push(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "web-only"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], "ingress": [{}]},
    }));
    items.push(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "api"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "api"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"namespaceSelector": {}}]}],
        },
    }));
    let folder = TempDir::new().unwrap();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    std::fs::write(folder.path().join("cluster.json"), list.to_string()).unwrap();
    folder
}

struct Served {
    aggregator: Provider,
    _agents: Vec<Agent>,
    page: SocketAddr,
}

fn serve(more: &[&str]) -> Served {
    let (address, page) = (free_port(), free_port());
    let page_address = page.to_string();
    let arguments = [&["--ui-listen", &page_address], more].concat();
    let mut aggregator = Provider::start_aggregator(address, arguments);
    aggregator.until_ready();
    let cluster = GeneratedCluster::shop();
    let current = Timestamp::now().as_second() / 15 * 15;
    let agents = NODES.map(|node| {
        let agent = Agent::start(node, 1, plain(address));
        for window in [current - 90, current - 75] {
            agent.push(cluster.records(node, Timestamp::from_second(window).unwrap()));
        }
        agent.until_acknowledged();
        agent
    });
    Served { aggregator, _agents: agents.into(), page }
}

fn verb(arguments: &[&str]) -> ProgramExit {
    let mut command: Command = ringfence();
    ended(command.args(arguments))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn suggestion_and_what_if_compare_records_with_policies() {
    let folder = manifests();
    let served = serve(&["--watch-policies", "on", "--manifests", text(folder.path())]);
    let url = served.aggregator.url();
    let here = ["--server", &url, "--manifests", text(folder.path())];
    let there = ["--server", &url];

    // The aggregator and the client compare the same.
    let suggest = ["suggest", "--namespace", "shop", "--output", "json"];
    let [local, remote] = [&here[..], &there[..]].map(|source| verb(&[&suggest, source].concat()));
    assert_eq!((local.code, remote.code), (Some(0), Some(0)), "{} {}", local.stderr, remote.stderr);
    assert_eq!(local.stdout, remote.stdout);
    let report: Value = serde_json::from_str(&remote.stdout).unwrap();
    let names: Vec<&str> =
        report["policies"].as_array().unwrap().iter().map(|policy| policy["name"].as_str().unwrap()).collect();
    let all = ["api", "checkout", "web", "worker"].map(|name| format!("ringfence-suggested-{name}"));
    assert_eq!(names, all);
    let api = &report["policies"][0]["policy"]["spec"];
    assert_eq!(api["podSelector"], json!({"matchLabels": {"app": "api"}}));
    assert_eq!(report["policies"][2]["existing"], "shop/web-only");

    let yaml = verb(&[&["suggest", "--namespace", "shop", "--direction", "egress", "--audit"], &there[..]].concat());
    assert!(yaml.stdout.contains("ringfence.io/enforcement: audit"), "{}", yaml.stdout);
    assert!(!yaml.stdout.contains("ingress:"), "{}", yaml.stdout);
    let diff = verb(&[&["suggest", "--namespace", "shop", "--output", "diff"], &there[..]].concat());
    assert!(diff.stdout.contains("--- shop/web-only\n+++ shop/ringfence-suggested-web\n"), "{}", diff.stdout);

    // The suggestion is applied without denying what was seen.
    let file = folder.path().join("suggested.yaml.txt");
    std::fs::write(&file, verb(&[&["suggest", "--namespace", "shop"], &there[..]].concat()).stdout).unwrap();
    let applied = verb(&[&["what-if", "--filename", text(&file)], &there[..]].concat());
    assert_eq!(applied.code, Some(0), "{}{}", applied.stdout, applied.stderr);
    assert!(applied.stdout.contains("decided by another rule"), "{}", applied.stdout);

    std::fs::write(&file, DENY_API).unwrap();
    let [local, remote] =
        [&here[..], &there[..]].map(|source| verb(&[&["what-if", "--filename", text(&file)], source].concat()));
    assert_eq!((local.code, remote.code), (Some(1), Some(1)), "{} {}", local.stderr, remote.stderr);
    for shown in [&local.stdout, &remote.stdout] {
        for words in [
            "NetworkPolicy shop/api would be changed",
            "newly denied  shop/checkout -> shop/api 9091/tcp",
            "newly denied  ops/prometheus -> shop/api",
            "ingress then: denied",
        ] {
            assert!(shown.contains(words), "{words} is missing in {shown}");
        }
    }
    let deleted = verb(&[&["what-if", "--delete", "networkpolicy/shop/web-only"], &there[..]].concat());
    assert_eq!(deleted.code, Some(0), "{}", deleted.stderr);
    assert!(deleted.stdout.contains("NetworkPolicy shop/web-only would be deleted"), "{}", deleted.stdout);
    for (strict, code) in [(&[][..], 0), (&["--strict"], 1)] {
        let missing = verb(&[&["what-if", "--delete", "networkpolicy/shop/none"], strict, &there[..]].concat());
        assert_eq!(missing.code, Some(code), "{}", missing.stderr);
        assert!(missing.stdout.contains("NetworkPolicy shop/none does not exist"), "{}", missing.stdout);
    }

    let unusable = [
        ("kind: Pod\napiVersion: v1\nmetadata: {name: a}\n", "unsupported kind Pod"),
        ("a: [", "line"),
        ("# nothing\n", "has no policies"),
    ];
    for (text, message) in unusable {
        std::fs::write(&file, text).unwrap();
        let refused = verb(&[&["what-if", "--filename", file.to_str().unwrap()], &there[..]].concat());
        assert_eq!(refused.code, Some(2), "{}", refused.stdout);
        assert!(refused.stderr.contains(message), "{}", refused.stderr);
    }
}

#[test]
fn manifests_without_pods_are_refused() {
    let folder = TempDir::new().unwrap();
    let policy = folder.path().join("api.yaml");
    std::fs::write(&policy, DENY_API).unwrap();
    let served = serve(&[]);
    let url = served.aggregator.url();
    let source = ["--server", &url, "--manifests", text(folder.path())];
    for question in [&["suggest", "--namespace", "shop"][..], &["what-if", "--filename", text(&policy)]] {
        let refused = verb(&[question, &source].concat());
        assert_eq!(refused.code, Some(2), "{}", refused.stdout);
        assert!(refused.stderr.contains("no pods in"), "{}", refused.stderr);
    }
}

#[test]
fn suggestion_for_unknown_namespace_fails() {
    let folder = manifests();
    let served = serve(&["--watch-policies", "on", "--manifests", text(folder.path())]);
    let url = served.aggregator.url();
    let here = ["--server", &url, "--manifests", text(folder.path())];
    let there = ["--server", &url];
    for source in [&here[..], &there[..]] {
        let refused = verb(&[&["suggest", "--namespace", "shop", "--namespace", "shpo"], source].concat());
        assert_eq!((refused.code, &*refused.stdout), (Some(2), ""), "{}", refused.stderr);
        assert!(refused.stderr.contains("unknown namespace 'shpo'"), "{}", refused.stderr);
        assert!(refused.stderr.contains("--all-namespaces (-A)"), "{}", refused.stderr);
        let all = verb(&[&["suggest", "-A", "--exclude-namespace", "data"], source].concat());
        assert_eq!(all.code, Some(0), "{}", all.stderr);
        assert!(all.stdout.contains("namespace: ops") && !all.stdout.contains("namespace: data\n"), "{}", all.stdout);
    }
    for name in ["Shop", "shop/web", "-shop", "", &"a".repeat(64)] {
        let namespace = format!("--namespace={name}");
        let invalid = verb(&["suggest", &namespace, "--server", &url]);
        assert_eq!(invalid.code, Some(2), "{name}: {}", invalid.stdout);
        assert!(invalid.stderr.contains("expected the name of a namespace"), "{}", invalid.stderr);
    }
    // Loki does not answer: the message names the server and the path, and not the query.
    let loki = format!("http://{}", free_port());
    let away = verb(&["suggest", "--namespace", "shop", "--loki", &loki, "--manifests", text(folder.path())]);
    assert_eq!(away.code, Some(2), "{}", away.stdout);
    let message = format!("cannot query Loki at {loki}/loki/api/v1/query_range: ");
    assert!(away.stderr.contains(&message) && !away.stderr.contains("query="), "{}", away.stderr);
}

#[test]
fn suggestion_reads_trail_from_loki() {
    let (folder, spool, loki) = (manifests(), TempDir::new().unwrap(), FakeLoki::start());
    let url = loki.url();
    loki.demand_authorization("Basic cmluZ2ZlbmNlOnM6Y3JldA==");
    let credentials = spool.path().join("basic");
    std::fs::write(&credentials, "ringfence:s:cret\n").unwrap();
    let basic_auth = ["--loki-basic-auth-file", text(&credentials)];
    let export = ["--loki-url", &url, "--export-start-delay", "1s", "--spool-dir", text(spool.path())];
    let mut served = serve(&[&export[..], &basic_auth].concat());
    let lines = served.aggregator.until_within(EXPORTED, "the trail has both windows", |_| {
        let times: BTreeSet<i128> = loki.lines().iter().map(|line| line.time).collect();
        (times.len() == 2).then(|| loki.lines().len())
    });
    let passed = loki.lines().iter().filter(|line| line.labels["verdict"] != "denied").count();
    assert!(passed < lines);
    // Fewer lines at once than there are, and more than of one window.
    let limit = (passed - 1).to_string();
    let arguments = ["suggest", "--namespace", "shop", "--loki", &url, "--manifests", text(folder.path())];
    let refused = verb(&arguments);
    assert!(refused.code == Some(2) && refused.stderr.contains("401"), "{}", refused.stderr);
    let arguments = [&arguments[..], &basic_auth].concat();
    let suggested = verb(&[&arguments[..], &["--loki-limit", &limit]].concat());
    assert_eq!(suggested.code, Some(0), "{}", suggested.stderr);
    assert!(suggested.stdout.contains("name: ringfence-suggested-api"), "{}", suggested.stdout);
    assert!(suggested.stderr.contains("lines from Loki, up to"), "{}", suggested.stderr);
    let crowded = verb(&[&arguments[..], &["--loki-limit", "2"]].concat());
    assert_eq!(crowded.code, Some(2), "{}", crowded.stdout);
    assert!(crowded.stderr.contains("raise --loki-limit"), "{}", crowded.stderr);

    loki.age(SignedDuration::from_hours(24 * 10));
    let older = verb(&[&arguments[..], &["--days", "30"]].concat());
    assert!(older.stdout.contains("name: ringfence-suggested-api"), "{}", older.stderr);
    let recent = verb(&arguments);
    assert!(recent.code == Some(0) && !recent.stdout.contains("kind: NetworkPolicy"), "{}", recent.stdout);
    assert!(recent.stderr.contains("was seen in 7 days"), "{}", recent.stderr);
    assert_eq!(loki.complaints(), [] as [String; 0]);
}

#[test]
fn page_compares_policies_and_shows_suggestion() {
    let folder = manifests();
    let served = serve(&["--watch-policies", "on", "--manifests", text(folder.path())]);
    let url = |rest: &str| format!("http://{}/{rest}", served.page);
    let mut tab = Tab::open(1440, 900);
    let is_loaded =
        "document.documentElement?.dataset.busy === 'false' && document.documentElement.dataset.screen !== ''";
    tab.load(&url("?screen=whatif&pause"));
    tab.until(is_loaded);
    let given = serde_json::to_string(DENY_API).unwrap();
    tab.evaluate(&format!(
        "document.getElementById('policies').value = {given}; document.querySelector('[data-key=compare]').click()"
    ));
    tab.until("document.querySelector('.summary') !== null");
    let shown = tab.evaluate("document.body.innerText").as_str().unwrap().to_owned();
    for words in
        ["NetworkPolicy shop/api would be changed", "newly denied", "shop/checkout → shop/api", "9091/tcp", "unchanged"]
    {
        assert!(shown.contains(words), "{words} is missing in:\n{shown}");
    }
    tab.evaluate(
        "document.getElementById('policies').value = 'a: ['; document.querySelector('[data-key=compare]').click()",
    );
    tab.until("document.querySelector('.problem')?.innerText.includes('line') === true");

    tab.load(&url("?screen=audit&pause&suggest=shop"));
    tab.until(is_loaded);
    tab.until("document.querySelectorAll('.difference').length === 4");
    let shown = tab.evaluate("document.body.innerText").as_str().unwrap().to_owned();
    for words in ["shop/ringfence-suggested-api", "Compared with shop/web-only", "| kubectl apply -f -"] {
        assert!(shown.contains(words), "{words} is missing in:\n{shown}");
    }
    // Chromium reports the status of the refused policy, and nothing else.
    let problems: Vec<Value> = tab.problems().iter().map(|problem| serde_json::from_str(problem).unwrap()).collect();
    let [refused] = &*problems else { panic!("{problems:#?}") };
    let entry = &refused["params"]["entry"];
    assert_eq!((&refused["method"], &entry["url"]), (&"Log.entryAdded".into(), &url("v1/what-if?").into()));
    assert!(entry["text"].as_str().unwrap().contains("status of 400"), "{refused:#}");
    let foreign: Vec<String> = tab.requests().into_iter().filter(|request| !request.starts_with(&url(""))).collect();
    assert_eq!(foreign, [] as [String; 0]);
}

/// Moves an edge of the ledger back in the state file of an aggregator that has ended.
fn age_edge(state: &Path, (source, destination): (&str, &str), days: i64) {
    let file = state.join("edges.json");
    let mut saved: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let edges = saved["state"]["ledger"]["edges"].as_array_mut().unwrap();
    let is_it = |edge: &&mut Value| {
        (&edge["source"]["name"], &edge["destination"]["name"]) == (&source.into(), &destination.into())
    };
    let edge = edges.iter_mut().find(is_it).unwrap();
    for field in ["first", "last", "lastPassed"] {
        let time: Timestamp = edge[field].as_str().unwrap().parse().unwrap();
        edge[field] = (time - SignedDuration::from_hours(24 * days)).to_string().into();
    }
    std::fs::write(file, saved.to_string()).unwrap();
}

/// An edge that was last seen ten days ago, at the aggregator and from its ledger.
#[test]
fn days_leave_out_older_edges() {
    let (folder, state) = (manifests(), TempDir::new().unwrap());
    let arguments = ["--edges", "on", "--state-dir", text(state.path()), "--watch-policies", "on", "--manifests"];
    let arguments = [&arguments[..], &[text(folder.path())]].concat();
    let mut served = serve(&arguments);
    let observed = |aggregator: &Provider| aggregator.try_json("/v1/edges").unwrap()["counts"]["edges"].as_u64();
    served
        .aggregator
        .until_within(EXPORTED, "edges are kept", |aggregator| (observed(aggregator) == Some(13)).then_some(()));
    let Served { aggregator, _agents, page: _ } = served;
    drop(_agents);
    let (status, log) = aggregator.stop();
    assert!(status.success(), "{log}");
    age_edge(state.path(), ("checkout", "api"), 10);
    let mut aggregator = Provider::start_aggregator(free_port(), &arguments);
    aggregator.until_ready();
    assert_eq!(observed(&aggregator), Some(13));

    let policy = folder.path().join("deny.yaml.txt");
    std::fs::write(&policy, DENY_API).unwrap();
    let url = aggregator.url();
    for source in [&["--server", &url][..], &["--server", &url, "--manifests", text(folder.path())]] {
        for (days, is_there) in [("7", false), ("30", true)] {
            let suggested = verb(&[&["suggest", "--namespace", "shop", "--days", days], source].concat());
            assert_eq!(suggested.code, Some(0), "{}", suggested.stderr);
            assert!(suggested.stdout.contains("port: 9090"), "{}", suggested.stdout);
            assert_eq!(suggested.stdout.contains("port: 9091"), is_there, "{source:?} {days}: {}", suggested.stdout);
            let compared = verb(&[&["what-if", "--filename", text(&policy), "--days", days], source].concat());
            let edge = "shop/checkout -> shop/api 9091/tcp";
            assert_eq!(compared.stdout.contains(edge), is_there, "{source:?} {days}: {}", compared.stdout);
        }
    }
}

/// Answers as the documentation's commands expect: `get` prints the cluster's objects, `apply` reads policies.
const KUBECTL: &str = "#!/bin/sh
case $1 in
get) cat cluster.json ;;
apply) grep -q 'kind: NetworkPolicy' ;;
*) exit 1 ;;
esac
";

/// Commands of the documentation that begin with one of these words.
fn documented_commands(page: &'static str) -> impl Iterator<Item = &'static str> {
    let words = ["kubectl get namespaces", "ringfence suggest", "ringfence what-if"];
    page.lines().filter(move |line| words.iter().any(|word| line.starts_with(word)))
}

#[test]
fn documented_commands_run_as_typed() {
    let (folder, spool, loki) = (manifests(), TempDir::new().unwrap(), FakeLoki::start());
    let loki_url = loki.url();
    let mut served = serve(&[
        "--edges",
        "on",
        "--watch-policies",
        "on",
        "--manifests",
        text(folder.path()),
        "--loki-url",
        &loki_url,
        "--export-start-delay",
        "1s",
        "--spool-dir",
        text(spool.path()),
    ]);
    let observed = |aggregator: &Provider| aggregator.try_json("/v1/edges").unwrap()["counts"]["edges"].as_u64();
    served.aggregator.until_within(EXPORTED, "records are in Loki and edges are kept", |aggregator| {
        (!loki.lines().is_empty() && observed(aggregator) == Some(13)).then_some(())
    });
    let desk = TempDir::new().unwrap();
    for (name, content) in [("api.yaml", DENY_API), ("policies.yaml", DENY_API), ("tenants.yaml", DENY_API)] {
        std::fs::write(desk.path().join(name), content).unwrap();
    }
    std::fs::copy(folder.path().join("cluster.json"), desk.path().join("cluster.json")).unwrap();
    // The aggregator of the test has no TLS.
    let unused = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
    std::fs::write(desk.path().join("ca.crt"), unused).unwrap();
    std::fs::write(desk.path().join("token"), "unused").unwrap();
    let kubectl = desk.path().join("kubectl");
    std::fs::write(&kubectl, KUBECTL).unwrap();
    std::fs::set_permissions(&kubectl, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let programs = built("ringfence").parent().unwrap().to_path_buf();
    let path = format!("{}:{}:{}", text(desk.path()), text(&programs), std::env::var("PATH").unwrap());
    let pages =
        [include_str!("../../docs/suggest.md"), include_str!("../../docs/what-if.md"), include_str!("../../README.md")];
    let mut typed = 0;
    for line in pages.into_iter().flat_map(documented_commands) {
        // The port of the aggregator has TLS where it is deployed, and that of the page has not.
        assert!(!line.contains("http://localhost:9475"), "{line}");
        let here = line
            .replace("https://localhost:9475", &served.aggregator.url())
            .replace("http://localhost:9476", &format!("http://localhost:{}", served.page.port()))
            .replace("http://localhost:3100", &loki_url);
        let script = format!("set -o pipefail; {here}");
        let done = ended(Command::new("bash").args(["-c", &script]).current_dir(desk.path()).env("PATH", &path));
        // A change that denies observed flows has status 1.
        let expected: &[i32] = if line.contains("what-if") { &[1] } else { &[0] };
        assert!(expected.contains(&done.code.unwrap()), "{line}\n{}{}", done.stdout, done.stderr);
        typed += 1;
    }
    assert_eq!(typed, 9);
}
