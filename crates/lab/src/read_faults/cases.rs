//! Each kind of call that changes a volume.

use steadfs_base::InodeNo;
use steadfs_vfs::{FallocMode, InodeFlags, RenameFlags, Result, SetAttr, SetXattr};

use super::Mounted;

/// A call and its preparation.
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Runs before a read fails; returns an inode for the call.
    pub setup: fn(&Mounted<'_>) -> Option<InodeNo>,
    /// The call.
    pub call: fn(&Mounted<'_>, Option<InodeNo>) -> Result<()>,
    /// Whether only extent-mapped files support it.
    pub extents: bool,
}

const fn case(name: &'static str, call: fn(&Mounted<'_>, Option<InodeNo>) -> Result<()>) -> Case {
    Case {
        name,
        setup: |_| None,
        call,
        extents: false,
    }
}

const fn after(
    name: &'static str,
    setup: fn(&Mounted<'_>) -> Option<InodeNo>,
    call: fn(&Mounted<'_>, Option<InodeNo>) -> Result<()>,
) -> Case {
    Case {
        name,
        setup,
        call,
        extents: false,
    }
}

const fn of_extents(
    name: &'static str,
    call: fn(&Mounted<'_>, Option<InodeNo>) -> Result<()>,
) -> Case {
    Case {
        name,
        setup: |_| None,
        call,
        extents: true,
    }
}

const PLAIN: RenameFlags = RenameFlags {
    no_replace: false,
    exchange: false,
    whiteout: false,
};
const EXCHANGE: RenameFlags = RenameFlags {
    exchange: true,
    ..PLAIN
};
const WHITEOUT: RenameFlags = RenameFlags {
    whiteout: true,
    ..PLAIN
};
const NO_REPLACE: RenameFlags = RenameFlags {
    no_replace: true,
    ..PLAIN
};

type Name<'a> = (&'a str, &'a [u8]);

fn rename(m: &Mounted<'_>, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
    let (from, to) = ((m.ino(from.0), from.1), (m.ino(to.0), to.1));
    m.fs.rename(&m.cx, from, to, flags)
}

fn mknod(m: &Mounted<'_>, dir: &str, name: &[u8], mode: u32) -> Result<()> {
    m.fs.mknod(&m.cx, m.ino(dir), name, mode, 0).map(drop)
}

fn set(m: &Mounted<'_>, file: &str, set: &SetAttr) -> Result<()> {
    m.fs.setattr(&m.cx, m.ino(file), set).map(drop)
}

fn truncate(m: &Mounted<'_>, file: &str, size: u64) -> Result<()> {
    let size = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    set(m, file, &size)
}

fn chmod(m: &Mounted<'_>, file: &str) -> Result<()> {
    let perm = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    set(m, file, &perm)
}

fn setxattr(m: &Mounted<'_>, file: &str, name: &[u8], value: &[u8]) -> Result<()> {
    m.fs.setxattr(&m.cx, m.ino(file), name, value, SetXattr::Any)
}

/// An ACL that is more than a mode.
pub(super) fn list() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] = [
        (1, 7, u32::MAX),
        (2, 5, 1000),
        (4, 5, u32::MAX),
        (16, 7, u32::MAX),
        (32, 0, u32::MAX),
    ];
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&perm.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

fn sync(m: &Mounted<'_>, made: Option<InodeNo>) -> Result<()> {
    m.fs.fsync(&m.cx, made.expect("made by the setup"), false)
}

/// Writes data to distant blocks, and does not sync it.
fn write(m: &Mounted<'_>, file: &str, blocks: &[u64]) -> Option<InodeNo> {
    let ino = m.ino(file);
    for block in blocks {
        let written = m.fs.write(&m.cx, ino, block * 4096, &[0x5A; 4096], false);
        written.expect("no read fails yet");
    }
    Some(ino)
}

fn fallocate(m: &Mounted<'_>, file: &str, mode: FallocMode, range: (u64, u64)) -> Result<()> {
    m.fs.fallocate(&m.cx, m.ino(file), mode, range.0, range.1)
}

/// Removes a file's name while the file has a lookup count.
fn unlink_held(m: &Mounted<'_>, dir: &str, name: &str) -> Option<InodeNo> {
    let attr = m.fs.lookup(&m.cx, m.ino(dir), name.as_bytes());
    let ino = attr.expect("no read fails yet").ino;
    let unlinked = m.fs.unlink(&m.cx, m.ino(dir), name.as_bytes());
    unlinked.expect("no read fails yet");
    Some(ino)
}

fn forget(m: &Mounted<'_>, made: Option<InodeNo>) -> Result<()> {
    m.fs.forget(made.expect("made by the setup"), 1);
    Ok(())
}

/// A link target that does not fit into the inode.
pub(super) const LONG: [u8; 300] = [b'l'; 300];

/// All cases.
pub const CASES: &[Case] = &[
    case("mknod", |m, _| mknod(m, "dir", b"new", 0o100_644)),
    case("mknod fifo", |m, _| mknod(m, "dir", b"new", 0o010_644)),
    case("mknod in a large directory", |m, _| {
        mknod(m, "big", b"new", 0o100_644)
    }),
    case("mknod that splits", |m, _| {
        for n in 0..12 {
            let name = format!("{n:0200}");
            mknod(m, "big", name.as_bytes(), 0o100_644)?;
        }
        Ok(())
    }),
    case("mknod in a full directory", |m, _| {
        for n in 0..12 {
            let name = format!("{n:0200}");
            mknod(m, "dir", name.as_bytes(), 0o100_644)?;
        }
        Ok(())
    }),
    case("mknod with ACLs", |m, _| mknod(m, "acl", b"new", 0o100_644)),
    case("mkdir with ACLs", |m, _| {
        m.fs.mkdir(&m.cx, m.ino("acl"), b"new", 0o755).map(drop)
    }),
    case("mkdir", |m, _| {
        m.fs.mkdir(&m.cx, m.ino("dir"), b"new", 0o755).map(drop)
    }),
    case("mkdir at the top", |m, _| {
        m.fs.mkdir(&m.cx, m.ino("root"), b"new", 0o755).map(drop)
    }),
    case("symlink", |m, _| {
        m.fs.symlink(&m.cx, m.ino("dir"), b"new", b"to").map(drop)
    }),
    case("long symlink", |m, _| {
        m.fs.symlink(&m.cx, m.ino("dir"), b"new", &LONG).map(drop)
    }),
    case("tmpfile", |m, _| {
        m.fs.tmpfile(&m.cx, m.ino("dir"), 0o600).map(drop)
    }),
    after(
        "link of a tmpfile",
        |m| {
            Some(
                m.fs.tmpfile(&m.cx, m.ino("dir"), 0o600)
                    .expect("no read fails yet")
                    .ino,
            )
        },
        |m, made| {
            let ino = made.expect("made by the setup");
            m.fs.link(&m.cx, ino, m.ino("dir"), b"new").map(drop)
        },
    ),
    case("link", |m, _| {
        m.fs.link(&m.cx, m.ino("plain"), m.ino("dir"), b"new")
            .map(drop)
    }),
    case("link in a large directory", |m, _| {
        m.fs.link(&m.cx, m.ino("plain"), m.ino("big"), b"new")
            .map(drop)
    }),
    case("unlink", |m, _| m.fs.unlink(&m.cx, m.ino("dir"), b"plain")),
    case("unlink one of two", |m, _| {
        m.fs.unlink(&m.cx, m.ino("dir"), b"twice")
    }),
    case("unlink fragmented", |m, _| {
        m.fs.unlink(&m.cx, m.ino("dir"), b"fragmented")
    }),
    case("unlink attributes", |m, _| {
        m.fs.unlink(&m.cx, m.ino("dir"), b"attrs")
    }),
    case("unlink long symlink", |m, _| {
        m.fs.unlink(&m.cx, m.ino("dir"), b"long")
    }),
    case("unlink in a large directory", |m, _| {
        let name = format!("a rather long name of a file {:04}", 77);
        m.fs.unlink(&m.cx, m.ino("big"), name.as_bytes())
    }),
    case("rmdir", |m, _| m.fs.rmdir(&m.cx, m.ino("root"), b"empty")),
    case("rename", |m, _| {
        rename(m, ("dir", b"plain"), ("dir", b"new"), PLAIN)
    }),
    case("rename without replacing", |m, _| {
        rename(m, ("dir", b"plain"), ("empty", b"new"), NO_REPLACE)
    }),
    case("rename over", |m, _| {
        rename(m, ("dir", b"plain"), ("dir", b"attrs"), PLAIN)
    }),
    case("rename across", |m, _| {
        rename(m, ("dir", b"plain"), ("big", b"new"), PLAIN)
    }),
    case("rename across and over", |m, _| {
        rename(m, ("dir", b"plain"), ("other", b"file"), PLAIN)
    }),
    case("rename directory", |m, _| {
        rename(m, ("other", b"sub"), ("big", b"new"), PLAIN)
    }),
    case("rename directory over", |m, _| {
        rename(m, ("other", b"sub"), ("root", b"empty"), PLAIN)
    }),
    case("rename large directory", |m, _| {
        rename(m, ("root", b"big"), ("other", b"new"), PLAIN)
    }),
    case("exchange", |m, _| {
        rename(m, ("dir", b"plain"), ("dir", b"attrs"), EXCHANGE)
    }),
    case("exchange across", |m, _| {
        rename(m, ("dir", b"plain"), ("other", b"file"), EXCHANGE)
    }),
    case("exchange directories", |m, _| {
        rename(m, ("other", b"sub"), ("root", b"big"), EXCHANGE)
    }),
    case("exchange directory and file", |m, _| {
        rename(m, ("other", b"sub"), ("dir", b"plain"), EXCHANGE)
    }),
    case("whiteout", |m, _| {
        rename(m, ("dir", b"plain"), ("dir", b"new"), WHITEOUT)
    }),
    case("whiteout across and over", |m, _| {
        rename(m, ("dir", b"plain"), ("other", b"file"), WHITEOUT)
    }),
    case("chmod", |m, _| chmod(m, "plain")),
    case("chmod with an ACL", |m, _| chmod(m, "attrs")),
    case("chown", |m, _| {
        let owner = SetAttr {
            uid: Some(7),
            gid: Some(8),
            ..SetAttr::default()
        };
        set(m, "attrs", &owner)
    }),
    case("truncate", |m, _| truncate(m, "fragmented", 5000)),
    case("truncate to nothing", |m, _| truncate(m, "fragmented", 0)),
    case("truncate the end", |m, _| {
        truncate(m, "fragmented", 300_000)
    }),
    case("truncate to more", |m, _| truncate(m, "plain", 1 << 20)),
    after("write and sync", |m| write(m, "plain", &[0, 1, 9]), sync),
    after(
        "write into holes",
        |m| write(m, "fragmented", &[1, 31, 61, 100]),
        sync,
    ),
    after("write far", |m| write(m, "plain", &[20, 100, 200]), sync),
    after(
        "write into unwritten blocks",
        |m| write(m, "reserved", &[1, 3, 8]),
        sync,
    ),
    of_extents("allocate", |m, _| {
        let keep = FallocMode::Allocate { keep_size: true };
        fallocate(m, "fragmented", keep, (0, 300_000))
    }),
    of_extents("allocate and grow", |m, _| {
        let grow = FallocMode::Allocate { keep_size: false };
        fallocate(m, "plain", grow, (0, 300_000))
    }),
    case("punch", |m, _| {
        fallocate(m, "fragmented", FallocMode::PunchHole, (9000, 200_000))
    }),
    case("punch within", |m, _| {
        fallocate(m, "whole", FallocMode::PunchHole, (16_384, 16_384))
    }),
    of_extents("zero", |m, _| {
        let zero = FallocMode::ZeroRange { keep_size: true };
        fallocate(m, "whole", zero, (16_384, 16_384))
    }),
    of_extents("zero fragments", |m, _| {
        let zero = FallocMode::ZeroRange { keep_size: false };
        fallocate(m, "fragmented", zero, (9000, 200_000))
    }),
    case("small attribute", |m, _| {
        setxattr(m, "plain", b"user.new", b"1")
    }),
    case("large attribute", |m, _| {
        setxattr(m, "plain", b"user.new", &[7; 700])
    }),
    case("attribute replaced", |m, _| {
        setxattr(m, "attrs", b"user.large", &[7; 300])
    }),
    case("attribute that leaves the inode", |m, _| {
        setxattr(m, "attrs", b"user.small", &[7; 200])
    }),
    case("attribute removed", |m, _| {
        m.fs.removexattr(&m.cx, m.ino("attrs"), b"user.large")
    }),
    case("last attributes removed", |m, _| {
        for name in [
            &b"user.large"[..],
            b"user.small",
            b"system.posix_acl_access",
        ] {
            m.fs.removexattr(&m.cx, m.ino("attrs"), name)?;
        }
        Ok(())
    }),
    case("list", |m, _| {
        setxattr(m, "plain", b"system.posix_acl_access", &list())
    }),
    case("default ACL", |m, _| {
        setxattr(m, "dir", b"system.posix_acl_default", &list())
    }),
    case("flags", |m, _| {
        let flags = m.fs.flags(&m.cx, m.ino("plain"))?.flags;
        let flags = flags.union(InodeFlags::NODUMP);
        m.fs.set_flags(&m.cx, m.ino("plain"), flags)
    }),
    after("evict", |m| unlink_held(m, "dir", "plain"), forget),
    after(
        "evict fragmented",
        |m| unlink_held(m, "dir", "fragmented"),
        forget,
    ),
    after(
        "evict attributes",
        |m| unlink_held(m, "dir", "attrs"),
        forget,
    ),
    after(
        "evict long symlink",
        |m| unlink_held(m, "dir", "long"),
        forget,
    ),
    after(
        "evict the older of two",
        |m| {
            let older = unlink_held(m, "dir", "plain");
            unlink_held(m, "dir", "attrs");
            older
        },
        forget,
    ),
    case("copy", |m, _| {
        let (from, to) = ((m.ino("whole"), 0), (m.ino("plain"), 8192));
        m.fs.copy_range(&m.cx, from, to, 16_384)?;
        m.fs.fsync(&m.cx, m.ino("plain"), false)
    }),
];
