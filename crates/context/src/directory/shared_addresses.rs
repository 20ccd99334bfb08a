//! Records of addresses that do not belong to a single pod of this cluster: nodes, API servers, Ingresses, and pods of
//! other clusters.

use std::collections::BTreeSet;
use std::sync::Arc;

use ::identity::{Component, ReservedIdentity, hosts_control_plane};
use policy::remote::RemoteSet;

use super::Directory;
use super::holder::ApiServer;
use crate::record::{Detail, Facts, Record};
use crate::template::Template;

/// Limit of workloads on the host network in the record of a node: a few times the usual number.
pub(super) const MOST_HOST_WORKLOADS: usize = 32;

impl Directory {
    /// Whether the template's pods are components of a control plane.
    pub(super) fn is_control_plane(&self, template: &Template) -> bool {
        match template.component {
            Component::No => false,
            Component::Own => true,
            Component::Hosted => self.state.namespace_labels(&template.namespace).is_some_and(hosts_control_plane),
        }
    }

    /// The record of a node covers what runs on its host network: a component there has the node's address.
    pub(super) fn record_of_node(&mut self, node: &Arc<str>) -> Arc<Record> {
        if let Some(held) = self.nodes.record(node) {
            return held.clone();
        }
        let pods = self.nodes.on_host(node).filter_map(|pod| self.pods.get(&pod.base.name));
        let (mut internet_exposed, mut control_plane) = (false, self.nodes.is_of_control_plane(node));
        // Components of the control plane first, so that the limit never drops them.
        let mut workloads: BTreeSet<(bool, String)> = BTreeSet::new();
        for template in pods.filter_map(|known| known.template.as_ref()) {
            let is_component = self.is_control_plane(template);
            internet_exposed |= self.templates.is_exposed(template);
            control_plane |= is_component;
            workloads.insert((!is_component, format!("{}/{}", template.namespace, template.workload)));
        }
        let named = workloads.into_iter().take(MOST_HOST_WORKLOADS).map(|(_, name)| name.into());
        let state = match &self.settings.node {
            Some(own) if own != node => ReservedIdentity::RemoteNode,
            Some(_) | None => ReservedIdentity::Host,
        };
        let detail = Detail { node: Some(node.clone()), host_workloads: named.collect(), ..Detail::default() };
        let record = Arc::new(Record::new(Facts {
            template: Arc::new(Template::of_node(node)),
            internet_exposed,
            control_plane,
            sid: None,
            num: state.num(),
            state: Some(state),
            detail: Some(Box::new(detail)),
        }));
        self.nodes.set_record(node, Some(record.clone()));
        record
    }

    /// The record of an API server names its pod, if there is one. Workloads that share the address are listed as for a
    /// node.
    pub(super) fn record_of_api_server(&mut self, ApiServer { pod, node }: ApiServer) -> Arc<Record> {
        let template = pod.and_then(|pod| pod.template).unwrap_or_else(|| Arc::new(Template::of_api_server()));
        let of_node = node.as_ref().map(|node| self.record_of_node(node));
        let is_exposed = of_node.as_ref().is_some_and(|of_node| of_node.internet_exposed);
        Arc::new(Record::new(Facts {
            internet_exposed: is_exposed || self.templates.is_exposed(&template),
            template,
            control_plane: true,
            sid: None,
            num: ReservedIdentity::KubeApiserver.num(),
            state: Some(ReservedIdentity::KubeApiserver),
            detail: of_node.and_then(|of_node| of_node.detail.clone()),
        }))
    }

    pub(super) fn record_of_ingress() -> Arc<Record> {
        Arc::new(Record::new(Facts {
            template: Arc::new(Template::of_ingress()),
            internet_exposed: true,
            control_plane: false,
            sid: None,
            num: ReservedIdentity::Ingress.num(),
            state: Some(ReservedIdentity::Ingress),
            detail: None,
        }))
    }

    /// The addresses of a set share one record, if its first address already has it.
    pub(super) fn record_of_remote(&self, set: &RemoteSet) -> Arc<Record> {
        let record = Record::new(Facts {
            template: Arc::new(Template::of_remote(set)),
            internet_exposed: false,
            control_plane: false,
            sid: None,
            num: ReservedIdentity::Remote.num(),
            state: Some(ReservedIdentity::Remote),
            detail: Some(Box::new(Detail { cluster: Some(set.cluster.clone()), ..Detail::default() })),
        });
        let first = self.state.remote_addresses_of(set).and_then(|mut addresses| addresses.next());
        let held = first.and_then(|address| self.table.get(address)).filter(|held| ***held == record);
        held.cloned().unwrap_or_else(|| Arc::new(record))
    }
}
