//! The wall clock of a process, set at run time by libfaketime without changing the machine's. The monotonic clock
//! continues, as after a change of a real clock.
//!
//! Timestamps of the kernel, such as those of conntrack entries, are the machine's.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// Debian's multiarch folders, one of which contains the library's folder.
const LIBRARIES: &str = "/usr/lib";
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// A clock that processes may share.
pub struct FakeClock {
    library: PathBuf,
    folder: TempDir,
}

impl FakeClock {
    /// A clock with the right time.
    ///
    /// # Panics
    /// If libfaketime is not installed (scripts/packages).
    pub fn new() -> FakeClock {
        let folders = std::fs::read_dir(LIBRARIES).expect("a folder of the system");
        let mut libraries = folders.filter_map(Result::ok).map(|folder| folder.path().join(LIBRARY));
        let library = libraries.find(|library| library.exists());
        let library = library.unwrap_or_else(|| panic!("{LIBRARY} is missing: run scripts/packages"));
        let clock = FakeClock { library, folder: TempDir::new().expect("a folder") };
        clock.set(0);
        clock
    }

    /// Makes the command use this clock.
    pub fn apply(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", self.file())
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }

    /// Sets the clock to this many seconds after the right time.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn set(&self, seconds: i64) {
        // The process may read the file at any time, so it is replaced atomically.
        let new = self.folder.path().join("new");
        let written = std::fs::write(&new, format!("{seconds:+}\n")).and_then(|()| std::fs::rename(&new, self.file()));
        written.expect("a folder of ours");
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }
}

impl Default for FakeClock {
    fn default() -> FakeClock {
        FakeClock::new()
    }
}
