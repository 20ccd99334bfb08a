use std::sync::atomic::{AtomicBool, Ordering};

use kit::agent_process::until;
use kit::fake_api::Verb;
use kit::prober::{Sent, arrivals, count_arrivals};
use policy::Kind;
use serde_json::{Value, json};

use super::{
    ANSWERED_SECONDS, ISOLATED, NO, Network, Pod, Running, Site, TRY_AGAIN_LATER, YES, egress, pending, reaches,
};
use crate::stage::{NODE, ingress, namespace, set_all};

/// The address of the first pod.
const FIRST: &str = "10.1.0.2";

fn objects() -> Vec<Value> {
    vec![
        namespace("shop", ""),
        egress("late", "app=late", "app=db"),
        pending("db", "app=db"),
        pending("other", "app=other"),
        pending("late", "app=late"),
    ]
}

fn isolating() -> Value {
    json!({"timeoutSeconds": 1, "onTimeout": "isolate"})
}

#[test]
fn pod_does_not_start_until_an_agent_runs() {
    let site = Site::with(&objects());
    let refused = site.runtime(Network::Routed, json!({"timeoutSeconds": 1}));
    let runtime = site.runtime(Network::Routed, json!({}));
    let pod = Pod::new("late");
    let failed = refused.add(&pod.container).unwrap_err();
    assert_eq!(failed.code, TRY_AGAIN_LATER);
    assert!(failed.details.contains("cannot connect to the agent"), "{failed:?}");
    runtime.delete(&pod.container).unwrap();
    assert_eq!(site.stage.tables(), "");
    let _agent = site.start_agent();
    let late = Running::start(&runtime, "late");
    site.assert_enforced(&objects(), &late.addresses);
}

#[test]
fn pod_waits_for_an_agent_that_is_starting() {
    let site = Site::with(&objects());
    let runtime = site.runtime(Network::Routed, json!({}));
    std::thread::scope(|scope| {
        let add = scope.spawn(|| Running::start(&runtime, "late"));
        let kept = site.stage.run_dir().join("cni");
        until("the plugin waits", || kept.exists().then_some(()));
        let _agent = site.stage.start(site.agent());
        let late = add.join().unwrap();
        site.assert_enforced(&objects(), &late.addresses);
    });
}

#[test]
fn agent_adopts_isolated_pod_without_leaking_packets() {
    for network in [Network::Routed, Network::Bridged] {
        let site = Site::with(&objects());
        let agent = site.start_agent();
        let runtime = site.runtime(network, json!({}));
        let [db, other] = ["db", "other"].map(|name| Running::start(&runtime, name));
        drop(agent);
        let late = Running::start(&site.runtime(network, isolating()), "late");
        assert!(site.stage.tables().contains(ISOLATED));
        assert_eq!([&db, &other].map(|to| reaches(&late, to)), [NO, NO], "{network:?}");
        assert_eq!([&db, &other].map(|from| reaches(from, &late)), [NO, NO], "{network:?}");

        for (peer, family) in [(&other, 0), (&other, 1)] {
            let at = peer.addresses[family];
            peer.pod.sandbox.run(|| count_arrivals(&[at]));
            let done = AtomicBool::new(false);
            let sent = std::thread::scope(|scope| {
                let prober = scope.spawn(|| {
                    let mut all = 0;
                    while !done.load(Ordering::Relaxed) {
                        let Sent { datagrams, connections } = late.pod.send(at).end();
                        all += datagrams + connections;
                    }
                    all
                });
                let agent = site.start_agent();
                until("the plugin's table is gone", || (!site.stage.tables().contains(ISOLATED)).then_some(()));
                site.assert_enforced(&objects(), &late.addresses);
                drop(agent);
                done.store(true, Ordering::Relaxed);
                prober.join().unwrap()
            });
            assert!(sent > 100, "{sent}");
            let arrived = peer.pod.sandbox.run(arrivals);
            assert!(!arrived.contains_key(&late.addresses[family]), "{network:?}: {arrived:?}");
        }
        // After neighbour resolution has failed for so long, the kernel retries it after a second.
        until("the pod reaches its peer", || (reaches(&late, &db) == YES).then_some(()));
        assert_eq!(reaches(&late, &other), NO, "{network:?}");
        until("the pod is reached", || ([&db, &other].map(|from| reaches(from, &late)) == [YES, YES]).then_some(()));
    }
}

#[test]
fn adopted_unknown_pod_stays_denied_until_known() {
    let mut known = objects();
    let late = known.pop().unwrap();
    let site = Site::with(&known);
    let runtime = site.runtime(Network::Routed, isolating());
    let [db, stranger] = ["db", "late"].map(|name| Running::start(&runtime, name));
    let _agent = site.start_agent();
    until("the agent has both", || (!site.stage.tables().contains(ISOLATED)).then_some(()));
    assert_eq!((reaches(&stranger, &db), reaches(&db, &stranger)), (NO, NO));
    set_all(&site.api, std::slice::from_ref(&late));
    known.push(late);
    until("it is policed", || site.stage.enforces(&site.state(&known)).then_some(()));
    assert_eq!((reaches(&stranger, &db), reaches(&db, &stranger)), (YES, YES));
}

#[test]
fn add_fails_until_initial_sync_completes() {
    for kind in Kind::NEEDED {
        let site = Site::with(&objects());
        site.api.faults(|f| f.refuse(kind, &[Verb::List, Verb::Watch], 403));
        let mut agent = site.stage.start(site.agent());
        let socket = site.stage.run_dir().join("cni.sock");
        agent.until("it listens", |_| socket.exists().then_some(()));
        let pod = Pod::new("late");
        let refused = site.runtime(Network::Routed, json!({"timeoutSeconds": ANSWERED_SECONDS}));
        let failed = refused.add(&pod.container).unwrap_err();
        assert_eq!(failed.code, TRY_AGAIN_LATER);
        let reason = format!("initial sync not complete; waiting for the list of: {kind}");
        assert!(failed.details.contains(&reason), "{failed:?}");
        refused.delete(&pod.container).unwrap();

        let late = Running::start(&site.runtime(Network::Routed, isolating()), "late");
        assert_eq!(site.stage.tables(), format!("{ISOLATED}\ntable netdev ringfence-isolated\n"));
        site.api.faults(|f| f.refusals.clear());
        agent.until_ready();
        agent.until("it takes the pod over", |_| (!site.stage.tables().contains(ISOLATED)).then_some(()));
        site.assert_enforced(&objects(), &late.addresses);
    }
}

#[test]
fn pending_add_survives_agent_restart() {
    let mut known = objects();
    let late = known.pop().unwrap();
    let site = Site::with(&known);
    let runtime = site.runtime(Network::Routed, json!({}));
    let first = site.start_agent();
    std::thread::scope(|scope| {
        let add = scope.spawn(|| Running::start(&runtime, "late"));
        until("the agent asks for it", || (site.api.count(Verb::Get, Kind::Pod) > 0).then_some(()));
        drop(first);
        let _second = site.start_agent();
        assert!(!add.is_finished());
        set_all(&site.api, std::slice::from_ref(&late));
        known.push(late);
        let running = add.join().unwrap();
        site.assert_enforced(&known, &running.addresses);
    });
}

/// The plugin isolates new pods, and its socket path leads to no agent.
fn past_the_agent(site: &Site) -> Value {
    let mut keys = isolating();
    keys["agentSocket"] = json!(site.folder.path().join("nobody.sock"));
    keys
}

#[test]
fn pod_isolated_beside_running_agent_is_adopted() {
    let site = Site::with(&objects());
    let mut agent = site.start_agent();
    let late = Running::start(&site.runtime(Network::Routed, past_the_agent(&site)), "late");
    agent.until("it takes the pod over", |_| (!site.stage.tables().contains(ISOLATED)).then_some(()));
    site.assert_enforced(&objects(), &late.addresses);
}

#[test]
fn hung_agent_forgets_pod_whose_add_timed_out() {
    let site = Site::with(&objects());
    let mut agent = site.start_agent();
    agent.hang();
    let refused = site.runtime(Network::Routed, json!({"timeoutSeconds": 1}));
    let runtime = site.runtime(Network::Routed, json!({}));
    let pod = Pod::new("late");
    let failed = refused.add(&pod.container).unwrap_err();
    assert!(failed.code == TRY_AGAIN_LATER && failed.details.contains("no response from the agent"), "{failed:?}");
    runtime.delete(&pod.container).unwrap();
    agent.resume();
    agent.until_logged(&["CNI ADD refused: attachment file not found"]);
    let late = Running::start(&runtime, "late");
    assert_ne!(late.addresses[0].to_string(), FIRST);
    assert!(!site.mentions(FIRST.parse().unwrap()));
    site.assert_enforced(&objects(), &late.addresses);
}

#[test]
fn hung_agent_adopts_pod_isolated_meanwhile() {
    let site = Site::with(&objects());
    let mut agent = site.start_agent();
    let runtime = site.runtime(Network::Routed, json!({}));
    let [db, other] = ["db", "other"].map(|name| Running::start(&runtime, name));
    agent.hang();
    let late = Running::start(&site.runtime(Network::Routed, isolating()), "late");
    assert_eq!([&db, &other].map(|to| reaches(&late, to)), [NO, NO]);
    agent.resume();
    agent.until("it takes the pod over", |_| (!site.stage.tables().contains(ISOLATED)).then_some(()));
    site.assert_enforced(&objects(), &late.addresses);
    // While the pod was isolated its ARP requests got no reply, and it repeats them after a second.
    agent.until("it reaches its peer", |_| (reaches(&late, &db) == YES).then_some(()));
    assert_eq!(reaches(&late, &other), NO);
}

/// Whether bridged packets pass the IP hooks, without which policies between pods of a bridge are not enforced.
fn call_hooks_on_bridges(site: &Site, value: &str) {
    site.stage.lab.node_exec(NODE, || {
        for family in ["iptables", "ip6tables"] {
            std::fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{family}"), value).unwrap();
        }
    });
}

#[test]
fn refused_pod_stays_isolated_until_adds_succeed() {
    let site = Site::with(&objects());
    let agent = site.start_agent();
    let runtime = site.runtime(Network::Bridged, json!({}));
    let [db, other] = ["db", "other"].map(|name| Running::start(&runtime, name));
    call_hooks_on_bridges(&site, "0");
    let mut keys = isolating();
    keys["timeoutSeconds"] = json!(ANSWERED_SECONDS);
    let isolating = site.runtime(Network::Bridged, keys);
    let late = Running::start(&isolating, "late");
    // When a second ADD is refused, the agent has seen the plugin's commit for the first one.
    let later = Running::start(&isolating, "later");
    assert!(site.stage.tables().contains(ISOLATED));
    for pod in [&late, &later] {
        assert_eq!([&db, &other].map(|to| reaches(pod, to)), [NO, NO]);
        assert_eq!([&db, &other].map(|from| reaches(from, pod)), [NO, NO]);
    }
    let unchecked = runtime.check(&db.pod.container).unwrap_err();
    assert!(unchecked.details.contains("bridge cni0"), "{unchecked:?}");

    drop(agent);
    let mut command = site.agent();
    command.args(["--resync-secs", "1"]);
    let mut agent = site.stage.start(command);
    agent.until("bridges alone keep it from being ready", |agent| {
        agent.try_get("/readyz").ok().filter(|answer| answer.status == 503 && answer.body.contains("bridge cni0"))
    });
    assert_eq!([&db, &other].map(|to| reaches(&late, to)), [NO, NO]);
    assert!(site.stage.tables().contains(ISOLATED));

    call_hooks_on_bridges(&site, "1");
    agent.until("it adopts the pods", |_| (!site.stage.tables().contains(ISOLATED)).then_some(()));
    runtime.check(&db.pod.container).unwrap();
    agent.until("the pod reaches its peer", |_| (reaches(&late, &db) == YES).then_some(()));
    assert_eq!(reaches(&late, &other), NO);
}

#[test]
fn adopted_pod_with_reused_address_inherits_no_rules() {
    let objects = [
        namespace("shop", ""),
        ingress("db", "app=db", "app=friend"),
        pending("db", "app=db"),
        pending("friend", "app=friend"),
        pending("late", "app=late"),
    ];
    let site = Site::with(&objects);
    let mut agent = site.start_agent();
    let runtime = site.runtime(Network::Routed, json!({}));
    let [db, friend] = ["db", "friend"].map(|name| Running::start(&runtime, name));
    assert_eq!(reaches(&friend, &db), YES);
    // DEL of the whole chain except Ringfence's plugin.
    site.chain("1.0.0", &[site.entry(Network::Routed)]).delete(&friend.pod.container).unwrap();

    let mut same = site.entry(Network::Routed);
    same["ipam"]["dataDir"] = json!(site.folder.path().join("ipam-again"));
    for (range, address) in friend.addresses.iter().enumerate() {
        same["ipam"]["ranges"][range][0]["rangeStart"] = json!(address);
    }
    let late = Running::start(&site.chain("1.0.0", &[same, site.ours(past_the_agent(&site))]), "late");
    assert_eq!(late.addresses, friend.addresses);
    agent.until("it takes the pod over", |_| (!site.stage.tables().contains(ISOLATED)).then_some(()));
    assert_eq!(reaches(&late, &db), NO);
    site.assert_enforced(&objects, &late.addresses);
}
