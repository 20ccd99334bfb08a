use std::path::Path;

use expect_test::expect;
use kit::agent_process::run;
use kit::kernel_table::try_nft;
use kit::netns::in_new_namespace;

use super::{SHOP, folder, output};

#[test]
fn nft_takes_what_it_prints() {
    let shop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/shop");
    for node in ["node-a", "node-b"] {
        let rendered = run(["render", "--node-name", node, "--table", "other", "--manifests", shop.to_str().unwrap()]);
        assert_eq!((rendered.code, rendered.stderr.as_str()), (Some(0), ""));
        assert!(rendered.stdout.starts_with("table inet other {"), "{}", rendered.stdout);
        in_new_namespace(|| try_nft(&["-c", "-f", "-"], &rendered.stdout)).unwrap();
    }
}

fn attachment(interface: &str) -> cni::AttachmentRecord {
    cni::AttachmentRecord {
        addresses: vec!["10.1.0.2".parse().expect("an address")],
        host_interface: Some(interface.into()),
        bridge: Some("cni0".into()),
        ..cni::AttachmentRecord::new(cni::AttachmentKey::new("c1", "eth0").expect("an identity"), "shop", "db")
    }
}

#[test]
fn tables_of_interfaces_are_printed_with_run_dir() {
    let (shop, run_dir) = (folder(SHOP), tempfile::tempdir().expect("a folder"));
    let rendered = || {
        let folders = [shop.path(), run_dir.path()].map(|path| path.to_str().expect("UTF-8").to_owned());
        run(["render", "--node-name", "node-a", "--manifests", &folders[0], "--run-dir", &folders[1]])
    };
    let without = rendered();
    assert_eq!(without.code, Some(2), "{without:?}");
    assert!(without.stderr.contains("folder of the CNI plugin's attachments not found"), "{without:?}");

    cni::store::write(&run_dir.path().join("cni"), &attachment("lo")).expect("a folder of ours");
    let with = rendered();
    assert_eq!((with.code, with.stderr.as_str()), (Some(0), ""));
    for table in ["table inet ringfence {", "table bridge ringfence {", "table netdev ringfence {"] {
        assert!(with.stdout.contains(&format!("\n{table}")) || with.stdout.starts_with(table), "{table}");
    }
    assert!(with.stdout.contains("hook ingress device \"lo\""), "{}", with.stdout);
    in_new_namespace(|| try_nft(&["-c", "-f", "-"], &with.stdout)).unwrap();

    std::fs::write(run_dir.path().join("cni/c2@eth0.json"), "{").expect("a folder of ours");
    let problem = rendered();
    assert_eq!(problem.code, Some(1), "{problem:?}");
    assert!(problem.stderr.contains("error: attachments: ") && problem.stdout == with.stdout, "{problem:?}");
}

#[test]
fn the_mask_is_in_the_rules() {
    let folder = folder(SHOP);
    let text = output(folder.path(), &["render", "--node-name", "node-a", "--ct-mark-mask", "0xf0000000"]);
    assert!(text.contains("ct mark & 0xf0000000 == 0x90000000 accept"), "{text}");
}

#[test]
fn what_is_wrong_is_one_sentence() {
    let shop = folder(SHOP);
    let on = |node| ["render", "--node-name", node];
    expect![[r#"
        stderr: error: no pod is bound to node 'node-x'; the nodes here are: node-a, node-b
        exit status 2
    "#]]
    .assert_eq(&output(shop.path(), &on("node-x")));
    expect![[r#"
        stderr: error: nothing to render: no pod in these manifests is bound to a node (spec.nodeName)
        exit status 2
    "#]]
    .assert_eq(&output(folder("").path(), &on("node-a")));
    expect![[r#"
        stderr: error: manifest folder DIR: No such file or directory (os error 2)
        exit status 2
    "#]]
    .assert_eq(&output(Path::new("/nowhere/manifests"), &on("node-a")));
}

fn beside_the_ruleset(text: &str) -> String {
    let lines = text.lines().filter(|l| l.starts_with("stderr") || l.starts_with("exit"));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn invalid_file_is_reported_and_others_are_rendered() {
    let shop = folder(SHOP);
    std::fs::write(shop.path().join("broken.yaml"), "kind: NetworkPolicy\nspec:\n  a: ]\n").unwrap();
    let text = output(shop.path(), &["render", "--node-name", "node-a"]);
    assert!(text.contains("chain ingress/shop/db/postgres-tcp-5432 {"), "{text}");
    let errors = beside_the_ruleset(&text);
    expect![[r#"
        stderr: error: broken.yaml:3: column 6: misplaced bracket; the file is ignored until it is corrected
        exit status 1
    "#]]
    .assert_eq(&errors);
}

#[test]
fn what_is_not_understood_is_said_and_denied() {
    let strange = SHOP.replace("port: postgres", "port: 5432, protocol: QUIC");
    let text = output(folder(&strange).path(), &["render", "--node-name", "node-a"]);
    let errors = beside_the_ruleset(&text);
    expect![[r#"
        stderr: not understood: NetworkPolicy shop/db spec.ingress[0].ports[0].protocol: unknown protocol 'QUIC'; the port entry matches nothing
        exit status 0
    "#]]
    .assert_eq(&errors);
    assert!(!text.contains("5432"), "{text}");
}

#[test]
fn nflog_group_flag_selects_or_disables_the_group() {
    let folder = folder(SHOP);
    let rendered =
        |arguments: &[&str]| output(folder.path(), &[&["render", "--node-name", "node-a"], arguments].concat());
    assert!(rendered(&[]).contains("log prefix \"ringfence deny/ingress\" group 9470"));
    assert!(rendered(&["--nflog-group", "77"]).contains("group 77"));
    assert!(!rendered(&["--nflog-group", "off"]).contains("log prefix"));
    assert!(rendered(&["--nflog-group", "0"]).contains("must be auto, off, or 1 to 65535"));
}

#[test]
fn enforcement_flag_applies_to_unannotated_policies() {
    let folder = folder(SHOP);
    let text = output(folder.path(), &["render", "--node-name", "node-a", "--enforcement", "audit"]);
    assert!(text.contains("chain audit-ingress/shop/db/") && !text.contains("chain ingress/shop/db/"), "{text}");
}
