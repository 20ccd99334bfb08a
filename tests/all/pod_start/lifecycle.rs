use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::process::Command;

use cni::protocol::{Request, Response, read_response, write_request};
use cni::store;
use kit::agent_process::{AgentProcess, until};
use serde_json::{Value, json};

use super::{ANSWERED_SECONDS, Network, Pod, Running, Site, egress, pending};
use crate::stage::{namespace, policy};

const UNAVAILABLE: u64 = 50;
const NOT_IN_FORCE: u64 = 100;

fn objects() -> [Value; 4] {
    [namespace("shop", ""), egress("web", "app=web", "app=db"), pending("web", "app=web"), pending("db", "app=db")]
}

fn site() -> Site {
    Site::with(&objects())
}

/// Waits until the kernel's rules match the remaining attachments, and have none of these addresses.
#[track_caller]
fn until_forgotten(site: &Site, addresses: &[IpAddr]) {
    until("the addresses are in no rule", || (!addresses.iter().any(|a| site.mentions(*a))).then_some(()));
    until("the rules are those of who is left", || site.stage.enforces(&site.state(&objects())).then_some(()));
}

fn ticking(site: &Site) -> Command {
    let mut command = site.agent();
    command.args(["--resync-secs", "1"]);
    command
}

fn start(site: &Site, command: Command) -> AgentProcess<'_> {
    let mut agent = site.stage.start(command);
    agent.until_ready();
    agent
}

#[test]
fn repeated_delete_removes_pod_from_kernel() {
    let site = site();
    let _agent = site.start_agent();
    let runtime = site.runtime(Network::Routed, json!({}));
    let [web, db] = ["web", "db"].map(|name| Running::start(&runtime, name));
    for _ in 0..2 {
        let steps = runtime.delete(&web.pod.container).unwrap();
        assert_eq!((&steps[0].plugin[..], &steps[0].stdout[..], &steps[0].stderr[..]), ("ringfence-cni", "", ""));
        until_forgotten(&site, &web.addresses);
    }
    runtime.check(&db.pod.container).unwrap();
}

#[test]
fn pod_deleted_without_agent_is_removed_at_restart() {
    let site = site();
    let agent = site.start_agent();
    let runtime = site.runtime(Network::Bridged, json!({}));
    let [web, _db] = ["web", "db"].map(|name| Running::start(&runtime, name));
    drop(agent);
    for _ in 0..2 {
        runtime.delete(&web.pod.container).unwrap();
    }
    let _agent = site.start_agent();
    until_forgotten(&site, &web.addresses);
}

#[test]
fn pod_deleted_without_notice_is_removed_at_resync() {
    let site = site();
    let _agent = start(&site, ticking(&site));
    let runtime = site.runtime(Network::Routed, json!({}));
    let [web, _db] = ["web", "db"].map(|name| Running::start(&runtime, name));
    let past = json!({"agentSocket": site.folder.path().join("nobody.sock")});
    let runtime = site.runtime(Network::Routed, past);
    let steps = runtime.delete(&web.pod.container).unwrap();
    assert!(steps[0].stderr.contains("cannot connect to the agent"), "{steps:?}");
    until_forgotten(&site, &web.addresses);
}

#[test]
fn late_delete_removes_nothing_while_attachment_is_stored() {
    let site = site();
    let _agent = site.start_agent();
    let runtime = site.runtime(Network::Routed, json!({}));
    let web = Running::start(&runtime, "web");
    let mut stream = UnixStream::connect(site.stage.run_dir().join("cni.sock")).unwrap();
    write_request(&mut stream, &Request::Delete(web.pod.id())).unwrap();
    assert_eq!(read_response(&mut stream).unwrap(), Response::Ok);
    // The agent answers CHECK after it has processed the earlier request.
    runtime.check(&web.pod.container).unwrap();
    site.assert_enforced(&objects(), &web.addresses);
}

#[test]
fn add_fails_when_state_directories_differ() {
    let site = site();
    let _agent = site.start_agent();
    let elsewhere = json!({"stateDir": site.folder.path().join("elsewhere"), "timeoutSeconds": 5});
    let failed = site.runtime(Network::Routed, elsewhere).add(&Pod::new("web").container).unwrap_err();
    assert_eq!(failed.code, 11);
    assert!(failed.details.contains("attachment file not found in"), "{failed:?}");
    assert!(failed.details.contains("stateDir"), "{failed:?}");
    site.assert_enforced(&objects(), &[]);
    assert!(!site.mentions("10.1.0.2".parse().unwrap()));
}

#[test]
fn gc_removes_stale_pods_from_kernel_only() {
    let site = site();
    let _agent = site.start_agent();
    let runtime = site.runtime(Network::Routed, json!({}));
    let [web, db] = ["web", "db"].map(|name| Running::start(&runtime, name));
    // Debian's plugins do not support 1.1.0.
    let ours_alone = site.chain("1.1.0", &[site.ours(json!({}))]);
    ours_alone.gc(&[&db.pod.container]).unwrap();
    until_forgotten(&site, &web.addresses);
    runtime.check(&db.pod.container).unwrap();
    assert_eq!(store::read(&site.stage.run_dir().join("cni"), &web.pod.id()).unwrap(), None);
}

#[test]
fn check_reports_whether_rules_are_in_force() {
    let site = site();
    let agent = site.start_agent();
    let runtime = site.runtime(Network::Routed, json!({}));
    let web = Running::start(&runtime, "web");
    runtime.check(&web.pod.container).unwrap();
    drop(agent);
    let in_vain = site.runtime(Network::Routed, json!({"timeoutSeconds": 1}));
    let failed = in_vain.check(&web.pod.container).unwrap_err();
    assert!(failed.code == 11 && failed.details.contains("cannot connect to the agent"), "{failed:?}");
    let _agent = site.start_agent();
    runtime.check(&web.pod.container).unwrap();
    store::remove(&site.stage.run_dir().join("cni"), &web.pod.id()).unwrap();
    assert_eq!(runtime.check(&web.pod.container).unwrap_err().code, NOT_IN_FORCE);
}

#[test]
fn the_status_is_whether_an_add_could_succeed() {
    let site = site();
    let in_vain = site.chain("1.1.0", &[site.ours(json!({"timeoutSeconds": 1}))]);
    let isolating = site.chain("1.1.0", &[site.ours(json!({"timeoutSeconds": 1, "onTimeout": "isolate"}))]);
    let failed = in_vain.status().unwrap_err();
    assert_eq!(failed.code, UNAVAILABLE);
    assert!(failed.details.contains("kubectl apply -f deploy/uninstall.yaml"), "{failed:?}");
    // New pods would be isolated, with all traffic denied.
    assert!(
        isolating.status().unwrap()[0].stderr.contains("pods that start now are isolated, with all traffic denied")
    );
    site.api.faults(|faults| faults.silent = true);
    let mut agent = site.stage.start(site.agent());
    let socket = site.stage.run_dir().join("cni.sock");
    agent.until("it listens", |_| socket.exists().then_some(()));
    let answered = site.chain("1.1.0", &[site.ours(json!({"timeoutSeconds": ANSWERED_SECONDS}))]);
    let failed = answered.status().unwrap_err();
    assert_eq!(failed.code, UNAVAILABLE);
    assert!(failed.details.contains("initial sync not complete; waiting for the list of"), "{failed:?}");
    site.api.faults(|faults| faults.silent = false);
    agent.until_ready();
    site.chain("1.1.0", &[site.ours(json!({}))]).status().unwrap();
}

#[test]
fn status_waits_for_an_agent_that_restarts() {
    let site = site();
    drop(site.start_agent());
    let runtime = site.chain("1.1.0", &[site.ours(json!({}))]);
    std::thread::scope(|scope| {
        let status = scope.spawn(|| runtime.status());
        // STATUS finds no listener on the socket, and retries until another agent has completed its initial sync.
        let _agent = site.stage.start(site.agent());
        status.join().unwrap().unwrap();
    });
}

/// Without the attachment, the interface would not be checked, and frames to others would reach the isolated pod.
#[test]
fn unreadable_attachment_of_running_pod_stays_enforced() {
    let closed = policy("closed", "app=web", json!({"policyTypes": ["Ingress"]}));
    let site = Site::with(&[&objects()[..], &[closed]].concat());
    let mut agent = start(&site, ticking(&site));
    let runtime = site.runtime(Network::Bridged, json!({}));
    let web = Running::start(&runtime, "web");
    let tables = || ["netdev", "bridge"].map(|family| site.stage.nft(&format!("-s list table {family} ringfence")));
    let before = tables();
    let file = site.stage.run_dir().join("cni").join(store::file_name(&web.pod.id()));
    let text = std::fs::read(&file).unwrap();
    std::fs::write(&file, "{").unwrap();
    agent.until_logged(&["invalid attachment file"]);
    // Commits its rules.
    let db = Running::start(&runtime, "db");
    assert!(site.mentions(db.addresses[0]));
    runtime.delete(&db.pod.container).unwrap();
    until("only the other pod is left", || (!site.mentions(db.addresses[0])).then_some(()));
    assert_eq!(tables(), before);
    std::fs::write(&file, text).unwrap();
    agent.until_ready();
    assert_eq!(tables(), before);
}

#[test]
fn unreadable_attachment_is_reported_and_pods_still_start() {
    let site = site();
    let agent = site.start_agent();
    let runtime = site.runtime(Network::Routed, json!({}));
    let web = Running::start(&runtime, "web");
    drop(agent);
    let folder = site.stage.run_dir().join("cni");
    std::fs::write(folder.join("cut@eth0.json"), "{").unwrap();
    let mut agent = site.stage.start(site.agent());
    agent.until_logged(&["cut@eth0.json: "]);
    agent.until_logged(&["initial sync complete"]);
    let status = site.chain("1.1.0", &[site.ours(json!({}))]);
    // The agent reports that it is not ready, and why; but pods can start, so the node stays ready.
    agent.until("it says why", |agent| agent.get("/readyz").body.contains("cut@eth0.json").then_some(()));
    status.status().unwrap();
    let db = Running::start(&runtime, "db");
    assert!(web.addresses.iter().chain(&db.addresses).all(|a| site.mentions(*a)));
}
