//! Mounts through the kernel: every operation, by the system calls that programs make.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "mounted/control.rs"]
mod control;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{
    DirEntryExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, FallocateFlags, RenameFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;
use steadfs_fuse::{MountError, MountOptions, Unmount};
use steadfs_vfs::{Cx, FileSystem, SetXattr};

use common::{MemFs, TestMount, until};

/// Runs a test on every transport.
fn each(test: impl Fn(TestMount)) {
    for transport in common::transports() {
        test(TestMount::new(transport));
    }
}

fn errno(error: &std::io::Error) -> Option<i32> {
    error.raw_os_error()
}

/// The kernel refuses ring entries that are shorter than its own minimum. It asks for no longer reads than the option
/// says, although its read-ahead window is longer.
#[test]
fn requests_may_be_as_short_as_a_page() {
    for transport in common::transports() {
        let mount = TestMount::with(MountOptions {
            transport,
            max_request: 1,
            ..MountOptions::default()
        });
        assert_eq!(mount.mounted.as_ref().unwrap().transport(), transport);
        let page = rustix::param::page_size();
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let root = format!(" {} ", mount.root().display());
        let line = table.lines().find(|line| line.contains(&root)).unwrap();
        assert!(line.contains(&format!(",max_read={page}")), "{line}");
        let data: Vec<u8> = (0..1_000_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
        fs::write(mount.path("f"), &data).unwrap();
        let file = File::open(mount.path("f")).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_eq!(fs::read(mount.path("f")).unwrap(), data);
        drop(file);
        mount.end();
    }
}

#[test]
fn files_are_made_written_read_and_moved() {
    each(|mount| {
        let (a, b) = (mount.path("a"), mount.path("dir/b"));
        fs::create_dir(mount.path("dir")).unwrap();
        let data: Vec<u8> = (0..3_000_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
        fs::write(&a, &data).unwrap();
        assert_eq!(fs::metadata(&a).unwrap().len(), data.len() as u64);
        fs::rename(&a, &b).unwrap();
        assert_eq!(
            fs::metadata(&a).unwrap_err().kind(),
            std::io::ErrorKind::NotFound
        );
        // From the kernel's cache, and from the volume.
        assert_eq!(fs::read(&b).unwrap(), data);
        rustix::fs::fadvise(
            File::open(&b).unwrap(),
            0,
            None,
            rustix::fs::Advice::DontNeed,
        )
        .unwrap();
        assert_eq!(fs::read(&b).unwrap(), data);
        fs::hard_link(&b, &a).unwrap();
        assert_eq!(fs::metadata(&a).unwrap().nlink(), 2);
        symlink("dir/b", mount.path("s")).unwrap();
        assert_eq!(
            fs::read_link(mount.path("s")).unwrap().to_str(),
            Some("dir/b")
        );
        assert_eq!(fs::read(mount.path("s")).unwrap().len(), data.len());
        fs::remove_file(&a).unwrap();
        fs::remove_file(&b).unwrap();
        fs::remove_file(mount.path("s")).unwrap();
        fs::remove_dir(mount.path("dir")).unwrap();
        assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 0);
        mount.end();
    });
}

#[test]
fn truncation_makes_holes() {
    each(|mount| {
        let path = mount.path("f");
        let mut f = OpenOptions::new()
            .create(true)
            .read(true)
            .write(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        f.write_all(&[1; 10_000]).unwrap();
        f.set_len(5000).unwrap();
        f.set_len(100_000).unwrap();
        f.write_all_at(&[2; 4096], 65536).unwrap();
        let mut all = Vec::new();
        f.seek(SeekFrom::Start(0)).unwrap();
        f.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 100_000);
        assert!(all[..5000].iter().all(|&b| b == 1));
        assert!(all[5000..65536].iter().all(|&b| b == 0));
        assert!(all[65536..69632].iter().all(|&b| b == 2));
        let seek = |offset, data: bool| {
            let whence = if data {
                rustix::fs::SeekFrom::Data(offset)
            } else {
                rustix::fs::SeekFrom::Hole(offset)
            };
            rustix::fs::seek(&f, whence)
        };
        assert_eq!(seek(8192, true).unwrap(), 65536);
        assert_eq!(seek(65536, false).unwrap(), 69632);
        assert_eq!(seek(100_000, true).unwrap_err(), Errno::NXIO);
        rustix::fs::fallocate(
            &f,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            65536,
            4096,
        )
        .unwrap();
        let mut block = [9; 4096];
        f.read_exact_at(&mut block, 65536).unwrap();
        assert_eq!(block, [0; 4096]);
        rustix::fs::fallocate(&f, FallocateFlags::empty(), 0, 200_000).unwrap();
        assert_eq!(f.metadata().unwrap().len(), 200_000);
        // Opening with O_TRUNC.
        File::create(&path).unwrap();
        assert_eq!(f.metadata().unwrap().len(), 0);
        assert_eq!(fs::read(&path).unwrap(), b"");
        drop(f);
        mount.end();
    });
}

#[test]
fn a_directory_of_5000_entries() {
    each(|mount| {
        let dir = mount.path("many");
        fs::create_dir(&dir).unwrap();
        for i in 0..5000 {
            File::create(dir.join(format!("file-{i:05}"))).unwrap();
        }
        let names = || {
            let mut names: Vec<String> = fs::read_dir(&dir)
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let expected: Vec<String> = (0..5000).map(|i| format!("file-{i:05}")).collect();
        assert_eq!(names(), expected);
        // From the kernel's directory cache, then again after a change.
        assert_eq!(names(), expected);
        fs::remove_file(dir.join("file-02500")).unwrap();
        fs::write(dir.join("new"), "x").unwrap();
        assert_eq!(names().len(), 5000);
        assert!(names().contains(&"new".to_owned()));
        // Removing while reading.
        for entry in fs::read_dir(&dir).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        fs::remove_dir(&dir).unwrap();
        assert_eq!(mount.count("OPENDIR"), 1);
        assert_eq!(mount.count("RELEASEDIR"), 0);
        mount.end();
    });
}

#[test]
fn attributes_and_times() {
    each(|mount| {
        let path = mount.path("f");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode(), 0o104_751);
        std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode()), (12, 34, 0o100_751));
        let f = File::options().write(true).open(&path).unwrap();
        let old = std::time::UNIX_EPOCH - std::time::Duration::new(86_400, 250);
        f.set_times(fs::FileTimes::new().set_modified(old).set_accessed(old))
            .unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(meta.modified().unwrap(), old);
        assert_eq!(meta.atime_nsec(), 999_999_750);
        drop(f);
        let st = rustix::fs::statx(
            rustix::fs::CWD,
            &path,
            AtFlags::empty(),
            StatxFlags::BASIC_STATS | StatxFlags::BTIME,
        )
        .unwrap();
        assert_ne!(st.stx_mask & StatxFlags::BTIME.bits(), 0);
        assert_eq!(
            (st.stx_btime.tv_sec, st.stx_btime.tv_nsec),
            (1_000_000_000, 5)
        );
        assert_eq!(mount.count("STATX"), 1);
        // The root's number is the volume's own.
        assert_eq!(fs::metadata(mount.root()).unwrap().ino(), 2);
        let vfs = rustix::fs::statvfs(mount.root()).unwrap();
        assert_eq!(
            (vfs.f_blocks, vfs.f_bavail, vfs.f_namemax),
            (1000, 400, 255)
        );
        mount.end();
    });
}

#[test]
fn xattrs() {
    each(|mount| {
        let path = mount.path("f");
        fs::write(&path, "x").unwrap();
        let set = |name, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
        set("user.a", b"one", XattrFlags::CREATE).unwrap();
        set("trusted.b", &[7; 3000], XattrFlags::empty()).unwrap();
        assert_eq!(
            set("user.a", b"", XattrFlags::CREATE).unwrap_err(),
            Errno::EXIST
        );
        assert_eq!(
            set("user.c", b"", XattrFlags::REPLACE).unwrap_err(),
            Errno::NODATA
        );
        let mut buf = vec![0; 4096];
        assert_eq!(
            rustix::fs::getxattr(&path, "user.a", &mut buf[..]).unwrap(),
            3
        );
        assert_eq!(&buf[..3], b"one");
        assert_eq!(rustix::fs::getxattr_query(&path, "user.a").unwrap(), 3);
        assert_eq!(
            rustix::fs::getxattr(&path, "trusted.b", &mut buf[..100]).unwrap_err(),
            Errno::RANGE
        );
        let n = rustix::fs::listxattr(&path, &mut buf[..]).unwrap();
        assert_eq!(&buf[..n], b"trusted.b\0user.a\0");
        rustix::fs::removexattr(&path, "user.a").unwrap();
        assert_eq!(
            rustix::fs::getxattr(&path, "user.a", &mut buf[..]).unwrap_err(),
            Errno::NODATA
        );
        mount.end();
    });
}

#[test]
fn labels_are_not_supported_until_one_is_set() {
    each(|mount| {
        let (a, b) = (mount.path("a"), mount.path("b"));
        fs::write(&a, "x").unwrap();
        fs::write(&b, "x").unwrap();
        let get = |path, name| rustix::fs::getxattr_query(path, name);
        let (label, other) = ("security.selinux", "security.other");
        assert_eq!(get(&a, label).unwrap_err(), Errno::OPNOTSUPP);
        assert_eq!(get(&a, other).unwrap_err(), Errno::NODATA);
        rustix::fs::setxattr(&b, label, b"system_u:object_r:etc_t:s0", XattrFlags::CREATE).unwrap();
        assert_eq!(get(&b, label).unwrap(), 26);
        assert_eq!(get(&a, label).unwrap_err(), Errno::NODATA);
        rustix::fs::removexattr(&b, label).unwrap();
        assert_eq!(get(&b, label).unwrap_err(), Errno::NODATA);
        mount.end();
    });
}

#[test]
fn a_label_of_the_root_directory_enables_labels() {
    for transport in common::transports() {
        let (mem, label) = (MemFs::new(), "security.selinux");
        mem.setxattr(
            &Cx::default(),
            mem.root(),
            label.as_bytes(),
            b"u:r:s0",
            SetXattr::Any,
        )
        .unwrap();
        let options = MountOptions {
            transport,
            ..MountOptions::default()
        };
        let mount = TestMount::of(mem, options);
        fs::write(mount.path("a"), "x").unwrap();
        let missing = rustix::fs::getxattr_query(mount.path("a"), label).unwrap_err();
        assert_eq!(missing, Errno::NODATA);
        mount.end();
    }
}

#[test]
fn renames_with_flags_and_long_names() {
    each(|mount| {
        fs::write(mount.path("a"), "A").unwrap();
        fs::write(mount.path("b"), "B").unwrap();
        let rename = |flags| {
            rustix::fs::renameat_with(
                rustix::fs::CWD,
                mount.path("a"),
                rustix::fs::CWD,
                mount.path("b"),
                flags,
            )
        };
        assert_eq!(rename(RenameFlags::NOREPLACE).unwrap_err(), Errno::EXIST);
        rename(RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read(mount.path("a")).unwrap(), b"B");
        let (fits, long) = ("n".repeat(255), "n".repeat(256));
        fs::write(mount.path(&fits), "").unwrap();
        for result in [
            fs::write(mount.path(&long), ""),
            fs::create_dir(mount.path(&long)),
            fs::rename(mount.path("a"), mount.path(&long)),
            fs::hard_link(mount.path("a"), mount.path(&long)),
            symlink("x", mount.path(&long)),
            fs::metadata(mount.path(&long)).map(drop),
            fs::remove_file(mount.path(&long)),
        ] {
            assert_eq!(errno(&result.unwrap_err()), Some(36));
        }
        mount.end();
    });
}

#[test]
fn unlinked_files_live_until_the_last_close_and_tmpfiles_get_names() {
    each(|mount| {
        let path = mount.path("f");
        fs::write(&path, "content").unwrap();
        let mut f = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        fs::remove_file(&path).unwrap();
        f.write_all_at(b"C", 0).unwrap();
        let mut text = String::new();
        f.read_to_string(&mut text).unwrap();
        assert_eq!(text, "Content");
        assert_eq!(f.metadata().unwrap().nlink(), 0);
        assert_eq!(mount.mem().alive().0, 2);
        drop(f);
        until("the unlinked file goes", || mount.mem().alive().0 == 1);

        let mut t = OpenOptions::new()
            .write(true)
            .custom_flags(rustix::fs::OFlags::TMPFILE.bits() as i32)
            .mode(0o640)
            .open(mount.root())
            .unwrap();
        t.write_all(b"from nowhere").unwrap();
        assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 0);
        rustix::fs::linkat(
            &t,
            "",
            rustix::fs::CWD,
            mount.path("named"),
            AtFlags::EMPTY_PATH,
        )
        .unwrap();
        drop(t);
        assert_eq!(fs::read(mount.path("named")).unwrap(), b"from nowhere");
        assert_eq!(mount.count("TMPFILE"), 1);
        mount.end();
    });
}

#[test]
fn umask_goes_to_the_volume_and_modes_come_back() {
    each(|mount| {
        let old = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o027));
        let made = fs::create_dir(mount.path("d"));
        rustix::process::umask(old);
        made.unwrap();
        assert_eq!(mount.mem().with(|s| s.last_umask), 0o027);
        assert_eq!(fs::metadata(mount.path("d")).unwrap().mode(), 0o040_750);
        mount.end();
    });
}

#[test]
fn many_threads_in_many_directories() {
    each(|mount| {
        std::thread::scope(|scope| {
            for t in 0..8 {
                let dir = mount.path(&format!("d{t}"));
                scope.spawn(move || {
                    fs::create_dir(&dir).unwrap();
                    for i in 0..60 {
                        let path = dir.join(format!("f{i}"));
                        fs::write(&path, vec![t; 5000 + i * 100]).unwrap();
                        assert_eq!(fs::read(&path).unwrap().len(), 5000 + i * 100);
                        if i % 3 == 0 {
                            fs::rename(&path, dir.join(format!("g{i}"))).unwrap();
                        }
                    }
                    assert_eq!(fs::read_dir(&dir).unwrap().count(), 60);
                    fs::remove_dir_all(&dir).unwrap();
                });
            }
        });
        mount.end();
    });
}

#[test]
fn a_waiting_fsync_does_not_delay_other_requests() {
    each(|mount| {
        mount.mem().blocked_fsyncs.store(1, Ordering::SeqCst);
        std::thread::scope(|scope| {
            for i in 0..20 {
                let path = mount.path(&format!("f{i}"));
                scope.spawn(move || {
                    let mut f = File::create(path).unwrap();
                    f.write_all(b"x").unwrap();
                    f.sync_all().unwrap();
                });
            }
            until("20 fsyncs wait", || {
                mount.mem().fsyncs.load(Ordering::SeqCst) == 20
            });
            fs::write(mount.path("other"), "served").unwrap();
            assert_eq!(fs::read(mount.path("other")).unwrap(), b"served");
            mount.mem().blocked_fsyncs.store(0, Ordering::SeqCst);
        });
        // Directories are synced, too; ENOSYS would make the kernel skip the next one.
        File::open(mount.root()).unwrap().sync_all().unwrap();
        File::open(mount.root()).unwrap().sync_all().unwrap();
        assert_eq!(mount.count("FSYNCDIR"), 2);
        mount.end();
    });
}

#[test]
fn copies_stay_inside_the_volume() {
    each(|mount| {
        let data = vec![5; 700_000];
        fs::write(mount.path("from"), &data).unwrap();
        let from = File::open(mount.path("from")).unwrap();
        let to = File::create(mount.path("to")).unwrap();
        let copied = rustix::fs::copy_file_range(&from, None, &to, None, 1 << 30).unwrap();
        assert_eq!(copied, data.len());
        assert_eq!(fs::read(mount.path("to")).unwrap(), data);
        drop((from, to));
        assert_eq!(
            mount.count("COPY_FILE_RANGE_64") + mount.count("COPY_FILE_RANGE"),
            1
        );
        mount.end();
    });
}

#[test]
fn unmounting_in_use_is_refused_and_a_detached_volume_is_closed_after_its_last_use() {
    each(|mut mount| {
        fs::write(mount.path("f"), "x").unwrap();
        let f = File::open(mount.path("f")).unwrap();
        let mounted = mount.mounted.take().unwrap();
        let refused = mounted.unmount(Unmount::IfIdle).unwrap_err();
        assert!(matches!(refused, MountError::Busy(_)), "{refused}");
        let handle = mounted.handle();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| mounted.wait());
            handle.unmount(Unmount::Detach).unwrap();
            assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 0);
            assert_eq!(mount.mem().unmounts.load(Ordering::SeqCst), 0);
            let mut text = String::new();
            (&f).read_to_string(&mut text).unwrap();
            assert_eq!(text, "x");
            drop(f);
            waiter.join().unwrap().unwrap();
        });
        assert_eq!(mount.mem().unmounts.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn mount_errors_name_their_cause() {
    let dir = tempfile::tempdir().unwrap();
    let mount = |path: &std::path::Path| {
        let fs = std::sync::Arc::new(common::MemFs::new());
        steadfs_fuse::mount(fs, path, MountOptions::default())
    };
    let missing = mount(&dir.path().join("missing")).err().unwrap();
    assert!(missing.to_string().contains("No such file"), "{missing}");
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let not_dir = mount(&file).err().unwrap();
    assert!(not_dir.to_string().contains("not a directory"), "{not_dir}");
}

/// A volume with encrypted or verity files: the kernel sends every OPEN.
#[test]
fn a_volume_that_checks_opens_receives_every_open() {
    for transport in common::transports() {
        let mem = MemFs::new().with_unopenable_size(13);
        let options = MountOptions {
            transport,
            ..MountOptions::default()
        };
        let mount = TestMount::of(mem, options);
        let (open, closed) = (mount.path("open"), mount.path("closed"));
        fs::write(&open, b"some content").unwrap();
        // The file was already open when it became one that cannot be opened.
        fs::write(&closed, b"thirteen byte").unwrap();
        for _ in 0..3 {
            let refused = File::open(&closed).unwrap_err();
            assert_eq!(Errno::from_io_error(&refused), Some(Errno::NOKEY));
            let refused = fs::write(&closed, b"").unwrap_err();
            assert_eq!(Errno::from_io_error(&refused), Some(Errno::PERM));
            assert_eq!(fs::read(&open).unwrap(), b"some content");
        }
        assert_eq!(fs::metadata(&closed).unwrap().len(), 13);
        fs::create_dir(mount.path("dir")).unwrap();
        assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 3);
        assert_eq!(fs::read_dir(mount.path("dir")).unwrap().count(), 0);
        assert!(mount.count("OPEN") >= 11, "{}", mount.count("OPEN"));
        for once in ["OPENDIR", "FLUSH"] {
            assert_eq!(mount.count(once), 1, "{once} comes once");
        }
        until("every file that was opened is released", || {
            mount.count("RELEASE") == mount.count("OPEN") - 6
        });
        mount.end();
    }
}
