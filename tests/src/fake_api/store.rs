//! The objects, their versions, and the log of their changes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

use super::Kind;
use super::selection::Selection;
use crate::scale::Cluster;
use crate::scale::events::Event;

type Key = (Kind, String, String);

/// Versions begin here, so that none is mistaken for "any" (0).
const FIRST_VERSION: u64 = 100;

#[derive(Default)]
pub(crate) struct Store {
    version: u64,
    objects: BTreeMap<Key, Value>,
    /// Objects that are kept as what their JSON is made of.
    cluster: Option<Cluster>,
    log: VecDeque<Entry>,
    /// How many entries the log had before its first one.
    forgotten: usize,
    /// Changes up to this version are forgotten.
    compacted: u64,
    /// Lists whose first pages were handed out, by the version they show.
    paged: BTreeMap<(Kind, Selection, u64), Listing>,
}

/// What goes out on watches.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) version: u64,
    /// None for all kinds.
    kind: Option<Kind>,
    pub(crate) what: What,
    /// The labels that the object had before, which decide what a watch with a selector is told.
    pub(crate) before: Value,
}

#[derive(Clone)]
pub(crate) enum What {
    /// A line, for everyone who watches from a version before.
    Change(Vec<u8>),
    /// A line that arrives as garbage on watches that are open when it happens, and whole on later ones.
    Garbled(Vec<u8>),
    /// Only for watches that are open when it happens.
    Bookmark,
    Raw(Vec<u8>),
}

/// Where a reader of the log stands.
pub(crate) struct Cursor {
    pub(crate) index: usize,
    /// Entries before were there when the reader came; of these it gets the changes only.
    opened: usize,
    /// Changes up to this version are known to the reader.
    version: u64,
}

/// A page of a list, and the token for the next.
pub(crate) struct Page {
    pub(crate) version: u64,
    /// JSON, with commas between.
    pub(crate) items: Vec<u8>,
    pub(crate) next: Option<String>,
}

/// The objects of a kind at one moment: those of the cluster, then those that were set.
pub(crate) struct Listing {
    kind: Kind,
    cluster: Option<Arc<Cluster>>,
    objects: Vec<Value>,
}

impl Listing {
    pub(crate) fn count(&self) -> usize {
        self.of_cluster() + self.objects.len()
    }

    fn of_cluster(&self) -> usize {
        match (&self.cluster, self.kind.generated()) {
            (Some(cluster), Some(kind)) => cluster.count(kind),
            (None, _) | (_, None) => 0,
        }
    }

    /// Appends an object as it stands in a list.
    fn write(&self, index: usize, out: &mut Vec<u8>) {
        match (&self.cluster, self.kind.generated()) {
            (Some(cluster), Some(kind)) if index < self.of_cluster() => cluster.write(kind, index, out),
            _ => {
                // A server leaves the type of what it lists to the list.
                let mut object = self.objects[index - self.of_cluster()].clone();
                let fields = object.as_object_mut().expect("it has metadata");
                fields.retain(|field, _| field != "apiVersion" && field != "kind");
                out.extend(object.to_string().into_bytes());
            }
        }
    }

    /// Appends the line of a streaming list that tells of an object.
    pub(crate) fn write_line(&self, index: usize, out: &mut Vec<u8>) {
        match (&self.cluster, self.kind.generated()) {
            (Some(cluster), Some(kind)) if index < self.of_cluster() => cluster.write_added(kind, index, out),
            _ => {
                let object = self.objects[index - self.of_cluster()].clone();
                out.extend(event("ADDED", &with_type(self.kind, object)));
            }
        }
    }
}

/// The version or the list is compacted.
#[derive(Debug)]
pub(crate) struct Gone;

impl Store {
    pub(crate) fn version(&self) -> u64 {
        self.version.max(FIRST_VERSION)
    }

    pub(crate) fn set(&mut self, kind: Kind, mut object: Value) {
        let version = self.next_version();
        let metadata = object["metadata"].as_object_mut().expect("an object to store has metadata");
        metadata.insert("resourceVersion".into(), version.to_string().into());
        let key = key(kind, &object);
        let before = self.objects.insert(key, object.clone());
        let line = if before.is_some() { "MODIFIED" } else { "ADDED" };
        self.log(kind, line, object, before.map_or(Value::Null, |before| before["metadata"]["labels"].clone()));
    }

    pub(crate) fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, namespace.into(), name.into()))
    }

    /// Makes garbage of the change that was stored last, for whoever is watching.
    pub(crate) fn garble_last(&mut self) {
        let last = self.log.back_mut().expect("something was stored");
        if let What::Change(line) = &last.what {
            last.what = What::Garbled(line.clone());
        }
    }

    pub(crate) fn remove(&mut self, kind: Kind, namespace: &str, name: &str) {
        let version = self.next_version();
        let mut object =
            self.objects.remove(&(kind, namespace.into(), name.into())).expect("it is there to be removed");
        object["metadata"]["resourceVersion"] = version.to_string().into();
        let labels = object["metadata"]["labels"].clone();
        self.log(kind, "DELETED", object, labels);
    }

    /// Forgets the objects of a kind, and tells nobody.
    pub(crate) fn drop_kind(&mut self, kind: Kind) {
        self.objects.retain(|(of, ..), _| *of != kind);
    }

    /// As a server that others have written to since: it is at this version at least, and has forgotten what led there.
    pub(crate) fn skip_to(&mut self, version: u64) {
        self.version = self.version().max(version);
        self.compact();
    }

    pub(crate) fn compact(&mut self) {
        self.compacted = self.version();
        self.paged.clear();
    }

    pub(crate) fn bookmark(&mut self) {
        self.log.push_back(Entry { version: self.version(), kind: None, what: What::Bookmark, before: Value::Null });
    }

    pub(crate) fn raw(&mut self, kind: Kind, bytes: &[u8]) {
        self.log.push_back(Entry {
            version: self.version(),
            kind: Some(kind),
            what: What::Raw(bytes.to_vec()),
            before: Value::Null,
        });
    }

    pub(crate) fn set_cluster(&mut self, cluster: Cluster) {
        self.version = self.version().max(cluster.version());
        self.cluster = Some(cluster);
    }

    /// Lets things happen in the cluster, which become entries of the log. Those that everybody has read who stands at
    /// one of these places are forgotten: a million would not fit.
    pub(crate) fn happen<T>(
        &mut self,
        read: impl Iterator<Item = usize>,
        act: impl FnOnce(&mut Cluster) -> (Vec<Event>, T),
    ) -> T {
        let cluster = self.cluster.as_mut().expect("a cluster was set");
        let (events, result) = act(cluster);
        self.version = cluster.version();
        for event in events {
            let what = What::Change(event.line());
            self.log.push_back(Entry {
                version: event.version,
                kind: Some(event.kind.into()),
                what,
                before: Value::Null,
            });
        }
        let read = read.min().unwrap_or(self.forgotten);
        while self.forgotten < read {
            self.compacted = self.log.pop_front().expect("it was read").version;
            self.forgotten += 1;
        }
        result
    }

    /// The place behind the last entry.
    pub(crate) fn end_of_log(&self) -> usize {
        self.forgotten + self.log.len()
    }

    /// A generated cluster's objects are not selected among.
    pub(crate) fn listing(&self, kind: Kind, selection: &Selection) -> Listing {
        let of_kind = self.objects.iter().filter(|(key, _)| key.0 == kind).map(|(_, object)| object);
        let objects = of_kind.filter(|object| selection.matches(object)).cloned().collect();
        Listing { kind, cluster: self.cluster.clone().filter(|_| selection.is_all()).map(Arc::new), objects }
    }

    /// A page of at most `limit` objects: the first, or the one that a token of the page before leads to.
    pub(crate) fn page(
        &mut self,
        kind: Kind,
        selection: &Selection,
        limit: usize,
        token: Option<&str>,
    ) -> Result<Page, Gone> {
        let (version, from): (u64, usize) = match token {
            None => (self.version(), 0),
            Some(token) => {
                let (version, from) = token.split_once('.').ok_or(Gone)?;
                (version.parse().map_err(|_| Gone)?, from.parse().map_err(|_| Gone)?)
            }
        };
        if token.is_none() {
            self.paged.insert((kind, selection.clone(), version), self.listing(kind, selection));
        }
        let all = self.paged.get(&(kind, selection.clone(), version)).ok_or(Gone)?;
        let to = from.saturating_add(limit).min(all.count());
        let next = (to < all.count()).then(|| format!("{version}.{to}"));
        let mut items = Vec::new();
        for index in from..to {
            if index > from {
                items.push(b',');
            }
            all.write(index, &mut items);
        }
        Ok(Page { version, items, next })
    }

    /// A reader of what changed after a version.
    pub(crate) fn cursor(&self, version: u64) -> Result<Cursor, Gone> {
        if version < self.compacted {
            return Err(Gone);
        }
        Ok(Cursor { index: self.forgotten, opened: self.end_of_log(), version })
    }

    /// A reader of what changes from now on.
    pub(crate) fn end(&self) -> Cursor {
        Cursor { index: self.end_of_log(), opened: self.end_of_log(), version: self.version() }
    }

    /// The next entry for a reader of one kind.
    pub(crate) fn next(&self, kind: Kind, cursor: &mut Cursor) -> Option<Entry> {
        while let Some(entry) = cursor.index.checked_sub(self.forgotten).and_then(|place| self.log.get(place)) {
            let index = cursor.index;
            cursor.index += 1;
            let concerns = entry.kind.is_none_or(|k| k == kind);
            let live = index >= cursor.opened;
            let wanted = match entry.what {
                What::Change(_) | What::Garbled(_) => entry.version > cursor.version,
                What::Bookmark | What::Raw(_) => live,
            };
            if concerns && wanted {
                return Some(match &entry.what {
                    What::Garbled(_) if live => {
                        Entry { what: What::Raw(b"\xff{\"type\":\n".to_vec()), ..entry.clone() }
                    }
                    What::Garbled(line) => Entry { what: What::Change(line.clone()), ..entry.clone() },
                    What::Change(_) | What::Bookmark | What::Raw(_) => entry.clone(),
                });
            }
        }
        None
    }

    fn next_version(&mut self) -> u64 {
        self.version = self.version() + 1;
        self.version
    }

    fn log(&mut self, kind: Kind, line: &str, object: Value, before: Value) {
        let what = What::Change(event(line, &with_type(kind, object)));
        self.log.push_back(Entry { version: self.version, kind: Some(kind), what, before });
    }
}

/// A line of a watch.
pub(crate) fn event(line: &str, object: &Value) -> Vec<u8> {
    let mut bytes = json!({"type": line, "object": object}).to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

/// The object as it stands alone; in a list the server leaves its type out.
pub(crate) fn with_type(kind: Kind, mut object: Value) -> Value {
    object["kind"] = kind.to_string().into();
    object["apiVersion"] = kind.api_version().into();
    object
}

fn key(kind: Kind, object: &Value) -> Key {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or("").to_owned();
    (kind, text("namespace"), text("name"))
}
