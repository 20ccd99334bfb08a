use std::fs;
use std::path::Path;

use super::*;
use crate::testing::window;

const MEGABYTE: u64 = 1 << 20;

fn batch(number: i64, bytes: usize) -> Batch {
    Batch { window: window(number), records: 1, body: vec![number.to_le_bytes()[0]; bytes] }
}

fn open(folder: &Path, most_bytes: u64, committed: u64) -> Spool {
    SpoolFolder::open(folder).unwrap().spool("loki", most_bytes, committed).unwrap()
}

fn taken(spool: &mut Spool, committed: u64) -> Vec<u8> {
    let mut taken = Vec::new();
    while let Some(spooled) = spool.front(committed) {
        taken.push(spooled.batch.body[0]);
        spool.remove(spooled.sequence);
    }
    taken
}

#[test]
fn batches_survive_a_restart_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let open = |committed| open(folder.path(), MEGABYTE, committed);
    let mut spool = open(0);
    spool.append(1, vec![batch(1, 10), batch(2, 10)]);
    spool.append(2, vec![batch(3, 10)]);
    assert_eq!(spool.front(0), None, "the pass is not committed");
    let first = spool.front(1).unwrap();
    assert_eq!(first.batch, batch(1, 10));
    spool.remove(first.sequence);
    drop(spool);
    // The second pass was not committed, and is repeated.
    let mut spool = open(1);
    spool.append(2, vec![batch(4, 10)]);
    drop(spool);
    assert_eq!(taken(&mut open(2), 2), [2, 4]);
    assert_eq!(open(2).counts().batches, 0);
}

#[test]
fn damaged_batches_are_skipped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path(), MEGABYTE, 0);
    spool.append(1, (1..=5).map(|number| batch(number, 100)).collect());
    drop(spool);
    let path = |number: u64| folder.path().join(format!("loki/{number:020}.batch"));
    let text = fs::read(path(1)).unwrap();
    fs::write(path(1), &text[..text.len() - 1]).unwrap();
    let mut flipped = fs::read(path(2)).unwrap();
    flipped[60] ^= 1;
    fs::write(path(2), flipped).unwrap();
    fs::write(path(3), b"").unwrap();
    fs::write(folder.path().join("loki/00000000000000000009.tmp"), b"interrupted").unwrap();
    let mut spool = open(folder.path(), MEGABYTE, 1);
    assert_eq!(spool.counts().damaged, 3);
    // A file damaged while the process runs.
    fs::write(path(4), b"x").unwrap();
    assert_eq!(taken(&mut spool, 1), [5]);
    assert_eq!(spool.counts().damaged, 4);
    assert!(!folder.path().join("loki/00000000000000000009.tmp").exists());
}

#[test]
fn oldest_batches_are_evicted_beyond_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = open(folder.path(), 4 * BLOCK, 0);
    spool.append(1, (1..=6).map(|number| batch(number, 100)).collect());
    assert_eq!((spool.counts().evicted, spool.counts().disk_bytes), (2, 4 * BLOCK));
    assert_eq!(spool.counts().oldest, Some(window(3)));
    assert_eq!(fs::read_dir(folder.path().join("loki")).unwrap().count(), 4);
    drop(spool);
    assert_eq!(taken(&mut open(folder.path(), 2 * BLOCK, 1), 1), [5, 6]);
    let mut memory = Spool::in_memory();
    memory.append(1, (1..=3).map(|number| batch(number, usize::try_from(MEMORY_BYTES).unwrap() / 2)).collect());
    assert_eq!((memory.counts().evicted, memory.fill()), (1, 1.0));
    assert_eq!(taken(&mut memory, 1), [2, 3]);
}

#[test]
fn refused_batches_are_written_once_disk_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spool");
    let mut spool = open(&path, MEGABYTE, 0);
    spool.append(1, vec![batch(1, 10)]);
    // A missing folder makes writes fail for root as well; permissions would not.
    let away = folder.path().join("away");
    fs::rename(&path, &away).unwrap();
    spool.append(2, vec![batch(2, 10)]);
    let counts = spool.counts();
    assert!(!spool.is_durable() && counts.write_failures > 0 && counts.memory_bytes == 10, "{counts:?}");
    assert!(counts.write_failure.is_some());
    fs::rename(&away, &path).unwrap();
    spool.append(3, vec![batch(3, 10)]);
    assert!(spool.is_durable());
    assert_eq!((spool.counts().memory_bytes, spool.counts().write_failure), (0, None));
    assert_eq!(taken(&mut spool, 3), [1, 2, 3]);
}

#[test]
fn file_with_an_impossible_number_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path(), MEGABYTE, 0));
    for number in [u64::MAX, u64::MAX - 1] {
        fs::write(folder.path().join(format!("loki/{number}.batch")), b"foreign").unwrap();
    }
    let mut spool = open(folder.path(), MEGABYTE, 1);
    spool.append(1, vec![batch(1, 10), batch(2, 10)]);
    assert_eq!((taken(&mut spool, 1), spool.counts().damaged), (vec![1, 2], 0));
}

#[test]
fn folder_named_like_a_batch_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path(), MEGABYTE, 0));
    for name in ["00000000000000000001.batch", "00000000000000000002.tmp", "7.batch"] {
        fs::create_dir_all(folder.path().join("loki").join(name).join("inner")).unwrap();
    }
    let mut spool = open(folder.path(), MEGABYTE, 1);
    spool.append(1, vec![batch(1, 10), batch(2, 10)]);
    assert!(spool.is_durable(), "{:?}", spool.counts());
    drop(spool);
    let mut spool = open(folder.path(), MEGABYTE, 1);
    assert_eq!((taken(&mut spool, 1), spool.counts().damaged), (vec![1, 2], 0));
}
