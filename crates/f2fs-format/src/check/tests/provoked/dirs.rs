//! Damage to directories, attributes and quota.

use super::*;

pub(super) const DIRS: &[Case] = &[
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
