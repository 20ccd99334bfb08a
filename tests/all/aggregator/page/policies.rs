//! Observed edges and policies on the page: declared edges, explanations, readiness.

use std::path::Path;

use jiff::SignedDuration;
use kit::agent_process::ringfence;

use super::*;

/// Pods of the generated shop, and policies: `api` declares `web` and ports of `worker` that it never uses, by a rule for each
/// port and for one of its pods only; `checkout-egress` is audited.
fn manifests() -> String {
    let pods = [
        ("shop", "web", 1),
        ("shop", "checkout", 2),
        ("shop", "api", 3),
        ("shop", "worker", 4),
        ("data", "db", 5),
        ("data", "cache", 6),
        ("data", "backup", 7),
        ("ops", "prometheus", 8),
        ("ops", "debug", 9),
    ];
    let pod = |(namespace, name, number): (&str, &str, u8)| {
        format!(
            "apiVersion: v1
kind: Pod
metadata: {{namespace: {namespace}, name: {name}-7d4b9c-x2k4p, labels: {{app: {name}}}}}
spec: {{nodeName: worker-{}}}
status: {{phase: Running, podIPs: [{{ip: 10.0.0.{number}}}]}}
---
",
            (number - 1) % 2 + 1
        )
    };
    let policies = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: api-from-tiers}
spec:
  podSelector: {matchLabels: {app: api}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 9090}]
  - from: [{podSelector: {matchLabels: {app: worker}}}]
    ports: [{port: 9099}]
  - from: [{podSelector: {matchLabels: {app: worker}}}]
    ports: [{port: 9098}]
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: worker-7d4b9c-a0000, labels: {app.kubernetes.io/name: worker}}
spec: {nodeName: worker-1}
status: {phase: Running, podIPs: [{ip: 10.0.0.40}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: checkout-egress, annotations: {ringfence.io/enforcement: audit}}
spec: {podSelector: {matchLabels: {app: checkout}}, policyTypes: [Egress]}
";
    let nodes = ["worker-1", "worker-2"]
        .map(|node| format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {node}}}\n---\n"))
        .concat();
    pods.map(pod).concat() + &nodes + policies
}

#[test]
fn page_compares_observed_edges_with_policies() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("shop.yaml");
    std::fs::write(&manifest, manifests()).unwrap();
    let state = folder.path().join("state");
    let arguments = [
        "--edges",
        "on",
        "--state-dir",
        state.to_str().unwrap(),
        "--watch-policies",
        "on",
        "--manifests",
        manifest.to_str().unwrap(),
    ];
    let served = Served::start_with(&GeneratedCluster::shop(), &arguments, 6);
    let own = format!("host: localhost:{}\r\n", served.page.port());
    let json = |path: &str| -> Value {
        let (status, _, body) = served.request("GET", path, &own);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(body.trim()).unwrap()
    };
    // The windows settle within seconds.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let observed = loop {
        assert!(std::time::Instant::now() < deadline, "not all edges were observed in time");
        let answer = json("/v1/edges");
        if answer["edges"].as_array().unwrap().len() == 13 {
            break answer;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    assert_eq!(observed["policies"], "known");
    let line = |source: &str, destination: &str, port: u16| {
        let is_it = |line: &&Value| {
            (&line["source"]["name"], &line["destination"]["name"], &line["port"])
                == (&source.into(), &destination.into(), &port.into())
        };
        let line = observed["edges"].as_array().unwrap().iter().find(is_it).unwrap();
        (line["declaration"].as_str().unwrap().to_owned(), line["declared"].clone(), line["violation"].clone())
    };
    assert_eq!(line("web", "api", 9090), ("declared".into(), true.into(), false.into()));
    assert_eq!(line("checkout", "api", 9091), ("undeclared".into(), false.into(), true.into()));
    assert_eq!(line("api", "db", 5432), ("not-governed".into(), false.into(), false.into()));
    let violations = json("/v1/edges?violation=yes");
    assert!(violations["edges"].as_array().unwrap().iter().all(|line| line["violation"] == true));
    // Pages have each edge once.
    let (mut page, mut names) = (String::new(), Vec::new());
    loop {
        let answer = json(&format!("/v1/edges?limit=5{page}"));
        names.extend(
            answer["edges"]
                .as_array()
                .unwrap()
                .iter()
                .map(|line| line["destination"].to_string() + &line["source"].to_string()),
        );
        let Some(next) = answer["nextPage"].as_str() else { break };
        page = format!("&page={next}");
    }
    assert_eq!(names.len(), 13);
    assert_eq!(served.request("GET", "/v1/edges?page=0", &own).0, 410);
    assert_eq!(served.request("GET", "/v1/edges?declared=perhaps", &own).0, 400);
    let unseen = json("/v1/edges/unseen");
    let [only] = &**unseen["edges"].as_array().unwrap() else { panic!("{unseen}") };
    assert_eq!((&only["source"], &only["destination"]), (&"shop/worker".into(), &"shop/api".into()));
    assert_eq!((&only["ports"], &only["partial"]), (&serde_json::json!(["9098-9099/tcp"]), &true.into()));
    let rules = [2, 1].map(|rule| format!("ingress: shop/api-from-tiers spec.ingress[{rule}]"));
    assert_eq!(only["rules"], serde_json::json!(rules));
    assert_eq!(json("/v1/edges/first-seen")["events"].as_array().unwrap().len(), 0, "edges are learned");

    let mut tab = Tab::open(1440, 900);
    served.open(&mut tab, "?pause");
    tab.until("document.querySelector('.line.undeclared') !== null && document.querySelector('.line.unseen') !== null");
    assert_shows(&mut tab, &["seen, not declared", "declared, not seen"]);
    served.open(&mut tab, "?pause&view=table");
    assert_shows(&mut tab, &["not declared", "no policy", "Declared"]);

    // The panel has the text of `ringfence explain`.
    served.open(&mut tab, "?pause&from=pod/shop/checkout&to=pod/shop/api");
    tab.until("document.querySelector('.explained') !== null");
    let shown = tab.evaluate("document.querySelector('.explained').textContent");
    let printed = |source: &str, destination: &str, traffic: &str| {
        let mut command = ringfence();
        command.args(["explain", source, destination, traffic, "--manifests"]).arg(&manifest);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(text.contains("\n  identities: "), "{text}");
        text.trim_end().to_owned()
    };
    assert_shows(&mut tab, &["ringfence explain shop/checkout-7d4b9c-x2k4p shop/api-7d4b9c-x2k4p 9091/tcp"]);
    let denied = printed("shop/checkout-7d4b9c-x2k4p", "shop/api-7d4b9c-x2k4p", "9091/tcp");
    assert_eq!(shown.as_str().unwrap().trim_end(), denied);
    assert!(denied.contains("DENIED") && denied.contains("api-from-tiers"), "{denied}");
    for (source, destination, traffic, word) in [
        ("shop/web-7d4b9c-x2k4p", "shop/api-7d4b9c-x2k4p", "9090/tcp", "spec.ingress[0]"),
        ("shop/checkout-7d4b9c-x2k4p", "203.0.113.5", "443/tcp", "audited"),
        ("ops/debug-7d4b9c-x2k4p", "data/db-7d4b9c-x2k4p", "icmp", "no policy isolates the pod"),
    ] {
        let answer = json(&format!("/v1/explain?source={source}&destination={destination}&traffic={traffic}"));
        let expected = printed(source, destination, traffic);
        assert!(expected.contains(word), "{expected}");
        assert_eq!(answer["text"].as_str().unwrap().trim_end(), expected);
    }

    // A workload without flows in the range has its declared edges, too.
    served.open(&mut tab, "?pause&since=5m&screen=workload&name=pod/shop/cron");
    assert_shows(&mut tab, &["No flows in this range.", "Declared, and not seen"]);
    served.open(&mut tab, "?pause&screen=workload&name=pod/shop/api");
    assert_shows(
        &mut tab,
        &["Declared, and not seen", "9098-9099/tcp", "shop/api-from-tiers spec.ingress[1]", "not declared"],
    );
    served.open(&mut tab, "?pause&screen=audit");
    assert_shows(
        &mut tab,
        &[
            "Ready to enforce?",
            "0 of 1 policy. A policy is ready after 7 days without a flow that it would deny.",
            "shop/checkout-egress",
            "not ready",
            "kubectl annotate networkpolicies.networking.k8s.io checkout-egress --namespace shop ringfence.io/enforcement=enforce --overwrite",
            "Edges seen for the first time",
        ],
    );
    // Commands that were closed stay closed when new records redraw the screen.
    let closed = "document.querySelector('details.commands').open === false";
    tab.evaluate("document.querySelector('details.commands').open = false");
    tab.evaluate("document.querySelector('[data-key=\"range 5m\"]').click()");
    tab.until("location.search.includes('5m')");
    until_loaded(&mut tab);
    assert_eq!(tab.evaluate(closed), Value::from(true));
    served.open(&mut tab, "?pause&screen=coverage");
    assert_shows(&mut tab, &["Observed edges", "Edges kept", "Records left out for memory"]);
    assert_clean(&mut tab, &served);

    // The verb asks the same aggregator.
    let audit = |more: &[&str]| {
        let mut command = ringfence();
        command.args(["audit", "--cluster", "--server", &served.url("")]).args(more);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, text, error) = audit(&[]);
    assert_eq!(status, Some(1), "{text}{error}");
    assert!(text.contains("shop/checkout-egress  not ready") && text.contains("kubectl annotate"), "{text}");
    let (_, text, _) = audit(&["-o", "json", "--days", "1"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["policies"][0]["policy"]["name"], &report["days"]), (&"checkout-egress".into(), &1.into()));
    let (status, text, _) = audit(&["--namespace", "data"]);
    assert!(status == Some(0) && text.contains("no audited policies"), "{text}");
    // A typing error is not a namespace without audited policies, which a script would read as ready.
    let (status, text, error) = audit(&["--namespace", "shopp"]);
    assert_eq!((status, text.as_str()), (Some(2), ""), "{error}");
    assert!(error.contains("unknown namespace 'shopp': it does not exist"), "{error}");
}

/// Moves the begin of the evidence about all policies back in the state file of an aggregator that has ended.
fn age_evidence(state: &Path, days: i64) {
    let file = state.join("edges.json");
    let mut saved: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let audits = saved["state"]["audits"].as_array_mut().unwrap();
    assert!(!audits.is_empty());
    for audit in audits {
        let since: Timestamp = audit[1]["since"].as_str().unwrap().parse().unwrap();
        audit[1]["since"] = (since - SignedDuration::from_hours(24 * days)).to_string().into();
    }
    std::fs::write(file, saved.to_string()).unwrap();
}

/// An audited policy that none of the generated flows is denied by, with evidence of eight days.
#[test]
fn ready_policy_has_exit_status_zero() {
    let folder = tempfile::tempdir().unwrap();
    let (manifest, state) = (folder.path().join("shop.yaml"), folder.path().join("state"));
    std::fs::write(&manifest, manifests().replace("name: checkout-egress", "name: quiet")).unwrap();
    let arguments = ["--edges", "on", "--watch-policies", "on", "--state-dir", state.to_str().unwrap(), "--manifests"];
    let arguments = [&arguments[..], &[manifest.to_str().unwrap()]].concat();
    let address = free_port();
    let start = || {
        let mut aggregator = Provider::start_aggregator(address, &arguments);
        aggregator.until_ready();
        aggregator
    };
    let until_readiness = |aggregator: &mut Provider, is_ready: bool| {
        aggregator.until_within(OBSERVED, "the policy is observed", |aggregator| {
            let policies = aggregator.try_json("/v1/readiness").ok()?["policies"].clone();
            (policies[0]["ready"] == is_ready).then_some(())
        });
    };
    let audit = |more: &[&str]| {
        let server = format!("http://{address}");
        let output = ringfence().args(["audit", "--cluster", "--server", &server]).args(more).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
    };

    let mut aggregator = start();
    let cluster = GeneratedCluster::shop();
    let window = Timestamp::from_second(Timestamp::now().as_second() / 15 * 15 - 15).unwrap();
    let _agents = ["worker-1", "worker-2"].map(|node| {
        let agent = Agent::start(node, 1, plain(address));
        agent.push(cluster.records(node, window));
        agent.until_acknowledged();
        agent
    });
    until_readiness(&mut aggregator, false);
    let (status, text) = audit(&[]);
    assert!(status == Some(1) && text.contains("not ready: it was observed for"), "{status:?} {text}");
    let (status, log) = aggregator.stop();
    assert!(status.success(), "{log}");

    age_evidence(&state, 8);
    let mut aggregator = start();
    until_readiness(&mut aggregator, true);
    let (status, text) = audit(&[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("shop/quiet  ready: 8 days without a would-deny"), "{text}");
    assert!(text.contains("enforce it:   kubectl annotate") && !text.contains("not ready"), "{text}");
    let (status, text) = audit(&["--days", "9"]);
    assert!(status == Some(1) && text.contains("not ready: it was observed for 8 days, expected 9 days"), "{text}");
}

/// Only flows after the policy was known to be audited are evidence.
#[test]
fn page_and_verb_show_last_would_deny() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("shop.yaml");
    std::fs::write(&manifest, manifests()).unwrap();
    let arguments = ["--edges", "on", "--watch-policies", "on", "--manifests", manifest.to_str().unwrap()];
    let cluster = GeneratedCluster::shop();
    let mut served = Served::start_with(&cluster, &arguments, 1);
    let policy = |aggregator: &Provider| Some(aggregator.try_json("/v1/readiness").ok()?["policies"][0].clone());
    let since: Timestamp = served.aggregator.until_within(OBSERVED, "the policy is observed", |aggregator| {
        policy(aggregator)?["since"].as_str()?.parse().ok()
    });
    served.aggregator.until_within(OBSERVED, "a window after the policy is known has ended", |_| {
        (Timestamp::now().as_second() / 15 * 15 - 15 > since.as_second()).then_some(())
    });
    let window = Timestamp::now().as_second() / 15 * 15 - 15;
    served.push(|node, window| cluster.records(node, window));
    let last = served.aggregator.until_within(OBSERVED, "a flow is evidence", |aggregator| {
        Some(policy(aggregator)?["last"].clone()).filter(|last| !last.is_null())
    });
    let at: Timestamp = last["at"].as_str().unwrap().parse().unwrap();
    assert!(at.as_second() >= window, "{last}");
    let mut audit = ringfence();
    audit.args(["audit", "--cluster", "--server", &served.url("")]);
    let text = String::from_utf8(audit.output().unwrap().stdout).unwrap();
    let line = format!("{at:.0}  egress  shop/checkout (shop/checkout-7d4b9c-x2k4p) -> ");
    assert!(text.contains(&line) && text.contains("443/tcp  reported by worker-2"), "{line}\n{text}");

    let mut tab = Tab::open(1440, 900);
    served.open(&mut tab, "?pause&screen=audit");
    assert_shows(
        &mut tab,
        &[
            "It would have denied 5 connections.",
            "Last: shop/checkout → world/public 443/tcp, egress",
            "from shop/checkout-7d4b9c-x2k4p",
        ],
    );
    assert_clean(&mut tab, &served);
}

#[test]
fn page_without_observed_edges_shows_what_it_did() {
    let served = Served::start(&GeneratedCluster::shop());
    let mut tab = Tab::open(1440, 900);
    served.open(&mut tab, "?pause&screen=audit");
    let shown = text(&mut tab);
    assert!(!shown.contains("Ready to enforce?") && shown.contains("would have denied flows"), "{shown}");
    assert_clean(&mut tab, &served);
}
