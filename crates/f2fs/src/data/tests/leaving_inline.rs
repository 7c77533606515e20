//! Inline content that outgrows the inode.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_base::IoTag;
use steadfs_block::{Bio, Fault, FaultDevice, Op};
use steadfs_vfs::{Cx, FsError, Seek, SetAttr};

use super::{file, fsck, open, volume_with_file};
use crate::checkpoint::Reason;
use crate::inode::Inode;
use crate::{CacheSizes, F2fs, MountOptions};

const OLD: [u8; 3000] = [1; 3000];
const MORE: [u8; 5000] = [2; 5000];

/// A file whose inline content is durable; only the test writes.
struct Case {
    device: Arc<FaultDevice>,
    fs: Arc<F2fs>,
    inode: Arc<Inode>,
    /// Requests since [`Case::count`].
    requests: Arc<AtomicU64>,
}

impl Case {
    fn new() -> Self {
        let device = FaultDevice::new(volume_with_file("extra_attr", 64));
        let options = MountOptions::parse("").unwrap();
        let sizes = CacheSizes::of(8 << 20);
        let (fs, _) = F2fs::open(Arc::clone(&device) as _, options, sizes).unwrap();
        fs.writeback.stop();
        let inode = file(&fs);
        let case = Self {
            device,
            fs,
            inode,
            requests: Arc::default(),
        };
        case.write(0, &OLD);
        case.sync().unwrap();
        case
    }

    fn write(&self, at: u64, data: &[u8]) {
        let cx = Cx::default();
        let written = self.fs.write_file(&cx, &self.inode, at, data, false);
        assert_eq!(written.unwrap(), data.len());
    }

    fn sync(&self) -> Result<(), FsError> {
        self.fs.fsync_inode(&Cx::default(), &self.inode, false)
    }

    fn checkpoint(&self) {
        self.fs.checkpoint(Reason::Sync, IoTag::default()).unwrap();
    }

    fn truncate(&self, size: u64) {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        let ino = self.inode.nid().into();
        steadfs_vfs::FileSystem::setattr(&*self.fs, &Cx::default(), ino, &set).unwrap();
    }

    fn content(&self) -> Vec<u8> {
        read(&self.fs, &self.inode)
    }

    /// The content after a power cut now.
    fn after_power_cut(&self) -> Vec<u8> {
        let memory = Arc::new(self.device.memory.copy());
        let fs = open(&memory, "");
        let found = read(&fs, &file(&fs));
        fs.close().unwrap();
        fsck(&memory);
        found
    }

    fn count_requests(&self) {
        let count = Arc::clone(&self.requests);
        count.store(0, Ordering::Relaxed);
        self.device.set(move |_: &Bio| {
            count.fetch_add(1, Ordering::Relaxed);
            Fault::None
        });
    }

    fn close(self) {
        drop(self.inode);
        self.fs.close().unwrap();
        fsck(&self.device.memory);
    }
}

fn read(fs: &F2fs, inode: &Inode) -> Vec<u8> {
    let read = fs.read_file(&Cx::default(), inode, 0, 1 << 20).unwrap();
    assert_eq!(read.len() as u64, inode.size());
    read.to_vec()
}

fn joined() -> Vec<u8> {
    [&OLD[..], &MORE[..]].concat()
}

#[test]
fn a_write_that_outgrows_the_inode_does_no_io() {
    let case = Case::new();
    case.count_requests();
    case.write(3000, &MORE[..2000]);
    case.write(5000, &MORE[2000..]);
    assert_eq!(case.content(), joined());
    let cx = Cx::default();
    let seek = |at, what| case.fs.seek_file(&cx, &case.inode, at, what);
    assert_eq!(seek(100, Seek::Data), Ok(100));
    assert_eq!(seek(100, Seek::Hole), Ok(8000));
    assert_eq!(case.requests.load(Ordering::Relaxed), 0);
    case.sync().unwrap();
    assert_eq!(case.after_power_cut(), joined());
    case.close();
}

/// A checkpoint before write-back has the old content, however often it is taken; none is lost that was durable.
#[test]
fn durable_content_stays_until_its_block_is_written() {
    let case = Case::new();
    case.write(3000, &MORE);
    for _ in 0..2 {
        case.checkpoint();
        assert_eq!(case.after_power_cut(), OLD);
    }
    case.write(0, b"again");
    case.checkpoint();
    assert_eq!(case.after_power_cut(), OLD);
    case.sync().unwrap();
    let mut now = joined();
    now[..5].copy_from_slice(b"again");
    assert_eq!(case.after_power_cut(), now);
    assert_eq!(case.content(), now);
    case.close();
}

#[test]
fn without_its_first_block_a_file_stays_inline_on_the_device() {
    let case = Case::new();
    case.write(3000, &MORE);
    let mut fails = true;
    case.device
        .fail(move |bio: &Bio| bio.op == Op::Write && std::mem::take(&mut fails));
    assert!(matches!(case.sync(), Err(FsError::Io(_))));
    case.checkpoint();
    assert_eq!(case.after_power_cut(), OLD);
    assert_eq!(case.content(), joined());
    case.device.set(|_: &Bio| Fault::None);
    case.sync().unwrap();
    assert_eq!(case.after_power_cut(), joined());
    case.close();
}

#[test]
fn a_file_cut_to_nothing_is_inline_again() {
    let case = Case::new();
    case.write(3000, &MORE);
    assert_eq!(case.fs.space.counts().reserved, 2);
    case.count_requests();
    case.truncate(0);
    case.write(0, b"new");
    assert_eq!(case.requests.load(Ordering::Relaxed), 0);
    assert!(case.inode.is_content_inline());
    assert_eq!(case.fs.space.counts().reserved, 0);
    case.checkpoint();
    assert_eq!(case.after_power_cut(), b"new");
    case.close();
}

#[test]
fn a_file_cut_while_it_leaves_keeps_its_beginning() {
    for size in [100, 4000, 6000, 9000] {
        let case = Case::new();
        case.write(3000, &MORE);
        case.truncate(size);
        let mut expected = joined();
        expected.resize(size as usize, 0);
        assert_eq!(case.content(), expected, "{size}");
        case.sync().unwrap();
        assert_eq!(case.after_power_cut(), expected, "{size}");
        case.close();
    }
}

/// An unlinked file is freed while the node still has its old content inline.
#[test]
fn a_file_that_leaves_can_be_removed() {
    let case = Case::new();
    case.write(3000, &MORE);
    let (cx, ino) = (Cx::default(), case.inode.nid().into());
    let fs = Arc::clone(&case.fs);
    let root = steadfs_vfs::FileSystem::root(&*fs);
    steadfs_vfs::FileSystem::unlink(&*fs, &cx, root, b"file").unwrap();
    drop(fs);
    let Case {
        device, fs, inode, ..
    } = case;
    drop(inode);
    steadfs_vfs::FileSystem::forget(&*fs, ino, 1);
    fs.close().unwrap();
    fsck(&device.memory);
}
