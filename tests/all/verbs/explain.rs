use expect_test::{Expect, expect};
use kit::agent_process::run;
use serde_json::Value;

use super::{SHOP, folder, output};

#[track_caller]
fn check(flow: [&str; 3], expected: Expect) {
    expected.assert_eq(&output(folder(SHOP).path(), &[&["explain"], &flow[..]].concat()));
}

#[test]
fn allowed_flow_names_rule_with_status_0() {
    check(
        ["shop/web", "shop/db", "5432"],
        expect![[r#"
            ALLOWED  shop/web (10.1.0.1) -> shop/db (10.1.0.2) 5432/tcp
              egress of the source: allowed: no policy isolates the pod
              ingress of the destination: allowed by shop/db spec.ingress[0]
                isolated by shop/db
              identities: shop awgsopgaf3rh4 -> shop qx4fimb6a3wjs
            exit status 0
        "#]],
    );
}

#[test]
fn denied_flow_names_closest_rule_with_status_1() {
    check(
        ["ops/backup", "shop/db", "5432/tcp"],
        expect![[r#"
            DENIED  ops/backup (10.2.0.1) -> shop/db (10.1.0.2) 5432/tcp
              egress of the source: allowed: no policy isolates the pod
              ingress of the destination: denied
                isolated by shop/db
                closest rule: shop/db spec.ingress[0]; it lacks
                  the peer: ops/backup is not in namespace shop and does not match app=web
              identities: ops ffyzs6euv4dac -> shop qx4fimb6a3wjs
            exit status 1
        "#]],
    );
    check(
        ["ops/backup", "shop/db", "53/udp"],
        expect![[r#"
            DENIED  ops/backup (10.2.0.1) -> shop/db (10.1.0.2) 53/udp
              egress of the source: allowed: no policy isolates the pod
              ingress of the destination: denied
                isolated by shop/db
                closest rule: shop/db spec.ingress[0]; it lacks
                  the peer: ops/backup is not in namespace shop and does not match app=web
                  the port: it allows 'postgres' (5432/tcp there), not 53/udp
              identities: ops ffyzs6euv4dac -> shop qx4fimb6a3wjs
            exit status 1
        "#]],
    );
}

#[test]
fn node_and_its_pods_are_always_allowed() {
    let proxy = r#"
---
apiVersion: v1
kind: Pod
metadata: {name: proxy, namespace: ops}
spec: {nodeName: NODE, hostNetwork: true}
status: {phase: Running, podIPs: [{ip: 192.0.2.1}]}
"#;
    let of_node = |node| folder(&[SHOP, &proxy.replace("NODE", node)].concat());
    let flow = ["explain", "192.0.2.1", "shop/db", "80"];
    expect![[r#"
        ALLOWED  192.0.2.1 -> shop/db (10.1.0.2) 80/tcp
          egress of the source: not enforced: the address belongs to no pod
          ingress of the destination: always allowed: traffic between a node and its own pods
          identities: host -> shop qx4fimb6a3wjs
        exit status 0
    "#]]
    .assert_eq(&output(of_node("node-a").path(), &flow));
    assert!(output(of_node("node-b").path(), &flow).starts_with("DENIED  192.0.2.1 -> shop/db (10.1.0.2) 80/tcp\n"));
}

#[test]
fn parties_can_be_addresses() {
    check(
        ["192.0.2.1", "10.1.0.2", "5432"],
        expect![[r#"
            DENIED  192.0.2.1 -> shop/db (10.1.0.2) 5432/tcp
              egress of the source: not enforced: the address belongs to no pod
              ingress of the destination: denied
                isolated by shop/db
                closest rule: shop/db spec.ingress[0]; it lacks
                  the peer: 192.0.2.1, not the address of a pod, cannot match a selector
              identities: world -> shop qx4fimb6a3wjs
            exit status 1
        "#]],
    );
    check(
        ["10.1.0.1", "192.0.2.1", "443"],
        expect![[r#"
            ALLOWED  shop/web (10.1.0.1) -> 192.0.2.1 443/tcp
              egress of the source: allowed: no policy isolates the pod
              ingress of the destination: not enforced: the address belongs to no pod
              identities: shop awgsopgaf3rh4 -> world
            exit status 0
        "#]],
    );
    check(
        ["fd00:1::1", "2001:db8::1", "443"],
        expect![[r#"
            ALLOWED  shop/web (fd00:1::1) -> 2001:db8::1 443/tcp
              egress of the source: allowed: no policy isolates the pod
              ingress of the destination: not enforced: the address belongs to no pod
              identities: shop awgsopgaf3rh4 -> world
            exit status 0
        "#]],
    );
}

#[test]
fn traffic_is_a_named_port_or_icmp() {
    check(
        ["shop/web", "shop/db", "postgres"],
        expect![[r#"
            ALLOWED  shop/web (10.1.0.1) -> shop/db (10.1.0.2) 5432/tcp
              egress of the source: allowed: no policy isolates the pod
              ingress of the destination: allowed by shop/db spec.ingress[0]
                isolated by shop/db
              identities: shop awgsopgaf3rh4 -> shop qx4fimb6a3wjs
            exit status 0
        "#]],
    );
    check(
        ["shop/web", "shop/db", "icmp"],
        expect![[r#"
            DENIED  shop/web (10.1.0.1) -> shop/db (10.1.0.2) icmp
              egress of the source: allowed: no policy isolates the pod
              ingress of the destination: denied
                isolated by shop/db
                closest rule: shop/db spec.ingress[0]; it lacks
                  the port: it allows 'postgres' (5432/tcp there), not traffic without ports, such as icmp
              identities: shop awgsopgaf3rh4 -> shop qx4fimb6a3wjs
            exit status 1
        "#]],
    );
}

#[test]
fn a_pod_reaches_itself() {
    check(
        ["shop/db", "shop/db", "1/sctp"],
        expect![[r#"
            ALLOWED  shop/db (10.1.0.2) -> shop/db (10.1.0.2) 1/sctp
              egress of the source: allowed: no policy isolates the pod
              ingress of the destination: allowed: NetworkPolicies do not deny a pod's flows to itself
              identities: shop qx4fimb6a3wjs -> shop qx4fimb6a3wjs
            exit status 0
        "#]],
    );
}

#[test]
fn what_cannot_be_explained_ends_with_2() {
    check(
        ["shop/nobody", "shop/db", "80"],
        expect![[r#"
        stderr: error: pod shop/nobody not found; expected NAMESPACE/NAME
        exit status 2
    "#]],
    );
    check(
        ["shop/pending", "shop/db", "80"],
        expect![[r#"
        stderr: error: pod shop/pending has no address of its own (not started, finished, or on the host network)
        exit status 2
    "#]],
    );
    check(
        ["shop/web", "shop/db", "http"],
        expect![[r#"
            stderr: error: the destination pod has no port named 'http' for tcp
            exit status 2
        "#]],
    );
    check(
        ["fd00:1::1", "shop/db", "80"],
        expect![[r#"
        stderr: error: fd00:1::1 and shop/db have no address family in common
        exit status 2
    "#]],
    );
}

#[test]
fn as_json_every_family_is_an_entry() {
    let folder = folder(SHOP);
    let path = folder.path().to_str().unwrap();
    let explained = run(["explain", "shop/web", "shop/web", "80", "-o", "json", "--manifests", path]);
    assert_eq!(explained.code, Some(0));
    let entries: Value = serde_json::from_str(&explained.stdout).unwrap();
    let addresses: Vec<&str> =
        entries.as_array().unwrap().iter().map(|e| e["source"]["address"].as_str().unwrap()).collect();
    assert_eq!(addresses, ["10.1.0.1", "fd00:1::1"]);
    assert!(entries.as_array().unwrap().iter().all(|e| e["allowed"] == true && e["traffic"] == "80/tcp"));
}

#[test]
fn enforcement_flag_applies_to_unannotated_policies() {
    let flow = ["explain", "ops/backup", "shop/db", "5432"];
    let shop = folder(SHOP);
    let audited = output(shop.path(), &[&flow[..], &["--enforcement", "audit"]].concat());
    assert!(audited.starts_with("ALLOWED") && audited.ends_with("exit status 0\n"), "{audited}");
    assert!(audited.contains("only audited"), "{audited}");
    let enforced = output(shop.path(), &[&flow[..], &["--enforcement", "enforce"]].concat());
    assert!(enforced.starts_with("DENIED") && enforced.ends_with("exit status 1\n"), "{enforced}");
}

#[test]
fn enforcement_flag_requires_manifests() {
    let refused = run(["explain", "shop/web", "shop/db", "5432", "--enforcement", "audit"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("--enforcement needs --manifests"), "{}", refused.stderr);
}
