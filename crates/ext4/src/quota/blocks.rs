//! The blocks of a quota file on the volume: blocks of 1 KiB in mapped blocks of its inode, which are metadata.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::{DevBlock, FileBlock, IoTag};
use steadfs_cache::MetaBuf;
use steadfs_vfs::{FsError, Result};

use super::QuotaFile;
use crate::disk::quota::{BLOCK_SIZE, Block, Blocks, Info, tree};
use crate::disk::{self, Geometry};
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::txn::Handle;

/// The file's blocks. Changed ones are kept here until all that is needed was read: a read that fails changes nothing.
pub(super) struct FileBlocks<'a> {
    fs: &'a Ext4,
    file: &'a QuotaFile,
    /// Each with its place: the block of the volume, and the offset there.
    changed: BTreeMap<u32, (Arc<MetaBuf>, usize, Block)>,
}

impl<'a> FileBlocks<'a> {
    pub(super) fn new(fs: &'a Ext4, file: &'a QuotaFile) -> Self {
        let changed = BTreeMap::new();
        Self { fs, file, changed }
    }

    /// Changes the file's first block.
    pub(super) fn write_info(&mut self, info: &Info) -> Result<()> {
        self.write(0, &info.to_block(self.file.kind))
    }

    /// Puts the changed blocks into a transaction.
    pub(super) fn store(self, handle: &mut Handle<'_>) -> Result<()> {
        for (buf, at, block) in self.changed.into_values() {
            handle.write(&buf)?[at..at + BLOCK_SIZE].copy_from_slice(&block);
        }
        Ok(())
    }
}

impl Blocks for FileBlocks<'_> {
    type Error = FsError;

    fn read(&mut self, n: u32) -> Result<Block> {
        if let Some((_, _, block)) = self.changed.get(&n) {
            return Ok(*block);
        }
        let (buf, at) = self.file.block(self.fs, n)?;
        let data = buf.data();
        let block = data[at..].first_chunk();
        Ok(*block.expect("within the block"))
    }

    fn write(&mut self, n: u32, block: &Block) -> Result<()> {
        let (buf, at) = self.file.block(self.fs, n)?;
        self.changed.insert(n, (buf, at, *block));
        Ok(())
    }
}

impl QuotaFile {
    /// The block of the volume that holds block `n` of the file, and its offset there.
    fn block(&self, fs: &Ext4, n: u32) -> Result<(Arc<MetaBuf>, usize)> {
        let per = per_block(fs.geo());
        let place = self.layout.lock().blocks.get((n / per) as usize).copied();
        let place = place.ok_or_else(|| self.corruption("ends before its last block"))?;
        let buf = fs.block(place, IoTag::default())?;
        Ok((buf, (n % per) as usize * BLOCK_SIZE))
    }

    /// The block of the volume that holds an entry, and the entry's offset there.
    pub(super) fn place_in_block(
        &self,
        fs: &Ext4,
        place: tree::Place,
    ) -> Result<(Arc<MetaBuf>, usize)> {
        let (buf, at) = self.block(fs, place.block)?;
        Ok((buf, at + place.at))
    }

    /// What the file's first block says.
    pub(super) fn read_info(&self, fs: &Ext4) -> Result<Info> {
        let head = FileBlocks::new(fs, self).read(0)?;
        let info = Info::of(self.kind, &head).map_err(|what| self.corruption(what))?;
        match info.blocks > self.bound(fs).blocks {
            true => Err(self.corruption("ends before its last block").into()),
            false => Ok(info),
        }
    }

    /// The info with the number of all blocks that the file has room for: what is beside an insertion may refer to blocks
    /// that are not in the info yet.
    pub(super) fn bound(&self, fs: &Ext4) -> Info {
        let layout = self.layout.lock();
        let room = layout.blocks.len() as u64 * u64::from(per_block(fs.geo()));
        let mut info = layout.info;
        info.blocks = u32::try_from(room).unwrap_or(u32::MAX);
        info
    }
}

/// The largest quota file that is used: about three million owners. Where its blocks are is in memory.
const BYTES_MAX: u64 = 256 << 20;

/// Room for the blocks by which a new entry makes the file longer.
pub(super) struct Growth {
    /// The most blocks of the volume that this takes.
    blocks: u32,
}

impl Growth {
    pub(super) fn of(geo: &Geometry) -> Self {
        // What is left of the last block may be too little.
        let blocks = tree::GROWTH_MAX.div_ceil(per_block(geo));
        Self { blocks }
    }

    /// Credits for it: each block with its mapping, and the inode.
    pub(super) fn credits(&self, fs: &Ext4, inode: &Inode) -> u32 {
        self.blocks * (fs.map_credits(&inode.core.read(), 1) + 1) + 1
    }

    /// Maps blocks behind the file's last until a new entry has room. The caller holds the inode's fields, and its slot in
    /// the table is pinned.
    pub(super) fn make_room(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        file: &QuotaFile,
        core: &mut disk::Inode,
    ) -> Result<()> {
        loop {
            let used = file.layout.lock().info.blocks;
            let wanted = used
                .checked_add(tree::GROWTH_MAX)
                .ok_or_else(|| file.corruption("has no more numbers for blocks"))?;
            if wanted <= file.bound(fs).blocks {
                return Ok(());
            }
            let (_, buf) = fs.append_block(handle, &file.inode, core)?;
            // All of it is in the transaction, zeros too.
            drop(handle.write(&buf)?);
            fs.store_inode(handle, &file.inode, core)?;
            file.layout.lock().blocks.push(buf.block());
            // The next one may find no space; a longer file is as good as before.
            handle.consistent();
        }
    }
}

/// Blocks of a quota file in a block of the volume.
fn per_block(geo: &Geometry) -> u32 {
    (geo.block_size.bytes() / BLOCK_SIZE) as u32
}

/// The blocks of the volume that the file has, all of which are mapped.
pub(super) fn map_all(fs: &Ext4, inode: &Inode) -> Result<Vec<DevBlock>> {
    let core = inode.core.read();
    if core.size > BYTES_MAX {
        let what = format!(
            "a quota file has {} bytes, of {BYTES_MAX} at most",
            core.size
        );
        return Err(steadfs_base::Corruption::new(what)
            .in_inode(inode.ino())
            .into());
    }
    let mut blocks = Vec::new();
    for n in 0..fs.geo().block_size.blocks_for(core.size) {
        let at = fs.map_block(&core, inode.ino(), FileBlock(n), IoTag::default())?;
        let at = at.ok_or_else(|| {
            let what = steadfs_base::Corruption::new("a quota file has a hole");
            FsError::from(what.in_inode(inode.ino()))
        })?;
        blocks.push(at);
    }
    Ok(blocks)
}
