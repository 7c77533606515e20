//! Mounted tests of interfaces without safe wrappers: ioctls, memory mappings, asynchronous I/O.
#![allow(
    unsafe_code,
    reason = "ioctl(2), mmap(2) and io_uring have no safe form"
)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::atomic::Ordering;

use io_uring::{IoUring, opcode, types};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use steadfs_base::InodeNo;
use steadfs_fuse::{MountHandle, MountOptions, Transport};
use steadfs_vfs::verity::VerityOptions;
use steadfs_vfs::{InodeFlags, ShutdownMode};

use common::{MemFs, TestMount};

fn each(test: impl Fn(TestMount)) {
    for transport in common::transports() {
        test(TestMount::new(transport));
    }
}

/// ioctl(2) with an argument in memory.
fn ioctl<T>(file: &File, command: u64, arg: &mut T) -> Result<(), i32> {
    // SAFETY: every command used here reads or writes at most `T`.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), command as libc::Ioctl, arg) };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap())
    }
}

const FS_IOC_GETVERSION: u64 = 0x8008_7601;
const FS_IOC_FSGETXATTR: u64 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u64 = 0x401c_5820;
const FITRIM: u64 = 0xc018_5879;
const SHUTDOWN: u64 = 0x8004_587d;

#[test]
fn flags_projects_and_generations() {
    each(|mount| {
        fs::write(mount.path("f"), "x").unwrap();
        let f = File::open(mount.path("f")).unwrap();
        let nodump = rustix::fs::IFlags::NODUMP;
        rustix::fs::ioctl_setflags(&f, nodump).unwrap();
        assert_eq!(rustix::fs::ioctl_getflags(&f).unwrap(), nodump);
        let mut fsx = [0_u32; 7];
        ioctl(&f, FS_IOC_FSGETXATTR, &mut fsx).unwrap();
        assert_eq!(fsx[..4], [0x80, 0, 3, 0]);
        fsx[0] = 0x40 | 0x80;
        fsx[3] = 4242;
        ioctl(&f, FS_IOC_FSSETXATTR, &mut fsx).unwrap();
        ioctl(&f, FS_IOC_FSGETXATTR, &mut fsx).unwrap();
        assert_eq!(fsx[..4], [0xc0, 0, 3, 4242]);
        let both = rustix::fs::IFlags::NODUMP | rustix::fs::IFlags::NOATIME;
        assert_eq!(rustix::fs::ioctl_getflags(&f).unwrap(), both);
        // A flag that this volume does not support is refused, not ignored.
        fsx[0] |= 0x8000;
        assert_eq!(ioctl(&f, FS_IOC_FSSETXATTR, &mut fsx), Err(95));
        let mut version = 0_u32;
        ioctl(&f, FS_IOC_GETVERSION, &mut version).unwrap();
        assert_eq!(version, 7);
        let dir = File::open(mount.root()).unwrap();
        rustix::fs::ioctl_setflags(&dir, nodump).unwrap();
        let root = mount.mem().with(|s| s.flags_of(2));
        assert_eq!(root, InodeFlags::NODUMP);
        assert_eq!(ioctl(&f, 0x8004_1234, &mut version), Err(25));
        drop((f, dir));
        mount.end();
    });
}

/// `struct fsverity_digest`, with a buffer for the longest digest.
#[repr(C)]
struct Measured {
    algorithm: u16,
    size: u16,
    digest: [u8; 64],
}

#[test]
fn verity_files_are_measured() {
    const MEASURE: u64 = 0xc004_6686;
    each(|mount| {
        fs::write(mount.path("sealed"), "x").unwrap();
        let file = File::open(mount.path("sealed")).unwrap();
        let mut got = Measured {
            algorithm: 0,
            size: 31,
            digest: [0; 64],
        };
        // EOVERFLOW, as for a buffer that is too short.
        assert_eq!(ioctl(&file, MEASURE, &mut got), Err(75));
        got.size = 64;
        ioctl(&file, MEASURE, &mut got).unwrap();
        assert_eq!((got.algorithm, got.size), (1, 32));
        assert_eq!(got.digest[..32], [0xab; 32]);
        assert_eq!(got.digest[32..], [0; 32]);
        // ENODATA for a file without verity.
        let root = File::open(mount.root()).unwrap();
        got.size = 64;
        assert_eq!(ioctl(&root, MEASURE, &mut got), Err(61));
        drop((file, root));
        mount.end();
    });
}

/// `struct fsverity_enable_arg`.
#[repr(C)]
struct Enable<'s> {
    version: u32,
    algorithm: u32,
    block: u32,
    salt_size: u32,
    salt: *const u8,
    signature_size: u32,
    reserved: u32,
    signature: *const u8,
    reserved_more: [u64; 11],
    salt_bytes: std::marker::PhantomData<&'s [u8]>,
}

fn enable(salt: &[u8]) -> Enable<'_> {
    Enable {
        version: 1,
        algorithm: 2,
        block: 1024,
        salt_size: salt.len() as u32,
        salt: salt.as_ptr(),
        signature_size: 0,
        reserved: 0,
        signature: std::ptr::null(),
        reserved_more: [0; 11],
        salt_bytes: std::marker::PhantomData,
    }
}

/// Since 6.10 the kernel passes the salt on.
fn kernel_passes_salts() -> bool {
    let release = rustix::system::uname();
    let release = release.release().to_str().unwrap().to_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map(|word| word.parse().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(10))
}

const ENABLE_VERITY: u64 = 0x4080_6685;

/// A file of a volume that receives every OPEN, with each transport.
fn each_sealed(test: impl Fn(&TestMount, &std::path::Path)) {
    for transport in common::transports() {
        let options = MountOptions {
            transport,
            ..MountOptions::default()
        };
        // Every OPEN arrives.
        let mount = TestMount::of(MemFs::new().with_unopenable_size(1 << 40), options);
        let path = mount.path("sealed");
        fs::write(&path, "content").unwrap();
        test(&mount, &path);
        mount.end();
    }
}

fn sealed(mount: &TestMount) -> Option<(InodeNo, VerityOptions)> {
    mount.mem().with(|state| state.sealed.take())
}

#[test]
fn verity_files_are_made_of_files_that_no_program_writes() {
    each_sealed(|mount, path| {
        let file = File::open(path).unwrap();
        // The descriptor of the write may be released later than it was closed.
        ioctl(&file, ENABLE_VERITY, &mut enable(&[])).unwrap();
        let (ino, options) = sealed(mount).unwrap();
        assert_eq!(ino.0, file.metadata().unwrap().ino());
        assert_eq!((options.algorithm, options.block_size), (2, 1024));
        assert!(options.salt.is_empty());
        let salted = ioctl(&file, ENABLE_VERITY, &mut enable(b"salt"));
        match kernel_passes_salts() {
            true => assert_eq!(sealed(mount).unwrap().1.salt, b"salt"),
            false => assert_eq!(salted, Err(95)),
        }
        // ETXTBSY.
        let writer = OpenOptions::new().write(true).open(path).unwrap();
        assert_eq!(ioctl(&file, ENABLE_VERITY, &mut enable(&[])), Err(26));
        let busy = MountHandle::verity(path, "1 4096 ").unwrap_err();
        assert!(busy.to_string().contains("open for writing"), "{busy}");
        drop(writer);
        ioctl(&file, ENABLE_VERITY, &mut enable(&[])).unwrap();
        assert!(sealed(mount).is_some());
        // Our own command.
        MountHandle::verity(path, "1 4096 0102").unwrap();
        assert_eq!(sealed(mount).unwrap().1.salt, [1, 2]);
        let digest = MountHandle::verity(path, "").unwrap();
        assert_eq!(digest, format!("sha256:{}", "ab".repeat(32)));
    });
}

#[test]
fn verity_files_are_not_made_by_invalid_arguments() {
    each_sealed(|mount, path| {
        let file = File::open(path).unwrap();
        let signature = [1_u8; 9];
        let plain = || enable(&[]);
        let refused = [
            (
                Enable {
                    version: 2,
                    ..plain()
                },
                22,
            ),
            (
                Enable {
                    reserved: 1,
                    ..plain()
                },
                22,
            ),
            (
                Enable {
                    reserved_more: [1; 11],
                    ..plain()
                },
                22,
            ),
            (
                Enable {
                    block: 1000,
                    ..plain()
                },
                22,
            ),
            (
                Enable {
                    algorithm: 3,
                    ..plain()
                },
                22,
            ),
            // EMSGSIZE, and EOPNOTSUPP for a signature.
            (enable(&[0; 33]), 90),
            (
                Enable {
                    signature: signature.as_ptr(),
                    signature_size: 9,
                    ..plain()
                },
                95,
            ),
        ];
        for (mut arg, errno) in refused {
            assert_eq!(ioctl(&file, ENABLE_VERITY, &mut arg), Err(errno));
        }
        let root = File::open(mount.root()).unwrap();
        assert_eq!(ioctl(&root, ENABLE_VERITY, &mut enable(&[])), Err(21));
        assert!(sealed(mount).is_none());
    });
}

#[test]
fn trimming_and_shutting_down() {
    each(|mount| {
        let dir = File::open(mount.root()).unwrap();
        let mut range = [100_u64, u64::MAX, 7];
        ioctl(&dir, FITRIM, &mut range).unwrap();
        assert_eq!(range[1], 100 + (1 << 20) + 7);
        for (word, mode) in [
            (0, ShutdownMode::Sync),
            (1, ShutdownMode::FlushLog),
            (2, ShutdownMode::NoFlush),
            (3, ShutdownMode::MetaFlush),
            (4, ShutdownMode::NeedCheck),
        ] {
            let mut arg: u32 = word;
            ioctl(&dir, SHUTDOWN, &mut arg).unwrap();
            assert_eq!(mount.mem().with(|s| s.shutdown), Some(mode));
        }
        assert_eq!(ioctl(&dir, SHUTDOWN, &mut 5_u32), Err(22));
        drop(dir);
        mount.end();
    });
}

const MAPPED_FILE: &str = "STEADFS_TEST_MAPPED_FILE";

/// Maps a file of 64 KiB in a process of its own: unmapping waits for the volume with the address space locked, and a
/// server in the same process that allocates then would deadlock.
fn with_mapping(work: impl FnOnce(&File, &mut [u8])) {
    let Some(path) = std::env::var_os(MAPPED_FILE) else {
        return;
    };
    let f = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    // SAFETY: a fresh shared mapping of 64 KiB, unmapped below, of a file that stays as long.
    let map = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            65536,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &f,
            0,
        )
    }
    .unwrap();
    // SAFETY: the mapping is 64 KiB long and only this thread uses it.
    work(&f, unsafe {
        std::slice::from_raw_parts_mut(map.cast::<u8>(), 65536)
    });
    // SAFETY: nothing uses the mapping after this.
    unsafe { rustix::mm::munmap(map, 65536) }.unwrap();
}

fn msync(bytes: &mut [u8]) -> rustix::io::Result<()> {
    // SAFETY: the bytes are those of a mapping.
    let done =
        unsafe { rustix::mm::msync(bytes.as_mut_ptr().cast(), bytes.len(), MsyncFlags::SYNC) };
    // rustix returns -1 as the error's number here.
    let error = |_| rustix::io::Errno::from_io_error(&std::io::Error::last_os_error());
    done.map_err(|failed| error(failed).expect("errno is set"))
}

/// Runs one of this program's tests in a process of its own.
fn apart(test: &str, mapped: &std::path::Path) {
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--quiet"])
        .env(MAPPED_FILE, mapped)
        .status()
        .unwrap();
    assert!(status.success());
}

/// The process of [`shared_mappings_reach_the_volume`].
#[test]
fn in_a_process_that_maps() {
    with_mapping(|f, bytes| {
        assert!(bytes.iter().all(|&b| b == 1));
        bytes[5000..6000].fill(2);
        // write(2) is visible through the mapping.
        f.write_all_at(&[3; 100], 40_000).unwrap();
        assert_eq!(bytes[40_099], 3);
        msync(bytes).unwrap();
        let mut stored = [0; 65536];
        f.read_exact_at(&mut stored, 0).unwrap();
        assert_eq!((stored[4999], stored[5000], stored[40_099]), (1, 2, 3));
        bytes[0] = 9;
    });
}

#[test]
fn shared_mappings_reach_the_volume() {
    each(|mount| {
        let path = mount.path("f");
        fs::write(&path, vec![1; 65536]).unwrap();
        apart("in_a_process_that_maps", &path);
        assert_eq!(mount.count("FSYNC"), 1);
        let stored = mount.mem().content(&path);
        let bytes = [stored[0], stored[4999], stored[5000], stored[40_099]];
        assert_eq!(bytes, [9, 1, 2, 3]);
        mount.end();
    });
}

/// The process of [`msync_reports_a_mapping_that_fits_only_in_part`].
#[test]
fn in_a_process_that_finds_no_space() {
    with_mapping(|_, bytes| {
        bytes.fill(2);
        assert_eq!(msync(bytes), Err(rustix::io::Errno::NOSPC));
    });
}

#[test]
fn msync_reports_a_mapping_that_fits_only_in_part() {
    each(|mount| {
        let path = mount.path("f");
        fs::write(&path, vec![1; 65536]).unwrap();
        mount.mem().with(|state| state.free_bytes = 10_000);
        apart("in_a_process_that_finds_no_space", &path);
        let stored = mount.mem().content(&path);
        assert_eq!((stored[9_999], stored[10_000]), (2, 1));
        mount.end();
    });
}

#[test]
fn the_requested_transport_is_used() {
    for transport in common::transports() {
        let mount = TestMount::new(transport);
        assert_eq!(mount.mounted.as_ref().unwrap().transport(), transport);
        mount.end();
    }
    let mount = TestMount::new(Transport::Auto);
    mount.end();
}

#[repr(align(4096))]
struct Page([u8; 4096]);

/// While an asynchronous direct write is in service, `fill` brings a page into the kernel's cache that begins with
/// `byte`. It must not stay cached.
#[track_caller]
fn no_stale_page_stays(byte: u8, fill: fn(&TestMount, cached: &File, direct: &File)) {
    each(|mount| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        options.custom_flags(libc::O_DIRECT);
        let direct = options.open(mount.path("f")).unwrap();
        direct.write_all_at(&Page([1; 4096]).0, 0).unwrap();
        let mut options = OpenOptions::new();
        let cached = options
            .read(true)
            .write(true)
            .open(mount.path("f"))
            .unwrap();
        let first_byte = || {
            let mut byte = [0];
            cached.read_exact_at(&mut byte, 0).unwrap();
            byte[0]
        };

        mount.mem().blocked_write_byte.store(2, Ordering::SeqCst);
        let before = mount.mem().writes.load(Ordering::SeqCst);
        let page = Page([2; 4096]);
        let mut ring = IoUring::new(2).unwrap();
        let fd = types::Fd(direct.as_raw_fd());
        let write = opcode::Write::new(fd, page.0.as_ptr(), 4096).offset(0);
        // SAFETY: `page` lives until the completion has come.
        unsafe { ring.submission().push(&write.build()).unwrap() };
        ring.submit().unwrap();
        common::until("the write is in service", || {
            mount.mem().writes.load(Ordering::SeqCst) > before
        });
        fill(&mount, &cached, &direct);
        let reads = mount.count("READ");
        assert_eq!(first_byte(), byte);
        assert_eq!(mount.count("READ"), reads, "the page is cached");
        mount.mem().blocked_write_byte.store(0, Ordering::SeqCst);
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().unwrap().result(), 4096);
        // The server waits at most 20 ms for the kernel to drop the page.
        common::until("the page is dropped", || first_byte() == 2);
        drop((cached, direct));
        mount.end();
    });
}

#[test]
fn no_stale_page_that_was_read_stays_after_an_asynchronous_direct_write() {
    no_stale_page_stays(1, |_, cached, _| {
        cached.read_exact_at(&mut [0], 0).unwrap();
    });
}

#[test]
fn no_stale_page_that_was_read_through_a_direct_descriptor_stays() {
    // As a page fault of a mapping does, but without a mapping in the server's own process.
    no_stale_page_stays(1, |mount, _, direct| {
        let before = mount.count("READ");
        rustix::fs::fadvise(direct, 0, None, rustix::fs::Advice::WillNeed).unwrap();
        common::until("it is read", || mount.count("READ") > before);
    });
}

#[test]
fn no_stale_page_that_was_written_stays_after_an_asynchronous_direct_write() {
    no_stale_page_stays(3, |_, cached, _| {
        cached.write_all_at(&[3; 4096], 0).unwrap();
    });
}
