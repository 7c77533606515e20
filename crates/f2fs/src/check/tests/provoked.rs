//! Each kind of issue, provoked: the checker names it, and fsck.f2fs calls the volume bad too, or is known
//! not to look.

use std::collections::BTreeSet;
use std::fs;

use steadfs_vfs::InodeFlags;

use super::damage::{Base, Damage};
use super::*;
use crate::disk::checkpoint::NatBits;
use crate::disk::inode::{Advise, FIXED, Inline, set_nid_at};
use crate::disk::node::{self, Footer};
use crate::disk::xattr::{self, Xattr, index};
use crate::disk::{BlockAddr, LogType, Nid, hash};

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
        Unsupported,
        TooLarge,
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

/// Kinds there are.
const KINDS: usize = 61;

/// What fsck.f2fs 1.15 must say: that the volume is bad, or nothing, being blind for it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Judge {
    Agrees,
    /// Its exit code is 0, but it says these words.
    Tells(&'static str),
    /// It does not look at this.
    Blind,
}
use Judge::{Agrees, Blind, Tells};

struct Case {
    kind: &'static str,
    base: Base,
    judge: Judge,
    damage: fn(&mut Damage),
}

const fn case(kind: &'static str, base: Base, judge: Judge, damage: fn(&mut Damage)) -> Case {
    Case {
        kind,
        base,
        judge,
        damage,
    }
}

/// A node that is not in use.
const FREE_NID: Nid = Nid(5000);

const VOLUME: &[Case] = &[
    case("Superblock", Base::Rich, Blind, |d| {
        d.bytes[1024 + 200] ^= 1
    }),
    case("Superblock", Base::Rich, Agrees, |d| {
        d.bytes[1024 + 200] ^= 1;
        d.bytes[1024 + 4096 + 200] ^= 1;
    }),
    case("SuperblocksDiffer", Base::Plain, Blind, |d| {
        d.bytes[4096 + 1024 + 110] ^= 1
    }),
    case("Unsupported", Base::Plain, Blind, |d| {
        d.superblocks(|raw| raw.feature.set(raw.feature.get() | 0x10_0000))
    }),
    case("DeviceTooSmall", Base::Plain, Blind, |d| {
        d.bytes.truncate(96 << 20)
    }),
    case("NoCheckpoint", Base::Plain, Agrees, |d| {
        for pack in [0, 1] {
            let at = d.layout.pack_start(pack);
            d.block(at)[8] ^= 1;
        }
    }),
    case("Checkpoint", Base::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.overprovision_segments = 0)
    }),
    case("Checkpoint", Base::Plain, Blind, |d| {
        d.checkpoint(|cp| cp.logs[1].alloc = 7)
    }),
    case("PackEnds", Base::Plain, Blind, |d| {
        let opened = d.opened();
        let mut cp = opened.checkpoint.clone();
        cp.elapsed += 1;
        let head = cp.encode(&d.layout).unwrap();
        let last = d.layout.pack_start(opened.pack).plus(cp.pack_blocks - 1);
        d.block(last).copy_from_slice(&head[..BLOCK_SIZE]);
    }),
    case("Pack", Base::Plain, Tells("truncate n_nats(99)"), |d| {
        d.pack_summary(LogType::HotData)[3584..3586].copy_from_slice(&99u16.to_le_bytes())
    }),
    case("Pack", Base::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.user_blocks = 1 << 30)
    }),
    case("JournalTwice", Base::Plain, Blind, |d| {
        let root = d.opened().nat(Nid::ROOT);
        let journal = crate::disk::journal::encode_nat(&[(Nid::ROOT, root), (Nid::ROOT, root)]);
        d.pack_summary(LogType::HotData)[3584..4091].copy_from_slice(&journal);
    }),
    case("OrphanBlock", Base::Plain, Agrees, |d| {
        let at = d.orphans(&[FREE_NID]);
        d.block(at)[4088..4092].copy_from_slice(&9999u32.to_le_bytes());
    }),
    case("Orphan", Base::Plain, Agrees, |d| {
        d.orphans(&[FREE_NID]);
    }),
    case("Orphan", Base::Plain, Agrees, |d| {
        let file = d.ino("small");
        d.free_slots("", "small", 0);
        d.orphans(&[file]);
    }),
    case("BadTarget", Base::Plain, Agrees, |d| {
        let file = d.ino("small");
        d.inode("small", |core, _| core.links = 0);
        d.orphans(&[file]);
    }),
    case("Log", Base::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.logs[LogType::WarmNode.index()].offset -= 1)
    }),
    case("Log", Base::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.logs.swap(0, 3))
    }),
    case("Nat", Base::Plain, Agrees, |d| {
        let file = d.ino("small");
        let outside = d.layout.ssa_start;
        d.nat(file, |entry| entry.block_addr.set(outside));
    }),
    case("Nat", Base::Plain, Agrees, |d| {
        let file = d.ino("small");
        d.nat(file, |entry| entry.ino.set(0));
    }),
    case(
        "NatBits",
        Base::Plain,
        Tells("Corrupted valid nat_bits"),
        |d| {
            let opened = d.opened();
            let at = NatBits::place(&d.layout, opened.pack, opened.checkpoint.pack_blocks).unwrap();
            let empty = 8 + (d.layout.nat_blocks / 8) as usize;
            d.block(at)[empty] |= 1;
        },
    ),
    case("Sit", Base::Plain, Agrees, |d| {
        let addr = d.mapped("small", 0);
        d.sit(addr, |entry, _| entry.vblocks.set(entry.vblocks.get() - 1));
    }),
    case("SitDiffers", Base::Plain, Agrees, |d| {
        let addr = d.mapped("small", 0);
        d.sit(addr, |entry, offset| {
            entry.vblocks.set(entry.vblocks.get() - 1);
            entry.valid_map[offset / 8] &= !(0x80 >> (offset % 8));
        });
    }),
    case("SegmentType", Base::Plain, Agrees, |d| {
        let addr = d.mapped("small", 0);
        d.sit(addr, |entry, _| {
            entry.vblocks.set(entry.vblocks.get() & 0x3FF | 4 << 10)
        });
    }),
    case("SummaryType", Base::Plain, Agrees, |d| {
        // The large file filled a segment.
        let addr = d.mapped("large", 500);
        d.summary_block(addr)[4091] = 1;
    }),
    case("Summary", Base::Plain, Agrees, |d| {
        let addr = d.mapped("small", 1);
        d.summary(addr, |entry| entry.ofs_in_node.set(77));
    }),
    case("Summary", Base::Plain, Agrees, |d| {
        let addr = d.mapped("small", 1);
        d.summary(addr, |entry| entry.version ^= 1);
    }),
    case("Summary", Base::Plain, Agrees, |d| {
        let file = d.ino("small");
        let addr = d.addr_of(file);
        d.summary(addr, |entry| entry.nid.set(77));
    }),
    case("ValidBlocks", Base::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.valid_blocks -= 1)
    }),
    case("ValidNodes", Base::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.valid_nodes += 1)
    }),
    case("ValidInodes", Base::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.valid_inodes -= 1)
    }),
    case("FreeSegments", Base::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.free_segments -= 1)
    }),
    case("Fsynced", Base::Plain, Blind, |d| {
        let file = d.ino("small");
        chain(d, file, |block| block[84..92].fill(0xFF));
    }),
    case("FsyncedOver", Base::Plain, Blind, |d| {
        let file = d.ino("small");
        let other = d.mapped("large", 0);
        let layout = d.layout.clone();
        chain(d, file, |block| {
            let core = crate::disk::Inode::decode(&layout, block).unwrap();
            core.set_addr(&layout, block, 2, other);
        });
    }),
];

/// An inode that fsync wrote after the checkpoint, changed by `edit`.
fn chain(d: &mut Damage, ino: Nid, edit: impl FnOnce(&mut [u8])) {
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

const INODES: &[Case] = &[
    case("Node", Base::Plain, Agrees, |d| {
        let file = d.ino("small");
        d.node(file, |block| block[node::FOOTER_AT] ^= 1);
    }),
    case("Node", Base::Rich, Agrees, |d| {
        let addr = d.addr_of(d.ino("small"));
        d.block(addr)[70] ^= 1;
    }),
    case("Node", Base::Plain, Agrees, |d| {
        d.inode("small", |core, _| core.mode = 0o644)
    }),
    case("NodeVersion", Base::Plain, Blind, |d| {
        let file = d.ino("small");
        d.node(file, |block| {
            let footer = Footer::parse(block);
            let cp_version = u32::MAX.into();
            Footer {
                cp_version,
                ..footer
            }
            .encode_into(block);
        });
    }),
    case("NodeMissing", Base::Plain, Agrees, |d| {
        d.inode("large", |_, block| set_nid_at(block, 0, FREE_NID))
    }),
    case("NodeOwner", Base::Plain, Agrees, |d| {
        let direct = direct(d);
        let other = d.ino("small");
        d.nat(direct, |entry| entry.ino.set(other.0));
    }),
    case("NodeTwice", Base::Plain, Agrees, |d| {
        let direct = direct(d);
        d.inode("large", |_, block| set_nid_at(block, 1, direct));
    }),
    case("NodeUnreached", Base::Plain, Agrees, |d| {
        d.inode("large", |_, block| set_nid_at(block, 0, Nid(0)))
    }),
    case("BlockUsedTwice", Base::Plain, Agrees, |d| {
        d.addrs("small", |list| list[1] = list[0])
    }),
    case("BadAddress", Base::Plain, Agrees, |d| {
        d.addrs("small", |list| list[1] = BlockAddr(5))
    }),
    case("BlockCount", Base::Plain, Agrees, |d| {
        d.inode("small", |core, _| core.blocks += 1)
    }),
    case("Cluster", Base::Plain, Agrees, |d| {
        d.addrs("small", |list| list[4] = BlockAddr::COMPRESSED)
    }),
    case("Cluster", Base::Rich, Agrees, |d| {
        compress(d, 0);
        d.addrs("small", |list| list[5] = BlockAddr::COMPRESSED);
    }),
    case("SavedBlocks", Base::Rich, Blind, |d| compress(d, 3)),
    case("Extent", Base::Plain, Agrees, |d| {
        d.inode("small", |core, _| {
            core.extent.len = 3;
            core.extent.addr = BlockAddr(77);
        })
    }),
    case("Inline", Base::Plain, Agrees, |d| {
        d.inode("a/twin1", |core, block| {
            block[FIXED + usize::from(core.extra_isize)] = 9
        })
    }),
    case("Inline", Base::Plain, Agrees, |d| {
        d.inode("a/twin1", |core, _| {
            core.inline = core.inline.without(Inline::DATA_EXISTS)
        })
    }),
    case("InodeFlag", Base::Plain, Blind, |d| {
        d.inode("small", |core, _| {
            core.advise = core.advise.union(Advise::ENCRYPTED)
        })
    }),
    case("InodeFlag", Base::Plain, Agrees, |d| {
        d.inode("small", |core, _| {
            core.flags = core.flags.union(InodeFlags::CASEFOLD)
        })
    }),
    case("Symlink", Base::Plain, Blind, |d| {
        let layout = d.layout.clone();
        d.inode("link", |core, block| {
            let range = core.inline_range(&layout);
            block[range][3] = 0;
        });
    }),
    case("Xattr", Base::Plain, Blind, |d| {
        attributes(d, &[b"one"], |area| area[26..28].fill(0xFF))
    }),
    case("XattrList", Base::Plain, Blind, |d| {
        attributes(d, &[b"one"], |area| area[100] = 1)
    }),
    case("XattrList", Base::Plain, Blind, |d| {
        attributes(d, &[b"one", b"one"], |_| ())
    }),
    case("XattrList", Base::Rich, Blind, |d| {
        d.inode("small", |core, _| {
            core.advise = core.advise.union(Advise::ENCRYPTED)
        })
    }),
];

/// The first direct node of the large file.
fn direct(d: &Damage) -> Nid {
    crate::disk::inode::nid_at(d.opened().node(d.ino("large")), 0)
}

/// Gives the small file (whose blocks are few) attributes with these names in its inode.
fn attributes(d: &mut Damage, names: &[&[u8]], edit: impl FnOnce(&mut [u8])) {
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

/// Makes the small file one that may be compressed.
fn compress(d: &mut Damage, saved_blocks: u64) {
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

const DIRS: &[Case] = &[
    case("Dentry", Base::Plain, Agrees, |d| {
        d.entry("a", "twin1", |entry, _| entry.name_len.set(0))
    }),
    case("Dentry", Base::Plain, Agrees, |d| {
        d.entry("a", "twin1", |entry, _| entry.ino.set(0))
    }),
    case("DirSlots", Base::Plain, Blind, |d| {
        d.free_slots("many", "entry number 007", 1)
    }),
    case("DirPlace", Base::Plain, Blind, |d| {
        d.inode("many", |core, _| core.depth = 1)
    }),
    case("DirPlace", Base::Plain, Agrees, |d| {
        d.inode("many", |core, _| core.dir_level = 2)
    }),
    case("DirHash", Base::Plain, Tells("Mismatch hash_code"), |d| {
        d.entry("a", "twin1", |entry, _| {
            entry.hash_code.set(entry.hash_code.get() ^ 0x100)
        })
    }),
    case("DirDots", Base::Plain, Agrees, |d| {
        d.free_slots("a", "..", 0)
    }),
    case("DirDots", Base::Plain, Agrees, |d| {
        let other = d.ino("many");
        d.entry("a", ".", |entry, _| entry.ino.set(other.0));
    }),
    case("BadName", Base::Plain, Blind, |d| {
        d.entry("a", "twin1", |entry, name| {
            name.copy_from_slice(b"tw/n1");
            entry.hash_code.set(hash::of_name(b"tw/n1"));
        })
    }),
    case("DuplicateName", Base::Plain, Blind, |d| {
        d.entry("a", "twin1", |entry, name| {
            name.copy_from_slice(b"twin2");
            entry.hash_code.set(hash::of_name(b"twin2"));
        })
    }),
    case("BadTarget", Base::Plain, Agrees, |d| {
        d.entry("a", "twin1", |entry, _| entry.ino.set(FREE_NID.0))
    }),
    case("BadTarget", Base::Plain, Agrees, |d| {
        let node = direct(d);
        d.entry("a", "twin1", |entry, _| entry.ino.set(node.0));
    }),
    case("EntryType", Base::Plain, Agrees, |d| {
        d.entry("a", "twin1", |entry, _| entry.file_type = 6)
    }),
    case("SecondName", Base::Plain, Agrees, |d| {
        let dir = d.ino("a/b");
        d.entry("a", "twin1", |entry, _| {
            entry.ino.set(dir.0);
            entry.file_type = 2;
        });
    }),
    case("WrongParent", Base::Plain, Agrees, |d| {
        d.entry("a/b", "..", |entry, _| entry.ino.set(Nid::ROOT.0))
    }),
    case("WrongParent", Base::Plain, Agrees, |d| {
        d.inode("a/b", |core, _| core.parent = Nid::ROOT)
    }),
    case("LinkCount", Base::Plain, Agrees, |d| {
        d.inode("small", |core, _| core.links = 2)
    }),
    case("LinkCount", Base::Plain, Agrees, |d| {
        d.inode("a", |core, _| core.links += 1)
    }),
    case("Unattached", Base::Plain, Tells("Reconnect 1 files"), |d| {
        d.free_slots("a", "twin1", 0)
    }),
    case("DirLoop", Base::Plain, Agrees, |d| {
        let (b, c) = (d.ino("a/b"), d.ino("a/b/c"));
        d.entry("a/b/c", "..", |_, _| ());
        d.entry("a/b", "c", |entry, _| entry.ino.set(b.0));
        d.entry("a", "b", |entry, _| entry.ino.set(c.0));
    }),
    case("NoRoot", Base::Plain, Agrees, |d| {
        d.nat(Nid::ROOT, |entry| entry.block_addr.set(0))
    }),
    case("QuotaFile", Base::Quota, Agrees, |d| {
        d.superblocks(|raw| raw.qf_ino[2].set(FREE_NID.0))
    }),
    case("QuotaFile", Base::Quota, Blind, |d| {
        let at = quota_block(d);
        d.block(at)[3] ^= 1;
    }),
    case("QuotaUsage", Base::Quota, Agrees, |d| {
        // A regular file's owner, in the inode.
        d.inode("small", |core, _| core.project = 77);
    }),
    case("QuotaFile", Base::Quota, Blind, |d| {
        let (quota, layout) = (Nid(4), d.layout.clone());
        d.node(quota, |block| {
            let mut core = crate::disk::Inode::decode(&layout, block).unwrap();
            core.links = 3;
            core.encode_into(&layout, block).unwrap();
        });
    }),
];

/// The first block of the project quota file.
fn quota_block(d: &Damage) -> BlockAddr {
    let opened = d.opened();
    let block = opened.node(Nid(4));
    let core = crate::disk::Inode::decode(&d.layout, block).unwrap();
    core.addr(&d.layout, block, 0)
}

/// An image file for the judge: what a case changes is written, and afterwards taken back.
pub(super) struct Judged {
    dir: tempfile::TempDir,
    base: Base,
}

impl Judged {
    pub(super) fn new(base: Base) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let judged = Self { dir, base };
        fs::write(judged.path(), base.image()).unwrap();
        judged
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

fn run_case(case: &Case, judged: &Judged) -> Vec<String> {
    let mut failures = Vec::new();
    let mut damage = Damage::new(case.base);
    (case.damage)(&mut damage);
    let report = check(&damage.bytes, &Options::default());
    let kinds: BTreeSet<_> = report.issues.iter().map(kind).collect();
    if !kinds.contains(case.kind) {
        failures.push(format!("found {:?}", words(&report)));
    }
    let (code, said) = judged.fsck(&damage.bytes);
    let right = match case.judge {
        Agrees => code != 0,
        Blind => code == 0,
        Tells(what) => code == 0 && said.contains(what),
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
    for base in [Base::Plain, Base::Rich, Base::Quota] {
        let judged = Judged::new(base);
        let cases = VOLUME.iter().chain(INODES).chain(DIRS).enumerate();
        for (n, case) in cases.filter(|(_, case)| case.base == base) {
            let what = format!("case {n}, {} on {base:?}", case.kind);
            let found = run_case(case, &judged);
            failures.extend(found.iter().map(|failure| format!("{what}: {failure}")));
            seen.insert(case.kind);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Provoked by tests of their own.
    seen.extend(["TooLarge", "Unreadable"]);
    assert_eq!(seen.len(), KINDS, "{seen:?}");
}

/// A device of which one block cannot be read.
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
fn unreadable_blocks_are_named() {
    let damage = Damage::new(Base::Plain);
    let layout = &damage.layout;
    let file = damage.ino("large");
    let places = [
        BlockAddr(0),
        layout.pack_start(0),
        layout.pack_start(1),
        layout.sit_block(0, damage.opened().checkpoint.sit_second(0)),
        layout.nat_block(0, damage.opened().checkpoint.nat_second(0)),
        layout.summary_block(layout.place(damage.mapped("large", 500)).unwrap().0),
        damage.addr_of(file),
        damage.addr_of(direct(&damage)),
        damage.mapped("many", 0),
    ];
    for bad in places {
        let bytes = damage.bytes.clone();
        let report = check(&BadBlock { bytes, bad }, &Options::default());
        let named = |issue: &Issue| kind(issue) == "Unreadable";
        let found = words(&report);
        assert!(report.issues.iter().any(named), "{bad}: {found:?}");
    }
}

#[test]
fn memory_and_issues_are_bounded() {
    let damage = Damage::new(Base::Plain);
    for memory_limit in [1000, 8000] {
        let tight = Options {
            memory_limit,
            ..Options::default()
        };
        let report = check(&damage.bytes, &tight);
        assert!(matches!(report.issues[..], [Issue::TooLarge { .. }]));
    }
    let mut damage = Damage::new(Base::Plain);
    let table = damage
        .layout
        .nat_block(0, damage.opened().checkpoint.nat_second(0));
    damage.block(table)[100..].fill(0);
    let few = Options {
        max_issues: 5,
        ..Options::default()
    };
    let report = check(&damage.bytes, &few);
    assert_eq!(report.issues.len(), 5);
    assert!(report.more > 10 && !report.is_clean());
}

/// An orphan is in use: a file without links or name, and a directory.
#[test]
fn orphans_are_no_issue() {
    let mut damage = Damage::new(Base::Plain);
    let orphans = [damage.ino("small"), damage.ino("a/b/c")];
    for (folder, name) in [("", "small"), ("a/b", "c")] {
        damage.free_slots(folder, name, 0);
    }
    let layout = damage.layout.clone();
    for nid in orphans {
        damage.node(nid, |block| {
            let mut core = crate::disk::Inode::decode(&layout, block).unwrap();
            core.links = 0;
            core.encode_into(&layout, block).unwrap();
        });
    }
    damage.inode("a/b", |core, _| core.links = 2);
    damage.orphans(&orphans);
    let report = check(&damage.bytes, &Options::default());
    assert!(report.is_clean(), "{:?}", words(&report));
    assert_eq!(report.stats.orphans, 2);
}

/// What fsync wrote after the checkpoint is counted, as far as it was finished.
#[test]
fn fsynced_files_are_no_issue() {
    let mut damage = Damage::new(Base::Plain);
    let file = damage.ino("small");
    chain(&mut damage, file, |_| ());
    let report = check(&damage.bytes, &Options::default());
    assert!(report.is_clean(), "{:?}", words(&report));
    let stats = &report.stats;
    assert_eq!((stats.fsynced_files, stats.fsynced_nodes), (1, 1));
    let mut damage = Damage::new(Base::Plain);
    chain(&mut damage, file, |block| {
        let fsync = false;
        let footer = Footer::parse(block);
        Footer { fsync, ..footer }.encode_into(block);
    });
    let report = check(&damage.bytes, &Options::default());
    assert!(report.is_clean(), "{:?}", words(&report));
    assert_eq!(report.stats.fsynced_nodes, 0);
}

/// Clusters as the kernel stores them: with the blocks they save kept for them, and given back.
#[test]
fn compressed_clusters_are_no_issue() {
    let judged = Judged::new(Base::Rich);
    for released in [false, true] {
        let mut damage = Damage::new(Base::Rich);
        let freed = [4, 6, 7].map(|slot| damage.mapped("small", slot));
        compress(&mut damage, if released { 0 } else { 3 });
        damage.inode("small", |core, _| {
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
        damage.addrs("small", |list| {
            (list[4], list[6], list[7]) = (BlockAddr::COMPRESSED, rest, rest);
        });
        for addr in freed {
            damage.sit(addr, |entry, offset| {
                entry.vblocks.set(entry.vblocks.get() - 1);
                entry.valid_map[offset / 8] &= !(0x80 >> (offset % 8));
            });
        }
        if released {
            damage.checkpoint(|cp| cp.valid_blocks -= 3);
        }
        let report = check(&damage.bytes, &Options::default());
        assert!(report.is_clean(), "{released}: {:?}", words(&report));
        assert_eq!(report.stats.compressed_files, 1);
        let (code, said) = judged.fsck(&damage.bytes);
        assert_eq!(code, 0, "{released}: {said}");
    }
}
