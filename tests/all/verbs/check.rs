use std::path::Path;

use expect_test::expect;
use kit::agent_process::run;
use serde_json::Value;

use super::{SHOP, folder, output};

/// One of each kind of finding.
const DOUBTFUL: &str = r#"
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: doubtful, namespace: shop}
spec:
  podSelector: {matchLabels: {app: gone}}
  egress:
  - to:
    - ipBlock: {cidr: 10.0.0.0/8, except: [192.168.0.0/16]}
    - podSelector: {matchLabels: {app: nobody}}
    ports: [{port: grpc}]
"#;

#[test]
fn good_manifests_give_a_count_and_status_0() {
    expect![[r#"
        1 policies checked: 0 errors, 0 warnings
        exit status 0
    "#]]
    .assert_eq(&output(folder(SHOP).path(), &["check", "--strict"]));
}

#[test]
fn cluster_policies_count_as_checked_policies() {
    let policy = concat!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: tenants}\n",
        "spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ",
        "ingress: [{action: Deny, from: [{namespaces: {}}]}]}\n"
    );
    let text = output(folder(&format!("{SHOP}{policy}")).path(), &["check"]);
    assert!(text.contains("2 policies checked: 0 errors"), "{text}");
}

#[test]
fn warnings_end_with_0_unless_strict() {
    let doubtful = folder(&format!("{SHOP}{DOUBTFUL}"));
    expect![[r#"
        warning: NetworkPolicy shop/doubtful spec.egress[0].ports: no pod has a container port named 'grpc' (tcp), so the entry matches nothing
        warning: NetworkPolicy shop/doubtful spec.egress[0].to: 'pods app=nobody in shop' matches no pod
        warning: NetworkPolicy shop/doubtful spec.egress[0].to: except 192.168.0.0/16 is outside of 10.0.0.0/8 and has no effect
        warning: NetworkPolicy shop/doubtful spec.podSelector: selects no pod
        2 policies checked: 0 errors, 4 warnings
        exit status 0
    "#]].assert_eq(&output(doubtful.path(), &["check"]));
    assert!(output(doubtful.path(), &["check", "--strict"]).ends_with("exit status 1\n"));
}

#[test]
fn unsupported_fields_and_invalid_files_end_with_1() {
    let wrong = folder(&format!(
        "{SHOP}---\nkind: NetworkPolicy\nmetadata: {{name: x, namespace: shop}}\nspec: {{ingress: [{{fro: []}}]}}\n"
    ));
    std::fs::write(wrong.path().join("broken.yaml"), "kind: Pod\nmetadata:\n\tname: x\n").unwrap();
    expect![[r#"
        error: broken.yaml:3: column 2: tabs disallowed within this context (block indentation); the file is ignored until it is corrected
        error: NetworkPolicy shop/x apiVersion: missing; the policy isolates the selected pods and allows nothing
        2 policies checked: 2 errors, 0 warnings
        exit status 1
    "#]].assert_eq(&output(wrong.path(), &["check"]));
}

#[test]
fn as_json_the_findings_are_one_object() {
    let doubtful = folder(&format!("{SHOP}{DOUBTFUL}"));
    std::fs::write(doubtful.path().join("broken.yaml"), "a: ]").unwrap();
    let checked = run(["check", "--output", "json", "--manifests", doubtful.path().to_str().unwrap()]);
    assert_eq!(checked.code, Some(1));
    let found: Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!(found["problems"][0]["origin"], "broken.yaml:1", "{found}");
    let first = &found["findings"][0];
    for field in ["severity", "kind", "object", "field", "message"] {
        assert!(!first[field].is_null(), "{field} of {first}");
    }
    assert_eq!((&first["severity"], &first["kind"]), (&"warning".into(), &"NetworkPolicy".into()));
}

#[test]
fn a_missing_folder_ends_with_2() {
    let text = output(Path::new("/nowhere/manifests"), &["check"]);
    expect![[r#"
        stderr: error: manifest folder DIR: No such file or directory (os error 2)
        exit status 2
    "#]]
    .assert_eq(&text);
}

/// This policy is enforced whatever the default is.
const ENFORCED: &str = r#"
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop, annotations: {ringfence.io/enforcement: enforce}}
spec: {podSelector: {matchLabels: {app: db}}}
"#;

#[test]
fn enforcement_flag_applies_to_unannotated_policies() {
    let both = folder(&format!("{SHOP}{ENFORCED}"));
    let check = |enforcement| output(both.path(), &["check", "--enforcement", enforcement]);
    assert!(check("enforce").ends_with("0 errors, 0 warnings\nexit status 0\n"), "{}", check("enforce"));
    let audited = check("audit");
    assert!(audited.contains("NetworkPolicy shop/db metadata.annotations: is audited"), "{audited}");
}
