use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_base::IoTag;
use steadfs_block::{Bio, Done, Geometry, MemDevice};
use steadfs_vfs::FileSystem;

use super::*;
use crate::CacheSizes;
use crate::disk::superblock::STATE_CLEAN;
use crate::disk::test_images::Image;
use crate::test_world::{ROOT, World, check};

mod freezing;
mod warnings;

const EXT4: &[&str] = &["-t", "ext4", "-O", "orphan_file"];

/// A device that is read-only until [`Device::make_writable`].
pub(crate) struct ReadOnlyUntilAsked {
    inner: Arc<MemDevice>,
    read_only: Geometry,
    writable: AtomicBool,
    allows: bool,
}

impl ReadOnlyUntilAsked {
    pub(crate) fn new(inner: &Arc<MemDevice>, allows: bool) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            read_only: Geometry {
                read_only: true,
                ..inner.geometry().clone()
            },
            writable: AtomicBool::new(false),
            allows,
        })
    }
}

impl Device for ReadOnlyUntilAsked {
    fn geometry(&self) -> &Geometry {
        if self.writable.load(Ordering::Acquire) {
            self.inner.geometry()
        } else {
            &self.read_only
        }
    }

    fn start(&self, bio: Bio, done: Done) {
        match self.geometry().check(&bio) {
            Ok(()) => self.inner.start(bio, done),
            Err(error) => done(bio, Err(error)),
        }
    }

    fn make_writable(&self) -> Result<(), String> {
        if !self.allows {
            return Err("write-protected".to_owned());
        }
        self.writable.store(true, Ordering::Release);
        Ok(())
    }
}

fn cx() -> Cx {
    Cx::default()
}

fn open(device: Arc<dyn Device>, list: &str) -> Arc<Ext4> {
    let options = MountOptions::parse(list).unwrap();
    Ext4::open(device, options, CacheSizes::of(16 << 20))
        .unwrap()
        .0
}

fn write(fs: &Ext4, name: &[u8], data: &[u8]) -> Result<()> {
    let attr = FileSystem::mknod(fs, &cx(), ROOT, name, 0o100_644, 0)?;
    let written = fs.write(&cx(), attr.ino, 0, data, false);
    fs.forget(attr.ino, 1);
    written.map(drop)
}

fn read(fs: &Ext4, name: &[u8]) -> Vec<u8> {
    let attr = FileSystem::lookup(fs, &cx(), ROOT, name).unwrap();
    let data = fs.read(&cx(), attr.ino, 0, 1 << 20).unwrap().to_vec();
    fs.forget(attr.ino, 1);
    data
}

fn judge(image: &Image, device: &MemDevice) -> Superblock {
    let bytes = device.to_bytes();
    std::fs::write(image.path(), &bytes).unwrap();
    check(image);
    Superblock::parse(&bytes[1024..2048]).unwrap()
}

#[test]
fn a_remount_shows_its_options() {
    for (options, threshold) in [
        (EXT4, ",async_checkpoint=50"),
        (&["-t", "ext3"], ",async_checkpoint=50"),
        (&["-t", "ext2"], ""),
    ] {
        let fs = open(Image::make(options, "32M").device(), "");
        fs.remount(&cx(), "ro,commit=7").unwrap();
        assert_eq!(fs.options(), format!("ro,relatime,commit=7{threshold}"));
        fs.remount(&cx(), "rw,commit=5").unwrap();
        assert_eq!(fs.options(), format!("rw,relatime{threshold}"));
        fs.close().unwrap();
    }
}

#[test]
fn a_volume_mounted_read_only_becomes_writable_with_its_journal_replayed() {
    let world = World::make(EXT4, "32M");
    let file = world.file(ROOT, b"durable").unwrap();
    let inode = world.fs.by_number(file.ino, IoTag::default()).unwrap();
    world
        .fs
        .write_file(&cx(), &inode, 0, &[5; 70_000], false)
        .unwrap();
    let device = world.cut_power();
    let before = device.to_bytes();
    let fs = open(ReadOnlyUntilAsked::new(&device, true), "ro");
    assert_eq!(read(&fs, b"durable"), [5; 70_000]);
    assert!(device.to_bytes() == before);
    fs.remount(&cx(), "rw").unwrap();
    assert_eq!(read(&fs, b"durable"), [5; 70_000]);
    write(&fs, b"more", &[6; 9000]).unwrap();
    FileSystem::unlink(&*fs, &cx(), ROOT, b"durable").unwrap();
    fs.close().unwrap();
    judge(&world.image, &device);
    let fs = open(device, "");
    assert_eq!(read(&fs, b"more"), [6; 9000]);
}

#[test]
fn a_refused_remount_states_its_reason() {
    let refused = |fs: &Ext4, word: &str| {
        let said = fs.remount(&cx(), "rw").unwrap_err().to_string();
        assert!(said.contains(word), "{said}");
        assert_eq!(fs.options(), "ro,relatime,async_checkpoint=50");
        assert_eq!(write(fs, b"no", b""), Err(FsError::ReadOnly));
    };
    let image = Image::make(EXT4, "32M");
    image.debugfs("feature FEATURE_R30");
    let device = image.device();
    refused(&open(device, "ro"), "FEATURE_R30");

    let image = Image::make(EXT4, "32M");
    let device = image.device();
    refused(
        &open(ReadOnlyUntilAsked::new(&device, false), "ro"),
        "write-protected",
    );

    // Another program mounted it meanwhile.
    let fs = open(ReadOnlyUntilAsked::new(&device, true), "ro");
    open(Arc::clone(&device) as _, "").close().unwrap();
    refused(&fs, "another program");

    let fs = open(device, "");
    fs.shutdown(&cx(), steadfs_vfs::ShutdownMode::NoFlush)
        .unwrap();
    assert!(matches!(fs.remount(&cx(), "rw"), Err(FsError::Stopped(_))));
    assert!(fs.close().is_err());
}

/// The threshold and what is shown, or why it is refused.
type Expected = std::result::Result<(Option<u8>, &'static str), &'static str>;

const ASYNC_CHECKPOINT: &[(&str, Expected)] = &[
    ("", Ok((Some(50), "async_checkpoint=50"))),
    ("async_checkpoint", Ok((Some(50), "async_checkpoint=50"))),
    ("async_checkpoint=50", Ok((Some(50), "async_checkpoint=50"))),
    ("async_checkpoint=1", Ok((Some(1), "async_checkpoint=1"))),
    ("async_checkpoint=30", Ok((Some(30), "async_checkpoint=30"))),
    ("async_checkpoint=99", Ok((Some(99), "async_checkpoint=99"))),
    ("noasync_checkpoint", Ok((None, "noasync_checkpoint"))),
    (
        "noasync_checkpoint,async_checkpoint=70",
        Ok((Some(70), "async_checkpoint=70")),
    ),
    (
        "async_checkpoint=70,noasync_checkpoint",
        Ok((None, "noasync_checkpoint")),
    ),
    ("async_checkpoint=0", Err("needs a number from 1 to 99")),
    ("async_checkpoint=100", Err("needs a number from 1 to 99")),
    ("async_checkpoint=-1", Err("needs a number from 1 to 99")),
    (
        "async_checkpoint=4294967346",
        Err("needs a number from 1 to 99"),
    ),
    ("async_checkpoint=", Err("needs a number from 1 to 99")),
    ("async_checkpoint=50%", Err("needs a number from 1 to 99")),
    ("noasync_checkpoint=50", Err("takes no value")),
    ("asynccheckpoint", Err("did you mean async_checkpoint?")),
];

/// The threshold of background reclaim in percent, and how the options show it.
fn reclaim_of(fs: &Ext4) -> (Option<u8>, String) {
    let journal = fs.txns().journal().unwrap();
    let options = fs.options();
    let shown = options.split_once("relatime,").unwrap().1;
    (journal.reclaim_policy().low_free_percent, shown.to_owned())
}

/// `async_checkpoint` at mount and by remount: the given value is what the reclaim task uses and what is shown; an
/// invalid value changes nothing.
#[test]
fn background_reclaim_follows_its_option() {
    let image = Image::make(EXT4, "32M");
    let bytes = image.bytes();
    let volume = || Arc::new(MemDevice::from_bytes(&bytes)) as Arc<dyn Device>;
    let mounted = open(volume(), "async_checkpoint=77");
    for (list, due) in ASYNC_CHECKPOINT {
        match due {
            Ok((percent, text)) => {
                let due = (*percent, (*text).to_owned());
                let fs = open(volume(), list);
                assert_eq!(reclaim_of(&fs), due, "{list}");
                fs.close().unwrap();
                mounted.remount(&cx(), list).unwrap();
                // A remount without the option keeps it.
                if !list.is_empty() {
                    assert_eq!(reclaim_of(&mounted), due, "{list}");
                }
            }
            Err(why) => {
                let said = MountOptions::parse(list).unwrap_err().to_string();
                assert!(said.contains(why), "{list}: {said}");
                let before = reclaim_of(&mounted);
                let said = mounted.remount(&cx(), list).unwrap_err().to_string();
                assert!(said.contains(why), "{list}: {said}");
                assert_eq!(reclaim_of(&mounted), before, "{list}");
            }
        }
    }
    mounted.close().unwrap();
}

/// Accepted on a read-only mount, and active from the first remount for writing.
#[test]
fn background_reclaim_follows_the_option_of_a_read_only_mount() {
    let image = Image::make(EXT4, "32M");
    let mounted = open(image.device(), "");
    mounted.remount(&cx(), "ro,async_checkpoint=60").unwrap();
    let shown = mounted.options();
    assert!(shown.ends_with("relatime,async_checkpoint=60"), "{shown}");
    mounted.remount(&cx(), "rw").unwrap();
    assert_eq!(reclaim_of(&mounted).0, Some(60));
    mounted.close().unwrap();
    let reader = open(image.device(), "ro,async_checkpoint=61");
    assert!(reader.txns().journal().is_none());
    reader.remount(&cx(), "rw").unwrap();
    let due = (Some(61), "async_checkpoint=61".to_owned());
    assert_eq!(reclaim_of(&reader), due);
    reader.close().unwrap();
}

#[test]
fn background_reclaim_needs_a_journal() {
    let image = Image::make(&["-t", "ext4", "-O", "^has_journal"], "16M");
    let device = image.device();
    for list in ["async_checkpoint", "ro,async_checkpoint=30"] {
        let options = MountOptions::parse(list).unwrap();
        let opened = Ext4::open(Arc::clone(&device) as _, options, CacheSizes::of(16 << 20));
        let said = opened.map(drop).unwrap_err().to_string();
        assert!(said.contains("async_checkpoint: needs a journal"), "{said}");
    }
    let fs = open(Arc::clone(&device) as _, "noasync_checkpoint,commit=9");
    let said = fs.remount(&cx(), "async_checkpoint,commit=8").unwrap_err();
    assert!(said.to_string().contains("needs a journal"), "{said}");
    assert!(fs.options().contains("commit=9"), "{}", fs.options());
    fs.close().unwrap();
}

/// The same operations leave the same files and a consistent volume, with background reclaim and without.
#[test]
fn background_reclaim_changes_no_results() {
    let work = |options: &str| {
        let image = Image::make(&["-t", "ext4", "-b", "1024", "-J", "size=1"], "24M");
        let world = World::open_with(image, MountOptions::parse(options).unwrap());
        let (fs, cx) = (&world.fs, &world.cx);
        for n in 0..400usize {
            let dir = match n % 20 {
                0 => {
                    world
                        .mkdir(ROOT, format!("dir {n}").as_bytes())
                        .unwrap()
                        .ino
                }
                _ => {
                    let name = format!("dir {}", n / 20 * 20);
                    world.lookup(ROOT, name.as_bytes()).unwrap().ino
                }
            };
            let name = format!("file {n}");
            let ino = world.file(dir, name.as_bytes()).unwrap().ino;
            fs.write(cx, ino, 0, &vec![n as u8; n * 29], false).unwrap();
            if n % 3 == 0 {
                fs.fsync(cx, ino, false).unwrap();
            }
            if n % 7 == 5 {
                fs.unlink(cx, dir, name.as_bytes()).unwrap();
            }
        }
        let stats = fs.txns().journal().unwrap().stats();
        assert!(stats.tail_moves > 0, "{options}: {stats:?}");
        let nobody = options == "noasync_checkpoint";
        assert!(!nobody || stats.freed_in_background == 0, "{stats:?}");
        let world = world.reopen();
        let mut seen = Vec::new();
        for dir in world.names(ROOT) {
            let ino = world.lookup(ROOT, &dir).unwrap().ino;
            for name in world.names(ino) {
                let file = world.lookup(ino, &name).unwrap();
                let read = world.fs.read(&world.cx, file.ino, 0, 1 << 20);
                seen.push((dir.clone(), name, file.size, read.ok().map(|r| r.to_vec())));
            }
        }
        world.close();
        seen
    };
    let [on, off] = ["async_checkpoint=90", "noasync_checkpoint"].map(work);
    assert!(on.len() > 340, "{}", on.len());
    assert!(on == off);
}
