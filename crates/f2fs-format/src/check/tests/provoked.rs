//! Each kind of issue, provoked: the checker reports it, and fsck.f2fs reports the volume, too, or is known not to
//! check this.

mod dirs;
mod inodes;
mod volume;

use std::collections::BTreeSet;
use std::fs;

use steadfs_vfs::InodeFlags;

use super::*;
use crate::disk::checkpoint::NatBits;
use crate::disk::inode::{Advise, FIXED, Inline, set_nid_at};
use crate::disk::node::{self, Footer};
use crate::disk::xattr::{self, Xattr, index};
use crate::disk::{BlockAddr, LogType, Nid, hash};
use crate::test_support::corrupt::{BaseImage, CorruptVolume};

/// The name of an issue's kind. A new kind does not compile until it is listed and provoked here.
pub(super) fn kind(issue: &Issue) -> &'static str {
    macro_rules! names {
        ($($name:ident),* $(,)?) => {
            match issue { $(Issue::$name { .. } => stringify!($name),)* }
        };
    }
    names!(
        Superblock,
        SuperblocksDiffer,
        DeviceTooSmall,
        Unreadable,
        NoCheckpoint,
        Checkpoint,
        PackEnds,
        Pack,
        JournalTwice,
        OrphanBlock,
        Orphan,
        Log,
        Nat,
        NatBits,
        Sit,
        SitDiffers,
        SegmentType,
        SummaryType,
        Summary,
        Node,
        NodeVersion,
        NodeMissing,
        NodeOwner,
        NodeTwice,
        NodeUnreached,
        BlockUsedTwice,
        BadAddress,
        BlockCount,
        Cluster,
        SavedBlocks,
        Extent,
        Inline,
        InodeFlag,
        Symlink,
        Xattr,
        XattrList,
        Dentry,
        DirSlots,
        DirPlace,
        DirHash,
        DirDots,
        BadName,
        DuplicateName,
        BadTarget,
        EntryType,
        SecondName,
        WrongParent,
        LinkCount,
        Unattached,
        DirLoop,
        NoRoot,
        QuotaFile,
        QuotaUsage,
        Fsynced,
        FsyncedOver,
        ValidBlocks,
        ValidNodes,
        ValidInodes,
        FreeSegments,
    )
}

/// Number of kinds.
const KINDS: usize = 59;

/// What fsck.f2fs 1.15 must report.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FsckResult {
    Agrees,
    /// Its exit code is 0, but its output has these words.
    Prints(&'static str),
    /// It does not check this.
    NotChecked,
}
use FsckResult::{Agrees, NotChecked, Prints};

struct Case {
    kind: &'static str,
    base: BaseImage,
    fsck: FsckResult,
    volume: fn(&mut CorruptVolume),
}

const fn case(
    kind: &'static str,
    base: BaseImage,
    fsck: FsckResult,
    volume: fn(&mut CorruptVolume),
) -> Case {
    Case {
        kind,
        base,
        fsck,
        volume,
    }
}

/// A node that is not in use.
const FREE_NID: Nid = Nid(5000);

/// Writes an inode as fsync does after the checkpoint, changed by `edit`.
fn chain(d: &mut CorruptVolume, ino: Nid, edit: impl FnOnce(&mut [u8])) {
    let opened = d.opened();
    let cp = &opened.checkpoint;
    let log = cp.log(LogType::WarmNode);
    let at = d.layout.block_in(log.segment, log.offset.into());
    let mut block = opened.node(ino).to_vec();
    let footer = Footer {
        fsync: true,
        cp_version: cp.node_version(),
        next: BlockAddr(at.0 + 1),
        ..Footer::parse(&block)
    };
    footer.encode_into(&mut block);
    edit(&mut block);
    crate::disk::inode::seal(&d.layout, &mut block);
    d.block(at).copy_from_slice(&block);
}

/// The first direct node of the large file.
fn direct(d: &CorruptVolume) -> Nid {
    crate::disk::inode::nid_at(d.opened().node(d.ino("large")), 0)
}

/// Gives the small file attributes with these names in its inode.
fn attributes(d: &mut CorruptVolume, names: &[&[u8]], edit: impl FnOnce(&mut [u8])) {
    let layout = d.layout.clone();
    d.inode("small", |core, block| {
        core.inline = core.inline.union(Inline::XATTR);
        let range = core.xattr_range(&layout);
        let (index, value) = (index::USER, &b"value"[..]);
        let list: Vec<_> = names
            .iter()
            .map(|name| Xattr { index, name, value })
            .collect();
        let area = &mut block[range.clone()];
        area.copy_from_slice(&xattr::encode(&list, range.len()).unwrap());
        edit(area);
    });
}

/// Turns the small file into one with compression.
fn compress(d: &mut CorruptVolume, saved_blocks: u64) {
    d.inode("small", |core, _| {
        core.flags = core.flags.union(InodeFlags::COMPRESSED);
        core.compression = Some(crate::disk::inode::Compression {
            saved_blocks,
            algorithm: 1,
            log_cluster: 2,
            flags: 0,
        });
    });
}

/// The first block of the project quota file.
fn quota_block(d: &CorruptVolume) -> BlockAddr {
    let opened = d.opened();
    let block = opened.node(Nid(4));
    let core = crate::disk::Inode::decode(&d.layout, block).unwrap();
    core.addr(&d.layout, block, 0)
}

/// An image file for fsck.f2fs: the changes of a case are written, and reverted afterwards.
pub(super) struct ImageFile {
    dir: tempfile::TempDir,
    base: BaseImage,
}

impl ImageFile {
    pub(super) fn new(base: BaseImage) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = Self { dir, base };
        fs::write(image.path(), base.image()).unwrap();
        image
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("image")
    }

    pub(super) fn fsck(&self, bytes: &[u8]) -> (i32, String) {
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().write(true).open(self.path()).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        let good = self.base.image();
        let changed = |n: &usize| {
            let at = n * BLOCK_SIZE;
            bytes.get(at..at + BLOCK_SIZE) != good.get(at..at + BLOCK_SIZE)
        };
        let changed: Vec<_> = (0..self.base.filled() / BLOCK_SIZE)
            .filter(changed)
            .collect();
        let write = |from: &[u8]| {
            for at in changed.iter().map(|n| n * BLOCK_SIZE) {
                file.write_all_at(&from[at..at + BLOCK_SIZE], at as u64)
                    .unwrap();
            }
        };
        write(bytes);
        let said = fsck(&self.path());
        write(good);
        file.set_len(good.len() as u64).unwrap();
        said
    }
}

fn run_case(case: &Case, image: &ImageFile) -> Vec<String> {
    let mut failures = Vec::new();
    let mut volume = CorruptVolume::new(case.base);
    (case.volume)(&mut volume);
    let report = check(&volume.bytes, &Options::default());
    let kinds: BTreeSet<_> = report.issues.iter().map(kind).collect();
    if !kinds.contains(case.kind) {
        failures.push(format!("found {:?}", words(&report)));
    }
    let (code, said) = image.fsck(&volume.bytes);
    let right = match case.fsck {
        Agrees => code != 0,
        NotChecked => code == 0,
        Prints(what) => code == 0 && said.contains(what),
    };
    if !right {
        let lines: Vec<_> = said.lines().skip(14).collect();
        failures.push(format!("fsck.f2fs exits with {code}: {}", lines.join("\n")));
    }
    failures
}

#[test]
fn every_kind_is_provoked() {
    let mut failures = Vec::new();
    let mut seen = BTreeSet::new();
    for base in [BaseImage::Plain, BaseImage::Rich, BaseImage::Quota] {
        let image = ImageFile::new(base);
        let cases = volume::VOLUME
            .iter()
            .chain(inodes::INODES)
            .chain(dirs::DIRS)
            .enumerate();
        for (n, case) in cases.filter(|(_, case)| case.base == base) {
            let what = format!("case {n}, {} on {base:?}", case.kind);
            let found = run_case(case, &image);
            failures.extend(found.iter().map(|failure| format!("{what}: {failure}")));
            seen.insert(case.kind);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Provoked by tests of their own.
    seen.insert("Unreadable");
    assert_eq!(seen.len(), KINDS, "{seen:?}");
}

/// A device with one unreadable block.
struct BadBlock {
    bytes: Vec<u8>,
    bad: BlockAddr,
}

impl BlockSource for BadBlock {
    fn size_bytes(&self) -> u64 {
        self.bytes.size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let bad = u64::from(self.bad.0) * BLOCK_SIZE as u64;
        if offset < bad + BLOCK_SIZE as u64 && bad < offset + buf.len() as u64 {
            return Err(std::io::Error::other("bad block"));
        }
        self.bytes.read(offset, buf)
    }
}

#[test]
fn unreadable_blocks_are_reported() {
    let volume = CorruptVolume::new(BaseImage::Plain);
    let layout = &volume.layout;
    let file = volume.ino("large");
    let places = [
        BlockAddr(0),
        layout.pack_start(0),
        layout.pack_start(1),
        layout.sit_block(0, volume.opened().checkpoint.sit_second(0)),
        layout.nat_block(0, volume.opened().checkpoint.nat_second(0)),
        layout.summary_block(layout.segment_of(volume.mapped("large", 500)).unwrap().0),
        volume.addr_of(file),
        volume.addr_of(direct(&volume)),
        volume.mapped("many", 0),
    ];
    for bad in places {
        let bytes = volume.bytes.clone();
        let report = check(&BadBlock { bytes, bad }, &Options::default());
        let named = |issue: &Issue| kind(issue) == "Unreadable";
        let found = words(&report);
        assert!(report.issues.iter().any(named), "{bad}: {found:?}");
    }
}

#[test]
fn memory_and_issues_are_bounded() {
    let volume = CorruptVolume::new(BaseImage::Plain);
    for memory_limit in [1000, 8000] {
        let tight = Options {
            memory_limit,
            ..Options::default()
        };
        let report = check(&volume.bytes, &tight);
        assert!(matches!(report.refused, Some(Refusal::TooLarge { .. })));
    }
    let mut volume = CorruptVolume::new(BaseImage::Plain);
    let table = volume
        .layout
        .nat_block(0, volume.opened().checkpoint.nat_second(0));
    volume.block(table)[100..].fill(0);
    let few = Options {
        max_issues: 5,
        ..Options::default()
    };
    let report = check(&volume.bytes, &few);
    assert_eq!(report.issues.len(), 5);
    assert!(report.more > 10 && !report.is_clean());
}

/// Orphans are valid: a file without links or name, and a directory.
#[test]
fn orphans_are_no_issue() {
    let mut volume = CorruptVolume::new(BaseImage::Plain);
    let orphans = [volume.ino("small"), volume.ino("a/b/c")];
    for (folder, name) in [("", "small"), ("a/b", "c")] {
        volume.free_slots(folder, name, 0);
    }
    let layout = volume.layout.clone();
    for nid in orphans {
        volume.node(nid, |block| {
            let mut core = crate::disk::Inode::decode(&layout, block).unwrap();
            core.links = 0;
            core.encode_into(&layout, block).unwrap();
        });
    }
    volume.inode("a/b", |core, _| core.links = 2);
    volume.orphans(&orphans);
    let report = check(&volume.bytes, &Options::default());
    assert!(report.is_clean(), "{:?}", words(&report));
    assert_eq!(report.stats.orphans, 2);
}

/// Nodes that fsync wrote after the checkpoint are counted, if their chain is complete.
#[test]
fn fsynced_files_are_no_issue() {
    let mut volume = CorruptVolume::new(BaseImage::Plain);
    let file = volume.ino("small");
    chain(&mut volume, file, |_| ());
    let report = check(&volume.bytes, &Options::default());
    assert!(report.is_clean(), "{:?}", words(&report));
    let stats = &report.stats;
    assert_eq!((stats.fsynced_files, stats.fsynced_nodes), (1, 1));
    let mut volume = CorruptVolume::new(BaseImage::Plain);
    chain(&mut volume, file, |block| {
        let fsync = false;
        let footer = Footer::parse(block);
        Footer { fsync, ..footer }.encode_into(block);
    });
    let report = check(&volume.bytes, &Options::default());
    assert!(report.is_clean(), "{:?}", words(&report));
    assert_eq!(report.stats.fsynced_nodes, 0);
}

/// Clusters as the kernel stores them, with the saved blocks reserved and with them released.
#[test]
fn compressed_clusters_are_no_issue() {
    let image = ImageFile::new(BaseImage::Rich);
    for released in [false, true] {
        let mut volume = CorruptVolume::new(BaseImage::Rich);
        let freed = [4, 6, 7].map(|slot| volume.mapped("small", slot));
        compress(&mut volume, if released { 0 } else { 3 });
        volume.inode("small", |core, _| {
            core.extent.len = 0;
            if released {
                core.inline = core.inline.union(Inline::COMPRESS_RELEASED);
                core.blocks -= 3;
            }
        });
        let rest = if released {
            BlockAddr::NULL
        } else {
            BlockAddr::NEW
        };
        volume.addrs("small", |list| {
            (list[4], list[6], list[7]) = (BlockAddr::COMPRESSED, rest, rest);
        });
        for addr in freed {
            volume.sit(addr, |entry, offset| {
                entry.vblocks.set(entry.vblocks.get() - 1);
                entry.valid_map[offset / 8] &= !(0x80 >> (offset % 8));
            });
        }
        if released {
            volume.checkpoint(|cp| cp.valid_blocks -= 3);
        }
        let report = check(&volume.bytes, &Options::default());
        assert!(report.is_clean(), "{released}: {:?}", words(&report));
        assert_eq!(report.stats.compressed_files, 1);
        let (code, said) = image.fsck(&volume.bytes);
        assert_eq!(code, 0, "{released}: {said}");
    }
}
