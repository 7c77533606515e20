//! Damage to directories.

use super::*;

const NO_FOLDED_DUPLICATES: &str =
    "it compares names without case only when it rebuilds directories";

pub(super) const DIRS: &[Case] = &[
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
    case("NotEncoded", Base::Casefold, Agrees, |d| {
        d.fold("a/b");
        d.dir_block("a/b", 0)[32] = 0xFF;
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
    case(
        "DuplicateName",
        Base::Casefold,
        May(NO_FOLDED_DUPLICATES),
        |d| {
            d.fold("/");
            let (block, first) = d.in_root("fast");
            let (other, second) = d.in_root("pipe");
            assert_eq!(block, other, "both names are in one block");
            let bytes = d.dir_block("/", block);
            bytes.copy_within(first + 8..first + 12, second + 8);
            bytes[second + 8..second + 12].make_ascii_uppercase();
        },
    ),
    case("HtreeHash", Base::Casefold, Agrees, |d| {
        d.fold("many");
        // Whatever the seed is, not all hashes of the new names belong here. The last byte was a digit.
        let block = d.dir_block("many", 1);
        let mut at = 0;
        while at < block.len() {
            block[at + 7 + usize::from(block[at + 6])] ^= 0x10;
            at += usize::from(u16::from_le_bytes([block[at + 4], block[at + 5]]));
        }
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
