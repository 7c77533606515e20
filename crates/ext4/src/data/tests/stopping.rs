//! A volume that stops during an fsync.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Device, Done, Geometry, MemDevice, Op};
use steadfs_rt::{Mutex, Rank, sleep};
use steadfs_vfs::{Cx, FsError};

use super::{FILE, image_with_file};
use crate::{CacheSizes, Ext4, MountOptions};

type Hook = Box<dyn FnOnce() + Send>;

/// A device that runs an action at its next write.
struct ActsAtNextWrite {
    inner: Arc<MemDevice>,
    hook: Mutex<Option<Hook>>,
}

impl Device for ActsAtNextWrite {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn start(&self, bio: Bio, done: Done) {
        let hook = match bio.op {
            Op::Write => self.hook.lock().take(),
            _ => None,
        };
        if let Some(hook) = hook {
            hook();
        }
        self.inner.start(bio, done);
    }
}

fn open(device: &Arc<ActsAtNextWrite>) -> Arc<Ext4> {
    let device = Arc::clone(device) as Arc<dyn Device>;
    let options = MountOptions::parse("").unwrap();
    let sizes = CacheSizes::of(4 << 20);
    Ext4::open(device, options, sizes).unwrap().0
}

/// The data was overwritten in place, without a transaction; the times need one.
#[test]
fn an_fsync_fails_if_the_volume_stops_meanwhile() {
    for kind in [&["-t", "ext4"][..], &["-t", "ext3"], &["-t", "ext2"]] {
        let image = image_with_file(kind, "16M");
        let device = Arc::new(ActsAtNextWrite {
            inner: image.device(),
            hook: Mutex::new(Rank::DeviceInner, None),
        });
        let (fs, cx) = (open(&device), Cx::default());
        fs.writeback.stop();
        let file = fs.inode(FILE, IoTag::default()).unwrap();
        fs.write_file(&cx, &file, 0, &[1; 100], false).unwrap();
        fs.fsync_inode(&cx, &file, false).unwrap();
        sleep(Duration::from_millis(20));
        fs.write_file(&cx, &file, 0, &[2; 100], false).unwrap();
        let written = file.core.read().mtime;
        let other = Arc::clone(&fs);
        let stop = move || other.shut_down("somebody else met an error");
        *device.hook.lock() = Some(Box::new(stop));
        let synced = fs.fsync_inode(&cx, &file, false);
        drop(file);
        assert!(matches!(fs.close(), Err(FsError::Stopped(_))), "{kind:?}");
        let fs = open(&device);
        let file = fs.inode(FILE, IoTag::default()).unwrap();
        let kept = file.core.read().mtime == written;
        match synced {
            Ok(()) => assert!(
                kept,
                "{kind:?}: the time of a write that was synced is gone"
            ),
            Err(error) => assert!(matches!(error, FsError::Stopped(_)), "{kind:?}: {error}"),
        }
        drop(file);
        fs.close().unwrap();
    }
}
