use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kit::prober::Chance;
use nfnetlink::TableSnapshot;
use serde_json::Value;

use super::{FILE, assert_protected, egress, objects, pods, probed, stage, start};
use crate::stage::{NODE, ingress, pod};

/// Number of agent terminations with protected tables, and as many without.
const ENDS: usize = 50;

/// One termination in this many is SIGTERM.
const STOPPED: u64 = 5;

/// The smallest mask, with 15 generations: their numbers are reused while agents are killed.
const MASK: u32 = 0xf000_0000;

/// Pause between two versions of the manifests.
const BETWEEN_CHANGES: Duration = Duration::from_millis(25);

/// Another version of the manifests. Every version denies and allows the same for the probed pods: other programs for
/// the same pods, added and removed peers, added and removed isolated pods.
fn variant(chance: &mut Chance) -> Vec<Value> {
    let mut objects = pods();
    let ghosts = ["red", "green", "blue"][chance.below(3) as usize];
    for number in 0..chance.below(6) {
        let address = format!("10.1.1.{number}");
        objects.push(pod(&format!("ghost-{number}"), NODE, &format!("app=ghost,colour={ghosts}"), &[&address]));
    }
    objects.push(ingress("ghosts", &format!("colour={ghosts}"), "app=client"));
    let named = |name: &str, chance: &mut Chance| format!("{name}-{}", chance.below(3));
    objects.push(ingress(&named("server", chance), "app=server", "app=client"));
    objects.push(egress(&named("client", chance), "app=client", "server"));
    if chance.below(2) == 0 {
        objects.push(ingress(&named("more", chance), "app=server", &format!("colour={ghosts}")));
    }
    objects
}

/// Unchanged as long as no rule, set or element is recreated.
fn identity(observed: TableSnapshot) -> impl PartialEq + std::fmt::Debug {
    (observed.chains, observed.sets)
}

fn dies_all_the_time(owner: &str) {
    let stage = stage().with_mask(MASK);
    let mut chance = Chance::printed(&format!("kills, --table-owner {owner}"));
    let (agent, probing) = probed(&stage, owner);
    agent.stop();
    let begin = Instant::now();
    start(&stage, owner).until_ready();
    // Half of the terminations precede readiness, and half follow it while the manifests change: the delays adapt as
    // soon as a busy machine unbalances the halves.
    let mut most = begin.elapsed() * 2;

    let over = AtomicBool::new(false);
    let ready = std::thread::scope(|scope| {
        let mut of_changes = chance.split();
        let (stage, over) = (&stage, &over);
        let changes = scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                stage.write_objects(FILE, &variant(&mut of_changes));
                std::thread::sleep(of_changes.up_to(BETWEEN_CHANGES * 2));
            }
        });
        let mut ready = 0;
        for _ in 0..ENDS {
            let agent = start(stage, owner);
            // Not a synchronisation: the termination is to happen at a random moment.
            std::thread::sleep(chance.up_to(most));
            let is_ready = agent.try_get("/readyz").is_ok_and(|answer| answer.status == 200);
            ready += usize::from(is_ready);
            most = if is_ready { most * 9 / 10 } else { most * 11 / 10 };
            match chance.below(STOPPED) {
                0 => drop(agent.stop()),
                _ => drop(agent),
            }
        }
        over.store(true, Ordering::Relaxed);
        changes.join().expect("the manifests change");
        println!("{ready} of {ENDS} ends came to an agent that was ready; moments up to {most:?}");
        ready
    });
    stage.write_objects(FILE, &objects());
    let mut agent = start(&stage, owner);
    stage.until_enforced(&mut agent, &stage.state_of_manifests());
    agent.until_ready();
    drop(agent);

    let before = identity(stage.observed().expect("a table"));
    let mut commits = 0;
    for _ in 0..2 {
        let mut agent = start(&stage, owner);
        agent.until_ready();
        commits += agent.metric("ringfence_commits_total");
    }
    let after = identity(stage.observed().expect("a table"));
    assert_protected(probing);
    assert_eq!((commits, after), (0, before), "rules that were right are made anew");
    assert!((1..ENDS).contains(&ready), "{ready}: the moments are not any");
}

#[test]
fn kills_leak_and_cut_nothing_with_owned_table() {
    dies_all_the_time("auto");
}

#[test]
fn kills_leak_and_cut_nothing_with_unowned_table() {
    dies_all_the_time("off");
}
