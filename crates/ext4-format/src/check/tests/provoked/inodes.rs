//! Damage to inodes and what they map.

use super::*;

pub(super) const INODES: &[Case] = &[
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
    // The extent begins one block later in its cluster.
    case("Misaligned", Base::Bigalloc, Agrees, |d| {
        let ino = d.ino("large");
        d.set_inode(ino, |inode| inode.block[20] ^= 1);
    }),
    // Another block of a cluster that another file has.
    case("BlockUsedTwice", Base::Bigalloc, Agrees, |d| {
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
    case(
        "XattrInodeSize",
        Base::EaInode,
        May("1.47.0 does not compare the sizes"),
        |d| {
            let value = d.value_inode();
            d.set_inode(value, |i| i.size = 1023);
        },
    ),
    case("XattrInodeReferences", Base::EaInode, Agrees, |d| {
        let value = d.value_inode();
        d.set_inode(value, |i| i.version = 2);
    }),
    case("XattrHash", Base::EaInode, Agrees, |d| {
        let value = d.value_inode();
        d.set_inode(value, |i| crate::disk::ea_inode::set_hash(i, 7));
    }),
    case(
        "XattrInodeContent",
        Base::EaInode,
        May("it reads no content"),
        |d| {
            let value = d.value_inode();
            let at = d.mapped(value, 0);
            d.block(at)[5] ^= 1;
        },
    ),
    case("LinkCount", Base::EaInode, Agrees, |d| {
        let value = d.value_inode();
        d.set_inode(value, |i| i.links = 2);
    }),
    case("XattrInode", Base::EaInode, Agrees, |d| {
        let value = d.value_inode();
        d.set_inode(value, |i| i.flags.0 &= !crate::disk::inode::EA_INODE.0);
    }),
];
