//! f2fs volumes to be edited: made by mkfs.f2fs and sload.f2fs, then changed by us, some with a node chain to recover.

use std::path::Path;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_f2fs::{CacheSizes, F2fs, MountOptions};
use steadfs_lab::device::Image;
use steadfs_rt::sim;
use steadfs_vfs::{Cx, FileSystem, SetXattr};

use crate::hostile::exercise::CACHE;
use crate::hostile::f2fs::{F2fsBase, Recipe};
use crate::hostile::{ImageDevice, encrypted};

const ALL_FEATURES: &str = "extra_attr,inode_checksum,sb_checksum,inode_crtime,lost_found";

/// How a volume is made.
struct Made {
    name: &'static str,
    /// Arguments of mkfs.f2fs.
    args: &'static str,
    /// By sload.f2fs, which fails with some features; else all files are made by us.
    loaded: bool,
    /// Copied while mounted, after fsyncs.
    dirty: bool,
}

const fn made(name: &'static str, args: &'static str) -> Made {
    Made {
        name,
        args,
        loaded: false,
        dirty: false,
    }
}

const fn loaded(name: &'static str, args: &'static str) -> Made {
    Made {
        loaded: true,
        ..made(name, args)
    }
}

const fn dirty(name: &'static str, args: &'static str) -> Made {
    Made {
        dirty: true,
        ..made(name, args)
    }
}

const MADE: &[Made] = &[
    loaded("plain", ""),
    loaded("all", "-i -O ALL"),
    loaded("sections", "-s 2"),
    made(
        "attributes",
        "-i -C utf8 -O ALL,flexible_inline_xattr,encrypt",
    ),
    made("compression", "-i -O extra_attr,compression,encrypt"),
    dirty("dirty", ""),
    dirty("dirty-all", "-i -O ALL,flexible_inline_xattr,encrypt"),
];

/// Makes every base, using `scratch` for files.
///
/// # Panics
/// If one cannot be made.
pub fn make(scratch: &Path) -> Vec<F2fsBase> {
    let bases = MADE.iter().map(|made| {
        let args = made.args.replace("ALL", ALL_FEATURES);
        let recipe = Recipe::new(scratch, made.name, &args);
        let image = match made.loaded {
            true => recipe.make(),
            false => Image::load(&recipe.make_empty()).expect("a file"),
        };
        F2fsBase::of(made.name, decorate(image, made))
    });
    bases.collect()
}

/// Adds what sload.f2fs does not make: attributes, hashed and inline directories, holes, orphans, a node chain.
fn decorate(image: Image, made: &Made) -> Image {
    let dirty = made.dirty;
    let (encrypts, folds) = (made.args.contains("encrypt"), made.args.contains("utf8"));
    let run = move || {
        let device = Arc::new(ImageDevice::new(image));
        let options = MountOptions::default();
        let opened = F2fs::open(Arc::clone(&device) as _, options, CacheSizes::of(CACHE));
        let (fs, _) = opened.expect("a good volume can be mounted");
        add_files(&fs);
        if encrypts {
            encrypted::fill(&*fs, folds);
        }
        fs.sync_all(&Cx::default()).expect("a device in memory");
        if dirty {
            add_chains(&fs);
        }
        let content = device.content();
        fs.unmount().expect("a good volume unmounts");
        if dirty { content } else { device.content() }
    };
    sim::run(sim::Config::new(1), run).value
}

/// Makes a file of `len` bytes unless it is there.
fn ensure(fs: &F2fs, name: &[u8], len: usize) -> InodeNo {
    let cx = Cx::default();
    match fs.lookup(&cx, fs.root(), name) {
        Ok(attr) => attr.ino,
        Err(_) => {
            let file = fs.mknod(&cx, fs.root(), name, 0o100_644, 0);
            let ino = file.expect("a file can be made").ino;
            fs.write(&cx, ino, 0, &vec![0x5A; len], false)
                .expect("there is space");
            ino
        }
    }
}

fn add_files(fs: &F2fs) {
    let cx = Cx::default();
    let dir = fs.mkdir(&cx, fs.root(), b"indexed", 0o755);
    let dir = dir.expect("a directory can be made").ino;
    for n in 0..300 {
        let name = format!("another name of some length, {n}");
        let file = fs.mknod(&cx, dir, name.as_bytes(), 0o100_644, 0);
        fs.forget(file.expect("a file can be made").ino, 1);
    }
    for (name, len) in [
        (&b"small"[..], 20),
        (b"empty", 0),
        (b"large", 400_000),
        (b"deep", 5_000_000),
    ] {
        let ino = ensure(fs, name, len);
        for (attribute, len) in [(&b"user.tiny"[..], 10), (b"user.large", 2000)] {
            fs.setxattr(&cx, ino, attribute, &vec![b'v'; len], SetXattr::Any)
                .expect("attributes can be set");
        }
    }
    let file = fs.mknod(&cx, fs.root(), b"scattered", 0o100_644, 0);
    let file = file.expect("a file can be made").ino;
    for n in 0..12 {
        fs.write(&cx, file, n * 700_000, b"here", false)
            .expect("there is space");
    }
}

/// New, changed, renamed and unlinked files with fsyncs, but no checkpoint.
fn add_chains(fs: &F2fs) {
    let (cx, root) = (Cx::default(), fs.root());
    let large = ensure(fs, b"large", 0);
    fs.write(&cx, large, 50_000, &[b'c'; 60_000], false)
        .expect("there is space");
    fs.fsync(&cx, large, false).expect("a device in memory");
    for n in 0..20_u64 {
        let name = format!("new {n}");
        let file = fs.mknod(&cx, root, name.as_bytes(), 0o100_644, 0);
        let ino = file.expect("a file can be made").ino;
        let len = if n % 2 == 0 { 100 } else { 9000 };
        fs.write(&cx, ino, n * 300, &vec![b'd'; len], false)
            .expect("there is space");
        if n % 5 == 0 {
            fs.setxattr(&cx, ino, b"user.large", &[b'v'; 1000], SetXattr::Any)
                .expect("attributes can be set");
        }
        fs.fsync(&cx, ino, false).expect("a device in memory");
        if n % 3 == 0 {
            fs.unlink(&cx, root, name.as_bytes())
                .expect("a file can be unlinked");
        }
    }
}
