//! Inputs that once broke a claim do so no more: `fuzz/regressions/<target>/`.

use std::path::Path;

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

#[test]
fn objects() {
    replay("objects", tests::fuzzing::objects);
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
fn cni() {
    replay("cni", tests::fuzzing::cni);
}

#[test]
fn streams() {
    replay("stream", tests::fuzzing::stream);
}
