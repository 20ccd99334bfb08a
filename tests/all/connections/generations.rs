use std::collections::BTreeMap;

use super::{CLIENT, SERVER, api, commit, server_from, set, stage};
use crate::stage::{NODE, Stage, ingress};
use kit::agent_process::AgentProcess;
use kit::fake_api::FakeApi;
use kit::kernel_table::load_text;
use kit::prober::{Flow, Way};

/// The smallest mask, which has 7 generations.
const MASK: u32 = 0xf000_0000;

#[test]
fn reused_generation_revives_no_idle_flow() {
    let stage = stage().with_mask(MASK);
    let other_from = |step: usize| ingress("other", "app=other", ["app=client", "app=server"][step % 2]);
    let api = api(&stage, &[server_from("client"), other_from(0)]);
    let mut agent = stage.start_on_api(&api);
    let mut flows: BTreeMap<u32, Flow> = BTreeMap::new();
    for step in 1..=7 {
        let mut flow = Flow::udp(&stage.lab, CLIENT[0], SERVER[0]);
        Way::BOTH.into_iter().for_each(|way| flow.assert_alive(way));
        assert!(flows.insert(stage.policy_generation(), flow).is_none());
        set(&mut agent, &api, other_from(step));
    }
    assert_eq!(flows.keys().copied().collect::<Vec<u32>>(), (1..=7).collect::<Vec<u32>>());
    set(&mut agent, &api, server_from("nobody"));

    let mut visits: BTreeMap<u32, u32> = BTreeMap::new();
    for step in 8..=28 {
        let before = stage.policy_generation();
        set(&mut agent, &api, other_from(step));
        let now = stage.policy_generation();
        assert_eq!(now, if before == 7 { 1 } else { before + 1 });
        let visits = visits.entry(now).or_default();
        *visits += 1;
        // Some at the first reuse of their generation number, the others one round later.
        let due = *visits == 1 + now % 2;
        if due && let Some(mut flow) = flows.remove(&now) {
            flow.assert_dead(&stage.lab, NODE, Way::BOTH[now as usize / 2 % 2]);
        }
    }
    assert!(flows.is_empty() && visits.values().all(|visits| *visits >= 2));
}

/// An agent whose table other programs can replace.
fn unprotected<'stage>(stage: &'stage Stage, api: &FakeApi) -> AgentProcess<'stage> {
    let mut command = stage.agent_on_api(api);
    command.args(["--table-owner", "off"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    agent
}

/// Replaces the table by one that was listed before, as a restart of `nftables.service` does.
fn restore(stage: &Stage, listed: &str) {
    stage.lab.node_exec(NODE, || load_text(&format!("delete table inet ringfence\n{listed}")));
}

/// A flow that the generation after that of the listed table approved, and that the present policy denies.
#[test]
fn restored_table_revives_no_approval() {
    let stage = stage();
    let api = api(&stage, &[server_from("other")]);
    let mut agent = unprotected(&stage, &api);
    let listed = stage.nft("list table inet ringfence");
    set(&mut agent, &api, server_from("client"));
    let mut flows = Way::BOTH.map(|way| (Flow::udp(&stage.lab, CLIENT[0], SERVER[0]), way));
    set(&mut agent, &api, server_from("nobody"));
    commit(&mut agent, || restore(&stage, &listed));
    for (flow, way) in &mut flows {
        flow.assert_dead(&stage.lab, NODE, *way);
    }
}

#[test]
fn table_restored_without_agent_revives_no_approval() {
    let stage = stage();
    let api = api(&stage, &[server_from("other")]);
    let mut agent = unprotected(&stage, &api);
    let listed = stage.nft("list table inet ringfence");
    set(&mut agent, &api, server_from("client"));
    let mut flows = Way::BOTH.map(|way| (Flow::udp(&stage.lab, CLIENT[0], SERVER[0]), way));
    set(&mut agent, &api, server_from("other"));
    drop(agent);
    restore(&stage, &listed);
    let mut agent = unprotected(&stage, &api);
    set(&mut agent, &api, server_from("nobody"));
    for (flow, way) in &mut flows {
        flow.assert_dead(&stage.lab, NODE, *way);
    }
}
