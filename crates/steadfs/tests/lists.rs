//! Copies have the access lists of their originals, and none of the directory that they are made in.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
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
    let none = u32::MAX;
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in [
        (1_u16, 7_u16, none),
        (2, 7, 1000),
        (4, 5, none),
        (16, 7, none),
        (32, 0, none),
    ] {
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
