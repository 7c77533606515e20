//! Processing orphans without references: at the mount after a crash, and when the volume is closed.
//!
//! **Rule.** The record may be corrupt: each entry is validated first, and an invalid one is reported as corruption and
//! dropped. No content of the record prevents a mount.

use std::sync::atomic::Ordering;

use steadfs_base::{Corruption, FileBlock, IoTag};
use steadfs_vfs::{FileKind, FsError, Result};

use super::{CREDITS, OrphanFile, OrphanPlace, Orphans, Slot};
use crate::disk::superblock::STATE_ERROR;
use crate::disk::{Ino, orphan_file};
use crate::fs::Ext4;

/// Largest valid orphan file in bytes; `mke2fs` makes at most 512 blocks.
const ORPHAN_FILE_BYTES_MAX: u64 = 512 << 16;

impl Orphans {
    /// Processes the orphans of the last mount: frees inodes without links, truncates others to their size. Returns
    /// their number. Those that a volume was handed over with, in use, stay.
    ///
    /// A volume with recorded errors keeps its orphans for e2fsck, as in the kernel: their blocks may belong to other
    /// files, too.
    pub fn clean_up(&self, fs: &Ext4) -> Result<u64> {
        let has_errors = fs.sb.lock().state() & STATE_ERROR != 0;
        if let Err(error) = self.open_file(fs) {
            self.drop_bad(fs, error)?;
        }
        if has_errors {
            self.kept.store(true, Ordering::Release);
            let head = fs.sb.lock().last_orphan();
            self.state.lock().head = head;
            return Ok(0);
        }
        self.cleaning.store(true, Ordering::Release);
        let result = self.clean_all(fs);
        self.cleaning.store(false, Ordering::Release);
        result
    }

    fn clean_all(&self, fs: &Ext4) -> Result<u64> {
        let (mut found, list_is_bad) = self.load_list(fs);
        let (in_file, file_is_bad) = self.load_slots(fs);
        found.extend(in_file);
        let mut done = 0;
        for &ino in &found {
            match self.finish(fs, ino) {
                Ok(processed) => done += u64::from(processed),
                Err(error) => self.drop_bad(fs, error)?,
            }
        }
        if let Some(error) = list_is_bad {
            // The rest of the list is invalid.
            fs.txns().run(CREDITS, IoTag::default(), |handle| {
                fs.update_super(handle, |sb| sb.set_last_orphan(None))
            })?;
            self.state.lock().head = None;
            self.drop_bad(fs, error)?;
        }
        file_is_bad.map_or(Ok(()), |error| self.drop_bad(fs, error))?;
        Ok(done)
    }

    /// Reads the record without processing it, for a replay that changes orphans before the mount. Invalid entries stay
    /// for [`Orphans::clean_up`], which reports them.
    pub(crate) fn load(&self, fs: &Ext4) {
        // Inodes without links are in use.
        self.cleaning.store(true, Ordering::Release);
        let opened = self.open_file(fs).err();
        let (_, in_list) = self.load_list(fs);
        let (_, in_file) = self.load_slots(fs);
        for error in [opened, in_list, in_file].into_iter().flatten() {
            tracing::warn!(%error, "an orphan is not valid");
        }
    }

    /// Records corruption, and the mount continues, read-only if `errors=` requires that; any other error ends it.
    fn drop_bad(&self, fs: &Ext4, error: FsError) -> Result<()> {
        match fs.report_corruption(Err::<(), _>(error)) {
            Err(FsError::Corrupt(corruption)) => {
                tracing::warn!(%corruption, "an orphan cannot be recovered");
                Ok(())
            }
            Err(_) if fs.stop_state.is_read_only() => Ok(()),
            other => other,
        }
    }

    /// Processes one orphan; `false` if it is in use.
    fn finish(&self, fs: &Ext4, ino: Ino) -> Result<bool> {
        let inode = fs.inode(ino, IoTag::default())?;
        let links = inode.core.read().links;
        if links == 0 && inode.is_looked_up() {
            inode.marks.adopt_orphan();
            fs.freeing.expect_release();
            return Ok(false);
        }
        if links == 0 {
            return fs.evict(&inode).map(|()| true);
        }
        if inode.kind() == FileKind::Regular {
            let _alone = inode.lock.write();
            fs.finish_truncation(&inode)?;
        }
        fs.txns().run(CREDITS, IoTag::default(), |handle| {
            self.remove(fs, handle, &inode)
        })?;
        Ok(true)
    }

    /// Refuses an inode that cannot be an orphan.
    fn check(&self, fs: &Ext4, ino: Ino) -> Result<()> {
        let bad = |what| Err(Corruption::new(what).in_inode(ino).into());
        if !fs.is_nameable(ino) || ino == Ino::ROOT {
            return bad("cannot be an orphan");
        }
        if !fs.alloc.is_inode_used(fs, ino)? {
            return bad("an orphan is free");
        }
        Ok(())
    }

    /// Follows the list from the superblock, newest first, up to the first invalid entry, which is the error.
    fn load_list(&self, fs: &Ext4) -> (Vec<Ino>, Option<FsError>) {
        let mut next = fs.sb.lock().last_orphan();
        self.state.lock().head = next;
        let mut found: Vec<Ino> = Vec::new();
        while let Some(ino) = next {
            match self.load_one(fs, ino, found.last().copied()) {
                Ok(older) => next = older,
                Err(error) => return (found, Some(error)),
            }
            found.push(ino);
        }
        (found, None)
    }

    fn load_one(&self, fs: &Ext4, ino: Ino, newer: Option<Ino>) -> Result<Option<Ino>> {
        self.check(fs, ino)?;
        let inode = fs.inode(ino, IoTag::default())?;
        let older = Ino(inode.core.read().dtime).some();
        let mut state = self.state.lock();
        if state.places.contains_key(&ino) {
            return Err(Corruption::new("is twice in the orphan list")
                .in_inode(ino)
                .into());
        }
        inode.marks.set_orphan(true);
        state.link(ino, newer, older);
        Ok(older)
    }

    /// Finds the orphan file's blocks, if the volume has one.
    fn open_file(&self, fs: &Ext4) -> Result<()> {
        let Some(ino) = fs.sb.lock().orphan_file() else {
            return Ok(());
        };
        let geo = fs.geo();
        let bad =
            |what| FsError::from(Corruption::new(format!("orphan file {what}")).in_inode(ino));
        let inode = fs.inode(ino, IoTag::default())?;
        let core = inode.core.read();
        if core.size > ORPHAN_FILE_BYTES_MAX {
            return Err(bad("is too large"));
        }
        let mut blocks = Vec::new();
        for n in 0..geo.block_size.blocks_for(core.size) {
            let at = fs.map_block(&core, ino, FileBlock(n), IoTag::default())?;
            blocks.push(at.ok_or_else(|| bad("has a hole"))?);
        }
        let file = OrphanFile {
            seed: core.seed(geo, ino),
            blocks,
            free: Vec::new(),
            next: Slot { block: 0, slot: 0 },
            closed: false,
        };
        drop(core);
        self.state.lock().file = Some(file);
        Ok(())
    }

    /// Reads the valid entries of the orphan file; the error is the first invalid one.
    fn load_slots(&self, fs: &Ext4) -> (Vec<Ino>, Option<FsError>) {
        let mut found = Vec::new();
        let blocks = self
            .state
            .lock()
            .file
            .as_ref()
            .map_or(0, |file| file.blocks.len());
        let mut first_error = None;
        for block in 0..blocks {
            if let Err(error) = self.load_block(fs, block, &mut found) {
                first_error.get_or_insert(error);
            }
        }
        if first_error.is_some() {
            // Invalid entries stay in the file, for e2fsck.
            self.kept.store(true, Ordering::Release);
            if let Some(file) = &mut self.state.lock().file {
                file.closed = true;
            }
        }
        (found, first_error)
    }

    /// Reads a block's orphans; the error is the first invalid one.
    fn load_block(&self, fs: &Ext4, block: usize, found: &mut Vec<Ino>) -> Result<()> {
        let slots: Vec<(u32, Ino)> = {
            let state = self.state.lock();
            let file = state.file.as_ref().expect("it has blocks");
            let data = file.block(fs, block)?.data();
            orphan_file::orphans(fs.geo(), &data).collect()
        };
        let mut result = Ok(());
        for (slot, ino) in slots {
            match self.load_slot(fs, ino, Slot { block, slot }) {
                Ok(()) => found.push(ino),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    fn load_slot(&self, fs: &Ext4, ino: Ino, slot: Slot) -> Result<()> {
        self.check(fs, ino)?;
        let mut state = self.state.lock();
        if state.places.contains_key(&ino) {
            return Err(Corruption::new("is twice in the orphan list")
                .in_inode(ino)
                .into());
        }
        state.places.insert(ino, OrphanPlace::Slot(slot));
        Ok(())
    }

    /// Frees all orphans when the volume is closed; no references are left.
    pub fn free_all(&self, fs: &Ext4) -> Result<()> {
        let mut result = Ok(());
        for ino in self.all() {
            let Some(inode) = fs.inodes.get(ino) else {
                continue;
            };
            if inode.core.read().links == 0 {
                inode.drop_lookups(u64::MAX);
                result = result.and(fs.evict(&inode));
            }
        }
        result
    }
}
