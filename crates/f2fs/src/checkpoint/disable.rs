//! Switching checkpoints off and on again (`checkpoint=disable`, `checkpoint=enable`).
//!
//! While they are off, the last one stays the volume's state: a power cut and an unmount both bring it back, and
//! fsync promises nothing. So no block that it has is written over, and what has become free since cannot be used.
//! How much of the volume that makes unusable from the start is bounded before: holes of segments can only be
//! filled with blocks of the same kind.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_rt::now;
use steadfs_vfs::{Cx, FsError, Result};

use super::Reason;
use crate::disk::SEGMENT_BLOCKS;
use crate::fs::F2fs;
use crate::options::Unusable;

/// How long cleaning may take to make less of the volume unusable (the kernel's, too).
const GC_BEFORE_DISABLE_MAX: Duration = Duration::from_secs(5);

impl F2fs {
    /// Whether checkpoints are switched off.
    pub(crate) fn is_cp_disabled(&self) -> bool {
        self.cp_disabled.load(Ordering::Acquire)
    }

    /// Blocks that cannot be used while checkpoints are switched off; if they are not, those that could not be.
    pub(crate) fn unusable(&self) -> u64 {
        if self.is_cp_disabled() {
            return self.space.counts().unusable;
        }
        let Some(segments) = self.segments.get() else {
            return 0;
        };
        let last = self.checkpoints.last();
        let segments_left = last
            .overprovision_segments
            .saturating_sub(last.reserved_segments);
        let (data, nodes) = segments.holes();
        data.max(nodes)
            .saturating_sub(u64::from(segments_left) * u64::from(SEGMENT_BLOCKS))
    }

    /// Cleans until no more of the volume would be unusable than is allowed, or for so long. While changes go
    /// on.
    pub(crate) fn clean_before_disable(&self, allowed: Unusable, tag: IoTag) -> Result<()> {
        let cap = allowed.blocks(self.space.counts().user_blocks);
        let begun = now();
        let mut skip = BTreeSet::new();
        while self.unusable() > cap && begun.elapsed() < GC_BEFORE_DISABLE_MAX {
            if self.clean_one(&mut skip, tag)?.is_none() {
                break;
            }
        }
        self.segments().forget_pins();
        Ok(())
    }

    /// Writes everything and the last checkpoint. The caller keeps changes away.
    ///
    /// # Errors
    /// `Again`: more than is allowed would be unusable; the device. Checkpoints go on then.
    pub(crate) fn disable_checkpoints(&self, allowed: Unusable, cx: &Cx) -> Result<()> {
        self.sync_volume_unmerged(cx)?;
        let cap = allowed.blocks(self.space.counts().user_blocks);
        let unusable = self.unusable();
        if unusable > cap {
            tracing::warn!(
                unusable,
                cap,
                "checkpoint=disable: too many blocks would be unusable"
            );
            return Err(FsError::Again(
                "without checkpoints more of the volume would be unusable than checkpoint=disable allows",
            ));
        }
        self.daemon.flush(self);
        self.checkpoint(Reason::Disable, cx.tag)?;
        self.space.add_unusable(unusable);
        tracing::info!(unusable, "checkpoints are switched off");
        Ok(())
    }

    /// Makes everything durable that was done meanwhile. The caller keeps changes away.
    ///
    /// # Errors
    /// Something cannot be written; checkpoints stay off.
    pub(crate) fn enable_checkpoints(&self, cx: &Cx) -> Result<()> {
        self.sync_volume_unmerged(cx)?;
        self.checkpoint(Reason::Enable, cx.tag)
    }
}
