//! How long a name may be, asked of every call of the library that takes one, on both kinds of volumes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use steadfs::tools::{owner_cx, read_dir};
use steadfs::{F2fsFormatOptions, FormatOptions, Options, Volume, check};
use steadfs_base::InodeNo;
use steadfs_vfs::{Cx, FileSystem, FsError, RenameFlags};

const NAME_MAX: usize = 255;
const REGULAR: u32 = 0o100_644;
const FIFO: u32 = 0o010_644;

/// A call, for a name that is there or not as it needs; makes what it needs besides.
type Call = (
    &'static str,
    Needs,
    fn(&Ground<'_>, &[u8]) -> Result<(), FsError>,
);

/// What must be at the name before the call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    File,
    Dir,
}

/// Where a call is tried: a directory with the files `a` and `b`.
struct Ground<'f> {
    fs: &'f dyn FileSystem,
    cx: Cx,
    dir: InodeNo,
}

impl Ground<'_> {
    fn file(&self, name: &[u8]) -> Result<InodeNo, FsError> {
        let attr = self.fs.mknod(&self.cx, self.dir, name, REGULAR, 0)?;
        self.fs.forget(attr.ino, 1);
        Ok(attr.ino)
    }

    fn found(&self, name: &[u8]) -> Result<InodeNo, FsError> {
        let attr = self.fs.lookup(&self.cx, self.dir, name)?;
        self.fs.forget(attr.ino, 1);
        Ok(attr.ino)
    }

    fn made(&self, attr: steadfs_vfs::Attr) {
        self.fs.forget(attr.ino, 1);
    }

    fn rename(&self, from: &[u8], to: &[u8], flags: RenameFlags) -> Result<(), FsError> {
        let (from, to) = ((self.dir, from), (self.dir, to));
        self.fs.rename(&self.cx, from, to, flags)
    }

    fn names(&self) -> Vec<Vec<u8>> {
        let entries = read_dir(self.fs, &self.cx, self.dir).unwrap();
        let mut names: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
        names.sort();
        names
    }
}

const PLAIN: RenameFlags = RenameFlags {
    no_replace: false,
    exchange: false,
    whiteout: false,
};
const NO_REPLACE: RenameFlags = RenameFlags {
    no_replace: true,
    ..PLAIN
};
const EXCHANGE: RenameFlags = RenameFlags {
    exchange: true,
    ..PLAIN
};
const WHITEOUT: RenameFlags = RenameFlags {
    whiteout: true,
    ..PLAIN
};

const CALLS: &[Call] = &[
    ("mknod", Needs::Nothing, |g, name| g.file(name).map(drop)),
    ("mknod of a pipe", Needs::Nothing, |g, name| {
        g.fs.mknod(&g.cx, g.dir, name, FIFO, 0)
            .map(|attr| g.made(attr))
    }),
    ("mkdir", Needs::Nothing, |g, name| {
        g.fs.mkdir(&g.cx, g.dir, name, 0o755)
            .map(|attr| g.made(attr))
    }),
    ("symlink", Needs::Nothing, |g, name| {
        g.fs.symlink(&g.cx, g.dir, name, b"to")
            .map(|attr| g.made(attr))
    }),
    ("link", Needs::Nothing, |g, name| {
        let file = g.found(b"a")?;
        g.fs.link(&g.cx, file, g.dir, name).map(|attr| g.made(attr))
    }),
    (
        "link of a file without a name",
        Needs::Nothing,
        |g, name| {
            let file = g.fs.tmpfile(&g.cx, g.dir, REGULAR)?.ino;
            let linked = g.fs.link(&g.cx, file, g.dir, name).map(|attr| g.made(attr));
            g.fs.forget(file, 1);
            linked
        },
    ),
    ("lookup", Needs::File, |g, name| g.found(name).map(drop)),
    ("unlink", Needs::File, |g, name| {
        g.fs.unlink(&g.cx, g.dir, name)
    }),
    ("rmdir", Needs::Dir, |g, name| {
        g.fs.rmdir(&g.cx, g.dir, name)
    }),
    ("rename from", Needs::File, |g, name| {
        g.rename(name, b"c", PLAIN)
    }),
    ("rename to", Needs::Nothing, |g, name| {
        g.rename(b"a", name, PLAIN)
    }),
    ("rename over", Needs::File, |g, name| {
        g.rename(b"a", name, PLAIN)
    }),
    ("rename of a directory", Needs::Dir, |g, name| {
        g.rename(name, b"c", PLAIN)
    }),
    ("rename from, not over", Needs::File, |g, name| {
        g.rename(name, b"c", NO_REPLACE)
    }),
    ("rename to, not over", Needs::Nothing, |g, name| {
        g.rename(b"a", name, NO_REPLACE)
    }),
    ("exchange from", Needs::File, |g, name| {
        g.rename(name, b"b", EXCHANGE)
    }),
    ("exchange with", Needs::File, |g, name| {
        g.rename(b"a", name, EXCHANGE)
    }),
    ("rename from, with a whiteout", Needs::File, |g, name| {
        g.rename(name, b"c", WHITEOUT)
    }),
    ("rename to, with a whiteout", Needs::Nothing, |g, name| {
        g.rename(b"a", name, WHITEOUT)
    }),
];

fn volumes(dir: &Path) -> Vec<PathBuf> {
    let ext4 = dir.join("ext4");
    steadfs::format(&ext4, Some(64 << 20), &FormatOptions::default()).unwrap();
    let f2fs = dir.join("f2fs");
    steadfs::format_f2fs(&f2fs, Some(128 << 20), &F2fsFormatOptions::default()).unwrap();
    vec![ext4, f2fs]
}

#[test]
fn names_end_at_255_bytes_in_every_call() {
    let dir = tempfile::tempdir().unwrap();
    for path in volumes(dir.path()) {
        let options = Options::parse("").unwrap();
        let volume = Volume::open_with(&path, &options).unwrap();
        let (fs, cx) = (volume.fs(), owner_cx());
        for (n, (call, needs, run)) in CALLS.iter().enumerate() {
            let what = format!("{}: {call}", path.display());
            let made = fs.mkdir(&cx, fs.root(), format!("{n}").as_bytes(), 0o755);
            let ground = Ground {
                fs: &*fs,
                cx: cx.clone(),
                dir: made.unwrap().ino,
            };
            ground.file(b"a").unwrap();
            ground.file(b"b").unwrap();
            for len in [NAME_MAX + 1, NAME_MAX + 2, 1024, 70_000] {
                let said = run(&ground, &vec![b'n'; len]);
                assert_eq!(said, Err(FsError::NameTooLong), "{what}: {len}");
                assert_eq!(ground.names(), [b"a", b"b"], "{what}: {len}");
            }
            let longest = [b'n'; NAME_MAX];
            match needs {
                Needs::Nothing => {}
                Needs::File => drop(ground.file(&longest).unwrap()),
                Needs::Dir => ground.made(fs.mkdir(&cx, ground.dir, &longest, 0o755).unwrap()),
            }
            assert_eq!(run(&ground, &longest), Ok(()), "{what}");
            fs.forget(ground.dir, 1);
        }
        volume.close().unwrap();
        drop((fs, volume));
        let checked = check(&path, &options, &mut |_| {}).unwrap();
        assert!(checked.is_clean(), "{:?}", checked.issues());
    }
}
