use std::collections::BTreeMap;

use super::{CLIENT, SERVER, api, server_from, set, stage};
use crate::stage::{NODE, ingress};
use tests::prober::{Flow, Way};

/// The smallest mask, which has 15 generations.
const MASK: u32 = 0xf000_0000;

#[test]
fn a_generation_that_comes_again_brings_no_idle_flow_back_to_life() {
    let stage = stage().with_mask(MASK);
    let other_from = |step: usize| ingress("other", "app=other", ["app=client", "app=server"][step % 2]);
    let api = api(&stage, &[server_from("client"), other_from(0)]);
    let mut agent = stage.start_on_api(&api);
    let mut flows: BTreeMap<u32, Flow> = BTreeMap::new();
    for step in 1..=15 {
        let mut flow = Flow::udp(&stage.lab, CLIENT[0], SERVER[0]);
        Way::BOTH.into_iter().for_each(|way| flow.assert_alive(way));
        assert!(flows.insert(stage.policy_generation(), flow).is_none());
        set(&mut agent, &api, other_from(step));
    }
    assert_eq!(flows.keys().copied().collect::<Vec<u32>>(), (1..=15).collect::<Vec<u32>>());
    set(&mut agent, &api, server_from("nobody"));

    let mut rounds = 0;
    for step in 16..=55 {
        let before = stage.policy_generation();
        set(&mut agent, &api, other_from(step));
        let now = stage.policy_generation();
        assert_eq!(now, if before == 15 { 1 } else { before + 1 });
        rounds += u32::from(now == 1);
        // Some when their number comes again for the first time, the others a round later.
        let due = now % 2 == rounds % 2;
        if due && let Some(mut flow) = flows.remove(&now) {
            flow.assert_dead(&stage.lab, NODE, Way::BOTH[now as usize / 2 % 2]);
        }
    }
    assert_eq!((flows.keys().count(), rounds), (0, 2));
}
