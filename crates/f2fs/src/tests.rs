//! Whole volumes, made and filled by f2fs-tools, read through file-system calls.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_vfs::{Cx, FileKind, FileSystem, FsError, Seek};

use crate::disk::BLOCK_SIZE;
use crate::{CacheSizes, F2fs, MountOptions};
use steadfs_f2fs_format::test_support::Image;
use steadfs_f2fs_format::test_support::tree::{MATRIX, make_tree};

mod background;
mod batching;
mod boost;
mod chains;
mod checkpoint_disable;
mod checkpoints;
mod compressed;
mod corrupt;
mod crafted;
mod cross_linked;
mod encrypted;
mod formatted;
mod groups;
mod hostile;
mod hostile_writes;
mod merging;
mod mounting;
mod nodes;
mod placing;
mod read_ahead;
mod resized;
mod roll_forward;
mod slow;
mod triggers;

fn read_only() -> MountOptions {
    MountOptions::parse("ro").unwrap()
}

pub(crate) fn mount_bytes(bytes: &[u8]) -> steadfs_vfs::Result<Arc<F2fs>> {
    let device = MemDevice::new(bytes.len() as u64);
    device.write(0, bytes);
    mount_device(&Arc::new(device))
}

fn mount_device(device: &Arc<MemDevice>) -> steadfs_vfs::Result<Arc<F2fs>> {
    let device = Arc::clone(device) as _;
    F2fs::open(device, read_only(), CacheSizes::of(64 << 20)).map(|(fs, _)| fs)
}

fn mount(image: &Image) -> Arc<F2fs> {
    mount_device(&image.device()).unwrap()
}

/// The names in a directory, listed a few at a time.
fn names(fs: &F2fs, dir: InodeNo) -> Vec<(Vec<u8>, InodeNo, Option<FileKind>)> {
    let mut out = Vec::new();
    let mut cookie = 0;
    loop {
        let before = out.len();
        fs.readdir(&Cx::default(), dir, cookie, &mut |entry| {
            out.push((entry.name.to_vec(), entry.ino, entry.kind));
            cookie = entry.next;
            out.len() < before + 7
        })
        .unwrap();
        if out.len() == before {
            return out;
        }
    }
}

/// Compares a directory of the volume with one of the host; returns the number of names.
fn compare(fs: &F2fs, dir: InodeNo, host: &Path) -> usize {
    let cx = Cx::default();
    let mut listed = names(fs, dir);
    assert_eq!((&listed[0].0[..], listed[0].1), (&b"."[..], dir));
    assert_eq!(&listed[1].0[..], b"..");
    assert_eq!(fs.lookup(&cx, dir, b"..").unwrap().ino, listed[1].1);
    listed.drain(..2);
    listed.retain(|(name, ..)| name != b"lost+found");
    listed.sort_by(|a, b| a.0.cmp(&b.0));
    let mut wanted: Vec<PathBuf> = fs::read_dir(host)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    wanted.sort();
    let found: Vec<_> = listed.iter().map(|(name, ..)| name.clone()).collect();
    let names = wanted
        .iter()
        .map(|p| p.file_name().unwrap().as_bytes().to_vec());
    assert_eq!(found, names.collect::<Vec<_>>());
    let mut count = 0;
    for (path, (name, ino, kind)) in wanted.iter().zip(&listed) {
        let attr = fs.lookup(&cx, dir, name).unwrap();
        let meta = fs::symlink_metadata(path).unwrap();
        assert_eq!((attr.ino, Some(attr.kind)), (*ino, *kind));
        assert_eq!(attr.kind.mode_bits() | attr.perm, meta.mode(), "{path:?}");
        assert_eq!(attr.mtime.secs, meta.mtime());
        match attr.kind {
            FileKind::Directory => count += compare(fs, attr.ino, path),
            FileKind::Symlink => {
                let target = fs::read_link(path).unwrap();
                assert_eq!(
                    fs.readlink(&cx, attr.ino).unwrap(),
                    target.as_os_str().as_bytes()
                );
            }
            _ => {
                let content = fs::read(path).unwrap();
                assert_eq!(attr.size, content.len() as u64);
                let got = fs
                    .read(&cx, attr.ino, 0, content.len() + 10)
                    .unwrap()
                    .to_vec();
                assert!(got == content, "{path:?}");
                if content.len() > 6000 {
                    let got = fs.read(&cx, attr.ino, 4000, 1500).unwrap().to_vec();
                    assert!(got == content[4000..5500], "{path:?}");
                }
            }
        }
        fs.forget(attr.ino, 1);
        count += 1;
    }
    assert_eq!(
        fs.lookup(&cx, dir, b"not there").unwrap_err(),
        FsError::NotFound
    );
    count
}

#[test]
fn trees_of_sload_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    make_tree(&tree);
    for options in MATRIX {
        let image = Image::make(options, 400);
        image.load(&tree, &[]);
        let fs = mount(&image);
        let count = compare(&fs, fs.root(), &tree);
        assert!(count > 3020, "{options:?}");
        let usage = fs.statfs(&Cx::default()).unwrap();
        assert!(usage.blocks_free < usage.blocks && usage.files_free < usage.files);
    }
}

#[test]
fn larger_volumes_and_holes() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    // A file with holes: sload.f2fs writes them as blocks, so only the content is compared.
    let file = fs::File::create(tree.join("sparse")).unwrap();
    file.set_len(9 << 20).unwrap();
    std::os::unix::fs::FileExt::write_at(&file, b"in the middle", 5 << 20).unwrap();
    let image = Image::make(&[], 2000);
    image.load(&tree, &[]);
    let fs = mount(&image);
    assert_eq!(compare(&fs, fs.root(), &tree), 1);
    let cx = Cx::default();
    let file = fs.lookup(&cx, fs.root(), b"sparse").unwrap();
    assert_eq!(
        fs.seek(&cx, file.ino, 9 << 20, Seek::Data),
        Err(FsError::NoSuchOffset)
    );
    let data = fs.seek(&cx, file.ino, 0, Seek::Data).unwrap();
    assert!(data <= 5 << 20);
    assert!(fs.seek(&cx, file.ino, 5 << 20, Seek::Hole).unwrap() > 5 << 20);
}

/// The version of the last checkpoint is a value of the device, as any other.
#[test]
fn a_version_that_cannot_be_followed_is_only_read() {
    let image = Image::make(&[], 64);
    let mut bytes = fs::read(image.path()).unwrap();
    let opened = image.open();
    let (layout, pack) = (opened.layout(), opened.pack);
    let mut checkpoint = opened.checkpoint.clone();
    // No other pack is there to be compared with.
    let other = layout.pack_start(1 - pack).0 as usize * BLOCK_SIZE;
    bytes[other..other + BLOCK_SIZE].fill(0);
    for (version, is_writable) in [(u64::MAX, false), (1 << 63, false), ((1 << 63) - 1, true)] {
        checkpoint.version = version;
        let blocks = checkpoint.encode(layout).unwrap();
        for at in [0, checkpoint.pack_blocks - 1] {
            let at = layout.pack_start(pack).plus(at).0 as usize * BLOCK_SIZE;
            bytes[at..at + BLOCK_SIZE].copy_from_slice(&blocks[..BLOCK_SIZE]);
        }
        let open = |options: &str| {
            let device = MemDevice::new(bytes.len() as u64);
            device.write(0, &bytes);
            let options = MountOptions::parse(options).unwrap();
            F2fs::open(Arc::new(device), options, CacheSizes::of(64 << 20)).map(|(fs, _)| fs)
        };
        open("ro").unwrap().unmount().unwrap();
        match open("") {
            Ok(fs) => {
                assert!(is_writable, "{version}");
                fs.unmount().unwrap();
            }
            Err(error) => {
                assert!(!is_writable, "{version}: {error}");
                assert!(error.to_string().contains("checkpoint_ver"), "{error}");
            }
        }
    }
}

#[test]
fn refusals_name_their_reason() {
    let refused = |bytes: &[u8], options: &str| {
        let device = MemDevice::new(bytes.len() as u64);
        device.write(0, bytes);
        let options = MountOptions::parse(options).unwrap();
        let opened = F2fs::open(Arc::new(device), options, CacheSizes::of(64 << 20));
        opened.err().expect("refused").to_string()
    };
    let image = Image::make(&["-O", "extra_attr"], 64);
    let bytes = fs::read(image.path()).unwrap();
    assert!(refused(&bytes[..32 << 20], "").contains("the device only"));
    let mut unchanging = bytes.clone();
    for copy in [1024, 5120] {
        unchanging[copy + 2181] |= 0x40;
    }
    assert!(refused(&unchanging, "").contains("made to be read only (ro)"));
    let mut zoned = bytes.clone();
    for copy in [1024, 5120] {
        zoned[copy + 2180] |= 2;
    }
    assert!(refused(&zoned, "ro").contains("blkzoned"));
    let mut devices = bytes.clone();
    for copy in [1024, 5120] {
        devices[copy + 2201] = b'/';
    }
    assert!(refused(&devices, "ro").contains("fewer segments than the volume"));
    for copy in [1024, 5120] {
        // All of its segments, and one more device with one.
        let segments: [u8; 4] = devices[copy + 48..copy + 52].try_into().unwrap();
        devices[copy + 2265..copy + 2269].copy_from_slice(&segments);
        devices[copy + 2269] = b'b';
        devices[copy + 2333] = 1;
    }
    let said = refused(&devices, "ro");
    assert!(
        said.contains("on 2 devices: name the others with -o device="),
        "{said}"
    );
    assert!(said.contains("in the order b (2 MiB)"), "{said}");
    let mut blocks = bytes.clone();
    for copy in [1024, 5120] {
        blocks[copy + 16] = 14;
    }
    assert!(refused(&blocks, "ro").contains("blocks of 16 KiB"));
    assert!(refused(&vec![0; 1 << 20], "ro").contains("magic"));
    // One valid superblock of two is enough, and one valid checkpoint of two.
    let mut torn = bytes;
    torn[1024] = 0;
    assert!(mount_bytes(&torn).is_ok());
}

#[test]
fn unsupported_features_allow_read_only_mounts() {
    let image = Image::make(&["-O", "extra_attr,ro"], 64);
    let (fs, report) = F2fs::open(image.device(), read_only(), CacheSizes::of(64 << 20)).unwrap();
    let why = "made to be read only (ro)";
    assert_eq!(report.read_only_because, [why]);
    let cx = Cx::default();
    assert_eq!(
        fs.mkdir(&cx, fs.root(), b"d", 0o755),
        Err(FsError::ReadOnly)
    );
    assert_eq!(names(&fs, fs.root()).len(), 2);
    fs.unmount().unwrap();
    assert!(fs.getattr(&cx, fs.root()).is_err());
}
