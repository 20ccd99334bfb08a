use std::net::IpAddr;

use kit::kernel_table::{load_text, nft};
use kit::lab::{Lab, LabSpec, NodeSpec, PodSpec, probe_all};
use kit::oracle::Probe;
use nfnetlink::{Kernel, repair};
use nft::{Ruleset, create, difference};
use policy::{Generation, Layout, translate};
use serde_json::{Value, json};

use super::GROUP;
use crate::stage::{NODE, ingress, namespace, pod, policy, state_of};

const CLIENT: [&str; 2] = ["10.1.0.1", "fd00:1::1"];
const SERVER: [&str; 2] = ["10.1.0.2", "fd00:1::2"];

fn lab() -> Lab {
    let addresses = |texts: [&str; 2]| texts.map(|text| text.parse().expect("an address")).to_vec();
    let pods = [("client", CLIENT), ("server", SERVER)]
        .map(|(name, texts)| PodSpec { name: name.into(), addresses: addresses(texts) });
    let node = NodeSpec { name: NODE.into(), addresses: vec![], pods: pods.to_vec() };
    Lab::new(&LabSpec { nodes: vec![node], outside: vec![] })
}

/// Flows that the server's policies deny: with and without ports, in both families.
fn denied() -> Vec<(Probe, &'static str, String)> {
    let flow = |family: usize, protocol: u8, port: Option<u16>| {
        let [source, destination] = [CLIENT[family], SERVER[family]].map(|t| t.parse::<IpAddr>().expect("an address"));
        Probe { source, destination, protocol, port }
    };
    let [client4, client6, server4, server6] = [CLIENT[0], CLIENT[1], SERVER[0], SERVER[1]];
    vec![
        (flow(0, Probe::UDP, Some(53)), "denied-ingress4", format!("{client4} . {server4} . udp . 53")),
        (flow(0, Probe::ICMP, None), "denied-ingress4-portless", format!("{client4} . {server4} . icmp")),
        (flow(1, Probe::TCP, Some(80)), "denied-ingress6", format!("{client6} . {server6} . tcp . 80")),
        (flow(1, Probe::ICMPV6, None), "denied-ingress6-portless", format!("{client6} . {server6} . ipv6-icmp")),
    ]
}

/// The packet count of the element; `None` if it is missing.
fn counted(lab: &Lab, set: &str, element: &str) -> Option<u64> {
    let listed = lab.node_exec(NODE, || nft(&format!("list set inet ringfence {set}")));
    let (_, after) = listed.split_once(element)?;
    let number = after.split_once("counter packets ")?.1.split_whitespace().next()?;
    number.parse().ok()
}

fn counts(lab: &Lab) -> Vec<Option<u64>> {
    denied().iter().map(|(_, set, element)| counted(lab, set, element)).collect()
}

/// The node's enforced state as its cluster changes, updated as the agent does it.
struct Enforced<'lab> {
    lab: &'lab Lab,
    live: Ruleset,
    layout: Layout,
    generation: Generation,
}

impl Enforced<'_> {
    fn change_to(&mut self, objects: &[Value]) {
        let draft = translate(&state_of(objects), NODE, &self.layout).ruleset;
        if draft.narrows(&self.live) {
            self.generation = self.generation.next();
        }
        let wanted = draft.stamp(self.generation);
        let operations = difference(&self.live, &wanted);
        assert!(!operations.is_empty(), "the change is one");
        self.commit(&operations);
        self.live = wanted;
        assert_eq!(self.repairs(), [""; 0]);
    }

    fn commit(&self, operations: &[nft::Operation]) {
        self.lab.node_exec(NODE, || {
            let mut kernel = Kernel::open().expect("nf_tables");
            let generation = kernel.generation().expect("the generation");
            kernel.commit(operations, generation).unwrap_or_else(|e| panic!("{e}"));
        });
    }

    /// Reads the table back and repairs it.
    fn repairs(&self) -> Vec<String> {
        let table = &self.live.table;
        let read = || Kernel::open().expect("nf_tables").read(table).expect("the table is readable");
        let operations = repair(self.lab.node_exec(NODE, read).as_ref(), &self.live);
        self.commit(&operations);
        operations.iter().map(ToString::to_string).collect()
    }
}

#[test]
fn recorded_flows_survive_changes_and_repairs() {
    let lab = lab();
    let base = [
        namespace("shop", ""),
        pod("client", NODE, "app=client", &CLIENT),
        pod("server", NODE, "app=server", &SERVER),
        ingress("server", "app=server", "app=nobody"),
    ];
    let with = |more: &[Value]| [&base, more].concat();
    let layout = Layout::for_table("ringfence").expect("a name").logging_to(Some(GROUP));
    let live = translate(&state_of(&base), NODE, &layout).ruleset.in_first_generation();
    let generation = layout.first_generation();
    let mut enforced = Enforced { lab: &lab, live, layout, generation };
    enforced.commit(&create(&enforced.live));
    let probes: Vec<Probe> = denied().into_iter().map(|(probe, ..)| probe).collect();
    assert_eq!(probe_all(&lab, &probes), [false; 4]);
    let first = counts(&lab);
    assert!(first.iter().all(|count| count.is_some_and(|n| n >= 1)), "{first:?}");

    let elsewhere = pod("nobody", "node-b", "app=nobody", &["10.2.0.1", "fd00:2::1"]);
    let to_client = policy("client", "app=client", json!({"egress": [{}], "policyTypes": ["Egress"]}));
    let changes = [
        ("a pod of another node", with(std::slice::from_ref(&elsewhere))),
        ("a pod of this node", with(&[pod("new", NODE, "app=server", &["10.1.0.9", "fd00:1::9"])])),
        ("another policy", with(std::slice::from_ref(&to_client))),
        ("the server's policies widen", with(&[ingress("more", "app=server", "app=web,tier=front"), elsewhere])),
        ("they narrow", with(&[])),
        ("the client's policies come and go", with(&[to_client])),
        ("all but the pods go", base[..3].to_vec()),
        ("and come back", with(&[])),
    ];
    for (what, objects) in changes {
        enforced.change_to(&objects);
        assert_eq!(counts(&lab), first, "{what}");
    }
    assert!(enforced.generation.number() > 1, "some change took something away");

    for tampering in [
        "add rule inet ringfence deny/ingress accept",
        "flush chain inet ringfence forward",
        "add element inet ringfence self4 { 1.2.3.4 . 1.2.3.4 }",
    ] {
        lab.node_exec(NODE, || load_text(tampering));
        assert_ne!(enforced.repairs(), [""; 0], "{tampering}");
        assert_eq!(counts(&lab), first, "{tampering}");
    }
    assert_eq!(probe_all(&lab, &probes), [false; 4]);
    let second = counts(&lab);
    assert!(first.iter().zip(&second).all(|(first, second)| second > first), "{first:?}, then {second:?}");
}
