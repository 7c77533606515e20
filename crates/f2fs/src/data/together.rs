//! Write-back of many files at once: what goes to new places lies side by side, so their writes merge.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::Plug;
use steadfs_cache::{DirtyEpoch, WritebackReason};
use steadfs_vfs::{FileKind, FsError, Result};

use super::BLOCK;
use super::placement::{self, Occasion};
use super::writeout::urgency;
use crate::disk::{BlockAddr, Nid};
use crate::fs::F2fs;
use crate::inode::Inode;

/// Files whose data is in flight together.
const FILES: usize = 256;
/// Dirty bytes of a file up to which it goes with others, and of all that go together.
const SMALL: u64 = 1 << 20;
const TOGETHER: u64 = 4 << 20;

impl F2fs {
    /// Writes the dirty data of many files and waits, as [`F2fs::write_out`] does for one. The first
    /// error of all; the others are written all the same. The caller holds no lock.
    pub(crate) fn write_out_files(
        &self,
        files: &[u64],
        why: WritebackReason,
        tag: IoTag,
    ) -> Result<()> {
        let epoch = self.writeback.end_epoch();
        let mut result = Ok(());
        let mut group: Vec<Arc<Inode>> = Vec::new();
        let mut bytes = 0;
        for &ino in files {
            let nid = u32::try_from(ino).ok().map(Nid);
            let Some(inode) = nid.and_then(|nid| self.inodes.find(nid).ok()) else {
                continue;
            };
            if inode.kind() != FileKind::Regular {
                continue;
            }
            let dirty = inode.pages.dirty_bytes();
            if dirty > SMALL {
                result = result.and(self.write_out_of(&inode, epoch, why, tag));
                continue;
            }
            if group.len() == FILES || bytes + dirty > TOGETHER {
                result = result.and(self.write_group(std::mem::take(&mut group), epoch, why, tag));
                bytes = 0;
            }
            bytes += dirty;
            group.push(inode);
        }
        result.and(self.write_group(group, epoch, why, tag))
    }

    fn write_group(
        &self,
        mut group: Vec<Arc<Inode>>,
        epoch: DirtyEpoch,
        why: WritebackReason,
        tag: IoTag,
    ) -> Result<()> {
        if group.is_empty() {
            return Ok(());
        }
        if why == WritebackReason::Early {
            // At a new place the fsync would have a node to write besides.
            let volume = self.placement_facts();
            group.retain(|inode| {
                placement::ipu(&volume, &self.file_facts(inode), Occasion::Background)
            });
        }
        // The order of their locks.
        group.sort_unstable_by_key(|inode| inode.nid());
        self.check_writable()?;
        self.balance(tag)?;
        let occasion = match why {
            WritebackReason::Sync => Occasion::Sync,
            WritebackReason::Background | WritebackReason::Throttle | WritebackReason::Early => {
                Occasion::Background
            }
        };
        // What is little and not late goes together from this task, which waits for it anyway.
        let plug = (why == WritebackReason::Early).then(|| self.queue.plug());
        let first = self.write_small(plug.as_ref(), &group, occasion, tag);
        let mut result = Ok(());
        // What somebody else was writing, what had grown, what was in flight when this began, what
        // met full logs.
        for inode in &group {
            let left = match why {
                WritebackReason::Sync => true,
                WritebackReason::Background | WritebackReason::Throttle => {
                    inode.pages.dirty_bytes() > 0
                }
                // The fsync that is expected does that.
                WritebackReason::Early => false,
            };
            if left && !inode.pages.is_empty() {
                result = result.and(self.write_out_of(inode, epoch, why, tag));
            }
        }
        match first {
            // Those were tried again.
            Err(FsError::NoSpace) => result,
            first => first.and(result),
        }
    }

    /// Writes what can be written of a group without waiting for anybody else's write-back.
    pub(super) fn write_small(
        &self,
        plug: Option<&Plug<'_>>,
        group: &[Arc<Inode>],
        occasion: Occasion,
        tag: IoTag,
    ) -> Result<()> {
        let tag = tag.with_urgency(urgency(occasion));
        let limit = (SMALL / BLOCK) as usize;
        let volume = self.placement_facts();
        let mut result = Ok(());
        let mut locks = Vec::with_capacity(group.len());
        let mut flights = Vec::with_capacity(group.len());
        let mut places = Places::default();
        for inode in group {
            let Some(lock) = inode.try_lock_flush() else {
                continue;
            };
            let file = self.file_facts(inode);
            let all = || (0..u64::MAX, inode.size());
            let taken = inode.pages.collect_with(limit, all);
            if taken.0.is_empty() {
                continue;
            }
            let mut flight = self.place_taken(inode, (&volume, &file), taken, occasion, tag);
            if !flight.ipu().all(|(at, len)| places.add(at, len)) {
                // A damaged volume: two files have one block. Their writes must not meet.
                result = result.and(self.finish_flights(std::mem::take(&mut flights)));
                places = Places::default();
                flight.ipu().for_each(|(at, len)| {
                    places.add(at, len);
                });
            }
            self.launch(plug, &mut flight, tag);
            locks.push(lock);
            flights.push(flight);
        }
        result.and(self.finish_flights(flights))
    }
}

/// Blocks of the device that are being written over, as ends by starts.
#[derive(Default)]
struct Places(BTreeMap<u32, u32>);

impl Places {
    /// Adds a run; false if some of it is there already.
    fn add(&mut self, at: BlockAddr, len: u32) -> bool {
        let end = at.0.saturating_add(len);
        let before = self.0.range(..end).next_back();
        let free = before.is_none_or(|(_, &last)| last <= at.0);
        if free {
            self.0.insert(at.0, end);
        }
        free
    }
}
