//! Files on a mount.

use super::*;

/// The kernel requests a file's ACL for other users, unless the mount has no ACLs.
#[test]
fn other_users_can_read_a_volume_without_acls() {
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    let image = image(&scratch);
    image.debugfs("set_super_value mount_opts noacl");
    let mount = SteadMount::new(&scratch, image.path(), "");
    let file = mount.join("file");
    fs::write(&file, "x").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let mut cat = Command::new("cat");
    cat.arg(&file).uid(65_534).gid(65_534);
    assert_eq!(finish(cat, PATIENCE).expect(0).out, "x");
    mount.unmount();
}

/// Stores into a mapping, then makes the file immutable through a descriptor that is open for reading.
const STORE_AND_PROTECT: &str = "
import fcntl, mmap, os, struct, sys
with open(sys.argv[1], 'w+b') as file, open(sys.argv[1], 'rb') as other:
    file.truncate(8192)
    with mmap.mmap(file.fileno(), 8192) as mapped:
        mapped[:] = b'stored before the flag..' * 341 + b'12345678'
        flags, = struct.unpack('Q', fcntl.ioctl(other, 0x80086601, bytes(8)))
        flags |= int(sys.argv[2], 16)
        fcntl.ioctl(other, 0x40086602, struct.pack('Q', flags))
";

/// As in Linux's ext4; the flag would else refuse what the mapping holds when it is written.
#[test]
fn what_a_mapping_holds_is_written_before_its_file_is_protected() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    for flag in ["10", "20"] {
        let mount = SteadMount::new(&scratch, image.path(), "");
        let file = mount.join(flag);
        let path = file.to_str().unwrap();
        succeed("python3", ["-c", STORE_AND_PROTECT, path, flag]);
        mount.unmount();
        let mount = SteadMount::new(&scratch, image.path(), "");
        let mut expected = b"stored before the flag..".repeat(341);
        expected.extend(b"12345678");
        assert!(fs::read(mount.join(flag)).unwrap() == expected, "{flag}");
        mount.unmount();
    }
    image.check_clean();
}

#[test]
fn names_have_at_most_255_bytes() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mount = SteadMount::new(&scratch, image.path(), "");
    let (long, longest) = ("n".repeat(256), "n".repeat(255));
    let too_long = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidFilename);
    };
    fs::write(mount.join("f"), b"").unwrap();
    too_long(fs::write(mount.join(&long), b""));
    too_long(fs::create_dir(mount.join(&long)));
    too_long(symlink("x", mount.join(&long)));
    too_long(fs::hard_link(mount.join("f"), mount.join(&long)));
    too_long(fs::rename(mount.join("f"), mount.join(&long)));
    too_long(fs::metadata(mount.join(&long)).map(drop));
    too_long(fs::remove_file(mount.join(&long)));
    fs::write(mount.join(&longest), b"fits").unwrap();
    mount.unmount();
    image.check_clean();
}

#[test]
fn features_of_linux_files_work() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mount = SteadMount::new(&scratch, image.path(), "");
    // O_TMPFILE, and giving it a name.
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(mount.root(), flags, Mode::from_raw_mode(0o600)).unwrap();
    rustix::io::write(&file, b"nameless").unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 0);
    let this = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    rustix::fs::linkat(CWD, this, CWD, mount.join("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(mount.join("named")).unwrap(), b"nameless");
    drop(file);
    // Birth.
    let wanted = StatxFlags::BTIME;
    let stat = rustix::fs::statx(CWD, mount.join("named"), AtFlags::empty(), wanted).unwrap();
    assert!(stat.stx_mask & wanted.bits() != 0);
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    assert!(stat.stx_btime.tv_sec.unsigned_abs().abs_diff(now) < 600);
    // Inode flags.
    let file = File::open(mount.join("named")).unwrap();
    rustix::fs::ioctl_setflags(
        &file,
        rustix::fs::ioctl_getflags(&file).unwrap() | IFlags::IMMUTABLE,
    )
    .unwrap();
    assert!(
        rustix::fs::ioctl_getflags(&file)
            .unwrap()
            .contains(IFlags::IMMUTABLE)
    );
    let error = fs::remove_file(mount.join("named")).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::PERM));
    rustix::fs::ioctl_setflags(
        &file,
        rustix::fs::ioctl_getflags(&file).unwrap() - IFlags::IMMUTABLE,
    )
    .unwrap();
    drop(file);
    // rename's flags.
    fs::write(mount.join("other"), b"2").unwrap();
    let rename = |flags| {
        rustix::fs::renameat_with(CWD, mount.join("named"), CWD, mount.join("other"), flags)
    };
    assert_eq!(
        rename(rustix::fs::RenameFlags::NOREPLACE),
        Err(Errno::EXIST)
    );
    rename(rustix::fs::RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(mount.join("other")).unwrap(), b"nameless");
    // FITRIM.
    assert_eq!(run("fstrim", [mount.root()]).code(), 0);
    let root = mount.root().to_str().unwrap();
    let too_short = run("fstrim", ["--length", "100", root]);
    assert!(too_short.err.contains("Invalid argument"), "{too_short:?}");
    // An unlinked open file lives until it is closed.
    let open = File::open(mount.join("other")).unwrap();
    fs::remove_file(mount.join("other")).unwrap();
    assert_eq!(std::io::read_to_string(&open).unwrap(), "nameless");
    drop(open);
    mount.unmount();
    image.check_clean();
}

#[test]
fn stat_returns_what_a_call_changed() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mount = SteadMount::new(&scratch, image.path(), "");
    let path = mount.join("program");
    fs::write(&path, vec![1; 8192]).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o6755)).unwrap();
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    assert_eq!(mode(), 0o6755);
    // An unprivileged writer clears the set-ID bits, also with direct I/O.
    let target = format!("of={}", path.display());
    let writer = [
        "--bounding-set=-fsetid",
        "--inh-caps=-fsetid",
        "dd",
        &target,
    ];
    let how = [
        "if=/dev/zero",
        "bs=4096",
        "count=1",
        "conv=notrunc",
        "oflag=direct",
    ];
    run("setpriv", [&writer[..], &how].concat()).expect(0);
    assert_eq!(mode(), 0o755);
    // Setting flags changes ctime.
    let changed = || {
        let stat = fs::metadata(&path).unwrap();
        (stat.ctime(), stat.ctime_nsec())
    };
    let before = changed();
    let file = File::open(&path).unwrap();
    let flags = rustix::fs::ioctl_getflags(&file).unwrap();
    rustix::fs::ioctl_setflags(&file, flags | IFlags::NODUMP).unwrap();
    assert!(changed() > before, "{before:?}");
    drop(file);
    mount.unmount();
    image.check_clean();
}
