//! Orphans: inodes that a crash must not forget. Unlinked but still open, or being truncated in several
//! transactions; the next mount finishes them.
//!
//! Two forms on disk: a list through the inodes' `i_dtime`, with its head in the superblock; or, with
//! the `orphan_file` feature, slots in the blocks of a file, which spares the superblock and the
//! neighbours in the list.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_base::{FileBlock, IoTag};
use steadfs_cache::MetaBuf;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FileKind, FsError, Result};

use crate::disk::features::Compat;
use crate::disk::{Ino, orphan_file};
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::txn::Handle;
use crate::verified::ORPHANS;

/// Blocks that adding or removing an orphan changes at worst: superblock, the inode and its
/// neighbour in the list; or a block of the orphan file.
pub const CREDITS: u32 = 3;

/// The orphans of a volume.
pub struct Orphans {
    state: Mutex<State>,
    cleaning: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The list's head.
    head: Option<Ino>,
    places: BTreeMap<Ino, Place>,
    /// Free slots of the orphan file: block and slot. Empty without one, or when it is full.
    free: Vec<(u32, u32)>,
    /// The orphan file's blocks.
    blocks: Vec<Arc<MetaBuf>>,
}

#[derive(Clone, Copy)]
enum Place {
    /// In the list, between these.
    List {
        newer: Option<Ino>,
        older: Option<Ino>,
    },
    /// In the orphan file.
    Slot { block: u32, slot: u32 },
}

impl Orphans {
    /// None yet.
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Rank::Orphan, State::default()),
            cleaning: AtomicBool::new(false),
        }
    }

    /// Whether the orphans of the last mount are being finished: their inodes have no links and yet
    /// are in use.
    pub fn cleaning(&self) -> bool {
        self.cleaning.load(Ordering::Acquire)
    }

    /// Puts an inode on record. [`CREDITS`]. Does nothing if it is.
    pub fn add(&self, fs: &Ext4, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let ino = inode.ino();
        let mut state = self.state.lock();
        if state.places.contains_key(&ino) {
            return Ok(());
        }
        inode.set_orphan(true);
        if let Some((block, slot)) = state.free.pop() {
            set_slot(fs, handle, &state.blocks[block as usize], slot, Some(ino))?;
            state.places.insert(ino, Place::Slot { block, slot });
            return Ok(());
        }
        let head = state.head;
        {
            let mut core = inode.core.write();
            core.dtime = head.map_or(0, |h| h.0);
            fs.store_inode(handle, inode, &core)?;
        }
        fs.update_super(handle, |sb| sb.set_last_orphan(Some(ino)))?;
        state.link(ino, None, head);
        state.head = Some(ino);
        Ok(())
    }

    /// Takes an inode off the record. [`CREDITS`]. Does nothing if it is not on it.
    pub fn remove(&self, fs: &Ext4, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let ino = inode.ino();
        let mut state = self.state.lock();
        let Some(place) = state.places.remove(&ino) else {
            return Ok(());
        };
        inode.set_orphan(false);
        let (newer, older) = match place {
            Place::Slot { block, slot } => {
                set_slot(fs, handle, &state.blocks[block as usize], slot, None)?;
                state.free.push((block, slot));
                return Ok(());
            }
            Place::List { newer, older } => (newer, older),
        };
        state.relink(newer, older);
        match newer {
            None => {
                state.head = older;
                fs.update_super(handle, |sb| sb.set_last_orphan(older))?;
            }
            Some(newer) => {
                let before = fs.inodes.get(newer).ok_or_else(|| {
                    FsError::Corrupt(format!("inode {newer}: orphan not in memory"))
                })?;
                let mut core = before.core.write();
                core.dtime = older.map_or(0, |o| o.0);
                fs.store_inode(handle, &before, &core)?;
            }
        }
        let mut core = inode.core.write();
        core.dtime = 0;
        fs.store_inode(handle, inode, &core)
    }

    /// Reads the record of the last mount and finishes what is on it: inodes without links are freed,
    /// others truncated to their size. Returns how many there were.
    pub fn clean_up(&self, fs: &Ext4) -> Result<u64> {
        let mut found = self.load_file(fs)?;
        found.extend(self.load_list(fs)?);
        self.cleaning.store(true, Ordering::Release);
        let mut result = Ok(());
        for &ino in &found {
            result = result.and(self.finish(fs, ino));
        }
        self.cleaning.store(false, Ordering::Release);
        result?;
        Ok(found.len() as u64)
    }

    fn finish(&self, fs: &Ext4, ino: Ino) -> Result<()> {
        let inode = fs.inode(ino, IoTag::default())?;
        let links = inode.core.read().links;
        if links == 0 {
            return fs.evict(&inode);
        }
        if inode.kind() == FileKind::Regular {
            let _alone = inode.lock.write();
            fs.finish_truncation(&inode)?;
        }
        let mut handle = fs.txns().begin(CREDITS)?;
        self.remove(fs, &mut handle, &inode)
    }

    /// Follows the list from the superblock; the newest comes first.
    fn load_list(&self, fs: &Ext4) -> Result<Vec<Ino>> {
        let mut next = fs.sb.lock().last_orphan();
        self.cleaning.store(true, Ordering::Release);
        let mut state = self.state.lock();
        state.head = next;
        let mut found: Vec<Ino> = Vec::new();
        while let Some(ino) = next {
            if !fs.geo().is_nameable(ino) || state.places.contains_key(&ino) {
                return Err(FsError::Corrupt(format!("orphan list: inode {ino}")));
            }
            let inode = fs.inode(ino, IoTag::default())?;
            inode.set_orphan(true);
            next = Ino(inode.core.read().dtime).some();
            state.link(ino, found.last().copied(), next);
            found.push(ino);
        }
        Ok(found)
    }

    /// Reads the orphan file, if the volume has one.
    fn load_file(&self, fs: &Ext4) -> Result<Vec<Ino>> {
        let geo = fs.geo();
        let file = fs.sb.lock().orphan_file();
        let Some(file) = file.filter(|_| geo.features.compat.contains(Compat::ORPHAN_FILE)) else {
            return Ok(Vec::new());
        };
        let inode = fs.inode(file, IoTag::default())?;
        let core = inode.core.read().clone();
        let mut state = self.state.lock();
        let mut found = Vec::new();
        for n in 0..geo.block_size.blocks_for(core.size) {
            let block = fs
                .map_block(&core, file, FileBlock(n), IoTag::default())?
                .ok_or_else(|| FsError::Corrupt(format!("orphan file: block {n} is a hole")))?;
            let buf = fs.block(block, IoTag::default())?;
            let seed = core.seed(geo, file);
            buf.verify_once(ORPHANS, |b| orphan_file::verify(geo, seed, block, b))?;
            let data = buf.data();
            let index = state.blocks.len() as u32;
            for slot in (0..orphan_file::slots_per_block(geo)).rev() {
                match orphan_file::slot(&data, slot) {
                    None => state.free.push((index, slot)),
                    Some(ino) => {
                        let twice = state.places.insert(ino, Place::Slot { block: index, slot });
                        if twice.is_some() || !geo.is_nameable(ino) {
                            return Err(FsError::Corrupt(format!("orphan file: inode {ino}")));
                        }
                        found.push(ino);
                    }
                }
            }
            state.blocks.push(buf);
        }
        Ok(found)
    }
}

impl Default for Orphans {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// Puts an inode between two neighbours.
    fn link(&mut self, ino: Ino, newer: Option<Ino>, older: Option<Ino>) {
        self.places.insert(ino, Place::List { newer, older });
        if let Some(Place::List { newer: n, .. }) = older.and_then(|o| self.places.get_mut(&o)) {
            *n = Some(ino);
        }
    }

    /// Makes two inodes neighbours.
    fn relink(&mut self, newer: Option<Ino>, older: Option<Ino>) {
        if let Some(Place::List { older: o, .. }) = newer.and_then(|n| self.places.get_mut(&n)) {
            *o = older;
        }
        if let Some(Place::List { newer: n, .. }) = older.and_then(|o| self.places.get_mut(&o)) {
            *n = newer;
        }
    }
}

/// Fills or frees a slot of the orphan file.
fn set_slot(
    fs: &Ext4,
    handle: &mut Handle<'_>,
    buf: &Arc<MetaBuf>,
    slot: u32,
    ino: Option<Ino>,
) -> Result<()> {
    let geo = fs.geo();
    let file = fs.sb.lock().orphan_file();
    let file = file.ok_or_else(|| FsError::Corrupt("orphan file is gone".to_owned()))?;
    let seed = {
        let inode = fs.inode(file, IoTag::default())?;
        let core = inode.core.read();
        core.seed(geo, file)
    };
    let mut bytes = handle.write(buf)?;
    orphan_file::set_slot(&mut bytes, slot, ino);
    orphan_file::seal(geo, seed, buf.block(), &mut bytes);
    Ok(())
}
