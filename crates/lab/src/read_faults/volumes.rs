//! The volumes on which reads fail.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::{Device, MemDevice, Queue, QueueOptions};
use steadfs_ext4::check::Options as ExtCheck;
use steadfs_ext4::disk::superblock::STATE_ERROR;
use steadfs_ext4::format::{FormatOptions, Kind};
use steadfs_ext4::{CacheSizes, Ext4};
use steadfs_f2fs::F2fs;
use steadfs_f2fs::check::Options as F2fsCheck;
use steadfs_vfs::{Cx, FallocMode, FileSystem, Result, SetAttr, SetXattr};

use super::cases::{LONG, list};
use crate::encrypted;

/// A volume with files of every kind.
pub struct Volume {
    /// Its name, for reports.
    pub name: &'static str,
    /// Whether its files support preallocation of holes.
    pub extents: bool,
    base: Arc<MemDevice>,
    format: Format,
    /// Its inodes, by their names at creation.
    pub inos: BTreeMap<&'static str, InodeNo>,
    encrypted: bool,
}

/// A mounted volume.
pub(super) enum Opened {
    Ext(Arc<Ext4>),
    F2fs(Arc<F2fs>),
}

impl Opened {
    pub(super) fn fs(&self) -> &dyn FileSystem {
        match self {
            Self::Ext(fs) => &**fs,
            Self::F2fs(fs) => &**fs,
        }
    }

    /// Evicts clean metadata that is not in use from the cache.
    pub(super) fn evict_clean(&self) {
        match self {
            Self::Ext(fs) => fs.forget_clean(),
            Self::F2fs(fs) => fs.forget_clean(),
        }
    }
}

/// How a volume is mounted and judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// ext2, ext3 or ext4.
    Ext {
        /// Whether it has a journal.
        journaled: bool,
    },
    /// f2fs.
    F2fs,
}

type Recipe = (&'static str, Kind, u32, &'static str);

const EXT: [Recipe; 7] = [
    ("ext2", Kind::Ext2, 1024, ""),
    ("ext3", Kind::Ext3, 1024, ""),
    ("ext4", Kind::Ext4, 1024, "^orphan_file"),
    (
        "ext4 with an orphan file",
        Kind::Ext4,
        1024,
        "orphan_file,^flex_bg",
    ),
    (
        "ext4 without journal and checksums",
        Kind::Ext4,
        4096,
        "^metadata_csum,^dir_index,^orphan_file,^flex_bg,^has_journal",
    ),
    (
        "ext4 with quota",
        Kind::Ext4,
        1024,
        "quota,project,^flex_bg",
    ),
    (
        "ext4, encrypted and folded",
        Kind::Ext4,
        1024,
        "encrypt,casefold,^flex_bg",
    ),
];

const EXT_SIZE: u64 = 8 << 20;

const F2FS: [(&str, &str, &str); 4] = [
    ("f2fs", "extra_attr,inode_checksum,sb_checksum", ""),
    (
        "f2fs in blocks",
        "",
        "noinline_data,noinline_dentry,noinline_xattr",
    ),
    (
        "f2fs with quota",
        "extra_attr,inode_checksum,lost_found,project_quota,quota",
        "",
    ),
    (
        "f2fs, encrypted",
        "extra_attr,inode_checksum,encrypt",
        "noinline_dentry,noinline_xattr",
    ),
];

const F2FS_SIZE: u64 = 60 << 20;

/// The caller of all calls.
pub(super) fn root() -> Cx {
    Cx {
        fsetid: true,
        admin: true,
        ..Cx::default()
    }
}

/// The names of all volumes.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let ext = EXT.iter().map(|recipe| recipe.0);
    ext.chain(F2FS.iter().map(|recipe| recipe.0))
}

/// The n-th volume, newly formatted. Call it in a simulation.
pub(super) fn make(n: usize) -> Volume {
    match EXT.get(n) {
        Some(recipe) => make_ext(recipe),
        None => make_f2fs(&F2FS[n - EXT.len()]),
    }
}

/// Every volume, newly formatted. Call it in a simulation.
pub fn volumes() -> Vec<Volume> {
    (0..EXT.len() + F2FS.len()).map(make).collect()
}

fn make_ext(&(name, kind, block_size, features): &Recipe) -> Volume {
    let options = FormatOptions {
        kind,
        block_size: Some(block_size),
        inodes: Some(512),
        // The policy of an encrypted file is in an attribute block.
        inode_size: features.contains("encrypt").then_some(128),
        features: features.to_owned(),
        blocks_per_group: Some(2048),
        ..FormatOptions::default()
    };
    let device = steadfs_ext4::format::image(EXT_SIZE, &options).expect("it can be made");
    let journaled = kind != Kind::Ext2 && !features.contains("^has_journal");
    let format = Format::Ext { journaled };
    let folds = features.contains("casefold");
    let encrypted = features.contains("encrypt").then_some(folds);
    Volume::fill(name, device, format, kind == Kind::Ext4, ("", encrypted))
}

fn make_f2fs(&(name, features, options): &(&'static str, &str, &str)) -> Volume {
    let mut format = steadfs_f2fs::format::FormatOptions::default();
    format.set_features(features).expect("it has these");
    let device = steadfs_f2fs::format::image(F2FS_SIZE, &format).expect("it can be made");
    let encrypted = features.contains("encrypt").then_some(false);
    Volume::fill(name, device, Format::F2fs, true, (options, encrypted))
}

impl Volume {
    fn fill(
        name: &'static str,
        device: Arc<MemDevice>,
        format: Format,
        extents: bool,
        (options, encrypted): (&str, Option<bool>),
    ) -> Self {
        let mut volume = Self {
            name,
            extents,
            base: device,
            format,
            inos: BTreeMap::new(),
            encrypted: encrypted.is_some(),
        };
        let fs = volume.mount(Arc::clone(&volume.base) as _, options);
        let fs = fs.expect("it mounts");
        let top = match encrypted {
            Some(folds) => {
                encrypted::make_dir(fs.fs(), &root(), b"top", folds).expect("it can be encrypted")
            }
            None => fs.fs().root(),
        };
        volume.inos = fill(fs.fs(), top, extents).expect("it can be filled");
        fs.fs().unmount().expect("it unmounts");
        volume.judge(&volume.base, true).expect("it is consistent");
        volume
    }

    /// A device with its content.
    pub(super) fn copy(&self) -> MemDevice {
        self.base.copy()
    }

    /// Mounts it with an empty cache.
    ///
    /// # Errors
    /// Why it cannot be mounted.
    pub(super) fn open(&self, device: Arc<dyn Device>) -> Result<Opened> {
        self.mount(device, "")
    }

    fn mount(&self, device: Arc<dyn Device>, options: &str) -> Result<Opened> {
        let sizes = CacheSizes::of(64 << 20);
        let opened = match self.format {
            Format::Ext { .. } => {
                let options = steadfs_ext4::MountOptions::parse(options)?;
                Opened::Ext(Ext4::open(device, options, sizes)?.0)
            }
            Format::F2fs => {
                let options = steadfs_f2fs::MountOptions::parse(options)?;
                Opened::F2fs(F2fs::open(device, options, sizes)?.0)
            }
        };
        if self.encrypted {
            encrypted::add_key(opened.fs())?;
        }
        Ok(opened)
    }

    /// The findings after an unmount.
    pub(super) fn judge(&self, device: &MemDevice, second: bool) -> Result<(), String> {
        let (issues, program, options) = match self.format {
            Format::Ext { .. } => {
                let report = steadfs_ext4::check::check(device, &ExtCheck::default());
                (format!("{:?}", report.issues), "e2fsck", ["-f", "-n"])
            }
            Format::F2fs => {
                let report = steadfs_f2fs::check::check(device, &F2fsCheck::default());
                let issues = format!("{:?}", report.issues);
                (issues, "fsck.f2fs", ["-f", "--dry-run"])
            }
        };
        if issues != "[]" {
            return Err(format!("not marked, and corrupt: {issues}"));
        }
        if !second {
            return Ok(());
        }
        let dir = std::env::temp_dir().join(format!("steadfs-reads-{}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
        let path = dir.join("image");
        device.save(&path).map_err(|error| error.to_string())?;
        let output = Command::new(program).args(options).arg(&path).output();
        std::fs::remove_dir_all(&dir).map_err(|error| error.to_string())?;
        let output = output.map_err(|error| format!("{program}: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() && !said.contains("[FAIL]") && !said.contains("ASSERT") {
            true => Ok(()),
            false => Err(said),
        }
    }

    /// The findings in a volume that stopped: it must be marked, and consistent after a mount unless it has no journal.
    pub(super) fn judge_stopped(&self, device: &Arc<MemDevice>) -> Result<(), String> {
        if self.format == (Format::Ext { journaled: false }) {
            return is_marked(device);
        }
        let again = self.open(Arc::clone(device) as _);
        let again = again.map_err(|error| format!("the mount afterwards: {error}"))?;
        let again = again.fs();
        let noted = again
            .control()
            .and_then(|control| control.read("errors").ok());
        let noted = String::from_utf8_lossy(&noted.unwrap_or_default()).into_owned();
        let closed = again.unmount();
        closed.map_err(|error| format!("the unmount afterwards: {error}"))?;
        self.judge(device, false)?;
        match self.format {
            Format::Ext { .. } => is_marked(device),
            Format::F2fs if noted.contains("noted in the superblock") => Ok(()),
            Format::F2fs => Err(format!("not marked: {noted}")),
        }
    }
}

/// Checks that an ext volume is marked as having errors.
fn is_marked(device: &Arc<MemDevice>) -> Result<(), String> {
    let queue = Queue::new(Arc::clone(device) as _, QueueOptions::default());
    let sb = steadfs_ext4::read_superblock(&queue).map_err(|error| error.to_string())?;
    match sb.state() & STATE_ERROR != 0 {
        true => Ok(()),
        false => Err("not marked".to_owned()),
    }
}

/// Files of every kind, below `top`.
fn fill(
    fs: &dyn FileSystem,
    top: InodeNo,
    extents: bool,
) -> Result<BTreeMap<&'static str, InodeNo>> {
    let cx = &root();
    let mut inos = BTreeMap::from([("root", top)]);
    for name in ["dir", "big", "other", "empty", "acl"] {
        let made = fs.mkdir(cx, top, name.as_bytes(), 0o755)?;
        inos.insert(name, made.ino);
    }
    let dir = inos["dir"];
    for name in ["plain", "fragmented", "whole", "reserved", "attrs", "twice"] {
        let made = fs.mknod(cx, dir, name.as_bytes(), 0o100_644, 0)?;
        inos.insert(name, made.ino);
    }
    fs.link(cx, inos["twice"], inos["other"], b"twice")?;
    inos.insert("sub", fs.mkdir(cx, inos["other"], b"sub", 0o755)?.ino);
    fs.mknod(cx, inos["other"], b"file", 0o100_644, 0)?;
    inos.insert("long", fs.symlink(cx, dir, b"long", &LONG)?.ino);
    for n in 0..150 {
        let name = format!("a rather long name of a file {n:04}");
        let made = fs.mknod(cx, inos["big"], name.as_bytes(), 0o100_644, 0)?;
        fs.forget(made.ino, 1);
    }
    let write =
        |file: &str, at: u64, len: usize| fs.write(cx, inos[file], at, &vec![7; len], false);
    write("plain", 0, 10_000)?;
    write("whole", 0, 100_000)?;
    for block in (0..90).step_by(2).chain([300, 1000, 3000]) {
        write("fragmented", block * 4096, 4096)?;
    }
    if extents {
        let mode = FallocMode::Allocate { keep_size: false };
        fs.fallocate(cx, inos["reserved"], mode, 0, 100_000)?;
    }
    let set = |file: &str, name: &[u8], value: &[u8]| {
        fs.setxattr(cx, inos[file], name, value, SetXattr::Any)
    };
    set("attrs", b"user.small", b"1")?;
    set("attrs", b"user.large", &[9; 500])?;
    set("attrs", b"security.capability", &[0; 20])?;
    set("attrs", b"system.posix_acl_access", &list())?;
    set("acl", b"system.posix_acl_default", &list())?;
    // Owners of their own, in case the volume counts.
    for (owner, file) in (1000..).zip(["plain", "twice", "attrs", "sub", "other", "empty"]) {
        let set = SetAttr {
            uid: Some(owner),
            gid: Some(owner),
            ..SetAttr::default()
        };
        fs.setattr(cx, inos[file], &set)?;
    }
    fs.sync_all(cx)?;
    Ok(inos)
}
