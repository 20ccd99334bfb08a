//! The kernel's version, for callers that lack the privilege to probe features.

use std::fs;
use std::io;

/// The kernel release, the same as `uname -r`.
const OSRELEASE: &str = "/proc/sys/kernel/osrelease";

/// The first version with tables that outlive their owner (`NFT_TABLE_F_PERSIST`) and can be claimed by another.
const PROTECTION_SINCE: (u32, u32) = (6, 9);

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
