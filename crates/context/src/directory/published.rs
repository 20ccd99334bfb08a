//! The published snapshot of the table, and the delta from it to the current table.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ::identity::Sid;
use imbl::OrdMap;
use policy::{Labels, pack_shared};

use super::{Directory, IdentityTable, UnpublishedChanges};
use crate::record::Record;
use crate::version::Sum;

/// An immutable snapshot of the table. Cheap to clone; shares unchanged parts with later ones.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub table: IdentityTable,
    pub ids: OrdMap<Sid, Identity>,
    /// Sum of the entries of `table`. It does not cover `ids`, which follow from the table except for resting numbers.
    pub sum: Sum,
}

/// A security identity that at least one address has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub num: u32,
    pub namespace: Arc<str>,
    /// The identity-relevant labels of the pods. The identity is derived from these and from `namespace_labels`.
    pub labels: Labels,
    pub namespace_labels: Labels,
    /// Number of addresses with this identity.
    pub references: u32,
}

/// Delta between two snapshots, sorted by address and identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    pub upserts: Vec<(IpAddr, Arc<Record>)>,
    pub removes: Vec<IpAddr>,
    pub id_upserts: Vec<(Sid, Identity)>,
    pub id_removes: Vec<Sid>,
    pub replaced: ReplacedEntries,
}

/// The entries of the older snapshot that upserts and removes replace. New addresses and identities are not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplacedEntries {
    pub records: BTreeMap<IpAddr, Arc<Record>>,
    pub ids: BTreeMap<Sid, Identity>,
}

impl Changes {
    /// The addresses whose records differ, each with its record in the older snapshot.
    pub fn past(&self) -> Vec<(IpAddr, Option<Arc<Record>>)> {
        let upserted = self.upserts.iter().map(|(address, _)| address);
        let addresses = upserted.chain(&self.removes);
        addresses.map(|address| (*address, self.replaced.records.get(address).cloned())).collect()
    }

    pub fn is_empty(&self) -> bool {
        let Changes { upserts, removes, id_upserts, id_removes, replaced: _ } = self;
        upserts.is_empty() && removes.is_empty() && id_upserts.is_empty() && id_removes.is_empty()
    }
}

impl Directory {
    /// True if the table may differ from the published snapshot. Events that change no record do not count.
    pub fn has_unpublished(&self) -> bool {
        let UnpublishedChanges { addresses, ids } = &self.unpublished;
        !addresses.is_empty() || !ids.is_empty()
    }

    /// Publishes the current table and returns the delta since the last publication. Applying all deltas in order
    /// yields the table of [`Directory::published`].
    pub fn take_changes(&mut self) -> Changes {
        let mut changes = Changes::default();
        let unpublished = std::mem::take(&mut self.unpublished);
        for address in unpublished.addresses {
            let (old, new) = (self.published.table.get(address), self.table.get(address));
            match (old, new) {
                (old, Some(new)) if old != Some(new) => changes.upserts.push((address, new.clone())),
                (Some(_), None) => changes.removes.push(address),
                (_, Some(_)) | (None, None) => continue,
            }
            changes.replaced.records.extend(old.map(|old| (address, old.clone())));
        }
        for sid in unpublished.ids {
            let (old, new) = (self.published.ids.get(&sid), self.ids.get(&sid));
            match (old, new) {
                (old, Some(new)) if old != Some(new) => changes.id_upserts.push((sid, new.clone())),
                (Some(_), None) => changes.id_removes.push(sid),
                (_, Some(_)) | (None, None) => continue,
            }
            changes.replaced.ids.extend(old.map(|old| (sid, old.clone())));
        }
        self.published = self.current();
        changes
    }

    /// Publishes the current table as a whole, without a delta. Repacks the B-trees: most entries were inserted in
    /// order before the first call, which leaves nodes half full.
    pub fn publish(&mut self) {
        self.table.pack();
        pack_shared(&mut self.ids);
        self.unpublished = UnpublishedChanges::default();
        self.published = self.current();
    }

    /// The snapshot as of the last [`Directory::take_changes`] or `publish`.
    pub fn published(&self) -> &Snapshot {
        &self.published
    }

    /// The current snapshot.
    pub fn current(&self) -> Snapshot {
        Snapshot { table: self.table.clone(), ids: self.ids.clone(), sum: self.sum }
    }
}
