//! Atomic writes against a model in memory: what callers see, what a power cut leaves, what fsck.f2fs finds.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_vfs::{
    CallerState, Cx, FallocMode, FileSystem, FsError, InodeFlags, OpenFile, SetAttr,
};

use crate::test_world::{ALL, ROOT, World};

const START: u32 = 0xf501;
const COMMIT: u32 = 0xf502;
const ABORT: u32 = 0xf505;
const REPLACE: u32 = 0xf519;
const GET_FEATURES: u32 = 0x8004_f50c;
const OPTION: &str = "atomic_write";

fn call(world: &World, file: InodeNo, number: u32) -> Result<bool, FsError> {
    call_by(world, &world.cx, file, number)
}

fn call_by(world: &World, cx: &Cx, file: InodeNo, number: u32) -> Result<bool, FsError> {
    let answer = world.fs.ioctl(cx, file, number, &[])?;
    let answer = answer.expect("known");
    assert_eq!((answer.result, answer.output.len()), (0, 0));
    Ok(answer.stale)
}

/// Reproducible bytes.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(next).collect()
}

/// A file and what it should contain.
struct Model {
    file: InodeNo,
    seen: Vec<u8>,
}

impl Model {
    /// A durable file.
    fn make(world: &World, name: &[u8], len: usize) -> Self {
        let file = world.file(ROOT, name).unwrap().ino;
        let mut model = Self {
            file,
            seen: Vec::new(),
        };
        model.write(world, 0, &bytes(1, len));
        world.fs.fsync(&world.cx, file, false).unwrap();
        model
    }

    fn write(&mut self, world: &World, at: usize, data: &[u8]) {
        let written = world.fs.write(&world.cx, self.file, at as u64, data, false);
        assert_eq!(written, Ok(data.len()));
        if !data.is_empty() && self.seen.len() < at + data.len() {
            self.seen.resize(at + data.len(), 0);
        }
        self.seen[at..at + data.len()].copy_from_slice(data);
    }

    fn truncate(&mut self, world: &World, size: usize) {
        let set = SetAttr {
            size: Some(size as u64),
            ..SetAttr::default()
        };
        let attr = world.fs.setattr(&world.cx, self.file, &set).unwrap();
        assert_eq!(attr.size, size as u64);
        self.seen.resize(size, 0);
    }

    #[track_caller]
    fn check(&self, world: &World) {
        check(world, self.file, &self.seen);
    }
}

#[track_caller]
fn check(world: &World, file: InodeNo, content: &[u8]) {
    assert_eq!(
        world.fs.getattr(&world.cx, file).unwrap().size,
        content.len() as u64
    );
    let read = world.fs.read(&world.cx, file, 0, content.len() + 1);
    let read = read.unwrap().to_vec();
    let differ = read.iter().zip(content).position(|(a, b)| a != b);
    assert_eq!((read.len(), differ), (content.len(), None));
}

/// Mounts what a power cut would leave now, and judges it.
fn after_power_cut(world: &World) -> World {
    let bytes = world.bytes();
    let device = MemDevice::new(bytes.len() as u64);
    device.write(0, &bytes);
    World::of(Arc::new(device), OPTION)
}

#[track_caller]
fn check_after_power_cut(world: &World, name: &[u8], content: &[u8]) {
    let cut = after_power_cut(world);
    let file = cut.lookup(ROOT, name).unwrap().ino;
    check(&cut, file, content);
    cut.close();
}

fn world() -> World {
    World::make_with(ALL, 64, OPTION)
}

#[test]
fn a_commit_makes_all_of_it_durable_at_once() {
    let world = world();
    let mut model = Model::make(&world, b"db", 50_000);
    let before = model.seen.clone();
    assert_eq!(call(&world, model.file, START), Ok(false));
    assert_eq!(call(&world, model.file, START), Ok(false), "it is started");
    for (at, len) in [(4096, 8192), (100, 50), (49_990, 30_000), (20_000, 1)] {
        model.write(&world, at, &bytes(at as u64, len));
        model.check(&world);
    }
    check_after_power_cut(&world, b"db", &before);
    // Neither an fsync nor a checkpoint commits.
    world.fs.fsync(&world.cx, model.file, false).unwrap();
    check_after_power_cut(&world, b"db", &before);
    world.judge_now();
    check_after_power_cut(&world, b"db", &before);
    model.write(&world, 8000, &bytes(7, 5000));
    assert_eq!(call(&world, model.file, COMMIT), Ok(false));
    model.check(&world);
    check_after_power_cut(&world, b"db", &model.seen);
    world.fs.segments().check();
    // Without a start it is an fsync.
    model.write(&world, 0, b"more");
    assert_eq!(call(&world, model.file, COMMIT), Ok(false));
    check_after_power_cut(&world, b"db", &model.seen);
    world.reopen();
}

#[test]
fn an_abort_brings_the_old_content_back() {
    let world = world();
    let mut model = Model::make(&world, b"db", 9000);
    let before = model.seen.clone();
    assert_eq!(
        call(&world, model.file, ABORT),
        Ok(false),
        "none is started"
    );
    let used = world.fs.statfs(&world.cx).unwrap().blocks_free;
    call(&world, model.file, START).unwrap();
    model.write(&world, 3000, &bytes(2, 60_000));
    world.fs.sync_all(&world.cx).unwrap();
    model.truncate(&world, 10);
    model.check(&world);
    assert_eq!(call(&world, model.file, ABORT), Ok(true));
    check(&world, model.file, &before);
    assert_eq!(world.fs.statfs(&world.cx).unwrap().blocks_free, used);
    check_after_power_cut(&world, b"db", &before);
    world.reopen();
}

#[test]
fn a_replaced_file_starts_empty() {
    let world = world();
    for (name, new) in [(&b"short"[..], 5000), (b"long", 90_000), (b"empty", 0)] {
        let mut model = Model::make(&world, name, 40_000);
        let before = model.seen.clone();
        assert_eq!(call(&world, model.file, REPLACE), Ok(true));
        model.seen.clear();
        model.check(&world);
        // A hole stays one.
        model.write(&world, new / 2, &bytes(3, new - new / 2));
        model.check(&world);
        check_after_power_cut(&world, name, &before);
        call(&world, model.file, COMMIT).unwrap();
        model.check(&world);
        check_after_power_cut(&world, name, &model.seen);
    }
    world.reopen();
}

#[test]
fn random_transactions_are_as_in_memory() {
    let features = format!("{ALL},quota");
    let world = World::make_with(&features, 64, "atomic_write,usrquota");
    let mut models: Vec<_> = (0..3_u8)
        .map(|n| Model::make(&world, &[b'a' + n], 30_000 * usize::from(n)))
        .collect();
    let mut state = 5_u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 33) % below
    };
    for round in 0..60 {
        let chosen = next(3) as usize;
        let model = &mut models[chosen];
        let before = model.seen.clone();
        let replace = next(4) == 0;
        call(&world, model.file, if replace { REPLACE } else { START }).unwrap();
        if replace {
            model.seen.clear();
        }
        for _ in 0..next(8) {
            match next(6) {
                0 => model.truncate(&world, next(150_000) as usize),
                1 => world.fs.sync_all(&world.cx).unwrap(),
                2 => {
                    let _ = world
                        .fs
                        .ioctl(&world.cx, model.file, 0x4004_f506, &[1, 0, 0, 0]);
                }
                _ => {
                    let (at, len) = (next(140_000) as usize, next(20_000) as usize + 1);
                    model.write(&world, at, &bytes(round + 9, len));
                }
            }
            model.check(&world);
        }
        if next(3) == 0 {
            call(&world, model.file, ABORT).unwrap();
            model.seen = before;
        } else {
            call(&world, model.file, COMMIT).unwrap();
        }
        model.check(&world);
        if round % 10 == 0 {
            check_after_power_cut(&world, &[b'a' + chosen as u8], &model.seen);
        }
    }
    world.fs.segments().check();
    for model in &models {
        model.check(&world);
    }
    world.reopen();
}

#[test]
fn only_a_writer_who_owns_a_plain_file_starts() {
    let world = world();
    let file = Model::make(&world, b"file", 5000).file;
    let features = |world: &World, file| {
        let answer = world.fs.ioctl(&world.cx, file, GET_FEATURES, &[]).unwrap();
        answer.unwrap().output[0] & 4
    };
    assert_eq!(features(&world, file), 4);
    let opened = |write, direct| {
        Some(OpenFile {
            id: 1,
            write,
            direct,
        })
    };
    let by = |uid, opened| Cx {
        uid,
        opened,
        ..world.cx.clone()
    };
    for number in [START, REPLACE, COMMIT, ABORT] {
        let read_only = by(0, opened(false, false));
        let refused = call_by(&world, &read_only, file, number);
        assert_eq!(refused, Err(FsError::NotOpenForWriting));
        let stranger = by(7, opened(true, false));
        assert_eq!(
            call_by(&world, &stranger, file, number),
            Err(FsError::Access)
        );
        let directory = call(&world, ROOT, number);
        assert_eq!(directory, Err(FsError::NotOpenForWriting));
    }
    let direct = by(0, opened(true, true));
    assert_eq!(
        call_by(&world, &direct, file, START).unwrap_err().errno(),
        22
    );
    world.pin_where_it_lies(file);
    assert_eq!(call(&world, file, START).unwrap_err().errno(), 22);
    world.close();

    let without = World::make("", 64);
    let file = Model::make(&without, b"file", 5000).file;
    assert_eq!(features(&without, file), 0);
    assert_eq!(call(&without, file, START).unwrap_err().errno(), 95);
    without.close();
}

#[test]
fn what_would_change_the_file_otherwise_is_refused() {
    let world = world();
    let file = Model::make(&world, b"file", 5000).file;
    call(&world, file, START).unwrap();
    let allocate = FallocMode::Allocate { keep_size: false };
    let refused = world.fs.fallocate(&world.cx, file, allocate, 0, 9000);
    assert_eq!(refused.unwrap_err().errno(), 95);
    let compressed = world.fs.set_flags(&world.cx, file, InodeFlags::COMPRESSED);
    assert_eq!(compressed.unwrap_err().errno(), 22);
    let pin = world.fs.ioctl(&world.cx, file, 0x4004_f50d, &[1, 0, 0, 0]);
    assert_eq!(pin.unwrap_err().errno(), 22);
    assert!(matches!(world.fs.hand_over(), Err(FsError::Again(_))));
    call(&world, file, ABORT).unwrap();
    world.close();
}

/// A caller of this process; these processes have ended.
#[derive(Debug)]
struct Caller(u64, Vec<u64>);

impl CallerState for Caller {
    fn is_killed(&self) -> bool {
        false
    }

    fn is_in_group(&self, _: u32) -> bool {
        false
    }

    fn process(&self) -> Option<u64> {
        Some(self.0)
    }

    fn has_ended(&self, process: u64) -> bool {
        self.1.contains(&process)
    }
}

#[test]
fn the_end_of_the_starter_is_an_abort() {
    let world = world();
    let mut model = Model::make(&world, b"db", 9000);
    let before = model.seen.clone();
    let by = |process, id, ended: &[u64]| Cx {
        opened: Some(OpenFile {
            id,
            write: true,
            direct: false,
        }),
        caller_state: Some(Arc::new(Caller(process, ended.to_vec()))),
        ..world.cx.clone()
    };
    let mut start = || {
        call_by(&world, &by(1, 10, &[]), model.file, START).unwrap();
        model.write(&world, 0, &bytes(4, 12_000));
    };
    let fs = &world.fs;
    let file = world.lookup(ROOT, b"db").unwrap().ino;
    start();
    // Other descriptors, other open files, and other processes.
    assert!(!fs.drop_abandoned(&by(1, 10, &[]), file));
    assert!(!fs.drop_abandoned(&by(2, 11, &[2]), file));
    assert!(!fs.drop_abandoned(&world.cx, file));
    assert!(!fs.closed(&by(1, 11, &[]), file));
    assert!(fs.drop_abandoned(&by(2, 12, &[1]), file));
    check(&world, file, &before);
    start();
    assert!(fs.closed(&by(3, 10, &[]), file));
    check(&world, file, &before);
    // A volume that is unmounted meanwhile, and a file without a name.
    start();
    fs.unlink(&world.cx, ROOT, b"db").unwrap();
    let other = Model::make(&world, b"other", 9000);
    call(&world, other.file, START).unwrap();
    world
        .fs
        .write(&world.cx, other.file, 0, &[1; 9000], false)
        .unwrap();
    let world = World::of(world.close(), OPTION);
    let file = world.lookup(ROOT, b"other").unwrap().ino;
    check(&world, file, &other.seen);
    world.close();
}

#[test]
fn a_full_volume_refuses_writes_and_keeps_the_old_content() {
    let world = World::make_with(ALL, 64, OPTION);
    let model = Model::make(&world, b"db", 200_000);
    call(&world, model.file, START).unwrap();
    let chunk = vec![7; 1 << 20];
    let mut at = 0;
    while let Ok(written) = world.fs.write(&world.cx, model.file, at, &chunk, false) {
        at += written as u64;
        assert!(at < 64 << 20);
    }
    assert!(at > 10 << 20, "{at}");
    assert_eq!(call(&world, model.file, ABORT), Ok(true));
    model.check(&world);
    call(&world, model.file, START).unwrap();
    let most = vec![8; 10 << 20];
    let written = world.fs.write(&world.cx, model.file, 0, &most, false);
    assert_eq!(written, Ok(most.len()));
    call(&world, model.file, COMMIT).unwrap();
    check(&world, model.file, &most);
    world.reopen();
}
