//! Each kind of issue, provoked: the checker names it, and e2fsck calls the volume bad too.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use super::*;
use crate::disk::dir_entry;
use crate::disk::extent::ExtentNode;
use crate::disk::features::Features;
use crate::disk::group_desc::GroupDesc;
use crate::disk::inode::{self, Inode};
use crate::disk::num::{get16, get32, put16, put32};
use crate::disk::{GroupNo, Ino, indirect};

/// The name of an issue's kind. A new kind does not compile until it is listed and provoked here.
fn kind(issue: &Issue) -> &'static str {
    macro_rules! names {
        ($($name:ident),* $(,)?) => {
            match issue { $(Issue::$name { .. } => stringify!($name),)* }
        };
    }
    names!(
        Superblock,
        Unsupported,
        TooLarge,
        ReservedBlocks,
        DeviceTooSmall,
        Unreadable,
        GroupDesc,
        MetadataOverlap,
        BitmapChecksum,
        BlockBitmapDiffers,
        InodeBitmapDiffers,
        BitmapPadding,
        GroupFreeBlocks,
        GroupFreeInodes,
        GroupDirs,
        FreeBlocks,
        FreeInodes,
        Inode,
        InodeFlag,
        FieldNotZero,
        NoDeletionTime,
        LostOrphan,
        DeletionTime,
        SizeTooSmall,
        DirSize,
        BlockCount,
        ExtentNode,
        Unwritten,
        NoExtentsFlag,
        MapBlock,
        BlockUsedTwice,
        Symlink,
        Xattr,
        XattrHash,
        XattrOverlap,
        XattrRefcount,
        XattrInode,
        DirHole,
        DirBlock,
        DirDots,
        BadName,
        BadTarget,
        EntryType,
        DuplicateName,
        SecondName,
        WrongParent,
        Htree,
        HtreeChild,
        HtreeBlockTwice,
        HtreeBlockUnnamed,
        HtreeHash,
        LinkCount,
        Unattached,
        DirLoop,
        NoRoot,
        OrphanList,
        OrphanFile,
        OrphansNotAnnounced,
        ReservedInUse,
        Journal,
        JournalNotEmpty,
        RecoveryWithoutJournal,
        ResizeInode,
    )
}

/// Kinds there are.
const KINDS: usize = 63;

/// A volume to be damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Base {
    /// ext4 as it is by default, several groups.
    Ext4,
    /// The same without checksums, so that damage is not hidden behind them.
    Plain,
    /// ext2: indirect maps.
    Ext2,
    /// With an orphan file, without checksums.
    OrphanFile,
    /// With attribute inodes, without checksums.
    EaInode,
}

impl Base {
    fn options(self) -> Vec<&'static str> {
        let mut options = vec!["-b", "1024", "-g", "4096", "-N", "1200"];
        options.extend_from_slice(match self {
            Self::Ext4 => &["-t", "ext4"],
            Self::Plain => &["-t", "ext4", "-O", "^metadata_csum,^flex_bg"],
            Self::Ext2 => &["-t", "ext2"],
            Self::OrphanFile => &["-t", "ext4", "-O", "^metadata_csum,orphan_file"],
            Self::EaInode => &["-t", "ext4", "-O", "^metadata_csum,ea_inode"],
        });
        options
    }

    /// The undamaged image, with the directory `many` indexed.
    fn image(self) -> &'static [u8] {
        static IMAGES: [OnceLock<Vec<u8>>; 5] = [const { OnceLock::new() }; 5];
        IMAGES[self as usize].get_or_init(|| {
            let image = populated(&self.options(), "12M");
            let value = image.beside("value2");
            fs::write(&value, [b'w'; 200]).unwrap();
            let value = value.display();
            image.debugfs(&format!("ea_set -f {value} large user.other"));
            let path = image.path();
            let (code, words) = judge("e2fsck", &["-fyD", path.to_str().unwrap()]);
            assert!(code <= 1, "{words}");
            assert_clean(&image, &self);
            image.bytes()
        })
    }
}

/// A volume being damaged.
struct Damage {
    image: Image,
    bytes: Vec<u8>,
    geo: Geometry,
}

impl Damage {
    fn new(base: Base) -> Self {
        let bytes = base.image().to_vec();
        let image = Image::of(&bytes);
        let geo = image.superblock().geometry().clone();
        Self { image, bytes, geo }
    }

    /// Runs debugfs on the image as it is now.
    fn debugfs(&mut self, command: &str) {
        fs::write(self.image.path(), &self.bytes).unwrap();
        self.image.debugfs(command);
        self.bytes = self.image.bytes();
    }

    fn ino(&self, name: &str) -> Ino {
        let stat = self.image.debugfs(&format!("stat {name}"));
        let number = stat
            .split_whitespace()
            .nth(1)
            .expect("debugfs finds the name");
        Ino(number.parse().unwrap())
    }

    fn block(&mut self, block: DevBlock) -> &mut [u8] {
        let at = self.geo.block_size.offset_of(block) as usize;
        let len = self.geo.block_size.bytes();
        &mut self.bytes[at..at + len]
    }

    fn desc_slot(&mut self, group: u32) -> &mut [u8] {
        let (n, offset) = self.geo.desc_slot(GroupNo(group));
        let size = usize::from(self.geo.desc_size);
        let at = self.geo.desc_block_at(n);
        &mut self.block(at)[offset..offset + size]
    }

    fn desc(&mut self, group: u32) -> GroupDesc {
        let geo = self.geo.clone();
        GroupDesc::decode(&geo, self.desc_slot(group))
    }

    fn set_desc(&mut self, group: u32, edit: impl FnOnce(&mut GroupDesc)) {
        let geo = self.geo.clone();
        let mut desc = self.desc(group);
        edit(&mut desc);
        desc.encode_into(&geo, GroupNo(group), self.desc_slot(group));
    }

    fn slot(&mut self, ino: Ino) -> &mut [u8] {
        let (group, index) = self.geo.group_of_inode(ino);
        let table = self.desc(group.0).inode_table;
        let (block, offset) = self.geo.inode_slot(table, index);
        let size = usize::from(self.geo.inode_size);
        &mut self.block(block)[offset..offset + size]
    }

    fn inode(&mut self, ino: Ino) -> Inode {
        let geo = self.geo.clone();
        Inode::decode(&geo, self.slot(ino)).unwrap()
    }

    /// Edits the bytes of an inode's slot, and seals it.
    fn set_slot(&mut self, ino: Ino, edit: impl FnOnce(&mut [u8])) {
        let geo = self.geo.clone();
        let slot = self.slot(ino);
        edit(slot);
        inode::seal(&geo, ino, slot);
    }

    fn set_inode(&mut self, ino: Ino, edit: impl FnOnce(&mut Inode)) {
        let geo = self.geo.clone();
        let mut inode = self.inode(ino);
        edit(&mut inode);
        inode.encode_into(&geo, ino, self.slot(ino)).unwrap();
    }

    /// The device block of a file block, in a file whose map lies in the inode.
    fn mapped(&mut self, ino: Ino, block: u64) -> DevBlock {
        let inode = self.inode(ino);
        if !inode.has(steadfs_vfs::InodeFlags::EXTENTS) {
            return DevBlock(get32(&inode.block, block as usize * 4).into());
        }
        let root = ExtentNode::parse_root(&self.geo, &inode.block).unwrap();
        let block = steadfs_base::FileBlock(block);
        root.find(block).unwrap().1.device_block(block)
    }

    fn dir_block(&mut self, name: &str, block: u64) -> &mut [u8] {
        let ino = self.ino(name);
        let at = self.mapped(ino, block);
        self.block(at)
    }

    /// An inode that is free and was never used.
    fn free_ino(&self) -> Ino {
        Ino(self.geo.inodes_per_group - 2)
    }

    fn set_superblock(&mut self, edit: impl FnOnce(&mut crate::disk::superblock::RawSuperblock)) {
        let start = SUPERBLOCK_OFFSET as usize;
        let range = start..start + SUPERBLOCK_SIZE;
        let sb = Superblock::parse(&self.bytes[range.clone()]).unwrap();
        let mut raw = sb.raw().clone();
        edit(&mut raw);
        let sb = Superblock::from_raw(raw).unwrap();
        sb.seal_into(&mut self.bytes[range]);
    }

    fn features(&self) -> Features {
        self.image.superblock().features()
    }

    /// Offset of an entry in a directory block.
    fn offset_of(&mut self, dir: &str, block: u64, name: &str) -> usize {
        let layout = DirLayout::of(&self.geo);
        let bytes = self.dir_block(dir, block);
        let entry = dir_entry::find(&layout, bytes, name.as_bytes()).unwrap();
        entry.expect("the name is there").offset
    }

    /// First offset of a name in the root directory, wherever the root's blocks are.
    fn in_root(&mut self, name: &str) -> (u64, usize) {
        let layout = DirLayout::of(&self.geo);
        for block in 0.. {
            let bytes = self.dir_block("/", block);
            if let Ok(Some(entry)) = dir_entry::find(&layout, bytes, name.as_bytes()) {
                return (block, entry.offset);
            }
        }
        unreachable!("the name is in some block");
    }

    fn attr_block(&mut self, name: &str) -> (DevBlock, &mut [u8]) {
        let ino = self.ino(name);
        let at = self
            .inode(ino)
            .file_acl
            .expect("the file has an attribute block");
        (at, self.block(at))
    }
}

/// What e2fsck must say: that the volume is bad, or (with the reason) anything.
#[derive(Clone, Copy, PartialEq)]
enum Judge {
    Agrees,
    /// It does not look at this, or its exit code does not tell.
    May(&'static str),
}
use Judge::{Agrees, May};

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

const VOLUME: &[Case] = &[
    case("Unsupported", Base::Ext4, Agrees, |d| {
        d.debugfs("feature FEATURE_I28")
    }),
    case("Superblock", Base::Ext4, May("it takes a backup"), |d| {
        d.bytes[1024 + 0x78] ^= 1
    }),
    case("Superblock", Base::Ext4, Agrees, |d| {
        d.bytes[1024 + 0x38] = 0
    }),
    case("ReservedBlocks", Base::Ext4, Agrees, |d| {
        d.set_superblock(|raw| raw.r_blocks_count_lo.set(9000));
    }),
    case(
        "DeviceTooSmall",
        Base::Ext4,
        May("with -n it goes on"),
        |d| d.bytes.truncate(11 << 20),
    ),
    case("GroupDesc", Base::Ext4, May("its exit code is 0"), |d| {
        d.desc_slot(1)[0x1E] ^= 1
    }),
    case("GroupDesc", Base::Plain, Agrees, |d| {
        put32(d.desc_slot(1), 0, u32::MAX)
    }),
    case("GroupDesc", Base::Plain, Agrees, |d| {
        put32(d.desc_slot(1), 4, 2 * 4096 + 100)
    }),
    case("GroupDesc", Base::Plain, Agrees, |d| {
        put16(d.desc_slot(1), 0x0C, u16::MAX)
    }),
    case("MetadataOverlap", Base::Plain, Agrees, |d| {
        let other = d.desc(1).inode_bitmap;
        d.set_desc(1, |desc| desc.block_bitmap = other);
    }),
    case("BitmapChecksum", Base::Ext4, Agrees, |d| {
        let at = d.desc(0).inode_bitmap;
        d.block(at)[20] ^= 1;
    }),
    case("BlockBitmapDiffers", Base::Ext4, Agrees, |d| {
        d.debugfs("setb 11000")
    }),
    case("BlockBitmapDiffers", Base::Plain, Agrees, |d| {
        let ino = d.ino("large");
        let block = d.mapped(ino, 0);
        d.debugfs(&format!("freeb {block}"));
    }),
    case("InodeBitmapDiffers", Base::Ext4, Agrees, |d| {
        d.debugfs("freei large")
    }),
    case("InodeBitmapDiffers", Base::Ext4, Agrees, |d| {
        d.debugfs("seti <390>")
    }),
    case("BitmapPadding", Base::Plain, Agrees, |d| {
        let at = d.desc(0).inode_bitmap;
        d.block(at)[1023] = 0;
    }),
    case("BitmapPadding", Base::Plain, Agrees, |d| {
        let at = d.desc(2).block_bitmap;
        d.set_desc(2, |desc| desc.flags &= !2);
        d.block(at)[1023] = 0;
    }),
    case("GroupFreeBlocks", Base::Ext4, Agrees, |d| {
        d.set_desc(0, |desc| desc.free_clusters += 1)
    }),
    case("GroupFreeInodes", Base::Ext4, Agrees, |d| {
        d.set_desc(0, |desc| desc.free_inodes -= 1)
    }),
    case("GroupDirs", Base::Ext4, Agrees, |d| {
        d.set_desc(0, |desc| desc.used_dirs += 1)
    }),
    case("FreeBlocks", Base::Ext4, May("its exit code is 0"), |d| {
        d.set_superblock(|raw| raw.free_blocks_count_lo.set(5));
    }),
    case("FreeInodes", Base::Ext4, May("its exit code is 0"), |d| {
        d.set_superblock(|raw| raw.free_inodes_count.set(5));
    }),
    case("RecoveryWithoutJournal", Base::Ext2, Agrees, |d| {
        d.debugfs("feature needs_recovery")
    }),
    case("Journal", Base::Plain, Agrees, |d| {
        let at = d.mapped(Ino::JOURNAL, 0);
        d.block(at)[0] = 0;
    }),
    case("Journal", Base::Plain, Agrees, |d| {
        d.set_inode(Ino::JOURNAL, |inode| inode.links = 0)
    }),
    case(
        "JournalNotEmpty",
        Base::Plain,
        May("with -n it skips the journal"),
        |d| {
            let at = d.mapped(Ino::JOURNAL, 0);
            d.block(at)[0x1F] = 1;
        },
    ),
    case("ResizeInode", Base::Plain, Agrees, |d| {
        let dind = DevBlock(get32(&d.inode(Ino::RESIZE).block, 13 * 4).into());
        put32(d.block(dind), 4, 999);
    }),
    case("GroupDesc", Base::Ext2, Agrees, |d| {
        d.set_desc(0, |desc| desc.flags = 1)
    }),
    case("Inode", Base::Plain, Agrees, |d| {
        d.set_inode(Ino::JOURNAL, |inode| inode.size += 1 << 20);
    }),
    case("ResizeInode", Base::Plain, Agrees, |d| {
        d.set_inode(Ino::RESIZE, |inode| inode.block = [0; 60]);
    }),
    case("ReservedInUse", Base::Ext2, Agrees, |d| {
        d.debugfs("set_inode_field <8> links_count 1")
    }),
    case(
        "OrphanList",
        Base::Ext4,
        May("with -n it skips the list"),
        |d| {
            d.set_superblock(|raw| raw.last_orphan.set(5));
        },
    ),
    case(
        "OrphanList",
        Base::Ext4,
        May("with -n it skips the list"),
        |d| {
            let ino = d.ino("large");
            d.set_inode(ino, |inode| inode.dtime = ino.0);
            d.set_superblock(|raw| raw.last_orphan.set(ino.0));
        },
    ),
    case(
        "OrphanList",
        Base::Ext4,
        May("with -n it skips the list"),
        |d| {
            let ino = d.ino("large");
            let free = d.geo.inodes_count - 1;
            d.set_inode(ino, |inode| inode.dtime = free);
            d.set_superblock(|raw| raw.last_orphan.set(ino.0));
        },
    ),
    case("OrphanList", Base::OrphanFile, Agrees, |d| {
        let file = d.image.superblock().orphan_file().unwrap();
        let (at, free) = (d.mapped(file, 0), d.geo.inodes_count - 1);
        put32(d.block(at), 0, free);
        let present = d.features().ro_compat.0 | 0x1_0000;
        d.set_superblock(|raw| raw.feature_ro_compat.set(present));
    }),
    case("OrphanFile", Base::OrphanFile, Agrees, |d| {
        let ino = d.image.superblock().orphan_file().unwrap();
        let at = d.mapped(ino, 1);
        d.block(at)[1024 - 8] ^= 1;
    }),
    case("OrphansNotAnnounced", Base::OrphanFile, Agrees, |d| {
        let (orphans, large) = (d.image.superblock().orphan_file().unwrap(), d.ino("large"));
        let at = d.mapped(orphans, 0);
        put32(d.block(at), 0, large.0);
    }),
    case("NoRoot", Base::Ext4, Agrees, |d| {
        d.set_inode(Ino::ROOT, |inode| inode.mode = 0o100_644)
    }),
];

const INODES: &[Case] = &[
    case("Inode", Base::Ext4, Agrees, |d| {
        let ino = d.ino("large");
        d.slot(ino)[0x10] ^= 1;
    }),
    case("Inode", Base::Plain, Agrees, |d| {
        let ino = d.ino("large");
        d.set_inode(ino, |inode| inode.mode = 0o644);
    }),
    case("Inode", Base::Plain, Agrees, |d| {
        let ino = d.ino("large");
        put16(d.slot(ino), 0x80, 1000);
    }),
    case("Inode", Base::Plain, Agrees, |d| {
        let ino = d.ino("large");
        d.set_inode(ino, |inode| inode.file_acl = Some(DevBlock(1 << 30)));
    }),
    case("InodeFlag", Base::Ext4, Agrees, |d| {
        let ino = d.ino("large");
        d.set_inode(ino, |inode| inode.flags.0 |= 0x1000);
    }),
    case("InodeFlag", Base::Ext4, May("its exit code is 0"), |d| {
        let ino = d.ino("pipe");
        d.set_inode(ino, |inode| inode.flags.0 |= 0x10);
    }),
    case("InodeFlag", Base::Ext4, Agrees, |d| {
        let ino = d.ino("large");
        d.set_inode(ino, |inode| inode.flags.0 |= 0x1000_0000);
    }),
    case("FieldNotZero", Base::Ext4, Agrees, |d| {
        let ino = d.ino("large");
        d.set_slot(ino, |slot| put32(slot, 0x70, 7));
    }),
    case("FieldNotZero", Base::Ext4, Agrees, |d| {
        let ino = d.ino("device");
        d.set_inode(ino, |inode| inode.size = 9);
    }),
    case("FieldNotZero", Base::Ext4, Agrees, |d| {
        let ino = d.ino("a/b");
        d.set_slot(ino, |slot| put32(slot, 0x6C, 1));
    }),
    case("NoDeletionTime", Base::Ext2, Agrees, |d| {
        let ino = d.free_ino();
        d.set_slot(ino, |slot| put16(slot, 0, 0o100_644));
    }),
    case("LostOrphan", Base::Ext2, Agrees, |d| {
        let ino = d.free_ino();
        d.set_slot(ino, |slot| put32(slot, 0x14, 30));
    }),
    case("DeletionTime", Base::Ext4, Agrees, |d| {
        let ino = d.ino("large");
        d.set_inode(ino, |inode| inode.dtime = 1_700_000_000);
    }),
    case("SizeTooSmall", Base::Ext4, Agrees, |d| {
        let ino = d.ino("large");
        d.set_inode(ino, |inode| inode.size = 1000);
    }),
    case("DirSize", Base::Ext4, Agrees, |d| {
        let ino = d.ino("a/b");
        d.set_inode(ino, |inode| inode.size = 2048);
    }),
    case("DirSize", Base::Ext4, Agrees, |d| {
        let ino = d.ino("a/b");
        d.set_inode(ino, |inode| inode.size = 1000);
    }),
    case("BlockCount", Base::Ext4, Agrees, |d| {
        let ino = d.ino("large");
        d.set_inode(ino, |inode| inode.blocks += 2);
    }),
    case("ExtentNode", Base::Ext4, Agrees, |d| {
        let ino = d.ino("large");
        d.set_inode(ino, |inode| inode.block[0] = 0);
    }),
    case("ExtentNode", Base::Ext4, Agrees, |d| {
        let ino = d.ino("large");
        d.set_inode(ino, |inode| put32(&mut inode.block, 20, 1 << 30));
    }),
    case("Unwritten", Base::Ext4, Agrees, |d| {
        let ino = d.ino("a/b");
        d.set_inode(ino, |inode| put16(&mut inode.block, 16, 0x8001));
    }),
    case("NoExtentsFlag", Base::Ext4, Agrees, |d| {
        let ino = d.ino("large");
        d.set_inode(ino, |inode| inode.flags.0 &= !0x8_0000);
    }),
    case("MapBlock", Base::Ext2, Agrees, |d| {
        let ino = d.ino("large");
        d.set_inode(ino, |inode| put32(&mut inode.block, 8, 1 << 30));
    }),
    case("MapBlock", Base::Ext2, Agrees, |d| {
        let ino = d.ino("large");
        let map = get32(&d.inode(ino).block, indirect::INDIRECT as usize * 4);
        put32(d.block(DevBlock(map.into())), 40, 1);
    }),
    case("BlockUsedTwice", Base::Ext2, Agrees, |d| {
        let ino = d.ino("large");
        d.set_inode(ino, |inode| {
            let first = get32(&inode.block, 0);
            put32(&mut inode.block, 12, first);
        });
    }),
    case("BlockUsedTwice", Base::Ext4, Agrees, |d| {
        let (large, other) = (d.ino("large"), d.ino("a/b/c/d/e/f/g/bottom"));
        let block = d.inode(large).block;
        d.set_inode(other, |inode| {
            inode.block[20..24].copy_from_slice(&block[20..24])
        });
    }),
    case("Symlink", Base::Ext4, Agrees, |d| {
        let ino = d.ino("fast");
        d.set_inode(ino, |inode| inode.size = 3);
    }),
    case("Symlink", Base::Ext4, Agrees, |d| {
        let ino = d.ino("slow900");
        d.set_inode(ino, |inode| inode.size = 901);
    }),
    case("Xattr", Base::Plain, Agrees, |d| {
        d.attr_block("large").1[0] = 9
    }),
    case("Xattr", Base::Ext4, Agrees, |d| {
        d.attr_block("large").1[1000] ^= 9
    }),
    case("Xattr", Base::Plain, Agrees, |d| {
        put16(d.attr_block("large").1, 32 + 2, 1020)
    }),
    case("Xattr", Base::Plain, Agrees, |d| {
        d.attr_block("large").1[33] = 0
    }),
    case("XattrHash", Base::Plain, Agrees, |d| {
        d.attr_block("large").1[32 + 12] ^= 1
    }),
    case("XattrOverlap", Base::Plain, Agrees, |d| {
        let (_, block) = d.attr_block("large");
        let first = get16(block, 32 + 2);
        let second = 32 + 16 + usize::from(block[32]).next_multiple_of(4);
        put16(block, second + 2, first + 4);
    }),
    case("XattrRefcount", Base::Ext4, Agrees, |d| {
        let geo = d.geo.clone();
        let (at, block) = d.attr_block("large");
        crate::disk::xattr::set_refcount(&geo, at, block, 2);
    }),
    case("XattrInode", Base::EaInode, Agrees, |d| {
        let free = d.free_ino();
        put32(d.attr_block("large").1, 32 + 4, free.0);
    }),
];

const DIRS: &[Case] = &[
    case("DirHole", Base::Ext2, Agrees, |d| {
        let ino = d.ino("many");
        d.set_inode(ino, |inode| put32(&mut inode.block, 8, 0));
    }),
    case("DirBlock", Base::Ext4, Agrees, |d| {
        d.dir_block("a/b", 0)[30] ^= 1
    }),
    case("DirBlock", Base::Plain, Agrees, |d| {
        put16(d.dir_block("a/b", 0), 28, 6)
    }),
    case("DirBlock", Base::Plain, Agrees, |d| {
        put32(d.dir_block("a/b", 0), 24, 1 << 30)
    }),
    case("DirDots", Base::Plain, Agrees, |d| {
        put32(d.dir_block("a/b", 0), 0, 2)
    }),
    case("DirDots", Base::Plain, Agrees, |d| {
        d.dir_block("a/b", 0)[20] = b'x'
    }),
    case("DirDots", Base::Plain, Agrees, |d| {
        d.dir_block("a/b", 0)[9] = b'x'
    }),
    case("BadName", Base::Plain, Agrees, |d| {
        d.dir_block("a/b", 0)[32] = b'/'
    }),
    case("BadTarget", Base::Plain, Agrees, |d| {
        let free = d.free_ino();
        put32(d.dir_block("a/b", 0), 24, free.0);
    }),
    case("BadTarget", Base::Plain, Agrees, |d| {
        put32(d.dir_block("a/b", 0), 24, 8)
    }),
    case("EntryType", Base::Plain, Agrees, |d| {
        d.dir_block("a/b", 0)[31] = 1
    }),
    case("DuplicateName", Base::Plain, Agrees, |d| {
        let (block, first) = d.in_root("fast");
        let (other, second) = d.in_root("pipe");
        assert_eq!(block, other, "both names are in one block");
        let bytes = d.dir_block("/", block);
        bytes.copy_within(first + 8..first + 12, second + 8);
    }),
    case("SecondName", Base::Ext4, Agrees, |d| {
        d.debugfs("ln a/b second");
        let (b, links) = (d.ino("a/b"), 3);
        d.set_inode(b, |inode| inode.links = links + 1);
    }),
    case("WrongParent", Base::Plain, Agrees, |d| {
        let many = d.ino("many");
        put32(d.dir_block("a/b", 0), 12, many.0);
    }),
    case("Htree", Base::Plain, Agrees, |d| {
        d.dir_block("many", 0)[28] = 9
    }),
    case("Htree", Base::Plain, Agrees, |d| {
        put16(d.dir_block("many", 0), 34, 0)
    }),
    case("Htree", Base::Ext4, Agrees, |d| {
        d.dir_block("many", 0)[44] ^= 1
    }),
    case("Htree", Base::Plain, Agrees, |d| {
        d.dir_block("many", 0)[24] = 1
    }),
    case("HtreeChild", Base::Plain, Agrees, |d| {
        put32(d.dir_block("many", 0), 44, 9999)
    }),
    case("HtreeBlockTwice", Base::Plain, Agrees, |d| {
        let root = d.dir_block("many", 0);
        let first = get32(root, 36);
        put32(root, 44, first);
    }),
    case("HtreeBlockUnnamed", Base::Plain, Agrees, |d| {
        let root = d.dir_block("many", 0);
        let count = get16(root, 34);
        put16(root, 34, count - 1);
    }),
    case("HtreeHash", Base::Plain, Agrees, |d| {
        let root = d.dir_block("many", 0);
        let hash = get32(root, 40);
        put32(root, 40, (hash / 2) & !1);
    }),
    case("LinkCount", Base::Ext4, Agrees, |d| {
        let ino = d.ino("large");
        d.set_inode(ino, |inode| inode.links = 9);
    }),
    case("LinkCount", Base::Ext4, Agrees, |d| {
        let ino = d.ino("a/b");
        d.set_inode(ino, |inode| inode.links = 9);
    }),
    case("Unattached", Base::Ext4, Agrees, |d| {
        d.debugfs("unlink sparse")
    }),
    case("Unattached", Base::Ext4, Agrees, |d| {
        d.debugfs("unlink a/b/c")
    }),
    case("DirLoop", Base::Plain, Agrees, |d| {
        // The name of a/b/c/d goes to a directory below itself.
        let d_ino = d.ino("a/b/c/d");
        let offset = d.offset_of("a/b/c", 0, "d");
        d.dir_block("a/b/c/d/e/f/g", 0);
        let below = d.offset_of("a/b/c/d/e/f/g", 0, "bottom");
        let bytes = d.dir_block("a/b/c/d/e/f/g", 0);
        put32(bytes, below, d_ino.0);
        bytes[below + 7] = 2;
        put32(d.dir_block("a/b/c", 0), offset, 0);
    }),
];

/// Runs all cases; the kinds that were provoked, and what went wrong.
fn run_cases(cases: &[Case], failures: &mut Vec<String>) -> BTreeSet<&'static str> {
    let mut seen = BTreeSet::new();
    for (i, case) in cases.iter().enumerate() {
        let mut damage = Damage::new(case.base);
        (case.damage)(&mut damage);
        let report = check(&damage.bytes, &Options::default());
        let found = report.issues.iter().any(|issue| kind(issue) == case.kind);
        damage.image.fill(&damage.bytes);
        let (code, words) = e2fsck(&damage.image.path());
        let agrees = code != 0 || case.judge != Agrees;
        if !found || !agrees {
            let lines: Vec<_> = report.issues.iter().map(ToString::to_string).collect();
            failures.push(format!(
                "case {i} on {:?} for {}: {lines:#?}, e2fsck {code}: {words}",
                case.base, case.kind
            ));
        }
        seen.insert(case.kind);
    }
    seen
}

#[test]
fn every_kind_is_provoked_and_e2fsck_agrees() {
    let mut failures = Vec::new();
    let mut seen = run_cases(VOLUME, &mut failures);
    seen.extend(run_cases(INODES, &mut failures));
    seen.extend(run_cases(DIRS, &mut failures));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Provoked by tests of their own.
    seen.extend(["TooLarge", "Unreadable"]);
    assert_eq!(seen.len(), KINDS, "{seen:?}");
}

/// A device of which one block cannot be read.
struct BadBlock {
    bytes: Vec<u8>,
    bad: u64,
}

impl BlockSource for BadBlock {
    fn size_bytes(&self) -> u64 {
        self.bytes.size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if (offset..offset + buf.len() as u64).contains(&self.bad) {
            return Err(io::Error::other("bad block"));
        }
        self.bytes.read(offset, buf)
    }
}

#[test]
fn unreadable_blocks_are_named() {
    let mut damage = Damage::new(Base::Ext4);
    let ino = damage.ino("a/b");
    let dir = damage.mapped(ino, 0);
    let table = damage.desc(0).inode_table;
    for block in [dir, table, DevBlock(1), DevBlock(2)] {
        let source = BadBlock {
            bytes: damage.bytes.clone(),
            bad: damage.geo.block_size.offset_of(block),
        };
        let report = check(&source, &Options::default());
        let named = |issue: &Issue| kind(issue) == "Unreadable";
        assert!(
            report.issues.iter().any(named),
            "{block}: {:?}",
            report.issues
        );
    }
}

/// e2fsck looks for equal names in one block only.
#[test]
fn equal_names_in_two_blocks() {
    let tree = tempfile::tempdir().unwrap();
    for i in 100..200 {
        fs::write(
            tree.path().join(format!("a name that is rather long {i}")),
            "",
        )
        .unwrap();
    }
    let options = [
        "-t",
        "ext2",
        "-b",
        "1024",
        "-d",
        tree.path().to_str().unwrap(),
    ];
    let image = Image::make(&options, "8M");
    let mut bytes = image.bytes();
    let find = |bytes: &[u8], name: &[u8]| bytes.windows(name.len()).position(|w| w == name);
    let names: Vec<_> = (100..200)
        .map(|i| find(&bytes, format!("a name that is rather long {i}").as_bytes()).unwrap())
        .collect();
    let (low, high) = (*names.iter().min().unwrap(), *names.iter().max().unwrap());
    assert!(high / 1024 > low / 1024);
    bytes.copy_within(low..low + 30, high);
    let report = check(&bytes, &Options::default());
    assert!(matches!(
        report.issues[..],
        [Issue::DuplicateName { dir: Ino::ROOT, .. }]
    ));
}

/// Orphans are in use: on the list with and without links, and in the orphan file.
#[test]
fn orphans_are_no_issue() {
    let mut damage = Damage::new(Base::Ext4);
    let (large, sparse) = (damage.ino("sparse"), damage.ino("empty"));
    damage.debugfs("unlink empty");
    damage.set_inode(large, |inode| inode.dtime = sparse.0);
    damage.set_inode(sparse, |inode| inode.links = 0);
    damage.set_superblock(|raw| raw.last_orphan.set(large.0));
    let report = check(&damage.bytes, &Options::default());
    assert!(report.is_clean(), "{:?}", report.issues);
    assert_eq!(report.stats.orphans, 2);

    let mut damage = Damage::new(Base::OrphanFile);
    let empty = damage.ino("empty");
    damage.debugfs("unlink empty");
    damage.set_inode(empty, |inode| inode.links = 0);
    let file = damage.image.superblock().orphan_file().unwrap();
    let at = damage.mapped(file, 0);
    put32(damage.block(at), 8, empty.0);
    assert!(
        !damage
            .features()
            .ro_compat
            .contains(RoCompat::ORPHAN_PRESENT)
    );
    damage.set_superblock(|raw| {
        raw.feature_ro_compat
            .set(raw.feature_ro_compat.get() | 0x1_0000)
    });
    let report = check(&damage.bytes, &Options::default());
    assert!(report.is_clean(), "{:?}", report.issues);
    assert_eq!(report.stats.orphans, 1);
}

/// After a crash the superblock's counts are old, and only counted.
#[test]
fn old_counts_after_a_crash() {
    let mut damage = Damage::new(Base::Ext4);
    damage.set_superblock(|raw| raw.free_inodes_count.set(5));
    let options = Options {
        after_crash: true,
        ..Options::default()
    };
    let report = check(&damage.bytes, &options);
    assert!(report.is_clean());
    assert!(report.stats.free_inodes_off < 0 && report.stats.free_blocks_off == 0);
    damage.debugfs("feature needs_recovery");
    assert!(check(&damage.bytes, &Options::default()).is_clean());
}
