//! Rules of others at the same hooks are told apart: harmless, in the way, or a second engine. (The kernels that the
//! tests run on need not have flowtables.)

use super::{found, severities};
use crate::stage::Stage;

#[test]
fn a_node_without_other_tables_has_nothing_to_tell() {
    let stage = Stage::with_pods(&[("shop/a", &["10.1.0.1"])]);
    assert_eq!(severities(&stage, "other-tables"), ["ok"]);
    for id in ["other-engines", "flowtables", "notrack"] {
        assert_eq!(severities(&stage, id), [""; 0], "{id}");
    }
}

#[test]
fn a_drop_policy_a_second_engine_and_raw_rules_are_told_by_name() {
    let stage = Stage::with_pods(&[("shop/a", &["10.1.0.1"])]);
    stage.nft("add table ip filter");
    stage.nft("add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }");
    stage.nft("add chain ip filter KUBE-NWPLCY-X");
    stage.nft("add table ip raw");
    stage.nft("add chain ip raw PREROUTING { type filter hook prerouting priority -300; }");
    stage.nft("add rule ip raw PREROUTING udp dport 53 notrack");
    let expected = [
        ("other-tables", "note", "ip filter FORWARD"),
        ("other-engines", "warning", "kube-router has rules here (ip filter KUBE-NWPLCY-X)"),
        ("notrack", "note", "ip raw PREROUTING"),
    ];
    for (id, severity, words) in expected {
        let findings = found(&stage, id);
        assert_eq!(findings.len(), 1, "{id}: {findings:?}");
        assert!(findings[0].0 == severity && findings[0].1.contains(words), "{id}: {findings:?}");
    }
}
