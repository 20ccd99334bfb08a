//! The attachment store: a folder with one file per attachment, `CONTAINER@INTERFACE.json`, written by the plugin and
//! read by the agent.
//!
//! Writes are atomic: a file is written under a name with a leading dot, synced, and renamed. Readers skip such an
//! unfinished file: its writer is still running, or was killed before its request to the agent, so that nothing depends
//! on the file. Any other file in the folder that is not a valid attachment is reported as unreadable.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::{AttachmentKey, AttachmentRecord};

/// Maximum size of an attachment, in the file and in a request: a hundred times the ordinary size.
pub const ATTACHMENT_BYTES: usize = 32 * 1024;

const ENDING: &str = ".json";

/// Prefix and suffix of unfinished files.
const UNFINISHED: (&str, &str) = (".", ".json.new");

/// Contents of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreContents {
    /// Sorted by file name.
    pub attachments: Vec<AttachmentRecord>,
    /// Files that are not valid attachments, with the error.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// Reads all attachments; none if the folder does not exist.
///
/// # Errors
/// If the folder itself cannot be read.
pub fn read_all(folder: &Path) -> io::Result<StoreContents> {
    let mut stored = StoreContents::default();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(stored),
        Err(error) => return Err(error),
    };
    let mut names = entries.map(|entry| entry.map(|e| e.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    for name in names {
        if name.to_str().is_some_and(is_unfinished) {
            continue;
        }
        let path = folder.join(&name);
        match read_file(&path) {
            Ok(attachment) if name.to_str() == Some(&file_name(&attachment.id)) => stored.attachments.push(attachment),
            Ok(attachment) => {
                stored.unreadable.push((path, format!("the file contains another attachment, {}", attachment.id)))
            }
            // The file was removed after the folder had been listed.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => stored.unreadable.push((path, error.to_string())),
        }
    }
    Ok(stored)
}

/// Reads one attachment; `None` if it does not exist.
///
/// # Errors
/// If the file exists and cannot be read, or contains something else than this attachment.
pub fn read(folder: &Path, id: &AttachmentKey) -> io::Result<Option<AttachmentRecord>> {
    match read_file(&folder.join(file_name(id))) {
        Ok(attachment) if attachment.id == *id => Ok(Some(attachment)),
        Ok(attachment) => Err(invalid(format!("the file contains another attachment, {}", attachment.id))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes an attachment and replaces an earlier one with the same key. Creates the folder if it is missing.
///
/// # Errors
/// If the folder or the file cannot be written. An earlier file is then unchanged, unless only the final sync of the
/// folder failed.
pub fn write(folder: &Path, attachment: &AttachmentRecord) -> io::Result<()> {
    let text = serde_json::to_vec(attachment)?;
    if text.len() > ATTACHMENT_BYTES {
        return Err(invalid(format!("the attachment is too large: {} bytes", text.len())));
    }
    // Clients of the agent must be able to traverse the parent folder, which contains its sockets. Only root may read
    // the attachments, which contain the names and addresses of pods.
    if let Some(above) = folder.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(above)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // The name contains the process ID because a runtime whose ADD timed out may start a second one while the first is
    // still running. Two writers of one file would mix their contents.
    let unfinished = folder.join(unfinished_name(&attachment.id, std::process::id()));
    let written = write_file(&unfinished, &text)
        .and_then(|()| fs::rename(&unfinished, folder.join(file_name(&attachment.id))))
        .and_then(|()| File::open(folder)?.sync_all());
    if written.is_err() {
        // Only the error of the write is reported: a file that cannot be removed does no harm, because readers skip it.
        remove_file(&unfinished).ok();
    }
    written
}

/// Removes the file of an attachment, even an unreadable one, and its unfinished files. Returns whether the file
/// existed.
///
/// # Errors
/// If one of these files exists and cannot be removed, or if the folder exists and cannot be read.
pub fn remove(folder: &Path, id: &AttachmentKey) -> io::Result<bool> {
    remove_unfinished(folder, id)?;
    remove_file(&folder.join(file_name(id)))
}

/// File name of an attachment.
pub fn file_name(id: &AttachmentKey) -> String {
    format!("{id}{ENDING}")
}

fn unfinished_name(id: &AttachmentKey, process: u32) -> String {
    let (start, end) = UNFINISHED;
    format!("{start}{id}.{process}{end}")
}

/// Removes the unfinished files of an attachment, which killed processes have left.
fn remove_unfinished(folder: &Path, id: &AttachmentKey) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let name = entry?.file_name();
        if name.to_str().is_some_and(|name| is_unfinished_of(name, id)) {
            remove_file(&folder.join(&name))?;
        }
    }
    Ok(())
}

/// Whether the name is that of an unfinished file of the attachment. Names of earlier versions contain no process ID.
fn is_unfinished_of(name: &str, id: &AttachmentKey) -> bool {
    let (start, end) = UNFINISHED;
    let stem = name.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
    let process = stem.and_then(|stem| stem.strip_prefix(&id.to_string()));
    process.is_some_and(|process| {
        process.is_empty() || process.strip_prefix('.').is_some_and(|p| p.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

fn is_unfinished(name: &str) -> bool {
    let (start, end) = UNFINISHED;
    name.starts_with(start) && name.ends_with(end)
}

fn read_file(path: &Path) -> io::Result<AttachmentRecord> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(invalid("it is not a regular file".into()));
    }
    let mut text = Vec::new();
    let most = u64::try_from(ATTACHMENT_BYTES).map_err(io::Error::other)?;
    File::open(path)?.take(most + 1).read_to_end(&mut text)?;
    if text.len() > ATTACHMENT_BYTES {
        return Err(invalid(format!("it is larger than {ATTACHMENT_BYTES} bytes")));
    }
    serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))
}

fn write_file(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

fn remove_file(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;
    use crate::attachment::tests::{EXAMPLE, example};

    fn folder() -> (TempDir, PathBuf) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("run/cni");
        (folder, path)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn missing_folder_is_created_with_restrictive_mode() {
        let (_whole, folder) = folder();
        assert_eq!(read_all(&folder).unwrap(), StoreContents::default());
        assert!(!remove(&folder, &example().id).unwrap());
        write(&folder, &example()).unwrap();
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&folder.join("4f1c@eth0.json")), 0o600);
        assert_eq!(fs::read_to_string(folder.join("4f1c@eth0.json")).unwrap(), EXAMPLE);
    }

    #[test]
    fn last_written_attachment_is_read_until_removed() {
        let (_whole, folder) = folder();
        write(&folder, &example()).unwrap();
        let later = AttachmentRecord { added_nanos: 2, ..example() };
        write(&folder, &later).unwrap();
        let other = AttachmentRecord { id: AttachmentKey::new("4f1c", "net1").unwrap(), ..example() };
        write(&folder, &other).unwrap();
        let all = StoreContents { attachments: vec![later.clone(), other.clone()], unreadable: vec![] };
        assert_eq!(read_all(&folder).unwrap(), all);
        assert_eq!(read(&folder, &later.id).unwrap(), Some(later.clone()));
        assert!(remove(&folder, &later.id).unwrap());
        assert!(!remove(&folder, &later.id).unwrap());
        assert_eq!(read(&folder, &later.id).unwrap(), None);
        assert_eq!(read_all(&folder).unwrap().attachments, [other]);
    }

    #[test]
    fn unreadable_or_misnamed_attachment_files_are_reported() {
        let (_whole, folder) = folder();
        write(&folder, &example()).unwrap();
        let put = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        put("cut@eth0.json", &EXAMPLE[..100]);
        put("empty@eth0.json", "");
        put("other@eth0.json", EXAMPLE);
        put("README", "hello");
        put(".hidden", EXAMPLE);
        put("long@eth0.json", &" ".repeat(ATTACHMENT_BYTES + 1));
        put("newer@eth0.json", &EXAMPLE.replace(r#""version":1"#, r#""version":9"#));
        fs::create_dir(folder.join("folder@eth0.json")).unwrap();
        std::os::unix::fs::symlink(folder.join("4f1c@eth0.json"), folder.join("link@eth0.json")).unwrap();
        let stored = read_all(&folder).unwrap();
        assert_eq!(stored.attachments, [example()]);
        let messages: Vec<String> = stored
            .unreadable
            .iter()
            .map(|(path, why)| format!("{}: {why}", path.file_name().unwrap().to_str().unwrap()))
            .collect();
        let expected = [
            ".hidden: the file contains another attachment, 4f1c@eth0",
            "README: expected value at line 1 column 1",
            "cut@eth0.json: EOF while parsing a string at line 1 column 100",
            "empty@eth0.json: EOF while parsing a value at line 1 column 0",
            "folder@eth0.json: it is not a regular file",
            "link@eth0.json: it is not a regular file",
            "long@eth0.json: it is larger than 32768 bytes",
            "newer@eth0.json: unsupported version 9: expected 1 at line 1 column 12",
            "other@eth0.json: the file contains another attachment, 4f1c@eth0",
        ];
        assert_eq!(messages, expected);
        let id = AttachmentKey::new("cut", "eth0").unwrap();
        assert!(read(&folder, &id).is_err());
        assert!(remove(&folder, &id).unwrap());
    }

    #[test]
    fn unfinished_files_are_ignored_and_removed() {
        let (_whole, folder) = folder();
        fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        let (own, others) =
            ([".4f1c@eth0.json.new", ".4f1c@eth0.17.json.new"], [".4f1c@eth0x.17.json.new", ".4f1c@eth.1.json.new"]);
        for name in own.iter().chain(&others) {
            fs::write(path(name), &EXAMPLE[..50]).unwrap();
        }
        assert_eq!(read_all(&folder).unwrap(), StoreContents::default());
        remove(&folder, &example().id).unwrap();
        assert!(own.iter().all(|name| !path(name).exists()));
        assert!(others.iter().all(|name| path(name).exists()));
    }

    #[test]
    fn concurrent_writers_use_separate_files() {
        let id = example().id;
        assert_ne!(unfinished_name(&id, 1), unfinished_name(&id, 2));
        let (_whole, folder) = folder();
        fs::create_dir_all(&folder).unwrap();
        // The unfinished file of another process that is still writing.
        let other = folder.join(unfinished_name(&id, std::process::id() + 1));
        fs::write(&other, &EXAMPLE[..50]).unwrap();
        write(&folder, &example()).unwrap();
        assert_eq!(fs::read(&other).unwrap().len(), 50);
        assert!(!folder.join(unfinished_name(&id, std::process::id())).exists());
        assert_eq!(read_all(&folder).unwrap().attachments, [example()]);
    }

    #[test]
    fn oversized_attachment_is_not_written() {
        let (_whole, folder) = folder();
        let long = AttachmentRecord { sandbox: "x".repeat(ATTACHMENT_BYTES), ..example() };
        assert!(write(&folder, &long).is_err());
        assert_eq!(read_all(&folder).unwrap(), StoreContents::default());
    }
}
