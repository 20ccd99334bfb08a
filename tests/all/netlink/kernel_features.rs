//! Kernel features, and foreign chains at the same hooks.

use nfnetlink::{BaseChain, Feature, KernelRelease, ProbeError, count_flows, probe};

use super::*;

#[test]
fn probe_finds_every_feature_and_leaves_nothing() {
    in_new_namespace(|| {
        let before = Kernel::open().unwrap().generation().unwrap();
        let features = probe().unwrap();
        assert_eq!(features.missing, []);
        assert_eq!(features.why_not(Feature::Protection), None);
        let mut kernel = Kernel::open().unwrap();
        assert_eq!((kernel.generation().unwrap(), kernel.tables().unwrap()), (before, vec![]));
        assert!(KernelRelease::of_kernel().unwrap().has_protection(), "the probe and the version agree");
    });
}

#[test]
fn probe_without_sys_admin_is_not_permitted() {
    const INSIDE: &str = "RINGFENCE_TEST_WITHOUT_CAP_SYS_ADMIN";
    if std::env::var_os(INSIDE).is_some() {
        let found = probe();
        assert!(matches!(found, Err(ProbeError::NotPermitted)), "{found:?}");
        return;
    }
    // A process cannot regain a dropped capability, so this test runs itself again in a separate process.
    let me = std::env::current_exe().unwrap();
    let test = "netlink::kernel_features::probe_without_sys_admin_is_not_permitted";
    let output = std::process::Command::new("setpriv")
        .args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"])
        .arg(me)
        .args(["--exact", test])
        .env(INSIDE, "1")
        .output()
        .expect("util-linux is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn base_chains_of_all_families_are_listed() {
    in_new_namespace(|| {
        load_text(
            "table ip nat { chain post { type nat hook postrouting priority srcnat; policy accept; \
             ip saddr 10.0.0.0/8 masquerade; }; chain inner { accept; }; }
             table inet fw { chain forwarding { type filter hook forward priority 10; policy drop; jump more; counter; }; chain more { }; }
             table bridge b { chain pre { type filter hook prerouting priority -300; }; }
             table netdev n { chain incoming { type filter hook ingress device lo priority 5; }; }
             table arp a { chain out { type filter hook output priority 0; }; }
             table ip6 m { chain mangle { type route hook output priority mangle; }; }",
        );
        let mut kernel = Kernel::open().unwrap();
        let mut reported: Vec<String> = kernel
            .base_chains()
            .unwrap()
            .into_iter()
            .map(|BaseChain { family, table, name, kind, hook, priority, drops, rules }| {
                format!("{family} {table} {name}: {kind} {hook} {priority} drops={drops} rules={rules}")
            })
            .collect();
        reported.sort();
        assert_eq!(
            reported,
            [
                "arp a out: filter output 0 drops=false rules=0",
                "bridge b pre: filter prerouting -300 drops=false rules=0",
                "inet fw forwarding: filter forward 10 drops=true rules=2",
                "ip nat post: nat postrouting 100 drops=false rules=1",
                "ip6 m mangle: route output -150 drops=false rules=0",
                "netdev n incoming: filter ingress 5 drops=false rules=0",
            ]
        );
        assert_eq!(kernel.flowtables().unwrap(), []);
        assert_eq!(kernel.tables().unwrap().len(), 6);
    });
}

#[test]
fn connection_tracking_tells_how_full_it_is() {
    in_new_namespace(|| {
        assert_eq!(count_flows().unwrap().entries, 0);
        let tuple = ["-I", "-p", "udp", "-s", "10.0.0.1", "-d", "10.0.0.2", "--sport", "4000", "--dport", "53"];
        conntrack(&[&tuple[..], &["--timeout", "600"]].concat());
        let count = count_flows().unwrap();
        assert_eq!(count.entries, 1);
        assert!(count.limit.is_some_and(|limit| limit > 0));
    });
}
