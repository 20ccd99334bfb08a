//! Every claim of docs/security.md names an existing test.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The names of all tests of this binary.
fn tests() -> BTreeSet<String> {
    let this = std::env::current_exe().expect("the path of this program");
    let listed = Command::new(this).args(["--list", "--format", "terse"]).output().expect("it lists its tests");
    let listed = String::from_utf8(listed.stdout).expect("UTF-8");
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(String::from).collect()
}

#[test]
fn every_sentence_names_a_test_that_exists() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/security.md");
    let text = std::fs::read_to_string(&page).expect("the page");
    let tests = tests();
    let promises: Vec<&str> = text.split("\n- ").skip(1).collect();
    assert!(promises.len() > 30, "{} promises", promises.len());
    for promise in promises {
        let promise = promise.split("\n\n").next().unwrap_or_default();
        let named: Vec<&str> = promise.lines().filter_map(|l| l.strip_prefix("  `")?.strip_suffix('`')).collect();
        assert!(!named.is_empty(), "no test holds: {promise}");
        for name in named {
            assert!(tests.contains(name), "{name} is no test; it is to hold: {promise}");
        }
    }
}
