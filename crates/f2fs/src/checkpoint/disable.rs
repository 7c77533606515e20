//! Disabling and enabling checkpoints (`checkpoint=disable`, `checkpoint=enable`).
//!
//! While they are disabled the last one stays the volume's state: a power cut and an unmount both return to it, and
//! fsync makes nothing durable. So no block of that checkpoint is overwritten, and blocks invalidated since cannot be
//! used. (Only pinned files are overwritten in place, as in Linux.) The number of blocks that are unusable from the
//! start is limited: invalid blocks of a dirty segment can only be used for the same kind of blocks.

use std::collections::BTreeSet;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_rt::now;
use steadfs_vfs::{Cx, FsError, Result};

use super::Reason;
use crate::disk::SEGMENT_BLOCKS;
use crate::fs::F2fs;
use crate::options::Unusable;

/// Time limit for GC before checkpoints are disabled (the kernel's, too).
const GC_BEFORE_DISABLE_MAX: Duration = Duration::from_secs(5);

impl F2fs {
    pub(crate) fn is_cp_disabled(&self) -> bool {
        self.checkpoints.is_disabled()
    }

    /// Blocks that are unusable while checkpoints are disabled, or would be if they were.
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

    /// Cleans until no more blocks than `allowed` would be unusable, for at most 5 s. Changes continue meanwhile.
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

    /// Writes everything and the last checkpoint. The caller holds `remount_lock` exclusively.
    ///
    /// # Errors
    /// `Again`: more blocks than `allowed` would be unusable. A device error. Checkpoints stay enabled.
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
                "disabling checkpoints would make more of the volume unusable than checkpoint=disable allows",
            ));
        }
        self.daemon.flush(self);
        self.checkpoint(Reason::Disable, cx.tag)?;
        assert!(self.is_cp_disabled(), "the last checkpoint disables others");
        self.space.add_unusable(unusable);
        tracing::info!(unusable, "checkpoints are disabled");
        Ok(())
    }

    /// Makes everything durable that was done meanwhile, but for data that cannot be written: it stays with its file, whose
    /// next fsync reports the error, and no other file depends on it. The caller holds `remount_lock` exclusively.
    ///
    /// # Errors
    /// The checkpoint cannot be written; checkpoints stay disabled.
    pub(crate) fn enable_checkpoints(&self, cx: &Cx) -> Result<()> {
        assert!(self.is_cp_disabled(), "disabled checkpoints are enabled");
        if let Err(error) = self.sync_volume_unmerged(cx) {
            tracing::warn!(%error, "checkpoint=enable: some data is not written");
        }
        self.checkpoint(Reason::Enable, cx.tag)?;
        assert!(
            !self.is_cp_disabled(),
            "a durable checkpoint enables further ones"
        );
        Ok(())
    }
}
