//! The objects, their resource versions, and the log of their changes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

use super::Kind;
use super::selection::Selection;
use generator::cluster::Cluster;
use generator::cluster::events::Event;

type Key = (Kind, String, String);

/// Versions start here, so that none is mistaken for "any" (0).
const FIRST_VERSION: u64 = 100;

#[derive(Default)]
pub(crate) struct Store {
    version: u64,
    objects: BTreeMap<Key, Value>,
    /// Objects stored in compact form, from which their JSON is written.
    cluster: Option<Cluster>,
    log: VecDeque<LogEntry>,
    /// Entries removed from the front of the log.
    forgotten: usize,
    /// Changes up to this version are compacted.
    compacted: u64,
    /// Lists being paged through, by the version that they show.
    paged: BTreeMap<(Kind, Selection, u64), Listing>,
}

/// An entry of the watch log.
#[derive(Clone)]
pub(crate) struct LogEntry {
    pub(crate) version: u64,
    /// `None` for all kinds.
    kind: Option<Kind>,
    pub(crate) what: What,
    /// The object's previous labels, which decide the event of a watch with a selector.
    pub(crate) before: Value,
}

#[derive(Clone)]
pub(crate) enum What {
    /// A line for every watch from an earlier version.
    Change(Vec<u8>),
    /// A line that open watches get as garbage, and later watches get whole.
    Garbled(Vec<u8>),
    /// Only for watches that are open at that time.
    Bookmark,
    Raw(Vec<u8>),
}

/// A reader's position in the log.
pub(crate) struct Cursor {
    pub(crate) index: usize,
    /// Entries before this index are older than the reader, which gets only the changes among them.
    opened: usize,
    /// The reader already has changes up to this version.
    version: u64,
}

/// A page of a list, and the continue token for the next.
pub(crate) struct Page {
    pub(crate) version: u64,
    /// JSON, separated by commas.
    pub(crate) items: Vec<u8>,
    pub(crate) next: Option<String>,
}

/// A snapshot of the objects of a kind: those of the cluster, then those that were set.
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

    /// Appends an object in the form that list items have.
    fn write(&self, index: usize, out: &mut Vec<u8>) {
        match (&self.cluster, self.kind.generated()) {
            (Some(cluster), Some(kind)) if index < self.of_cluster() => cluster.write(kind, index, out),
            _ => {
                // API servers omit the type from list items.
                let mut object = self.objects[index - self.of_cluster()].clone();
                let fields = object.as_object_mut().expect("it has metadata");
                fields.retain(|field, _| field != "apiVersion" && field != "kind");
                out.extend(object.to_string().into_bytes());
            }
        }
    }

    /// Appends an object's line of a streaming list.
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

    /// Turns the last stored change into garbage for open watches.
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

    /// Removes the objects of a kind without events.
    pub(crate) fn drop_kind(&mut self, kind: Kind) {
        self.objects.retain(|(of, ..), _| *of != kind);
    }

    /// Behaves as if other clients had written since: advances to at least this version, and compacts everything
    /// before.
    pub(crate) fn skip_to(&mut self, version: u64) {
        self.version = self.version().max(version);
        self.compact();
    }

    pub(crate) fn compact(&mut self) {
        self.compacted = self.version();
        self.paged.clear();
    }

    pub(crate) fn bookmark(&mut self) {
        self.log.push_back(LogEntry { version: self.version(), kind: None, what: What::Bookmark, before: Value::Null });
    }

    pub(crate) fn raw(&mut self, kind: Kind, bytes: &[u8]) {
        self.log.push_back(LogEntry {
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

    /// Applies random events to the cluster, and appends them to the log. Entries that the readers at all these
    /// positions have read are removed: a million would not fit into memory.
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
            self.log.push_back(LogEntry {
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

    /// The position behind the last entry.
    pub(crate) fn end_of_log(&self) -> usize {
        self.forgotten + self.log.len()
    }

    /// A selection does not apply to the objects of a generated cluster.
    pub(crate) fn listing(&self, kind: Kind, selection: &Selection) -> Listing {
        let of_kind = self.objects.iter().filter(|(key, _)| key.0 == kind).map(|(_, object)| object);
        let objects = of_kind.filter(|object| selection.matches(object)).cloned().collect();
        Listing { kind, cluster: self.cluster.clone().filter(|_| selection.is_all()).map(Arc::new), objects }
    }

    /// A page of at most `limit` objects: the first page, or the one of a continue token.
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

    /// A reader of the changes after a version.
    pub(crate) fn cursor(&self, version: u64) -> Result<Cursor, Gone> {
        if version < self.compacted {
            return Err(Gone);
        }
        Ok(Cursor { index: self.forgotten, opened: self.end_of_log(), version })
    }

    /// A reader of future changes.
    pub(crate) fn end(&self) -> Cursor {
        Cursor { index: self.end_of_log(), opened: self.end_of_log(), version: self.version() }
    }

    /// The next entry for a reader of one kind.
    pub(crate) fn next(&self, kind: Kind, cursor: &mut Cursor) -> Option<LogEntry> {
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
                        LogEntry { what: What::Raw(b"\xff{\"type\":\n".to_vec()), ..entry.clone() }
                    }
                    What::Garbled(line) => LogEntry { what: What::Change(line.clone()), ..entry.clone() },
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
        self.log.push_back(LogEntry { version: self.version, kind: Some(kind), what, before });
    }
}

/// A watch event as a JSON line.
pub(crate) fn event(line: &str, object: &Value) -> Vec<u8> {
    let mut bytes = json!({"type": line, "object": object}).to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

/// The object with its type, which servers omit from list items.
pub(crate) fn with_type(kind: Kind, mut object: Value) -> Value {
    object["kind"] = kind.to_string().into();
    object["apiVersion"] = kind.api_version().into();
    object
}

fn key(kind: Kind, object: &Value) -> Key {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or("").to_owned();
    (kind, text("namespace"), text("name"))
}
