//! Damage to inodes and nodes.

use super::*;

pub(super) const INODES: &[Case] = &[
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
