//! Problems of objects that leave records incomplete.

use cluster::Problem;

use crate::labels::{self, LONGEST_KEY_BYTES, LONGEST_VALUE_BYTES, MOST_BYTES};
use crate::object::{IdentityPod, WatchedObject};

/// Labels of one pod that are listed in a problem.
const MOST_NAMED: usize = 10;

/// Problems found while lowering the object, and labels that are too long for a record.
pub(super) fn of(object: &WatchedObject) -> Vec<Problem> {
    let too_long: Vec<Problem> = match object {
        WatchedObject::Pod(pod) => {
            labels::too_long(&pod.base.labels).take(MOST_NAMED).map(|key| too_long(pod, key)).collect()
        }
        WatchedObject::Namespace(_)
        | WatchedObject::Policy(_)
        | WatchedObject::Node(_)
        | WatchedObject::ClusterPolicy(_)
        | WatchedObject::Service(_)
        | WatchedObject::EndpointSlice(_)
        | WatchedObject::Exposure(_) => vec![],
    };
    [object.problems(), &too_long].concat()
}

fn too_long(pod: &IdentityPod, key: &str) -> Problem {
    let start: String = key.chars().take(LONGEST_VALUE_BYTES).collect();
    Problem {
        origin: format!("Pod {} metadata.labels[{}]", pod.base.name, start.escape_debug()),
        message: format!(
            "the label is longer than {LONGEST_VALUE_BYTES} bytes, or its key than {LONGEST_KEY_BYTES}, or the labels \
             exceed {} KiB in total; it is part of the identity, but not of the record",
            MOST_BYTES >> 10
        ),
    }
}
