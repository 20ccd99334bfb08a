//! Outages of the other cluster, the provider and the agent, in every order: the known state stays in force, removals
//! take effect once they are known, and nothing else is admitted.

use super::*;

#[test]
fn sets_survive_outage_and_lose_removed_pods_afterwards() {
    let clusters = TwoClusters::new();
    let (web_0, web_1) = (EastPod::web("web-0", 0), EastPod::web("web-1", 1));
    let mut cast = Cast::begin(&clusters, &[web_0.clone(), web_1]);
    cast.until_in_kernel(&[0, 1]);
    cast.until_standing("it is fresh", |cluster| cluster["fresh"] == true);
    drop(cast.east.take());
    cast.until_standing("it is stale", |cluster| cluster["fresh"] == false);
    assert_eq!(clusters.admitted(), admitted(&[0, 1]));
    cast.start_east(&[web_0, EastPod::web("web-3", 3)]);
    cast.until_in_kernel(&[0, 3]);
    assert_eq!(clusters.admitted(), admitted(&[0, 3]));
    cast.until_standing("it is fresh", |cluster| cluster["fresh"] == true);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    East,
    Provider,
    Agent,
}

const ORDERS: [[Part; 3]; 6] = [
    [Part::East, Part::Provider, Part::Agent],
    [Part::East, Part::Agent, Part::Provider],
    [Part::Provider, Part::East, Part::Agent],
    [Part::Provider, Part::Agent, Part::East],
    [Part::Agent, Part::East, Part::Provider],
    [Part::Agent, Part::Provider, Part::East],
];

impl Cast<'_> {
    fn end(&mut self, part: Part) {
        match part {
            Part::East => drop(self.east.take()),
            Part::Provider => self.provider.take().unwrap().kill(),
            // The rules stay in the kernel without the agent.
            Part::Agent => drop(self.agent.take()),
        }
    }

    fn start(&mut self, part: Part, pods: &[EastPod]) {
        match part {
            Part::East => self.start_east(pods),
            Part::Provider => self.start_provider(),
            Part::Agent => self.start_agent(),
        }
    }
}

#[test]
fn sets_survive_outages_in_any_order() {
    let clusters = TwoClusters::new();
    let (stays, goes) = (EastPod::web("stays", 0), EastPod::web("goes", 1));
    let both = [stays.clone(), goes.clone()];
    let mut cast = Cast::begin(&clusters, &both);
    cast.until_in_kernel(&[0, 1]);
    for order in ORDERS {
        // The known state must be on disk before the outages: a crash may lose unwritten state.
        cast.until_standing("it is fresh", |cluster| cluster["fresh"] == true && cluster["addresses"] == 4);
        for part in order {
            cast.end(part);
            assert_eq!(clusters.admitted(), admitted(&[0, 1]), "{order:?}: {part:?} has gone");
        }
        // A pod is deleted, and another one is added without offering itself.
        let after = [stays.clone(), EastPod { offered_as: None, ..EastPod::web("other", 2) }];
        for part in order {
            cast.start(part, &after);
            let now = clusters.admitted();
            assert!(now == admitted(&[0, 1]) || now == admitted(&[0]), "{order:?}: {part:?} is back: {now:?}");
        }
        cast.until_in_kernel(&[0]);
        assert_eq!(clusters.admitted(), admitted(&[0]), "{order:?}");
        cast.set(&goes);
        cast.until_in_kernel(&[0, 1]);
    }
}

#[test]
fn agent_enforces_stored_sets_without_provider() {
    let clusters = TwoClusters::new();
    let mut cast = Cast::begin(&clusters, &[EastPod::web("web-0", 0)]);
    cast.until_in_kernel(&[0]);
    cast.end(Part::Provider);
    cast.end(Part::East);
    cast.end(Part::Agent);
    clusters.lab.node_exec(kit::two_clusters::HOME, || kit::kernel_table::nft("delete table inet ringfence"));
    cast.start_agent();
    assert_eq!(clusters.admitted(), admitted(&[0]));
    let standing = cast.standing();
    assert!(standing["fresh"] == false && standing["secondsStale"].is_u64(), "{standing}");
}

#[test]
fn provider_without_state_removes_no_sets_during_outage() {
    let clusters = TwoClusters::new();
    let mut cast = Cast::begin(&clusters, &[EastPod::web("web-0", 0), EastPod::web("web-1", 1)]);
    cast.until_in_kernel(&[0, 1]);
    cast.end(Part::East);
    cast.end(Part::Provider);
    std::fs::remove_dir_all(clusters.path("provider")).unwrap();
    cast.start(Part::Provider, &[]);
    cast.until_standing("the provider knows less", |cluster| cluster["held"] == true);
    assert_eq!(clusters.admitted(), admitted(&[0, 1]));
    cast.start_east(&[EastPod::web("web-1", 1)]);
    cast.until_in_kernel(&[1]);
    cast.until_standing("it is fresh", |cluster| cluster["held"] == false && cluster["fresh"] == true);
}

#[test]
fn stale_sets_are_dropped_and_restored_after_reconnect() {
    let clusters = TwoClusters::new();
    let mut cast = Cast::begin(&clusters, &[EastPod::web("web-0", 0)]);
    cast.until_in_kernel(&[0]);
    cast.end(Part::Agent);
    let mut agent = clusters.agent(&["--remote-max-stale", "2s"]);
    agent.until_ready();
    cast.agent = Some(agent);
    cast.until_in_kernel(&[0]);
    cast.end(Part::Provider);
    cast.until_standing("it is dropped", |cluster| cluster["dropped"] == true);
    cast.until_in_kernel(&[]);
    assert_eq!(clusters.admitted(), NOBODY);
    cast.start(Part::Provider, &[]);
    cast.until_in_kernel(&[0]);
}

#[test]
fn damaged_remote_sets_file_is_renamed_and_reported() {
    let clusters = TwoClusters::new();
    std::fs::create_dir(clusters.path("agent")).unwrap();
    std::fs::write(clusters.path("agent/remote-sets.json"), "{\"epoch\":0,").unwrap();
    let mut cast = Cast { clusters: &clusters, east: None, provider: None, agent: None };
    cast.start_agent();
    let problem = clusters.agent_status()["remote"]["persistProblem"].clone();
    assert!(problem.as_str().is_some_and(|text| text.contains("is damaged")), "{problem}");
    assert!(clusters.path("agent/remote-sets.json.damaged").exists());
    assert_eq!(clusters.admitted(), NOBODY);
    cast.start_east(&[EastPod::web("web-0", 0)]);
    cast.start_provider();
    cast.until_in_kernel(&[0]);
    cast.until_standing("it is fresh", |cluster| cluster["fresh"] == true);
    cast.agent
        .as_mut()
        .unwrap()
        .until("the file is whole", |_| clusters.agent_status()["remote"]["persistProblem"].is_null().then_some(()));
}

#[test]
fn agent_falls_back_to_second_provider_url() {
    let clusters = TwoClusters::new();
    let mut cast = Cast { clusters: &clusters, east: None, provider: None, agent: None };
    cast.start_east(&[EastPod::web("web-0", 0)]);
    cast.start_provider();
    let agent = clusters.agent_without_provider(&["--context-url", "http://127.0.0.1:9,http://127.0.0.1:9471"]);
    cast.agent = Some(agent);
    cast.until_in_kernel(&[0]);
}
