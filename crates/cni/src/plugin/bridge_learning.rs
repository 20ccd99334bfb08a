//! Keeps a bridge from learning the senders of frames to reserved addresses (01:80:c2:00:00:00 to :0f), which it
//! processes before its hooks (`__br_handle_local_finish`): a pod could redirect the frames of another pod to itself.

use std::fs;
use std::io;
use std::path::Path;

/// Since Linux 5.0.
const SETTING: &str = "bridge/no_linklocal_learn";

/// # Errors
/// If the bridge may still learn from such frames.
pub(super) fn restrict(bridge: &str) -> io::Result<()> {
    restrict_in(Path::new("/sys/class/net"), bridge)
}

fn restrict_in(sysfs: &Path, bridge: &str) -> io::Result<()> {
    let path = sysfs.join(bridge).join(SETTING);
    // A write notifies all listeners of the link, so an unchanged value is not written.
    if fs::read_to_string(&path)?.trim() == "1" {
        return Ok(());
    }
    fs::write(&path, "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridge_is_restricted_once() {
        let sysfs = tempfile::TempDir::new().unwrap();
        assert!(restrict_in(sysfs.path(), "cni0").is_err());
        let path = sysfs.path().join("cni0").join(SETTING);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        for before in ["0\n", "1\n"] {
            fs::write(&path, before).unwrap();
            restrict_in(sysfs.path(), "cni0").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap().trim(), "1");
        }
    }
}
