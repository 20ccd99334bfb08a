//! Opens each screen of the flows page on the generated cluster of 300 workloads.

use std::collections::BTreeSet;

use kit::agent_process::ringfence;

use super::*;

/// Narrows `team-00/db` to its flows from `team-00/api`.
const DB_FROM_API: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: team-00, name: db-from-team}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: api}}}]
    ports: [{port: 5009}]
";

/// `served` has the manifests of the cluster, and observes edges.
#[track_caller]
pub(super) fn assert_screens_work(served: &Served) {
    for width in [1440, 800] {
        let mut tab = Tab::open(width, 900);
        served.open(&mut tab, "?pause");
        table(&mut tab);
        flows(&mut tab);
        workload(&mut tab);
        policies(&mut tab);
        audit(&mut tab);
        what_if(&mut tab);
        coverage(&mut tab);
        edge_panel(&mut tab, served);
        assert_clean(&mut tab, served);
    }
}

/// No content of the screen is wider than its frame or the window.
#[track_caller]
pub(super) fn assert_fits(tab: &mut Tab) {
    let excess = "[document.documentElement, ...document.querySelectorAll('.scroll')]
        .map((frame) => frame.scrollWidth - frame.clientWidth).filter((pixels) => pixels > 0)";
    assert_eq!(tab.evaluate(excess), serde_json::json!([]), "{}", text(tab));
}

/// Suggestions exclude `kube-system` by default; `excludeNamespace` replaces the default.
#[track_caller]
pub(super) fn assert_system_namespace_is_left_out(served: &Served) {
    let namespaces = |query: &str| -> BTreeSet<String> {
        let answer = served.aggregator.try_json(&format!("/v1/suggestions{query}")).unwrap();
        let policies = answer["policies"].as_array().unwrap();
        policies.iter().map(|policy| policy["namespace"].as_str().unwrap().to_owned()).collect()
    };
    let (usual, others) = (namespaces(""), namespaces("?excludeNamespace=monitoring"));
    assert!(usual.contains("monitoring") && usual.contains("team-24") && !usual.contains("kube-system"), "{usual:?}");
    assert!(others.contains("kube-system") && !others.contains("monitoring"), "{others:?}");
    let all = ringfence().args(["suggest", "--all-namespaces", "--server", &served.aggregator.url()]).output().unwrap();
    let written = String::from_utf8(all.stdout).unwrap();
    assert!(written.contains("namespace: team-24\n") && !written.contains("namespace: kube-system\n"));
}

fn table(tab: &mut Tab) {
    tab.press("t", "t");
    tab.until("document.querySelectorAll('tbody tr').length > 700");
    until_loaded(tab);
    assert_fits(tab);
    tab.evaluate("document.querySelector('[data-key=\"pod/team-01/reports pod/team-04/api\"]').click()");
    tab.until("document.querySelector('.panel .side') !== null");
    assert_shows(tab, &["team-01/reports → team-04/api", "8080/tcp"]);
    tab.press("Escape", "");
    tab.until("document.querySelector('.panel') === null");
}

fn flows(tab: &mut Tab) {
    tab.press("2", "2");
    tab.until("document.querySelector('.expand') !== null");
    until_loaded(tab);
    assert_fits(tab);
    tab.evaluate("document.querySelector('.expand').click()");
    tab.until("document.querySelector('.record') !== null");
    assert_shows(tab, &["Egress", "Ingress", "Seen by", "worker-"]);
    assert_fits(tab);
}

fn workload(tab: &mut Tab) {
    tab.press("3", "3");
    tab.until("document.querySelector('[data-key^=\"workload pod/team-00/db \"]') !== null");
    until_loaded(tab);
    assert_fits(tab);
    tab.evaluate("document.querySelector('[data-key^=\"workload pod/team-00/db \"]').click()");
    tab.until("document.querySelector('h1')?.textContent === 'team-00/db'");
    assert_shows(
        tab,
        &[
            "Incoming",
            "team-00/cache",
            "Outgoing",
            "Declared, and not seen",
            "team-00/auth",
            "5432/tcp",
            "ingress: team-00/db-from-team spec.ingress",
        ],
    );
    assert_fits(tab);
}

fn policies(tab: &mut Tab) {
    tab.press("5", "5");
    tab.until("document.querySelector('[data-scroll=unseen]') !== null");
    until_loaded(tab);
    assert_shows(tab, &["team-00/db-from-team", "Declared, and not seen"]);
    assert_fits(tab);
    tab.evaluate("[...document.querySelectorAll('a')].find((a) => a.textContent === 'team-00/db-from-team').click()");
    tab.until("document.querySelector('h1')?.textContent === 'team-00/db-from-team'");
    tab.until("document.querySelectorAll('[data-scroll=unseen] tbody tr').length === 1");
    assert_shows(tab, &["Rules that decided", "team-00/cache → team-00/db", "team-00/auth", "5432/tcp"]);
    assert_fits(tab);
}

fn audit(tab: &mut Tab) {
    tab.press("4", "4");
    tab.until("document.querySelectorAll('details.commands').length === 10");
    until_loaded(tab);
    tab.evaluate("document.querySelectorAll('details.commands').forEach((commands) => { commands.open = true })");
    assert_shows(
        tab,
        &[
            "0 of 10 policies. A policy is ready after 7 days",
            "team-01/least-privilege",
            "not ready",
            "it was observed for",
            "kubectl annotate networkpolicies.networking.k8s.io least-privilege --namespace team-01 \
             ringfence.io/enforcement=enforce --overwrite",
            "kubectl annotate networkpolicies.networking.k8s.io least-privilege --namespace team-01 \
             ringfence.io/enforcement=audit --overwrite",
            "would have denied flows",
            "Edges seen for the first time",
        ],
    );
    tab.evaluate(
        "(() => {
            const field = document.getElementById('suggest');
            field.value = 'team-00';
            field.dispatchEvent(new Event('change', { bubbles: true }));
        })()",
    );
    tab.until("document.querySelectorAll('.difference').length === 12");
    assert_shows(tab, &["team-00/ringfence-suggested-api", "Compared with team-00/api-from-team"]);
    assert_fits(tab);
    tab.evaluate("document.activeElement.blur()");
}

fn what_if(tab: &mut Tab) {
    tab.press("6", "6");
    tab.until("document.getElementById('policies') !== null");
    until_loaded(tab);
    let given = serde_json::to_string(DB_FROM_API).unwrap();
    tab.evaluate(&format!(
        "document.getElementById('policies').value = {given}; document.querySelector('[data-key=compare]').click()"
    ));
    tab.until("document.querySelectorAll('.result tbody tr').length === 2");
    assert_shows(
        tab,
        &[
            "NetworkPolicy team-00/db-from-team would be changed",
            "newly denied",
            "team-00/cache → team-00/db",
            "5009/tcp",
        ],
    );
    assert_fits(tab);
}

fn coverage(tab: &mut Tab) {
    tab.press("7", "7");
    tab.until("document.querySelector('.tile') !== null");
    until_loaded(tab);
    assert_shows(tab, &["4 of 4", "worker-4", "sends", "Observed edges", "Edges kept", "No problems."]);
    assert_fits(tab);
}

/// The panel of two groups from the map, and that of two workloads.
fn edge_panel(tab: &mut Tab, served: &Served) {
    tab.press("1", "1");
    tab.until("document.querySelector('.group') !== null");
    tab.evaluate(
        "document.querySelector('.edge[data-source=\"ns/team-01\"][data-target=\"ns/kube-system\"]')
            .dispatchEvent(new MouseEvent('click', { bubbles: true }))",
    );
    tab.until("document.querySelector('.panel') !== null && document.documentElement.dataset.busy === 'false'");
    assert_shows(tab, &["team-01 → kube-system", "reports → coredns"]);
    served.open(tab, "?pause&from=pod/team-01/reports&to=pod/team-04/api");
    tab.until("document.querySelector('.panel .explained') !== null");
    assert_shows(
        tab,
        &[
            "team-01/reports → team-04/api",
            "not declared",
            "ringfence explain team-01/reports-7d4b9c-x2k4p team-04/api-7d4b9c-x2k4p 8080/tcp",
            "passes only because policies are audited",
            "policies in audit would deny it",
        ],
    );
    tab.press("Escape", "");
    tab.until("document.querySelector('.panel') === null");
}
