//! Classification of foreign rules at the same hooks: harmless, interfering, or a second engine. (The kernels that the
//! tests run on may lack flowtables.)

use super::{found, severities};
use crate::stage::Stage;

#[test]
fn node_without_foreign_tables_has_no_findings() {
    let stage = Stage::with_pods(&[("shop/a", &["10.1.0.1"])]);
    assert_eq!(severities(&stage, "other-tables"), ["ok"]);
    for id in ["other-engines", "flowtables", "notrack", "connection-mark"] {
        assert_eq!(severities(&stage, id), [""; 0], "{id}");
    }
}

#[test]
fn drop_policy_second_engine_and_notrack_are_named() {
    let stage = Stage::with_pods(&[("shop/a", &["10.1.0.1"])]);
    stage.nft("add table ip filter");
    stage.nft("add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }");
    stage.nft("add chain ip filter KUBE-NWPLCY-X");
    stage.nft("add table ip raw");
    stage.nft("add chain ip raw PREROUTING { type filter hook prerouting priority -300; }");
    stage.nft("add rule ip raw PREROUTING udp dport 53 notrack");
    let expected = [
        ("other-tables", "note", "ip filter FORWARD"),
        ("other-engines", "warning", "kube-router has rules on this node (ip filter KUBE-NWPLCY-X)"),
        ("notrack", "note", "ip raw PREROUTING"),
    ];
    for (id, severity, words) in expected {
        let findings = found(&stage, id);
        assert_eq!(findings.len(), 1, "{id}: {findings:?}");
        assert!(findings[0].0 == severity && findings[0].1.contains(words), "{id}: {findings:?}");
    }
}

#[test]
fn foreign_connection_marks_are_an_error_by_name() {
    let stage = Stage::with_pods(&[("shop/a", &["10.1.0.1"])]);
    stage.nft("add table ip netbird");
    stage.nft("add chain ip netbird marking { type filter hook prerouting priority -140; }");
    stage.nft("add rule ip netbird marking ct mark set ct mark and 0xffff0000 or 0x539");
    assert_eq!(severities(&stage, "connection-mark"), [""; 0], "only the lower half");
    stage.nft("add rule ip netbird marking ct mark set 0x1bd10");
    let findings = found(&stage, "connection-mark");
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].0 == "error" && findings[0].1.contains("ip netbird marking"), "{findings:?}");
}

#[test]
fn legacy_connmark_is_an_error_by_name() {
    for program in ["iptables-legacy", "ip6tables-legacy"] {
        let stage = Stage::with_pods(&[("shop/a", &["10.1.0.1"])]);
        let iptables = |words: &str| {
            let run = || std::process::Command::new(program).args(words.split(' ')).status();
            assert!(stage.lab.node_exec(crate::stage::NODE, run).expect("iptables is installed").success(), "{words}");
        };
        iptables("-t mangle -A PREROUTING -j CONNMARK --restore-mark");
        iptables("-t mangle -A PREROUTING -j CONNMARK --set-xmark 0x4000/0x4000");
        iptables("-t mangle -N marking");
        iptables("-t mangle -A marking -m comment --comment another -j CONNMARK --set-xmark 0x2000/0x2000");
        assert_eq!(severities(&stage, "connection-mark"), [""; 0], "the packet mark, and other bits");
        iptables("-t mangle -A marking -p udp -j CONNMARK --set-mark 0x1bd10");
        let findings = found(&stage, "connection-mark");
        assert_eq!(findings.len(), 1, "{findings:?}");
        let named = format!("{program} mangle marking (bits 0xffffffff)");
        assert!(findings[0].0 == "error" && findings[0].1.contains(&named), "{findings:?}");
        iptables("-t mangle -F marking");
        iptables("-t mangle -A FORWARD -j CONNMARK --save-mark");
        let findings = found(&stage, "connection-mark");
        assert!(findings[0].1.contains(&format!("{program} mangle FORWARD ")), "{findings:?}");
    }
}

#[test]
fn iptables_connmark_is_an_error_by_name() {
    let stage = Stage::with_pods(&[("shop/a", &["10.1.0.1"])]);
    let iptables = |words: &str| {
        let run = || std::process::Command::new("iptables-nft").args(words.split(' ')).status();
        assert!(stage.lab.node_exec(crate::stage::NODE, run).expect("iptables is installed").success(), "{words}");
    };
    iptables("-t mangle -A PREROUTING -j CONNMARK --restore-mark");
    iptables("-t mangle -A PREROUTING -j CONNMARK --set-xmark 0x4000/0x4000");
    assert_eq!(severities(&stage, "connection-mark"), [""; 0], "the packet mark, and another bit");
    iptables("-t mangle -A FORWARD -j CONNMARK --set-mark 0x1bd10");
    let findings = found(&stage, "connection-mark");
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].0 == "error" && findings[0].1.contains("ip mangle FORWARD"), "{findings:?}");
}
