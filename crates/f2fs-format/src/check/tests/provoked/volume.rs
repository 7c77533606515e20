//! Corrupt superblocks, packs and tables.

use super::*;

pub(super) const VOLUME: &[Case] = &[
    case("Superblock", BaseImage::Rich, NotChecked, |d| {
        d.bytes[1024 + 200] ^= 1
    }),
    case("Superblock", BaseImage::Rich, Agrees, |d| {
        d.bytes[1024 + 200] ^= 1;
        d.bytes[1024 + 4096 + 200] ^= 1;
    }),
    case("SuperblocksDiffer", BaseImage::Plain, NotChecked, |d| {
        d.bytes[4096 + 1024 + 110] ^= 1
    }),
    case("DeviceTooSmall", BaseImage::Plain, NotChecked, |d| {
        d.bytes.truncate(96 << 20)
    }),
    case("NoCheckpoint", BaseImage::Plain, Agrees, |d| {
        for pack in [0, 1] {
            let at = d.layout.pack_start(pack);
            d.block(at)[8] ^= 1;
        }
    }),
    case("Checkpoint", BaseImage::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.overprovision_segments = 0)
    }),
    case("Checkpoint", BaseImage::Plain, NotChecked, |d| {
        d.checkpoint(|cp| cp.logs[1].alloc = 7)
    }),
    case("PackEnds", BaseImage::Plain, NotChecked, |d| {
        let opened = d.opened();
        let mut cp = opened.checkpoint.clone();
        cp.elapsed += 1;
        let head = cp.encode(&d.layout).unwrap();
        let last = d.layout.pack_start(opened.pack).plus(cp.pack_blocks - 1);
        d.block(last).copy_from_slice(&head[..BLOCK_SIZE]);
    }),
    case(
        "Pack",
        BaseImage::Plain,
        Prints("truncate n_nats(99)"),
        |d| d.pack_summary(LogType::HotData)[3584..3586].copy_from_slice(&99u16.to_le_bytes()),
    ),
    case("Pack", BaseImage::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.user_blocks = 1 << 30)
    }),
    case("JournalTwice", BaseImage::Plain, NotChecked, |d| {
        let root = d.opened().nat(Nid::ROOT);
        let journal = crate::disk::journal::encode_nat(&[(Nid::ROOT, root), (Nid::ROOT, root)]);
        d.pack_summary(LogType::HotData)[3584..4091].copy_from_slice(&journal);
    }),
    case("OrphanBlock", BaseImage::Plain, Agrees, |d| {
        let at = d.orphans(&[FREE_NID]);
        d.block(at)[4088..4092].copy_from_slice(&9999u32.to_le_bytes());
    }),
    case("Orphan", BaseImage::Plain, Agrees, |d| {
        d.orphans(&[FREE_NID]);
    }),
    case("Orphan", BaseImage::Plain, Agrees, |d| {
        let file = d.ino("small");
        d.free_slots("", "small", 0);
        d.orphans(&[file]);
    }),
    case("BadTarget", BaseImage::Plain, Agrees, |d| {
        let file = d.ino("small");
        d.inode("small", |core, _| core.links = 0);
        d.orphans(&[file]);
    }),
    case("Log", BaseImage::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.logs[LogType::WarmNode.index()].offset -= 1)
    }),
    case("Log", BaseImage::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.logs.swap(0, 3))
    }),
    case("Nat", BaseImage::Plain, Agrees, |d| {
        let file = d.ino("small");
        let outside = d.layout.ssa_start;
        d.nat(file, |entry| entry.block_addr.set(outside));
    }),
    case("Nat", BaseImage::Plain, Agrees, |d| {
        let file = d.ino("small");
        d.nat(file, |entry| entry.ino.set(0));
    }),
    case("Nat", BaseImage::Plain, Agrees, |d| {
        d.nat(Nid::NODE, |entry| entry.block_addr.set(0))
    }),
    case("Nat", BaseImage::Plain, Agrees, |d| {
        d.nat(Nid::META, |entry| entry.block_addr.set(0))
    }),
    case(
        "NatBits",
        BaseImage::Plain,
        Prints("Corrupted valid nat_bits"),
        |d| {
            let opened = d.opened();
            let at =
                NatBits::address(&d.layout, opened.pack, opened.checkpoint.pack_blocks).unwrap();
            let empty = 8 + (d.layout.nat_blocks / 8) as usize;
            d.block(at)[empty] |= 1;
        },
    ),
    case("Sit", BaseImage::Plain, Agrees, |d| {
        let addr = d.mapped("small", 0);
        d.sit(addr, |entry, _| entry.vblocks.set(entry.vblocks.get() - 1));
    }),
    case("SitDiffers", BaseImage::Plain, Agrees, |d| {
        let addr = d.mapped("small", 0);
        d.sit(addr, |entry, offset| {
            entry.vblocks.set(entry.vblocks.get() - 1);
            entry.valid_map[offset / 8] &= !(0x80 >> (offset % 8));
        });
    }),
    case("SegmentType", BaseImage::Plain, Agrees, |d| {
        let addr = d.mapped("small", 0);
        d.sit(addr, |entry, _| {
            entry.vblocks.set(entry.vblocks.get() & 0x3FF | 4 << 10)
        });
    }),
    case("SummaryType", BaseImage::Plain, Agrees, |d| {
        // The large file filled a segment.
        let addr = d.mapped("large", 500);
        d.summary_block(addr)[4091] = 1;
    }),
    case("Summary", BaseImage::Plain, Agrees, |d| {
        let addr = d.mapped("small", 1);
        d.summary(addr, |entry| entry.ofs_in_node.set(77));
    }),
    case("Summary", BaseImage::Plain, Agrees, |d| {
        let addr = d.mapped("small", 1);
        d.summary(addr, |entry| entry.version ^= 1);
    }),
    case("Summary", BaseImage::Plain, Agrees, |d| {
        let file = d.ino("small");
        let addr = d.addr_of(file);
        d.summary(addr, |entry| entry.nid.set(77));
    }),
    case("ValidBlocks", BaseImage::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.valid_blocks -= 1)
    }),
    case("ValidNodes", BaseImage::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.valid_nodes += 1)
    }),
    case("ValidInodes", BaseImage::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.valid_inodes -= 1)
    }),
    case("FreeSegments", BaseImage::Plain, Agrees, |d| {
        d.checkpoint(|cp| cp.free_segments -= 1)
    }),
    case("Fsynced", BaseImage::Plain, NotChecked, |d| {
        let file = d.ino("small");
        chain(d, file, |block| block[84..92].fill(0xFF));
    }),
    case("FsyncedOver", BaseImage::Plain, NotChecked, |d| {
        let file = d.ino("small");
        let other = d.mapped("large", 0);
        let layout = d.layout.clone();
        chain(d, file, |block| {
            let core = crate::disk::Inode::decode(&layout, block).unwrap();
            core.set_addr(&layout, block, 2, other);
        });
    }),
];
