//! A running agent explains a flow as the kernel and the oracle judge it.
//!
//! Random clusters run in a lab with an agent on each node; each probe is sent as a real packet, and then both agents
//! are asked to explain it, over the socket and in a few cases through the program.

// The requested flows, with the names of their ends.
mod questions;

use std::path::{Path, PathBuf};

use kit::agent_process::{AgentProcess, ProgramExit, ask_socket, ringfence, run};
use kit::fake_api::FakeApi;
use kit::lab::{Lab, probe_all};
use kit::oracle::{Judgement, Probe, Side, World, judge, node_of, stays_on_node};
use policy::Explanation;
use tempfile::TempDir;
use tests::generate::{NODES, draw_probes, draw_worlds};

use crate::kernel::distinguishable;
use crate::stage::set_all;
use questions::{NodeAddresses, Question, bound_to_a_node, questions};

/// Random clusters, unless the variable sets another number, and probes of each.
const CLUSTERS: usize = 24;
const CLUSTERS_VARIABLE: &str = "EXPLAINED_CLUSTERS";
const PROBES: usize = 160;

/// One of this many probes is also requested through the program, which takes longer than the socket.
const THROUGH_PROGRAM: usize = 32;

#[test]
fn agents_explain_every_probe_as_kernel_judges() {
    let mut seen = Comparisons::default();
    // An agent on a node without pods assumes a wrong node name, and enforces nothing.
    let runs_pods = |world: &World| NODES.iter().all(|node| world.pods.iter().any(|pod| node_of(pod) == Some(node)));
    let wanted = clusters();
    let worlds: Vec<World> = draw_worlds(2 * wanted).into_iter().filter(runs_pods).take(wanted).collect();
    assert_eq!(worlds.len(), wanted, "most worlds have pods on both nodes");
    for (number, world) in worlds.iter().enumerate() {
        examine(number, world, &mut seen);
    }
    println!("{seen:?}");
    assert!(seen.is_representative(), "too few probes of one category: {seen:?}");
}

fn clusters() -> usize {
    match std::env::var(CLUSTERS_VARIABLE) {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("{CLUSTERS_VARIABLE}={text}: {e}")),
        Err(_) => CLUSTERS,
    }
}

/// Numbers of comparisons by category.
#[derive(Debug, Default)]
struct Comparisons {
    allowed: usize,
    denied: usize,
    /// Allowed probes that audited policies would deny.
    would_be_denied: usize,
    /// Allowed probes between a node and its own pods, which no policy judges.
    of_the_node: usize,
    to_itself: usize,
    by_pod_name: usize,
    by_port_name: usize,
    through_program: usize,
}

impl Comparisons {
    fn is_representative(&self) -> bool {
        let Comparisons {
            allowed,
            denied,
            would_be_denied,
            of_the_node,
            to_itself,
            by_pod_name,
            by_port_name,
            through_program,
        } = self;
        let common = [allowed, denied, by_pod_name].into_iter().all(|count| *count >= 100);
        common
            && [would_be_denied, of_the_node, to_itself, by_port_name, through_program]
                .into_iter()
                .all(|count| *count >= 10)
    }
}

fn examine(number: usize, world: &World, seen: &mut Comparisons) {
    let hosts = NodeAddresses::of(world);
    let drawn = draw_probes(world, PROBES).into_iter().chain(hosts.probes(world));
    let asked = drawn.filter(|probe| bound_to_a_node(world, probe) && !hosts.is_disputed(probe));
    let (to_itself, to_others): (Vec<Probe>, Vec<Probe>) = asked.partition(|probe| probe.source == probe.destination);
    let mut probes = distinguishable(to_others);
    probes.extend(to_itself.into_iter().filter(|probe| matches!(probe.protocol, Probe::TCP | Probe::UDP)));
    let lab = Lab::new(&hosts.lab_spec(world, &NODES, &probes));
    let stage = Stage::new(&lab, world);
    let _agents = stage.start(&lab, world);
    for (index, (probe, arrived)) in probes.iter().zip(probe_all(&lab, &probes)).enumerate() {
        let own_node = stays_on_node(world, probe);
        let judged: [Judgement; 2] = NODES.map(|node| judge(world, node, probe));
        let expected = own_node || judged.iter().all(|judgement| judgement.passes());
        let about = format!("cluster {number}: {probe}, judged {judged:?}");
        // A packet to the pod's own address does not leave the pod. The explanation assumes a Service that leads back.
        let is_itself = probe.source == probe.destination;
        assert_eq!(arrived, expected || is_itself, "{about}, in\n{world:?}");
        let asked = questions(world, probe);
        let would_be_denied = !own_node && judged.iter().any(would_be_denied);
        for question in &asked {
            let explanation = stage.explain(question, probe, &about);
            assert_eq!(
                explanation.would_be_denied(),
                would_be_denied && expected,
                "{about}: {explanation}\nin\n{world:?}"
            );
            assert_eq!(explanation.allowed, expected, "{about}: {explanation}\nin\n{world:?}");
        }
        if index % THROUGH_PROGRAM == 0 {
            let question = &asked[index / THROUGH_PROGRAM % asked.len()];
            stage.explain_through_program(question, NODES[index / THROUGH_PROGRAM % 2], &about);
            seen.through_program += 1;
        }
        if expected {
            seen.allowed += 1
        } else {
            seen.denied += 1
        }
        seen.would_be_denied += usize::from(would_be_denied && expected);
        seen.to_itself += usize::from(is_itself);
        seen.of_the_node += usize::from(own_node);
        seen.by_pod_name += asked.iter().filter(|question| question.names_pods()).count();
        seen.by_port_name += asked.iter().filter(|question| question.names_port()).count();
    }
}

/// Whether one of the sides would be denied if its audited policies were enforced.
fn would_be_denied(judgement: &Judgement) -> bool {
    [judgement.egress, judgement.ingress].contains(&Side::WouldDeny)
}

/// An API server for each node, and a folder for each agent.
struct Stage {
    folder: TempDir,
    servers: [FakeApi; 2],
}

impl Stage {
    fn new(lab: &Lab, world: &World) -> Stage {
        let servers = NODES.map(|node| lab.node_exec(node, FakeApi::start));
        for server in &servers {
            set_all(server, &world.documents());
        }
        Stage { folder: TempDir::new().expect("a folder"), servers }
    }

    fn run_dir(&self, node: &str) -> PathBuf {
        self.folder.path().join(node)
    }

    fn start<'lab>(&self, lab: &'lab Lab, world: &World) -> [AgentProcess<'lab>; 2] {
        let mut agents = [0, 1].map(|index| {
            let mut command = ringfence();
            command.args(["agent", "--node-name", NODES[index], "--run-dir"]).arg(self.run_dir(NODES[index]));
            command.arg("--kubeconfig").arg(self.servers[index].kubeconfig());
            if world.audits_by_default {
                command.args(["--enforcement", "audit"]);
            }
            AgentProcess::start(lab, NODES[index], command)
        });
        agents.iter_mut().for_each(AgentProcess::until_ready);
        agents
    }

    /// The explanation of the probe by both agents. (By name a pod may have more addresses than the probe's.)
    fn explain(&self, question: &Question, probe: &Probe, about: &str) -> Explanation {
        let answers = NODES.map(|node| ask_socket(&self.run_dir(node), &question.target()));
        let bodies = (&answers[0].body, &answers[1].body);
        assert_eq!(bodies.0, bodies.1, "{about}: the agents answer {question} differently");
        assert_eq!(answers[0].status, 200, "{about}: {question}: {}", answers[0].body);
        let explanations = read(&answers[0].body);
        let of_probe = |e: &Explanation| (e.source.address, e.destination.address) == (probe.source, probe.destination);
        let found = explanations.into_iter().find(of_probe);
        found.unwrap_or_else(|| panic!("{about}: {question}: nothing of the probe in {}", answers[0].body))
    }

    /// The program prints the socket's explanation, and exits with 0 if everything is allowed and with 1 if not.
    fn explain_through_program(&self, question: &Question, node: &str, about: &str) {
        let run_dir = self.run_dir(node);
        let answer = ask_socket(&run_dir, &question.target());
        let (json, text) =
            (print_explanation(question, &run_dir, "json"), print_explanation(question, &run_dir, "text"));
        let explanations = read(&json.stdout);
        assert_eq!(explanations, read(&answer.body), "{about}: {question}");
        let status = if explanations.iter().all(|e| e.allowed) { 0 } else { 1 };
        assert_eq!((json.code, text.code), (Some(status), Some(status)), "{about}: {question}\n{}", text.stdout);
        let lines: String = explanations.iter().map(|e| format!("{e}\n")).collect();
        assert_eq!(text.stdout, lines, "{about}: {question}");
    }
}

fn print_explanation(question: &Question, run_dir: &Path, output: &str) -> ProgramExit {
    let run_dir = run_dir.to_str().expect("a path of ours");
    let [source, destination, traffic] = question.words();
    run(["explain", source, destination, traffic, "--run-dir", run_dir, "--output", output])
}

fn read(body: &str) -> Vec<Explanation> {
    serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body}"))
}
