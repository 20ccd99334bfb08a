use std::thread::{scope, sleep};
use std::time::Duration;

use kit::agent_process::until;
use kit::fake_api::FakeApi;
use kit::fake_api::Kind;
use kit::prober::Chance;
use kit::provider_process::{Provider, free_port};
use serde_json::{Value, json};
use tests::fake_relay::{FakeRelay, Fault, Requests};

use super::follower::Follower;
use super::relayed::until_relayed;
use super::{CLUSTER, EDGES, FEEDS, IDENTITY, NUMBERS, World, namespace, without_position};

/// The followed feeds, one of them in two forms.
const FOLLOWED: [&str; 3] = [IDENTITY, EDGES, NUMBERS];

/// Few names of each kind, so that events collide.
const NAMESPACES: [&str; 3] = ["shop", "other", "kube-system"];
const PODS: [&str; 5] = ["web-1", "web-2", "db-0", "agent", "etcd-node-a"];
const ADDRESSES: [&str; 7] = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "100.64.0.9", "fd00::1", "fd00::2", "10.0.0.300"];
const NODE_ADDRESSES: [&str; 3] = ["192.0.2.1", "192.0.2.2", "10.0.0.1"];
const OWNERS: [(&str, &str); 5] = [
    ("ReplicaSet", "web-77"),
    ("StatefulSet", "db"),
    ("Node", "node-a"),
    ("Job", "web-28912345"),
    ("DaemonSet", "agent"),
];
const APPS: [&str; 3] = ["web", "db", "agent"];
const SERVICES: [&str; 2] = ["front", "back"];
const POLICIES: [&str; 4] = ["deny", "from-web", "named", "egress"];

/// Lives of one cluster, in each of which every fault is tried.
const LIVES: usize = 3;
const EVENTS: usize = 70;
/// Maximum pause between two events, so that only some of them are coalesced.
const PAUSE: Duration = Duration::from_millis(60);

#[test]
fn consumers_converge_to_table_of_fresh_start() {
    let mut chance = Chance::printed("the lives of a cluster");
    scope(|scope| {
        for _ in 0..LIVES {
            let chance = chance.split();
            scope.spawn(move || Life::new(chance).live());
        }
    });
}

struct Life {
    chance: Chance,
    api: FakeApi,
    relay: FakeRelay,
    world: World,
    provider: Option<Provider>,
    followers: Vec<(usize, Follower)>,
}

impl Life {
    fn new(chance: Chance) -> Life {
        let (api, relay, mut world) = (FakeApi::start(), FakeRelay::start(), World::default());
        for name in NAMESPACES {
            world.set(&api, Kind::Namespace, namespace(name, json!({"team": "a"})));
        }
        let mut life = Life { chance, api, relay, world, provider: None, followers: vec![] };
        for _ in 0..10 {
            life.change();
        }
        life.start();
        life
    }

    fn live(mut self) {
        for at in 0..FOLLOWED.len() {
            self.apply(at);
        }
        for _ in 0..EVENTS {
            match self.chance.below(20) {
                0 => self.come_or_go(),
                1 | 2 => self.ail_relay(),
                3 => self.relay.heal(),
                4 => self.disturb_api(),
                5 if self.chance.once_in(3) => self.restart(),
                _ => self.change(),
            }
            let pause = self.chance.up_to(PAUSE);
            sleep(pause);
        }
        self.relay.heal();
        for at in 0..FOLLOWED.len() {
            self.apply(at);
        }
        self.assert_converged();
        // No subscriber is stale, either: another change reaches all of them.
        self.world.set(&self.api, Kind::Pod, super::pod("shop", "last", "web", &["10.0.0.77"]));
        self.assert_converged();
    }

    fn assert_converged(&mut self) {
        let fresh = self.world.fresh();
        let provider = self.provider.as_mut().unwrap();
        let [identities, edges] = &fresh.tables;
        let tables = [identities, edges, &identities.numbers()];
        for (followed, follower) in &self.followers {
            follower.until_has(tables[*followed]);
        }
        for (at, feed) in FEEDS.into_iter().enumerate() {
            let path = format!("/{feed}/version");
            until("the version is that of a fresh start", || {
                provider.try_json(&path).ok().filter(|head| head["version"] == fresh.versions[at]).map(drop)
            });
        }
        let ids = provider.try_json("/identity/download?part=ids").unwrap();
        assert_eq!(ids["reserved"][1], json!({"num": 2, "state": "world"}));
        assert_eq!(without_position(ids), fresh.ids);
        for (feed, table) in FEEDS.into_iter().zip(&fresh.tables) {
            until_relayed(&self.relay, feed, table);
        }
        assert_eq!(self.relay.complaints(), [""; 0]);
        assert!(self.api.writes().is_empty(), "{:?}", self.api.writes());
    }

    fn start(&mut self) {
        // The address is reused, as a Service's address is.
        let address = self.provider.take().map_or_else(free_port, |provider| {
            let address = provider.address();
            if self.chance.once_in(2) {
                drop(provider.stop())
            } else {
                provider.kill()
            }
            address
        });
        let (kubeconfig, url) = (self.api.kubeconfig().display().to_string(), self.relay.url());
        let arguments =
            ["--kubeconfig", &kubeconfig, "--cluster-id", CLUSTER, "--push-url", &url, "--baseline-secs", "1"];
        self.provider = Some(Provider::start(address, arguments));
    }

    fn restart(&mut self) {
        self.start();
        if self.chance.once_in(2) {
            self.provider.as_mut().unwrap().until_ready();
        }
    }

    fn apply(&mut self, followed: usize) {
        let address = self.provider.as_ref().unwrap().address();
        self.followers.push((followed, Follower::start(address, FOLLOWED[followed])));
    }

    fn come_or_go(&mut self) {
        let followed = self.chance.below(FOLLOWED.len() as u64) as usize;
        if self.followers.len() > 2 && self.chance.once_in(2) {
            let gone = self.chance.below(self.followers.len() as u64) as usize;
            drop(self.followers.swap_remove(gone));
        } else {
            self.apply(followed);
        }
    }

    fn ail_relay(&mut self) {
        let faults = [
            Fault::Refuse(500),
            Fault::Refuse(401),
            Fault::Refuse(400),
            Fault::Silent,
            Fault::ResetHalfWay,
            Fault::TakeAndRefuse(502),
            Fault::TakeAndReset,
        ];
        let requests = *self.chance.one_of(&[Requests::All, Requests::Deltas]);
        self.relay.fail(requests, *self.chance.one_of(&faults));
    }

    fn disturb_api(&mut self) {
        match self.chance.below(3) {
            0 => self.api.cut_connections(),
            1 => {
                self.api.compact();
                self.api.cut_connections();
            }
            _ => self.api.faults(|faults| faults.pieces = if faults.pieces.is_some() { None } else { Some(7) }),
        }
    }

    fn change(&mut self) {
        let namespace = *self.chance.one_of(&NAMESPACES);
        match self.chance.below(14) {
            0..5 => {
                let pod = self.draw_pod(namespace);
                self.world.set(&self.api, Kind::Pod, pod);
            }
            5 => self.world.remove(&self.api, Kind::Pod, namespace, self.chance.one_of::<&str>(&PODS)),
            6 => {
                let labels = json!({"team": self.chance.one_of(&["a", "b"])});
                // No namespace is removed: a fresh start on manifests assumes that every mentioned namespace exists.
                self.world.set(&self.api, Kind::Namespace, super::namespace(namespace, labels));
            }
            7 | 8 => self.change_service(namespace),
            9 => self.change_node(),
            10 => {
                let addresses = [*self.chance.one_of(&ADDRESSES), *self.chance.one_of(&NODE_ADDRESSES)];
                self.world.set(&self.api, Kind::EndpointSlice, super::api_servers(&addresses));
            }
            _ => self.change_policy(namespace),
        }
    }

    fn change_node(&mut self) {
        let name = *self.chance.one_of(&["node-a", "node-b"]);
        if self.chance.once_in(4) {
            self.world.remove(&self.api, Kind::Node, "", name);
        } else {
            let node = super::node(name, self.chance.one_of::<&str>(&NODE_ADDRESSES));
            self.world.set(&self.api, Kind::Node, node);
        }
    }

    fn draw_pod(&mut self, namespace: &str) -> Value {
        let chance = &mut self.chance;
        let mut addresses = vec![*chance.one_of(&ADDRESSES)];
        if chance.once_in(2) {
            addresses.push(*chance.one_of(&ADDRESSES));
        }
        let mut pod = super::pod(namespace, chance.one_of::<&str>(&PODS), chance.one_of::<&str>(&APPS), &addresses);
        if chance.once_in(2) {
            let (kind, name) = *chance.one_of(&OWNERS);
            pod["metadata"]["ownerReferences"] = json!([{"kind": kind, "name": name, "controller": true}]);
            pod["metadata"]["labels"]["pod-template-hash"] = "77".into();
        }
        if chance.once_in(3) {
            pod["metadata"]["labels"]["service-identity"] = "part".into();
        }
        pod["spec"]["nodeName"] = (*chance.one_of(&["node-a", "node-b"])).into();
        pod["spec"]["hostNetwork"] = chance.once_in(8).into();
        let port = *chance.one_of(&[80, 8080]);
        pod["spec"]["containers"] = json!([{"name": "main", "ports": [{"name": "http", "containerPort": port}]}]);
        pod["status"]["phase"] = (*chance.one_of(&["Running", "Running", "Running", "Pending", "Succeeded"])).into();
        pod["status"]["startTime"] = format!("2026-01-01T00:0{}:00Z", chance.below(3)).into();
        if chance.once_in(6) {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z".into();
        }
        pod
    }

    fn change_service(&mut self, namespace: &str) {
        let chance = &mut self.chance;
        let name = *chance.one_of(&SERVICES);
        let metadata = json!({"namespace": namespace, "name": name});
        let kind = if chance.once_in(3) { Kind::Ingress } else { Kind::Service };
        if chance.once_in(3) {
            return self.world.remove(&self.api, kind, namespace, name);
        }
        let spec = match kind {
            Kind::Ingress => json!({"defaultBackend": {"service": {"name": chance.one_of(&SERVICES)}}}),
            _ => json!({
                "type": chance.one_of(&["ClusterIP", "NodePort", "LoadBalancer"]),
                "selector": {"app": chance.one_of(&APPS)},
            }),
        };
        self.world.set(&self.api, kind, json!({"metadata": metadata, "spec": spec}));
    }

    fn change_policy(&mut self, namespace: &str) {
        let chance = &mut self.chance;
        let name = *chance.one_of(&POLICIES);
        if chance.once_in(4) {
            return self.world.remove(&self.api, Kind::NetworkPolicy, namespace, name);
        }
        let selector = json!({"matchLabels": {"app": chance.one_of(&APPS)}});
        let peer = json!({"namespaceSelector": {"matchLabels": {"team": chance.one_of(&["a", "b"])}}});
        let spec = match name {
            "deny" => json!({"podSelector": {}, "policyTypes": ["Ingress"]}),
            "from-web" => json!({"podSelector": selector, "ingress": [{"from": [peer], "ports": [{"port": 80}]}]}),
            "named" => json!({"podSelector": selector, "ingress": [{"ports": [{"port": "http"}]}]}),
            _ => json!({"podSelector": selector, "policyTypes": ["Egress"], "egress": [{"to": [peer]}]}),
        };
        self.world.set(
            &self.api,
            Kind::NetworkPolicy,
            json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec}),
        );
    }
}
