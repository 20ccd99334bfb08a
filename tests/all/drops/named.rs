use kit::lab::probe_all;
use kit::oracle::Probe;
use serde_json::{Value, json};

use super::{DB, OTHER, OUTSIDE, WEB, events_to, pods, send_datagrams, send_syns, stage, status, sum, until_reported};
use crate::stage::{NODE, policy};

#[test]
fn denied_flows_are_reported_immediately_then_counted() {
    let stage = stage();
    let mut agent = stage.start_on_manifests();
    send_syns(&stage, OTHER[0], DB[0], 5432, 3);
    send_datagrams(&stage, WEB[1], DB[1], 53, 20);

    let tcp = until_reported(&stage, &mut agent, "shop/db", "5432/tcp", 3);
    let first = &tcp[0];
    assert_eq!(first["count"], 1, "{tcp:#?}");
    let expected = json!({
        "verdict": "denied", "cause": "ingress", "direction": "ingress",
        "source": {"address": OTHER[0], "kind": "pod", "pod": "shop/other", "node": NODE, "cluster": null},
        "destination": {"address": DB[0], "kind": "pod", "pod": "shop/db", "node": NODE, "cluster": null},
        "policies": ["shop/db"], "wouldAllow": [], "note": null, "node": NODE,
        "closest": {
            "rule": {"policy": "shop/db", "field": "spec.ingress[0]"},
            "lacks": ["the peer: shop/other does not match app=web"],
        },
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&first[field], value, "{field}");
    }

    let udp = until_reported(&stage, &mut agent, "shop/db", "53/udp", 20);
    assert_eq!(udp[0]["closest"]["lacks"], json!(["the port: it allows 5432/tcp, not 53/udp"]));
    assert_eq!((&udp[0]["source"]["pod"], &udp[0]["source"]["address"]), (&json!("shop/web"), &json!(WEB[1])));
    agent.until_logged(&[
        "packets denied",
        "verdict=\"denied\"",
        "source=\"shop/other\"",
        "destination=\"shop/db\"",
        "traffic=\"5432/tcp\"",
        "policies=\"shop/db\"",
        "count=1",
    ]);

    // Nothing is reported twice, and later packets are reported.
    send_datagrams(&stage, WEB[1], DB[1], 53, 7);
    let udp = until_reported(&stage, &mut agent, "shop/db", "53/udp", 27);
    assert_eq!(sum(&udp), 27, "{udp:#?}");
    assert_eq!(sum(&events_to(&stage, "shop/db", "5432/tcp")), 3);
    agent.until("the status has them", |_| (status(&stage)["drops"]["denied"] == 30).then_some(()));
    // The second packet of a flow is counted when the kernel's counters are read again.
    send_datagrams(&stage, WEB[1], DB[1], 54, 2);
    until_reported(&stage, &mut agent, "shop/db", "54/udp", 2);
    assert_eq!(sum(&events_to(&stage, "shop/db", "53/udp")), 27);
    let drops = &status(&stage)["drops"];
    assert_eq!((&drops["denied"], &drops["lost"], &drops["unnamed"]), (&json!(32), &json!(0), &json!(0)));
}

#[test]
fn events_have_icmp_type_and_egress_direction() {
    let stage = stage();
    let nowhere = policy("nowhere", "app=other", json!({"policyTypes": ["Egress"]}));
    stage.write_objects("policies.json", &[nowhere]);
    let mut agent = stage.start_on_manifests();
    let (source, destination) = (OTHER[0].parse().unwrap(), WEB[0].parse().unwrap());
    let echo = Probe { source, destination, protocol: Probe::ICMP, port: None };
    assert_eq!(probe_all(&stage.lab, &[echo]), [false]);
    let events = until_reported(&stage, &mut agent, "shop/web", "icmp type 8", 1);
    assert_eq!((&events[0]["direction"], &events[0]["policies"]), (&json!("egress"), &json!(["shop/nowhere"])));
    assert_eq!(events[0]["closest"], Value::Null);
}

#[test]
fn endpoints_outside_pods_are_world_cluster_or_node() {
    let stage = stage();
    let mut command = stage.agent_on_manifests();
    command.args(["--remote-cidr", "east=2001:db8::/32,west=198.51.100.0/24"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    for family in [0, 1] {
        send_datagrams(&stage, OUTSIDE[family], DB[family], 1000, 1);
    }
    let events = until_reported(&stage, &mut agent, "shop/db", "1000/udp", 2);
    let ends: Vec<(&Value, &Value)> = events.iter().map(|e| (&e["source"]["kind"], &e["source"]["cluster"])).collect();
    assert!(ends.contains(&(&json!("world"), &Value::Null)), "{ends:?}");
    assert!(ends.contains(&(&json!("remote-cluster"), &json!("east"))), "{ends:?}");

    let mut proxy = crate::stage::pod("proxy", "node-b", "app=proxy", &[OUTSIDE[0]]);
    proxy["spec"]["hostNetwork"] = json!(true);
    let mut objects = pods();
    objects.push(proxy);
    stage.write_objects("pods.json", &objects);
    agent.until("it is a node", |_| {
        send_datagrams(&stage, OUTSIDE[0], DB[0], 1001, 1);
        let events = events_to(&stage, "shop/db", "1001/udp");
        let node = events.iter().find(|event| event["source"]["kind"] == "node")?;
        assert_eq!(node["source"]["node"], "node-b");
        Some(())
    });
}

#[test]
fn unclaimed_pod_address_is_an_unknown_pod() {
    let stage = stage();
    stage.write_objects("pods.json", &pods()[..3]);
    let mut command = stage.agent_on_manifests();
    command.args(["--pod-cidr", "10.1.0.0/24", "--unknown-pods", "deny"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    send_datagrams(&stage, OTHER[0], WEB[0], 1000, 3);
    let events = until_reported(&stage, &mut agent, "shop/web", "1000/udp", 3);
    let first = &events[0];
    assert_eq!((&first["cause"], &first["direction"]), (&json!("unknown-address"), &Value::Null));
    assert_eq!((&first["source"]["kind"], &first["count"]), (&json!("unknown-pod"), &json!(1)));
    assert_eq!(sum(&events), 3);
}

#[test]
fn json_log_has_every_field_of_drop_event() {
    let stage = stage();
    let mut command = stage.agent_on_manifests();
    command.args(["--log-format", "json"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    send_datagrams(&stage, WEB[0], DB[0], 53, 1);
    let line: Value = serde_json::from_str(&agent.until_logged(&["packets denied"])).unwrap();
    let expected = json!({
        "message": "packets denied", "verdict": "denied", "cause": "ingress", "direction": "ingress",
        "source": "shop/web", "source_address": WEB[0], "destination": "shop/db", "destination_address": DB[0],
        "traffic": "53/udp", "policies": "shop/db", "count": 1,
        "closest": "shop/db spec.ingress[0]; it lacks the port: it allows 5432/tcp, not 53/udp",
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&line[field], value, "{field} of {line}");
    }
}
