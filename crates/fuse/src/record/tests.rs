#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::fd::AsFd;

use proptest::prelude::*;
use steadfs_base::Timestamp;
use steadfs_rt::{Random, sim};
use steadfs_vfs::{
    Attr, FallocMode, FileKind, FsxAttr, InodeFlags, RecordedChange, RecordedFile, RecordedInode,
};

use super::item::{InodeState, Item, decode, encode_bytes_head};
use super::layout::{
    FORMAT, Layout, NOT_UNDERSTOOD, RECORD_HEAD, SEGMENT_HEAD, new_file_of, read_at,
    segment_head_of, write_at,
};
use super::log::{LIVE_MAX, Log};
use super::*;

/// Segments with a few records.
const SMALL: Layout = Layout {
    counts: 64,
    segment_bytes: 2048,
};

fn new(layout: Layout) -> Arc<OwnedFd> {
    Arc::new(new_file_of(layout).unwrap())
}

fn begin(file: &Arc<OwnedFd>, layout: Layout) -> Arc<Log> {
    let found = read(file, layout);
    let fails = Box::new(|why: &str| panic!("{why}"));
    Log::begin(Arc::clone(file), layout, &found, fails).unwrap()
}

fn read(file: &OwnedFd, layout: Layout) -> Found {
    Found::read(file.as_fd(), layout).unwrap()
}

fn inode(ino: u64, size: u64, nlink: u32) -> InodeState {
    let time = |secs| Timestamp { secs, nanos: 7 };
    InodeState {
        is_new: false,
        attr: Attr {
            ino: InodeNo(ino),
            generation: 5,
            kind: FileKind::Regular,
            perm: 0o644,
            nlink,
            uid: 1,
            gid: 2,
            rdev: 0,
            size,
            blocks: 0,
            block_size: 0,
            atime: time(-1),
            mtime: time(2),
            ctime: time(3),
            btime: ino.is_multiple_of(2).then(|| time(4)),
            flags: InodeFlags(0x80),
        },
        flags: FsxAttr {
            flags: InodeFlags(0x80),
            project: 9,
            extents: 0,
        },
    }
}

fn append(log: &Arc<Log>, items: &[Item<'_>]) {
    log.append(&mut log.ticket(), &[], |out| {
        items.iter().for_each(|item| item.encode(out));
        Ok(())
    });
}

fn file_of(found: &Found, ino: u64) -> Option<&RecordedFile> {
    match found.state.inodes.get(&InodeNo(ino))? {
        RecordedInode::InUse(file) => Some(file),
        RecordedInode::Free => None,
    }
}

/// An item with owned parts.
type Parts = (u8, u64, u64, u64, Vec<u8>, Vec<u8>);

fn parts() -> impl Strategy<Value = Parts> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..300);
    (
        0..9_u8,
        any::<u64>(),
        any::<u64>(),
        any::<u64>(),
        bytes(),
        bytes(),
    )
}

fn item((kind, ino, n, m, a, b): &Parts) -> Item<'_> {
    let (no, n, m) = (InodeNo(*ino), *n, *m);
    match kind {
        0 => Item::Inode(inode(*ino, n, m as u32)),
        1 => Item::Target(no, a),
        2 => Item::Name(no, a, None),
        3 => Item::Name(no, a, Some(InodeNo(n))),
        4 => Item::Xattr(no, a, n.is_multiple_of(2).then_some(b)),
        5 => Item::Bytes(no, n, a),
        6 => Item::Size(no, n),
        7 => Item::Range(no, FallocMode::ZeroRange { keep_size: true }, n, m),
        _ => Item::Answer {
            slot: *ino,
            unique: n,
            reply: a,
        },
    }
}

proptest! {
    #[test]
    fn items_are_read_as_they_were_written(all in proptest::collection::vec(parts(), 0..6)) {
        let items: Vec<_> = all.iter().map(item).collect();
        let mut record = Vec::new();
        items.iter().for_each(|item| item.encode(&mut record));
        prop_assert_eq!(decode(&record), Some(items));
    }

    #[test]
    fn any_bytes_are_a_record_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&bytes);
    }

    /// The last record is cut at any byte: what was acknowledged before is there, and nothing of the last one.
    #[test]
    fn a_torn_record_is_passed_over(sizes in proptest::collection::vec(1..2000_u64, 1..6), cut in 0.0..1.0_f64) {
        let layout = Layout { segment_bytes: 64 << 10, ..SMALL };
        let file = new(layout);
        let log = begin(&file, layout);
        let mut ends = Vec::new();
        let mut end = SEGMENT_HEAD;
        for (n, size) in sizes.iter().enumerate() {
            let data = vec![n as u8; *size as usize];
            let mut body = Vec::new();
            Item::Inode(inode(1, n as u64, 1)).encode(&mut body);
            encode_bytes_head(&mut body, InodeNo(1), 0, data.len());
            log.append(&mut log.ticket(), &data, |out| {
                out.extend_from_slice(&body);
                Ok(())
            });
            let begins = end;
            end += (RECORD_HEAD + body.len()) as u64 + size;
            ends.push((begins, end));
        }
        let (begins, ends) = *ends.last().unwrap();
        let at = begins + ((ends - begins) as f64 * cut) as u64;
        let zeros = vec![0; (ends - at) as usize];
        write_at(&file, layout.segment(0) + at, &[&zeros]).unwrap();
        let found = read(&file, layout);
        let changes = file_of(&found, 1).map_or(0, |file| file.contents.len());
        // A cut of bytes that are zero changes nothing.
        let whole = sizes.len() == 1 && file_of(&found, 1).is_some();
        prop_assert!(changes == sizes.len() - 1 || whole, "{changes} of {}", sizes.len());
        for (n, change) in file_of(&found, 1).iter().flat_map(|file| &file.contents).enumerate() {
            let RecordedChange::Bytes(0, bytes) = change else { panic!("{change:?}") };
            prop_assert!(*bytes == vec![n as u8; sizes[n] as usize]);
        }
    }
}

#[test]
fn the_last_state_counts() {
    let file = new(SMALL);
    let log = begin(&file, SMALL);
    let dir = InodeNo(8);
    append(
        &log,
        &[
            Item::Inode(inode(10, 0, 1)),
            Item::Name(dir, b"a", Some(InodeNo(10))),
            Item::Xattr(InodeNo(10), b"user.x", Some(b"1")),
        ],
    );
    append(
        &log,
        &[Item::Inode(inode(10, 5, 1)), Item::Size(InodeNo(10), 5)],
    );
    append(
        &log,
        &[
            Item::Name(dir, b"a", None),
            Item::Xattr(InodeNo(10), b"user.x", None),
        ],
    );
    let found = read(&file, SMALL);
    let there = file_of(&found, 10).unwrap();
    assert_eq!((there.attr.size, there.attr.mtime.secs), (5, 2));
    assert_eq!(there.xattrs[&b"user.x"[..]], None);
    assert_eq!(found.state.names[&(dir, b"a".to_vec())].to, None);
    // Another inode with the number.
    let mut new = inode(10, 1, 1);
    new.is_new = true;
    append(&log, &[Item::Inode(new)]);
    let found = read(&file, SMALL);
    let there = file_of(&found, 10).unwrap();
    assert!(there.xattrs.is_empty() && there.contents.is_empty());
}

/// A page is written between an unlink and its record. The kernel requests the unlink again, which finds the name.
#[test]
fn a_write_in_the_middle_of_an_unlink_leaves_the_link_count_of_the_name() {
    let file = new(SMALL);
    let log = begin(&file, SMALL);
    let named = |nlink| {
        [
            Item::Name(InodeNo(2), b"a", Some(InodeNo(9))),
            Item::Inode(inode(9, 0, nlink)),
        ]
    };
    append(&log, &[Item::Inode(inode(9, 0, 1))]);
    append(&log, &named(1));
    append(
        &log,
        &[
            Item::Inode(inode(9, 700, 0)),
            Item::Bytes(InodeNo(9), 0, b"x"),
        ],
    );
    let found = read(&file, SMALL);
    let attr = &file_of(&found, 9).unwrap().attr;
    assert_eq!((attr.nlink, attr.size), (1, 700));
    // The record of the unlink.
    append(
        &log,
        &[
            Item::Name(InodeNo(2), b"a", None),
            Item::Inode(inode(9, 700, 0)),
        ],
    );
    assert!(
        file_of(&read(&file, SMALL), 9).is_none(),
        "nothing refers to it"
    );
}

#[test]
fn unlinked_inodes_are_free_unless_the_kernel_knows_them() {
    let file = new(SMALL);
    let log = begin(&file, SMALL);
    let counts = Counts::begin(Arc::clone(&file), SMALL, &[]).unwrap();
    append(
        &log,
        &[Item::Inode(inode(10, 0, 0)), Item::Inode(inode(11, 0, 0))],
    );
    // Names in a directory that is no more.
    append(&log, &[Item::Name(InodeNo(11), b"a", None)]);
    for (ino, n) in [(11, 1), (10, 2), (10, 1), (12, 1)] {
        counts.add(InodeNo(ino), n).unwrap();
    }
    counts.subtract(InodeNo(11), 1).unwrap();
    let found = read(&file, SMALL);
    assert_eq!(found.state.unlinked, [InodeNo(10)]);
    assert!(matches!(
        found.state.inodes[&InodeNo(11)],
        RecordedInode::Free
    ));
    assert!(found.state.names.is_empty());
    // Another server goes on with the table.
    let resumed = Counts::resume(Arc::clone(&file), SMALL).unwrap();
    resumed.subtract(InodeNo(10), 3).unwrap();
    resumed.add(InodeNo(13), 1).unwrap();
    resumed.add(InodeNo(14), 1).unwrap();
    let mut now = read(&file, SMALL).counts;
    now.sort_unstable();
    assert_eq!(now, [12, 13, 14].map(|ino| (InodeNo(ino), 1)));
    for ino in 100..161 {
        resumed.add(InodeNo(ino), 1).unwrap();
    }
    assert_eq!(resumed.add(InodeNo(99), 1), Err(Errno::NOSPC));
    let anew = Counts::begin(Arc::clone(&file), SMALL, &[(InodeNo(7), 3)]).unwrap();
    drop(anew);
    assert_eq!(read(&file, SMALL).counts, [(InodeNo(7), 3)]);
}

/// Each successor ends before it has answered the requests of the one before.
#[test]
fn answers_outlive_several_servers() {
    let file = new(SMALL);
    for server in 0..6_u64 {
        let log = begin(&file, SMALL);
        for old in [7, 1] {
            let mut ticket = log.ticket();
            let answer = Item::Answer {
                slot: ticket.slot(),
                unique: server * old,
                reply: b"x",
            };
            log.append(&mut ticket, &[], |out| {
                answer.encode(out);
                Ok(())
            });
        }
        // The second request had the slot of the first, which was answered.
        let found = read(&file, SMALL);
        let uniques: Vec<_> = found.answers.iter().map(|one| one.unique).collect();
        assert_eq!(uniques, (0..=server).collect::<Vec<_>>());
        assert_eq!(found.segments.len(), 1, "the older ones are free");
    }
}

/// A successor that ends before it has freed the segments of its predecessors.
#[test]
fn a_successor_finds_a_segment_if_all_are_in_use() {
    let file = new(SMALL);
    let log = begin(&file, SMALL);
    append(&log, &[Item::Size(InodeNo(1), 1)]);
    drop(log);
    for (index, number) in (1..).zip([3_u64, 4, 5]) {
        let head = super::layout::segment_head(number);
        write_at(&file, SMALL.segment(index), &[&head]).unwrap();
    }
    assert_eq!(read(&file, SMALL).segments.len(), 4);
    begin(&file, SMALL);
    assert_eq!(read(&file, SMALL).segments, [(0, 6)]);
}

/// What a program of another version has acknowledged is not taken for nothing.
#[test]
fn records_of_another_version_are_refused() {
    let refused = |file: &OwnedFd| {
        let error = Found::read(file.as_fd(), SMALL).err();
        assert_eq!(error, Some(NOT_UNDERSTOOD));
        // After a hand-over they are out of date.
        let used = Found::used(file.as_fd(), SMALL).unwrap();
        assert!(!used.segments.is_empty());
    };
    // Of the same format, with an item that does not exist.
    let file = new(SMALL);
    let log = begin(&file, SMALL);
    log.append(&mut log.ticket(), &[], |out| {
        out.push(200);
        Ok(())
    });
    drop(log);
    refused(&file);
    // Of another format.
    let file = new(SMALL);
    let head = segment_head_of(1, FORMAT + 1);
    write_at(&file, SMALL.segment(0), &[&head]).unwrap();
    refused(&file);
}

/// A large write that a kill interrupts before its data is copied.
#[test]
fn data_that_is_missing_was_not_acknowledged() {
    let layout = Layout::MOUNT;
    let file = new(layout);
    let log = begin(&file, layout);
    let data = vec![3; 100 << 10];
    for _ in 0..2 {
        log.append(&mut log.ticket(), &data, |out| {
            Item::Inode(inode(1, 0, 1)).encode(out);
            encode_bytes_head(out, InodeNo(1), 0, data.len());
            Ok(())
        });
    }
    let len = |found: &Found| file_of(found, 1).map_or(0, |file| file.contents.len());
    assert_eq!(len(&read(&file, layout)), 2);
    let mut byte = [0];
    let at = layout.segment(0) + (90 << 10);
    read_at(file.as_fd(), at, &mut byte).unwrap();
    assert_eq!(byte, [3]);
    write_at(&file, at, &[&[4]]).unwrap();
    assert_eq!(len(&read(&file, layout)), 1, "the second one is there");
}

/// The values of one writer's calls.
#[derive(Clone, Copy, Default)]
struct Values {
    /// Its call in service has recorded what was before: this.
    begun: Option<u64>,
    /// The volume has this.
    done: u64,
    /// Its call was recorded, and is not answered.
    unanswered: Option<u64>,
    /// It was answered this.
    acknowledged: u64,
    /// This is durable.
    durable: u64,
}

type Shared = Arc<Mutex<Vec<Values>>>;

fn random_steps(random: &mut Random) {
    for _ in 0..random.below(4) {
        steadfs_rt::yield_now();
    }
}

fn write_values(log: &Arc<Log>, all: &Shared, writer: usize, random: &mut Random) {
    let ino = InodeNo(writer as u64 + 1);
    for value in 1..=60 {
        let unique = value * 100 + ino.0;
        let mut ticket = log.ticket();
        let with_before = random.chance(512);
        if with_before {
            log.append(&mut ticket, &[], |out| {
                Item::Name(ino, b"before", Some(InodeNo(value))).encode(out);
                Ok(())
            });
            all.lock()[writer].begun = Some(value);
        }
        random_steps(random);
        all.lock()[writer].done = value;
        random_steps(random);
        let slot = ticket.slot();
        log.append(&mut ticket, &[0; 100], |out| {
            let done = all.lock()[writer].done;
            let answer = Item::Answer {
                slot,
                unique,
                reply: b"done",
            };
            answer.encode(out);
            Item::Inode(inode(ino.0, done, 1)).encode(out);
            encode_bytes_head(out, ino, 0, 100);
            Ok(())
        });
        let end = |values: &mut Values| {
            (values.begun, values.unanswered) = (None, Some(unique));
            values.acknowledged = value;
        };
        end(&mut all.lock()[writer]);
        random_steps(random);
        all.lock()[writer].unanswered = None;
        drop(ticket);
        if random.chance(20) {
            log.barrier();
            let values = all.lock()[writer];
            assert!(values.durable >= value, "after a barrier");
        }
    }
}

/// What a successor would find now.
fn check_kill(file: &OwnedFd, all: &Shared) {
    // No other task runs from here on.
    let all = all.lock();
    let found = read(file, SMALL);
    assert!(found.segments.len() <= LIVE_MAX + 1, "one is left");
    for (writer, values) in all.iter().enumerate() {
        let ino = writer as u64 + 1;
        let recorded = file_of(&found, ino).map_or(0, |file| file.attr.size);
        let restored = match recorded {
            0 => values.durable,
            recorded => recorded,
        };
        assert!(
            (values.acknowledged..=values.done).contains(&restored),
            "{restored} is restored of {}..={}",
            values.acknowledged,
            values.done
        );
        if let Some(value) = values.begun {
            let name = found.state.names.get(&(InodeNo(ino), b"before".to_vec()));
            assert_eq!(
                name.map(|name| name.to),
                Some(Some(InodeNo(value))),
                "what was before"
            );
        }
        if let Some(unique) = values.unanswered {
            let is = |one: &read::Answered| one.unique == unique && one.reply == b"done";
            assert!(found.answers.iter().any(is), "the answer of {unique}");
        }
    }
}

fn run_writers(seed: u64, file: &Arc<OwnedFd>, log: &Arc<Log>, all: &Shared) {
    let mut random = Random::new(seed);
    let (freeing, volume) = (Arc::clone(log), Arc::clone(all));
    let syncs = steadfs_rt::spawn("sync", move || {
        let mut random = Random::new(seed + 1);
        freeing.free_segments(|| {
            let before = volume.lock().clone();
            for _ in 0..random.below(30) {
                steadfs_rt::yield_now();
            }
            for (values, before) in volume.lock().iter_mut().zip(before) {
                values.durable = before.done;
            }
            Ok(())
        });
    });
    let writers: Vec<_> = (0..5)
        .map(|writer| {
            let (log, all) = (Arc::clone(log), Arc::clone(all));
            let mut random = Random::new(seed * 10 + writer as u64);
            steadfs_rt::spawn("writer", move || {
                write_values(&log, &all, writer, &mut random)
            })
        })
        .collect();
    while all.lock().iter().any(|values| values.acknowledged < 60) {
        check_kill(file, all);
        for _ in 0..random.below(10) {
            steadfs_rt::yield_now();
        }
    }
    writers.into_iter().for_each(|writer| writer.join());
    log.end();
    syncs.join();
}

/// Several writers, segments that are full after some calls, and kills at any moment.
#[test]
fn what_was_acknowledged_is_recorded_or_durable() {
    for seed in 0..40 {
        sim::run(sim::Config::new(seed), move || {
            let file = new(SMALL);
            let log = begin(&file, SMALL);
            let all: Shared = Arc::new(Mutex::new(Rank::Leaf, vec![Values::default(); 5]));
            run_writers(seed, &file, &log, &all);
        });
    }
}
