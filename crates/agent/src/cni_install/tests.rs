use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;

const PTP: &str = r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"ptp"}]}"#;
const CONF: &str = r#"{"cniVersion":"1.0.0","name":"a","type":"bridge"}"#;

struct Folder(TempDir);

impl Folder {
    fn with(files: &[(&str, &str)]) -> Folder {
        let folder = Folder(TempDir::new().unwrap());
        for (name, text) in files {
            folder.write(name, text);
        }
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn install(&self) -> Attempt {
        let entry = ConflistEntry {
            agent_socket: "/run/ringfence/cni.sock".into(),
            state_dir: "/run/ringfence/cni".into(),
            timeout_seconds: 10,
            on_timeout: "fail",
            checksum_offload: None,
        };
        install_entry(self.0.path(), &entry, &["1.0.0".to_owned()]).unwrap()
    }

    fn remove_all(&self) {
        for trace in traces(self.0.path()).unwrap() {
            remove(&trace).unwrap();
        }
    }
}

#[test]
fn install_changes_only_first_conflist_in_lexical_order() {
    let folder = Folder::with(&[("20-b.conflist", PTP), ("10-a.conflist", PTP), ("05-x.txt", "x"), ("README", "x")]);
    std::fs::create_dir(folder.path("00-folder.conflist")).unwrap();
    let first = folder.path("10-a.conflist");
    assert_eq!(folder.install(), Attempt { left_alone: vec![], found: PluginEntry::Written(first.clone()) });
    assert_eq!(folder.install(), Attempt { left_alone: vec![], found: PluginEntry::Present(first) });
    assert!(folder.read("10-a.conflist").contains("ringfence-cni"));
    assert_eq!(folder.read("20-b.conflist"), PTP);
    assert_eq!(folder.names(), ["00-folder.conflist", "05-x.txt", "10-a.conflist", "20-b.conflist", "README"]);
    folder.remove_all();
    assert_eq!(folder.read("10-a.conflist"), PTP);
}

#[test]
fn install_writes_nothing_without_cni_configuration() {
    let folder = Folder::with(&[]);
    assert_eq!(folder.install().found, PluginEntry::Nothing);
    assert_eq!(folder.names(), [""; 0]);
    assert!(traces(&folder.path("missing")).unwrap().is_empty());
}

#[test]
fn mode_and_owner_stay() {
    let folder = Folder::with(&[("10-a.conflist", PTP)]);
    let path = folder.path("10-a.conflist");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
    folder.install();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.uid(), metadata.gid()), (0o640, 12, 34));
}

#[test]
fn install_puts_generated_conflist_before_unchanged_conf() {
    let folder = Folder::with(&[("10-a.conf", CONF), ("20-b.conflist", PTP)]);
    let list = folder.path("10-a-ringfence.conflist");
    assert_eq!(folder.install().found, PluginEntry::Written(list.clone()));
    assert_eq!(folder.install().found, PluginEntry::Present(list.clone()));
    assert_eq!(candidates(folder.0.path()).unwrap()[0], list);
    assert_eq!(folder.read("10-a.conf"), CONF);
    assert_eq!(folder.read("20-b.conflist"), PTP);

    let changed = CONF.replace("bridge", "ptp");
    folder.write("10-a.conf", &changed);
    assert_eq!(folder.install().found, PluginEntry::Written(list.clone()));
    assert!(folder.read("10-a-ringfence.conflist").contains(&changed));

    folder.remove_all();
    assert_eq!(folder.names(), ["10-a.conf", "20-b.conflist"]);
    assert_eq!(folder.read("10-a.conf"), changed);
}

#[test]
fn generated_list_is_removed_with_its_conf() {
    let folder = Folder::with(&[("10-a.conf", CONF), ("20-b.conflist", PTP)]);
    folder.install();
    std::fs::remove_file(folder.path("10-a.conf")).unwrap();
    assert_eq!(folder.install().found, PluginEntry::Written(folder.path("20-b.conflist")));
    assert_eq!(folder.names(), ["20-b.conflist"]);
}

#[test]
fn foreign_conflist_with_similar_name_is_not_deleted() {
    let folder = Folder::with(&[("10-my-ringfence.conflist", PTP)]);
    assert_eq!(folder.install().found, PluginEntry::Written(folder.path("10-my-ringfence.conflist")));
    folder.remove_all();
    assert_eq!(folder.read("10-my-ringfence.conflist"), PTP);
}

#[test]
fn malformed_conflist_is_skipped_until_repaired() {
    let folder = Folder::with(&[("10-a.conflist", "{\"plugins\": [{\"type\""), ("20-b.conflist", PTP)]);
    let attempt = folder.install();
    assert_eq!(attempt.found, PluginEntry::Written(folder.path("20-b.conflist")));
    assert!(
        matches!(&attempt.left_alone[..], [(path, Unusable::Malformed(_))] if *path == folder.path("10-a.conflist"))
    );
    assert_eq!(folder.read("10-a.conflist"), "{\"plugins\": [{\"type\"");
    // Once valid again, it gets the entry.
    folder.write("10-a.conflist", PTP);
    assert_eq!(folder.install().found, PluginEntry::Written(folder.path("10-a.conflist")));
}

#[test]
fn install_stops_at_unsupported_cni_version() {
    let old = PTP.replace("1.0.0", "0.2.0");
    let folder = Folder::with(&[("10-a.conflist", &old), ("20-b.conflist", PTP)]);
    let attempt = folder.install();
    assert_eq!(attempt.found, PluginEntry::Nothing);
    assert_eq!(attempt.left_alone[0].1.to_string(), "unsupported cniVersion 0.2.0: ringfence-cni supports 1.0.0");
    assert_eq!(folder.read("20-b.conflist"), PTP);
}

#[test]
fn abandoned_temporary_file_is_ignored_and_later_removed() {
    let folder = Folder::with(&[("10-a.conflist", PTP), (".10-a.conflist.0.ringfence-tmp", "{\"half")]);
    assert_eq!(candidates(folder.0.path()).unwrap(), [folder.path("10-a.conflist")]);
    folder.install();
    // It may belong to a running process.
    assert_eq!(folder.names(), [".10-a.conflist.0.ringfence-tmp", "10-a.conflist"]);
    let old = std::time::SystemTime::now() - ABANDONED - Duration::from_secs(1);
    let file = std::fs::File::options().write(true).open(folder.path(".10-a.conflist.0.ringfence-tmp")).unwrap();
    file.set_modified(old).unwrap();
    folder.install();
    assert_eq!(folder.names(), ["10-a.conflist"]);
}

#[test]
fn a_link_stays_a_link() {
    let folder = Folder::with(&[("target", PTP)]);
    symlink("target", folder.path("10-a.conflist")).unwrap();
    folder.install();
    assert!(std::fs::symlink_metadata(folder.path("10-a.conflist")).unwrap().is_symlink());
    assert!(folder.read("target").contains("ringfence-cni"));
}

/// A write between reading and replacing is not lost, whether in place or by rename.
#[test]
fn concurrent_write_is_not_lost_by_rewrite() {
    let newer = PTP.replace("\"a\"", "\"newer\"");
    let writes: [&dyn Fn(&Path); 2] = [&|path| std::fs::write(path, &newer).unwrap(), &|path| {
        let aside = path.with_extension("aside");
        std::fs::write(&aside, &newer).unwrap();
        std::fs::rename(&aside, path).unwrap();
    }];
    for write in writes {
        let folder = Folder::with(&[("10-a.conflist", PTP)]);
        let path = folder.path("10-a.conflist");
        let interrupted = std::cell::Cell::new(false);
        let rewritten = rewrite(&path, |text| {
            if !interrupted.replace(true) {
                write(&path);
            }
            Ok((!text.ends_with('!')).then(|| format!("{text}!")))
        });
        assert_eq!(rewritten.unwrap(), RewriteOutcome::Written(path));
        assert_eq!(folder.read("10-a.conflist"), format!("{newer}!"));
        assert_eq!(folder.names(), ["10-a.conflist"]);
    }
}

/// Another program opened and truncated the file before the replacement, and writes to it afterwards.
#[test]
fn rewrite_waits_for_concurrent_in_place_write() {
    let folder = Folder::with(&[("10-a.conflist", PTP)]);
    let path = folder.path("10-a.conflist");
    let open = std::cell::RefCell::new(None);
    let writer = std::cell::RefCell::new(None);
    let rewritten = rewrite(&path, |text| {
        let mut open = open.borrow_mut();
        if open.is_none() {
            *open = Some(std::fs::File::create(&path).unwrap());
        } else if text.is_empty() && writer.borrow().is_none() {
            // The new file is in place; the old one is still open.
            let mut file = open.as_ref().unwrap().try_clone().unwrap();
            *writer.borrow_mut() =
                Some(std::thread::spawn(move || io::Write::write_all(&mut file, b"theirs").unwrap()));
        }
        match text {
            "" => Err(Unusable::UnexpectedShape("empty")),
            text => Ok((!text.ends_with('!')).then(|| format!("{text}!"))),
        }
    });
    writer.into_inner().unwrap().join().unwrap();
    assert_eq!(rewritten.unwrap(), RewriteOutcome::Written(path));
    assert_eq!(folder.read("10-a.conflist"), "theirs!");
}

#[test]
fn malformed_conflist_with_our_entry_is_reported() {
    let folder = Folder::with(&[("10-a.conflist", "{ringfence-cni"), ("20-b.conflist", "{")]);
    let found = traces(folder.0.path()).unwrap();
    assert!(matches!(&found[..], [Trace::Unreadable(path, _)] if *path == folder.path("10-a.conflist")), "{found:?}");
    let refusal = remove(&found[0]).unwrap_err().to_string();
    assert!(refusal.contains("remove the plugin \"ringfence-cni\" from the file by hand"), "{refusal}");
}
