use std::collections::BTreeMap;

use super::{CLIENT, SERVER, api, server_from, set, stage};
use crate::stage::{NODE, ingress};
use tests::prober::{Flow, Way};

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
