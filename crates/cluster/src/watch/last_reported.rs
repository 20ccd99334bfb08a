//! Cache of the last reported objects of a watch.
//!
//! A relist returns mostly unchanged objects. Each is replaced by the equal cached one, so that the whole cluster is
//! not in memory twice until the end of the list.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use policy::{ObjectName, SourceObject};

#[derive(Debug)]
pub(super) struct LastReported<O: SourceObject> {
    objects: HashSet<ByName<O>>,
}

/// An object that is compared and hashed by its name.
#[derive(Debug)]
struct ByName<O>(O);

impl<O: SourceObject> LastReported<O> {
    pub(super) fn new() -> LastReported<O> {
        LastReported { objects: HashSet::new() }
    }

    /// The cached object if it is equal, otherwise the object itself.
    pub(super) fn share(&self, object: O) -> O {
        match self.objects.get(object.name()) {
            Some(ByName(known)) if *known == object => known.clone(),
            Some(_) | None => object,
        }
    }

    /// As [`LastReported::share`], and caches the object.
    pub(super) fn report_change(&mut self, object: O) -> O {
        let object = self.share(object);
        self.objects.replace(ByName(object.clone()));
        object
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn remove(&mut self, name: &ObjectName) {
        self.objects.remove(name);
    }

    /// Replaces the whole cache.
    pub(super) fn replace(&mut self, objects: &[O]) {
        self.objects.clear();
        self.objects.shrink_to(objects.len());
        self.objects.extend(objects.iter().cloned().map(ByName));
    }
}

impl<O: SourceObject> Borrow<ObjectName> for ByName<O> {
    fn borrow(&self) -> &ObjectName {
        self.0.name()
    }
}

impl<O: SourceObject> Hash for ByName<O> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name().hash(state);
    }
}

impl<O: SourceObject> PartialEq for ByName<O> {
    fn eq(&self, other: &ByName<O>) -> bool {
        self.0.name() == other.0.name()
    }
}

impl<O: SourceObject> Eq for ByName<O> {}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use policy::{Kind, Object, lower};
    use serde_json::json;

    use super::*;

    fn pod(name: &str, app: &str) -> Object {
        lower(Kind::Pod, &json!({"metadata": {"name": name, "labels": {"app": app}}})).unwrap()
    }

    fn is_same(a: &Object, b: &Object) -> bool {
        let (Object::Pod(a), Object::Pod(b)) = (a, b) else { return false };
        Arc::ptr_eq(a, b)
    }

    #[test]
    fn equal_object_shares_its_last_allocation() {
        let mut reported = LastReported::new();
        let listed = [pod("a", "web"), pod("b", "web"), pod("c", "web")];
        reported.replace(&listed);
        assert!(is_same(&reported.share(pod("a", "web")), &listed[0]));
        let changed = reported.report_change(pod("a", "api"));
        assert_eq!(changed, pod("a", "api"));
        assert!(is_same(&reported.report_change(pod("a", "api")), &changed));
        assert!(is_same(&reported.share(pod("a", "api")), &changed));
        reported.remove(listed[1].name());
        assert!(!is_same(&reported.share(pod("b", "web")), &listed[1]));
        reported.replace(&listed[..1]);
        assert!(is_same(&reported.share(pod("a", "web")), &listed[0]));
        assert!(!is_same(&reported.share(pod("c", "web")), &listed[2]));
    }
}
