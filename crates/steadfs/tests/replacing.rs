//! A file that was to be replaced is still there if what replaces it cannot be made.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::IFlags;
use steadfs::tools::edit::{Editor, LinkOptions, Target};
use steadfs::tools::{
    CopyOptions, Existing, Progress, Quiet, Selection, ToolError, copy_in, copy_out, owner_cx,
    read_dir, resolve,
};
use steadfs::{FileSystem, FormatOptions, Volume};

/// Keeps what was reported, one sentence each.
#[derive(Default)]
struct Heard(Vec<String>);

impl Progress for Heard {
    fn file(&mut self, _: &[u8], _: &[u8]) {}
    fn bytes(&mut self, _: u64) {}
    fn problem(&mut self, error: &ToolError) {
        self.0.push(error.to_string());
    }
}

/// Links on this volume have at most 1023 bytes.
fn volume(dir: &Path) -> Volume {
    let image = dir.join("image");
    let options = FormatOptions {
        block_size: Some(1024),
        ..FormatOptions::default()
    };
    steadfs::format(&image, Some(16 << 20), &options).unwrap();
    let volume = Volume::open(&image).unwrap();
    volume.write("/old", "old").unwrap();
    volume.symlink("loop", "/loop").unwrap();
    volume
}

fn names(fs: &dyn FileSystem) -> Vec<Vec<u8>> {
    let entries = read_dir(fs, &owner_cx(), fs.root()).unwrap();
    entries.into_iter().map(|entry| entry.name).collect()
}

fn link(volume: &Volume, operand: &[u8], relative: bool) -> Vec<String> {
    let mut heard = Heard::default();
    let (fs, cx) = (volume.fs(), owner_cx());
    let target = Target {
        path: b"/old",
        is_dir: false,
        is_name: true,
        no_follow: true,
    };
    let options = LinkOptions {
        symbolic: true,
        relative,
        force: true,
        ..LinkOptions::default()
    };
    Editor::new(&*fs, &cx, &mut heard)
        .ln(&[operand], target, options)
        .unwrap();
    heard.0
}

#[test]
fn a_link_that_cannot_be_made_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let volume = volume(dir.path());
    let before = names(&*volume.fs());
    for (operand, relative) in [(&b"/loop/x"[..], true), (&[b'x'; 2000], false)] {
        let heard = link(&volume, operand, relative);
        assert_eq!(heard.len(), 1, "{heard:?}");
        assert_eq!(volume.read("/old").unwrap(), b"old", "{heard:?}");
        assert_eq!(names(&*volume.fs()), before);
    }
    assert_eq!(link(&volume, b"/new", false), Vec::<String>::new());
    assert_eq!(names(&*volume.fs()), before);
    assert_eq!(volume.read_link("/old").unwrap(), Path::new("/new"));
    volume.close().unwrap();
}

#[test]
fn a_copy_that_cannot_be_made_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let volume = volume(dir.path());
    let (fs, cx) = (&*volume.fs(), owner_cx());
    let before = names(fs);
    let options = CopyOptions {
        existing: Existing::Overwrite,
        preserve: true,
        ..CopyOptions::default()
    };
    let from = dir.path().join("link");
    symlink("x".repeat(2000), &from).unwrap();
    copy_in(fs, &cx, &from, b"/old", options, &mut Quiet).unwrap_err();
    assert_eq!(volume.read("/old").unwrap(), b"old");
    assert_eq!(names(fs), before);
    fs::remove_file(&from).unwrap();
    symlink("x", &from).unwrap();
    let copied = copy_in(fs, &cx, &from, b"/old", options, &mut Quiet).unwrap();
    assert!(copied.is_complete());
    assert_eq!(names(fs), before);
    let there = resolve(fs, &cx, b"/old", false).unwrap();
    assert_eq!(fs.readlink(&cx, there.ino()).unwrap(), b"x");
    drop(there);
    volume.close().unwrap();
}

/// What cannot be replaced on the host, and the kernel's words for it.
#[test]
fn a_file_that_may_not_be_replaced_is_reported_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let volume = volume(dir.path());
    let (fs, cx) = (&*volume.fs(), owner_cx());
    volume.symlink("/old", "/link").unwrap();
    let to = dir.path().join("kept");
    fs::write(&to, "kept").unwrap();
    let file = fs::File::open(&to).unwrap();
    rustix::fs::ioctl_setflags(&file, IFlags::IMMUTABLE).unwrap();
    let options = CopyOptions {
        existing: Existing::Replace,
        ..CopyOptions::default()
    };
    let all = Selection::default();
    let copied = copy_out(fs, &cx, b"/link", &to, options, all, &mut Quiet);
    rustix::fs::ioctl_setflags(&file, IFlags::empty()).unwrap();
    let error = copied.unwrap_err().to_string();
    assert_eq!(
        error,
        format!("{}: Operation not permitted (os error 1)", to.display())
    );
    assert_eq!(fs::read(&to).unwrap(), b"kept");
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        2,
        "the image and the file"
    );
    volume.close().unwrap();
}
