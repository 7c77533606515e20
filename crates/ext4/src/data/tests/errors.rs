//! `data_err=`: the effect of a failed data write on the rest of the volume.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{Device, FaultDevice};
use steadfs_cache::WritebackReason;
use steadfs_vfs::{Cx, FileSystem, FsError};

use super::{FILE, image_with_file, judge};
use crate::inode::Inode;
use crate::test_world::ROOT;
use crate::{CacheSizes, Ext4, MountOptions};

struct Case {
    device: Arc<FaultDevice>,
    fs: Arc<Ext4>,
    cx: Cx,
}

impl Case {
    fn new(mkfs: &[&str], mount: &str) -> Self {
        let image = image_with_file(mkfs, "16M");
        let device = FaultDevice::new(image.device());
        let cx = Cx::default();
        let fs = open(Arc::clone(&device) as Arc<dyn Device>, mount).unwrap();
        // Only the test writes.
        fs.writeback.stop();
        let case = Self { device, fs, cx };
        case.make(b"before").unwrap();
        case.fs.sync_volume(&case.cx).unwrap();
        case
    }

    fn make(&self, name: &[u8]) -> Result<(), FsError> {
        FileSystem::mkdir(&*self.fs, &self.cx, ROOT, name, 0o755).map(|_| ())
    }

    /// Every write to the device fails while `work` runs.
    #[track_caller]
    fn broken<T: std::fmt::Debug>(&self, work: impl FnOnce() -> Result<T, FsError>) {
        self.device.fail_writes(true);
        let result = work();
        self.device.fail_writes(false);
        assert!(matches!(result, Err(FsError::Io(_))), "{result:?}");
    }
}

fn open(device: Arc<dyn Device>, mount: &str) -> Result<Arc<Ext4>, FsError> {
    let options = MountOptions::parse(mount).unwrap();
    Ok(Ext4::open(device, options, CacheSizes::of(16 << 20))?.0)
}

/// The operation that writes a file's data while the device fails.
type Way = fn(&Case, &Inode);

fn by_fsync(case: &Case, file: &Inode) {
    let (fs, cx) = (&case.fs, &case.cx);
    fs.write_file(cx, file, 0, &[1; 5000], false).unwrap();
    case.broken(|| fs.fsync_inode(cx, file, false));
}

fn in_background(case: &Case, file: &Inode) {
    let (fs, cx) = (&case.fs, &case.cx);
    fs.write_file(cx, file, 0, &[1; 5000], false).unwrap();
    case.broken(|| fs.write_out(file, WritebackReason::Background, IoTag::background()));
}

/// Without delayed allocation, data is written by the call.
fn undelayed(case: &Case, file: &Inode) {
    let (fs, cx) = (&case.fs, &case.cx);
    case.broken(|| fs.write_file(cx, file, 0, &[1; 5000], false));
}

/// With `data_err=abort` nothing is committed after a failed data write, so that the volume stays as it was for its
/// administrator; otherwise other files are not affected.
#[test]
fn a_failed_data_write_stops_the_volume_with_data_err_abort() {
    let ext4 = &["-t", "ext4", "-b", "4096"][..];
    let ext3 = &["-t", "ext3", "-b", "1024"][..];
    let ways: [(&[&str], &str, Way); 4] = [
        (ext4, "delalloc", by_fsync),
        (ext3, "delalloc", by_fsync),
        (ext4, "delalloc", in_background),
        (ext4, "nodelalloc", undelayed),
    ];
    // At mount, and after a remount.
    let asked = [
        ("rw", "", false),
        ("data_err=ignore", "", false),
        ("data_err=abort", "", true),
        ("data=writeback,data_err=abort", "", true),
        ("data_err=abort", "data_err=ignore", false),
        ("rw", "data_err=abort", true),
    ];
    for (n, (mkfs, delay, way)) in ways.into_iter().enumerate() {
        for (mount, remount, aborts) in asked {
            let what = format!("way {n}, {mount:?}, {remount:?}");
            let case = Case::new(mkfs, &format!("{delay},{mount}"));
            if !remount.is_empty() {
                case.fs.change_options(&case.cx, remount).unwrap();
            }
            let file = case.fs.inode(FILE, IoTag::default()).unwrap();
            way(&case, &file);
            let made = case.make(b"after");
            let synced = case.fs.fsync_inode(&case.cx, &file, false);
            let synced = synced.or_else(|_| case.fs.fsync_inode(&case.cx, &file, false));
            if aborts {
                let error = made.expect_err(&what);
                assert!(
                    error.to_string().contains("injected fault"),
                    "{what}: {error}"
                );
                synced.expect_err(&what);
            } else {
                made.expect(&what);
                synced.expect(&what);
            }
            drop(file);
            assert_eq!(case.fs.close().is_err(), aborts, "{what}");
            let again = open(Arc::clone(&case.device.memory) as _, "").unwrap();
            let named = |name: &[u8]| FileSystem::lookup(&*again, &case.cx, ROOT, name);
            named(b"before").expect(&what);
            assert_eq!(named(b"after").is_err(), aborts, "{what}");
            again.close().unwrap();
            judge(&case.device.memory, &image_with_file(mkfs, "16M"), &what);
        }
    }
}

/// There is no journal to abort: refused at mount, as by Linux.
#[test]
fn without_a_journal_there_is_nothing_to_abort() {
    let image = image_with_file(&["-t", "ext2"], "8M");
    let said = open(image.device(), "data_err=abort").err().unwrap();
    let wanted = "data_err=abort: needs a journal";
    assert!(said.to_string().contains(wanted), "{said}");
    let fs = open(image.device(), "data_err=ignore").unwrap();
    let said = fs.change_options(&Cx::default(), "data_err=abort");
    let said = said.unwrap_err().to_string();
    assert!(said.contains(wanted), "{said}");
    assert_eq!(fs.effective_options().show(), "rw,relatime");
    fs.close().unwrap();
}
