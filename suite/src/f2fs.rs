//! f2fs volumes made and judged by f2fs-tools.

use std::path::Path;

use steadfs::{Checked, Options};
use steadfs_f2fs::check::Report;

use crate::generate::Torture;
use crate::{Image, Scratch, run, succeed};

/// The tree of tests that try everything.
pub const TORTURE: Torture = Torture {
    block: 4096,
    far: 900 << 30,
    longest_link: 4095,
    xattr_bytes: 3500,
    many: 3000,
};

/// A new volume of `size` bytes, made by mkfs.f2fs with the arguments in `args`.
#[track_caller]
pub fn mkfs(scratch: &Scratch, name: &str, size: u64, args: &str) -> Image {
    let image = Image::empty(scratch, name, size);
    let path = image.path().to_str().expect("a path that is text");
    let all = ["-q", "-f"].into_iter().chain(args.split_whitespace());
    succeed("mkfs.f2fs", all.chain([path]));
    image
}

/// Checks that our checker and fsck.f2fs find nothing; returns our checker's report.
#[track_caller]
pub fn check_clean(image: &Path, what: &str) -> Report {
    let checked = steadfs::check(image, &Options::default(), &mut |_| ()).expect(what);
    assert!(checked.is_clean(), "{what}: {:#?}", checked.issues());
    run("fsck.f2fs", ["--dry-run".as_ref(), image.as_os_str()]).expect(0);
    match checked {
        Checked::F2fs { report } => report,
        Checked::Ext4 { .. } => panic!("{what}: not recognized as f2fs"),
    }
}
