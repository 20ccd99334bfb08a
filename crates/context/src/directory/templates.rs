//! Pods that are equal to consumers, grouped by template: a template has one identity, one classification and one
//! record.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ::identity::Sid;
use policy::Labels;

use crate::exposure::{Exposures, selects};
use crate::object::IdentityPod;
use crate::record::Record;
use crate::template::Template;

/// The pods of a template, and their shared state.
#[derive(Debug)]
pub(super) struct Replicas {
    /// Sorted by name, not empty.
    pub(super) pods: Vec<Arc<IdentityPod>>,
    /// Whether they are reachable from outside the cluster.
    exposed: bool,
    sid: Option<Sid>,
    /// Cached until something changes.
    pub(super) records: Records,
}

#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) managed: Option<Arc<Record>>,
    pub(super) unmanaged: Option<Arc<Record>>,
}

#[derive(Debug, Default)]
pub(super) struct Templates {
    /// By namespace and workload. Neither level has empty entries.
    namespaces: HashMap<Arc<str>, HashMap<Arc<str>, WorkloadTemplates>>,
    by_sid: BTreeSet<BySid>,
}

/// Sorted by identity. `None` sorts before every template of an identity.
type BySid = (Sid, Option<Arc<Template>>);

/// The templates of one workload, which are few.
#[derive(Debug, Default)]
struct WorkloadTemplates {
    /// Sorted.
    templates: Vec<(Arc<Template>, Replicas)>,
    /// Number of exposed templates.
    exposed: usize,
}

impl Templates {
    /// The interned template of a pod, or a new one.
    pub(super) fn template_of(&self, pod: &IdentityPod) -> Arc<Template> {
        let template = Template::of(pod);
        let held = self.workload(&template).and_then(|of| Some(of.templates[of.place(&template).ok()?].0.clone()));
        held.unwrap_or_else(|| Arc::new(template))
    }

    pub(super) fn get(&self, template: &Template) -> Option<&Replicas> {
        let of = self.workload(template)?;
        Some(&of.templates[of.place(template).ok()?].1)
    }

    pub(super) fn get_mut(&mut self, template: &Template) -> Option<&mut Replicas> {
        let of = self.workload_mut(template)?;
        let place = of.place(template).ok()?;
        Some(&mut of.templates[place].1)
    }

    /// Whether any pod of the template's workload is reachable from outside.
    pub(super) fn is_exposed(&self, template: &Template) -> bool {
        self.workload(template).is_some_and(|of| of.exposed > 0)
    }

    pub(super) fn of_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<Template>> {
        self.namespaces.get(namespace).into_iter().flatten().flat_map(|(_, of)| of.all())
    }

    /// Templates with the identity, if their pods have addresses.
    pub(super) fn with_sid(&self, sid: Sid) -> impl Iterator<Item = &Arc<Template>> {
        self.by_sid.range((sid, None)..).take_while(move |(of, _)| *of == sid).flat_map(|(_, template)| template)
    }

    /// Replaces a pod by a newer version of the same name.
    pub(super) fn exchange(&mut self, template: &Template, old: &IdentityPod, new: &Arc<IdentityPod>) {
        let Some(replicas) = self.get_mut(template) else { return };
        if let Ok(place) = replicas.place(old) {
            replicas.pods[place] = new.clone();
        }
    }

    pub(super) fn upsert(
        &mut self,
        template: &Arc<Template>,
        pod: &Arc<IdentityPod>,
        exposures: &Exposures,
        stale: &mut Vec<Arc<Template>>,
    ) {
        let of_namespace = self.namespaces.entry(template.namespace.clone()).or_default();
        let of = of_namespace.entry(template.workload.clone()).or_default();
        let exposed = template.is_exposed(exposures);
        match of.place(template) {
            Ok(place) => {
                let replicas = &mut of.templates[place].1;
                if let Err(place) = replicas.place(pod) {
                    replicas.pods.insert(place, pod.clone());
                }
                return;
            }
            Err(place) => {
                let replicas = Replicas { pods: vec![pod.clone()], exposed, sid: None, records: Records::default() };
                // Most workloads have one template; the default capacity would dominate memory.
                of.templates.reserve_exact(1);
                of.templates.insert(place, (template.clone(), replicas));
            }
        }
        stale.push(template.clone());
        of.expose(false, exposed, stale);
    }

    pub(super) fn remove(&mut self, template: &Arc<Template>, pod: &IdentityPod, stale: &mut Vec<Arc<Template>>) {
        let Some(of) = self.workload_mut(template) else { return };
        let Ok(place) = of.place(template) else { return };
        let replicas = &mut of.templates[place].1;
        if let Ok(place) = replicas.place(pod) {
            replicas.pods.remove(place);
        }
        if !replicas.pods.is_empty() {
            return;
        }
        let (exposed, sid) = (replicas.exposed, replicas.sid);
        of.templates.remove(place);
        of.expose(exposed, false, stale);
        let is_empty = of.templates.is_empty();
        self.remove_sid(sid, template);
        if is_empty && let Some(of_namespace) = self.namespaces.get_mut(&template.namespace) {
            of_namespace.remove(&template.workload);
            if of_namespace.is_empty() {
                self.namespaces.remove(&template.namespace);
            }
        }
    }

    /// Reclassifies the pods of the namespace that the selector matches.
    pub(super) fn classify(
        &mut self,
        namespace: &str,
        selector: &Labels,
        exposures: &Exposures,
        stale: &mut Vec<Arc<Template>>,
    ) {
        for of in self.namespaces.get_mut(namespace).into_iter().flat_map(HashMap::values_mut) {
            let exposed = of.exposed;
            for (template, replicas) in of.templates.iter_mut().filter(|(t, _)| selects(selector, &t.pod_labels)) {
                let before = std::mem::replace(&mut replicas.exposed, template.is_exposed(exposures));
                of.exposed = of.exposed + usize::from(replicas.exposed) - usize::from(before);
            }
            if (exposed > 0) != (of.exposed > 0) {
                stale.extend(of.all().cloned());
            }
        }
    }

    /// Sets a new identity or classification, and invalidates the cached records.
    pub(super) fn renew(&mut self, template: &Arc<Template>, sid: Option<Sid>) {
        let Some(replicas) = self.get_mut(template) else { return };
        replicas.records = Records::default();
        let before = std::mem::replace(&mut replicas.sid, sid);
        if before != sid {
            self.remove_sid(before, template);
            if let Some(sid) = sid {
                self.by_sid.insert((sid, Some(template.clone())));
            }
        }
    }

    fn remove_sid(&mut self, sid: Option<Sid>, template: &Arc<Template>) {
        if let Some(sid) = sid {
            self.by_sid.remove(&(sid, Some(template.clone())));
        }
    }

    /// Number of templates, and the index by identity.
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, &BTreeSet<BySid>) {
        let count = self.namespaces.values().flatten().map(|(_, of)| of.templates.len()).sum();
        (count, &self.by_sid)
    }

    fn workload(&self, template: &Template) -> Option<&WorkloadTemplates> {
        self.namespaces.get(&template.namespace)?.get(&template.workload)
    }

    fn workload_mut(&mut self, template: &Template) -> Option<&mut WorkloadTemplates> {
        self.namespaces.get_mut(&template.namespace)?.get_mut(&template.workload)
    }
}

impl WorkloadTemplates {
    fn place(&self, template: &Template) -> Result<usize, usize> {
        self.templates.binary_search_by(|(other, _)| (**other).cmp(template))
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Template>> {
        self.templates.iter().map(|(template, _)| template)
    }

    /// Updates the number of exposed templates. Touches all of them if the exposure of the workload changes.
    fn expose(&mut self, before: bool, after: bool, stale: &mut Vec<Arc<Template>>) {
        let exposed = self.exposed;
        self.exposed = self.exposed + usize::from(after) - usize::from(before);
        if (exposed > 0) != (self.exposed > 0) {
            stale.extend(self.all().cloned());
        }
    }
}

impl Replicas {
    pub(super) fn sid(&self) -> Option<Sid> {
        self.sid
    }

    fn place(&self, pod: &IdentityPod) -> Result<usize, usize> {
        self.pods.binary_search_by(|other| other.base.name.name.cmp(&pod.base.name.name))
    }
}
