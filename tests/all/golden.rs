//! YAML in, nft text and diagnostics out: `tests/golden/<case>/`. `UPDATE_EXPECT=1` writes the actual output.
//!
//! The first line of a case names lines of docs/semantics.md or docs/cluster-policy.md, and a line `# options: …` further options of the agent.
//! A line `# learned: …` has a domain name and an address that was learned for it.
//! Next to the manifests may be `remote-sets.json`, the baseline of the feed of remote sets, and `attachments.json`,
//! interfaces of pods. With these, the tables of families `netdev` and `bridge` have separate expected texts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use kit::kernel_table::{listing_after_netlink, listing_after_text};
use kit::netns::in_new_namespace;
use policy::remote::wire::RemoteBaseline;
use policy::{
    Attachment, AttachmentId, ClusterState, EdgeHook, Enforcement, Layout, ObjectName, Translation, check, translate,
};
use serde_json::Value;

/// Every case is rendered for this node.
const NODE: &str = "node-a";

/// The cases with unsupported objects; every other case must be fully supported.
const ERRONEOUS: [&str; 9] = [
    "audit-not-understood",
    "cluster-policy-not-understood",
    "cluster-policy-rules-not-understood",
    "cluster-policy-undecodable-objects",
    "cluster-policy-unknown-namespace",
    "cluster-policy-unreadable-spec",
    "cluster-policy-unreadable-subject",
    "not-understood",
    "undecodable-objects",
];

/// The pages whose lines have golden cases, as cases name them.
const PAGES: [&str; 2] = ["semantics", "cluster-policy"];

pub(crate) fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let mut cases: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    assert!(!cases.is_empty());
    cases
}

pub(crate) fn state_of(case: &Path) -> ClusterState {
    let folder = cluster::read_folder(&case.join("manifests.yaml")).unwrap();
    assert_eq!(folder.problems, vec![], "{}", case.display());
    let mut state = ClusterState::new();
    state.set_default_enforcement(Options::of(case).enforcement);
    for change in folder.changes() {
        state.apply(change);
    }
    let text = std::fs::read_to_string(case.join("manifests.yaml")).unwrap();
    for line in text.lines().filter_map(|line| line.strip_prefix("# learned: ")) {
        let (name, address) = line.split_once(' ').unwrap();
        state.learn(name.into(), address.parse().unwrap());
    }
    if let Ok(bytes) = std::fs::read(case.join("remote-sets.json")) {
        let baseline: RemoteBaseline = serde_json::from_slice(&bytes).unwrap();
        state.apply_remote(baseline.change());
    }
    if let Ok(reported) = std::fs::read(case.join("attachments.json")) {
        let reported: Vec<Value> = serde_json::from_slice(&reported).unwrap();
        for (container, attachment) in reported.iter().enumerate() {
            state.attach(attachment_of(container, attachment));
        }
    }
    state
}

fn attachment_of(container: usize, reported: &Value) -> Attachment {
    let texts = |key: &str| reported[key].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
    let text = |key: &str| reported[key].as_str();
    let (namespace, pod) = text("pod").unwrap().split_once('/').unwrap();
    Attachment {
        id: AttachmentId { container: format!("c{container}").into(), interface: "eth0".into() },
        pod: ObjectName::new(namespace, pod),
        uid: None,
        addresses: texts("addresses").map(|address| address.parse().unwrap()).collect(),
        host_interface: text("hostInterface").map(|name| name.parse().unwrap()),
        bridged: text("bridge").is_some(),
        input_interface: text("inputInterface").map(|name| name.parse().unwrap()),
        hardware_address: text("hardwareAddress").map(|address| address.parse().unwrap()),
        link_local: texts("linkLocal").map(|address| address.parse().unwrap()).collect(),
        since: 1,
    }
}

fn translation_of(case: &Path) -> Translation {
    let Options { enforcement: _, log_group, dns_group, edge_hook } = Options::of(case);
    let layout = Layout::for_table("ringfence").unwrap().logging_to(log_group).with_edge_hook(edge_hook);
    let layout = layout.copying_dns_answers_to(dns_group);
    translate(&state_of(case), NODE, &layout)
}

/// Options of the agent besides the manifests.
struct Options {
    enforcement: Enforcement,
    log_group: Option<u16>,
    dns_group: Option<u16>,
    edge_hook: EdgeHook,
}

impl Options {
    fn of(case: &Path) -> Options {
        let text = std::fs::read_to_string(case.join("manifests.yaml")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("# options: ")).unwrap_or_default();
        let mut words = line.split_whitespace();
        let mut options = Options {
            enforcement: Enforcement::Enforce,
            log_group: None,
            dns_group: None,
            edge_hook: EdgeHook::Ingress,
        };
        while let Some(option) = words.next() {
            match (option, words.next()) {
                ("--enforcement", Some("audit")) => options.enforcement = Enforcement::Audit,
                ("--nflog-group", Some(group)) => options.log_group = Some(group.parse().unwrap()),
                ("--dns-nflog-group", Some(group)) => options.dns_group = Some(group.parse().unwrap()),
                ("--source-check-hook", Some("prerouting")) => options.edge_hook = EdgeHook::Prerouting,
                (option, value) => panic!("{}: {option} {value:?}", case.display()),
            }
        }
        options
    }
}

#[test]
fn every_case_gives_its_text_and_its_diagnostics() {
    for case in cases() {
        let translation = translation_of(&case);
        let ruleset = translation.ruleset.in_first_generation();
        assert_eq!(ruleset.validate(), vec![], "{}", case.display());
        assert_eq!(policy::names_without_role(&ruleset), vec![], "{}", case.display());
        for (table, file) in [(&translation.bridge, "bridge.nft"), (&translation.edge, "netdev.nft")] {
            match table {
                Some(table) => {
                    assert_eq!(table.validate(), vec![], "{}", case.display());
                    assert_eq!(policy::names_without_role(table), vec![], "{}", case.display());
                    expect_file![case.join(file)].assert_eq(&table.to_string());
                }
                None => assert!(!case.join(file).exists(), "{} has no table for {file}", case.display()),
            }
        }
        let findings: String = check(&state_of(&case)).iter().map(|d| format!("{}: {d}\n", d.severity)).collect();
        expect_file![case.join("ruleset.nft")].assert_eq(&ruleset.to_string());
        let about_errors = ERRONEOUS.iter().any(|name| case.ends_with(name));
        assert_eq!(findings.contains("error: "), about_errors, "{} means what it says", case.display());
        expect_file![case.join("findings.txt")].assert_eq(&findings);
    }
}

/// The page and the lines that a case is about.
fn lines_of(case: &Path) -> (String, Vec<u32>) {
    let text = std::fs::read_to_string(case.join("manifests.yaml")).unwrap();
    let head = text.lines().next().unwrap().strip_prefix("# ").expect("a first line that names lines");
    let (page, lines) = head.split_once(": ").expect("a page and its lines");
    (page.to_owned(), lines.split(", ").map(|n| n.parse().unwrap()).collect())
}

/// The numbers of a page's lines, in the order of the page.
fn numbers_in(page: &str) -> Vec<u32> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page)).unwrap();
    let number = |line: &str| line.split_once(". ").and_then(|(number, _)| number.parse().ok());
    text.lines().filter_map(number).collect()
}

#[test]
fn every_line_of_pages_has_a_golden_case() {
    let mut named: BTreeSet<(String, u32)> = BTreeSet::new();
    for case in cases() {
        let (page, lines) = lines_of(&case);
        named.extend(lines.into_iter().map(|line| (page.clone(), line)));
    }
    let mut expected = BTreeSet::new();
    for page in PAGES {
        let numbers = numbers_in(&format!("{page}.md"));
        assert!(numbers.len() > 20 && numbers.iter().copied().eq(1..=numbers.len() as u32), "{page}: {numbers:?}");
        expected.extend(numbers.into_iter().map(|line| (page.to_owned(), line)));
    }
    assert_eq!(named, expected);
}

#[test]
fn kernel_listing_is_same_after_netlink_and_nft() {
    for case in cases() {
        let ruleset = translation_of(&case).ruleset.in_first_generation();
        let (by_netlink, by_text) =
            in_new_namespace(|| (listing_after_netlink(&ruleset), listing_after_text(&ruleset)));
        assert_eq!(by_netlink, by_text, "{}", case.display());
    }
}
