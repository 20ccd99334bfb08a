use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kit::agent_process::{ask_socket, until};
use kit::oracle::{Probe, Side, World, judge};
use serde_json::{Value, json};

use super::{coverage, records, serve, start};
use crate::drops::{DB, OTHER, WEB, pods, stage};
use crate::stage::{NODE, Stage, policy};

/// Number of policy changes, those of both servers at once: a folder of manifests is reread some 50 ms after a change.
const CHANGES: usize = 1000;
const ROUNDS: usize = CHANGES / SERVERS.len();

const SERVERS: [(&str, [&str; 2]); 2] = [("db", DB), ("other", OTHER)];

/// Ports of a server; each policy denies one or two of them, which the previous one allows.
const PORTS: std::ops::Range<u16> = 7000..7006;
const RULES: u16 = 3;

/// An allowed connection takes less than a millisecond; after this time a connection counts as denied.
const PATIENCE: Duration = Duration::from_millis(10);

/// Attempts between a commit and the next change.
const ATTEMPTS_IN_BETWEEN: usize = 12;

/// Each port is in another rule than in the previous round, or in none.
fn policy_of(round: usize, server: usize) -> Value {
    let turn = (round + server) as u16 % (RULES + 1);
    let rules: Vec<Value> = (0..RULES)
        .map(|rule| {
            let ports = PORTS.filter(|port| (port + turn) % (RULES + 1) == rule).map(|port| json!({"port": port}));
            json!({"ports": ports.collect::<Vec<Value>>()})
        })
        .collect();
    let (name, _) = SERVERS[server];
    policy(&format!("{name}-{round}"), &format!("app={name}"), json!({"ingress": rules}))
}

/// Policies in force together: at the earliest when they are written, and until the next ones are in force.
struct Round {
    written: Instant,
    in_force: Instant,
    /// The policy generation in the kernel.
    generation: u32,
}

struct Attempt {
    server: usize,
    port: u16,
    begun: Instant,
    ended: Instant,
    is_connected: bool,
}

/// Shared progress of clients and changes.
#[derive(Default)]
struct Progress {
    attempts: AtomicUsize,
    is_over: AtomicBool,
}

/// Connects to each port of each server in turn, until the changes end.
fn attempt(stage: &Stage, family: usize, progress: &Progress) -> Vec<Attempt> {
    let addresses = SERVERS.map(|(_, addresses)| addresses[family].parse::<IpAddr>().unwrap());
    stage.lab.in_namespace_of(WEB[family].parse().unwrap(), || {
        let mut attempts = Vec::new();
        let targets: Vec<(usize, u16)> =
            [0, 1].into_iter().flat_map(|server| PORTS.map(move |port| (server, port))).collect();
        for (server, port) in targets.into_iter().cycle() {
            if progress.is_over.load(Ordering::Relaxed) {
                break;
            }
            let begun = Instant::now();
            let is_connected = TcpStream::connect_timeout(&SocketAddr::new(addresses[server], port), PATIENCE).is_ok();
            attempts.push(Attempt { server, port, begun, ended: Instant::now(), is_connected });
            progress.attempts.fetch_add(1, Ordering::Relaxed);
        }
        attempts
    })
}

/// Replaces the policies repeatedly.
fn change(stage: &Stage, progress: &Progress) -> Vec<Round> {
    let replace = |round| {
        let written = Instant::now();
        stage.write_objects("policies.json", &[0, 1].map(|server| policy_of(round, server)));
        // On a busy machine, the policies of the two servers may be committed separately.
        let generation = until("the policies are in force", || {
            let observed = stage.observed()?;
            let has_program = |name| observed.chains.keys().any(|chain| chain.ends_with(&format!("/{name}-{round}")));
            let generation =
                SERVERS.iter().all(|(name, _)| has_program(name)).then(|| stage.generation_of(&observed))?;
            // The kernel shows a commit before the agent has read its acknowledgement. Connections in between may have
            // the rules of either side, and on a busy machine they are many.
            (acknowledged_generation(stage) == Some(u64::from(generation))).then_some(generation)
        });
        let in_force = Instant::now();
        let wanted = progress.attempts.load(Ordering::Relaxed) + ATTEMPTS_IN_BETWEEN;
        until("connections in between", || (progress.attempts.load(Ordering::Relaxed) >= wanted).then_some(()));
        Round { written, in_force, generation }
    };
    (0..ROUNDS).map(replace).collect()
}

/// The policy generation of the last commit that the kernel acknowledged to the agent.
fn acknowledged_generation(stage: &Stage) -> Option<u64> {
    let status: Value = serde_json::from_str(&ask_socket(&stage.run_dir(), "/v1/status").body).ok()?;
    status["rules"]["policyGeneration"].as_u64()
}

/// The rounds whose policies may have judged the connection.
fn judging(attempt: &Attempt, rounds: &[Round]) -> std::ops::Range<usize> {
    let first = rounds.partition_point(|round| round.in_force < attempt.begun).saturating_sub(1);
    first..rounds.partition_point(|round| round.written <= attempt.ended)
}

/// A round, a server and a port of it.
type Question = (usize, usize, u16);

/// The oracle's expectations, cached.
struct Expectation {
    world: World,
    answers: HashMap<Question, Option<usize>>,
}

impl Expectation {
    fn new() -> Expectation {
        let mut world = World::default();
        for object in pods() {
            match object["kind"].as_str() {
                Some("Namespace") => world.namespaces.push(serde_json::from_value(object).unwrap()),
                _ => world.pods.push(serde_json::from_value(object).unwrap()),
            }
        }
        Expectation { world, answers: HashMap::new() }
    }

    /// The rule that allows the port in that round; `None` if it is denied.
    fn rule(&mut self, question: Question) -> Option<usize> {
        if let Some(answer) = self.answers.get(&question) {
            return *answer;
        }
        let (round, server, port) = question;
        let whole = policy_of(round, server);
        let rules = whole["spec"]["ingress"].as_array().unwrap().clone();
        let allowing: Vec<usize> = (0..rules.len())
            .filter(|rule| {
                let mut alone = whole.clone();
                alone["spec"]["ingress"] = json!([rules[*rule]]);
                self.allows(alone, server, port)
            })
            .collect();
        assert_eq!(self.allows(whole, server, port), !allowing.is_empty());
        assert!(allowing.len() < 2, "{allowing:?}");
        self.answers.insert(question, allowing.first().copied());
        allowing.first().copied()
    }

    fn allows(&mut self, policy: Value, server: usize, port: u16) -> bool {
        self.world.policies = vec![policy];
        let (source, destination) = (WEB[0].parse().unwrap(), SERVERS[server].1[0].parse().unwrap());
        let probe = Probe { source, destination, protocol: Probe::TCP, port: Some(port) };
        judge(&self.world, NODE, &probe).ingress == Side::Allowed
    }
}

/// Number of connections of one policy to one port.
#[derive(Debug, Default)]
struct Count {
    recorded: u64,
    certain: u64,
    /// Connections that a neighbouring policy may have judged, or that were given up and may have been allowed.
    possible: u64,
}

#[test]
fn connections_keep_the_rule_of_their_moment() {
    let stage = stage();
    let before =
        SERVERS.map(|(name, _)| policy(&format!("{name}-before"), &format!("app={name}"), json!({"ingress": []})));
    stage.write_objects("policies.json", &before);
    let mut agent = start(&stage);
    for (to, port) in DB.into_iter().chain(OTHER).flat_map(|to| PORTS.map(move |port| (to, port))) {
        serve(&stage, to, port);
    }
    let progress = Progress::default();
    let began = Instant::now();
    let (rounds, attempts) = std::thread::scope(|scope| {
        let clients = [0, 1].map(|family| {
            scope.spawn({
                let (stage, progress) = (&stage, &progress);
                move || attempt(stage, family, progress)
            })
        });
        // Clients end with the changes, also if these fail.
        let rounds = scope.spawn(|| change(&stage, &progress)).join();
        progress.is_over.store(true, Ordering::Relaxed);
        let attempts: Vec<Attempt> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        (rounds.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), attempts)
    });
    let connected = attempts.iter().filter(|attempt| attempt.is_connected).count() as u64;
    println!("{CHANGES} changes in {:?}, {connected} of {} connections", began.elapsed(), attempts.len());
    agent.until("all connections", |_| (coverage(&stage)["started"].as_u64()? >= connected).then_some(()));

    let mut expectation = Expectation::new();
    let mut counts: HashMap<Question, Count> = HashMap::new();
    let (mut exact, mut inexact) = (0, 0);
    for record in records(&stage, "?verdict=allowed") {
        let hit = &record["ingress"]["enforced"][0];
        let server = SERVERS.iter().position(|(name, _)| record["destination"]["name"] == *name).unwrap();
        let round = hit["name"].as_str().and_then(|name| name.strip_prefix(SERVERS[server].0)?.strip_prefix('-'));
        let round: usize = round.and_then(|round| round.parse().ok()).unwrap_or_else(|| panic!("{record:#}"));
        let question = (round, server, record["port"].as_u64().unwrap() as u16);
        let rule = expectation.rule(question).map(|rule| format!("spec.ingress[{rule}]"));
        assert_eq!(hit["rule"], json!(rule), "{record:#}");
        // A record of the time between two commits has a generation that no round has.
        let read = rounds.iter().position(|round| record["generation"] == round.generation);
        assert!(read.is_none_or(|read| read == round || read == round + 1), "{read:?} {record:#}");
        (exact, inexact) = if read == Some(round) { (exact + 1, inexact) } else { (exact, inexact + 1) };
        counts.entry(question).or_default().recorded += record["connections"]["started"].as_u64().unwrap();
    }
    assert!(inexact * 50 < exact, "{exact} records have the generation of their policies, {inexact} another one");
    for attempt in &attempts {
        let questions = judging(attempt, &rounds).map(|round| (round, attempt.server, attempt.port));
        let may_have_allowed: Vec<Question> =
            questions.filter(|question| expectation.rule(*question).is_some()).collect();
        assert!(!(attempt.is_connected && may_have_allowed.is_empty() && attempt.begun > rounds[0].in_force));
        for question in &may_have_allowed {
            let count = counts.entry(*question).or_default();
            match attempt.is_connected && may_have_allowed.len() == 1 {
                true => count.certain += 1,
                false => count.possible += 1,
            }
        }
    }
    for (of, count) in &counts {
        let most = count.certain + count.possible;
        assert!((count.certain..=most).contains(&count.recorded), "round, server and port {of:?}: {count:?}");
    }
    let certain: u64 = counts.values().map(|count| count.certain).sum();
    assert!(certain * 4 > connected, "of {connected} connections only {certain} have one possible policy");
    let recorded: u64 = counts.values().map(|count| count.recorded).sum();
    let given_up = attempts.len() as u64 - connected;
    assert!((connected..=connected + given_up).contains(&recorded), "{connected} connections, {recorded} recorded");
}
