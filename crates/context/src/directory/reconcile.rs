//! Reconciles the table with the addresses, templates and nodes that a change has made stale.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ::identity::{ReservedIdentity, Sid, UNNUMBERED};
use policy::{DirtySet, Labels};

use super::holder::AddressHolder;
use super::pods::PodEntry;
use super::{Directory, Identity, Stale};
use crate::record::{Detail, Facts, Record};
use crate::template::Template;

impl Directory {
    pub(super) fn reconcile(&mut self, now: Instant) {
        let Stale { mut addresses, mut templates, mut nodes } = std::mem::take(&mut self.stale);
        // Templates in use are interned: equal ones have the same pointer.
        templates.sort_unstable_by_key(Arc::as_ptr);
        templates.dedup_by(|a, b| Arc::ptr_eq(a, b));
        for template in &templates {
            let sid = self.sid_of(template);
            self.templates.renew(template, sid);
            self.touch(template, &mut addresses, &mut nodes);
        }
        for node in &nodes {
            self.nodes.set_record(node, None);
            addresses.extend(self.nodes.on_host(node).flat_map(|pod| pod.base.addresses.iter()));
            addresses.extend(self.nodes.addresses(node));
        }
        let mut holders = self.holders(addresses.iter().copied());
        let mut renumbered: BTreeSet<Sid> = self.numbers.expire(now).into_iter().collect();
        renumbered.extend(self.count(&holders, now));
        let mut more = DirtySet::default();
        for sid in renumbered {
            self.renumber(sid, &mut more);
        }
        let more = more.into_iter().filter(|address| !addresses.contains(address));
        holders.extend(self.holders(more));
        self.resolved += holders.len() as u64;
        for (address, holder) in holders {
            self.write(address, holder);
        }
    }

    /// Resolves the owner of each address.
    fn holders(&self, addresses: impl Iterator<Item = IpAddr>) -> Vec<(IpAddr, Option<AddressHolder>)> {
        addresses.map(|address| (address, self.holder(address))).collect()
    }

    /// Adds the addresses and nodes whose records depend on the template's pods.
    fn touch(&self, template: &Template, addresses: &mut DirtySet<IpAddr>, nodes: &mut DirtySet<Arc<str>>) {
        for pod in self.templates.get(template).iter().flat_map(|replicas| &replicas.pods) {
            match template.host_network {
                true => nodes.extend(pod.base.node.clone()),
                false => addresses.extend(pod.base.addresses.iter()),
            }
        }
    }

    /// The identity of the template's pods on nodes with an agent; `None` if the pods have no security identity.
    fn sid_of(&mut self, template: &Template) -> Option<Sid> {
        if template.host_network || template.unreadable {
            return None;
        }
        let of_namespace = self.relevant_of_namespace(&template.namespace)?;
        let labels = self.relevant_of_pods(template);
        Some(Sid::of(&self.settings.cluster_id, &template.namespace, &labels, &of_namespace))
    }

    /// The identity-relevant labels of the template's pods.
    fn relevant_of_pods(&mut self, template: &Template) -> Labels {
        let filter = &self.settings.filter;
        self.interner.part_of(&template.pod_labels, |key| filter.includes(key))
    }

    /// The identity-relevant labels of a namespace, if the namespace is known.
    fn relevant_of_namespace(&mut self, namespace: &str) -> Option<Labels> {
        let labels = self.state.namespace_labels(namespace)?;
        let filter = &self.settings.filter;
        Some(match filter.is_default() {
            true => labels.clone(),
            false => self.interner.part_of(labels, |key| filter.includes_of_namespace(key)),
        })
    }

    /// Updates the reference counts of identities for these addresses. Returns the identities whose number may have
    /// changed.
    fn count(&mut self, holders: &[(IpAddr, Option<AddressHolder>)], now: Instant) -> BTreeSet<Sid> {
        let (mut came, mut concerned) = (BTreeSet::new(), BTreeSet::new());
        for (address, holder) in holders {
            let old = self.table.get(*address).and_then(|record| record.sid);
            let new = holder.as_ref().and_then(|holder| self.identity_of(holder));
            if old == new.as_ref().map(|(sid, _)| *sid) {
                continue;
            }
            if let Some((sid, template)) = new {
                if !self.ids.contains_key(&sid) {
                    came.insert(sid);
                    let identity = self.identity(template);
                    self.ids.insert(sid, identity);
                }
                concerned.insert(sid);
                if let Some(identity) = self.ids.get_mut(&sid) {
                    identity.references += 1;
                }
            }
            if let Some(sid) = old {
                concerned.insert(sid);
                if let Some(identity) = self.ids.get_mut(&sid) {
                    identity.references -= 1;
                }
            }
        }
        let (there, gone): (BTreeSet<Sid>, BTreeSet<Sid>) =
            concerned.iter().partition(|sid| self.ids.get(*sid).is_some_and(|identity| identity.references > 0));
        // New identities are added before old ones are removed, so that none gets the number of a removed one at once.
        let mut renumbered: BTreeSet<Sid> = came.intersection(&there).copied().collect();
        for sid in renumbered.clone() {
            renumbered.extend(self.numbers.add(sid));
        }
        for sid in gone {
            self.ids.remove(&sid);
            if !came.contains(&sid) {
                self.numbers.remove(sid, now);
            }
        }
        self.unpublished.ids.extend(concerned);
        renumbered
    }

    /// The identity of the owner's addresses: only pods that are not on the host network have one.
    fn identity_of<'a>(&self, holder: &'a AddressHolder) -> Option<(Sid, &'a Template)> {
        let known = match holder {
            AddressHolder::Pod(known) => known,
            AddressHolder::ApiServer(_)
            | AddressHolder::Node(_)
            | AddressHolder::Ingress
            | AddressHolder::Remote(_) => return None,
        };
        let template = known.template.as_deref()?;
        let sid = self.templates.get(template)?.sid()?;
        self.nodes.is_managed(known.pod.base.node.as_deref()).then_some((sid, template))
    }

    /// A new identity without references.
    fn identity(&mut self, template: &Template) -> Identity {
        let namespace_labels = self.relevant_of_namespace(&template.namespace);
        Identity {
            num: UNNUMBERED,
            namespace: template.namespace.clone(),
            labels: self.relevant_of_pods(template),
            // An identity exists only if the namespace labels are known.
            namespace_labels: namespace_labels.unwrap_or_default(),
            references: 0,
        }
    }

    /// Sets the current number of the identity, which may have changed. Adds the addresses whose records contain it.
    fn renumber(&mut self, sid: Sid, addresses: &mut DirtySet<IpAddr>) {
        let num = self.numbers.number(sid).unwrap_or(UNNUMBERED);
        let Some(identity) = self.ids.get_mut(&sid) else { return };
        identity.num = num;
        self.unpublished.ids.mark(sid);
        let templates: Vec<Arc<Template>> = self.templates.with_sid(sid).cloned().collect();
        for template in &templates {
            self.templates.renew(template, Some(sid));
            self.touch(template, addresses, &mut DirtySet::default());
        }
    }

    fn write(&mut self, address: IpAddr, holder: Option<AddressHolder>) {
        let (new, old) = (holder.and_then(|holder| self.make(holder)), self.table.get(address).cloned());
        if old == new {
            // The new record is stored although it is equal: the old one may refer to a template no longer in use.
            if let Some(new) = new.filter(|new| !old.is_some_and(|old| Arc::ptr_eq(&old, new))) {
                self.table.insert(address, new);
            }
            return;
        }
        if let Some(old) = &old {
            self.sum.remove(old.digest_at(address));
            if let Some(count) = old.state.and_then(|state| self.reserved.get_mut(&state)) {
                *count -= 1;
            }
        }
        match new {
            Some(new) => {
                self.sum.add(new.digest_at(address));
                if let Some(state) = new.state {
                    *self.reserved.entry(state).or_default() += 1;
                }
                self.table.insert(address, new);
            }
            None => self.table.remove(address),
        }
        self.unpublished.addresses.mark(address);
    }

    /// Builds the record of an address of this owner.
    fn make(&mut self, holder: AddressHolder) -> Option<Arc<Record>> {
        match holder {
            AddressHolder::Pod(known) => self.record_of_pod(known),
            AddressHolder::ApiServer(server) => Some(self.record_of_api_server(server)),
            AddressHolder::Node(node) => Some(self.record_of_node(&node)),
            AddressHolder::Ingress => Some(Directory::record_of_ingress()),
            AddressHolder::Remote(set) => Some(self.record_of_remote(&set)),
        }
    }

    fn record_of_pod(&mut self, PodEntry { pod, template }: PodEntry) -> Option<Arc<Record>> {
        let template = template?;
        let managed = self.nodes.is_managed(pod.base.node.as_deref());
        let replicas = self.templates.get(&template)?;
        let held = if managed { &replicas.records.managed } else { &replicas.records.unmanaged };
        if let Some(held) = held {
            return Some(held.clone());
        }
        let sid = replicas.sid().filter(|_| managed);
        let detail = self.settings.pod_detail.then(|| Detail {
            pod: Some(pod.base.name.name.clone()),
            node: pod.base.node.clone(),
            ..Detail::default()
        });
        let facts = self.facts(template.clone(), sid, managed, detail.map(Box::new));
        if self.settings.pod_detail {
            return Some(Arc::new(Record::new(facts)));
        }
        let record = Arc::new(Record::new(facts));
        let records = &mut self.templates.get_mut(&template)?.records;
        let place = if managed { &mut records.managed } else { &mut records.unmanaged };
        *place = Some(record.clone());
        Some(record)
    }

    fn facts(&self, template: Arc<Template>, sid: Option<Sid>, managed: bool, detail: Option<Box<Detail>>) -> Facts {
        let state = match (managed, sid) {
            (false, _) => Some(ReservedIdentity::Unmanaged),
            (true, None) => Some(ReservedIdentity::Init),
            (true, Some(_)) => None,
        };
        let number = sid.and_then(|sid| self.ids.get(&sid)).map_or(UNNUMBERED, |identity| identity.num);
        Facts {
            internet_exposed: self.templates.is_exposed(&template),
            control_plane: self.is_control_plane(&template),
            template,
            sid,
            num: state.map_or(number, ReservedIdentity::num),
            state,
            detail,
        }
    }
}
