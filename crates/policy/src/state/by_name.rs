//! Objects of one kind by namespace and name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::btree_packing::pack;
use crate::ObjectName;

/// Sorted by name. Lookups do not allocate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ByName<T> {
    /// Inner maps are never empty.
    namespaces: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Arc<T>>>,
    count: usize,
}

impl<T> ByName<T> {
    pub(crate) fn get(&self, name: &ObjectName) -> Option<&Arc<T>> {
        self.namespaces.get(&name.namespace)?.get(&name.name)
    }

    /// Returns the previous object.
    pub(crate) fn insert(&mut self, name: ObjectName, object: Arc<T>) -> Option<Arc<T>> {
        let before = self.namespaces.entry(name.namespace).or_default().insert(name.name, object);
        self.count += usize::from(before.is_none());
        before
    }

    pub(crate) fn remove(&mut self, name: &ObjectName) -> Option<Arc<T>> {
        let of_namespace = self.namespaces.get_mut(&name.namespace)?;
        let removed = of_namespace.remove(&name.name)?;
        if of_namespace.is_empty() {
            self.namespaces.remove(&name.namespace);
        }
        self.count -= 1;
        Some(removed)
    }

    /// Repacks the maps.
    pub(crate) fn pack(&mut self) {
        self.namespaces.values_mut().for_each(pack);
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Arc<T>> {
        self.namespaces.values().flat_map(BTreeMap::values)
    }

    pub(crate) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<T>> {
        self.namespaces.get(namespace).into_iter().flat_map(BTreeMap::values)
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

impl<T> Default for ByName<T> {
    fn default() -> ByName<T> {
        ByName { namespaces: BTreeMap::new(), count: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_name_behaves_like_sorted_map() {
        let names = ["b/x", "a/y", "a/x", "ab/x"].map(|name| name.parse::<ObjectName>().unwrap());
        let mut objects: ByName<String> = ByName::default();
        for name in names.iter().chain(&names[..1]) {
            objects.insert(name.clone(), Arc::new(name.to_string()));
        }
        let texts = |objects: &ByName<String>| objects.values().map(|o| o.to_string()).collect::<Vec<_>>();
        assert_eq!((texts(&objects), objects.len()), (["a/x", "a/y", "ab/x", "b/x"].map(String::from).to_vec(), 4));
        assert_eq!(objects.in_namespace("a").count(), 2);
        assert_eq!(objects.get(&names[0]).map(|o| &***o), Some("b/x"));
        assert!(objects.remove(&names[0]).is_some() && objects.remove(&names[0]).is_none());
        assert_eq!((objects.get(&names[0]), objects.in_namespace("b").count(), objects.len()), (None, 0, 3));
        for name in &names[1..] {
            objects.remove(name);
        }
        assert_eq!(objects, ByName::default());
    }
}
