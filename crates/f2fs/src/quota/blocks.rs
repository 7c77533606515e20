//! The blocks of a quota file on the volume: four blocks of 1 KiB in each block of a file that checkpoints write.

use std::collections::BTreeMap;

use steadfs_base::{FileBlock, IoTag};
use steadfs_vfs::{FsError, Result};

use super::file::QuotaFile;
use crate::cp_lock::Change;
use crate::data::BLOCK;
use crate::disk::quota::{BLOCK_SIZE, Block, Blocks, Entry, Info, tree};
use crate::disk::{self, BLOCK_SIZE as FILE_BLOCK_SIZE, BlockAddr};
use crate::fs::F2fs;
use crate::node::SlotLookup;
use crate::space::Need;

/// Blocks of a quota file in a block of the volume.
const PER_BLOCK: u32 = (FILE_BLOCK_SIZE / BLOCK_SIZE) as u32;

/// The file's blocks. Changed ones are kept here until they are put into the file.
pub(super) struct FileBlocks<'a> {
    fs: &'a F2fs,
    file: &'a QuotaFile,
    core: &'a disk::Inode,
    tag: IoTag,
    changed: BTreeMap<u32, Block>,
}

impl Blocks for FileBlocks<'_> {
    type Error = FsError;

    fn read(&mut self, n: u32) -> Result<Block> {
        if let Some(block) = self.changed.get(&n) {
            return Ok(*block);
        }
        let short = || self.file.corruption("ends before its last block");
        let inode = &self.file.inode;
        let (n, at) = (u64::from(n / PER_BLOCK), n % PER_BLOCK);
        let part = |block: &[u8]| {
            let (parts, _) = block.as_chunks::<BLOCK_SIZE>();
            parts[at as usize]
        };
        if n >= self.core.size.div_ceil(BLOCK) {
            return Err(short());
        }
        if let Some(block) = inode.pages.get(FileBlock(n)) {
            return Ok(part(&block));
        }
        let SlotLookup::Slot(slot) = self.fs.find_slot(inode, self.core, n, self.tag)? else {
            return Err(short());
        };
        let addr = self.fs.addr_in(self.core, &slot)?;
        if !addr.is_block() {
            return Err(short());
        }
        Ok(part(&self.fs.main_block(addr, self.tag)?.data()))
    }

    fn write(&mut self, n: u32, block: &Block) -> Result<()> {
        self.changed.insert(n, *block);
        Ok(())
    }
}

impl QuotaFile {
    /// The file's blocks. The caller holds the fields of its inode.
    pub(super) fn blocks<'a>(
        &'a self,
        fs: &'a F2fs,
        core: &'a disk::Inode,
        tag: IoTag,
    ) -> FileBlocks<'a> {
        FileBlocks {
            fs,
            file: self,
            core,
            tag,
            changed: BTreeMap::new(),
        }
    }

    /// What the file's first block says.
    pub(super) fn read_info(&self, fs: &F2fs) -> Result<Info> {
        let core = self.inode.core.read();
        let head = self.blocks(fs, &core, IoTag::default()).read(0)?;
        let info = Info::of(self.kind, &head).map_err(|what| self.corruption(what))?;
        match u64::from(info.blocks) * BLOCK_SIZE as u64 > core.size {
            true => Err(self.corruption("ends before its last block")),
            false => Ok(info),
        }
    }

    /// Adds an entry without usage, unless there is one by now.
    pub(super) fn make_entry(&self, fs: &F2fs, owner: u32, tag: IoTag) -> Result<()> {
        let change = fs.change()?;
        let mut core = self.inode.core.write();
        if self.find(fs, &core, owner, tag)?.is_some() {
            return Ok(());
        }
        let mut info = *self.info.lock();
        let entry = Entry {
            id: owner,
            ..Entry::default()
        };
        let mut blocks = self.blocks(fs, &core, tag);
        let inserted = tree::insert(&mut blocks, &mut info, &entry);
        inserted.map_err(|error| self.error(error))?;
        blocks.write(0, &info.to_block(self.kind))?;
        let changed = blocks.into_changed();
        self.put(fs, &change, &mut core, (&info, changed), tag)?;
        *self.info.lock() = info;
        Ok(())
    }

    /// Puts changed blocks into the file, which grows for them.
    pub(super) fn put(
        &self,
        fs: &F2fs,
        change: &Change<'_>,
        core: &mut disk::Inode,
        (info, changed): (&Info, BTreeMap<u32, Block>),
        tag: IoTag,
    ) -> Result<()> {
        let inode = &self.inode;
        let size = u64::from(info.blocks) * BLOCK_SIZE as u64;
        let new = core.size.div_ceil(BLOCK)..size.div_ceil(BLOCK);
        let mut need = Need {
            blocks: new.end.saturating_sub(new.start),
            nodes: 0,
        };
        for block in new.clone() {
            // Some are counted for each of the few blocks.
            need.nodes += fs.missing_nodes(inode, core, block, tag)?.len() as u64;
        }
        for block in changed.keys().map(|n| u64::from(n / PER_BLOCK)) {
            if !new.contains(&block) {
                self.read_before(fs, core, block, tag)?;
            }
        }
        let mut reservation = fs.space.reservation(need, true)?;
        fs.mark_dirty(change, inode, tag)?;
        let put = || {
            for block in new {
                fs.make_block(change, inode, core, &mut reservation, (block, tag), |_| ())?;
            }
            for (n, part) in changed {
                let at = (n % PER_BLOCK) as usize * BLOCK_SIZE;
                let copy = |block: &mut [u8]| block[at..at + BLOCK_SIZE].copy_from_slice(&part);
                fs.edit_block(change, inode, core, (n / PER_BLOCK).into(), tag, copy)?;
            }
            if core.size < size {
                core.size = size;
                inode.set_size(size);
            }
            Ok(())
        };
        fs.abort_on_error(put())
    }

    /// Reads a block that will be edited: an error after the first change would stop the volume.
    ///
    /// # Errors
    /// The block is a hole, or cannot be read.
    fn read_before(&self, fs: &F2fs, core: &disk::Inode, block: u64, tag: IoTag) -> Result<()> {
        let addr = match fs.find_slot(&self.inode, core, block, tag)? {
            SlotLookup::Slot(slot) => fs.addr_in(core, &slot)?,
            SlotLookup::Missing(_) => BlockAddr::NULL,
        };
        if addr == BlockAddr::NULL {
            return Err(self.corruption("has a hole"));
        }
        if addr.is_block() {
            fs.main_block(addr, tag)?;
        }
        Ok(())
    }
}

impl FileBlocks<'_> {
    /// The blocks that were changed.
    pub(super) fn into_changed(self) -> BTreeMap<u32, Block> {
        self.changed
    }
}

/// The file block that has an entry, and the entry's offset there.
pub(super) fn place_of(place: tree::Place) -> (u64, usize) {
    let at = (place.block % PER_BLOCK) as usize * BLOCK_SIZE + place.at;
    (u64::from(place.block / PER_BLOCK), at)
}
