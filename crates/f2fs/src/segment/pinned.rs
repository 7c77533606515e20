//! Whole sections for pinned files.

use steadfs_vfs::{FsError, Result};

use super::{Owner, Run, Segments};
use crate::disk::{BlockAddr, DiskError, LogType, SEGMENT_BLOCKS, SegNo};

impl Segments {
    /// Claims a free section for a pinned file, who [names](Self::name_pinned) its blocks once they are written, or
    /// releases them.
    ///
    /// # Errors
    /// `NoSpace`: none is free beside those that are kept from users.
    pub fn allocate_section(&self) -> Result<Run> {
        let mut inner = self.inner.lock();
        let manager = &mut inner.manager;
        let per_section = manager.sit.per_section();
        let kept = manager.policy.kept_from_users(manager.demand, per_section);
        let free = manager.sit.free_sections();
        if free.count() <= kept {
            return Err(FsError::NoSpace);
        }
        let section = free.next_around(0).ok_or(FsError::NoSpace)?;
        for at in manager.sit.segments_of(section) {
            manager.sit.allocate(at, 0..SEGMENT_BLOCKS);
        }
        let start = self.layout.block_in(SegNo(section * per_section), 0);
        let len = per_section * SEGMENT_BLOCKS;
        Ok(Run { start, len })
    }

    /// How many sections [`Segments::allocate_section`] has for users.
    pub fn sections_for_users(&self) -> u32 {
        let inner = self.inner.lock();
        let sit = &inner.manager.sit;
        let policy = &inner.manager.policy;
        let kept = policy.kept_from_users(inner.manager.demand, sit.per_section());
        sit.free_sections().count().saturating_sub(kept)
    }

    /// A claimed block of such a section has been written and is now referred to by `owner`.
    ///
    /// # Errors
    /// The block is none of a claimed section's.
    pub fn set_valid_pinned(&self, addr: BlockAddr, owner: Owner) -> Result<(), DiskError> {
        self.recover_block(addr, owner, LogType::ColdData)
    }
}
