//! Domain names of cluster policies: an agent that learns addresses from real answers, and the connections of pods.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use kit::agent_process::{AgentProcess, WITHIN};
use kit::frame::{send_packets, udp_datagram};
use kit::openmetrics;
use serde_json::{Value, json};
use tests::dns_server::{DnsServer, Record, answer_with, ask_on};

use crate::stage::{NODE, Stage};

mod forged_connections;

const WEB: &str = "10.1.0.2";
const OTHER: &str = "10.1.0.3";
const DNS: &str = "10.1.0.53";
/// The namespace outside has all of these addresses.
const SITE: &str = "192.0.2.1";
const SECOND: &str = "192.0.2.2";
const THIRD: &str = "192.0.2.3";
const NAME: &str = "www.example.org";

/// How long a connection is tried that is expected to be denied: the first packet and no retransmission, which follows
/// after a second.
const DENIED_WITHIN: Duration = Duration::from_millis(300);

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn pod(namespace: &str, name: &str, labels: &Value, ip: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": {"nodeName": NODE}, "status": {"phase": "Running", "podIPs": [{"ip": ip}]},
    })
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// The pods of namespace shop reach the names, and any DNS server.
fn policy(names: &Value) -> Value {
    let port = json!({"destinationPort": {"number": 53}});
    let dns = json!([{"udp": port}, {"tcp": port}]);
    let egress = json!([
        {"action": "Accept", "to": [{"namespaces": {}}, {"networks": ["169.254.20.10/32"]}], "protocols": dns},
        {"action": "Accept", "to": [{"domainNames": names}]},
        {"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]},
    ]);
    let subject = json!({"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}});
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "names"},
        "spec": {"tier": "Admin", "priority": 1, "subject": subject, "egress": egress},
    })
}

struct Scene {
    stage: Stage,
    dns: DnsServer,
    /// One for each address outside.
    listeners: Vec<TcpListener>,
}

impl Scene {
    fn new(names: &Value) -> Scene {
        Scene::with_outside(names, &[SITE, SECOND, THIRD])
    }

    fn with_outside(names: &Value, outside: &[&str]) -> Scene {
        let pods: [(&str, &[&str]); 3] = [("web", &[WEB]), ("other", &[OTHER]), ("dns", &[DNS])];
        let stage = Stage::with_outside(&pods, outside);
        stage.write_objects(
            "pods.json",
            &[
                namespace("shop"),
                namespace("kube-system"),
                pod("shop", "web", &json!({"app": "web"}), WEB),
                pod("shop", "other", &json!({"k8s-app": "kube-dns"}), OTHER),
                pod("kube-system", "dns", &json!({"k8s-app": "kube-dns"}), DNS),
            ],
        );
        stage.write_objects("policy.json", &[policy(names)]);
        let dns = DnsServer::start(&stage.lab, address(DNS));
        let listen = |at: &&str| {
            let at = SocketAddr::new(address(at), 443);
            stage.lab.in_namespace_of(at.ip(), || TcpListener::bind(at).expect("a port"))
        };
        let listeners = outside.iter().map(listen).collect();
        Scene { stage, dns, listeners }
    }

    fn agent(&self) -> Command {
        let mut command = self.stage.agent_on_manifests();
        command.args(["--dns-shortest-ttl", "1s"]);
        command
    }

    fn start(&self) -> AgentProcess<'_> {
        let mut agent = self.stage.start(self.agent());
        agent.until_ready();
        agent
    }

    fn site(&self, name: &str, ttl: u32, at: &str) {
        self.dns.set(name, ttl, vec![Record::Address(address(at))]);
    }

    fn connect(&self, from: &str, to: &str, within: Duration) -> Option<TcpStream> {
        let to = SocketAddr::new(address(to), 443);
        self.stage.lab.in_namespace_of(address(from), || TcpStream::connect_timeout(&to, within).ok())
    }

    fn is_denied(&self, from: &str, to: &str) -> bool {
        self.connect(from, to, DENIED_WITHIN).is_none()
    }

    /// Waits for the connection, whose first packets may be denied before the address is learned.
    #[track_caller]
    fn until_open(&self, agent: &mut AgentProcess, from: &str, to: &str) -> TcpStream {
        agent.until("the address is open", |_| self.connect(from, to, DENIED_WITHIN))
    }
}

/// Waits until answers over TCP to the pod are read: not at once after the rules that copy them are committed.
fn until_tcp_is_read(scene: &Scene, agent: &mut AgentProcess, pod: &str) {
    let before = answers(agent, "without-addresses");
    agent.until("an answer over TCP is read", |agent| {
        // Below the limit of copies.
        std::thread::sleep(Duration::from_millis(500));
        ask_on(&mut scene.dns.connect_from(&scene.stage.lab, address(pod)), &["none.example.com"]);
        (answers(agent, "without-addresses") > before).then_some(())
    });
}

/// The value of a series.
fn series(agent: &AgentProcess, name: &str, label: (&str, &str)) -> f64 {
    let families = openmetrics::parse(&agent.get("/metrics").body).expect("OpenMetrics text");
    let mut samples = families.into_iter().flat_map(|family| family.samples);
    let of_label = |sample: &openmetrics::Sample| {
        sample.name == name && sample.labels.get(label.0).is_some_and(|value| value == label.1)
    };
    samples.find(of_label).expect("the series exists").value
}

fn answers(agent: &AgentProcess, outcome: &str) -> f64 {
    series(agent, "ringfence_dns_answers_total", ("outcome", outcome))
}

fn ignored_segments(agent: &AgentProcess, reason: &str) -> f64 {
    series(agent, "ringfence_ignored_dns_segments_total", ("reason", reason))
}

#[test]
fn answer_opens_the_address_of_its_name_alone() {
    let scene = Scene::new(&json!(["www.example.org", "api.example.org"]));
    let mut agent = scene.start();
    assert!(scene.is_denied(WEB, SITE), "nothing is learned yet");
    scene.site(NAME, 300, SITE);
    scene.site("www.example.com", 300, SECOND);
    scene.dns.ask_from(&scene.stage.lab, address(WEB), "www.example.com");
    scene.dns.ask_from(&scene.stage.lab, address(WEB), "WWW.Example.ORG");
    drop(scene.until_open(&mut agent, WEB, SITE));
    assert!(scene.is_denied(WEB, SECOND), "no policy has this name");
}

#[test]
fn wildcard_matches_the_question_behind_aliases() {
    let scene = Scene::new(&json!(["*.example.org"]));
    let mut agent = scene.start();
    scene.dns.set(NAME, 300, vec![Record::Alias("edge.example.net".into())]);
    scene.site("edge.example.net", 300, SITE);
    scene.site("example.org", 300, SECOND);
    scene.site("other.example.net", 300, THIRD);
    for name in ["example.org", "other.example.net", NAME] {
        scene.dns.ask_from(&scene.stage.lab, address(WEB), name);
    }
    drop(scene.until_open(&mut agent, WEB, SITE));
    assert!(scene.is_denied(WEB, SECOND) && scene.is_denied(WEB, THIRD));
    drop(scene.until_open(&mut agent, OTHER, SITE));
}

#[test]
fn expired_address_is_closed_and_its_connection_continues() {
    let scene = Scene::new(&json!([NAME]));
    let mut agent = scene.start();
    scene.site(NAME, 0, SITE);
    scene.dns.ask_from(&scene.stage.lab, address(WEB), NAME);
    let mut open = scene.until_open(&mut agent, WEB, SITE);
    let (mut accepted, _) = scene.listeners[0].accept().expect("a connection");
    agent.until("the address has expired", |_| scene.is_denied(WEB, SITE).then_some(()));
    accepted.set_read_timeout(Some(WITHIN)).expect("a timeout");
    open.write_all(b"still open").expect("a connection");
    let mut read = [0; 10];
    accepted.read_exact(&mut read).expect("the connection passes");
    assert_eq!(&read, b"still open");
}

#[test]
fn untrusted_resolver_opens_nothing() {
    let scene = Scene::new(&json!(["*.example.org"]));
    let mut agent = scene.start();
    // It has the label of the cluster's DNS, in another namespace.
    let forger = DnsServer::start(&scene.stage.lab, address(OTHER));
    forger.set(NAME, 300, vec![Record::Address(address(SITE))]);
    forger.ask_from(&scene.stage.lab, address(WEB), NAME);
    agent.until("the answer is refused", |agent| (answers(agent, "untrusted") == 1.0).then_some(()));
    assert!(scene.is_denied(WEB, SITE));
    // A trusted one with addresses that are none of another host, or of a pod.
    let inside = ["127.0.0.1", "169.254.169.254", "224.0.0.1", OTHER];
    scene.dns.set(NAME, 300, inside.iter().map(|text| Record::Address(address(text))).collect());
    scene.dns.ask_from(&scene.stage.lab, address(WEB), NAME);
    agent.until("the answer is read", |agent| (answers(agent, "learned") == 1.0).then_some(()));
    assert_eq!(series(&agent, "ringfence_refused_dns_addresses_total", ("reason", "not-unicast")), 3.0);
    let names = scene.stage.nft("list table inet ringfence");
    assert!(!names.contains("169.254.169.254") && !names.contains("127.0.0.1"), "{names}");
    let listener = scene.stage.lab.in_namespace_of(address(OTHER), || TcpListener::bind((OTHER, 443)).expect("a port"));
    assert!(scene.is_denied(WEB, OTHER), "{listener:?}");
}

#[test]
fn unsolicited_answers_open_nothing() {
    let scene = Scene::new(&json!(["*.example.org"]));
    let mut agent = scene.start();
    let answer = answer_with(NAME, address(SITE));
    let send = |from: &str, port: u16, to: SocketAddr| {
        let datagram = udp_datagram(SocketAddr::new(address(from), port), to, &answer);
        scene.stage.lab.in_namespace_of(address(from), || send_packets(&[datagram]));
    };
    let web = |port| SocketAddr::new(address(WEB), port);
    // From the resolver to a pod that did not ask it, and from a pod's own port 53.
    send(DNS, 53, web(4000));
    send(WEB, 53, SocketAddr::new(address(DNS), 4000));
    // A pod asks another pod from port 53 to port 53, which answers.
    send(WEB, 53, SocketAddr::new(address(OTHER), 53));
    agent.until("the answer to port 53 is refused", |agent| {
        send(OTHER, 53, web(53));
        (answers(agent, "untrusted") > 0.0).then_some(())
    });
    scene.dns.set("asked.example.com", 300, vec![Record::Alias(NAME.into())]);
    scene.site(NAME, 300, SITE);
    scene.dns.ask_from(&scene.stage.lab, address(WEB), "asked.example.com");
    agent.until("the answer is read", |agent| (answers(agent, "other-name") == 1.0).then_some(()));
    assert_eq!((answers(&agent, "learned"), answers(&agent, "without-addresses")), (0.0, 0.0));
    assert!(scene.is_denied(WEB, SITE), "a policy has the alias, and not the name in the question");
}

#[test]
fn removed_policy_takes_its_addresses_along() {
    let scene = Scene::new(&json!([NAME]));
    let mut agent = scene.start();
    scene.site(NAME, 300, SITE);
    scene.dns.ask_from(&scene.stage.lab, address(WEB), NAME);
    drop(scene.until_open(&mut agent, WEB, SITE));
    scene.stage.write_objects("policy.json", &[policy(&json!(["other.example.org"]))]);
    agent.until("the name is closed", |_| scene.is_denied(WEB, SITE).then_some(()));
    scene.stage.write_objects("policy.json", &[policy(&json!([NAME, "other.example.org"]))]);
    scene.stage.until_enforced(&mut agent, &scene.stage.state_of_manifests());
    assert!(scene.is_denied(WEB, SITE), "a policy starts without addresses");
    scene.dns.ask_from(&scene.stage.lab, address(WEB), NAME);
    drop(scene.until_open(&mut agent, WEB, SITE));
}

/// Whether bytes of the connection arrive.
fn is_open(open: &mut TcpStream, accepted: &mut TcpStream) -> bool {
    accepted.set_read_timeout(Some(DENIED_WITHIN)).expect("a timeout");
    open.write_all(b"x").expect("room in the socket");
    accepted.read_exact(&mut [0]).is_ok()
}

/// A pod of another node with an address that was learned for a name outside of the cluster's domain.
fn remote_pod_takes_address(ttl: u32, before_pod: impl FnOnce(&Scene, &mut AgentProcess)) {
    let scene = Scene::new(&json!([NAME]));
    let mut agent = scene.start();
    scene.site(NAME, ttl, SITE);
    scene.dns.ask_from(&scene.stage.lab, address(WEB), NAME);
    let mut open = scene.until_open(&mut agent, WEB, SITE);
    let (mut accepted, _) = scene.listeners[0].accept().expect("a connection");
    before_pod(&scene, &mut agent);
    assert!(is_open(&mut open, &mut accepted));
    let mut other = pod("elsewhere", "victim", &json!({}), SITE);
    other["spec"]["nodeName"] = "node-b".into();
    scene.stage.write_objects("victim.json", &[other]);
    agent.until("the connection is cut", |_| (!is_open(&mut open, &mut accepted)).then_some(()));
    assert!(scene.is_denied(WEB, SITE));
}

#[test]
fn pod_with_learned_address_is_closed_to_connections() {
    remote_pod_takes_address(300, |_, _| {});
}

/// The connection outlives the address, but not the arrival of a pod that has it.
#[test]
fn pod_with_expired_address_is_closed_to_connections() {
    remote_pod_takes_address(0, |scene, agent| {
        agent.until("the address has expired", |_| scene.is_denied(WEB, SITE).then_some(()));
    });
}

/// A rule comes to deny a pod whose address was learned for a name of the cluster's domain.
#[test]
fn denied_label_cuts_connection_opened_by_name() {
    const POD_NAME: &str = "victim.elsewhere.svc.cluster.local";
    let scene = Scene::new(&json!([NAME]));
    let mut rules = policy(&json!([POD_NAME]));
    let denied = json!({"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"state": "quarantined"}}}});
    let egress = rules["spec"]["egress"].as_array_mut().expect("rules");
    // No other rule about the pod changes with its label.
    egress[0]["to"] = json!([{"networks": [format!("{DNS}/32")]}]);
    egress.insert(0, json!({"action": "Deny", "to": [denied]}));
    scene.stage.write_objects("policy.json", &[rules]);
    let victim = |state: &str| {
        let mut victim = pod("elsewhere", "victim", &json!({"state": state}), SITE);
        victim["spec"]["nodeName"] = "node-b".into();
        scene.stage.write_objects("victim.json", &[namespace("elsewhere"), victim]);
    };
    victim("well");
    let mut agent = scene.start();
    scene.site(POD_NAME, 300, SITE);
    scene.dns.ask_from(&scene.stage.lab, address(WEB), POD_NAME);
    let mut open = scene.until_open(&mut agent, WEB, SITE);
    let (mut accepted, _) = scene.listeners[0].accept().expect("a connection");
    assert!(is_open(&mut open, &mut accepted));
    victim("quarantined");
    agent.until("the connection is cut", |_| (!is_open(&mut open, &mut accepted)).then_some(()));
}

/// The node has an address that its Node object does not have, and that an answer outside of the cluster's domain names.
#[test]
fn answer_opens_no_address_of_own_node() {
    const OWN: &str = "203.0.113.5";
    let scene = Scene::new(&json!([NAME]));
    let add = || Command::new("ip").args(["address", "add", "203.0.113.5/32", "dev", "lo"]).status().expect("ip");
    assert!(scene.stage.lab.node_exec(NODE, add).success());
    let listener = scene.stage.lab.node_exec(NODE, || TcpListener::bind((OWN, 443)).expect("a port"));
    let mut agent = scene.start();
    scene.dns.set(NAME, 300, vec![Record::Address(address(OWN)), Record::Address(address(SITE))]);
    scene.dns.ask_from(&scene.stage.lab, address(WEB), NAME);
    drop(scene.until_open(&mut agent, WEB, SITE));
    assert!(scene.is_denied(WEB, OWN), "{listener:?}");
}

#[test]
fn restarted_agent_keeps_learned_addresses() {
    let scene = Scene::new(&json!([NAME]));
    let mut agent = scene.start();
    scene.site(NAME, 300, SITE);
    scene.dns.ask_from(&scene.stage.lab, address(WEB), NAME);
    drop(scene.until_open(&mut agent, WEB, SITE));
    let saved = scene.stage.run_dir().join("learned-names.json");
    agent.until("the name is saved", |_| std::fs::read_to_string(&saved).ok().filter(|text| text.contains(NAME)));
    drop(agent.stop());
    assert!(!scene.is_denied(WEB, SITE), "the rules stay");
    let generation = scene.stage.policy_generation();
    let mut agent = scene.start();
    assert!(!scene.is_denied(WEB, SITE), "the address is known again");
    assert_eq!(scene.stage.policy_generation(), generation, "the kernel had the right rules");
    scene.site(NAME, 300, SECOND);
    scene.dns.ask_from(&scene.stage.lab, address(WEB), NAME);
    drop(scene.until_open(&mut agent, WEB, SECOND));
}

#[test]
fn whole_answer_of_a_hundred_addresses_is_learned() {
    let scene = Scene::new(&json!([NAME]));
    let mut agent = scene.start();
    let addresses = (1..=100).map(|last| Record::Address(IpAddr::from([198, 51, 100, last])));
    scene.dns.set(NAME, 300, addresses.chain([Record::Address(address(SITE))]).collect());
    scene.dns.ask_from(&scene.stage.lab, address(WEB), NAME);
    drop(scene.until_open(&mut agent, WEB, SITE));
    assert_eq!(series(&agent, "ringfence_objects", ("kind", "domainname")), 101.0);
}

/// Addresses outside, behind which the site's own one follows.
fn many(count: u8, site: &str) -> Vec<Record> {
    let addresses = (0..count).map(|last| Record::Address(IpAddr::from([198, 51, 100, last])));
    addresses.chain([Record::Address(address(site))]).collect()
}

#[test]
fn answer_in_fragments_is_learned() {
    let scene = Scene::new(&json!([NAME]));
    let mut agent = scene.start();
    // 4,032 bytes, in three fragments.
    scene.dns.set(NAME, 300, many(249, SITE));
    scene.dns.ask_from(&scene.stage.lab, address(WEB), NAME);
    drop(scene.until_open(&mut agent, WEB, SITE));
    assert_eq!(series(&agent, "ringfence_objects", ("kind", "domainname")), 250.0);
}

#[test]
fn answers_over_tcp_are_learned() {
    let scene = Scene::new(&json!(["*.example.org"]));
    let mut agent = scene.start();
    let names = ["first.example.org", "second.example.org"];
    scene.dns.set(names[0], 300, many(255, SITE));
    // The last address is one above the bound of a name.
    scene.dns.set(names[1], 300, [many(255, SECOND), many(0, THIRD)].concat());
    until_tcp_is_read(&scene, &mut agent, WEB);
    let start_missing = ignored_segments(&agent, "start-missing");
    scene.dns.ask_over_tcp_from(&scene.stage.lab, address(WEB), &names);
    drop(scene.until_open(&mut agent, WEB, SECOND));
    drop(scene.until_open(&mut agent, OTHER, SITE));
    assert!(scene.is_denied(WEB, THIRD));
    assert_eq!(answers(&agent, "learned"), 2.0);
    assert_eq!(ignored_segments(&agent, "start-missing"), start_missing);
    for reason in ["gap", "truncated", "too-long", "no-room", "mismatch", "unreadable"] {
        assert_eq!(ignored_segments(&agent, reason), 0.0, "{reason}");
    }
}

#[test]
fn connection_without_copied_start_is_ignored() {
    let scene = Scene::new(&json!(["*.example.org"]));
    let mut agent = scene.start();
    let pod = address(WEB);
    std::fs::remove_file(scene.stage.manifests().join("policy.json")).expect("the policy");
    agent.until("no answers are copied", |_| (!scene.stage.nft("list ruleset").contains("dns-clients")).then_some(()));
    let mut connection = scene.dns.connect_from(&scene.stage.lab, pod);
    scene.stage.write_objects("policy.json", &[policy(&json!(["*.example.org"]))]);
    scene.stage.until_enforced(&mut agent, &scene.stage.state_of_manifests());
    scene.site(NAME, 300, SITE);
    ask_on(&mut connection, &[NAME]);
    agent.until("the answer is ignored", |agent| (ignored_segments(agent, "start-missing") > 0.0).then_some(()));
    assert!(scene.is_denied(WEB, SITE));
    until_tcp_is_read(&scene, &mut agent, WEB);
    let mut connection = scene.dns.connect_from(&scene.stage.lab, pod);
    ask_on(&mut connection, &[NAME]);
    drop(scene.until_open(&mut agent, WEB, SITE));
}

#[test]
fn exceeded_limit_pauses_answers_over_tcp() {
    let scene = Scene::new(&json!(["*.example.org"]));
    let mut agent = scene.start();
    scene.site(NAME, 300, SITE);
    until_tcp_is_read(&scene, &mut agent, WEB);
    until_tcp_is_read(&scene, &mut agent, OTHER);
    let before = answers(&agent, "without-addresses");
    // Each connection has a segment at least.
    for _ in 0..400 {
        drop(scene.dns.connect_from(&scene.stage.lab, address(WEB)));
    }
    assert!(scene.stage.nft("list set inet ringfence dns-paused4").contains(WEB));
    ask_on(&mut scene.dns.connect_from(&scene.stage.lab, address(WEB)), &[NAME]);
    ask_on(&mut scene.dns.connect_from(&scene.stage.lab, address(OTHER)), &["other.example.org"]);
    // The pause is of one pod, and answers over UDP continue.
    agent.until("the answer to the other pod is read", |agent| {
        (answers(agent, "without-addresses") > before).then_some(())
    });
    assert!(scene.is_denied(WEB, SITE));
    scene.dns.ask_from(&scene.stage.lab, address(WEB), NAME);
    drop(scene.until_open(&mut agent, WEB, SITE));
    assert_eq!(answers(&agent, "learned"), 1.0);
}

/// Prints how long first connections take: `cargo test -p tests --test all first_connection -- --nocapture`.
#[test]
fn first_connection_takes_at_most_a_retransmission() {
    /// Initial retransmission timeout of TCP (RFC 6298), less the resolution of its timer.
    const RETRANSMITTED: Duration = Duration::from_millis(900);
    let outside: Vec<String> = (1..=30).map(|last| format!("198.51.100.{last}")).collect();
    let texts: Vec<&str> = outside.iter().map(String::as_str).collect();
    let scene = Scene::with_outside(&json!(["*.example.org"]), &texts);
    let mut agent = scene.start();
    let mut took = Vec::new();
    for (number, site) in texts.iter().enumerate() {
        let name = format!("n{number}.example.org");
        scene.site(&name, 300, site);
        scene.dns.ask_from(&scene.stage.lab, address(WEB), &name);
        let asked = Instant::now();
        assert!(scene.connect(WEB, site, WITHIN).is_some(), "{site}");
        took.push(asked.elapsed());
    }
    took.sort();
    let late = took.iter().filter(|took| **took >= RETRANSMITTED).count();
    agent.until("all are learned", |agent| (answers(agent, "learned") == 30.0).then_some(()));
    let latency = |of| series(&agent, &format!("ringfence_enforcement_latency_seconds_{of}"), ("kind", "domainname"));
    println!(
        "first connections: median {:?}, slowest {:?}, {late} of {} lost their first packet; mean latency of the rules {:.2} ms",
        took[took.len() / 2],
        took[took.len() - 1],
        took.len(),
        1000.0 * latency("sum") / latency("count"),
    );
}

#[test]
fn answers_of_untracked_resolver_on_node_are_learned() {
    const CACHE: &str = "169.254.20.10";
    let scene = Scene::new(&json!([NAME]));
    let setup = [
        "ip address add 169.254.20.10/32 dev lo".to_owned(),
        "nft add table ip raw".to_owned(),
        "nft add chain ip raw in { type filter hook prerouting priority raw; }".to_owned(),
        "nft add chain ip raw out { type filter hook output priority raw; }".to_owned(),
        format!("nft add rule ip raw in ip daddr {CACHE} udp dport 53 notrack"),
        format!("nft add rule ip raw out ip saddr {CACHE} udp sport 53 notrack"),
    ];
    let status = scene.stage.lab.node_exec(NODE, || {
        Command::new("sh").args(["-euc", &setup.join("\n").replace("{ ", "'{ ").replace("; }", "; }'")]).status()
    });
    assert!(status.expect("sh").success());
    let cache = DnsServer::start_on_node(&scene.stage.lab, NODE, address(CACHE));
    cache.set(NAME, 300, vec![Record::Address(address(SITE))]);
    let mut agent = scene.start();
    cache.ask_from(&scene.stage.lab, address(WEB), NAME);
    drop(scene.until_open(&mut agent, WEB, SITE));
}
