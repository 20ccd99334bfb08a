use std::net::{TcpListener, TcpStream};

use kit::agent_process::{AgentProcess, ask_socket};
use kit::lab::{Lab, probe_all};
use kit::oracle::Probe;
use kit::two_clusters::{self, EastPod, PLACES, TwoClusters};
use serde_json::{Value, json};

use super::{PORT, exchange, listed, records, serve, start, sum};
use crate::drops::{DB, OTHER, OUTSIDE, WEB, stage};
use crate::stage::{NODE, Stage};

/// Addresses of the node.
const OWN: [&str; 2] = ["192.0.2.10", "2001:db8::10"];
const CLUSTER_ADDRESSES: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
const NODE_PORT: u16 = 30080;

/// Runs `ip` with these words in the namespace of the calling thread.
fn ip(words: &str) {
    let status = std::process::Command::new("ip").args(words.split(' ')).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {words}");
}

/// Adds the node's addresses, and routes to them in the world.
fn give_addresses(lab: &Lab) {
    lab.node_exec(NODE, || {
        ip(&format!("address add {}/32 dev lo", OWN[0]));
        ip(&format!("address add {}/128 dev lo nodad", OWN[1]));
    });
    lab.in_namespace_of(OUTSIDE[0].parse().unwrap(), || {
        ip(&format!("route add {} via 169.254.1.1 dev node0 onlink", OWN[0]));
        ip(&format!("route add {} via fe80::1 dev node0 onlink", OWN[1]));
    });
}

/// The Service `shop/database`, whose pod is `to`.
fn write_service(stage: &Stage, to: [&str; 2]) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "database"},
        "spec": {
            "type": "NodePort", "clusterIP": CLUSTER_ADDRESSES[0], "clusterIPs": CLUSTER_ADDRESSES,
            "ports": [{"name": "postgres", "port": 15432, "nodePort": NODE_PORT, "protocol": "TCP", "targetPort": PORT}],
        },
    });
    stage.write_objects("services.json", &[service]);
    stage.nft("add table inet services");
    stage.nft("add chain inet services prerouting { type nat hook prerouting priority dstnat; }");
    for ((family, address), (own, to)) in ["ip", "ip6"].iter().zip(CLUSTER_ADDRESSES).zip(OWN.iter().zip(to)) {
        for (asked, port) in [(address, 15432), (*own, NODE_PORT)] {
            let to = if *family == "ip" { format!("{to}:{PORT}") } else { format!("[{to}]:{PORT}") };
            let rule = format!("{family} daddr {asked} tcp dport {port} dnat {family} to {to}");
            stage.nft(&format!("add rule inet services prerouting {rule}"));
        }
    }
}

/// Replaces the source of packets from these addresses to pods by the node's address (SNAT).
fn replace_sources(stage: &Stage, of: [&str; 2]) {
    stage.nft("add chain inet services postrouting { type nat hook postrouting priority srcnat; }");
    for ((family, of), own) in ["ip", "ip6"].iter().zip(of).zip(OWN) {
        let rule = format!("{family} saddr {of} ct status dnat snat {family} to {own}");
        stage.nft(&format!("add rule inet services postrouting {rule}"));
    }
}

#[track_caller]
fn until_recorded(stage: &Stage, agent: &mut AgentProcess, parameters: &str, connections: u64) -> Vec<Value> {
    agent.until(&format!("{connections} connections of {parameters}"), |_| {
        let found = records(stage, parameters);
        (sum(&found, "/connections/started") == connections).then_some(found)
    })
}

fn port_of_service(port: u16) -> Value {
    json!({"namespace": "shop", "name": "database", "portName": "postgres", "port": port})
}

#[test]
fn node_port_connections_have_client_service_and_pod() {
    for is_source_replaced in [false, true] {
        let stage = stage();
        give_addresses(&stage.lab);
        write_service(&stage, OTHER);
        if is_source_replaced {
            replace_sources(&stage, OUTSIDE);
        }
        let mut agent = start(&stage);
        for family in [0, 1] {
            serve(&stage, OTHER[family], PORT);
            exchange(&stage, OUTSIDE[family], OWN[family], NODE_PORT, 10);
        }
        for record in until_recorded(&stage, &mut agent, "?peer=world", 2) {
            let ends = (&record["source"]["kind"], &record["source"]["network"], &record["destination"]["name"]);
            assert_eq!(ends, (&json!("world"), &json!("public"), &json!("other")), "{record:#}");
            assert_eq!(
                (&record["service"], &record["port"]),
                (&port_of_service(NODE_PORT), &json!(PORT)),
                "{record:#}"
            );
            assert_eq!((&record["verdict"], &record["protocol"]), (&json!("allowed"), &json!(6)));
        }
    }
}

#[test]
fn hairpin_connections_have_one_pod_at_both_ends() {
    let stage = stage();
    give_addresses(&stage.lab);
    write_service(&stage, DB);
    replace_sources(&stage, DB);
    let mut agent = start(&stage);
    for family in [0, 1] {
        serve(&stage, DB[family], PORT);
        exchange(&stage, DB[family], CLUSTER_ADDRESSES[family], 15432, 10);
    }
    for record in until_recorded(&stage, &mut agent, "?protocol=tcp", 2) {
        assert_eq!(
            (&record["source"]["name"], &record["source"]),
            (&json!("db"), &record["destination"]),
            "{record:#}"
        );
        assert_eq!((&record["service"], &record["port"]), (&port_of_service(15432), &json!(PORT)), "{record:#}");
        // The pod's policy does not allow it, and does not have to.
        assert_eq!(
            (&record["verdict"], &record["ingress"]["verdict"]),
            (&json!("allowed"), &json!("itself")),
            "{record:#}"
        );
    }
}

#[test]
fn own_node_is_named_in_both_directions() {
    let stage = stage();
    give_addresses(&stage.lab);
    let mut agent = start(&stage);
    for (own, db) in OWN.into_iter().zip(DB) {
        serve(&stage, db, PORT);
        // Kubelet probes reach isolated pods.
        stage.lab.node_exec(NODE, || drop(TcpStream::connect((db, PORT)).unwrap()));
        let server = stage.lab.node_exec(NODE, || TcpListener::bind((own, 8080)).unwrap());
        stage.lab.in_namespace_of(db.parse().unwrap(), || drop(TcpStream::connect((own, 8080)).unwrap()));
        drop(server);
    }
    let to_pod = until_recorded(&stage, &mut agent, &format!("?port={PORT}"), 2);
    let node =
        json!({"kind": "node", "namespace": null, "name": NODE, "service": null, "cluster": null, "network": null});
    for record in to_pod {
        assert_eq!((&record["source"], &record["destination"]["name"]), (&node, &json!("db")), "{record:#}");
        assert_eq!(record["ingress"]["verdict"], "own-node", "{record:#}");
    }
    for record in until_recorded(&stage, &mut agent, "?port=8080", 2) {
        assert_eq!((&record["source"]["name"], &record["destination"]), (&json!("db"), &node), "{record:#}");
    }
}

#[test]
fn api_servers_and_world_are_distinguished() {
    let stage = stage();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "namespace": "default", "name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "endpoints": [{"addresses": [OUTSIDE[0]]}], "ports": [{"port": 6443}],
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "kubernetes"},
        "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
                 "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}]},
    });
    stage.write_objects("kubernetes.json", &[slice, service]);
    stage.nft("add table ip services");
    stage.nft("add chain ip services prerouting { type nat hook prerouting priority dstnat; }");
    stage.nft(&format!("add rule ip services prerouting ip daddr 10.96.0.1 tcp dport 443 dnat to {}:6443", OUTSIDE[0]));
    let mut agent = start(&stage);
    for address in OUTSIDE {
        serve(&stage, address, 6443);
    }
    exchange(&stage, WEB[0], "10.96.0.1", 443, 10);
    exchange(&stage, WEB[0], OUTSIDE[0], 6443, 10);
    // No EndpointSlice contains the address.
    exchange(&stage, WEB[1], OUTSIDE[1], 6443, 10);
    for record in until_recorded(&stage, &mut agent, "?peer=kube-apiserver", 2) {
        let kind = &record["destination"]["kind"];
        assert_eq!(
            (kind, &record["port"], &record["source"]["name"]),
            (&json!("kube-apiserver"), &json!(6443), &json!("web"))
        );
    }
    let asked = until_recorded(&stage, &mut agent, "?peer=kube-apiserver&port=443", 1);
    let https = json!({"namespace": "default", "name": "kubernetes", "portName": "https", "port": 443});
    assert_eq!(asked[0]["service"], https, "{:#}", asked[0]);
    let world = until_recorded(&stage, &mut agent, "?peer=world", 1);
    let to = (&world[0]["destination"]["kind"], &world[0]["destination"]["network"], &world[0]["service"]);
    assert_eq!(to, (&json!("world"), &json!("public"), &Value::Null), "{:#}", world[0]);
}

#[test]
fn remote_sets_are_named_with_their_cluster() {
    let clusters = TwoClusters::new();
    let _east = clusters.east(&[EastPod::web("web-0", 0)]);
    let mut provider = clusters.provider(&[]);
    provider.until_ready();
    let mut agent = clusters.agent(&["--flows", "on"]);
    agent.until_ready();
    agent.until("the set is in the kernel", |_| (clusters.in_kernel() == PLACES[0]).then_some(()));
    agent.until("the agent follows connection tracking", |_| {
        let coverage = ask_socket(&clusters.run_dir(), "/v1/flows/coverage");
        let coverage: Value = serde_json::from_str(&coverage.body).ok()?;
        coverage["since"].is_string().then_some(())
    });
    let probes: Vec<Probe> = PLACES[0]
        .iter()
        .zip(two_clusters::DB)
        .map(|(from, to)| Probe {
            source: from.parse().unwrap(),
            destination: to.parse().unwrap(),
            protocol: Probe::TCP,
            port: Some(80),
        })
        .collect();
    assert_eq!(probe_all(&clusters.lab, &probes), [true, true]);
    let found = agent.until("both connections", |_| {
        let found = listed(&clusters.run_dir(), "");
        (sum(&found, "/connections/started") == 2).then_some(found)
    });
    let remote = json!({
        "kind": "remote-cluster", "namespace": "shop", "name": "web", "service": null, "cluster": "east", "network": null,
    });
    for record in &found {
        assert_eq!((&record["source"], &record["destination"]["name"]), (&remote, &json!("db")), "{record:#}");
        let hit = &record["ingress"]["enforced"][0];
        assert_eq!((&hit["name"], &hit["rule"]), (&json!("db"), &json!("spec.ingress[0]")), "{record:#}");
        assert_eq!((&record["port"], &record["verdict"]), (&json!(80), &json!("allowed")));
    }
}
