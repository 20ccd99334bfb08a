//! Optional kinds that only classify: the initial sync is complete without them.

use std::time::Duration;

use cluster::{Watchable, cluster_uid, connect};
use context::object::{WatchedKind, WatchedObject};
use kit::fake_api::Kind as ServedKind;
use kit::fake_api::{FakeApi, Verb};
use serde_json::{Value, json};

use super::{InformerReader, impatient, small_cluster};

/// Kinds that are served only once their CustomResourceDefinitions are installed.
const CUSTOM: [WatchedKind; 7] = [
    WatchedKind::ClusterNetworkPolicy,
    WatchedKind::Gateway,
    WatchedKind::HttpRoute,
    WatchedKind::GrpcRoute,
    WatchedKind::TlsRoute,
    WatchedKind::TcpRoute,
    WatchedKind::UdpRoute,
];
const ROUTES: [WatchedKind; 5] = [
    WatchedKind::HttpRoute,
    WatchedKind::GrpcRoute,
    WatchedKind::TlsRoute,
    WatchedKind::TcpRoute,
    WatchedKind::UdpRoute,
];

fn service(name: &str, sort: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"type": sort, "selector": {"app": name}}})
}

fn route(service: &str) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": "in"},
        "spec": {"parentRefs": [{"name": "gateway"}], "rules": [{"backendRefs": [{"name": service, "port": 80}]}]},
    })
}

fn services_of(known: &InformerReader<WatchedObject>, kind: WatchedKind) -> Vec<String> {
    let exposures = known.objects.values().filter(|object| object.kind() == kind);
    let named = exposures.flat_map(|object| match object {
        WatchedObject::Exposure(exposure) => exposure.services.iter().map(ToString::to_string).collect(),
        WatchedObject::Namespace(_)
        | WatchedObject::Pod(_)
        | WatchedObject::Policy(_)
        | WatchedObject::Node(_)
        | WatchedObject::ClusterPolicy(_)
        | WatchedObject::Service(_)
        | WatchedObject::EndpointSlice(_) => vec![],
    });
    named.collect()
}

async fn until_unserved(known: &mut InformerReader<WatchedObject>, kinds: &[WatchedKind]) {
    known.until(&format!("that {kinds:?} are not served"), |known| known.unserved == kinds).await;
}

fn is_exposed(known: &InformerReader<WatchedObject>, name: &str) -> Option<bool> {
    match known.objects.get(&(WatchedKind::Service, format!("shop/{name}")))? {
        WatchedObject::Service(service) => Some(service.exposed),
        other => panic!("{other:?} is no Service"),
    }
}

#[tokio::test]
async fn initial_sync_completes_without_optional_kinds() {
    let api = small_cluster();
    api.faults(|f| {
        f.refuse(ServedKind::Service, &[Verb::List, Verb::Watch], 403);
        f.refuse(ServedKind::Ingress, &[Verb::List, Verb::Watch], 500);
    });
    let mut known: InformerReader<WatchedObject> = InformerReader::of(&api.kubeconfig(), impatient()).await;
    known.until_synced().await;
    known.until_problem("services watch: forbidden: the RBAC verb 'watch' on services is missing").await;
    until_unserved(&mut known, &CUSTOM).await;
    known.until("a problem of each of the two", |known| known.problems.len() == 2).await;
    assert!(known.sync.unlisted().eq([WatchedKind::Service, WatchedKind::Ingress]));

    api.faults(|f| f.refusals.clear());
    CUSTOM.iter().for_each(|kind| api.install(ServedKind::named(&kind.to_string())));
    known.until_well().await;
    known.until("every list", |known| known.sync.unlisted().next().is_none()).await;
    until_unserved(&mut known, &[]).await;
}

#[tokio::test]
async fn services_ingresses_and_routes_are_followed() {
    for no_streaming in [false, true] {
        let api = small_cluster();
        api.faults(|f| f.no_streaming = no_streaming);
        CUSTOM.iter().for_each(|kind| api.install(ServedKind::named(&kind.to_string())));
        api.set(ServedKind::Service, service("web", "ClusterIP"));
        let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
        let ingress = json!({"metadata": {"namespace": "shop", "name": "in"}, "spec": {"defaultBackend": backend}});
        api.set(ServedKind::Ingress, ingress);
        ROUTES.iter().for_each(|kind| api.set(ServedKind::named(&kind.to_string()), route("web")));
        let mut known: InformerReader<WatchedObject> = InformerReader::of(&api.kubeconfig(), impatient()).await;
        known.until("every list", |known| known.sync.unlisted().next().is_none()).await;
        assert_eq!(is_exposed(&known, "web"), Some(false));
        for kind in ROUTES.into_iter().chain([WatchedKind::Ingress]) {
            assert_eq!(services_of(&known, kind), ["shop/web"], "{kind}");
        }

        api.until_watching(&ServedKind::ALL).await;
        api.set(ServedKind::Service, service("web", "LoadBalancer"));
        api.set(ServedKind::HttpRoute, route("api"));
        api.remove(ServedKind::Ingress, "shop", "in");
        known.until("the Service to be exposed", |known| is_exposed(known, "web") == Some(true)).await;
        known.until("the route's change", |known| services_of(known, WatchedKind::HttpRoute) == ["shop/api"]).await;
        known.until("the Ingress to go", |known| services_of(known, WatchedKind::Ingress).is_empty()).await;
        api.remove(ServedKind::Service, "shop", "web");
        known.until("the Service to go", |known| is_exposed(known, "web").is_none()).await;
    }
}

fn slice(namespace: &str, name: &str, address: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "endpoints": [{"addresses": [address]}],
    })
}

fn slices_of(known: &InformerReader<WatchedObject>) -> Vec<(String, Vec<String>)> {
    let slices = known.objects.values().filter_map(|object| match object {
        WatchedObject::EndpointSlice(slice) => Some(slice),
        WatchedObject::Namespace(_)
        | WatchedObject::Pod(_)
        | WatchedObject::Policy(_)
        | WatchedObject::Node(_)
        | WatchedObject::ClusterPolicy(_)
        | WatchedObject::Service(_)
        | WatchedObject::Exposure(_) => None,
    });
    let texts = |addresses: &[std::net::IpAddr]| addresses.iter().map(ToString::to_string).collect();
    slices.map(|slice| (slice.name.to_string(), texts(&slice.addresses))).collect()
}

#[tokio::test]
async fn only_endpoint_slice_of_api_servers_is_requested() {
    for no_streaming in [false, true] {
        let api = small_cluster();
        api.faults(|f| f.no_streaming = no_streaming);
        api.set(ServedKind::EndpointSlice, slice("default", "kubernetes", "192.0.2.1"));
        api.set(ServedKind::EndpointSlice, slice("default", "web", "10.0.0.1"));
        api.set(ServedKind::EndpointSlice, slice("shop", "kubernetes", "10.0.0.2"));
        let mut known: InformerReader<WatchedObject> = InformerReader::of(&api.kubeconfig(), impatient()).await;
        let has = |known: &InformerReader<WatchedObject>, address: &str| {
            slices_of(known) == [("default/kubernetes".to_owned(), vec![address.to_owned()])]
        };
        known.until("the slice", |known| has(known, "192.0.2.1")).await;
        api.until_watching(&[ServedKind::EndpointSlice]).await;
        api.set(ServedKind::EndpointSlice, slice("default", "web", "10.0.0.9"));
        api.set(ServedKind::EndpointSlice, slice("default", "kubernetes", "192.0.2.2"));
        known.until("its change", |known| has(known, "192.0.2.2")).await;
        api.remove(ServedKind::EndpointSlice, "default", "kubernetes");
        known.until("no slice", |known| slices_of(known).is_empty()).await;
        let requests = api.requests().into_iter().filter(|request| request.kind == ServedKind::EndpointSlice);
        for request in requests {
            assert_eq!(request.path, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices");
            assert!(request.has("fieldSelector", "metadata.name=kubernetes"), "{request:?}");
        }
    }
}

#[tokio::test]
async fn installed_and_uninstalled_kinds_are_followed() {
    let api = small_cluster();
    let mut known: InformerReader<WatchedObject> = InformerReader::of(&api.kubeconfig(), impatient()).await;
    until_unserved(&mut known, &CUSTOM).await;
    api.set(ServedKind::TlsRoute, route("web"));
    api.install(ServedKind::TlsRoute);
    known.until("the route", |known| services_of(known, WatchedKind::TlsRoute) == ["shop/web"]).await;
    api.uninstall(ServedKind::TlsRoute);
    known.until("no route", |known| services_of(known, WatchedKind::TlsRoute).is_empty()).await;
    until_unserved(&mut known, &CUSTOM).await;
}

/// A load balancer answers 404 to everything while no API server runs, and an API server whose handlers are not ready
/// answers it for a custom kind.
#[tokio::test]
async fn not_found_removes_no_object_of_served_kind() {
    for discovery in [None, Some(403), Some(404), Some(500)] {
        let api = small_cluster();
        api.install(ServedKind::TlsRoute);
        api.set(ServedKind::TlsRoute, route("web"));
        api.set(ServedKind::Service, service("web", "NodePort"));
        let mut known: InformerReader<WatchedObject> = InformerReader::of(&api.kubeconfig(), impatient()).await;
        let has_both = |known: &InformerReader<WatchedObject>| {
            services_of(known, WatchedKind::TlsRoute) == ["shop/web"] && is_exposed(known, "web") == Some(true)
        };
        known.until("both objects", has_both).await;
        api.faults(|f| {
            f.discovery = discovery;
            for kind in [ServedKind::TlsRoute, ServedKind::Service] {
                f.refuse(kind, &[Verb::List, Verb::Watch], 404);
            }
        });
        api.cut_connections();
        let before = [ServedKind::TlsRoute, ServedKind::Service].map(|kind| (kind, api.count(Verb::List, kind)));
        api.until_requests("some lists of both", |requests| {
            let lists = |kind| requests.iter().filter(|r| (r.kind, r.verb) == (kind, Verb::List)).count();
            before.iter().all(|(kind, count)| lists(*kind) > count + 8)
        })
        .await;
        assert!(has_both(&known), "{discovery:?}: {:?}", known.names());
        known.until_problem("does not serve tlsroutes in the API group gateway.networking.k8s.io (404)").await;
        known.until_problem("does not serve services (404)").await;
        if discovery == Some(403) {
            known.until_problem("the ClusterRole system:discovery grants").await;
        }
        api.faults(|f| {
            f.refusals.clear();
            f.discovery = None;
        });
        known.until_well().await;
        assert!(has_both(&known));
    }
}

/// The first list of a new agent must not take policies for missing, whose rules an earlier one enforces.
#[tokio::test]
async fn not_found_does_not_complete_initial_sync() {
    let api = small_cluster();
    api.install(ServedKind::ClusterNetworkPolicy);
    api.faults(|f| f.refuse(ServedKind::ClusterNetworkPolicy, &[Verb::List, Verb::Watch], 404));
    let mut known: InformerReader<WatchedObject> = InformerReader::of(&api.kubeconfig(), impatient()).await;
    known.until_problem("does not serve clusternetworkpolicies").await;
    assert!(known.sync.unlisted().any(|kind| kind == WatchedKind::ClusterNetworkPolicy));
    api.faults(|f| f.refusals.clear());
    known.until("its list", |known| known.sync.unlisted().all(|kind| kind != WatchedKind::ClusterNetworkPolicy)).await;
}

#[tokio::test]
async fn unserved_kind_is_retried_with_long_backoff() {
    let api = small_cluster();
    let timing = cluster::RequestTiming {
        backoff_first: Duration::from_millis(1),
        backoff_last: Duration::from_secs(3600),
        ..impatient()
    };
    let mut known: InformerReader<WatchedObject> = InformerReader::of(&api.kubeconfig(), timing).await;
    until_unserved(&mut known, &CUSTOM).await;
    // The backoff is at least half an hour from the first response on: one stream and one page of each version, and no
    // more requests.
    api.set(ServedKind::Service, service("web", "NodePort"));
    known.until("the Service", |known| is_exposed(known, "web") == Some(true)).await;
    for kind in CUSTOM {
        let served = ServedKind::named(&kind.to_string());
        let versions = 1 + WatchedObject::resource(kind).alternatives.len();
        assert_eq!((api.count(Verb::Watch, served), api.count(Verb::List, served)), (versions, versions), "{kind}");
    }
}

#[tokio::test]
async fn undecodable_service_stops_neither_list_nor_watch() {
    let api = small_cluster();
    let bad = |name: &str| json!({"metadata": {"namespace": "shop", "name": name, "labels": 7}, "spec": "none"});
    api.set(ServedKind::Service, bad("bad"));
    let mut known: InformerReader<WatchedObject> = InformerReader::of(&api.kubeconfig(), impatient()).await;
    known.until("the Service of the list", |known| is_exposed(known, "bad") == Some(false)).await;
    api.until_watching(&[ServedKind::Service]).await;
    api.set(ServedKind::Service, bad("worse"));
    api.set(ServedKind::Service, service("web", "NodePort"));
    known.until("the Service after them", |known| is_exposed(known, "web") == Some(true)).await;
    let problems = known.objects[&(WatchedKind::Service, "shop/worse".into())].problems();
    assert_eq!(problems[0].origin, "Service shop/worse spec");
}

#[tokio::test]
async fn cluster_uid_is_the_uid_of_kube_system() {
    let api = FakeApi::start();
    let connection = connect(Some(&api.kubeconfig())).await.unwrap().with_timing(impatient());
    let error = cluster_uid(&connection).await.unwrap_err();
    assert_eq!(error, "namespace kube-system not found");
    api.set(ServedKind::Namespace, json!({"metadata": {"name": "kube-system", "uid": "0a1b"}}));
    assert_eq!(cluster_uid(&connection).await.as_deref(), Ok("0a1b"));
    api.faults(|f| f.refuse(ServedKind::Namespace, &[Verb::Get], 403));
    let error = cluster_uid(&connection).await.unwrap_err();
    assert!(error.contains("the RBAC verb 'get' on namespaces is missing; grant it to the service account"), "{error}");
}

#[tokio::test]
async fn sources_change_nothing() {
    let api = small_cluster();
    let mut known: InformerReader<WatchedObject> = InformerReader::of(&api.kubeconfig(), impatient()).await;
    known.until_synced().await;
    assert!(api.writes().is_empty(), "{:?}", api.writes());
}
