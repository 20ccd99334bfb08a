//! Output and exit status of the verbs that need no agent.

// The ruleset of a node.
mod render;
// Warnings for a policy's author.
mod check;
// Explanations of a flow's verdict.
mod explain;

use std::path::Path;

use kit::agent_process::{ProgramExit, ended, run, run_unread};
use tempfile::TempDir;

/// Two pods of one node and one of another, dual-stack, and a named port.
const SHOP: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: node-a}
status: {phase: Running, podIPs: [{ip: 10.1.0.1}, {ip: "fd00:1::1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec:
  nodeName: node-a
  containers: [{name: db, ports: [{name: postgres, containerPort: 5432}]}]
status: {phase: Running, podIPs: [{ip: 10.1.0.2}]}
---
apiVersion: v1
kind: Pod
metadata: {name: backup, namespace: ops, labels: {app: backup}}
spec: {nodeName: node-b}
status: {phase: Running, podIPs: [{ip: 10.2.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: pending, namespace: shop}
spec: {nodeName: node-a}
status: {phase: Pending}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: postgres}]
"#;

/// A folder with this one file.
fn folder(text: &str) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("shop.yaml"), text).expect("a file in it");
    folder
}

/// The verb's output for the folder, whose path is replaced by `DIR`.
fn output(folder: &Path, arguments: &[&str]) -> String {
    let folder = folder.to_str().expect("UTF-8");
    let ProgramExit { code, stdout, stderr } = run(arguments.iter().copied().chain(["--manifests", folder]));
    let streams = [("", stdout), ("stderr: ", stderr)];
    let lines = streams.iter().flat_map(|(mark, text)| text.lines().map(move |line| format!("{mark}{line}\n")));
    let text: String = lines.collect();
    format!("{}exit status {}\n", text.replace(folder, "DIR"), code.expect("no signal ended it"))
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ProgramExit { code, stdout, stderr } = run(["completions", shell]);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{shell}");
        for word in ["ringfence", "node-name", "what-if", "filename", "suggest", "exclude-namespace", "cluster"] {
            assert!(stdout.contains(word), "{shell}: {word}: {stdout}");
        }
    }
    let folder = folder(&run(["completions", "bash"]).stdout);
    let checked = ended(std::process::Command::new("bash").arg("-n").arg(folder.path().join("shop.yaml")));
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""));
}

#[test]
fn missing_verb_prints_help_and_ends_with_2() {
    let nothing: [&str; 0] = [];
    let bare = run(nothing);
    assert_eq!(bare.code, Some(2));
    let help = run(["--help"]);
    assert_eq!(help.code, Some(0));
    for verb in [
        "agent",
        "render",
        "check",
        "explain",
        "identity",
        "drops",
        "flows",
        "audit",
        "suggest",
        "what-if",
        "rules",
        "doctor",
        "completions",
    ] {
        assert!(bare.stderr.contains(verb) && help.stdout.contains(verb), "{verb}");
    }
    assert_eq!(run(["--version"]).stdout, format!("ringfence {}\n", env!("CARGO_PKG_VERSION")));
}

/// The flags in the table of a page of the documentation, and those of its examples.
fn documented_flags(page: &str) -> std::collections::BTreeSet<&str> {
    let words = page.split(|c: char| !(c.is_ascii_lowercase() || c == '-'));
    words.filter(|word| word.len() > 3 && word.starts_with("--") && word.as_bytes()[2] != b'-').collect()
}

#[test]
fn comparing_verbs_have_documented_flags() {
    let pages =
        [("suggest", include_str!("../../docs/suggest.md")), ("what-if", include_str!("../../docs/what-if.md"))];
    // Of the aggregator, and of kubectl.
    let others = ["--edges", "--watch-policies", "--all-namespaces", "--suggest"];
    for (verb, page) in pages {
        let help = run([verb, "--help"]);
        assert_eq!(help.code, Some(0), "{}", help.stderr);
        let flags: Vec<&str> = documented_flags(page).into_iter().filter(|flag| !others.contains(flag)).collect();
        assert!(flags.len() >= 5, "{flags:?}");
        for flag in flags {
            assert!(help.stdout.contains(flag), "{verb} {flag}: {}", help.stdout);
        }
    }
    let help = run(["audit", "--help"]);
    for flag in ["--cluster", "--server", "--server-ca-file", "--server-token-file", "--days", "--namespace"] {
        assert!(help.stdout.contains(flag), "{flag}: {}", help.stdout);
    }
}

#[test]
fn verbs_succeed_when_reader_closes_pipe_early() {
    let shop = folder(SHOP);
    let shop = shop.path().to_str().expect("UTF-8");
    for arguments in [
        &["render", "--node-name", "node-a", "--manifests", shop][..],
        &["explain", "ops/backup", "shop/db", "5432", "--manifests", shop],
        &["explain", "ops/backup", "shop/db", "5432", "--manifests", shop, "-o", "json"],
        &["check", "--manifests", shop],
        &["check", "--manifests", shop, "-o", "json"],
        &["completions", "bash"],
    ] {
        let ProgramExit { code, stderr, .. } = run_unread(arguments);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{arguments:?}");
    }
    let wrong = run_unread(["check", "--manifests", "/nowhere/manifests"]);
    assert_eq!(wrong.code, Some(2), "errors are still printed: {}", wrong.stderr);
}
