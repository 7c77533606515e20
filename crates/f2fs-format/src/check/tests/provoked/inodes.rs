//! Corrupt inodes and nodes.

use super::*;

pub(super) const INODES: &[Case] = &[
    case("Node", BaseImage::Plain, Agrees, |d| {
        let file = d.ino("small");
        d.node(file, |block| block[node::FOOTER_AT] ^= 1);
    }),
    case("Node", BaseImage::Rich, Agrees, |d| {
        let addr = d.addr_of(d.ino("small"));
        d.block(addr)[70] ^= 1;
    }),
    case("Node", BaseImage::Plain, Agrees, |d| {
        d.inode("small", |core, _| core.mode = 0o644)
    }),
    case("NodeVersion", BaseImage::Plain, NotChecked, |d| {
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
    case("NodeMissing", BaseImage::Plain, Agrees, |d| {
        d.inode("large", |_, block| set_nid_at(block, 0, FREE_NID))
    }),
    case("NodeOwner", BaseImage::Plain, Agrees, |d| {
        let direct = direct(d);
        let other = d.ino("small");
        d.nat(direct, |entry| entry.ino.set(other.0));
    }),
    case("NodeTwice", BaseImage::Plain, Agrees, |d| {
        let direct = direct(d);
        d.inode("large", |_, block| set_nid_at(block, 1, direct));
    }),
    case("NodeUnreached", BaseImage::Plain, Agrees, |d| {
        d.inode("large", |_, block| set_nid_at(block, 0, Nid(0)))
    }),
    case("BlockUsedTwice", BaseImage::Plain, Agrees, |d| {
        d.addrs("small", |list| list[1] = list[0])
    }),
    case("BadAddress", BaseImage::Plain, Agrees, |d| {
        d.addrs("small", |list| list[1] = BlockAddr(5))
    }),
    case("BlockCount", BaseImage::Plain, Agrees, |d| {
        d.inode("small", |core, _| core.blocks += 1)
    }),
    case("Cluster", BaseImage::Plain, Agrees, |d| {
        d.addrs("small", |list| list[4] = BlockAddr::COMPRESSED)
    }),
    case("Cluster", BaseImage::Rich, Agrees, |d| {
        compress(d, 0);
        d.addrs("small", |list| list[5] = BlockAddr::COMPRESSED);
    }),
    case("SavedBlocks", BaseImage::Rich, NotChecked, |d| {
        compress(d, 3)
    }),
    case("Extent", BaseImage::Plain, Agrees, |d| {
        d.inode("small", |core, _| {
            core.extent.len = 3;
            core.extent.addr = BlockAddr(77);
        })
    }),
    case("Inline", BaseImage::Plain, Agrees, |d| {
        d.inode("a/twin1", |core, block| {
            block[FIXED + usize::from(core.extra_isize)] = 9
        })
    }),
    case("Inline", BaseImage::Plain, Agrees, |d| {
        d.inode("a/twin1", |core, _| {
            core.inline = core.inline.without(Inline::DATA_EXISTS)
        })
    }),
    case("InodeFlag", BaseImage::Plain, NotChecked, |d| {
        d.inode("small", |core, _| {
            core.advise = core.advise.union(Advise::ENCRYPTED)
        })
    }),
    case("InodeFlag", BaseImage::Plain, Agrees, |d| {
        d.inode("small", |core, _| {
            core.flags = core.flags.union(InodeFlags::CASEFOLD)
        })
    }),
    case("Symlink", BaseImage::Plain, NotChecked, |d| {
        let layout = d.layout.clone();
        d.inode("link", |core, block| {
            let range = core.inline_range(&layout);
            block[range][3] = 0;
        });
    }),
    case("Xattr", BaseImage::Plain, NotChecked, |d| {
        attributes(d, &[b"one"], |area| area[26..28].fill(0xFF))
    }),
    case("XattrList", BaseImage::Plain, NotChecked, |d| {
        attributes(d, &[b"one"], |area| area[100] = 1)
    }),
    case("XattrList", BaseImage::Plain, NotChecked, |d| {
        attributes(d, &[b"one", b"one"], |_| ())
    }),
    case("XattrList", BaseImage::Rich, NotChecked, |d| {
        d.inode("small", |core, _| {
            core.advise = core.advise.union(Advise::ENCRYPTED)
        })
    }),
];
