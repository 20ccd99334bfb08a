//! Checks that the kernel supports the rules.
//!
//! Features are probed in a scratch namespace, since distributions backport features to older kernels. Creating that
//! namespace needs CAP_SYS_ADMIN; without it the kernel's version decides.

use std::io;

use nfnetlink::{Feature, Features, KernelRelease, ProbeError};

/// A kernel feature that the rules require, and the first version of Linux that has it.
#[derive(Debug, PartialEq, Eq)]
struct KernelRequirement {
    /// The feature in words, with its name in the kernel or nft in parentheses.
    feature: &'static str,
    /// Major and minor number.
    since: (u32, u32),
}

/// Oldest first.
const REQUIREMENTS: [KernelRequirement; 3] = [
    KernelRequirement { feature: "the ruleset generation in transactions (NFNL_BATCH_GENID)", since: (4, 11) },
    KernelRequirement { feature: "addresses of connection tracking entries (ct original ip saddr)", since: (4, 17) },
    KernelRequirement { feature: "comments of tables, by which the agent recognises its own", since: (5, 10) },
];

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

/// The requirements that kernels of this version lack; all of them if the version is invalid. Distributions backport
/// features to older kernels, so probing is more accurate.
fn requirements_beyond(release: &KernelRelease) -> Vec<&'static KernelRequirement> {
    let has = |requirement: &&KernelRequirement| release.version.is_some_and(|version| version >= requirement.since);
    REQUIREMENTS.iter().filter(|requirement| !has(requirement)).collect()
}

/// Required features that kernels of this version lack; `None` if none is missing.
pub(crate) fn missing_by_version(release: &KernelRelease) -> Option<String> {
    let missing = requirements_beyond(release);
    let newest = missing.last()?;
    let names: Vec<&str> = missing.iter().map(|requirement| requirement.feature).collect();
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
    fn older_kernel_releases_lack_more_features() {
        for (text, lacking) in [
            ("6.18.0", 0),
            ("5.10.0-28-amd64", 0),
            ("5.9.16", 1),
            ("5.4.0-150-generic", 1),
            ("4.18.0-553.el8_10.x86_64", 1),
            ("4.15.0-213-generic", 2),
            ("3.10.0-1160.el7.x86_64", 3),
            ("unknown", 3),
        ] {
            assert_eq!(requirements_beyond(&KernelRelease::new(text)).len(), lacking, "{text}");
        }
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
