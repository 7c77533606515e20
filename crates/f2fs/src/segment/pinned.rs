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
    pub fn claim_section(&self) -> Result<Run> {
        let mut inner = self.inner.lock();
        let logs = &mut inner.logs;
        let per_section = logs.table.per_section();
        let kept = logs.policy.kept_from_users(logs.demand, per_section);
        let free = logs.table.free_sections();
        if free.count() <= kept {
            return Err(FsError::NoSpace);
        }
        let section = free.next_around(0).ok_or(FsError::NoSpace)?;
        for at in logs.table.segments_of(section) {
            logs.table.claim(at, 0..SEGMENT_BLOCKS);
        }
        let start = self.layout.block_in(SegNo(section * per_section), 0);
        let len = per_section * SEGMENT_BLOCKS;
        Ok(Run { start, len })
    }

    /// How many sections [`Segments::claim_section`] has for users.
    pub fn sections_for_users(&self) -> u32 {
        let inner = self.inner.lock();
        let table = &inner.logs.table;
        let policy = &inner.logs.policy;
        let kept = policy.kept_from_users(inner.logs.demand, table.per_section());
        table.free_sections().count().saturating_sub(kept)
    }

    /// A claimed block of such a section has been written and is now referred to by `owner`.
    ///
    /// # Errors
    /// The block is none of a claimed section's.
    pub fn name_pinned(&self, addr: BlockAddr, owner: Owner) -> Result<(), DiskError> {
        self.adopt(addr, owner, LogType::ColdData)
    }
}
