//! Copies have the access lists of their originals, and none of the directory that they are made in.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use steadfs::tools::{
    CopyOptions, Existing, Quiet, Report, Selection, ToolError, copy_between, copy_in, copy_out,
    owner_cx, resolve,
};
use steadfs::{F2fsFormatOptions, FileKind, FileSystem, FormatOptions, Volume};
use steadfs_vfs::SetXattr;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// `u::rwx,u:1000:rwx,g::r-x,m::rwx,o::---`
fn list() -> Vec<u8> {
    list_of(&[(2, 7, 1000)])
}

/// The same with these named users and groups.
fn list_of(named: &[(u16, u16, u32)]) -> Vec<u8> {
    let none = u32::MAX;
    let mut entries = named.to_vec();
    entries.extend([(1, 7, none), (4, 5, none), (16, 7, none), (32, 0, none)]);
    entries.sort_unstable();
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(perm.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

/// `file`, `pipe`, `dir/below` and `both/2`, a further name of `both/1`; without access lists.
fn tree(top: &Path) {
    fs::create_dir_all(top.join("dir/below")).unwrap();
    fs::write(top.join("file"), "secret").unwrap();
    fs::create_dir(top.join("both")).unwrap();
    fs::write(top.join("both/1"), vec![1; 100_000]).unwrap();
    fs::hard_link(top.join("both/1"), top.join("both/2")).unwrap();
    let (pipe, mode) = (top.join("pipe"), rustix::fs::Mode::from_raw_mode(0o640));
    rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for name in NAMES {
        let perm = if name.starts_with('d') { 0o750 } else { 0o640 };
        fs::set_permissions(top.join(name), fs::Permissions::from_mode(perm)).unwrap();
    }
}

const NAMES: [&str; 6] = ["dir", "dir/below", "file", "pipe", "both/1", "both/2"];

fn faithful() -> CopyOptions {
    CopyOptions {
        existing: Existing::Overwrite,
        preserve: true,
        ..CopyOptions::default()
    }
}

fn complete(copied: Result<Report, ToolError>) {
    let report = copied.unwrap();
    assert!(report.is_complete(), "{report:?}");
}

fn give_lists(volume: &dyn FileSystem, path: &str) {
    let found = resolve(volume, &owner_cx(), path.as_bytes(), false).unwrap();
    let lists = match found.attr().kind {
        FileKind::Directory => &[ACCESS, DEFAULT][..],
        _ => &[ACCESS],
    };
    for name in lists {
        let (ino, name) = (found.ino(), name.as_bytes());
        let set = volume.setxattr(&owner_cx(), ino, name, &list(), SetXattr::Any);
        set.unwrap();
    }
}

fn has_no_lists(volume: &dyn FileSystem, top: &str) {
    for name in NAMES {
        let path = format!("{top}/{name}");
        let found = resolve(volume, &owner_cx(), path.as_bytes(), false).unwrap();
        let names = volume.listxattr(&owner_cx(), found.ino()).unwrap();
        assert_eq!(names, Vec::<Vec<u8>>::new(), "{path}");
        let perm = if name.starts_with('d') { 0o750 } else { 0o640 };
        assert_eq!(found.attr().perm, perm, "{path}");
    }
}

fn each(work: impl Fn(&Volume, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    let [ext4, f2fs] = ["ext4.img", "f2fs.img"].map(|name| dir.path().join(name));
    steadfs::format(&ext4, Some(32 << 20), &FormatOptions::default()).unwrap();
    steadfs::format_f2fs(&f2fs, Some(64 << 20), &F2fsFormatOptions::default()).unwrap();
    for image in [ext4, f2fs] {
        let volume = Volume::open(&image).unwrap();
        let source = dir.path().join("source");
        let _ = fs::remove_dir_all(&source);
        fs::create_dir(&source).unwrap();
        tree(&source);
        work(&volume, dir.path());
        volume.close().unwrap();
    }
}

#[test]
fn copies_into_a_volume_inherit_no_list() {
    each(|volume, dir| {
        let (fs, cx, source) = (&*volume.fs(), owner_cx(), dir.join("source"));
        let empty = dir.join("empty");
        fs::create_dir_all(&empty).unwrap();
        complete(copy_in(fs, &cx, &empty, b"/shared", faithful(), &mut Quiet));
        give_lists(fs, "/shared");
        let to = b"/shared/new";
        complete(copy_in(fs, &cx, &source, to, faithful(), &mut Quiet));
        has_no_lists(fs, "/shared/new");
        // Over files that have lists.
        for name in NAMES {
            give_lists(fs, &format!("/shared/new/{name}"));
        }
        complete(copy_in(fs, &cx, &source, to, faithful(), &mut Quiet));
        has_no_lists(fs, "/shared/new");
        let from = (fs, &to[..]);
        let again = (fs, &b"/shared/again"[..]);
        complete(copy_between(from, again, &cx, faithful(), &mut Quiet));
        has_no_lists(fs, "/shared/again");
    });
}

fn names_on_host(path: &Path) -> Vec<u8> {
    let mut names = vec![0; 1000];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    names.truncate(len);
    names
}

fn set_on_host(path: &Path, name: &str) {
    rustix::fs::setxattr(path, name, &list(), XattrFlags::empty()).unwrap();
}

#[test]
fn copies_to_the_host_inherit_no_list() {
    each(|volume, dir| {
        let (fs, cx, source) = (&*volume.fs(), owner_cx(), dir.join("source"));
        complete(copy_in(fs, &cx, &source, b"/tree", faithful(), &mut Quiet));
        let shared: PathBuf = dir.join("shared");
        let _ = fs::remove_dir_all(&shared);
        fs::create_dir(&shared).unwrap();
        set_on_host(&shared, DEFAULT);
        let to = shared.join("new");
        for _ in 0..2 {
            let all = Selection::default();
            complete(copy_out(
                fs,
                &cx,
                b"/tree",
                &to,
                faithful(),
                all,
                &mut Quiet,
            ));
            for name in NAMES {
                let path = to.join(name);
                assert_eq!(names_on_host(&path), b"", "{name}");
                let perm = if name.starts_with('d') { 0o750 } else { 0o640 };
                let is = path.symlink_metadata().unwrap().permissions().mode();
                assert_eq!(is & 0o7777, perm, "{name}");
            }
            // The second copy finds files that have lists.
            for name in NAMES {
                set_on_host(&to.join(name), ACCESS);
                if name.starts_with('d') {
                    set_on_host(&to.join(name), DEFAULT);
                }
            }
        }
    });
}

/// Calls `work` in a thread for which these system calls fail.
fn where_fail<T: Send>(calls: &[i64], errno: i32, work: impl FnOnce() -> T + Send) -> T {
    let filter = || {
        let filter = SeccompFilter::new(
            calls.iter().map(|call| (*call, Vec::new())).collect(),
            SeccompAction::Allow,
            SeccompAction::Errno(errno.unsigned_abs()),
            std::env::consts::ARCH.try_into()?,
        );
        BpfProgram::try_from(filter?)
    };
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            seccompiler::apply_filter(&filter().unwrap()).unwrap();
            work()
        });
        work.join().unwrap()
    })
}

fn mode_on_host(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o7777
}

/// Copies `/tree` of a volume to `new` in a directory with a default list, where calls fail.
fn copied_where_fail(volume: &Volume, dir: &Path, calls: &[i64], errno: i32) -> (Report, PathBuf) {
    let (fs, cx) = (&*volume.fs(), owner_cx());
    let shared: PathBuf = dir.join("shared");
    let _ = fs::remove_dir_all(&shared);
    fs::create_dir(&shared).unwrap();
    set_on_host(&shared, DEFAULT);
    let to = shared.join("new");
    let copied = where_fail(calls, errno, || {
        let all = Selection::default();
        copy_out(fs, &cx, b"/tree", &to, faithful(), all, &mut Quiet)
    });
    (copied.unwrap(), to)
}

#[test]
fn a_list_that_the_host_does_not_take_leaves_no_wider_rights() {
    each(|volume, dir| {
        let (fs, cx, source) = (&*volume.fs(), owner_cx(), dir.join("source"));
        complete(copy_in(fs, &cx, &source, b"/tree", faithful(), &mut Quiet));
        for name in NAMES {
            give_lists(fs, &format!("/tree/{name}"));
        }
        let set = [libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr];
        let (report, to) = copied_where_fail(volume, dir, &set, libc::EOPNOTSUPP);
        // One list of each of four files, two of each of two directories.
        assert_eq!((report.failed, report.not_kept), (0, 7), "{report:?}");
        for name in NAMES {
            assert_eq!(names_on_host(&to.join(name)), b"", "{name}");
            // The owning group has r-x in the list, and its mask would have been rwx.
            assert_eq!(mode_on_host(&to.join(name)), 0o750, "{name}");
        }
    });
}

#[test]
fn a_list_that_cannot_be_removed_gives_no_rights_and_costs_no_tree() {
    each(|volume, dir| {
        let (fs, cx, source) = (&*volume.fs(), owner_cx(), dir.join("source"));
        complete(copy_in(fs, &cx, &source, b"/tree", faithful(), &mut Quiet));
        let remove = [libc::SYS_lremovexattr, libc::SYS_fremovexattr];
        let (report, to) = copied_where_fail(volume, dir, &remove, libc::EPERM);
        assert_eq!(report.failed, 0, "{report:?}");
        // Three directories and `both` have two lists, three files one.
        assert_eq!(report.not_kept, 2 * 4 + 3, "{report:?}");
        for name in NAMES {
            let perm = if name.starts_with('d') { 0o700 } else { 0o600 };
            assert_eq!(mode_on_host(&to.join(name)), perm, "{name}");
        }
        assert_eq!(fs::read(to.join("both/2")).unwrap(), vec![1; 100_000]);
    });
}

#[test]
fn a_list_that_a_volume_does_not_take_leaves_no_wider_rights() {
    let dir = tempfile::tempdir().unwrap();
    let image = |name: &str, block_size| {
        let options = FormatOptions {
            block_size: Some(block_size),
            ..FormatOptions::default()
        };
        let image = dir.path().join(name);
        steadfs::format(&image, Some(16 << 20), &options).unwrap();
        Volume::open(&image).unwrap()
    };
    let (source, target) = (image("source", 4096), image("target", 1024));
    let (from, to, cx) = (&*source.fs(), &*target.fs(), owner_cx());
    source.write("/file", "secret").unwrap();
    source.create_dir("/dir").unwrap();
    // 1600 bytes are too long for blocks of 1 KiB.
    let long: Vec<_> = (0..200).map(|id| (2, 7, 1000 + id)).collect();
    for path in ["/file", "/dir"] {
        source
            .set_xattr(path, ACCESS, Some(&list_of(&long)))
            .unwrap();
    }
    source
        .set_xattr("/dir", DEFAULT, Some(&list_of(&long)))
        .unwrap();
    let perm = |path: &str| target.metadata(path).unwrap().permissions();
    for has_list in [false, true] {
        for (path, lists) in [("/file", 1), ("/dir", 2)] {
            if has_list {
                give_lists(to, path);
            }
            let (old, new) = ((from, path.as_bytes()), (to, path.as_bytes()));
            let report = copy_between(old, new, &cx, faithful(), &mut Quiet).unwrap();
            assert_eq!((report.failed, report.not_kept), (0, lists), "{path}");
            assert_eq!(source.metadata(path).unwrap().permissions(), 0o770);
            // The old list stays without effect.
            assert_eq!(perm(path), if has_list { 0o700 } else { 0o750 }, "{path}");
            let lists = target.xattrs(path).unwrap();
            assert!(
                lists.iter().all(|(name, _)| has_list && name == ACCESS),
                "{lists:?}"
            );
        }
    }
    source.close().unwrap();
    target.close().unwrap();
}
