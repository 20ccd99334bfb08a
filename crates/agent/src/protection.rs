//! Whether the kernel can keep other programs from changing our tables.

use nfnetlink::{Feature, Features, KernelRelease, ProbeError};

/// Whether tables can be protected, and how that was determined: by a probe in a scratch namespace, or without the
/// right to create one by the kernel's version. The node's own namespace is not probed: a refused commit there delays
/// all programs.
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
    match KernelRelease::of_kernel() {
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
