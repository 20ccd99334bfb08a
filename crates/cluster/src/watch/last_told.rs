//! Cache of the last reported objects of a watch.
//!
//! A relist returns mostly unchanged objects. Each is replaced by the equal cached one, so that the whole cluster is
//! not in memory twice until the end of the list.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use policy::{ObjectName, Tracked};

#[derive(Debug)]
pub(super) struct LastTold<O: Tracked> {
    objects: HashSet<Named<O>>,
}

/// An object that is compared and hashed by its name.
#[derive(Debug)]
struct Named<O>(O);

impl<O: Tracked> LastTold<O> {
    pub(super) fn new() -> LastTold<O> {
        LastTold { objects: HashSet::new() }
    }

    /// The cached object if it is equal, otherwise the object itself.
    pub(super) fn share(&self, object: O) -> O {
        match self.objects.get(object.name()) {
            Some(Named(known)) if *known == object => known.clone(),
            Some(_) | None => object,
        }
    }

    /// As [`LastTold::share`], and caches the object.
    pub(super) fn tell(&mut self, object: O) -> O {
        let object = self.share(object);
        self.objects.replace(Named(object.clone()));
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
        self.objects.extend(objects.iter().cloned().map(Named));
    }
}

impl<O: Tracked> Borrow<ObjectName> for Named<O> {
    fn borrow(&self) -> &ObjectName {
        self.0.name()
    }
}

impl<O: Tracked> Hash for Named<O> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name().hash(state);
    }
}

impl<O: Tracked> PartialEq for Named<O> {
    fn eq(&self, other: &Named<O>) -> bool {
        self.0.name() == other.0.name()
    }
}

impl<O: Tracked> Eq for Named<O> {}

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
        let mut told = LastTold::new();
        let listed = [pod("a", "web"), pod("b", "web"), pod("c", "web")];
        told.replace(&listed);
        assert!(is_same(&told.share(pod("a", "web")), &listed[0]));
        let changed = told.tell(pod("a", "api"));
        assert_eq!(changed, pod("a", "api"));
        assert!(is_same(&told.tell(pod("a", "api")), &changed));
        assert!(is_same(&told.share(pod("a", "api")), &changed));
        told.remove(listed[1].name());
        assert!(!is_same(&told.share(pod("b", "web")), &listed[1]));
        told.replace(&listed[..1]);
        assert!(is_same(&told.share(pod("a", "web")), &listed[0]));
        assert!(!is_same(&told.share(pod("c", "web")), &listed[2]));
    }
}
