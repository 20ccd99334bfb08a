//! The kernel's version, for callers that lack the privilege to probe features.

use std::fs;
use std::io;

/// The kernel release, the same as `uname -r`.
const OSRELEASE: &str = "/proc/sys/kernel/osrelease";

/// The first version with tables that outlive their owner (`NFT_TABLE_F_PERSIST`) and can be claimed by another.
const PROTECTION_SINCE: (u32, u32) = (6, 9);

/// A kernel feature that rulesets of this crate require, and the first version of Linux that has it.
#[derive(Debug, PartialEq, Eq)]
pub struct KernelRequirement {
    /// The feature in words, with its name in the kernel or nft in parentheses.
    pub feature: &'static str,
    /// Major and minor number.
    pub since: (u32, u32),
}

/// Oldest first.
pub const REQUIREMENTS: [KernelRequirement; 3] = [
    KernelRequirement { feature: "the ruleset generation in transactions (NFNL_BATCH_GENID)", since: (4, 11) },
    KernelRequirement { feature: "addresses of connection tracking entries (ct original ip saddr)", since: (4, 17) },
    KernelRequirement { feature: "comments of tables, by which the agent recognises its own", since: (5, 10) },
];

/// A release such as `6.12.38+deb13-amd64`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRelease {
    /// The whole release, including the distribution's suffix.
    pub text: String,
    /// Major and minor number, if the release starts with them.
    pub version: Option<(u32, u32)>,
}

impl KernelRelease {
    /// The release of the running kernel.
    pub fn of_kernel() -> io::Result<KernelRelease> {
        Ok(KernelRelease::new(fs::read_to_string(OSRELEASE)?.trim_end()))
    }

    /// Parses the major and minor number at the start.
    pub fn new(text: &str) -> KernelRelease {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        let version = match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
            _ => None,
        };
        KernelRelease { text: text.to_owned(), version }
    }

    /// The requirements that kernels of this version lack; all of them if the version is invalid. Distributions
    /// backport features to older kernels, so probing is more accurate.
    pub fn lacks(&self) -> Vec<&'static KernelRequirement> {
        let has = |requirement: &&KernelRequirement| self.version.is_some_and(|version| version >= requirement.since);
        REQUIREMENTS.iter().filter(|requirement| !has(requirement)).collect()
    }

    /// Whether kernels of this version support protected tables. Backports to older kernels are not detected, and an
    /// invalid version counts as without support.
    pub fn has_protection(&self) -> bool {
        self.version.is_some_and(|version| version >= PROTECTION_SINCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(KernelRelease::new(text).lacks().len(), lacking, "{text}");
        }
    }

    #[test]
    fn protection_is_known_by_the_version() {
        for (text, version, has) in [
            ("6.12.38+deb13-amd64", Some((6, 12)), true),
            ("6.9.0-rc1", Some((6, 9)), true),
            ("6.8.0-45-generic", Some((6, 8)), false),
            ("5.14.0-570.el9.x86_64", Some((5, 14)), false),
            ("10.0", Some((10, 0)), true),
            ("7-next", None, false),
            ("", None, false),
        ] {
            let release = KernelRelease::new(text);
            assert_eq!((release.version, release.has_protection()), (version, has), "{text}");
        }
    }
}
