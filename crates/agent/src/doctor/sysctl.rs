//! Kernel settings, read from `/proc/sys`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

/// Values of settings. Below `net` they are those of the calling thread's network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sysctls {
    values: BTreeMap<String, i64>,
    /// Settings that cannot be read, and why; missing ones are not listed.
    pub(crate) unreadable: Vec<String>,
}

impl Sysctls {
    /// Reads settings with names like `net/ipv4/ip_forward`. `root` is `/` except in tests.
    pub(crate) fn read<'a>(root: &Path, names: impl IntoIterator<Item = &'a str>) -> Sysctls {
        let mut sysctls = Sysctls::default();
        for name in names {
            let path = root.join("proc/sys").join(name);
            match std::fs::read_to_string(&path) {
                Ok(text) => match text.trim().parse() {
                    Ok(value) => {
                        sysctls.values.insert(name.to_owned(), value);
                    }
                    Err(_) => {
                        sysctls.unreadable.push(format!("{}: expected a number, got {}", path.display(), text.trim()))
                    }
                },
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => sysctls.unreadable.push(format!("{}: {error}", path.display())),
            }
        }
        sysctls
    }

    /// `None` if this kernel does not have the setting.
    pub(crate) fn get(&self, name: &str) -> Option<i64> {
        self.values.get(name).copied()
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, i64); N]> for Sysctls {
    fn from(values: [(&str, i64); N]) -> Sysctls {
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Sysctls { values, unreadable: vec![] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_sysctl_is_absent_and_invalid_one_unreadable() {
        let root = std::env::temp_dir().join(format!("ringfence-sysctl-{}", std::process::id()));
        let folder = root.join("proc/sys/net");
        std::fs::create_dir_all(folder.join("directory")).unwrap();
        std::fs::write(folder.join("on"), "1\n").unwrap();
        std::fs::write(folder.join("strange"), "maybe\n").unwrap();
        let read = Sysctls::read(&root, ["net/on", "net/missing", "net/strange", "net/directory"]);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!((read.get("net/on"), read.get("net/missing"), read.get("net/strange")), (Some(1), None, None));
        assert_eq!(read.unreadable.len(), 2, "{:?}", read.unreadable);
    }
}
