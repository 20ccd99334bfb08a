use policy::remote::wire::RemoteBaseline;

use super::*;

/// A provider's table: rows and sets by cluster.
#[derive(Debug, Clone, Default)]
struct ProviderTable(BTreeMap<&'static str, Row>);

/// Whether it is reachable, when it was last synced, and its sets.
type Row = (bool, Option<i64>, Vec<(&'static str, Vec<&'static str>)>);

impl ProviderTable {
    fn with(
        mut self,
        cluster: &'static str,
        reachable: bool,
        synced_at: Option<i64>,
        sets: &[(&'static str, &[&'static str])],
    ) -> ProviderTable {
        let sets = sets.iter().map(|(name, addresses)| (*name, addresses.to_vec())).collect();
        self.0.insert(cluster, (reachable, synced_at, sets));
        self
    }

    fn baseline(&self) -> RemoteBaseline {
        let mut baseline = RemoteBaseline { epoch: 1, ..RemoteBaseline::default() };
        for (cluster, (reachable, synced_at, sets)) in &self.0 {
            baseline.clusters.push(row(cluster, *reachable, *synced_at));
            for (name, addresses) in sets {
                let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
                baseline.sets.push(SetRow { set: RemoteSet::new(cluster, "shop", name), addresses });
            }
        }
        baseline
    }
}

fn row(cluster: &str, reachable: bool, synced_at: Option<i64>) -> ClusterRow {
    ClusterRow { cluster: cluster.into(), reachable, synced_at: synced_at.map(at) }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn update(cluster: &str, name: &str, adds: &[&str], removes: &[&str]) -> SetDelta {
    let parsed = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    SetDelta { set: RemoteSet::new(cluster, "shop", name), adds: parsed(adds), removes: parsed(removes) }
}

fn rows(clusters: Vec<ClusterRow>) -> RemoteDelta {
    RemoteDelta { epoch: 1, seq: 1, clusters, ..RemoteDelta::default() }
}

fn sets(sets: Vec<SetDelta>) -> RemoteDelta {
    RemoteDelta { epoch: 1, seq: 1, sets, ..RemoteDelta::default() }
}

/// A mirror, and the sets that result from its changes.
struct FollowedMirror {
    mirror: Mirror,
    state: Sets,
}

impl FollowedMirror {
    fn new(max_stale: Option<Duration>) -> FollowedMirror {
        FollowedMirror { mirror: Mirror::new(max_stale), state: Sets::new() }
    }

    fn apply(&mut self, what: impl FnOnce(&mut Mirror) -> Vec<RemoteChange>) {
        for change in what(&mut self.mirror) {
            match change {
                RemoteChange::Update { set, adds, removes } => {
                    let addresses = self.state.entry(set).or_default();
                    addresses.retain(|address| !removes.contains(address));
                    addresses.extend(adds);
                }
                RemoteChange::RemoveCluster(cluster) => self.state.retain(|set, _| set.cluster != cluster),
                RemoteChange::Replace(_) => unreachable!("a mirror reports differences"),
            }
        }
        self.state.retain(|_, addresses| !addresses.is_empty());
        let in_force: Sets = self.mirror.clusters.values().flat_map(|c| c.in_force().clone()).collect();
        assert_eq!(self.state, in_force, "the changes make what is in force");
    }

    /// `east/web 10.8.0.1 10.8.0.2, ...`
    fn shown(&self) -> String {
        let set = |(set, addresses): (&RemoteSet, &Addresses)| {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            format!("{}/{} {}", set.cluster, set.name, addresses.join(" "))
        };
        self.state.iter().map(set).collect::<Vec<_>>().join(", ")
    }

    fn view(&self, cluster: &str) -> View<'_> {
        self.mirror.views().find(|view| **view.cluster == *cluster).unwrap()
    }
}

fn two_pods() -> ProviderTable {
    ProviderTable::default().with("east", true, Some(0), &[("web", &["10.8.0.1", "10.8.0.2"])])
}

#[test]
fn a_baseline_and_its_deltas_are_in_force() {
    let mut followed = FollowedMirror::new(None);
    followed.apply(|mirror| mirror.baseline(&two_pods().baseline(), at(1)));
    assert_eq!(followed.shown(), "east/web 10.8.0.1 10.8.0.2");
    let delta = sets(vec![update("east", "web", &[], &["10.8.0.1"]), update("east", "api", &["fd00::1"], &[])]);
    followed.apply(|mirror| mirror.delta(&delta, at(2)));
    assert_eq!(followed.shown(), "east/api fd00::1, east/web 10.8.0.2");
    let view = followed.view("east");
    assert_eq!((view.fresh, view.as_of, view.sets, view.addresses), (true, Some(at(2)), 2, 2));
}

#[test]
fn sets_are_removed_with_unwatched_cluster() {
    let two = two_pods().with("west", true, Some(0), &[("db", &["10.9.0.1"])]);
    let mut followed = FollowedMirror::new(None);
    followed.apply(|mirror| mirror.baseline(&two.baseline(), at(1)));
    followed.apply(|mirror| mirror.delta(&RemoteDelta { gone: vec!["west".into()], ..RemoteDelta::default() }, at(2)));
    assert_eq!(followed.shown(), "east/web 10.8.0.1 10.8.0.2");
    followed.apply(|mirror| mirror.baseline(&ProviderTable::default().baseline(), at(3)));
    assert_eq!((followed.shown().as_str(), followed.mirror.views().count()), ("", 0));
}

#[test]
fn sets_stay_with_known_age_while_provider_lost() {
    let mut followed = FollowedMirror::new(None);
    followed.apply(|mirror| mirror.baseline(&two_pods().baseline(), at(1)));
    followed.apply(|mirror| mirror.lost(at(10)));
    followed.apply(|mirror| mirror.reconcile(at(10_000_000)));
    assert_eq!(followed.shown(), "east/web 10.8.0.1 10.8.0.2");
    let view = followed.view("east");
    assert_eq!((view.fresh, view.as_of), (false, Some(at(10))));
    followed.apply(|mirror| mirror.resumed(at(10_000_001)));
    assert!(!followed.view("east").fresh, "what was missed has not come yet");
    followed.apply(|mirror| mirror.delta(&rows(vec![row("east", true, Some(10_000_000))]), at(10_000_002)));
    assert!(followed.view("east").fresh);
}

#[test]
fn unreachable_cluster_keeps_sets_until_resync() {
    let mut followed = FollowedMirror::new(None);
    followed.apply(|mirror| mirror.baseline(&two_pods().baseline(), at(1)));
    followed.apply(|mirror| mirror.delta(&rows(vec![row("east", false, Some(5))]), at(7)));
    assert_eq!(followed.shown(), "east/web 10.8.0.1 10.8.0.2");
    assert_eq!((followed.view("east").fresh, followed.view("east").as_of), (false, Some(at(5))));
    let mut back = rows(vec![row("east", true, Some(90))]);
    back.sets = vec![update("east", "web", &[], &["10.8.0.1"])];
    followed.apply(|mirror| mirror.delta(&back, at(91)));
    assert_eq!((followed.shown().as_str(), followed.view("east").fresh), ("east/web 10.8.0.2", true));
}

#[test]
fn restarted_provider_without_data_removes_no_addresses() {
    let mut followed = FollowedMirror::new(None);
    followed.apply(|mirror| mirror.baseline(&two_pods().baseline(), at(1)));
    followed.apply(|mirror| mirror.lost(at(2)));
    let empty = ProviderTable::default().with("east", false, None, &[]);
    followed.apply(|mirror| mirror.baseline(&empty.baseline(), at(3)));
    assert_eq!((followed.shown().as_str(), followed.view("east").held), ("east/web 10.8.0.1 10.8.0.2", true));
    // The provider reaches the cluster, where one pod was removed meanwhile.
    followed.apply(|mirror| mirror.delta(&sets(vec![update("east", "web", &["10.8.0.2"], &[])]), at(4)));
    assert_eq!(followed.shown(), "east/web 10.8.0.1 10.8.0.2");
    followed.apply(|mirror| mirror.delta(&rows(vec![row("east", true, Some(5))]), at(5)));
    assert_eq!((followed.shown().as_str(), followed.view("east").held), ("east/web 10.8.0.2", false));
}

#[test]
fn stale_provider_does_not_restore_removed_address() {
    let mut followed = FollowedMirror::new(None);
    followed.apply(|mirror| mirror.baseline(&two_pods().baseline(), at(1)));
    followed.apply(|mirror| mirror.delta(&sets(vec![update("east", "web", &[], &["10.8.0.1"])]), at(50)));
    followed.apply(|mirror| mirror.lost(at(51)));
    let older = ProviderTable::default().with("east", false, Some(40), &[("web", &["10.8.0.1", "10.8.0.2"])]);
    followed.apply(|mirror| mirror.baseline(&older.baseline(), at(52)));
    assert_eq!((followed.shown().as_str(), followed.view("east").as_of), ("east/web 10.8.0.2", Some(at(51))));
    // A provider that lost its connection to the cluster later has a more recent view.
    let later = ProviderTable::default().with("east", false, Some(60), &[("web", &["10.8.0.3"])]);
    followed.apply(|mirror| mirror.baseline(&later.baseline(), at(70)));
    assert_eq!((followed.shown().as_str(), followed.view("east").as_of), ("east/web 10.8.0.3", Some(at(60))));
}

#[test]
fn provider_older_than_streamed_deltas_is_rejected() {
    let mut followed = FollowedMirror::new(None);
    followed.apply(|mirror| mirror.baseline(&two_pods().baseline(), at(1)));
    followed.apply(|mirror| mirror.delta(&sets(vec![update("east", "web", &[], &["10.8.0.1"])]), at(50)));
    // The sets as a whole were last known to be current at 0.
    followed.apply(|mirror| mirror.delta(&rows(vec![row("east", false, Some(0))]), at(55)));
    followed.apply(|mirror| mirror.lost(at(56)));
    let older = ProviderTable::default().with("east", false, Some(20), &[("web", &["10.8.0.1", "10.8.0.2"])]);
    followed.apply(|mirror| mirror.baseline(&older.baseline(), at(57)));
    assert_eq!((followed.shown().as_str(), followed.view("east").held), ("east/web 10.8.0.2", true));
}

#[test]
fn recalled_sets_apply_until_fresher_baseline() {
    let mut before = FollowedMirror::new(None);
    before.apply(|mirror| mirror.baseline(&two_pods().baseline(), at(1)));
    before.apply(|mirror| mirror.reconcile(at(9)));
    let kept = before.mirror.to_keep();
    let mut after = FollowedMirror::new(None);
    after.apply(|mirror| mirror.recall(&kept, at(20)));
    assert_eq!(after.shown(), before.shown());
    assert_eq!((after.view("east").fresh, after.view("east").as_of), (false, Some(at(9))));
    assert_eq!(after.mirror.to_keep(), kept, "and is kept as it was");
    let now = ProviderTable::default().with("east", true, Some(21), &[("web", &["10.8.0.2"])]);
    after.apply(|mirror| mirror.baseline(&now.baseline(), at(21)));
    assert_eq!(after.shown(), "east/web 10.8.0.2");
}

#[test]
fn expired_sets_are_dropped_until_cluster_reachable() {
    let mut followed = FollowedMirror::new(Some(Duration::from_secs(60)));
    followed.apply(|mirror| mirror.baseline(&two_pods().baseline(), at(1)));
    assert_eq!(followed.mirror.next_drop(), None);
    followed.apply(|mirror| mirror.reconcile(at(1000)));
    assert_ne!(followed.shown(), "", "a cluster that answers is never too old");
    followed.apply(|mirror| mirror.delta(&rows(vec![row("east", false, Some(1000))]), at(1010)));
    assert_eq!(followed.mirror.next_drop(), Some(at(1060)));
    followed.apply(|mirror| mirror.reconcile(at(1060)));
    assert_ne!(followed.shown(), "");
    followed.apply(|mirror| mirror.reconcile(at(1061)));
    assert_eq!((followed.shown().as_str(), followed.view("east").dropped), ("", true));
    assert_eq!(followed.mirror.next_drop(), None);
    assert_eq!(followed.mirror.to_keep().sets.len(), 1, "it is still known");
    followed.apply(|mirror| mirror.delta(&sets(vec![update("east", "web", &["10.8.0.9"], &[])]), at(1062)));
    assert_eq!(followed.shown(), "");
    followed.apply(|mirror| mirror.delta(&rows(vec![row("east", true, Some(1063))]), at(1063)));
    assert_eq!(followed.shown(), "east/web 10.8.0.1 10.8.0.2 10.8.0.9");
}

#[test]
fn sets_of_new_cluster_apply_with_its_row() {
    let mut followed = FollowedMirror::new(None);
    followed.apply(|mirror| mirror.baseline(&RemoteBaseline::default(), at(1)));
    followed.apply(|mirror| mirror.delta(&sets(vec![update("east", "web", &["10.8.0.9"], &[])]), at(2)));
    assert_eq!(followed.shown(), "", "nothing was said of the cluster yet");
    followed.apply(|mirror| mirror.delta(&rows(vec![row("east", true, Some(2))]), at(2)));
    assert_eq!((followed.shown().as_str(), followed.view("east").fresh), ("east/web 10.8.0.9", true));
}

mod stories {
    //! Two providers, each of which may reach the cluster or not, and an agent that follows one or none and restarts:
    //! the sets in force were correct at the time in `as_of`.

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        /// Replaces the pods of the cluster.
        Pods(u8),
        /// A provider can reach the cluster, or cannot.
        Link(usize, bool),
        /// A provider restarts, with its persisted state or without.
        Restart(usize, bool),
        Follow(usize),
        Lose,
        /// The agent restarts.
        Recall,
    }

    #[derive(Debug, Clone, Default)]
    struct Provider {
        sees: bool,
        pods: u8,
        synced_at: Option<i64>,
    }

    impl Provider {
        fn baseline(&self) -> RemoteBaseline {
            let sets = addresses(self.pods).into_iter().collect::<Vec<_>>();
            let set = SetRow { set: RemoteSet::new("east", "shop", "web"), addresses: sets };
            let sets = if self.pods == 0 { vec![] } else { vec![set] };
            RemoteBaseline { clusters: vec![row("east", self.sees, self.synced_at)], sets, ..RemoteBaseline::default() }
        }
    }

    fn addresses(pods: u8) -> Addresses {
        (0..8).filter(|bit| pods & (1 << bit) != 0).map(|bit| IpAddr::from([10, 8, 0, bit])).collect()
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => any::<u8>().prop_map(Step::Pods),
            2 => (0..2_usize, any::<bool>()).prop_map(|(provider, sees)| Step::Link(provider, sees)),
            1 => (0..2_usize, any::<bool>()).prop_map(|(provider, keeps)| Step::Restart(provider, keeps)),
            2 => (0..2_usize).prop_map(Step::Follow),
            1 => Just(Step::Lose),
            1 => Just(Step::Recall),
        ]
    }

    proptest! {
        #[test]
        fn sets_equal_truth_as_of_their_timestamp(steps in prop::collection::vec(step(), 1..40)) {
            let mut truth = vec![];
            let (mut pods, mut providers) = (0, [Provider::default(), Provider::default()]);
            let mut followed = FollowedMirror::new(None);
            let mut following: Option<usize> = None;
            let mut youngest = None;
            for (second, step) in (1..).zip(steps) {
                let now = at(second);
                // State of the followed provider before the step, so that its changes become deltas.
                let before = following.map(|provider| providers[provider].clone());
                match step {
                    Step::Pods(new) => pods = new,
                    Step::Link(provider, sees) => providers[provider].sees = sees,
                    Step::Restart(provider, keeps) => {
                        if following == Some(provider) {
                            followed.apply(|mirror| mirror.lost(now));
                            following = None;
                        }
                        let Provider { pods, synced_at, .. } = providers[provider];
                        providers[provider] = Provider { sees: false, pods, synced_at };
                        if !keeps {
                            providers[provider] = Provider::default();
                        }
                    }
                    Step::Follow(provider) => {
                        if following.is_some() {
                            followed.apply(|mirror| mirror.lost(now));
                        }
                        following = Some(provider);
                    }
                    Step::Lose => {
                        followed.apply(|mirror| mirror.lost(now));
                        following = None;
                    }
                    Step::Recall => {
                        let kept = followed.mirror.to_keep();
                        followed = FollowedMirror::new(None);
                        followed.apply(|mirror| mirror.recall(&kept, now));
                        following = None;
                    }
                }
                truth.push(pods);
                for provider in providers.iter_mut().filter(|provider| provider.sees) {
                    (provider.pods, provider.synced_at) = (pods, Some(second));
                }
                if let Some(provider) = following {
                    let provider = &providers[provider];
                    match before.filter(|_| !matches!(step, Step::Follow(_))) {
                        None => followed.apply(|mirror| mirror.baseline(&provider.baseline(), now)),
                        Some(old) => {
                            let (was, is) = (addresses(old.pods), addresses(provider.pods));
                            let set = RemoteSet::new("east", "shop", "web");
                            let (adds, removes) = ((&is - &was).into_iter().collect(), (&was - &is).into_iter().collect());
                            let mut delta = rows(vec![row("east", provider.sees, provider.synced_at)]);
                            delta.sets = vec![SetDelta { set, adds, removes }];
                            followed.apply(|mirror| mirror.delta(&delta, now));
                        }
                    }
                }
                let Some(view) = followed.mirror.views().next() else { continue };
                let in_force = followed.state.values().next().cloned().unwrap_or_default();
                match view.as_of {
                    Some(as_of) => {
                        prop_assert!(youngest <= Some(as_of), "what is in force never gets older than it was");
                        youngest = Some(as_of);
                        let then = usize::try_from(as_of.duration_since(at(1)).as_secs()).unwrap();
                        prop_assert_eq!(in_force, addresses(truth[then]));
                    }
                    None => prop_assert_eq!(in_force, Addresses::new()),
                }
            }
        }
    }
}
