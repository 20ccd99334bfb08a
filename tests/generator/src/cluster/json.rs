//! Objects as the API server writes them: complete, including fields that an agent ignores.

use std::io::Write as _;
use std::sync::LazyLock;

use policy::Kind;

use super::random::mix;
use super::template::Template;
use super::{Cluster, Namespace, Phase, Pod, Policy, Ports, Workload, policies};

static POD: LazyLock<Template> = LazyLock::new(|| Template::new(include_str!("pod.json")));
static NAMESPACE: LazyLock<Template> = LazyLock::new(|| Template::new(include_str!("namespace.json")));
static POLICY: LazyLock<Template> = LazyLock::new(|| Template::new(include_str!("policy.json")));

/// List items have no type, watch events have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Listed,
    Watched,
}

pub(super) fn write(cluster: &Cluster, kind: Kind, index: usize, form: Form, out: &mut Vec<u8>) {
    match kind {
        Kind::Namespace => write_namespace(&cluster.namespaces[index], form, out),
        Kind::Pod => write_pod(cluster, &cluster.pods[index], form, out),
        Kind::NetworkPolicy => write_policy(cluster, &cluster.policies[index], form, out),
        Kind::Node | Kind::ClusterNetworkPolicy => panic!("a generated cluster has no {kind}"),
    }
}

macro_rules! put {
    ($out:expr, $($text:tt)+) => {
        write!($out, $($text)+).expect("memory takes everything")
    };
}

/// Starts the object; the template continues after its type.
fn begin(template: &Template, kind: Kind, form: Form, out: &mut Vec<u8>, fill: impl FnMut(&str, &mut Vec<u8>)) {
    let begun = out.len();
    template.write(out, fill);
    if form == Form::Watched {
        let version = match kind {
            Kind::Namespace | Kind::Pod | Kind::Node => "v1",
            Kind::NetworkPolicy => "networking.k8s.io/v1",
            Kind::ClusterNetworkPolicy => "policy.networking.k8s.io/v1alpha2",
        };
        let head = format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{version}\",");
        out.splice(begun..=begun, head.bytes());
    }
}

pub(super) fn write_namespace(namespace: &Namespace, form: Form, out: &mut Vec<u8>) {
    begin(&NAMESPACE, Kind::Namespace, form, out, |gap, out| match gap {
        "name" => put!(out, "{}", namespace.name),
        "uid" => put_uid(out, 1, namespace.name.len() as u64),
        "version" => put!(out, "{}", namespace.version),
        "env" => put!(out, "{}", namespace.env),
        "team" => put!(out, "team-{:02}", namespace.team),
        _ => panic!("no {gap} of a namespace"),
    });
}

pub(super) fn write_policy(cluster: &Cluster, policy: &Policy, form: Form, out: &mut Vec<u8>) {
    begin(&POLICY, Kind::NetworkPolicy, form, out, |gap, out| match gap {
        "name" => put!(out, "{}-{}", policy.sort.as_str(), policy.id),
        "namespace" => put!(out, "{}", cluster.namespaces[policy.namespace].name),
        "uid" => put_uid(out, 2, policy.id.into()),
        "version" => put!(out, "{}", policy.version),
        "spec" => put!(out, "{}", policies::spec(cluster, policy)),
        _ => panic!("no {gap} of a policy"),
    });
}

pub(super) fn write_pod(cluster: &Cluster, pod: &Pod, form: Form, out: &mut Vec<u8>) {
    let workload = &cluster.workloads[pod.workload];
    let namespace = &cluster.namespaces[workload.namespace].name;
    let (app, hash) = (&workload.app, template_hash(pod));
    let suffix = |out: &mut Vec<u8>| put_letters(out, mix(u64::from(pod.id) ^ 0xabcd), 5);
    begin(&POD, Kind::Pod, form, out, |gap, out| match gap {
        "name" => put_name(out, workload, pod),
        "owner" if workload.stateful => put!(out, "{app}"),
        "owner" => {
            put!(out, "{app}-");
            put_letters(out, hash, 10);
        }
        "ownerKind" => put!(out, "{}", if workload.stateful { "StatefulSet" } else { "ReplicaSet" }),
        "ownerUid" => put_uid(out, 3, pod.workload as u64),
        "namespace" => put!(out, "{namespace}"),
        "uid" => put_uid(out, 4, pod.id.into()),
        "version" => put!(out, "{}", pod.version),
        "created" => put_time(out, pod.id),
        "labels" => put_labels(out, workload, pod),
        "hash" => put_letters(out, hash, 10),
        "app" => put!(out, "{app}"),
        "suffix" => suffix(out),
        "ports" => put!(out, "{}", ports(workload.ports)),
        "node" => put!(out, "node-{:04}", pod.node),
        "phase" => put!(
            out,
            "{}",
            match pod.phase {
                Phase::Running => "Running",
                Phase::Succeeded => "Succeeded",
            }
        ),
        "host" => put!(out, "172.16.{}.{}", pod.node / 256, pod.node % 256),
        "address" => put!(out, "{}", pod.v4()),
        "addresses" if pod.is_dual_stack() => put!(out, "[{{\"ip\":\"{}\"}},{{\"ip\":\"{}\"}}]", pod.v4(), pod.v6()),
        "addresses" => put!(out, "[{{\"ip\":\"{}\"}}]", pod.v4()),
        _ => panic!("no {gap} of a pod"),
    });
}

fn put_name(out: &mut Vec<u8>, workload: &Workload, pod: &Pod) {
    match workload.stateful {
        true => put!(out, "{}-{}", workload.app, pod.number),
        false => {
            put!(out, "{}-", workload.app);
            put_letters(out, template_hash(pod), 10);
            // As random as a ReplicaSet's suffix, but unique.
            put!(out, "-{:05x}", pod.id);
        }
    }
}

fn put_labels(out: &mut Vec<u8>, workload: &Workload, pod: &Pod) {
    put!(out, "{{\"app\":\"{}\",", workload.app);
    if workload.stateful {
        put!(out, "\"apps.kubernetes.io/pod-index\":\"{}\",", pod.number);
    }
    put!(out, "\"component\":\"{}\",", pod.component);
    if workload.is_dns {
        put!(out, "\"k8s-app\":\"kube-dns\",");
    }
    match workload.stateful {
        true => {
            put!(out, "\"controller-revision-hash\":\"{}-", workload.app);
            put_letters(out, template_hash(pod), 10);
            put!(out, "\",\"statefulset.kubernetes.io/pod-name\":\"{}-{}\",", workload.app, pod.number);
        }
        false => {
            put!(out, "\"pod-template-hash\":\"");
            put_letters(out, template_hash(pod), 10);
            put!(out, "\",");
        }
    }
    put!(out, "\"version\":\"v{}\"}}", pod.release);
}

fn ports(ports: Ports) -> &'static str {
    match ports {
        Ports::Web => {
            r#"[{"name":"http","containerPort":8080,"protocol":"TCP"},{"name":"metrics","containerPort":9090,"protocol":"TCP"}]"#
        }
        Ports::Dns => {
            r#"[{"name":"dns","containerPort":53,"protocol":"UDP"},{"name":"dns-tcp","containerPort":53,"protocol":"TCP"},{"name":"metrics","containerPort":9153,"protocol":"TCP"}]"#
        }
        Ports::Database => {
            r#"[{"name":"postgres","containerPort":5432,"protocol":"TCP"},{"name":"metrics","containerPort":9187,"protocol":"TCP"}]"#
        }
    }
}

/// All pods of a workload from one template share it.
fn template_hash(pod: &Pod) -> u64 {
    mix(((pod.workload as u64) << 8) | u64::from(pod.template))
}

/// Letters and digits of Kubernetes's generated names: no vowels, and none that look alike.
fn put_letters(out: &mut Vec<u8>, number: u64, count: u32) {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let length = ALPHABET.len() as u64;
    out.extend((0..count).map(|place| ALPHABET[(number / length.pow(place) % length) as usize]));
}

fn put_uid(out: &mut Vec<u8>, space: u64, number: u64) {
    let (high, low) = (mix((space << 40) | number), mix((number << 8) | space));
    put!(
        out,
        "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        low >> 52,
        low & 0xffff_ffff_ffff
    );
}

/// A random time of the last month.
fn put_time(out: &mut Vec<u8>, id: u32) {
    let number = mix(id.into());
    let part = |shift: u32, of: u64| (number >> shift) % of;
    put!(out, "2026-10-{:02}T{:02}:{:02}:{:02}Z", 1 + part(0, 28), part(8, 24), part(16, 60), part(24, 60));
}
