use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use policy::Kind;
use serde_json::json;
use tests::cni_runtime::Container;
use tests::fake_api::Verb;

use super::{NO, Network, Pod, Running, Site, YES, egress, pending, reaches};
use crate::stage::{ingress, namespace, policy, set_all};

/// A connection on one machine takes less than a millisecond.
const PATIENCE: Duration = Duration::from_millis(700);

#[test]
fn when_add_returns_the_kernel_has_the_rules_although_no_status_has_an_address() {
    for network in [Network::Routed, Network::Bridged] {
        let mut objects = vec![
            namespace("shop", ""),
            egress("web", "app=web", "app=db"),
            ingress("db", "app=db", "app=web"),
            pending("web", "app=web"),
            pending("db", "app=db"),
        ];
        let site = Site::with(&objects);
        let _agent = site.start_agent();
        let runtime = site.runtime(network, json!({}));
        let web = Running::start(&runtime, "web");
        site.assert_enforced(&objects, &web.addresses);
        let db = Running::start(&runtime, "db");
        site.assert_enforced(&objects, &[&web.addresses[..], &db.addresses].concat());

        objects.push(pending("other", "app=other"));
        set_all(&site.api, &objects[5..]);
        let other = Running::start(&runtime, "other");
        site.assert_enforced(&objects, &web.addresses);
        assert_eq!(reaches(&web, &db), YES, "{network:?}");
        assert_eq!(reaches(&web, &other), NO, "{network:?}");
        assert_eq!(reaches(&other, &db), NO, "{network:?}");
        assert_eq!(reaches(&other, &web), YES, "{network:?}");
    }
}

#[test]
fn an_attachment_counts_from_the_plugins_question_to_its_commit() {
    let site = Site::with(&[namespace("shop", ""), ingress("web", "app=web", "app=db"), pending("web", "app=web")]);
    let mut agent = site.start_agent();
    Running::start(&site.runtime(Network::Routed, json!({})), "web");
    let lines = [
        "ringfence_enforcement_latency_seconds_count{kind=\"attachment\"} 1\n",
        "ringfence_cni_add_duration_seconds_count 1\n",
        "ringfence_objects{kind=\"attachment\"} 1\n",
        "ringfence_unknown_pods 0\n",
    ];
    // The plugin is answered first.
    agent.until("the figures say so", |agent| {
        let figures = agent.get("/metrics").body;
        lines.iter().all(|line| figures.contains(line)).then_some(())
    });
}

#[test]
fn a_pod_that_the_watch_knows_is_not_asked_for() {
    let site = Site::with(&[namespace("shop", ""), pending("web", "app=web")]);
    let _agent = site.start_agent();
    Running::start(&site.runtime(Network::Routed, json!({})), "web");
    assert_eq!(site.api.count(Verb::Get, Kind::Pod), 0);
}

#[test]
fn a_pod_of_a_folder_of_manifests_starts_with_its_rules() {
    let site = Site::new();
    let objects = [namespace("shop", ""), egress("web", "app=web", "app=db"), pending("web", "app=web")];
    site.stage.write_objects("all.json", &objects);
    let _agent = site.stage.start_on_manifests();
    let web = Running::start(&site.runtime(Network::Routed, json!({})), "web");
    site.assert_enforced(&objects, &web.addresses);
}

#[test]
fn beside_portmap_and_loopback_a_port_of_the_host_leads_to_what_policies_allow() {
    let only_80 = policy("web", "app=web", json!({"ingress": [{"ports": [{"port": 80}]}]}));
    let objects = [namespace("shop", ""), only_80, pending("web", "app=web"), pending("client", "app=client")];
    let site = Site::with(&objects);
    let _agent = site.start_agent();
    let mut pod = Pod::new("web");
    let lo = Container { interface: "lo".into(), ..pod.container.clone() };
    site.chain("1.0.0", &[json!({"type": "loopback"})]).add(&lo).unwrap();
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let runtime = site.chain("1.0.0", &[site.entry(Network::Routed), portmap, site.ours(json!({}))]);
    let mapping = |host: u16, pod: u16| json!({"hostPort": host, "containerPort": pod, "protocol": "tcp"});
    pod.container.capabilities.insert("portMappings".into(), json!([mapping(8080, 80), mapping(8081, 81)]));
    let address = runtime.add(&pod.container).unwrap().addresses()[0];
    let client = Running::start(&runtime, "client");
    site.assert_enforced(&objects, &[address]);

    let listen = |port| pod.sandbox.run(|| TcpListener::bind(SocketAddr::new(address, port)).unwrap());
    let (allowed, denied) = (listen(80), listen(81));
    let server = std::thread::spawn(move || allowed.accept().unwrap().0.write_all(b"hello").unwrap());
    client.pod.sandbox.run(|| {
        // The node's side of every ptp has this address.
        let ask = |port| TcpStream::connect_timeout(&SocketAddr::new([10, 1, 0, 1].into(), port), PATIENCE);
        let mut said = String::new();
        ask(8080).unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said, "hello");
        assert_eq!(ask(8081).unwrap_err().kind(), ErrorKind::TimedOut);
    });
    server.join().unwrap();
    drop(denied);
    runtime.delete(&pod.container).unwrap();
}
