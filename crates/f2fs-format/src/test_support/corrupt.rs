//! A volume to corrupt: access to each of its structures, with checksums updated after each change.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use zerocopy::{FromBytes, IntoBytes};

use super::{Image, LOAD_FEATURES, Opened, assert_clean};
use crate::disk::checkpoint::CpFlags;
use crate::disk::dentry::{self, DentryLayout, RawDirEntry};
use crate::disk::inode::{self, Inline};
use crate::disk::nat::RawNatEntry;
use crate::disk::sit::RawSitEntry;
use crate::disk::summary::RawSummary;
use crate::disk::superblock::{RawSuperblock, SUPERBLOCK_SIZE};
use crate::disk::{BLOCK_SIZE, BlockAddr, Checkpoint, Inode, Layout, LogType, Nid, orphan};

/// A volume made by f2fs-tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseImage {
    /// No features; nothing inline but what fits.
    Plain,
    /// With all features that sload.f2fs supports, checksums included.
    Rich,
    /// With the project quota file.
    Quota,
}

impl BaseImage {
    /// The original volume with its checkpoint, for looking up names.
    fn opened(self) -> &'static Opened {
        static OPENED: [OnceLock<Opened>; 3] = [const { OnceLock::new() }; 3];
        OPENED[self as usize].get_or_init(|| Opened::of(self.image().to_vec()))
    }

    /// Bytes up to the last block that is not empty.
    pub fn filled(self) -> usize {
        static FILLED: [OnceLock<usize>; 3] = [const { OnceLock::new() }; 3];
        *FILLED[self as usize].get_or_init(|| {
            let mut blocks = self.image().chunks(BLOCK_SIZE);
            let empty = [0; BLOCK_SIZE];
            (blocks.rposition(|block| block != empty).unwrap() + 2) * BLOCK_SIZE
        })
    }

    /// The original volume.
    pub fn image(self) -> &'static [u8] {
        static IMAGES: [OnceLock<Vec<u8>>; 3] = [const { OnceLock::new() }; 3];
        IMAGES[self as usize].get_or_init(|| {
            let features = match self {
                Self::Plain => "lost_found",
                Self::Rich => LOAD_FEATURES,
                Self::Quota => "extra_attr,project_quota,quota",
            };
            let tree = tempfile::tempdir().unwrap();
            write_tree(tree.path());
            let image = Image::make(&["-O", features], 100);
            image.load(tree.path(), &[]);
            assert_clean(&image, &self);
            fs::read(image.path()).unwrap()
        })
    }
}

fn write_tree(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::create_dir_all(root.join("many")).unwrap();
    for i in 0..400 {
        let name = format!("many/entry number {i:03}");
        fs::write(root.join(name), if i < 3 { "inline" } else { "" }).unwrap();
    }
    fs::write(root.join("a/twin1"), "first").unwrap();
    fs::write(root.join("a/twin2"), "second").unwrap();
    fs::write(root.join("small"), vec![b's'; 30_000]).unwrap();
    // Uses the first direct node.
    fs::write(root.join("large"), vec![b'l'; 6 << 20]).unwrap();
    std::os::unix::fs::symlink("where it leads", root.join("link")).unwrap();
}

/// The volume with its changes.
pub struct CorruptVolume {
    base: BaseImage,
    pub bytes: Vec<u8>,
    pub layout: Layout,
}

impl CorruptVolume {
    pub fn new(base: BaseImage) -> Self {
        let (good, filled) = (base.image(), base.filled());
        let mut bytes = vec![0; good.len()];
        bytes[..filled].copy_from_slice(&good[..filled]);
        let layout = base.opened().layout().clone();
        Self {
            base,
            bytes,
            layout,
        }
    }

    /// The volume with its changes, and its checkpoint.
    pub fn opened(&self) -> Opened {
        // Copying empty blocks would take most of the time.
        Opened::of(self.bytes[..self.base.filled().min(self.bytes.len())].to_vec())
    }

    pub fn block(&mut self, addr: BlockAddr) -> &mut [u8] {
        let at = addr.0 as usize * BLOCK_SIZE;
        &mut self.bytes[at..at + BLOCK_SIZE]
    }

    pub fn ino(&self, path: &str) -> Nid {
        let opened = self.base.opened();
        let mut at = Nid::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let (area, layout, slot) = dir_area(opened, &opened.bytes, at, name);
            let area = &opened.bytes[area..area + layout.len];
            let found = dentry::entries(&layout, area, 0).flatten();
            let mut found = found.filter(|entry| entry.slot == slot);
            at = found.next().unwrap().ino;
        }
        at
    }

    pub fn addr_of(&self, nid: Nid) -> BlockAddr {
        self.opened().nat(nid).addr
    }

    /// Changes the bytes of a node, and updates the checksum of an inode.
    pub fn node(&mut self, nid: Nid, edit: impl FnOnce(&mut [u8])) {
        let (addr, layout) = (self.addr_of(nid), self.layout.clone());
        let block = self.block(addr);
        edit(block);
        inode::seal(&layout, block);
    }

    /// Changes an inode.
    pub fn inode(&mut self, path: &str, edit: impl FnOnce(&mut Inode, &mut [u8])) {
        let (nid, layout) = (self.ino(path), self.layout.clone());
        self.node(nid, |block| {
            let mut core = Inode::decode(&layout, block).unwrap();
            edit(&mut core, block);
            core.encode_into(&layout, block).unwrap();
        });
    }

    /// Changes the addresses in an inode.
    pub fn addrs(&mut self, path: &str, edit: impl FnOnce(&mut Vec<BlockAddr>)) {
        let layout = self.layout.clone();
        self.inode(path, |core, block| {
            let slots = 0..core.fanout(&layout).inode as u16;
            let mut list: Vec<_> = slots.map(|n| core.addr(&layout, block, n)).collect();
            edit(&mut list);
            for (slot, addr) in (0..).zip(list) {
                core.set_addr(&layout, block, slot, addr);
            }
        });
    }

    /// The address of a file block that the inode maps.
    pub fn mapped(&self, path: &str, slot: u16) -> BlockAddr {
        let (nid, opened) = (self.ino(path), self.opened());
        let block = opened.node(nid);
        let core = Inode::decode(&self.layout, block).unwrap();
        core.addr(&self.layout, block, slot)
    }

    /// Changes an entry in the NAT; the journal is empty.
    pub fn nat(&mut self, nid: Nid, edit: impl FnOnce(&mut RawNatEntry)) {
        let (block, slot) = self.layout.nat_slot(nid);
        let second = self.opened().checkpoint.nat_second(block);
        let at = self.layout.nat_block(block, second);
        let size = size_of::<RawNatEntry>();
        let bytes = &mut self.block(at)[slot * size..(slot + 1) * size];
        edit(RawNatEntry::mut_from_bytes(bytes).unwrap());
    }

    /// Changes an entry in the SIT; the journal is empty.
    pub fn sit(&mut self, addr: BlockAddr, edit: impl FnOnce(&mut RawSitEntry, usize)) {
        let (segment, offset) = self.layout.segment_of(addr).unwrap();
        let (block, slot) = self.layout.sit_slot(segment);
        let second = self.opened().checkpoint.sit_second(block);
        let at = self.layout.sit_block(block, second);
        let size = size_of::<RawSitEntry>();
        let bytes = &mut self.block(at)[slot * size..(slot + 1) * size];
        edit(RawSitEntry::mut_from_bytes(bytes).unwrap(), offset as usize);
    }

    /// The summary block of a block's segment: in the pack if the segment is a curseg.
    pub fn summary_block(&mut self, addr: BlockAddr) -> &mut [u8] {
        let (segment, _) = self.layout.segment_of(addr).unwrap();
        let cp = self.opened().checkpoint;
        let open = LogType::ALL
            .into_iter()
            .find(|log| cp.log(*log).segment == segment);
        if let Some(log) = open {
            return self.pack_summary(log);
        }
        let at = self.layout.summary_block(segment);
        self.block(at)
    }

    /// Changes the summary entry of a block.
    pub fn summary(&mut self, addr: BlockAddr, edit: impl FnOnce(&mut RawSummary)) {
        let (_, offset) = self.layout.segment_of(addr).unwrap();
        let at = offset as usize * 7;
        let bytes = &mut self.summary_block(addr)[at..at + 7];
        edit(RawSummary::mut_from_bytes(bytes).unwrap());
    }

    /// Changes the current checkpoint pack.
    pub fn checkpoint(&mut self, edit: impl FnOnce(&mut Checkpoint)) {
        let opened = self.opened();
        let mut cp = opened.checkpoint;
        edit(&mut cp);
        self.put_checkpoint(opened.pack, &mut cp);
    }

    fn put_checkpoint(&mut self, pack: u32, cp: &mut Checkpoint) {
        let start = self.layout.pack_start(pack);
        let head = cp.encode(&self.layout).unwrap();
        for (n, bytes) in (0..).zip(head.chunks(BLOCK_SIZE)) {
            self.block(start.plus(n)).copy_from_slice(bytes);
        }
        let last = start.plus(cp.pack_blocks - 1);
        self.block(last).copy_from_slice(&head[..BLOCK_SIZE]);
    }

    /// Inserts orphans into the current pack, which has none.
    pub fn orphans(&mut self, list: &[Nid]) -> BlockAddr {
        let opened = self.opened();
        let mut cp = opened.checkpoint.clone();
        let first = self.layout.pack_start(opened.pack).plus(cp.start_sum);
        let moved = opened
            .blocks(first, cp.pack_blocks - 1 - cp.start_sum)
            .to_vec();
        for (n, bytes) in (1..).zip(moved.chunks(BLOCK_SIZE)) {
            self.block(first.plus(n)).copy_from_slice(bytes);
        }
        self.block(first).copy_from_slice(&orphan::encode(list)[0]);
        cp.flags = cp.flags.union(CpFlags::ORPHANS);
        cp.start_sum += 1;
        cp.pack_blocks += 1;
        self.put_checkpoint(opened.pack, &mut cp);
        first
    }

    /// The summary block of a curseg in the pack.
    pub fn pack_summary(&mut self, log: LogType) -> &mut [u8] {
        let opened = self.opened();
        assert!(!opened.checkpoint.flags.contains(CpFlags::COMPACT_SUMMARIES));
        let at = opened.checkpoint.summary_in_pack(log).unwrap();
        let start = self.layout.pack_start(opened.pack);
        self.block(start.plus(at))
    }

    /// Changes both superblocks, and their checksums if they have one.
    pub fn superblocks(&mut self, edit: impl Fn(&mut RawSuperblock)) {
        for at in [1024, 1024 + BLOCK_SIZE] {
            let bytes = &mut self.bytes[at..at + SUPERBLOCK_SIZE];
            let raw = RawSuperblock::mut_from_bytes(bytes).unwrap();
            edit(raw);
            if raw.checksum_offset.get() != 0 {
                let sum = crate::disk::checksum::of(&raw.as_bytes()[..3068]);
                raw.crc.set(sum);
            }
        }
    }

    fn dir_area(&self, path: &str, name: &str) -> (usize, DentryLayout, usize) {
        dir_area(&self.opened(), &self.bytes, self.ino(path), name)
    }

    /// Changes a directory entry and the bytes of its name. Which blocks change depends on `edit`.
    pub fn entry(
        &mut self,
        path: &str,
        name: &str,
        edit: impl FnOnce(&mut RawDirEntry, &mut [u8]),
    ) {
        let (at, layout, slot) = self.dir_area(path, name);
        let names = layout.len - layout.slots * 8;
        let entry = at + names - layout.slots * 11 + slot * 11;
        let mut raw = RawDirEntry::read_from_bytes(&self.bytes[entry..entry + 11]).unwrap();
        let name_at = at + names + slot * 8;
        edit(&mut raw, &mut self.bytes[name_at..name_at + name.len()]);
        self.bytes[entry..entry + 11].copy_from_slice(raw.as_bytes());
        self.seal_dir(path);
    }

    /// Marks the slots of an entry from number `first` on as free.
    pub fn free_slots(&mut self, path: &str, name: &str, first: usize) {
        let (at, _, slot) = self.dir_area(path, name);
        for slot in slot + first..slot + dentry::slots_for(name.len()) {
            self.bytes[at + slot / 8] &= !(1 << (slot % 8));
        }
        self.seal_dir(path);
    }

    /// Updates the checksum after a change of inline directory entries.
    fn seal_dir(&mut self, path: &str) {
        let nid = self.ino(path);
        self.node(nid, |_| {});
    }
}

/// The area of a directory that has this name, how entries are stored in it, and the entry's slot.
fn dir_area(opened: &Opened, bytes: &[u8], dir: Nid, name: &str) -> (usize, DentryLayout, usize) {
    let (block, volume) = (opened.node(dir), opened.layout());
    let core = Inode::decode(volume, block).unwrap();
    let mut areas = Vec::new();
    if core.inline.contains(Inline::DENTRIES) {
        let range = core.inline_range(volume);
        let at = opened.nat(dir).addr.0 as usize * BLOCK_SIZE + range.start;
        areas.push((at, core.inline_dentries(volume)));
    } else {
        for slot in 0..core.fanout(volume).inode as u16 {
            let addr = core.addr(volume, block, slot);
            if addr.is_block() {
                areas.push((addr.0 as usize * BLOCK_SIZE, DentryLayout::BLOCK));
            }
        }
    }
    for (at, layout) in areas {
        let area = &bytes[at..at + layout.len];
        let found = dentry::entries(&layout, area, 0)
            .flatten()
            .find(|entry| entry.name == name.as_bytes());
        if let Some(entry) = found {
            return (at, layout, entry.slot);
        }
    }
    panic!("{name} is not in the directory {dir}");
}
