//! Whether the kernel keeps other programs from changing our tables.

use nfnetlink::{Feature, Features, ProbeError, Release};

/// Whether tables can be protected, and how that is known. It is tried out in a scratch namespace; who may not make one
/// goes by the kernel's version. Nothing is tried in the node's own namespace: a refused commit there costs everybody.
pub(crate) fn protection(probed: &Result<Features, ProbeError>) -> (bool, String) {
    match probed {
        Ok(features) => match features.why_not(Feature::Protection) {
            None => (true, "on: only the agent can change its tables".into()),
            Some(reason) => (false, format!("off: the kernel lacks it ({reason}); what others change is repaired")),
        },
        Err(ProbeError::NotPermitted) => by_version(),
        Err(error) => (false, format!("off: it could not be tried ({error}); what others change is repaired")),
    }
}

fn by_version() -> (bool, String) {
    match Release::of_kernel() {
        Ok(release) if release.has_protection() => {
            (true, format!("on: only the agent can change its tables (known by the kernel's version {})", release.text))
        }
        Ok(release) => (false, format!("off: Linux {} does not have it; what others change is repaired", release.text)),
        Err(error) => {
            (false, format!("off: the kernel's version cannot be read ({error}); what others change is repaired"))
        }
    }
}
