//! Power cuts while staged changes are applied: the volume has all of them or none, and is consistent.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use steadfs::tools::edit::{Editor, MkdirOptions, ModeChange, MoveOptions, RmOptions, Target};
use steadfs::tools::{Progress, ToolError, owner_cx, resolve};
use steadfs::{Options, StagedVolume};
use steadfs_block::{Device, MemDevice};
use steadfs_conformance::{Kind, judge, kind};
use steadfs_ext4::CacheSizes;
use steadfs_lab::crash::Tool;
use steadfs_lab::device::{Image, Log, Model, SimDevice, Survivors};
use steadfs_rt::{Mutex, Rank, sim};
use steadfs_vfs::{Attr, FileKind, FileSystem, test_support};

const CACHE: u64 = 16 << 20;
const MEMORY: u64 = 256 << 20;
/// Files of the volume, of this length.
const FILES: usize = 12;
const FILE_BYTES: usize = 9000;
/// More than the journal holds.
const LARGE_BYTES: usize = 5 << 20;

/// Runs `work` in a simulation; returns its result.
fn simulated<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let result = Arc::new(Mutex::new(Rank::Leaf, None));
    let there = Arc::clone(&result);
    let config = sim::Config {
        allow_daemons: true,
        ..sim::Config::new(1)
    };
    sim::run(config, move || {
        let value = work();
        *there.lock() = Some(value);
    });
    let value = result.lock().take();
    value.unwrap()
}

struct Failing;

impl Progress for Failing {
    fn file(&mut self, _: &[u8], _: &[u8]) {}
    fn bytes(&mut self, _: u64) {}
    fn problem(&mut self, error: &ToolError) {
        panic!("{error}");
    }
    fn stopped(&self) -> bool {
        false
    }
}

fn write(fs: &dyn FileSystem, path: &str, at: u64, bytes: &[u8]) {
    let cx = owner_cx();
    let file = resolve(fs, &cx, path.as_bytes(), true).unwrap();
    fs.write(&cx, file.ino(), at, bytes, false).unwrap();
}

/// The volume before: files with content, some in a directory.
fn fill(fs: &dyn FileSystem) {
    let (cx, mut failing) = (owner_cx(), Failing);
    let mut editor = Editor::new(fs, &cx, &mut failing);
    editor.mkdir(b"/d", &MkdirOptions::default()).unwrap();
    for n in 0..FILES {
        let path = format!("/d/{n}");
        let size = steadfs::tools::edit::SizeChange::parse("0");
        editor
            .truncate(path.as_bytes(), size.unwrap(), false)
            .unwrap();
        write(fs, &path, 0, &[n as u8 + 1; FILE_BYTES]);
    }
}

/// Changes of each kind, of which some overwrite content in place and some use what others have freed.
fn edit(fs: &dyn FileSystem) {
    let (cx, mut failing) = (owner_cx(), Failing);
    let mut editor = Editor::new(fs, &cx, &mut failing);
    let size = |text| steadfs::tools::edit::SizeChange::parse(text).unwrap();
    write(fs, "/d/0", 100, &[0xEE; 6000]);
    editor.truncate(b"/d/1", size("100"), false).unwrap();
    editor.rm(b"/d/2", RmOptions::default()).unwrap();
    editor.mkdir(b"/new", &MkdirOptions::default()).unwrap();
    for n in 0..40 {
        let path = format!("/new/{n}");
        editor.truncate(path.as_bytes(), size("0"), false).unwrap();
        write(fs, &path, 0, &[0xDD; 5000]);
    }
    let into = Target {
        path: b"/new",
        is_dir: true,
        is_name: false,
        no_follow: false,
    };
    editor
        .mv(&[b"/d/3", b"/d/4"], into, MoveOptions::default())
        .unwrap();
    let mode = ModeChange::parse("u=rw,go=").unwrap();
    editor.chmod(b"/d", &mode, true).unwrap();
    for n in 10..30 {
        let path = format!("/new/{n}");
        editor.rm(path.as_bytes(), RmOptions::default()).unwrap();
    }
}

/// All names, with attributes and content.
type Tree = BTreeMap<Vec<u8>, (Attr, Vec<u8>)>;

fn tree(fs: &dyn FileSystem) -> Tree {
    let cx = owner_cx();
    let seen = test_support::tree(fs, &cx).into_iter();
    seen.map(|(path, seen)| {
        let content = match seen.attr.kind {
            FileKind::Regular => fs.read(&cx, seen.attr.ino, 0, 1 << 20).unwrap().to_vec(),
            _ => Vec::new(),
        };
        (path, (seen.attr, content))
    })
    .collect()
}

/// What does not depend on the inodes that files have got, nor on the time.
fn without_inodes(tree: &Tree) -> Vec<(&[u8], u32, &[u8])> {
    let files = tree.iter();
    files
        .map(|(path, (attr, content))| (&path[..], attr.perm, &content[..]))
        .collect()
}

/// What a mount of `image` finds. `by_tools`: the volume is judged after its unmount.
fn found(kind: &'static Kind, image: &Image, by_tools: bool) -> Tree {
    let device = SimDevice::new(image, Model::default());
    let (tree, closed) = simulated(move || {
        let fs = kind.mount(Arc::new(device.clone()), "", CACHE).unwrap();
        let tree = tree(&*fs);
        fs.unmount().unwrap();
        (tree, device.content())
    });
    if by_tools {
        judge(kind, &MemDevice::from_bytes(&closed.to_bytes()));
    }
    tree
}

fn staged(device: Arc<dyn Device>) -> StagedVolume {
    let (options, sizes) = (Options::parse("").unwrap(), CacheSizes::of(CACHE));
    StagedVolume::on(device, Path::new("simulated"), sizes, &options, MEMORY).unwrap()
}

/// The volume before, and all requests of an application of the changes.
fn applied(kind: &'static Kind, model: Model) -> (Image, Log) {
    let volume = kind.make(kind.usual_mib(), &[]);
    let made = Arc::clone(&volume);
    simulated(move || {
        let fs = kind.mount(made, "", CACHE).unwrap();
        fill(&*fs);
        fs.unmount().unwrap();
    });
    let before = Image::from_bytes(&volume.to_bytes());
    let image = before.clone();
    let log = simulated(move || {
        let device = SimDevice::new(&image, model);
        let staged = staged(Arc::new(device.clone()));
        edit(&*staged.volume().fs());
        assert!(
            device.content().same_content(&image),
            "{kind:?}: written too early"
        );
        staged.apply().unwrap();
        device.log()
    });
    (before, log)
}

/// The volume with the changes, made by a mount.
fn edited(kind: &'static Kind, before: &Image) -> Tree {
    let device = Arc::new(MemDevice::from_bytes(&before.to_bytes()));
    simulated(move || {
        let fs = kind.mount(device, "", CACHE).unwrap();
        edit(&*fs);
        let tree = tree(&*fs);
        fs.unmount().unwrap();
        tree
    })
}

/// The tree that a mount finds after e2fsck.
fn found_after_e2fsck(kind: &'static Kind, image: &Image) -> Tree {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("staged-{kind:?}"));
    std::fs::create_dir_all(&dir).unwrap();
    let repair = Tool::E2fsck.repair(image, &dir).unwrap();
    assert!(repair.is_done(), "{}: {}", repair.status, repair.said);
    found(kind, &repair.image, true)
}

/// A device that takes time, so that requests are in flight at a cut. It tears writes into the units that the format
/// must survive.
fn device(kind: &Kind, fua: bool) -> Model {
    Model {
        atomic_unit: if kind.is_ext() { 512 } else { 4096 },
        fua,
        ..Model::solid_state()
    }
}

fn cut_everywhere(name: &str, fua: bool) {
    let kind = kind(name);
    let (before, log) = applied(kind, device(kind, fua));
    let old = found(kind, &before, true);
    let new = found(kind, &log.image(log.len(), &Survivors::None), true);
    assert_eq!(without_inodes(&new), without_inodes(&edited(kind, &before)));
    let (mut none, mut all, mut partial) = (0, 0, 0);
    for (number, cut) in log.cut_points().enumerate() {
        let at = log.at(cut);
        let limit = if number % 3 == 0 { 6 } else { 2 };
        for survivors in at.choices(limit, cut as u64) {
            let image = at.image(&survivors);
            let what = || {
                let text = at.describe(&survivors);
                format!("{name}, FUA {fua}: cut {cut} of {}: {text}", log.len())
            };
            let sampled = (none + all) % 16 == 0;
            let tree = found(kind, &image, sampled);
            match (tree == old, tree == new) {
                (true, _) => none += 1,
                (_, true) => all += 1,
                _ => panic!("{}", what()),
            }
            if sampled && kind.is_ext() {
                let theirs = found_after_e2fsck(kind, &image);
                assert!(theirs == tree, "{}: after e2fsck", what());
            }
            let kept = at.units_of(&survivors);
            partial += u32::from(kept.contains(&true) && kept.contains(&false));
        }
    }
    assert!(
        none > 0 && all > 0 && partial > 10,
        "{name}, FUA {fua}: {none} without and {all} with the changes, {partial} with a part of the writes"
    );
}

#[test]
fn ext_volumes_have_all_changes_or_none_at_every_cut() {
    for (name, fua) in [("ext3", true), ("ext4_1k", false), ("ext4_4k", true)] {
        cut_everywhere(name, fua);
    }
}

#[test]
fn f2fs_has_all_changes_or_none_at_every_cut() {
    [true, false]
        .into_iter()
        .for_each(|fua| cut_everywhere("f2fs", fua));
}

#[test]
fn changes_that_one_transaction_cannot_hold_leave_the_device_as_it_is() {
    let kind = kind("ext4_1k");
    let volume = kind.make(kind.usual_mib(), &[]);
    simulated(move || {
        let fs = kind.mount(Arc::clone(&volume) as _, "", CACHE).unwrap();
        fill(&*fs);
        write(&*fs, "/d/0", 0, &[1; LARGE_BYTES]);
        fs.unmount().unwrap();
        let image = Image::from_bytes(&volume.to_bytes());
        let device = SimDevice::new(&image, Model::default());
        let staged = staged(Arc::new(device.clone()));
        // Content that the volume has already must go through the log.
        write(&*staged.volume().fs(), "/d/0", 0, &[2; LARGE_BYTES]);
        let error = staged.apply().unwrap_err().to_string();
        assert!(
            error.contains("one transaction of this journal has room for"),
            "{error}"
        );
        assert!(device.content().same_content(&image));
    });
}
