//! Equal records are one: pods of several templates (two revisions of a Deployment, the runs of a CronJob) may have the
//! same.

use std::collections::HashMap;
use std::sync::Arc;

use crate::record::{Facts, Record};

/// The records in use, by digest. Whenever it holds a quarter more than were in use when it last looked, it forgets what
/// nobody else holds.
#[derive(Debug, Default)]
pub(super) struct Shared {
    held: HashMap<u128, Arc<Record>>,
    in_use: usize,
}

/// New records that are not worth a look.
const LEAST_LOOKED_AT: usize = 256;

impl Shared {
    pub(super) fn record(&mut self, facts: Facts) -> Arc<Record> {
        let record = Record::new(facts);
        if let Some(held) = self.held.get(&record.digest()) {
            return held.clone();
        }
        if self.held.len() >= self.in_use + (self.in_use / 4).max(LEAST_LOOKED_AT) {
            self.held.retain(|_, held| Arc::strong_count(held) > 1);
            self.in_use = self.held.len();
        }
        let record = Arc::new(record);
        self.held.insert(record.digest(), record.clone());
        record
    }
}
