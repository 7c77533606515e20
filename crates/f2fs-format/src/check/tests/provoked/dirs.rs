//! Corrupt directories, attributes and quota files.

use super::*;

pub(super) const DIRS: &[Case] = &[
    case("Dentry", BaseImage::Plain, Agrees, |d| {
        d.entry("a", "twin1", |entry, _| entry.name_len.set(0))
    }),
    case("Dentry", BaseImage::Plain, Agrees, |d| {
        d.entry("a", "twin1", |entry, _| entry.ino.set(0))
    }),
    case("DirSlots", BaseImage::Plain, NotChecked, |d| {
        d.free_slots("many", "entry number 007", 1)
    }),
    case("DirPlace", BaseImage::Plain, NotChecked, |d| {
        d.inode("many", |core, _| core.depth = 1)
    }),
    case("DirPlace", BaseImage::Plain, Agrees, |d| {
        d.inode("many", |core, _| core.dir_level = 2)
    }),
    case(
        "DirHash",
        BaseImage::Plain,
        Prints("Mismatch hash_code"),
        |d| {
            d.entry("a", "twin1", |entry, _| {
                entry.hash_code.set(entry.hash_code.get() ^ 0x100)
            })
        },
    ),
    case("DirDots", BaseImage::Plain, Agrees, |d| {
        d.free_slots("a", "..", 0)
    }),
    case("DirDots", BaseImage::Plain, Agrees, |d| {
        let other = d.ino("many");
        d.entry("a", ".", |entry, _| entry.ino.set(other.0));
    }),
    case("BadName", BaseImage::Plain, NotChecked, |d| {
        d.entry("a", "twin1", |entry, name| {
            name.copy_from_slice(b"tw/n1");
            entry.hash_code.set(hash::of_name(b"tw/n1"));
        })
    }),
    case("DuplicateName", BaseImage::Plain, NotChecked, |d| {
        d.entry("a", "twin1", |entry, name| {
            name.copy_from_slice(b"twin2");
            entry.hash_code.set(hash::of_name(b"twin2"));
        })
    }),
    case("BadTarget", BaseImage::Plain, Agrees, |d| {
        d.entry("a", "twin1", |entry, _| entry.ino.set(FREE_NID.0))
    }),
    case("BadTarget", BaseImage::Plain, Agrees, |d| {
        let node = direct(d);
        d.entry("a", "twin1", |entry, _| entry.ino.set(node.0));
    }),
    case("EntryType", BaseImage::Plain, Agrees, |d| {
        d.entry("a", "twin1", |entry, _| entry.file_type = 6)
    }),
    case("SecondName", BaseImage::Plain, Agrees, |d| {
        let dir = d.ino("a/b");
        d.entry("a", "twin1", |entry, _| {
            entry.ino.set(dir.0);
            entry.file_type = 2;
        });
    }),
    case("WrongParent", BaseImage::Plain, Agrees, |d| {
        d.entry("a/b", "..", |entry, _| entry.ino.set(Nid::ROOT.0))
    }),
    case("WrongParent", BaseImage::Plain, Agrees, |d| {
        d.inode("a/b", |core, _| core.parent = Nid::ROOT)
    }),
    case("LinkCount", BaseImage::Plain, Agrees, |d| {
        d.inode("small", |core, _| core.links = 2)
    }),
    case("LinkCount", BaseImage::Plain, Agrees, |d| {
        d.inode("a", |core, _| core.links += 1)
    }),
    case(
        "Unattached",
        BaseImage::Plain,
        Prints("Reconnect 1 files"),
        |d| d.free_slots("a", "twin1", 0),
    ),
    case("DirLoop", BaseImage::Plain, Agrees, |d| {
        let (b, c) = (d.ino("a/b"), d.ino("a/b/c"));
        d.entry("a/b/c", "..", |_, _| ());
        d.entry("a/b", "c", |entry, _| entry.ino.set(b.0));
        d.entry("a", "b", |entry, _| entry.ino.set(c.0));
    }),
    case("NoRoot", BaseImage::Plain, Agrees, |d| {
        d.nat(Nid::ROOT, |entry| entry.block_addr.set(0))
    }),
    case("QuotaFile", BaseImage::Quota, Agrees, |d| {
        d.superblocks(|raw| raw.qf_ino[2].set(FREE_NID.0))
    }),
    case("QuotaFile", BaseImage::Quota, NotChecked, |d| {
        let at = quota_block(d);
        d.block(at)[3] ^= 1;
    }),
    case("QuotaUsage", BaseImage::Quota, Agrees, |d| {
        // The project of a regular file, in its inode.
        d.inode("small", |core, _| core.project = 77);
    }),
    case("QuotaFile", BaseImage::Quota, NotChecked, |d| {
        let (quota, layout) = (Nid(4), d.layout.clone());
        d.node(quota, |block| {
            let mut core = crate::disk::Inode::decode(&layout, block).unwrap();
            core.links = 3;
            core.encode_into(&layout, block).unwrap();
        });
    }),
];
