//! Pods that are reachable from outside the cluster, by the Services that select them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use policy::{Labels, ObjectName};

use crate::object::{Exposure, Service, WatchedKind};

/// Services, and the objects that expose them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Exposures {
    services: BTreeMap<ObjectName, Arc<Service>>,
    exposures: BTreeMap<(WatchedKind, ObjectName), Arc<Exposure>>,
    /// Number of exposures that name the Service, which may be missing.
    named: BTreeMap<ObjectName, usize>,
    /// Number of exposures with the address.
    addresses: BTreeMap<IpAddr, usize>,
    /// Selectors of the Services that are reachable from outside, by namespace and name.
    open: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Labels>>,
}

/// Pods whose classification may have changed: those of the namespace that one of the selectors matches.
pub(crate) type ReclassifiedPods = Vec<(Arc<str>, Labels)>;

/// Effects of a changed exposure.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ExposureChange {
    pub(crate) reclassified: ReclassifiedPods,
    /// Addresses that became or ceased to be an Ingress's or a Gateway's.
    pub(crate) addresses: Vec<IpAddr>,
}

impl Exposures {
    /// Whether an exposed Service selects pods of the namespace with these labels.
    pub(crate) fn reach(&self, namespace: &str, labels: &Labels) -> bool {
        self.open.get(namespace).is_some_and(|open| open.values().any(|selector| selects(selector, labels)))
    }

    pub(crate) fn set_service(&mut self, name: &ObjectName, service: Option<Arc<Service>>) -> ReclassifiedPods {
        match service {
            Some(service) => self.services.insert(name.clone(), service),
            None => self.services.remove(name),
        };
        self.decide(name)
    }

    pub(crate) fn set_exposure(
        &mut self,
        kind: WatchedKind,
        name: &ObjectName,
        exposure: Option<Arc<Exposure>>,
    ) -> ExposureChange {
        let key = (kind, name.clone());
        let new = exposure.clone();
        let old = match exposure {
            Some(exposure) => self.exposures.insert(key, exposure),
            None => self.exposures.remove(&key),
        };
        let mut named: Vec<&ObjectName> = Vec::new();
        for service in new.iter().flat_map(|exposure| &exposure.services) {
            *self.named.entry(service.clone()).or_default() += 1;
            named.push(service);
        }
        for service in old.iter().flat_map(|exposure| &exposure.services) {
            if let Some(count) = self.named.get_mut(service) {
                *count -= 1;
                if *count == 0 {
                    self.named.remove(service);
                }
            }
            named.push(service);
        }
        let reclassified = named.into_iter().flat_map(|service| self.decide(service)).collect();
        ExposureChange { reclassified, addresses: self.move_addresses(old.as_deref(), new.as_deref()) }
    }

    /// Whether the address is an Ingress's or a Gateway's.
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    /// Addresses of only one of the two.
    fn move_addresses(&mut self, old: Option<&Exposure>, new: Option<&Exposure>) -> Vec<IpAddr> {
        let of = |exposure: Option<&Exposure>| -> BTreeSet<IpAddr> {
            exposure.into_iter().flat_map(|exposure| exposure.addresses.iter().copied()).collect()
        };
        let (old, new) = (of(old), of(new));
        for address in new.difference(&old) {
            *self.addresses.entry(*address).or_default() += 1;
        }
        for address in old.difference(&new) {
            if let Some(count) = self.addresses.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    self.addresses.remove(address);
                }
            }
        }
        old.symmetric_difference(&new).copied().collect()
    }

    pub(crate) fn service_names(&self) -> impl Iterator<Item = &ObjectName> {
        self.services.keys()
    }

    pub(crate) fn exposure_names(&self, kind: WatchedKind) -> impl Iterator<Item = &ObjectName> {
        self.exposures.keys().filter(move |(of, _)| *of == kind).map(|(_, name)| name)
    }

    /// Updates whether the Service is reachable from outside.
    fn decide(&mut self, name: &ObjectName) -> ReclassifiedPods {
        let service = self.services.get(name).filter(|service| !service.selector.is_empty());
        let is_open = |service: &&Arc<Service>| service.exposed || self.named.contains_key(name);
        let new = service.filter(is_open).map(|service| service.selector.clone());
        let of_namespace = self.open.entry(name.namespace.clone()).or_default();
        let old = match &new {
            Some(selector) => of_namespace.insert(name.name.clone(), selector.clone()),
            None => of_namespace.remove(&name.name),
        };
        if of_namespace.is_empty() {
            self.open.remove(&name.namespace);
        }
        let differ = old != new;
        old.into_iter().chain(new).filter(|_| differ).map(|selector| (name.namespace.clone(), selector)).collect()
    }
}

/// The semantics of Service selectors: every pair of the selector is a label.
pub(crate) fn selects(selector: &Labels, labels: &Labels) -> bool {
    !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use crate::testing::labels;

    use super::*;

    fn service(selector: &[(&str, &str)], exposed: bool) -> Option<Arc<Service>> {
        Some(Arc::new(Service {
            name: ObjectName::new("shop", "web"),
            selector: labels(selector),
            exposed,
            addresses: Box::default(),
            ports: Box::default(),
            problems: Box::default(),
        }))
    }

    fn exposure(kind: WatchedKind, services: &[&str]) -> Option<Arc<Exposure>> {
        let services = services.iter().map(|name| name.parse().unwrap()).collect();
        let name = ObjectName::new("shop", "front");
        Some(Arc::new(Exposure { kind, name, services, addresses: vec![], problems: Box::default() }))
    }

    const WEB: &[(&str, &str)] = &[("app", "web")];

    #[test]
    fn exposed_or_routed_service_exposes_its_pods() {
        let (name, route) = (ObjectName::new("shop", "web"), ObjectName::new("shop", "front"));
        let mut exposures = Exposures::default();
        let web = labels(&[("app", "web"), ("tier", "front")]);
        assert!(!exposures.reach("shop", &web));
        let touched = [("shop".into(), labels(WEB))];
        for kind in [
            WatchedKind::Ingress,
            WatchedKind::HttpRoute,
            WatchedKind::GrpcRoute,
            WatchedKind::TlsRoute,
            WatchedKind::TcpRoute,
            WatchedKind::UdpRoute,
        ] {
            assert_eq!(exposures.set_service(&name, service(WEB, false)), []);
            assert_eq!(
                exposures.set_exposure(kind, &route, exposure(kind, &["shop/web", "shop/none"])).reclassified,
                touched
            );
            assert!(exposures.reach("shop", &web));
            assert!(!exposures.reach("other", &web) && !exposures.reach("shop", &labels(&[("tier", "front")])));
            assert_eq!(exposures.set_exposure(kind, &route, exposure(kind, &["other/web"])).reclassified, touched);
            assert!(!exposures.reach("shop", &web));
            assert_eq!(exposures.set_exposure(kind, &route, None).reclassified, []);
        }
        assert_eq!(exposures.set_service(&name, service(WEB, true)), touched);
        assert!(exposures.reach("shop", &web));
        assert_eq!(
            exposures
                .set_exposure(WatchedKind::Ingress, &route, exposure(WatchedKind::Ingress, &["shop/web"]))
                .reclassified,
            []
        );
        assert_eq!(exposures.set_service(&name, service(WEB, false)), []);
        assert!(exposures.reach("shop", &web), "as long as the Ingress names it");
        assert_eq!(exposures.set_service(&name, None), touched);
        assert_eq!(exposures.set_service(&name, service(WEB, false)), touched, "an Ingress may come first");
        assert_eq!(exposures.set_exposure(WatchedKind::Ingress, &route, None).reclassified, touched);
        assert_eq!(exposures.set_service(&name, None), []);
        assert!(exposures.open.is_empty() && exposures.named.is_empty());
    }

    #[test]
    fn exposure_address_is_known_until_last_owner_removed() {
        let mut exposures = Exposures::default();
        let mut set = |kind, name: &str, addresses: &[&str]| {
            let name = ObjectName::new("shop", name);
            let exposure = Exposure {
                kind,
                name: name.clone(),
                services: vec![],
                addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
                problems: Box::default(),
            };
            let change = exposures.set_exposure(kind, &name, Some(Arc::new(exposure)));
            let moved: Vec<String> = change.addresses.iter().map(ToString::to_string).collect();
            (moved, exposures.has_address("203.0.113.9".parse().unwrap()))
        };
        let [a, b] = ["203.0.113.8", "203.0.113.9"];
        assert_eq!(set(WatchedKind::Ingress, "front", &[b]), (vec![b.into()], true));
        assert_eq!(set(WatchedKind::Gateway, "front", &[a, b]), (vec![a.into(), b.into()], true));
        assert_eq!(set(WatchedKind::Ingress, "front", &[]), (vec![b.into()], true));
        assert_eq!(set(WatchedKind::Gateway, "front", &[a]), (vec![b.into()], false));
        assert_eq!(set(WatchedKind::Gateway, "front", &[a]), (vec![], false));
    }

    #[test]
    fn service_without_selector_exposes_no_pods() {
        let mut exposures = Exposures::default();
        assert_eq!(exposures.set_service(&ObjectName::new("shop", "web"), service(&[], true)), []);
        assert!(!exposures.reach("shop", &labels(WEB)) && !exposures.reach("shop", &labels(&[])));
    }

    #[test]
    fn selector_change_reclassifies_old_and_new_pods() {
        let name = ObjectName::new("shop", "web");
        let mut exposures = Exposures::default();
        exposures.set_service(&name, service(WEB, true));
        let both = [("shop".into(), labels(WEB)), ("shop".into(), labels(&[("app", "api")]))];
        assert_eq!(exposures.set_service(&name, service(&[("app", "api")], true)), both);
    }
}
