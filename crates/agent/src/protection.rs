//! Whether the kernel keeps other programs from changing our tables.

use nfnetlink::{Feature, Features, ProbeError, Release};

/// Whether tables can be protected, and how that is known. It is tried out in a scratch namespace; who may not make one
/// goes by the kernel's version. Nothing is tried in the node's own namespace: a refused commit there costs everybody.
pub(crate) fn protection(probed: &Result<Features, ProbeError>) -> (bool, String) {
    match probed {
        Ok(features) => match features.why_not(Feature::Protection) {
            None => (true, "on: only the agent can change its tables".into()),
            Some(reason) => (
                false,
                format!(
                    "off: the kernel does not support table owners ({reason}); changes by other programs are repaired"
                ),
            ),
        },
        Err(ProbeError::NotPermitted) => by_version(),
        Err(error) => (
            false,
            format!("off: cannot probe the kernel for table owners ({error}); changes by other programs are repaired"),
        ),
    }
}

fn by_version() -> (bool, String) {
    match Release::of_kernel() {
        Ok(release) if release.has_protection() => (
            true,
            format!("on: only the agent can change its tables (assumed from the kernel's version {})", release.text),
        ),
        Ok(release) => (
            false,
            format!(
                "off: Linux {} does not support table owners; changes by other programs are repaired",
                release.text
            ),
        ),
        Err(error) => {
            (false, format!("off: cannot read the kernel's version ({error}); changes by other programs are repaired"))
        }
    }
}
