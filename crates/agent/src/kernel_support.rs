//! Checks that the kernel supports the rules.
//!
//! Features are probed in a scratch namespace, since distributions backport features to older kernels. Creating that
//! namespace needs CAP_SYS_ADMIN; without it the kernel's version decides.

use std::io;

use nfnetlink::{Feature, Features, KernelRelease, ProbeError};

/// Missing kernel features, with advice.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}; use a newer kernel, or start with --kernel-check off if the distribution has added the feature to this one \
     (docs/install.md lists what needs which version)"
)]
pub(crate) struct UnsupportedKernel(String);

/// # Errors
/// If a required feature is missing, or if neither the probe nor the version is available.
pub(crate) fn check(
    probed: &Result<Features, ProbeError>,
    release: io::Result<KernelRelease>,
) -> Result<(), UnsupportedKernel> {
    let missing = match (probed, release) {
        (Ok(features), _) => missing_by_probe(features),
        (Err(_), Ok(release)) => missing_by_version(&release),
        (Err(error), Err(unreadable)) => {
            Some(format!("cannot determine the kernel's features ({error}) nor its version ({unreadable})"))
        }
    };
    missing.map_or(Ok(()), |missing| Err(UnsupportedKernel(missing)))
}

fn missing_by_probe(features: &Features) -> Option<String> {
    let (feature, reason) = features.missing.iter().find(|(feature, _)| match feature {
        Feature::TableComments | Feature::RoutedPackets | Feature::Flows | Feature::Sets => true,
        Feature::BridgedFrames | Feature::InterfaceIngress | Feature::Reports | Feature::Protection => false,
    })?;
    Some(format!("the kernel does not support {feature} ({reason}), which need {}", feature.needs()))
}

/// Required features that kernels of this version lack; `None` if none is missing.
pub(crate) fn missing_by_version(release: &KernelRelease) -> Option<String> {
    let lacks = release.lacks();
    let newest = lacks.last()?;
    let names: Vec<&str> = lacks.iter().map(|requirement| requirement.feature).collect();
    let (major, minor) = newest.since;
    Some(format!("Linux {} is too old: Linux {major}.{minor} is needed for {}", release.text, names.join(", and for ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_version(release: &str) -> Result<(), UnsupportedKernel> {
        check(&Err(ProbeError::NotPermitted), Ok(KernelRelease::new(release)))
    }

    #[test]
    fn version_decides_where_nothing_can_be_tried() {
        for release in ["6.18.0", "5.10.0", "5.15.0-100-generic"] {
            assert_eq!(by_version(release), Ok(()), "{release}");
        }
        for release in ["5.4.0-150-generic", "4.18.0-553.el8_10.x86_64", "unknown"] {
            let text = by_version(release).unwrap_err().to_string();
            assert!(text.starts_with(&format!("Linux {release} is too old: Linux 5.10 is needed for ")), "{text}");
            assert!(text.contains("comments of tables") && text.contains("--kernel-check off"), "{text}");
        }
        let unreadable = check(&Err(ProbeError::NotPermitted), Err(io::Error::other("no")));
        assert!(unreadable.is_err());
    }

    #[test]
    fn probe_outranks_the_version() {
        let old = || Ok(KernelRelease::new("4.18.0-553.el8_10.x86_64"));
        assert_eq!(check(&Ok(Features { missing: vec![] }), old()), Ok(()));
        for feature in Feature::ALL {
            let is_needed = !matches!(
                feature,
                Feature::BridgedFrames | Feature::InterfaceIngress | Feature::Reports | Feature::Protection
            );
            let probed = Ok(Features { missing: vec![(feature, "no".into())] });
            assert_eq!(check(&probed, Ok(KernelRelease::new("6.18.0"))).is_err(), is_needed, "{feature}");
        }
    }
}
