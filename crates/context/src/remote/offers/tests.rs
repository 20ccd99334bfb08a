use std::collections::BTreeMap;

use policy::{Kind, Object, lower};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::remote::limits::ClusterLimits;

const OLD: &str = "semaphore.uw.systems";
const NEW: &str = "policy.semaphore.uw.io";

fn prefix(text: &str) -> LabelPrefix {
    text.parse().unwrap()
}

fn offers(rules: Rules) -> Offers {
    Offers::new(rules, LabelPrefix::defaults())
}

fn plain() -> Offers {
    offers(Rules::default())
}

fn lowered(object: &Value) -> Arc<Pod> {
    let Ok(Object::Pod(pod)) = lower(Kind::Pod, object) else { panic!("no pod") };
    pod
}

fn object(name: &str, set: &str, addresses: &[&str]) -> Value {
    let ips: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    json!({
        "metadata": {"namespace": "shop", "name": name, "labels": {format!("{OLD}/name"): set}},
        "spec": {}, "status": {"phase": "Running", "podIPs": ips},
    })
}

fn pod(name: &str, set: &str, addresses: &[&str]) -> Arc<Pod> {
    lowered(&object(name, set, addresses))
}

fn list(offers: &mut Offers, pods: &[Arc<Pod>]) -> Option<Doubt> {
    offers.replace(&prefix(OLD), pods.iter().map(AsRef::as_ref))
}

fn has(offers: &Offers, set: &str) -> Vec<String> {
    offers.addresses(&ObjectName::new("shop", set)).iter().map(ToString::to_string).collect()
}

fn gone(offers: &mut Offers, name: &str) {
    offers.remove(&prefix(OLD), &ObjectName::new("shop", name));
}

#[test]
fn both_families_of_a_pod_are_offered() {
    let mut offers = plain();
    offers.set(&prefix(OLD), &pod("a", "web", &["10.4.1.38", "2001:db8::1"]));
    assert_eq!(has(&offers, "web"), ["10.4.1.38", "2001:db8::1"]);
}

#[test]
fn another_value_of_the_label_moves_the_address() {
    let mut offers = plain();
    offers.set(&prefix(OLD), &pod("a", "web", &["10.4.1.38"]));
    offers.set(&prefix(OLD), &pod("a", "api", &["10.4.1.38"]));
    assert_eq!((has(&offers, "web"), has(&offers, "api")), (vec![], vec!["10.4.1.38".to_owned()]));
}

#[test]
fn a_pod_without_the_label_offers_nothing() {
    let mut offers = plain();
    offers.set(&prefix(OLD), &pod("a", "web", &["10.4.1.38"]));
    // The server's watch of labelled pods reports such a pod as deleted.
    gone(&mut offers, "a");
    assert_eq!(has(&offers, "web"), Vec::<String>::new());
    offers.set(&prefix(OLD), &pod("b", "", &["10.4.1.39"]));
    let mut unlabelled = object("c", "", &["10.4.1.40"]);
    unlabelled["metadata"]["labels"] = json!({"app": "web"});
    offers.set(&prefix(OLD), &lowered(&unlabelled));
    assert!(offers.memory().values().all(Vec::is_empty));
}

#[test]
fn removing_old_pod_keeps_address_of_new_one() {
    let mut offers = plain();
    offers.set(&prefix(OLD), &pod("old", "web", &["10.4.1.38"]));
    offers.set(&prefix(OLD), &pod("new", "web", &["10.4.1.38"]));
    gone(&mut offers, "old");
    assert_eq!(has(&offers, "web"), ["10.4.1.38"]);
    gone(&mut offers, "new");
    assert_eq!(has(&offers, "web"), Vec::<String>::new());
}

#[test]
fn a_finished_pod_has_no_address() {
    for phase in ["Succeeded", "Failed"] {
        let mut offers = plain();
        let mut pod = object("a", "web", &["10.4.1.38"]);
        offers.set(&prefix(OLD), &lowered(&pod));
        pod["status"]["phase"] = phase.into();
        offers.set(&prefix(OLD), &lowered(&pod));
        assert_eq!(has(&offers, "web"), Vec::<String>::new(), "{phase}");
    }
}

#[test]
fn pending_pod_offers_its_addresses() {
    let mut offers = plain();
    let mut pod = object("a", "web", &["10.4.1.38"]);
    pod["status"]["phase"] = "Pending".into();
    offers.set(&prefix(OLD), &lowered(&pod));
    assert_eq!(has(&offers, "web"), ["10.4.1.38"]);
    pod["status"]["podIPs"] = json!([]);
    offers.set(&prefix(OLD), &lowered(&pod));
    assert_eq!(has(&offers, "web"), Vec::<String>::new());
}

#[test]
fn host_network_pod_offers_addresses_only_if_configured() {
    let mut on_host = object("a", "web", &["10.0.0.1"]);
    on_host["spec"]["hostNetwork"] = true.into();
    for (host_network, expected) in [(false, vec![]), (true, vec!["10.0.0.1"])] {
        let mut offers = offers(Rules { host_network, ..Rules::default() });
        offers.set(&prefix(OLD), &lowered(&on_host));
        assert_eq!(has(&offers, "web"), expected);
    }
}

#[test]
fn a_pod_that_is_not_understood_offers_nothing() {
    let mut offers = plain();
    let mut pod = object("a", "web", &["10.4.1.38"]);
    pod["spec"]["hostNetwork"] = "no".into();
    offers.set(&prefix(OLD), &lowered(&pod));
    assert_eq!(has(&offers, "web"), Vec::<String>::new());
}

#[test]
fn accept_rules_limit_offered_sets() {
    let accept: Vec<crate::remote::config::SetPattern> =
        serde_json::from_value(json!([{"namespace": "shop", "name": "web-*"}, {"namespace": "team"}])).unwrap();
    let mut offers = offers(Rules { accept: Some(accept), ..Rules::default() });
    offers.set(&prefix(OLD), &pod("a", "web-1", &["10.4.1.1"]));
    offers.set(&prefix(OLD), &pod("b", "api", &["10.4.1.2"]));
    assert_eq!((has(&offers, "web-1").len(), has(&offers, "api").len()), (1, 0));
    let remembered = |set: &str| Claim {
        set: ObjectName::new("shop", set),
        addresses: vec!["10.4.1.9".parse().unwrap()],
        host_network: false,
    };
    offers.remember(&prefix(OLD), [remembered("web-2"), remembered("api")]);
    assert_eq!((has(&offers, "web-2").len(), has(&offers, "api").len()), (1, 0), "nor what was known before");
}

#[test]
fn pod_offers_addresses_until_both_label_families_gone() {
    let mut offers = plain();
    let mut both = object("a", "web", &["10.4.1.38"]);
    both["metadata"]["labels"][format!("{NEW}/name")] = "web".into();
    for family in [OLD, NEW] {
        offers.set(&prefix(family), &lowered(&both));
    }
    gone(&mut offers, "a");
    assert_eq!(has(&offers, "web"), ["10.4.1.38"]);
    offers.remove(&prefix(NEW), &ObjectName::new("shop", "a"));
    assert_eq!(has(&offers, "web"), Vec::<String>::new());
}

fn several() -> Vec<Arc<Pod>> {
    vec![
        pod("a", "web", &["10.4.1.1"]),
        pod("b", "web", &["10.4.1.2"]),
        pod("c", "api", &["10.4.1.3"]),
        pod("d", "api", &["10.4.1.4"]),
        pod("e", "db", &["10.4.1.5"]),
    ]
}

#[test]
fn list_applies_missed_deletion() {
    let mut offers = plain();
    assert_eq!(list(&mut offers, &several()), None);
    let without_b: Vec<_> = several().into_iter().filter(|pod| &*pod.name.name != "b").collect();
    assert_eq!(list(&mut offers, &without_b), None);
    assert_eq!(has(&offers, "web"), ["10.4.1.1"]);
}

#[test]
fn list_may_empty_set_of_one_address() {
    let mut offers = plain();
    list(&mut offers, &several());
    assert_eq!(list(&mut offers, &several()[..4]), None);
    assert_eq!(has(&offers, "db"), Vec::<String>::new());
}

#[test]
fn list_emptying_set_of_two_needs_second_list() {
    let mut offers = plain();
    list(&mut offers, &several());
    let without_web = [&several()[2..], &[pod("f", "db", &["10.4.1.6"])]].concat();
    assert_eq!(list(&mut offers, &without_web), Some(Doubt { before: 5, lost: 2, emptied: 1 }));
    assert_eq!(has(&offers, "web"), ["10.4.1.1", "10.4.1.2"]);
    assert_eq!(has(&offers, "db"), ["10.4.1.5", "10.4.1.6"], "what it adds counts at once");
    assert!(offers.doubts(&prefix(OLD)));
    assert_eq!(list(&mut offers, &without_web), None);
    assert_eq!(has(&offers, "web"), Vec::<String>::new());
    assert!(!offers.doubts(&prefix(OLD)));
}

#[test]
fn list_removing_half_the_cluster_needs_second_list() {
    let mut offers = plain();
    list(&mut offers, &several());
    let few = [several()[0].clone(), several()[2].clone()];
    assert_eq!(list(&mut offers, &few), Some(Doubt { before: 5, lost: 3, emptied: 0 }));
    assert_eq!(has(&offers, "db"), ["10.4.1.5"]);
    assert_eq!(list(&mut offers, &few), None);
    assert_eq!((has(&offers, "db").len(), has(&offers, "web").len()), (0, 1));
}

#[test]
fn doubted_list_is_discarded_after_contrary_list() {
    let mut offers = plain();
    list(&mut offers, &several());
    assert!(list(&mut offers, &[]).is_some());
    assert_eq!(list(&mut offers, &several()), None);
    for name in ["a", "b"] {
        gone(&mut offers, name);
    }
    assert_eq!(has(&offers, "web"), Vec::<String>::new(), "nothing is withheld any more");
}

#[test]
fn watch_deletions_apply_immediately() {
    let mut offers = plain();
    list(&mut offers, &several());
    for name in ["a", "b", "c", "d"] {
        gone(&mut offers, name);
    }
    assert_eq!((has(&offers, "web").len(), has(&offers, "api").len()), (0, 0));
}

#[test]
fn watch_events_apply_while_list_is_doubted() {
    let mut offers = plain();
    list(&mut offers, &several());
    assert!(list(&mut offers, &[]).is_some());
    gone(&mut offers, "a");
    assert_eq!(has(&offers, "web"), ["10.4.1.2"]);
    offers.set(&prefix(OLD), &pod("b", "api", &["10.4.1.2"]));
    assert_eq!(has(&offers, "web"), Vec::<String>::new());
}

#[test]
fn remembered_addresses_stay_until_list_and_cause_doubt() {
    let mut before = plain();
    list(&mut before, &several());
    let start = || {
        let mut offers = plain();
        for (family, claims) in before.memory() {
            offers.remember(&family, claims);
        }
        offers
    };
    let mut offers = start();
    assert!(!offers.is_listed());
    assert_eq!((has(&offers, "web").len(), has(&offers, "api").len(), has(&offers, "db").len()), (2, 2, 1));
    let without_b: Vec<_> = several().into_iter().filter(|pod| &*pod.name.name != "b").collect();
    assert_eq!(list(&mut offers, &without_b), None);
    assert_eq!(has(&offers, "web"), ["10.4.1.1"]);

    let mut offers = start();
    assert!(list(&mut offers, &[]).is_some());
    assert_eq!(has(&offers, "web").len(), 2);
    assert_eq!(list(&mut offers, &[]), None);
    assert!(offers.memory().values().all(Vec::is_empty));
}

#[test]
fn touched_sets_are_reported_once() {
    let mut offers = plain();
    list(&mut offers, &several());
    assert_eq!(offers.take_touched().len(), 3);
    gone(&mut offers, "a");
    assert_eq!(offers.take_touched(), BTreeSet::from([ObjectName::new("shop", "web")]));
    assert!(offers.take_touched().is_empty());
}

#[derive(Debug, Clone)]
enum Step {
    Set {
        pod: u8,
        set: u8,
        addresses: Vec<u8>,
        phase: u8,
        host: bool,
    },
    Remove(u8),
    /// All existing pods except those of the mask.
    List(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let addresses = proptest::collection::vec(0..6u8, 0..3);
    prop_oneof![
        6 => (0..8u8, 0..3u8, addresses, 0..4u8, proptest::bool::weighted(0.1))
            .prop_map(|(pod, set, addresses, phase, host)| Step::Set { pod, set, addresses, phase, host }),
        2 => (0..8u8).prop_map(Step::Remove),
        1 => any::<u16>().prop_map(Step::List),
    ]
}

/// The sets of these pods, recomputed.
fn counted<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> BTreeMap<String, BTreeSet<IpAddr>> {
    let mut sets: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
    for pod in pods.filter(|pod| !pod.finished && !pod.host_network) {
        let name = pod.labels.get(&prefix(OLD).name_label()).unwrap().to_string();
        sets.entry(name).or_default().extend(pod.addresses.iter());
    }
    sets.retain(|_, addresses| !addresses.is_empty());
    sets
}

proptest! {
    #[test]
    fn sets_equal_current_pods_after_any_events(steps in proptest::collection::vec(step(), 1..60)) {
        let mut offers = plain();
        let mut pods: BTreeMap<u8, Arc<Pod>> = BTreeMap::new();
        let name = |pod: u8| format!("pod-{pod}");
        for step in steps {
            match step {
                Step::Set { pod: number, set, addresses, phase, host } => {
                    let addresses: Vec<String> = addresses.iter().map(|n| format!("10.4.1.{n}")).collect();
                    let texts: Vec<&str> = addresses.iter().map(String::as_str).collect();
                    let mut written = object(&name(number), &format!("set-{set}"), &texts);
                    written["status"]["phase"] = ["Pending", "Running", "Succeeded", "Running"][usize::from(phase)].into();
                    written["spec"]["hostNetwork"] = host.into();
                    let pod = lowered(&written);
                    offers.set(&prefix(OLD), &pod);
                    pods.insert(number, pod);
                }
                Step::Remove(number) => {
                    pods.remove(&number);
                    gone(&mut offers, &name(number));
                }
                Step::List(mask) => {
                    pods.retain(|number, _| mask >> number & 1 == 1);
                    let all: Vec<Arc<Pod>> = pods.values().cloned().collect();
                    let before: Vec<_> = (0..3).map(|n| has(&offers, &format!("set-{n}"))).collect();
                    if list(&mut offers, &all).is_some() {
                        for (n, before) in before.iter().enumerate() {
                            let now = has(&offers, &format!("set-{n}"));
                            prop_assert!(before.iter().all(|address| now.contains(address)), "nothing goes on doubt");
                        }
                        prop_assert_eq!(list(&mut offers, &all), None);
                    }
                }
            }
            let wanted = counted(pods.values());
            for n in 0..3 {
                let set = format!("set-{n}");
                let wanted = wanted.get(&set).cloned().unwrap_or_default();
                prop_assert_eq!(offers.addresses(&ObjectName::new("shop", &set)), wanted);
            }
        }
    }
}

fn limited(sets: usize, addresses: usize, label_bytes: usize) -> Rules {
    Rules { limits: ClusterLimits(Amounts { sets, addresses, label_bytes }), ..Rules::default() }
}

#[test]
fn set_beyond_the_limits_has_no_addresses() {
    let mut offers = offers(limited(9, 3, 999));
    list(&mut offers, &several()[..3]);
    offers.take_touched();
    assert!(!offers.exceeds_limits() && offers.excess().sets.is_empty());
    offers.set(&prefix(OLD), &several()[3]);
    assert_eq!(offers.take_touched().len(), 2, "api, which has changed, and web, which is left out now");
    assert_eq!((has(&offers, "web").len(), has(&offers, "api").len()), (0, 2));
    assert_eq!(offers.offered(), Amounts { sets: 2, addresses: 4, label_bytes: 14 });
    assert_eq!(offers.memory()[&prefix(OLD)].len(), 2, "what is left out is remembered");
    gone(&mut offers, "c");
    assert_eq!(offers.take_touched().len(), 2);
    assert_eq!((has(&offers, "web").len(), has(&offers, "api").len()), (2, 1));
}

proptest! {
    #[test]
    fn limits_hold_and_depend_on_offers_alone(
        steps in proptest::collection::vec(step(), 1..60), sets in 1..4usize, addresses in 1..8usize
    ) {
        let rules = limited(sets, addresses, 999);
        let mut followed = offers(rules.clone());
        let mut pods: BTreeMap<u8, Arc<Pod>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Set { pod: number, set, addresses, .. } => {
                    let addresses: Vec<String> = addresses.iter().map(|n| format!("10.4.1.{n}")).collect();
                    let texts: Vec<&str> = addresses.iter().map(String::as_str).collect();
                    let pod = pod(&format!("pod-{number}"), &format!("set-{set}"), &texts);
                    followed.set(&prefix(OLD), &pod);
                    pods.insert(number, pod);
                }
                Step::Remove(number) => {
                    pods.remove(&number);
                    gone(&mut followed, &format!("pod-{number}"));
                }
                Step::List(_) => {
                    let all: Vec<Arc<Pod>> = pods.values().cloned().collect();
                    list(&mut followed, &all);
                }
            }
            let before = ["set-0", "set-1", "set-2"].map(|set| (set, has(&followed, set)));
            let touched = followed.take_touched();
            let mut fresh = offers(rules.clone());
            list(&mut fresh, &pods.values().rev().cloned().collect::<Vec<_>>());
            fresh.take_touched();
            prop_assert_eq!(followed.excess(), fresh.excess());
            prop_assert_eq!(followed.offered(), fresh.offered());
            let everything = counted(pods.values());
            let mut admitted = Amounts::default();
            for (name, before) in before {
                let set = ObjectName::new("shop", name);
                let has_now = followed.addresses(&set);
                let whole = everything.get(name).cloned().unwrap_or_default();
                prop_assert!(has_now == whole || has_now.is_empty(), "a set is admitted whole or left out");
                prop_assert_eq!(has_now != whole, followed.excess().sets.contains(&set));
                if !has_now.is_empty() {
                    admitted += Amounts::of_set(&set, has_now.len());
                }
                if before != has(&followed, name) {
                    prop_assert!(touched.contains(&set), "{} has changed", set);
                }
            }
            prop_assert!(admitted.fits(rules.limits));
            prop_assert_eq!(admitted + followed.excess().amounts, followed.offered());
        }
    }
}
