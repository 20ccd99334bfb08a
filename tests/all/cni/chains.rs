use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use cni::AttachmentRecord;
use cni::protocol::Request;
use kit::agent_process::WITHIN;
use kit::cni_runtime::{AddResult, FakeAgent, Runtime};
use serde_json::{Value, json};

use super::{Families, NODE_ADDRESS, OUTSIDE, Place, Pod};

/// The last plugin printed the result of the previous one, byte for byte.
#[track_caller]
fn assert_untouched(added: &AddResult) {
    let [.., before, ours] = &added.steps[..] else { panic!("a chain of two at least") };
    assert_eq!(ours.plugin, "ringfence-cni");
    assert_eq!(ours.stdout.trim(), before.stdout.trim());
    assert_eq!(ours.stderr, "");
}

fn exists(runtime: &Runtime, interface: &str) -> bool {
    runtime.on_node(|| std::path::Path::new("/sys/class/net").join(interface).exists())
}

/// Adds a pod, and compares its stored attachment with the result.
#[track_caller]
fn add_and_compare(place: &Place, version: &str, plugins: &[Value], bridge: Option<&str>, addresses: &[&str]) {
    let agent = FakeAgent::enforcing(&place.socket());
    let runtime = place.runtime(version, plugins);
    let pod = Pod::new("api-0");
    let added = runtime.add(&pod.container).unwrap();
    assert_untouched(&added);
    assert_eq!(added.result["cniVersion"], version);

    let [attachment] = &place.attachments()[..] else { panic!("one attachment") };
    let expected: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
    assert_eq!((&attachment.addresses, &added.addresses()), (&expected, &expected));
    let AttachmentRecord { id, sandbox, network, namespace, pod: name, uid, .. } = attachment;
    assert_eq!((id, sandbox, &network[..]), (&pod.id(), &pod.container.sandbox, "pods"));
    assert_eq!((&namespace[..], &name[..], uid.as_deref()), ("shop", "api-0", Some("uid-of-api-0")));
    assert_eq!(attachment.bridge.as_deref(), bridge);
    let host_interface = attachment.host_interface.as_deref().expect("the host's end");
    assert!(host_interface.starts_with("veth") && exists(&runtime, host_interface), "{host_interface}");

    let [Request::Add { attachment: sent, timeout_millis }] = &agent.requests()[..] else { panic!("one request") };
    assert_eq!(sent, attachment);
    // A tenth of the rest of the configured minute is reserved for the response's way back.
    assert!((1..=54_000).contains(timeout_millis), "{timeout_millis}");

    // CNI 0.4.0 introduced CHECK.
    if version != "0.3.1" {
        runtime.check(&pod.container).unwrap();
    }
    runtime.delete(&pod.container).unwrap();
    assert_eq!(place.attachments(), []);
    assert!(!exists(&runtime, host_interface));
}

#[test]
fn routed_pod_is_stored_and_result_unchanged() {
    for version in ["0.3.1", "0.4.0", "1.0.0"] {
        let place = Place::new();
        let plugins = |families| [place.ptp(families), place.ours(json!({}))];
        add_and_compare(&place, version, &plugins(Families::V4), None, &["10.1.0.2"]);
        add_and_compare(&place, version, &plugins(Families::Dual), None, &["10.1.0.3", "fd00:1::2"]);
    }
}

#[test]
fn a_bridged_pod_is_kept_with_its_bridge() {
    for version in ["0.3.1", "0.4.0", "1.0.0"] {
        let place = Place::new();
        let plugins = |families| [place.bridge(families), place.ours(json!({}))];
        add_and_compare(&place, version, &plugins(Families::V4), Some("cni0"), &["10.1.0.2"]);
        add_and_compare(&place, version, &plugins(Families::Dual), Some("cni0"), &["10.1.0.3", "fd00:1::2"]);
    }
}

#[test]
fn portmap_host_port_reaches_pod_through_our_plugin() {
    let place = Place::new();
    let _agent = FakeAgent::enforcing(&place.socket());
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let runtime = place.runtime("1.0.0", &[place.ptp(Families::V4), portmap, place.ours(json!({}))]);
    let mut pod = Pod::new("api-0");
    let mapping = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    pod.container.capabilities.insert("portMappings".into(), mapping);
    let added = runtime.add(&pod.container).unwrap();
    assert_untouched(&added);

    let address = SocketAddr::new(added.addresses()[0], 80);
    let listener = pod.sandbox.run(|| TcpListener::bind(address)).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, client) = listener.accept().unwrap();
        stream.write_all(client.ip().to_string().as_bytes()).unwrap();
    });
    let seen = place.lab.in_namespace_of(OUTSIDE.parse().unwrap(), || {
        let host: SocketAddr = format!("{NODE_ADDRESS}:8080").parse().unwrap();
        let mut stream = TcpStream::connect_timeout(&host, WITHIN).unwrap();
        let mut seen = String::new();
        stream.read_to_string(&mut seen).map(|_| seen)
    });
    assert_eq!(seen.unwrap(), OUTSIDE);
    server.join().unwrap();
    runtime.delete(&pod.container).unwrap();
}

#[test]
fn previous_result_is_passed_through_byte_for_byte() {
    let place = Place::new();
    let _agent = FakeAgent::enforcing(&place.socket());
    let odd = r#"{ "ips":[ {"gateway":"10.1.0.1","address":"10.1.0.7\/24","weight":1.50e+02} ],
        "later" : [ 12345678901234567890123, -0.0, "\u00e9", null ], "cniVersion":"1.1.0",
        "interfaces":[{"mtu":1500,"name":"eth0","sandbox":"/x","pciID":"0000:00:1f.6"}] }"#;
    let runtime = place.runtime("1.1.0", &[place.stub(odd), place.ours(json!({}))]);
    let pod = Pod::new("api-0");
    let added = runtime.add(&pod.container).unwrap();
    assert_untouched(&added);
    assert_eq!(added.steps[1].stdout.trim(), odd);
    let [attachment] = &place.attachments()[..] else { panic!("one attachment") };
    assert_eq!(attachment.addresses, ["10.1.0.7".parse::<IpAddr>().unwrap()]);
    assert_eq!((&attachment.host_interface, &attachment.bridge), (&None, &None));
    runtime.check(&pod.container).unwrap();
    runtime.delete(&pod.container).unwrap();
}

#[test]
fn own_host_interface_is_found_among_several() {
    let place = Place::new();
    let _agent = FakeAgent::enforcing(&place.socket());
    let runtime = place.ptp_runtime(json!({}));
    let pods = ["api-0", "api-1"].map(Pod::new);
    for pod in &pods {
        runtime.add(&pod.container).unwrap();
    }
    let ends: Vec<String> =
        place.attachments().into_iter().map(|attachment| attachment.host_interface.unwrap()).collect();
    let interfaces: Vec<Value> = ends.iter().map(|name| json!({"name": name})).collect();
    let result = json!({"cniVersion": "1.0.0", "interfaces": interfaces, "ips": [{"address": "10.1.0.9/32"}]});
    let network = json!({
        "cniVersion": "1.0.0", "name": "more", "plugins": [place.stub(&result.to_string()), place.ours(json!({}))],
    });
    let runtime = runtime.with_network(&network);
    for (index, pod) in pods.iter().enumerate() {
        runtime.add(&pod.container).unwrap();
        let attachment = cni::store::read(&place.state_dir(), &pod.id()).unwrap().unwrap();
        assert_eq!(attachment.host_interface.as_ref(), Some(&ends[index]));
    }
}

#[test]
fn container_outside_kubernetes_is_ignored() {
    let place = Place::new();
    let runtime = place.ptp_runtime(json!({}));
    let mut pod = Pod::new("api-0");
    pod.container.arguments = "IgnoreUnknown=1".into();
    assert_untouched(&runtime.add(&pod.container).unwrap());
    assert_eq!(place.attachments(), []);
    runtime.check(&pod.container).unwrap();
    runtime.delete(&pod.container).unwrap();
}

#[test]
fn test_runtime_runs_chains_without_our_plugin() {
    let place = Place::new();
    let loopback = place.runtime("1.0.0", &[json!({"type": "loopback"})]);
    let mut pod = Pod::new("api-0");
    pod.container.interface = "lo".into();
    let added = loopback.add(&pod.container).unwrap();
    assert!(added.addresses().contains(&"127.0.0.1".parse().unwrap()), "{added:?}");
    assert!(loopback.remembers(&pod.container));
    loopback.check(&pod.container).unwrap();
    loopback.delete(&pod.container).unwrap();
    assert!(!loopback.remembers(&pod.container));
    let failed =
        place.runtime("1.0.0", &[json!({"type": "ptp", "ipam": {"type": "gone"}})]).add(&pod.container).unwrap_err();
    assert!(failed.plugin == "ptp" && failed.message.contains("gone"), "{failed:?}");
}
