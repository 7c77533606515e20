//! Whole sections allocated for pinned files, whose blocks never move.

use steadfs_vfs::{FsError, Result};

use super::{Owner, Run, Segments};
use crate::disk::{BlockAddr, DiskError, LogType, SEGMENT_BLOCKS, SegNo};

impl Segments {
    /// Allocates a free section for a pinned file. The caller makes its blocks [valid](Self::set_valid_pinned) once
    /// they are written, or releases them.
    ///
    /// # Errors
    /// `NoSpace`: no section is free beyond those reserved.
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
        assert!(
            manager.sit.valid_in(section) == 0,
            "a free section has no valid block"
        );
        for at in manager.sit.segments_of(section) {
            manager.sit.allocate(at, 0..SEGMENT_BLOCKS);
        }
        assert!(
            !manager.sit.free_sections().get(section),
            "a section with allocated blocks is not free"
        );
        let start = self.layout.block_in(SegNo(section * per_section), 0);
        let len = per_section * SEGMENT_BLOCKS;
        Ok(Run { start, len })
    }

    /// Number of sections that [`Segments::allocate_section`] can allocate.
    pub fn sections_for_users(&self) -> u32 {
        let inner = self.inner.lock();
        let sit = &inner.manager.sit;
        let policy = &inner.manager.policy;
        let kept = policy.kept_from_users(inner.manager.demand, sit.per_section());
        sit.free_sections().count().saturating_sub(kept)
    }

    /// A block of such a section has been written and `owner` refers to it.
    ///
    /// # Errors
    /// The block is not allocated.
    pub fn set_valid_pinned(&self, addr: BlockAddr, owner: Owner) -> Result<(), DiskError> {
        self.recover_block(addr, owner, LogType::ColdData)
    }
}
