//! The log of ATGC (`atgc`): a seventh curseg that no checkpoint stores. It fills dirty segments (SSR) that are as old
//! as the blocks that GC moves, and is closed whenever a checkpoint begins.

use super::curseg::{Curseg, SegmentManager, SegmentRun};
use super::policy::Mode;
use super::rules::ssr_types;
use super::seglists::SegmentState;
use super::{Run, Segments};
use crate::disk::{BlockAddr, LogType, SEGMENT_BLOCKS, SegNo};
use crate::segment::Owner;
use crate::victim::age::{self, AgeCandidate};

/// The log type of data that GC moves, and when it was written.
type AgedData = (LogType, u64);

impl SegmentManager {
    /// Allocates up to `want` blocks for such data; `None` if it has to go to the cold-data log.
    fn allocate_atgc(
        &mut self,
        (kind, stamp): AgedData,
        want: u32,
        now: u64,
    ) -> Option<SegmentRun> {
        assert!(!kind.is_node() && want > 0, "ATGC moves blocks of data");
        if self.atgc.is_none() {
            let (segment, ssr) = self.choose_atgc((kind, stamp), now)?;
            self.open_atgc(kind, segment, ssr);
        }
        let curseg = self.atgc.as_mut().expect("opened above");
        let (segment, offset) = (curseg.segment, curseg.next);
        let busy = self.sit.busy(segment);
        let end = (offset + want.min(SEGMENT_BLOCKS)).min(SEGMENT_BLOCKS);
        let end = busy.next_set(offset).map_or(end, |used| used.min(end));
        assert!(
            offset < end && end <= SEGMENT_BLOCKS,
            "an allocation is within its segment"
        );
        self.sit.allocate(segment, offset..end);
        let blocks = match curseg.ssr {
            true => &mut self.usage.ssr_blocks,
            false => &mut self.usage.lfs_blocks,
        };
        *blocks += u64::from(end - offset);
        match busy.next_clear(end) {
            Some(next) => curseg.next = next,
            None => self.close_atgc(),
        }
        Some(SegmentRun {
            segment,
            offset,
            len: end - offset,
        })
    }

    pub(super) fn choose_atgc(
        &mut self,
        (kind, stamp): AgedData,
        now: u64,
    ) -> Option<(SegNo, bool)> {
        let types: &[LogType] = match self.policy.mode {
            Mode::Lfs => &[],
            Mode::Adaptive => ssr_types(kind),
        };
        for &other in types {
            let dirty = self.sit.dirty(other);
            let mut candidates = Vec::new();
            let mut at = 0;
            while let Some(number) = dirty.next(at, self.sit.len()) {
                at = number + 1;
                let segment = SegNo(number);
                let valid = self.sit.busy(segment).count();
                let cleaned = self.gc.victim == Some(self.sit.section_of(segment));
                if valid < SEGMENT_BLOCKS && !cleaned {
                    candidates.push(AgeCandidate {
                        stamp: self.sit.stamp(segment),
                        number,
                        valid,
                    });
                }
            }
            self.usage.scanned += candidates.len() as u64;
            let newest = self.sit.newest();
            let found = self.retried(now, |rules| {
                let old = |c: &&AgeCandidate| newest.saturating_sub(c.stamp) >= rules.threshold;
                let old = candidates.iter().filter(old).copied().collect();
                age::nearest(old, stamp, rules)
            });
            if let Some(found) = found {
                assert!(
                    self.sit.state(SegNo(found.number)) == SegmentState::Dirty,
                    "SSR uses dirty segments"
                );
                return Some((SegNo(found.number), true));
            }
        }
        let free = self.sit.free_sections();
        let kept = self
            .policy
            .kept_from_users(self.demand, self.sit.per_section());
        if free.count() <= kept {
            return None;
        }
        let section = free.next_around(0)?;
        Some((SegNo(section * self.sit.per_section()), false))
    }

    fn open_atgc(&mut self, kind: LogType, segment: SegNo, ssr: bool) {
        let kind = match ssr {
            true => self.sit.kind(segment),
            false => kind,
        };
        assert!(self.atgc.is_none(), "there is one ATGC log");
        let (curseg, usage) = (self.opened(kind, segment, ssr), &mut self.usage);
        match ssr {
            true => usage.ssr_segments += 1,
            false => usage.lfs_segments += 1,
        }
        self.atgc = Some(curseg);
    }

    pub(super) fn close_atgc(&mut self) {
        if let Some(Curseg {
            segment, summary, ..
        }) = self.atgc.take()
        {
            let earlier = self.closed.insert(segment.0, summary);
            assert!(
                earlier.is_none(),
                "only the ATGC log has the summary of its segment"
            );
            self.sit.close(segment);
        }
    }
}

impl Segments {
    /// Allocates up to `want` consecutive blocks for data moved by age from `from` on; `None` if it goes to the
    /// cold-data log, as without `atgc`.
    pub fn allocate_atgc(&self, from: BlockAddr, want: u32) -> Option<Run> {
        let (segment, _) = self.layout.segment_of(from)?;
        let now = self.elapsed();
        let mut inner = self.inner.lock();
        let manager = &mut inner.manager;
        let (kind, stamp) = (manager.sit.kind(segment), manager.sit.stamp(segment));
        if kind.is_node() {
            return None;
        }
        let place = manager.allocate_atgc((kind, stamp), want, now)?;
        debug_assert!(place.len <= want, "at most the wanted blocks are allocated");
        let start = self.layout.block_in(place.segment, place.offset);
        Some(Run {
            start,
            len: place.len,
        })
    }

    /// As [`Segments::set_valid`], for a block moved from `from`, whose age it keeps.
    pub fn set_valid_atgc(&self, addr: BlockAddr, owner: Owner, from: BlockAddr) {
        let stamp = self.layout.segment_of(from).map(|(segment, _)| {
            let inner = self.inner.lock();
            inner.manager.sit.stamp(segment)
        });
        self.set_valid_at(addr, owner, stamp.unwrap_or_else(|| self.elapsed()));
    }
}
