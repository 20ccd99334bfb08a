use std::path::PathBuf;

use kit::agent_process::{ProgramExit, ended};
use kit::fake_api::FakeApi;
use kit::fake_api::Kind;
use kit::provider_process::{Provider, free_port, provider, run};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{CLUSTER, World, namespace, pod};

fn shop() -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/shop").display().to_string()
}

/// Tables that `build` writes for the example.
fn built() -> (TempDir, ProgramExit) {
    let out = TempDir::new().unwrap();
    let ended = run(["build", "--manifests", &shop(), "--out", &out.path().join("new").display().to_string()]);
    (out, ended)
}

/// Runs the verb with arguments on a source.
fn lookup(from: &str, arguments: &[&str]) -> ProgramExit {
    run([arguments, &["--from", from]].concat())
}

fn said(ended: &ProgramExit) -> (Option<i32>, &str) {
    (ended.code, ended.stdout.as_str())
}

#[test]
fn built_folder_answers_verbs_like_a_provider() {
    let (out, ended) = built();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("identity: ") && lines[0].contains(" entries, version id-"));
    assert!(lines[1].starts_with("policy-edges: ") && lines[1].contains(" entries, version edges-"));

    let mut provider = Provider::start(free_port(), ["--manifests", &shop()]);
    provider.until_ready();
    let folder = out.path().join("new").display().to_string();
    let questions: [&[&str]; 8] = [
        &["lookup", "10.1.0.2"],
        &["lookup", "10.1.0.2", "fd00:2::2", "203.0.113.1", "-o", "json"],
        &["ids"],
        &["verdict", "shop/web-1", "shop/api-1", "9090"],
        &["verdict", "10.1.0.2", "10.1.0.4", "9090/tcp", "-o", "json"],
        &["verdict", "shop/worker-1", "shop/api-1", "9090"],
        &["verdict", "shop/worker-1", "198.51.100.7", "443"],
        &["verdict", "ops/debug-1", "ops/prometheus-1", "icmp"],
    ];
    for question in questions {
        let of_folder = lookup(&folder, question);
        for from in [provider.url(), format!("file://{folder}")] {
            let answered = lookup(&from, question);
            assert_eq!(said(&answered), said(&of_folder), "{question:?} from {from}: {answered:?}");
        }
    }
}

#[test]
fn verdict_reads_current_extended_form() {
    let (api, mut world) = (FakeApi::start(), World::default());
    let policy = |cidr: &str| {
        let ingress = json!([{"from": [{"ipBlock": {"cidr": cidr}}]}]);
        let spec = json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": ingress});
        json!({"metadata": {"namespace": "shop", "name": "from-outside"}, "spec": spec})
    };
    world.set(&api, Kind::Namespace, namespace("shop", json!({})));
    world.set(&api, Kind::Pod, pod("shop", "web-1", "web", &["10.0.0.1"]));
    world.set(&api, Kind::NetworkPolicy, policy("192.0.2.0/24"));
    let kubeconfig = api.kubeconfig().display().to_string();
    let mut provider = Provider::start(free_port(), ["--kubeconfig", &kubeconfig, "--cluster-id", CLUSTER]);
    provider.until_ready();
    let url = provider.url();
    let verdict = |source: &str| lookup(&url, &["verdict", source, "shop/web", "80"]).code;
    assert_eq!([verdict("192.0.2.7"), verdict("198.51.100.7")], [Some(0), Some(1)]);

    world.set(&api, Kind::NetworkPolicy, policy("198.51.100.0/24"));
    let fresh = world.fresh();
    provider.until("the version of a fresh start", |provider| {
        let head = provider.try_json("/policy-edges/version").ok()?;
        (head["version"] == fresh.versions[1]).then_some(())
    });
    assert_eq!([verdict("192.0.2.7"), verdict("198.51.100.7")], [Some(1), Some(0)]);
}

#[test]
fn verdict_from_file_handles_unlisted_workloads() {
    let (out, _) = built();
    let folder = out.path().join("new/policy-edges");
    let named = |name: &PathBuf| name.to_string_lossy().ends_with(".extended.txt");
    let list = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).find(named).unwrap();
    let list = list.display().to_string();
    let declared = lookup(&list, &["verdict", "shop/web-1", "shop/api-1", "9090"]);
    assert!(declared.code.is_some() && declared.stderr.is_empty(), "{declared:?}");
    let unnamed = lookup(&list, &["verdict", "nowhere/absent", "nowhere/missing", "80"]);
    assert_eq!(unnamed.code, Some(0), "{unnamed:?}");
    assert!(unnamed.stdout.contains("NOT GOVERNED"), "{unnamed:?}");
}

#[test]
fn push_url_requires_cluster_id() {
    let ended = run(["serve", "--manifests", &shop(), "--push-url", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("needs --cluster-id"), "{ended:?}");
}

#[test]
fn lookup_exit_code_reflects_unknown_addresses() {
    let (out, _) = built();
    let folder = out.path().join("new").display().to_string();
    let known = lookup(&folder, &["lookup", "10.1.0.2", "fd00:2::2"]);
    assert_eq!(known.code, Some(0), "{known:?}");
    for word in ["10.1.0.2  shop/web", "fd00:2::2  shop/web", "app=web", "internal"] {
        assert!(known.stdout.contains(word), "{word} in {}", known.stdout);
    }
    let unknown = lookup(&folder, &["lookup", "10.1.0.2", "203.0.113.1"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stdout.contains("203.0.113.1  not found"));
    let json: Value = serde_json::from_str(&lookup(&folder, &["lookup", "10.1.0.2", "-o", "json"]).stdout).unwrap();
    assert_eq!((&json[0]["ip"], &json[0]["record"]["namespace"]), (&"10.1.0.2".into(), &"shop".into()));
}

#[test]
fn ids_diff_names_labels_that_differ() {
    let (out, _) = built();
    let folder = out.path().join("new").display().to_string();
    let table: Value = serde_json::from_str(&lookup(&folder, &["ids", "-o", "json"]).stdout).unwrap();
    let row = |app: &str| {
        let rows = table["identities"].as_array().unwrap();
        rows.iter().find(|row| row["labels"]["app"] == app).unwrap_or_else(|| panic!("no {app} in {table}")).clone()
    };
    let (web, api) = (row("web"), row("api"));
    // One by its text form, the other by its number.
    let names = [web["sid"].as_str().unwrap().to_owned(), api["num"].to_string()];
    let diff = |a: &str, b: &str, form: &str| lookup(&folder, &["ids", "--diff", a, b, "-o", form]);
    let text = diff(&names[0], &names[1], "text");
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    assert!(
        text.stdout.ends_with("\n  label app: 'web' -> 'api'\n") && text.stdout.lines().count() == 3,
        "{}",
        text.stdout
    );
    let json: Value = serde_json::from_str(&diff(&names[0], &names[1], "json").stdout).unwrap();
    let app = json!({"part": "pod-label", "key": "app", "a": "web", "b": "api"});
    assert_eq!(json, json!({"a": web, "b": api, "differences": [app]}));

    assert!(diff(&names[0], &names[0], "text").stdout.ends_with("  the same identity\n"));
    let gone = diff(&names[0], "777", "text");
    assert!(gone.code == Some(1) && gone.stdout.contains("777  not found"), "{gone:?}");
    let gone: Value = serde_json::from_str(&diff("777", &names[1], "json").stdout).unwrap();
    assert_eq!(gone, json!({"a": null, "b": api, "differences": []}));
    let reserved = diff(&names[0], "2", "text");
    assert!(reserved.code == Some(2) && reserved.stderr.contains("the reserved identity world"), "{reserved:?}");
}

#[test]
fn ids_lists_every_identity_with_number_and_references() {
    let (out, _) = built();
    let folder = out.path().join("new").display().to_string();
    let table: Value = serde_json::from_str(&lookup(&folder, &["ids", "-o", "json"]).stdout).unwrap();
    let text = lookup(&folder, &["ids"]);
    assert_eq!(text.code, Some(0));
    let rows = table["identities"].as_array().unwrap();
    assert_eq!(text.stdout.lines().count(), rows.len() + 1);
    for row in rows {
        let line = text.stdout.lines().find(|line| line.starts_with(row["sid"].as_str().unwrap())).unwrap();
        assert!(line.contains(&row["num"].to_string()) && line.contains(row["namespace"].as_str().unwrap()), "{line}");
        assert!(row["sid"].as_str().unwrap().len() == 13 && row["num"].as_u64().unwrap() >= 256);
    }
    let references: u64 = rows.iter().map(|row| row["references"].as_u64().unwrap()).sum();
    assert!(references >= 2 * 12, "two addresses for each of twelve pods, {references}");
}

#[test]
fn verdict_names_declaring_edge_or_governing_policies() {
    let (out, _) = built();
    let folder = out.path().join("new").display().to_string();
    let cases = [
        (["shop/web", "shop/api", "9090"], 0, "DECLARED", "E shop/web > shop/api : 9090-9091/TCP some"),
        (["10.1.0.2", "10.1.0.4", "9090/tcp"], 0, "DECLARED", "E shop/web > shop/api : 9090-9091/TCP some"),
        (["shop/web", "shop/api", "9090/udp"], 1, "VIOLATION", "G shop/api"),
        (["shop/worker", "shop/api", "9090"], 1, "VIOLATION", "S shop/worker"),
        (["shop/worker", "198.51.100.7", "443"], 0, "DECLARED", "C shop/worker > 198.51.100.0/24"),
        (["shop/worker", "198.51.100.200", "443"], 1, "VIOLATION", "S shop/worker"),
        (["ops/debug", "ops/prometheus", "icmp"], 0, "NOT GOVERNED", "no policy governs the source or the destination"),
    ];
    for (question, code, word, line) in cases {
        let answer = lookup(&folder, &[&["verdict"][..], &question[..]].concat());
        assert_eq!(answer.code, Some(code), "{question:?}: {answer:?}");
        assert!(answer.stdout.starts_with(word) && answer.stdout.contains(line), "{question:?}: {answer:?}");
    }
}

#[test]
fn invalid_queries_and_damaged_folders_end_with_two() {
    let (out, _) = built();
    let folder = out.path().join("new").display().to_string();
    let nothing = TempDir::new().unwrap();
    let nothing = nothing.path().display().to_string();
    let cases: [(&str, &[&str], &str); 8] = [
        (&folder, &["verdict", "web", "shop/api", "80"], "expected an address, NAMESPACE/WORKLOAD or"),
        (&folder, &["verdict", "shop/web", "shop/api", "http"], "expected PORT, PORT/PROTOCOL or icmp"),
        (&folder, &["verdict", "shop/web", "shop/api", "0"], "with ports from 1 to 65535"),
        (&folder, &["verdict", "shop/wbe", "ops/prometheus", "80"], "workload 'shop/wbe' not found"),
        (&folder, &["lookup", "10.1.0"], "10.1.0"),
        (&nothing, &["ids"], "identity/latest.json not found"),
        ("http://127.0.0.1:9", &["ids"], "cannot connect to http://127.0.0.1:9"),
        ("gs://bucket", &["ids"], "file:///DIR or s3://BUCKET/PREFIX"),
    ];
    for (from, question, word) in cases {
        let answer = lookup(from, question);
        assert_eq!((answer.code, answer.stdout.as_str()), (Some(2), ""), "{question:?}: {answer:?}");
        assert!(answer.stderr.contains(word), "{question:?}: {answer:?}");
    }
    // A changed file does not match the checksum of its pointer.
    let latest: Value =
        serde_json::from_slice(&std::fs::read(format!("{folder}/identity/latest.json")).unwrap()).unwrap();
    let object = format!("{folder}/identity/{}", latest["objects"][0]["object"].as_str().unwrap());
    let mut bytes = std::fs::read(&object).unwrap();
    bytes[3] ^= 1;
    std::fs::write(&object, bytes).unwrap();
    let answer = lookup(&folder, &["lookup", "10.1.0.2"]);
    assert!(answer.code == Some(2) && answer.stderr.contains("is damaged"), "{answer:?}");
}

#[test]
fn build_skips_invalid_file_and_ends_with_one() {
    let (manifests, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    std::fs::write(manifests.path().join("bad.yaml"), "kind: [").unwrap();
    let arguments = [manifests.path(), out.path()].map(|path| path.display().to_string());
    let ended = run(["build", "--manifests", &arguments[0], "--out", &arguments[1]]);
    assert!(ended.code == Some(1) && ended.stderr.contains("bad.yaml"), "{ended:?}");
    assert!(out.path().join("identity/latest.json").exists());
    let ended = run(["build", "--manifests", &format!("{}/none", arguments[0]), "--out", &arguments[1]]);
    assert!(ended.code == Some(2) && !ended.stderr.is_empty(), "{ended:?}");
}

#[test]
fn source_flags_override_kubeconfig_variable() {
    let serve = |arguments: &[&str]| {
        let mut command = provider();
        command.env("KUBECONFIG", "/no/such/kubeconfig").args(["serve", "--listen", "127.0.0.1:0"]).args(arguments);
        ended(&mut command)
    };
    let ProgramExit { code, stderr, .. } = serve(&["--manifests", "/no/such/folder"]);
    assert!(code == Some(2) && stderr.contains("/no/such/folder") && !stderr.contains("kubeconfig"), "{stderr}");
    let ProgramExit { code, stderr, .. } = serve(&["--manifests", "/no/such/folder", "--kubeconfig", "/no/such/file"]);
    assert!(code == Some(2) && stderr.contains("--kubeconfig and --manifests cannot be used together"), "{stderr}");
    let ProgramExit { code, stderr, .. } = serve(&["--push-url", "https://user:secret@relay.example"]);
    assert!(code == Some(2) && stderr.contains("--token-file"), "{stderr}");
}
