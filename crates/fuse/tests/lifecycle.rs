//! How mounts begin and end: block devices, unprivileged users, aborts, stopped volumes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::mount::UnmountFlags;
use steadfs_fuse::{BlockDevice, MountError, MountFlags, MountOptions, Transport, Unmount};
use steadfs_vfs::{FsError, WithControl};

use common::{MemFs, TestMount, unmount, until};

/// A loop device over a temporary file.
struct Loop {
    device: String,
    _file: tempfile::NamedTempFile,
}

impl Loop {
    fn new() -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        Self {
            device,
            _file: file,
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detach = Command::new("losetup").args(["-d", &self.device]).status();
        assert!(detach.is_ok_and(|status| status.success()));
    }
}

#[test]
fn block_devices_get_syncfs_and_destroy() {
    for transport in common::transports() {
        let device = Loop::new();
        let mut mount = TestMount::with(MountOptions {
            transport,
            block_device: Some(BlockDevice {
                path: device.device.clone().into(),
                block_size: 65536,
            }),
            ..MountOptions::default()
        });
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = format!(
            "{} {} fuseblk.steadfs",
            device.device,
            mount.root().display()
        );
        assert!(table.contains(&line), "{line} is not in {table}");
        fs::write(mount.path("f"), "x").unwrap();
        // Another program's sync(2) reaches every mount, too.
        let before = mount.mem().syncs.load(Ordering::SeqCst);
        rustix::fs::syncfs(File::open(mount.root()).unwrap()).unwrap();
        assert!(mount.mem().syncs.load(Ordering::SeqCst) > before);
        let mounted = mount.mounted.take().unwrap();
        unmount(&mounted);
        // umount(2) returned: the volume is closed.
        assert_eq!(mount.mem().unmounts.load(Ordering::SeqCst), 1);
        mounted.wait().unwrap();
        assert_eq!(mount.mem().unmounts.load(Ordering::SeqCst), 1);
    }
}

/// syncfs(2) reaches the server of a block device; that of another mount, and the host's mounts, stay as they are.
#[test]
fn a_covered_mount_is_synced_alone() {
    let device = Loop::new();
    let mut mount = TestMount::with(MountOptions {
        block_device: Some(BlockDevice {
            path: device.device.clone().into(),
            block_size: 4096,
        }),
        ..MountOptions::default()
    });
    for _ in 0..2 {
        rustix::mount::mount(
            "covers",
            mount.root(),
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            None,
        )
        .unwrap();
    }
    let table = || {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let root = mount.root().to_str().unwrap();
        let lines = table.lines().filter(|line| line.contains(root));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = table();
    assert_eq!(before.len(), 3);
    let syncs = mount.mem().syncs.load(Ordering::SeqCst);
    let handle = mount.mounted.as_ref().unwrap().handle();
    handle.sync_covered().unwrap();
    assert!(mount.mem().syncs.load(Ordering::SeqCst) > syncs);
    assert_eq!(table(), before);
    for _ in 0..2 {
        rustix::mount::unmount(mount.root(), UnmountFlags::empty()).unwrap();
    }
    let mounted = mount.mounted.take().unwrap();
    unmount(&mounted);
    mounted.wait().unwrap();
}

#[test]
fn a_device_that_is_in_use_is_refused_with_its_reason() {
    let device = Loop::new();
    let holder = fs::OpenOptions::new()
        .read(true)
        .custom_flags_excl()
        .open(&device.device)
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions {
        block_device: Some(BlockDevice {
            path: device.device.clone().into(),
            block_size: 4096,
        }),
        ..MountOptions::default()
    };
    let error = steadfs_fuse::mount(Arc::new(MemFs::new()), dir.path(), options)
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .contains("opened exclusively by another program"),
        "{error}"
    );
    drop(holder);
}

trait Exclusive {
    fn custom_flags_excl(&mut self) -> &mut Self;
}

impl Exclusive for fs::OpenOptions {
    fn custom_flags_excl(&mut self) -> &mut Self {
        use std::os::unix::fs::OpenOptionsExt;
        self.custom_flags(rustix::fs::OFlags::EXCL.bits() as i32)
    }
}

#[test]
fn the_kernel_enforces_mount_flags() {
    for transport in common::transports() {
        let mount = TestMount::with(MountOptions {
            transport,
            source: "a, b".to_owned(),
            flags: MountFlags {
                read_only: true,
                nosuid: true,
                noexec: true,
                ..MountFlags::default()
            },
            ..MountOptions::default()
        });
        let refused = fs::write(mount.path("f"), "x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(30));
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = table
            .lines()
            .find(|line| line.contains(&*mount.root().to_string_lossy()))
            .unwrap();
        assert!(line.starts_with("a,\\040b "), "{line}");
        assert!(line.contains("ro,nosuid,noexec"), "{line}");
        assert!(line.contains("allow_other"), "{line}");
        mount.end();
    }
}

#[test]
fn an_aborted_connection_waits_for_requests_in_service() {
    for transport in common::transports() {
        let mut mount = TestMount::new(transport);
        mount.mem().blocked_fsyncs.store(1, Ordering::SeqCst);
        let mounted = mount.mounted.take().unwrap();
        std::thread::scope(|scope| {
            let path = mount.path("f");
            let syncer = scope.spawn(move || {
                let mut f = File::create(path).unwrap();
                f.write_all(b"x").unwrap();
                f.sync_all()
            });
            until("the fsync is in service", || {
                mount.mem().fsyncs.load(Ordering::SeqCst) == 1
            });
            // MNT_FORCE aborts the connection; the mount stays until its last user, which may be the syncer, has closed
            // its file.
            let forced = rustix::mount::unmount(mount.root(), UnmountFlags::FORCE);
            assert_eq!(
                syncer.join().unwrap().unwrap_err().raw_os_error(),
                Some(103)
            );
            if forced.is_err() {
                assert_eq!(forced, Err(rustix::io::Errno::BUSY));
                unmount(&mounted);
            }
            let waiter = scope.spawn(|| mounted.wait());
            steadfs_rt::sleep(std::time::Duration::from_millis(30));
            assert_eq!(mount.mem().unmounts.load(Ordering::SeqCst), 0);
            mount.mem().blocked_fsyncs.store(0, Ordering::SeqCst);
            waiter.join().unwrap().unwrap();
        });
        assert_eq!(mount.mem().unmounts.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn interrupted_requests_finish() {
    for transport in common::transports() {
        let mount = TestMount::new(transport);
        fs::write(mount.path("f"), "x").unwrap();
        for round in 1..=3 {
            mount.mem().blocked_fsyncs.store(1, Ordering::SeqCst);
            let mut sync = Command::new("sync").arg(mount.path("f")).spawn().unwrap();
            until("the fsync is in service", || {
                mount.mem().fsyncs.load(Ordering::SeqCst) == round
            });
            sync.kill().unwrap();
            until("INTERRUPT arrives", || {
                mount.count("INTERRUPT") == round as u64
            });
            assert_eq!(sync.try_wait().unwrap(), None);
            mount.mem().blocked_fsyncs.store(0, Ordering::SeqCst);
            assert!(!sync.wait().unwrap().success());
        }
        assert_eq!(mount.count("INTERRUPT"), 3);
        assert_eq!(mount.count("FSYNC"), 3);
        mount.end();
    }
}

#[test]
fn the_kernel_uses_the_read_ahead_option() {
    for transport in common::transports() {
        let mount = TestMount::with(MountOptions {
            transport,
            read_ahead_kib: 1536,
            ..MountOptions::default()
        });
        let device = fs::metadata(mount.root()).unwrap().dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        assert_eq!(fs::read_to_string(setting).unwrap(), "1536\n");
        mount.end();
    }
}

#[test]
fn a_volume_that_panicked_is_stopped_and_reports_it() {
    for transport in common::transports() {
        let mut mount = TestMount::new(transport);
        fs::write(mount.path("f"), "x").unwrap();
        let error = rustix::fs::getxattr_query(mount.path("f"), "user.panic").unwrap_err();
        assert_eq!(error, rustix::io::Errno::IO);
        let error = fs::write(mount.path("g"), "x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5));
        let mounted = mount.mounted.take().unwrap();
        unmount(&mounted);
        let end = mounted.wait().unwrap_err();
        assert!(matches!(end, FsError::Stopped(_)), "{end}");
        assert_eq!(mount.mem().unmounts.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn an_unmount_waits_for_a_process_that_uses_the_mount_for_one_call() {
    let mut mount = TestMount::with(MountOptions::default());
    let mounted = mount.mounted.take().unwrap();
    let root = File::open(mount.root()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            steadfs_rt::sleep(Duration::from_millis(20));
            drop(root);
        });
        mounted.unmount(Unmount::IfIdle).unwrap();
    });
    mounted.wait().unwrap();
}

#[test]
fn dropping_a_mount_detaches_it() {
    for transport in common::transports() {
        let mut mount = TestMount::new(transport);
        fs::write(mount.path("f"), "x").unwrap();
        drop(mount.mounted.take());
        assert!(!mount.path("f").exists());
    }
}

#[test]
fn the_callers_groups_arrive_with_mkdir() {
    for transport in common::transports() {
        let mount = TestMount::new(transport);
        let dir = mount.path("d");
        fs::create_dir(&dir).unwrap();
        chown(&dir, None, Some(4321)).unwrap();
        let status = Command::new("setpriv")
            .args(["--groups", "4321,99", "mkdir"])
            .arg(dir.join("sub"))
            .status()
            .unwrap();
        assert!(status.success());
        // The kernel sends only the group that is the directory's.
        assert_eq!(mount.mem().with(|s| s.groups.clone()), [4321]);
        mount.end();
    }
}

const SERVED_DIR: &str = "STEADFS_TEST_SERVED_DIR";
const SERVED_BY: &str = "STEADFS_TEST_SERVED_BY";

/// The server that [`a_killed_server_leaves_errors_and_no_hangs`] kills; does nothing if run alone.
#[test]
fn as_a_server() {
    let Some(dir) = std::env::var_os(SERVED_DIR) else {
        return;
    };
    let transport = match std::env::var(SERVED_BY).unwrap().as_str() {
        "Dev" => Transport::Dev,
        _ => Transport::Uring,
    };
    let fs = Arc::new(MemFs::new());
    // No fsync ever returns.
    fs.blocked_fsyncs.store(1, Ordering::SeqCst);
    let options = MountOptions {
        transport,
        ..MountOptions::default()
    };
    let mounted = steadfs_fuse::mount(fs, Path::new(&dir), options).unwrap();
    drop(mounted.wait());
}

#[test]
fn a_killed_server_leaves_errors_and_no_hangs() {
    for transport in common::transports() {
        for round in 0..5 {
            let dir = tempfile::tempdir().unwrap();
            let before = fs::metadata(dir.path()).unwrap().dev();
            let mut server = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "as_a_server", "--quiet"])
                .env(SERVED_DIR, dir.path())
                .env(SERVED_BY, format!("{transport:?}"))
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            until("the server serves", || {
                fs::metadata(dir.path()).is_ok_and(|meta| meta.dev() != before)
            });
            std::thread::scope(|scope| {
                for i in 0..12 {
                    let path = dir.path().join(format!("f{i}"));
                    scope.spawn(move || -> std::io::Result<()> {
                        let mut f = File::create(path)?;
                        if i % 3 == 0 {
                            f.write_all(b"x")?;
                            return f.sync_all();
                        }
                        loop {
                            f.write_all(&[7; 10_000])?;
                        }
                    });
                }
                steadfs_rt::sleep(std::time::Duration::from_millis(20 + round * 17));
                server.kill().unwrap();
                server.wait().unwrap();
                // Every client returns with an error; the scope waits for all of them.
            });
            let refused = File::create(dir.path().join("new")).unwrap_err();
            assert!(
                matches!(refused.raw_os_error(), Some(103 | 107)),
                "{refused}"
            );
            rustix::mount::unmount(dir.path(), UnmountFlags::DETACH).unwrap();
        }
    }
}

const NOBODY: u32 = 65534;
const HELPED_DIR: &str = "STEADFS_TEST_HELPED_DIR";

/// The part of [`users_mount_through_fusermount3`] that runs as another user; does nothing if run alone.
#[test]
fn as_a_user() {
    let Some(dir) = std::env::var_os(HELPED_DIR) else {
        return;
    };
    assert_eq!(rustix::process::geteuid().as_raw(), NOBODY);
    let dir = Path::new(&dir);
    let options = || MountOptions {
        allow_other: false,
        source: "back\\slash, comma".to_owned(),
        ..MountOptions::default()
    };
    let fs = Arc::new(MemFs::new());
    fs.with(|s| s.chown_root(NOBODY));
    let shown = Arc::new(WithControl::new(fs.clone()).owned_by(NOBODY, NOBODY));
    let mounted = steadfs_fuse::mount(shown, dir, options()).unwrap();
    let info = fs::read_to_string(dir.join(".steadfs/jbd2/info")).unwrap();
    assert_eq!(info, "content of jbd2/info\n");
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(table.contains("back\\134slash,\\040comma "), "{table}");
    fs::write(dir.join("f"), vec![3; 300_000]).unwrap();
    assert_eq!(fs::read(dir.join("f")).unwrap().len(), 300_000);
    let f = File::open(dir.join("f")).unwrap();
    let busy = mounted.unmount(Unmount::IfIdle).unwrap_err();
    assert!(matches!(busy, MountError::Busy(_)), "{busy}");
    drop(f);
    unmount(&mounted);
    mounted.wait().unwrap();
    assert_eq!(fs.unmounts.load(Ordering::SeqCst), 1);
    // A directory of another user.
    let refused = steadfs_fuse::mount(fs, Path::new("/usr"), options())
        .err()
        .unwrap();
    assert!(matches!(refused, MountError::Helper(_)), "{refused}");
}

#[test]
fn users_mount_through_fusermount3() {
    let base = tempfile::tempdir().unwrap();
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let dir = base.path().join("mnt");
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
    // The mode that udev sets; without udev the device may be accessible to root only.
    fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
    // The build folder may not be accessible to the user.
    let program = base.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let run = || {
        Command::new(&program)
            .args(["--exact", "as_a_user", "--nocapture"])
            .env(HELPED_DIR, &dir)
            .current_dir("/")
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
    };
    let mut output = run();
    // Another test may be between fork and exec with the copy still open for writing.
    until("the copy is no longer open for writing", || {
        let busy = matches!(&output, Err(e) if e.raw_os_error() == Some(26));
        if busy {
            output = run();
        }
        !busy
    });
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
