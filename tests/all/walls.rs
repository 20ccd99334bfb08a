//! Dependency rules between the crates (ARCHITECTURE.md), checked with `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The workspace crates that a crate may use, and the packages that it must never reach, directly or transitively.
struct Wall {
    name: &'static str,
    ours: &'static [&'static str],
    never: &'static [&'static str],
}

const WALLS: &[Wall] = &[
    Wall { name: "nft", ours: &[], never: &["serde", "serde_json", "libc", "tokio", "kube-client", "k8s-openapi"] },
    Wall { name: "policy", ours: &["nft"], never: &["tokio", "mio", "socket2", "kube-client", "k8s-openapi"] },
    Wall { name: "netlink", ours: &[], never: &["tokio", "kube-client", "k8s-openapi", "nftnl-sys", "mnl-sys"] },
    Wall {
        name: "nfnetlink",
        ours: &["netlink", "nft"],
        never: &["serde_json", "tokio", "kube-client", "k8s-openapi"],
    },
    Wall { name: "pacing", ours: &[], never: &["tokio", "mio", "serde", "rand", "kube-client", "k8s-openapi"] },
    Wall { name: "cluster", ours: &["pacing", "policy"], never: &["nftnl-sys", "mnl", "mnl-sys"] },
    Wall {
        name: "cni",
        ours: &["netlink", "pacing"],
        never: &["tokio", "kube-client", "k8s-openapi", "clap", "nftnl-sys", "mnl-sys", "tracing"],
    },
    Wall { name: "console", ours: &[], never: &["tokio", "kube-client", "k8s-openapi", "nftnl-sys", "mnl-sys"] },
    Wall { name: "feed", ours: &["pacing"], never: &["kube-client", "k8s-openapi", "nftnl-sys", "mnl-sys"] },
    Wall { name: "listener", ours: &[], never: &["kube-client", "k8s-openapi", "nftnl-sys", "mnl-sys"] },
    Wall {
        name: "identity",
        ours: &["policy"],
        never: &["tokio", "mio", "socket2", "kube-client", "k8s-openapi", "nftnl-sys", "mnl-sys"],
    },
    Wall {
        name: "flow",
        ours: &["policy", "identity"],
        never: &["tokio", "mio", "socket2", "kube-client", "k8s-openapi", "nftnl-sys", "mnl-sys"],
    },
    Wall {
        name: "insight",
        ours: &["policy", "identity", "flow"],
        never: &["tokio", "mio", "socket2", "kube-client", "k8s-openapi", "nftnl-sys", "mnl-sys"],
    },
    Wall { name: "access", ours: &["cluster", "console", "listener"], never: &["nftnl-sys", "mnl-sys"] },
    Wall {
        name: "delivery",
        ours: &["feed", "flow", "pacing"],
        never: &["kube-client", "k8s-openapi", "nftnl-sys", "mnl-sys"],
    },
    Wall { name: "wire", ours: &[], never: &["tokio", "mio", "socket2", "kube-client", "k8s-openapi", "nftnl-sys"] },
    Wall {
        name: "hubble",
        ours: &["flow", "wire"],
        never: &["tokio", "mio", "socket2", "kube-client", "k8s-openapi", "nftnl-sys", "mnl-sys"],
    },
    Wall {
        name: "goldmane",
        ours: &["flow", "wire"],
        never: &["tokio", "mio", "socket2", "kube-client", "k8s-openapi", "nftnl-sys", "mnl-sys"],
    },
    Wall {
        name: "trail",
        ours: &["flow"],
        never: &["tokio", "mio", "socket2", "kube-client", "k8s-openapi", "nftnl-sys", "mnl-sys"],
    },
    Wall {
        name: "aggregator",
        ours: &[
            "access", "cluster", "console", "delivery", "feed", "flow", "goldmane", "hubble", "identity", "insight",
            "listener", "pacing", "policy", "trail", "wire",
        ],
        never: &["nftnl-sys", "mnl-sys"],
    },
    Wall {
        name: "context",
        ours: &["access", "policy", "cluster", "console", "feed", "identity", "listener", "pacing"],
        never: &["nftnl-sys", "mnl-sys"],
    },
    Wall {
        name: "agent",
        ours: &[
            "nft",
            "policy",
            "netlink",
            "nfnetlink",
            "cluster",
            "cni",
            "console",
            "delivery",
            "feed",
            "flow",
            "identity",
            "insight",
            "listener",
            "pacing",
        ],
        never: &[],
    },
];

/// Only `cluster` is a Kubernetes client, and only `nfnetlink` speaks netlink: no other crate may depend on these
/// directly.
const OWNED: &[(&str, &str)] =
    &[("kube", "cluster"), ("k8s-openapi", "cluster"), ("nftnl-sys", "nfnetlink"), ("mnl", "nfnetlink")];

/// The answer of `cargo metadata` about the workspace.
pub(crate) fn cargo_metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    // Dependencies of other platforms were not downloaded for the build.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--offline", "--filter-platform", &platform])
        .args(["--manifest-path", manifest])
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// For every package by name, the names of its normal and build dependencies.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = cargo_metadata();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let names: BTreeMap<String, String> =
        metadata["packages"].as_array().unwrap().iter().map(|p| (text(&p["id"]), text(&p["name"]))).collect();
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in metadata["resolve"]["nodes"].as_array().unwrap() {
        let used = graph.entry(names[node["id"].as_str().unwrap()].clone()).or_default();
        for dependency in node["deps"].as_array().unwrap() {
            let for_tests = dependency["dep_kinds"].as_array().unwrap().iter().all(|kind| kind["kind"] == "dev");
            if !for_tests {
                used.insert(names[dependency["pkg"].as_str().unwrap()].clone());
            }
        }
    }
    graph
}

fn reachable<'a>(graph: &'a BTreeMap<String, BTreeSet<String>>, from: &'a str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(name) = open.pop() {
        for next in graph.get(name).into_iter().flatten() {
            if seen.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    seen
}

#[test]
fn crates_use_only_what_their_walls_let_through() {
    let graph = dependencies();
    let ours: BTreeSet<&str> = WALLS.iter().map(|w| w.name).collect();
    for wall in WALLS {
        let direct = graph.get(wall.name).unwrap_or_else(|| panic!("no crate {}", wall.name));
        let used: BTreeSet<&str> = direct.iter().map(String::as_str).filter(|d| ours.contains(d)).collect();
        let allowed: BTreeSet<&str> = wall.ours.iter().copied().collect();
        assert!(used.is_subset(&allowed), "{} uses {used:?} and may use {allowed:?}", wall.name);
        let reached = reachable(&graph, wall.name);
        for never in wall.never {
            assert!(!reached.contains(never), "{} reaches {never}", wall.name);
        }
        for (owned, owner) in OWNED.iter().filter(|(_, owner)| *owner != wall.name) {
            assert!(!direct.contains(*owned), "{} uses {owned}, which is {owner}'s", wall.name);
        }
    }
}

#[test]
fn demos_build_no_plots_or_object_stores() {
    let graph = dependencies();
    let reached = reachable(&graph, "demos");
    for heavy in ["plotters", "object_store", "proptest", "rcgen", "bench", "context", "tests"] {
        assert!(!reached.contains(heavy), "demos reach {heavy}");
    }
}

/// Files of the agent's crate that use a Unix socket, with their purpose.
const AT_SOCKETS: &[(&str, &str)] = &[
    ("api/client.rs", "asks the agent"),
    ("cni_socket.rs", "answers the CNI plugin"),
    ("doctor/cni_side.rs", "asks the agent as the CNI plugin does"),
    ("run_dir.rs", "listens"),
];

#[test]
fn sockets_of_agent_are_used_through_one_client() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/agent/src");
    let mut seen = BTreeSet::new();
    for path in source_files(&source) {
        let text = std::fs::read_to_string(&path).unwrap();
        if ["UnixStream", "UnixListener::bind", "hyper::"].iter().any(|word| text.contains(word)) {
            seen.insert(path.strip_prefix(&source).unwrap().to_str().unwrap().to_owned());
        }
    }
    let allowed: BTreeSet<String> = AT_SOCKETS.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(seen, allowed);
}

/// The only file of the agent's crate that commits to the kernel. Its transactions are made of validated rulesets.
const COMMITS: &str = "transaction.rs";

/// The kernel's commit, and the parameter type that would let a caller pass it on with unchecked operations.
const COMMITTING: [&str; 3] = ["Kernel::commit", "kernel.commit(", "CommitWith ="];

#[test]
fn agent_commits_only_through_its_transactions() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/agent/src");
    let is_committing = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        COMMITTING.iter().any(|call| code.contains(call))
    };
    let mut found = BTreeSet::new();
    for path in source_files(&source) {
        let name = path.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
        let is_test = name.ends_with("tests.rs") || name.contains("tests/");
        let text = std::fs::read_to_string(&path).unwrap();
        if !is_test && text.lines().any(is_committing) {
            found.insert(name);
        }
    }
    assert_eq!(found, BTreeSet::from([COMMITS.to_owned()]));
}

/// Clocks and I/O, which the reconciler leaves to the event loop. The types of results, such as `io::Result`, are none.
const IO: [&str; 9] = [
    "Instant::now",
    "Timestamp::now",
    ".elapsed()",
    "std::fs",
    "netlink::",
    "thread::",
    "tokio::time",
    "Background",
    "Enforcer",
];

/// Files outside its folder whose types the reconciler owns.
const PARTS_OF_RECONCILER: [&str; 2] = ["gate.rs", "flows/feed.rs"];

#[test]
fn reconciler_performs_no_io() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/agent/src");
    let (mut found, mut read) = (Vec::new(), 0);
    for path in source_files(&source) {
        let name = path.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
        let is_reconciler = name.starts_with("reconciler") || PARTS_OF_RECONCILER.contains(&name.as_str());
        if !is_reconciler || name.ends_with("tests.rs") {
            continue;
        }
        read += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        for line in product_code(&text).lines() {
            let code = line.split("//").next().unwrap_or_default();
            found.extend(IO.iter().filter(|io| code.contains(*io)).map(|io| format!("{name}: {io}: {line}")));
        }
    }
    assert!(read > 5, "read only {read} files");
    assert!(found.is_empty(), "clocks and I/O in the reconciler:\n{}", found.join("\n"));
}

/// Words of the product, which a crate about nftables or netlink does not know.
const PRODUCT_WORDS: [&str; 6] = ["ringfence", "agent", "networkpolicy", "networkpolicies", "pod", "pods"];

#[test]
fn netlink_crates_use_no_words_of_product() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut found = Vec::new();
    for path in ["nft", "netlink", "nfnetlink"].iter().flat_map(|name| source_files(&crates.join(name).join("src"))) {
        let text = std::fs::read_to_string(&path).unwrap();
        // Tests use names from listings of real tables.
        let product = product_code(&text);
        for (index, line) in product.lines().enumerate() {
            let line = line.to_lowercase();
            let mut words = line.split(|c: char| !c.is_alphanumeric());
            if words.any(|word| PRODUCT_WORDS.contains(&word)) {
                found.push(format!("{}:{}: {line}", path.strip_prefix(&crates).unwrap().display(), index + 1));
            }
        }
    }
    assert!(found.is_empty(), "words of the product in crates that serve any program:\n{}", found.join("\n"));
}

/// The only file that looks into names of chains and sets; the others match on roles.
const PARSES_NAMES: &str = "policy/src/translate/roles.rs";

/// Looks into a name.
const PARSING: [&str; 6] = ["starts_with(", "strip_prefix(", "ends_with(", "strip_suffix(", "contains(", "split_once("];

#[test]
fn only_roles_look_into_chain_names() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let is_parsing = |line: &str| PARSING.iter().any(|call| line.contains(&format!(".as_str().{call}")));
    let mut found = BTreeSet::new();
    for path in ["policy", "agent", "nft", "nfnetlink"].iter().flat_map(|name| source_files(&crates.join(name))) {
        let name = path.strip_prefix(&crates).unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let code = product_code(&text);
        if !name.ends_with("tests.rs") && code.lines().any(is_parsing) {
            found.insert(name);
        }
    }
    assert_eq!(found, BTreeSet::from([PARSES_NAMES.to_owned()]));
}

/// A file without the module of tests at its end.
pub(crate) fn product_code(text: &str) -> &str {
    let is_module = |(index, attribute): &(usize, &str)| {
        let item = text[index + attribute.len()..].lines().nth(1).unwrap_or_default();
        item.ends_with('{') && item.split(' ').any(|word| word == "mod")
    };
    let module = text.match_indices("#[cfg(test)]").find(is_module);
    module.map_or(text, |(index, _)| &text[..index])
}

#[test]
fn module_of_tests_is_not_product_code() {
    let file = "#[cfg(test)]\nmod tests;\n\nfn product() {}\n\n";
    assert_eq!(product_code(&format!("{file}#[cfg(test)]\npub(crate) mod cases {{\n}}\n")), file);
    assert_eq!(product_code(file), file);
}

/// The Rust files below a folder, without build output.
pub(crate) fn source_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if path.file_name().is_none_or(|name| name != "target") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files
}
