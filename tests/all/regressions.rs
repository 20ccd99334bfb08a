//! Fuzz inputs that once violated a property: `fuzz/regressions/<target>/`. The seeds of the fuzz targets stay small.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kit::netns::in_new_namespace;

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/regressions").join(target);
    let mut replayed = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        run(&std::fs::read(&path).unwrap());
        replayed += 1;
    }
    assert!(replayed > 0, "{} is empty", folder.display());
}

/// Bound on the bytes of the inputs of a folder.
const MAX_INPUT_BYTES: u64 = 300_000;

fn files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn seeds_stay_small_and_every_target_runs() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    let script = std::fs::read_to_string(fuzz.join("../scripts/fuzz")).unwrap();
    let run = script.lines().find_map(|line| line.strip_prefix("targets=(")?.strip_suffix(')')).unwrap();
    let run: BTreeSet<&str> = run.split(' ').collect();
    let paths = manifest.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\""));
    assert_eq!(run, paths.collect());
    for folder in ["seeds", "regressions"] {
        let inputs = run.iter().flat_map(|target| files(&fuzz.join(folder).join(target)));
        let sizes: Vec<u64> = inputs.map(|input| input.metadata().unwrap().len()).collect();
        assert!(sizes.len() >= run.len() && sizes.iter().sum::<u64>() < MAX_INPUT_BYTES, "{folder}: {sizes:?}");
    }
}

#[test]
fn objects() {
    replay("objects", tests::fuzzing::objects);
}

#[test]
fn cluster_policies() {
    replay("cluster_policies", tests::fuzzing::cluster_policies);
}

#[test]
fn manifests() {
    replay("manifest", tests::fuzzing::manifest);
}

#[test]
fn netlink_dumps() {
    replay("netlink", tests::fuzzing::netlink);
}

#[test]
fn conntrack_messages() {
    replay("conntrack", tests::fuzzing::conntrack);
}

#[test]
fn cni() {
    replay("cni", tests::fuzzing::cni);
}

#[test]
fn streams() {
    replay("stream", tests::fuzzing::stream);
}

#[test]
fn exposures() {
    replay("exposures", tests::fuzzing::exposures);
}

#[test]
fn clusters() {
    replay("clusters", tests::fuzzing::clusters);
}

#[test]
fn edges() {
    replay("edges", tests::fuzzing::edges);
}

#[test]
fn records() {
    replay("records", tests::fuzzing::records);
}

#[test]
fn remote_sets() {
    replay("remote_sets", tests::fuzzing::remote_sets);
}

#[test]
fn conflists() {
    replay("conflists", tests::fuzzing::conflists);
}

#[test]
fn rulesets() {
    in_new_namespace(|| replay("rulesets", tests::fuzzing::rulesets));
}

#[test]
fn dns_answers() {
    replay("dns_answers", tests::fuzzing::dns_answers);
}

#[test]
fn dns_streams() {
    replay("dns_streams", tests::fuzzing::dns_streams);
}
