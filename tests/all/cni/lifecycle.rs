use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::protocol::{Request, Response};
use cni::{AttachmentRecord, store};
use kit::agent_process::until;
use kit::cni_runtime::{FakeAgent, Reply, Runtime};
use kit::frame::{send_frame, udp_datagram};
use kit::prober::{arrivals, count_arrivals};
use serde_json::{Value, json};

use super::edge::{GATEWAY4, GATEWAY6, ip, neighbour};
use super::forged::{Node, hardware_address};
use super::{Families, Place, Pod};

const NOT_IN_FORCE: u64 = 100;
const UNAVAILABLE: u64 = 50;

/// A chain of CNI 1.1.0, which Debian's plugins do not support.
fn newest(place: &Place) -> Runtime {
    newest_with(place, json!({}))
}

/// [`newest`] with a short timeout, for a plugin that waits without an agent.
fn newest_in_vain(place: &Place) -> Runtime {
    newest_with(place, json!({"timeoutSeconds": 1}))
}

fn newest_with(place: &Place, more: Value) -> Runtime {
    let result = r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.7/24"}]}"#;
    place.runtime("1.1.0", &[place.stub(result), place.ours(more)])
}

#[test]
fn deleting_twice_is_deleting_once() {
    let place = Place::new();
    let agent = FakeAgent::enforcing(&place.socket());
    let runtime = place.ptp_runtime(json!({}));
    let pod = Pod::new("api-0");
    runtime.add(&pod.container).unwrap();
    for _ in 0..2 {
        let steps = runtime.delete(&pod.container).unwrap();
        assert_eq!(
            (steps[0].plugin.as_str(), steps[0].stdout.as_str(), steps[0].stderr.as_str()),
            ("ringfence-cni", "", "")
        );
        assert_eq!(place.attachments(), []);
        assert_eq!(agent.requests().last(), Some(&Request::Delete(pod.id())));
    }
    runtime.delete(&Pod::new("never-added").container).unwrap();
}

/// The main plugin does not find an interface that the pod has renamed, so it does not delete the link.
#[test]
fn delete_sets_the_host_interface_down() {
    let place = Place::new();
    let _agent = FakeAgent::enforcing(&place.socket());
    let runtime = place.ptp_runtime(json!({}));
    let pods = ["api-0", "api-1"].map(Pod::new);
    for pod in &pods {
        runtime.add(&pod.container).unwrap();
        pod.sandbox.run(|| {
            for words in ["link set eth0 down", "link set eth0 name renamed", "link set renamed up"] {
                ip(words);
            }
        });
    }
    let [first, second] = &place.attachments()[..] else { panic!("two attachments") };
    let is_up = |attachment: &AttachmentRecord| {
        let shown = runtime.on_node(|| ip(&format!("link show {}", attachment.host_interface.as_ref().unwrap())));
        assert!(shown.contains("mtu"), "the interface is there: {shown}");
        shown.contains(",UP")
    };
    assert!(is_up(first) && is_up(second));
    // In the meantime another interface has got the name of the second one.
    let other = AttachmentRecord { host_interface_index: Some(1), ..second.clone() };
    store::write(&place.state_dir(), &other).unwrap();
    for pod in &pods {
        runtime.delete(&pod.container).unwrap();
    }
    assert_eq!((is_up(first), is_up(second)), (false, true));
}

#[test]
fn deleting_needs_no_agent_and_no_readable_file() {
    let place = Place::new();
    let runtime = place.runtime("1.0.0", &[place.bridge(Families::Dual), place.ours(json!({}))]);
    let agent = FakeAgent::enforcing(&place.socket());
    let pods = ["api-0", "api-1"].map(Pod::new);
    for pod in &pods {
        runtime.add(&pod.container).unwrap();
    }
    drop(agent);
    fs::write(place.state_dir().join(store::file_name(&pods[0].id())), "{\"vers").unwrap();
    for pod in &pods {
        let steps = runtime.delete(&pod.container).unwrap();
        assert!(steps[0].stderr.contains("cannot connect to the agent"), "{steps:?}");
        assert_eq!(steps[0].stdout, "");
    }
    assert_eq!(place.attachments(), []);
}

#[test]
fn delete_succeeds_when_agent_is_silent_or_refuses() {
    let place = Place::new();
    let runtime = newest(&place);
    let pod = Pod::new("api-0");
    let agent = FakeAgent::enforcing(&place.socket());
    runtime.add(&pod.container).unwrap();
    drop(agent);
    for reply in [Reply::Silence, Reply::close(), Reply::Answer(Response::Failed { reason: "no".into() })] {
        let _agent = FakeAgent::start(&place.socket(), move |_| reply.clone());
        let steps = runtime.delete(&pod.container).unwrap();
        assert!(steps[0].stderr.contains("the agent"), "{steps:?}");
    }
    assert_eq!(place.attachments(), []);
}

#[test]
fn check_compares_agent_and_stored_attachment() {
    let place = Place::new();
    let runtime = newest(&place);
    let pod = Pod::new("api-0");
    let agent = FakeAgent::enforcing(&place.socket());
    runtime.add(&pod.container).unwrap();
    runtime.check(&pod.container).unwrap();
    assert_eq!(agent.requests().last(), Some(&Request::Check(pod.id())));

    let [kept] = &place.attachments()[..] else { panic!("one attachment") };
    let other_address = AttachmentRecord { addresses: vec!["10.1.0.8".parse().unwrap()], ..kept.clone() };
    let other_pod = AttachmentRecord { pod: "api-1".into(), ..kept.clone() };
    for (changed, why) in [(other_address, "10.1.0.8"), (other_pod, "belongs to pod shop/api-1")] {
        store::write(&place.state_dir(), &changed).unwrap();
        let failed = runtime.check(&pod.container).unwrap_err();
        assert_eq!(
            (failed.code, failed.message.as_str()),
            (NOT_IN_FORCE, "the policies of pod shop/api-0 are not in force")
        );
        assert!(failed.details.contains(why), "{failed:?}");
    }
    store::remove(&place.state_dir(), &pod.id()).unwrap();
    let failed = runtime.check(&pod.container).unwrap_err();
    assert!(
        failed.code == NOT_IN_FORCE && failed.details.contains("attachment id-of-api-0@eth0 not found"),
        "{failed:?}"
    );

    store::write(&place.state_dir(), kept).unwrap();
    drop(agent);
    let failed = newest_in_vain(&place).check(&pod.container).unwrap_err();
    assert!(failed.code == 11 && failed.message.contains("cannot determine whether"), "{failed:?}");
    let denied = Response::Isolated { reason: "the pod is not known".into() };
    let failed_response = Response::Failed { reason: "the table is gone".into() };
    for (response, why) in
        [(denied, "with all traffic denied: the pod is not known"), (failed_response, "the table is gone")]
    {
        let _agent = FakeAgent::start(&place.socket(), move |_| Reply::Answer(response.clone()));
        let failed = runtime.check(&pod.container).unwrap_err();
        assert!(failed.code == NOT_IN_FORCE && failed.details.contains(why), "{failed:?}");
    }
}

#[test]
fn gc_removes_stale_attachments_of_own_network() {
    let place = Place::new();
    let agent = FakeAgent::enforcing(&place.socket());
    let runtime = newest(&place);
    let [kept, stale, foreign] = ["kept", "stale", "foreign"].map(Pod::new);
    for pod in [&kept, &stale, &foreign] {
        runtime.add(&pod.container).unwrap();
    }
    let of_another = store::read(&place.state_dir(), &foreign.id()).unwrap().unwrap();
    store::write(&place.state_dir(), &AttachmentRecord { network: "others".into(), ..of_another }).unwrap();
    let ids = || place.attachments().into_iter().map(|attachment| attachment.id).collect::<BTreeSet<_>>();

    runtime.gc(&[&kept.container]).unwrap();
    assert_eq!(ids(), BTreeSet::from([kept.id(), foreign.id()]));
    let deleted = agent.requests().into_iter().filter(|request| matches!(request, Request::Delete(_)));
    assert_eq!(deleted.collect::<Vec<_>>(), [Request::Delete(stale.id())]);

    // Also without the agent, and with an unreadable attachment file, which is reported and kept.
    drop(agent);
    let cut = place.state_dir().join("cut@eth0.json");
    fs::write(&cut, "{").unwrap();
    let failed = runtime.gc(&[]).unwrap_err();
    assert!(failed.code == 5 && failed.details.contains("cut@eth0.json"), "{failed:?}");
    fs::remove_file(cut).unwrap();
    assert_eq!(ids(), BTreeSet::from([foreign.id()]));
    runtime.gc(&[]).unwrap();
}

#[test]
fn the_status_is_the_agents() {
    let place = Place::new();
    let runtime = newest(&place);
    let failed = newest_in_vain(&place).status().unwrap_err();
    assert!(failed.code == UNAVAILABLE && failed.details.contains("cannot connect to the agent"), "{failed:?}");
    let agent = FakeAgent::enforcing(&place.socket());
    runtime.status().unwrap();
    assert_eq!(agent.requests(), [Request::Status]);
    drop(agent);
    // A request that the agent cannot serve yet may succeed when it is retried, as after a restart.
    let mut times = 0;
    let agent = FakeAgent::start(&place.socket(), move |_| {
        times += 1;
        match times {
            1 => Reply::Answer(Response::Failed { reason: "pods have not been listed".into() }),
            2 => Reply::close(),
            _ => Reply::Answer(Response::Ok),
        }
    });
    runtime.status().unwrap();
    assert_eq!(agent.requests().len(), 3);
    drop(agent);
    let not_ready = Response::Failed { reason: "pods have not been listed".into() };
    let _agent = FakeAgent::start(&place.socket(), move |_| Reply::Answer(not_ready.clone()));
    let failed = newest_in_vain(&place).status().unwrap_err();
    assert!(failed.code == UNAVAILABLE && failed.details == "pods have not been listed", "{failed:?}");
}

#[test]
fn older_versions_have_no_gc_and_no_status() {
    let place = Place::new();
    let runtime = place.runtime("1.0.0", &[place.ours(json!({}))]);
    for (failed, command) in [(runtime.gc(&[]).unwrap_err(), "GC"), (runtime.status().unwrap_err(), "STATUS")] {
        assert_eq!((failed.code, failed.message), (1, format!("{command} needs cniVersion 1.1.0 or later")));
    }
}

/// The node resolves the address of a bridge's subnet before a pod has it, and packets wait meanwhile.
fn waiting_packets_do_not_reach_new_pod(v6: bool) {
    let place = Place::new();
    let node = Node::start(&place, place.bridge(Families::Dual), v6, &[]);
    let (gateway, ethertype): (IpAddr, [u8; 2]) = match v6 {
        true => (GATEWAY6.into(), [0x86, 0xdd]),
        false => (GATEWAY4.into(), [0x08, 0]),
    };
    let sender = node.addresses["db"];
    let next = match node.addresses.values().max().unwrap() {
        IpAddr::V4(last) => IpAddr::from(Ipv4Addr::from(u32::from(*last) + 1)),
        IpAddr::V6(last) => IpAddr::from(Ipv6Addr::from(u128::from(*last) + 1)),
    };
    let datagram = udp_datagram((sender, 9).into(), (next, 9).into(), b"early");
    let frame = [&neighbour(&node.db, gateway)[..], &hardware_address(&node.db), &ethertype, &datagram].concat();
    let entry = || node.runtime.on_node(|| ip(&format!("neighbour show {next} dev cni0")));
    node.runtime.delete(&node.other.container).unwrap();
    let late = Pod::new("other");
    node.db.sandbox.run(|| (0..20).for_each(|_| send_frame("eth0", &frame)));
    until("packets wait", || entry().contains("INCOMPLETE").then_some(()));
    let added = node.runtime.add(&late.container).unwrap();
    assert!(added.addresses().contains(&next), "{added:?}");
    late.sandbox.run(|| count_arrivals(&[next]));
    until("the address is resolved or not asked for", || (!entry().contains("INCOMPLETE")).then_some(()));
    assert_eq!(late.sandbox.run(arrivals).get(&sender).map_or(0, |a| a.datagrams), 0);
    node.end();
}

#[test]
fn waiting_ipv4_packets_do_not_reach_new_pod() {
    waiting_packets_do_not_reach_new_pod(false);
}

#[test]
fn waiting_ipv6_packets_do_not_reach_new_pod() {
    waiting_packets_do_not_reach_new_pod(true);
}
