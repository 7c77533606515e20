//! Damage to superblock, descriptors, bitmaps and special inodes.

use super::*;

pub(super) const VOLUME: &[Case] = &[
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
    case("FeatureAlone", Base::Ext2, Agrees, |d| {
        d.set_superblock(|raw| {
            raw.feature_ro_compat
                .set(raw.feature_ro_compat.get() | 0x10000)
        });
    }),
    case("FeatureAlone", Base::Ext2, May("its exit code is 0"), |d| {
        d.set_superblock(|raw| {
            raw.feature_incompat
                .set(raw.feature_incompat.get() | 0x2000)
        });
    }),
    case("Journal", Base::Ext2, Agrees, |d| {
        d.set_superblock(|raw| raw.feature_compat.set(raw.feature_compat.get() | 4));
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
