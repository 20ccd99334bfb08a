//! File format of a spooled batch, and the files of a spool's folder.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::BLOCK;
use crate::batch::Batch;

/// File signature with the format version.
const MAGIC: [u8; 8] = *b"RFTRAIL1";

/// Header: magic, checksum, pass, window in seconds, number of records, bytes of the body; integers in little endian.
const HEAD: usize = 8 + 4 + 8 + 8 + 8 + 8;

/// Upper bound of a body. Bodies are compressed, and exceed `BATCH_BYTES` only if a single line does.
const LARGEST_BODY: u64 = 16 << 20;

/// Exclusive upper bound of sequence numbers: a million batches a second for 500 years. A file with this number or a
/// greater one is ignored, because the numbers of later batches could overflow.
const MOST_SEQUENCE: u64 = 1 << 54;

pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn name(folder: &Path, sequence: u64) -> PathBuf {
    folder.join(format!("{sequence:020}.batch"))
}

/// Name of a batch that is being written.
fn temporary_name(folder: &Path, sequence: u64) -> PathBuf {
    folder.join(format!("{sequence:020}.tmp"))
}

/// Content of a spool's folder.
pub(super) struct SpoolContents {
    /// Sequence numbers of the batches, ascending.
    pub(super) sequences: Vec<u64>,
    /// The lowest number above those of all batches and of folders named like a batch, which a file cannot replace.
    pub(super) next: u64,
}

/// Lists the batches, which are regular files. Removes temporary files of interrupted writes.
pub(super) fn list(folder: &Path) -> io::Result<SpoolContents> {
    let mut listing = SpoolContents { sequences: Vec::new(), next: 1 };
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
        let Some(sequence) = stem.filter(|sequence| *sequence < MOST_SEQUENCE) else { continue };
        let is_file = entry.file_type()?.is_file();
        if path == temporary_name(folder, sequence) && is_file {
            fs::remove_file(&path)?;
        } else if path == name(folder, sequence) || path == temporary_name(folder, sequence) {
            listing.next = listing.next.max(sequence + 1);
            if is_file {
                listing.sequences.push(sequence);
            }
        }
    }
    listing.sequences.sort_unstable();
    Ok(listing)
}

/// Size of a batch on disk in bytes.
pub(super) fn size(batch: &Batch) -> u64 {
    ((HEAD + batch.body.len()) as u64).next_multiple_of(BLOCK)
}

pub(super) fn write(folder: &Path, sequence: u64, pass: u64, batch: &Batch) -> io::Result<()> {
    let mut head = Vec::with_capacity(HEAD);
    head.extend_from_slice(&pass.to_le_bytes());
    head.extend_from_slice(&batch.window.as_second().to_le_bytes());
    head.extend_from_slice(&batch.records.to_le_bytes());
    head.extend_from_slice(&(batch.body.len() as u64).to_le_bytes());
    let temporary = temporary_name(folder, sequence);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    let written = file
        .write_all(&MAGIC)
        .and_then(|()| file.write_all(&checksum(&head, &batch.body).to_le_bytes()))
        .and_then(|()| file.write_all(&head))
        .and_then(|()| file.write_all(&batch.body))
        .and_then(|()| file.sync_all());
    drop(file);
    match written {
        Ok(()) => fs::rename(&temporary, name(folder, sequence)),
        Err(error) => {
            fs::remove_file(&temporary)?;
            Err(error)
        }
    }
}

/// Reads a batch and its pass.
pub(super) fn read(folder: &Path, sequence: u64) -> io::Result<(u64, Batch)> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the batch is damaged");
    let mut file = fs::File::open(name(folder, sequence))?;
    let mut head = [0; HEAD];
    file.read_exact(&mut head)?;
    let (magic, rest) = head.split_at(8);
    let (sum, fields) = rest.split_at(4);
    let number = |index: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&fields[8 * index..8 * (index + 1)]);
        u64::from_le_bytes(bytes)
    };
    let [pass, window, records, length] = [0, 1, 2, 3].map(number);
    if magic != MAGIC || length > LARGEST_BODY {
        return Err(damaged());
    }
    let mut body = Vec::new();
    file.take(length + 1).read_to_end(&mut body)?;
    if body.len() as u64 != length || checksum(fields, &body).to_le_bytes() != *sum {
        return Err(damaged());
    }
    let window = Timestamp::from_second(window.cast_signed()).map_err(|_| damaged())?;
    Ok((pass, Batch { window, records, body }))
}

pub(super) fn remove(folder: &Path, sequence: u64) -> io::Result<()> {
    match fs::remove_file(name(folder, sequence)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn checksum(fields: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(fields);
    hasher.update(body);
    hasher.finalize()
}
