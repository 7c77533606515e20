use std::sync::atomic::AtomicBool;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Done, Geometry, MemDevice};
use steadfs_rt::{Mutex, Rank, spawn};
use steadfs_vfs::{FileSystem, SetAttr};

use super::*;
use crate::CacheSizes;
use crate::disk::superblock::STATE_CLEAN;
use crate::disk::test_images::Image;
use crate::test_world::{ROOT, World, check};

const EXT4: &[&str] = &["-t", "ext4", "-O", "orphan_file"];

/// A device opened for reading only until it is asked to become writable.
struct Reluctant {
    inner: Arc<MemDevice>,
    read_only: Geometry,
    writable: AtomicBool,
    allows: bool,
}

impl Reluctant {
    fn new(inner: &Arc<MemDevice>, allows: bool) -> Arc<Self> {
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

impl Device for Reluctant {
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
fn writable_read_only_and_back() {
    for options in [EXT4, &["-t", "ext3"], &["-t", "ext2"]] {
        let image = Image::make(options, "32M");
        let device = Arc::new(MemDevice::from_bytes(&image.bytes()));
        let fs = open(Arc::clone(&device) as _, "");
        for round in 0..3 {
            let name = format!("file{round}");
            write(&fs, name.as_bytes(), &[7; 10_000]).unwrap();
            fs.remount(&cx(), "ro,commit=7").unwrap();
            let sb = judge(&image, &device);
            assert!(!sb.features().incompat.contains(Incompat::NEEDS_RECOVERY));
            assert_ne!(sb.state() & STATE_CLEAN, 0);
            assert_eq!(sb.raw().mnt_count.get(), round + 1);
            assert_eq!(fs.options(), "ro,relatime,commit=7");
            assert_eq!(write(&fs, b"no", b""), Err(FsError::ReadOnly));
            let attr = FileSystem::lookup(&*fs, &cx(), ROOT, name.as_bytes()).unwrap();
            let data = fs.write(&cx(), attr.ino, 0, b"x", false);
            assert_eq!(data, Err(FsError::ReadOnly));
            let set = SetAttr {
                perm: Some(0o600),
                ..SetAttr::default()
            };
            assert_eq!(
                FileSystem::setattr(&*fs, &cx(), attr.ino, &set),
                Err(FsError::ReadOnly)
            );
            fs.fsync(&cx(), attr.ino, false).unwrap();
            fs.forget(attr.ino, 1);
            assert_eq!(read(&fs, name.as_bytes()), [7; 10_000]);
            let before = device.to_bytes();
            fs.sync_all(&cx()).unwrap();
            assert!(
                device.to_bytes() == before,
                "a read-only volume was written"
            );
            fs.remount(&cx(), "rw,commit=5").unwrap();
            assert_eq!(fs.options(), "rw,relatime");
        }
        write(&fs, b"last", b"content").unwrap();
        fs.close().unwrap();
        judge(&image, &device);
        assert_eq!(read(&open(device, "ro"), b"last"), b"content");
    }
}

#[test]
fn unlinked_files_in_use_keep_a_volume_writable() {
    let image = Image::make(EXT4, "32M");
    let device = Arc::new(MemDevice::from_bytes(&image.bytes()));
    let fs = open(Arc::clone(&device) as _, "");
    write(&fs, b"file", b"content").unwrap();
    let attr = FileSystem::lookup(&*fs, &cx(), ROOT, b"file").unwrap();
    FileSystem::unlink(&*fs, &cx(), ROOT, b"file").unwrap();
    assert_eq!(fs.remount(&cx(), "ro"), Err(FsError::Busy));
    write(&fs, b"still", b"writable").unwrap();
    // The kernel's word that it lets the file go comes a moment late.
    let late = Arc::clone(&fs);
    let task = spawn("late", move || {
        sleep(Duration::from_millis(50));
        late.forget(attr.ino, 1);
    });
    fs.remount(&cx(), "ro").unwrap();
    task.join();
    let sb = judge(&image, &device);
    assert_eq!(sb.last_orphan(), None);
    fs.close().unwrap();
}

#[test]
fn writers_lose_nothing_when_the_volume_becomes_read_only() {
    let image = Image::make(EXT4, "64M");
    let device = Arc::new(MemDevice::from_bytes(&image.bytes()));
    let fs = open(Arc::clone(&device) as _, "");
    let taken: Arc<Mutex<Vec<(String, usize)>>> = Arc::new(Mutex::new(Rank::Leaf, Vec::new()));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (fs, taken) = (Arc::clone(&fs), Arc::clone(&taken));
            spawn("writer", move || {
                for n in 0.. {
                    let name = format!("w{writer}-{n}");
                    let len = 1 + n * 977 % 20_000;
                    match write(&fs, name.as_bytes(), &vec![writer; len]) {
                        Ok(()) => taken.lock().push((name, len)),
                        Err(error) => {
                            assert_eq!(error, FsError::ReadOnly);
                            return;
                        }
                    }
                }
            })
        })
        .collect();
    sleep(Duration::from_millis(30));
    fs.remount(&cx(), "ro").unwrap();
    let copy = Arc::new(MemDevice::from_bytes(&device.to_bytes()));
    for writer in writers {
        writer.join();
    }
    judge(&image, &copy);
    let again = open(copy, "ro");
    let taken = taken.lock().clone();
    assert!(!taken.is_empty());
    for (name, len) in taken {
        assert_eq!(read(&again, name.as_bytes()).len(), len, "{name}");
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
    let fs = open(Reluctant::new(&device, true), "ro");
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
fn what_must_stay_read_only_says_why() {
    let refused = |fs: &Ext4, word: &str| {
        let said = fs.remount(&cx(), "rw").unwrap_err().to_string();
        assert!(said.contains(word), "{said}");
        assert_eq!(fs.options(), "ro,relatime");
        assert_eq!(write(fs, b"no", b""), Err(FsError::ReadOnly));
    };
    let image = Image::make(&["-t", "ext4", "-O", "inline_data"], "32M");
    let device = Arc::new(MemDevice::from_bytes(&image.bytes()));
    refused(&open(device, "ro"), "inline_data");

    let image = Image::make(EXT4, "32M");
    let device = Arc::new(MemDevice::from_bytes(&image.bytes()));
    refused(
        &open(Reluctant::new(&device, false), "ro"),
        "write-protected",
    );

    // Somebody else mounted it meanwhile.
    let fs = open(Reluctant::new(&device, true), "ro");
    open(Arc::clone(&device) as _, "").close().unwrap();
    refused(&fs, "another program");

    let fs = open(device, "");
    fs.shutdown(&cx(), steadfs_vfs::ShutdownMode::NoFlush)
        .unwrap();
    assert!(matches!(fs.remount(&cx(), "rw"), Err(FsError::Stopped(_))));
    assert!(fs.close().is_err());
}
