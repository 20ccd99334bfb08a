//! Equal records are one: pods of several templates (two revisions of a Deployment, the runs of a CronJob) may have the
//! same.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::record::{Facts, Record};

/// The records in use. Whenever it holds a quarter more than were in use when it last looked, it forgets what nobody
/// else holds.
#[derive(Debug, Default)]
pub(super) struct Shared {
    held: HashSet<Held>,
    in_use: usize,
}

/// A record that counts as its digest.
#[derive(Debug)]
struct Held(Arc<Record>);

/// New records that are not worth a look.
const LEAST_LOOKED_AT: usize = 256;

impl Shared {
    pub(super) fn record(&mut self, facts: Facts) -> Arc<Record> {
        let record = Record::new(facts);
        if let Some(Held(held)) = self.held.get(record.digest()) {
            return held.clone();
        }
        if self.held.len() >= self.in_use + (self.in_use / 4).max(LEAST_LOOKED_AT) {
            self.held.retain(|Held(held)| Arc::strong_count(held) > 1);
            self.in_use = self.held.len();
        }
        let record = Arc::new(record);
        self.held.insert(Held(record.clone()));
        record
    }
}

impl Borrow<[u8; 16]> for Held {
    fn borrow(&self) -> &[u8; 16] {
        self.0.digest()
    }
}

impl Hash for Held {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.digest().hash(state);
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.0.digest() == other.0.digest()
    }
}

impl Eq for Held {}
