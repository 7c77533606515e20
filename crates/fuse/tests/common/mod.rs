//! Mounts a volume in memory for a test.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod memfs;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use steadfs_fuse::{MountError, MountOptions, Mounted, Transport, Unmount};
use steadfs_vfs::WithControl;

pub use memfs::MemFs;

/// The transports of each mounted test: both, on kernels that have both.
pub fn transports() -> Vec<Transport> {
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
    match std::fs::read_to_string(SWITCH) {
        Err(_) => vec![Transport::Dev],
        Ok(state) => {
            if state.trim() != "Y" {
                std::fs::write(SWITCH, "Y").expect("root can switch FUSE over io_uring on");
            }
            vec![Transport::Dev, Transport::Uring]
        }
    }
}

/// A mounted [`MemFs`].
pub struct TestMount {
    pub fs: Arc<WithControl>,
    pub mem: Arc<MemFs>,
    pub mounted: Option<Mounted>,
    dir: tempfile::TempDir,
}

impl TestMount {
    pub fn new(transport: Transport) -> Self {
        Self::with(MountOptions {
            transport,
            ..MountOptions::default()
        })
    }

    pub fn with(options: MountOptions) -> Self {
        Self::of(MemFs::new(), options)
    }

    pub fn of(mem: MemFs, options: MountOptions) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "mounted tests run as root"
        );
        let dir = tempfile::tempdir().unwrap();
        let mem = Arc::new(mem);
        let fs = Arc::new(WithControl::new(mem.clone()));
        let mounted = steadfs_fuse::mount(fs.clone(), dir.path(), options).unwrap();
        Self {
            fs,
            mem,
            mounted: Some(mounted),
            dir,
        }
    }

    pub fn mem(&self) -> &MemFs {
        &self.mem
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn count(&self, op: &str) -> u64 {
        self.mounted.as_ref().unwrap().stats().of(op)
    }

    /// Unmounts and checks that the volume was closed exactly once.
    pub fn end(mut self) {
        let mounted = self.mounted.take().unwrap();
        unmount(&mounted);
        mounted.wait().unwrap();
        let unmounts = &self.mem().unmounts;
        assert_eq!(unmounts.load(std::sync::atomic::Ordering::SeqCst), 1);
    }
}

/// Waits for something that other threads do, on a machine of any load.
pub fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let begin = steadfs_rt::now();
    while !ready() {
        let waited = begin.elapsed();
        assert!(waited < Duration::from_secs(120), "never happened: {what}");
        steadfs_rt::sleep(Duration::from_millis(2));
    }
}

/// Unmounts as soon as the mount is not in use.
pub fn unmount(mounted: &Mounted) {
    // A child of another test may be between fork and exec, with open files of this process.
    until("the mount is not in use", || {
        let end = mounted.unmount(Unmount::IfIdle);
        if let Err(error) = &end {
            assert!(matches!(error, MountError::Busy(_)), "{error}");
        }
        end.is_ok()
    });
}
