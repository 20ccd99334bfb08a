//! Runs work inside a pod's network namespace.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs `work` in the network namespace of that path, in a separate thread: the calling thread stays in its namespace.
///
/// # Errors
/// If the namespace cannot be entered, or if `work` fails.
pub(super) fn in_sandbox<T: Send>(path: &str, work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    let inside = || {
        let namespace = File::open(path).map_err(|error| format!("cannot open {path}: {error}"))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| format!("cannot enter {path}: {error}"))?;
        work()
    };
    let done = std::thread::scope(|scope| scope.spawn(inside).join());
    done.unwrap_or_else(|_| Err(format!("the thread in {path} panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_that_cannot_be_entered_is_an_error() {
        let folder = tempfile::TempDir::new().unwrap();
        let missing = folder.path().join("missing").display().to_string();
        let error = in_sandbox(&missing, || Ok(())).unwrap_err();
        assert!(error.starts_with(&format!("cannot open {missing}: ")), "{error}");
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = in_sandbox(&file.display().to_string(), || Ok(())).unwrap_err();
        assert!(error.starts_with("cannot enter "), "{error}");
    }
}
