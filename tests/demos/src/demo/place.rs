//! The folder, the namespace prefix and the processes of a demo. Only one demo can run; the next one removes the
//! leftovers of the last, however that ended.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use kit::lab;

/// Prefix of the namespaces.
pub(super) const PREFIX: &str = "ringfence-demo-";

/// The folder. Only root can write there, unlike in /tmp, and it does not survive a reboot.
const FOLDER: &str = "/run/ringfence-demo";

/// Marker file in the folder of a lab kept on purpose.
const KEPT: &str = "kept";

/// How long a process may take to end after SIGTERM, and again after SIGKILL.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// The claimed place. Everything in it is removed on drop.
pub(super) struct Place {
    _lock: File,
    stays: bool,
}

impl Place {
    pub(super) fn claim() -> anyhow::Result<Place> {
        let fresh = create()?;
        let lock = lock()?;
        if fresh {
            return Ok(Place { _lock: lock, stays: false });
        }
        if Path::new(FOLDER).join(KEPT).exists() {
            bail!("the lab of an earlier --keep is still up; remove it with `make demo ARGS=--remove`");
        }
        clear()?;
        drop(lock);
        create()?;
        Ok(Place { _lock: self::lock()?, stays: false })
    }

    /// Removes an earlier demo's kept lab or leftovers; false if there are none.
    pub(super) fn remove_kept() -> anyhow::Result<bool> {
        if !Path::new(FOLDER).exists() {
            return Ok(false);
        }
        let _lock = lock()?;
        clear()?;
        Ok(true)
    }

    pub(super) fn manifests(&self) -> PathBuf {
        Path::new(FOLDER).join("manifests")
    }

    pub(super) fn run_dir(&self, node: &str) -> PathBuf {
        Path::new(FOLDER).join(node)
    }

    pub(super) fn log(&self, of: &str) -> PathBuf {
        Path::new(FOLDER).join(format!("{of}.log"))
    }

    pub(super) fn copy_manifests(&self, example: &Path) -> anyhow::Result<()> {
        let target = self.manifests();
        fs::create_dir(&target).with_context(|| format!("cannot make {}", target.display()))?;
        for entry in fs::read_dir(example).with_context(|| format!("cannot read {}", example.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "yaml" || extension == "json") {
                let name = path.file_name().unwrap_or_default();
                fs::copy(&path, target.join(name)).with_context(|| format!("cannot copy {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Lets everything outlive this process.
    pub(super) fn keep(mut self) -> anyhow::Result<()> {
        fs::write(Path::new(FOLDER).join(KEPT), "").context("cannot mark the lab as kept")?;
        self.stays = true;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        if let Err(error) = clear() {
            eprintln!("not everything could be removed: {error:#}");
        }
    }
}

/// Creates the folder; false if it exists.
fn create() -> anyhow::Result<bool> {
    match fs::create_dir(FOLDER) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot make {FOLDER}")),
    }
}

/// Locks the folder, so that only one demo runs.
fn lock() -> anyhow::Result<File> {
    let folder = File::open(FOLDER).with_context(|| format!("cannot open {FOLDER}"))?;
    match folder.try_lock() {
        Ok(()) => Ok(folder),
        Err(TryLockError::WouldBlock) => bail!("another demo is running on this machine; try again when it has ended"),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {FOLDER}")),
    }
}

fn clear() -> anyhow::Result<()> {
    end_all(Signal::SIGTERM)?;
    end_all(Signal::SIGKILL)?;
    lab::remove_named(PREFIX);
    match fs::remove_dir_all(FOLDER) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {FOLDER}"))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Sends the signal to the processes of the place, and waits until they have ended or the deadline has passed.
fn end_all(signal: Signal) -> anyhow::Result<()> {
    const BETWEEN: Duration = Duration::from_millis(5);
    for process in processes()? {
        match kill(process, signal) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => bail!("cannot end process {process}: {error}"),
        }
    }
    let deadline = Instant::now() + ENDS_WITHIN;
    while !processes()?.is_empty() && Instant::now() < deadline {
        std::thread::sleep(BETWEEN);
    }
    Ok(())
}

/// The agents and the servers of the place, recognised by the folder in their command lines.
fn processes() -> anyhow::Result<Vec<Pid>> {
    let own = Pid::this();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot read /proc")? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let Some(pid) = number.map(Pid::from_raw).filter(|pid| *pid != own) else { continue };
        // A process may end in the meantime.
        let Ok(line) = fs::read(path.join("cmdline")) else { continue };
        if is_of_the_place(&line) {
            found.push(pid);
        }
    }
    Ok(found)
}

fn is_of_the_place(command_line: &[u8]) -> bool {
    let words: Vec<&[u8]> = command_line.split(|byte| *byte == 0).collect();
    let in_folder = |word: &[u8]| Path::new(&*String::from_utf8_lossy(word)).starts_with(FOLDER);
    let run_dir = |pair: &[&[u8]]| pair[0] == b"--run-dir" && in_folder(pair[1]);
    match words.get(1) {
        Some(verb) if *verb == b"agent" => words.windows(2).any(run_dir),
        Some(verb) if *verb == b"--serve" => words.get(2).is_some_and(|word| in_folder(word)),
        Some(_) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_of_own_demo_are_ended() {
        for (line, ends) in [
            ("ringfence\0agent\0--node-name\0node-a\0--run-dir\0/run/ringfence-demo/node-a\0", true),
            ("demo\0--serve\0/run/ringfence-demo/manifests\0", true),
            ("ringfence\0agent\0--run-dir\0/run/ringfence\0", false),
            ("ringfence\0agent\0--run-dir\0/run/ringfence-demo-of-mine/node-a\0", false),
            ("ringfence\0explain\0--run-dir\0/run/ringfence-demo/node-a\0", false),
            ("tail\0/run/ringfence-demo/node-a.log\0", false),
            ("", false),
        ] {
            assert_eq!(is_of_the_place(line.as_bytes()), ends, "{line:?}");
        }
    }
}
