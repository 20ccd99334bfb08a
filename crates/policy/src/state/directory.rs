//! The directory of address claims: by pods in their status, and by attachments from the CNI plugin.

mod claims;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::{Attachment, AttachmentId, ObjectName, Pod};
use claims::Claims;

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Directory {
    /// Pods that claim the address. Pods that cannot have one (finished, on the host network) are not included.
    claims: Claims,
    /// Pods on the host network whose status has the address, which is their node's.
    on_hosts: Claims,
    attachments: BTreeMap<AttachmentId, Arc<Attachment>>,
    attached: BTreeMap<IpAddr, BTreeSet<AttachmentId>>,
    attached_pods: BTreeMap<ObjectName, BTreeSet<AttachmentId>>,
}

impl Directory {
    pub(crate) fn claim(&mut self, pod: &Arc<Pod>) {
        for address in claimed(pod) {
            self.claims.add(address, pod);
        }
        for address in of_host(pod) {
            self.on_hosts.add(address, pod);
        }
    }

    pub(crate) fn release(&mut self, pod: &Pod) {
        for address in claimed(pod) {
            self.claims.remove(address, &pod.name);
        }
        for address in of_host(pod) {
            self.on_hosts.remove(address, &pod.name);
        }
    }

    /// Repacks the maps of pods' addresses.
    pub(crate) fn pack(&mut self) {
        self.claims.pack();
        self.on_hosts.pack();
    }

    /// Adds an attachment, replacing one with the same id.
    pub(crate) fn attach(&mut self, attachment: Attachment) {
        self.detach(&attachment.id);
        let id = &attachment.id;
        for address in &attachment.addresses {
            self.attached.entry(*address).or_default().insert(id.clone());
        }
        self.attached_pods.entry(attachment.pod.clone()).or_default().insert(id.clone());
        self.attachments.insert(id.clone(), Arc::new(attachment));
    }

    pub(crate) fn detach(&mut self, id: &AttachmentId) -> Option<Arc<Attachment>> {
        let old = self.attachments.remove(id)?;
        for address in &old.addresses {
            remove(&mut self.attached, address, id);
        }
        remove(&mut self.attached_pods, &old.pod, id);
        Some(old)
    }

    pub(crate) fn attachment(&self, id: &AttachmentId) -> Option<&Arc<Attachment>> {
        self.attachments.get(id)
    }

    pub(crate) fn attachments(&self) -> impl Iterator<Item = &Arc<Attachment>> {
        self.attachments.values()
    }

    pub(crate) fn attachments_of(&self, pod: &ObjectName) -> impl Iterator<Item = &Arc<Attachment>> {
        self.attached_pods.get(pod).into_iter().flatten().filter_map(|id| self.attachments.get(id))
    }

    /// The latest attachment with the address.
    pub(crate) fn attached(&self, address: IpAddr) -> Option<&Arc<Attachment>> {
        self.attached_with(address).max_by_key(|a| (a.since, &a.id))
    }

    /// Every attachment with the address.
    pub(crate) fn attached_with(&self, address: IpAddr) -> impl Iterator<Item = &Arc<Attachment>> {
        self.attached.get(&address).into_iter().flatten().filter_map(|id| self.attachments.get(id))
    }

    /// The pods that claim the address, by descending [`ClaimRank`](crate::ClaimRank): its owner first.
    pub(crate) fn claimants(&self, address: IpAddr) -> &[Arc<Pod>] {
        self.claims.of(address)
    }

    /// Whether a pod that claims the address owns it, because there is no other claim or attachment.
    pub(crate) fn is_undisputed(&self, address: IpAddr) -> bool {
        !self.claims.has_several(address) && !self.attached.contains_key(&address)
    }

    /// Pods on the host network of the node that has the address.
    pub(crate) fn on_host(&self, address: IpAddr) -> &[Arc<Pod>] {
        self.on_hosts.of(address)
    }

    /// Every address that the pod claims, or that any pod of the same name is attached with.
    pub(crate) fn may_have(&self, pod: &Pod) -> Vec<IpAddr> {
        let attached = self.attachments_of(&pod.name).flat_map(|attachment| attachment.addresses.iter().copied());
        claimed(pod).chain(attached).collect()
    }

    /// Every address that the pod claims or is attached with, without duplicates.
    pub(crate) fn of(&self, pod: &Pod) -> impl Iterator<Item = IpAddr> {
        let mut attached = Vec::new();
        for attachment in self.attachments_of(&pod.name).filter(|a| a.is_of(pod)) {
            for address in &attachment.addresses {
                if !attached.contains(address) && !claimed(pod).any(|a| a == *address) {
                    attached.push(*address);
                }
            }
        }
        claimed(pod).chain(attached)
    }
}

/// The addresses that a pod may own: none if it has finished or is on the host network.
fn claimed(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    let may_have = !pod.finished && !pod.host_network;
    pod.addresses.iter().filter(move |_| may_have)
}

/// The addresses of the node, for a pod on its host network.
fn of_host(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    let is_of_host = pod.host_network && !pod.finished;
    pod.addresses.iter().filter(move |_| is_of_host)
}

fn remove<K: Ord, V: Ord>(map: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(values) = map.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            map.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Change, ClusterState, Holder, Kind, lower};

    const ADDRESS: &str = "10.1.0.5";

    fn pod(name: &str, uid: &str, node: &str, phase: &str) -> Change {
        let object = json!({
            "metadata": {"namespace": "shop", "name": name, "uid": uid},
            "spec": {"nodeName": node},
            "status": {"podIP": ADDRESS, "phase": phase}
        });
        Change::Set(lower(Kind::Pod, &object).unwrap())
    }

    fn attachment(container: &str, pod: &str, uid: &str, since: u64) -> Attachment {
        Attachment {
            id: AttachmentId { container: container.into(), interface: "eth0".into() },
            pod: ObjectName::new("shop", pod),
            uid: Some(uid.into()),
            addresses: vec![ADDRESS.parse().unwrap()],
            host_interface: None,
            bridged: false,
            input_interface: None,
            hardware_address: None,
            link_local: vec![],
            since,
        }
    }

    /// The name of the pod that has the address, `?name` if its object is unknown.
    fn holder(state: &ClusterState) -> String {
        match state.holder(ADDRESS.parse().unwrap()) {
            None => String::new(),
            Some(Holder::Pod(pod)) => pod.name.name.to_string(),
            Some(Holder::Unknown(attachment)) => format!("?{}", attachment.pod.name),
        }
    }

    #[test]
    fn local_attachment_outranks_address_in_pod_status() {
        let mut state = ClusterState::new();
        state.apply(pod("web", "1", "node-a", "Running"));
        state.apply(pod("thief", "2", "node-b", "Running"));
        assert_eq!(holder(&state), "thief");
        assert!(state.attach(attachment("c1", "web", "1", 1)).any());
        assert!(!state.attach(attachment("c1", "web", "1", 1)).any());
        assert_eq!(holder(&state), "web");
        assert!(state.detach(&attachment("c1", "web", "1", 1).id).any());
        assert_eq!(holder(&state), "thief");
    }

    #[test]
    fn known_pod_has_undisputed_and_won_addresses() {
        let mut state = ClusterState::new();
        let has = |state: &ClusterState| {
            ["web", "thief"].map(|name| {
                let pod = state.pod(&ObjectName::new("shop", name));
                let known: Vec<IpAddr> = pod.into_iter().flat_map(|pod| state.addresses_of_known(pod)).collect();
                assert_eq!(known, pod.into_iter().flat_map(|pod| state.addresses_of(pod)).collect::<Vec<_>>());
                known.len()
            })
        };
        state.apply(pod("web", "1", "node-a", "Running"));
        assert_eq!(has(&state), [1, 0]);
        state.apply(pod("thief", "2", "node-b", "Running"));
        assert_eq!(has(&state), [0, 1]);
        state.attach(attachment("c1", "web", "1", 1));
        assert_eq!(has(&state), [1, 0]);
        state.apply(pod("thief", "2", "node-b", "Failed"));
        assert_eq!(has(&state), [1, 0]);
        state.attach(attachment("c2", "other", "3", 2));
        assert_eq!(has(&state), [0, 0]);
        state.detach(&attachment("c2", "other", "3", 2).id);
        state.detach(&attachment("c1", "web", "1", 1).id);
        assert_eq!(has(&state), [1, 0]);
    }

    #[test]
    fn latest_attachment_holds_address_until_removed() {
        let mut state = ClusterState::new();
        state.apply(pod("old", "1", "node-a", "Running"));
        state.apply(pod("new", "2", "node-a", "Running"));
        state.attach(attachment("c2", "new", "2", 2));
        state.attach(attachment("c1", "old", "1", 1));
        assert_eq!(holder(&state), "new");
        state.replace_attachments(vec![attachment("c1", "old", "1", 1)]);
        assert_eq!(holder(&state), "old");
    }

    #[test]
    fn attachment_ignores_pod_of_other_uid_or_finished() {
        let mut state = ClusterState::new();
        state.attach(attachment("c1", "db-0", "2", 1));
        assert_eq!(holder(&state), "?db-0");
        state.apply(pod("db-0", "1", "node-a", "Running"));
        assert_eq!(holder(&state), "?db-0");
        state.apply(pod("db-0", "2", "node-a", "Running"));
        assert_eq!(holder(&state), "db-0");
        state.apply(pod("db-0", "2", "node-a", "Succeeded"));
        assert_eq!(holder(&state), "?db-0");
    }

    #[test]
    fn a_static_pod_is_known_by_its_mirror() {
        let mut state = ClusterState::new();
        state.attach(attachment("c1", "proxy-node-a", "hash", 1));
        let object = json!({
            "metadata": {
                "namespace": "shop", "name": "proxy-node-a", "uid": "7",
                "annotations": {"kubernetes.io/config.mirror": "hash"}
            },
            "spec": {"nodeName": "node-a"}
        });
        state.apply(Change::Set(lower(Kind::Pod, &object).unwrap()));
        assert_eq!(holder(&state), "proxy-node-a");
    }

    #[test]
    fn pod_has_attached_address_before_status_reports_it() {
        let mut state = ClusterState::new();
        let object = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "1"}, "spec": {}});
        state.apply(Change::Set(lower(Kind::Pod, &object).unwrap()));
        state.attach(attachment("c1", "web", "1", 1));
        let web = state.pod(&ObjectName::new("shop", "web")).unwrap();
        assert_eq!(state.addresses_of(web).map(|a| a.to_string()).collect::<Vec<_>>(), [ADDRESS]);
        assert!(state.is_local(web, "node-a"));
    }
}
