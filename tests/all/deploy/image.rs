use super::{VERSION, read, root};

#[test]
fn base_images_are_pinned_and_labels_match_version() {
    let text = read("Dockerfile");
    let bases: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("FROM ")).collect();
    let [build, "scratch"] = bases[..] else { panic!("one to build in, and nothing: {bases:?}") };
    let image = build.split_whitespace().next().unwrap();
    let tag = image.split_once(':').unwrap_or_else(|| panic!("{image} has no tag")).1;
    let exact = tag.split('-').next().unwrap().split('.').count() == 3;
    assert!(exact || tag.contains("@sha256:"), "{image} may become another image");
    assert!(text.contains(&format!("image.version=\"{VERSION}\"")) && text.contains(&format!("ringfence:{VERSION}")));
}

/// `make test-cluster` builds the image's contents with the same script, without a container engine.
#[test]
fn image_contents_come_from_the_script() {
    assert!(read("Dockerfile").contains("\nRUN scripts/image /image\n"));
}

#[test]
fn what_the_build_reads_is_not_ignored() {
    let ignored = read(".dockerignore");
    let kept: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    for path in &kept {
        assert!(root().join(path).exists(), "{path} is not there");
    }
    let manifest = read("Cargo.toml");
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = [")).expect("the members on one line");
    for member in members.trim_end_matches(']').split(", ").map(|member| member.trim_matches('"')) {
        let is_kept = |path: &&str| member.starts_with(*path) || *path == format!("{member}/Cargo.toml");
        assert!(kept.iter().any(is_kept), "cargo wants the workspace's member {member}");
    }
}

/// The plugin runs on the node, whose libc may be older than the image's, or another one.
#[test]
fn its_plugin_needs_no_library_of_the_node() {
    let text = read("scripts/image");
    assert!(text.contains("--package cni --bin ringfence-cni -- -C target-feature=+crt-static"), "{text}");
    let builds =
        text.lines().find(|line| line.starts_with("cargo build ")).expect("a line that builds the other programs");
    assert!(!builds.contains("--package cni"), "{builds}");
}

/// The image has the build's libraries that the programs link (`ldd` on each program).
#[test]
fn its_programs_have_their_libraries() {
    let text = read("scripts/image");
    let ldd =
        text.lines().find(|line| line.starts_with("ldd ")).expect("a line that asks what programs are linked with");
    for program in ["ringfence", "ringfence-context", "ringfence-flows"] {
        assert!(text.contains(&format!("\"$built/{program}\"")), "{program} is not installed");
        assert!(ldd.contains(&format!("\"$image/usr/local/bin/{program}\" ")), "{program}: {ldd}");
    }
}

/// `ringfence-context` verifies a relay's certificate with the system's CA certificates, and fails if there are none.
#[test]
fn image_contains_system_ca_certificates() {
    assert!(read("scripts/image").contains("cp --parents --dereference /etc/ssl/certs/ca-certificates.crt \"$image\""));
}
