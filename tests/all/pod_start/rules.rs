use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use kit::agent_process::{ended, run};
use kit::cni_runtime::Container;
use kit::fake_api::Verb;
use kit::kernel_table::{listing, load_text, without_generation};
use kit::netns::in_new_namespace;
use nft::{Comment, Name, Ruleset, Table};
use policy::Kind;
use serde_json::{Value, json};

use super::{NO, Network, Pod, Running, Site, YES, egress, pending, reaches};
use crate::stage::{NODE, ingress, namespace, policy, set_all};

/// A connection on one machine takes less than a millisecond.
const PATIENCE: Duration = Duration::from_millis(700);

#[test]
fn add_returns_after_rules_without_pod_status() {
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

/// The agent's tables in the calling thread's namespace as nft lists them, without what text cannot restore: values of
/// counters, and the creation order of chains and sets.
fn listed(families: &[&str]) -> Vec<Value> {
    let name = || Name::new("ringfence").unwrap();
    let tables = families.iter().map(|family| match *family {
        "inet" => Table::inet(name()),
        "bridge" => Table::bridge(name()),
        "netdev" => Table::netdev(name()),
        other => panic!("no table of family {other} is expected"),
    });
    tables.map(|table| in_order(without_counts(listing(&Ruleset::new(table, Comment::new("")))))).collect()
}

/// Rules stay in the order of their chain.
fn in_order(mut listed: Value) -> Value {
    let key = |object: &Value| {
        let (kind, fields) =
            object.as_object().and_then(|members| members.iter().next()).expect("an object of one kind");
        let name = fields.get("chain").or_else(|| fields.get("name")).and_then(Value::as_str).unwrap_or_default();
        (kind.clone(), name.to_owned())
    };
    listed["nftables"].as_array_mut().expect("a list").sort_by_key(key);
    without_generation(listed)
}

fn without_counts(listed: Value) -> Value {
    match listed {
        Value::Object(members) => {
            let counts = |name: &str| matches!(name, "packets" | "bytes");
            members.into_iter().filter(|(name, _)| !counts(name)).map(|(n, v)| (n, without_counts(v))).collect()
        }
        Value::Array(values) => values.into_iter().map(without_counts).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => listed,
    }
}

#[test]
fn printed_rules_load_as_kernel_lists_them() {
    for (network, families) in
        [(Network::Routed, &["inet", "netdev"][..]), (Network::Bridged, &["inet", "bridge", "netdev"])]
    {
        let objects = [namespace("shop", ""), ingress("db", "app=db", "app=web")];
        let site = Site::with(&[&objects[..], &[pending("web", "app=web"), pending("db", "app=db")]].concat());
        let mut command = site.agent();
        // nft 1.0.6 cannot list the flags of protected tables.
        command.args(["--table-owner", "off"]);
        assert_printed_rules_load(&site, command, network, families);
    }
}

fn assert_printed_rules_load(site: &Site, command: Command, network: Network, families: &[&str]) {
    let mut agent = site.stage.start(command);
    agent.until_ready();
    let runtime = site.runtime(network, json!({}));
    let _pods = ["web", "db"].map(|name| Running::start(&runtime, name));
    let printed = run(["rules", "--run-dir", site.stage.run_dir().to_str().unwrap()]);
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""), "{}", printed.stdout);
    assert!(printed.stdout.contains("\n# the kernel has the same rules\n"), "{}", printed.stdout);
    let in_kernel = site.stage.lab.node_exec(NODE, || listed(families));
    let interfaces: Vec<&str> =
        printed.stdout.split("ingress device \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(interfaces.len(), 2, "{}", printed.stdout);
    let loaded = in_new_namespace(|| {
        for interface in interfaces {
            let words = ["link", "add", interface, "type", "bridge"];
            let added = ended(Command::new("ip").args(words));
            assert_eq!(added.code, Some(0), "{}", added.stderr);
        }
        load_text(&printed.stdout);
        listed(families)
    });
    for (loaded, in_kernel) in loaded.iter().zip(&in_kernel) {
        let [loaded, in_kernel] = [loaded, in_kernel].map(|listed| listed["nftables"].as_array().unwrap());
        for (loaded, in_kernel) in loaded.iter().zip(in_kernel) {
            assert_eq!(loaded, in_kernel, "{network:?}");
        }
        assert_eq!(loaded.len(), in_kernel.len(), "{network:?}");
    }
}

#[test]
fn attachment_latency_is_counted_up_to_its_commit() {
    let site = Site::with(&[namespace("shop", ""), ingress("web", "app=web", "app=db"), pending("web", "app=web")]);
    let mut agent = site.start_agent();
    Running::start(&site.runtime(Network::Routed, json!({})), "web");
    let lines = [
        "ringfence_enforcement_latency_seconds_count{kind=\"attachment\"} 1\n",
        "ringfence_cni_add_duration_seconds_count 1\n",
        "ringfence_objects{kind=\"attachment\"} 1\n",
        "ringfence_unknown_pods 0\n",
    ];
    // The agent answers the plugin before it updates its metrics.
    agent.until("the figures say so", |agent| {
        let figures = agent.get("/metrics").body;
        lines.iter().all(|line| figures.contains(line)).then_some(())
    });
}

#[test]
fn pod_known_from_watch_needs_no_request() {
    let site = Site::with(&[namespace("shop", ""), pending("web", "app=web")]);
    let _agent = site.start_agent();
    Running::start(&site.runtime(Network::Routed, json!({})), "web");
    assert_eq!(site.api.count(Verb::Get, Kind::Pod), 0);
}

#[test]
fn pod_from_manifest_folder_starts_with_its_rules() {
    let site = Site::new();
    let objects = [namespace("shop", ""), egress("web", "app=web", "app=db"), pending("web", "app=web")];
    site.stage.write_objects("all.json", &objects);
    let _agent = site.stage.start_on_manifests();
    let web = Running::start(&site.runtime(Network::Routed, json!({})), "web");
    site.assert_enforced(&objects, &web.addresses);
}

#[test]
fn portmap_host_port_reaches_only_allowed_ports() {
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
        // The node's side of every ptp interface has this address.
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
