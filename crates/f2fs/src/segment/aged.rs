//! The log of what is moved by age (`atgc`): a seventh one, which no checkpoint knows. It fills holes of
//! segments as old as the blocks that cleaning moves, and is closed whenever a checkpoint begins.

use super::logs::{Log, Logs, Place};
use super::policy::{Mode, hole_types};
use super::{Run, Segments};
use crate::disk::{BlockAddr, LogType, SEGMENT_BLOCKS, SegNo};
use crate::segment::Owner;
use crate::victim::age::{self, Aged};

/// What kind of data is moved, and when it was written.
type Old = (LogType, u64);

impl Logs {
    /// Claims up to `want` blocks for such data; `None`: the log of cold data has to take it.
    fn claim_aged(&mut self, (kind, stamp): Old, want: u32, now: u64) -> Option<Place> {
        if self.aged.is_none() {
            let (segment, holes) = self.choose_aged((kind, stamp), now)?;
            self.open_aged(kind, segment, holes);
        }
        let log = self.aged.as_mut().expect("opened above");
        let (segment, offset) = (log.segment, log.next);
        let busy = self.table.busy(segment);
        let end = (offset + want.min(SEGMENT_BLOCKS)).min(SEGMENT_BLOCKS);
        let end = busy.next_set(offset).map_or(end, |used| used.min(end));
        self.table.claim(segment, offset..end);
        let blocks = match log.holes {
            true => &mut self.usage.hole_blocks,
            false => &mut self.usage.log_blocks,
        };
        *blocks += u64::from(end - offset);
        match busy.next_clear(end) {
            Some(next) => log.next = next,
            None => self.close_aged(),
        }
        Some(Place {
            segment,
            offset,
            len: end - offset,
        })
    }

    pub(super) fn choose_aged(&mut self, (kind, stamp): Old, now: u64) -> Option<(SegNo, bool)> {
        let types: &[LogType] = match self.policy.mode {
            Mode::Lfs => &[],
            Mode::Adaptive => hole_types(kind),
        };
        for &other in types {
            let dirty = self.table.dirty(other);
            let mut candidates = Vec::new();
            let mut at = 0;
            while let Some(number) = dirty.next(at, self.table.len()) {
                at = number + 1;
                let segment = SegNo(number);
                let valid = self.table.busy(segment).count();
                let cleaned = self.cleaning.victim == Some(self.table.section_of(segment));
                if valid < SEGMENT_BLOCKS && !cleaned {
                    candidates.push(Aged {
                        stamp: self.table.stamp(segment),
                        number,
                        valid,
                    });
                }
            }
            self.usage.scanned += candidates.len() as u64;
            let newest = self.table.newest();
            let found = self.retried(now, |rules| {
                let old = |c: &&Aged| newest.saturating_sub(c.stamp) >= rules.threshold;
                let old = candidates.iter().filter(old).copied().collect();
                age::nearest(old, stamp, rules)
            });
            if let Some(found) = found {
                return Some((SegNo(found.number), true));
            }
        }
        let free = self.table.free_sections();
        let kept = self
            .policy
            .kept_from_users(self.demand, self.table.per_section());
        if free.count() <= kept {
            return None;
        }
        let section = free.next_around(0)?;
        Some((SegNo(section * self.table.per_section()), false))
    }

    fn open_aged(&mut self, kind: LogType, segment: SegNo, holes: bool) {
        let kind = match holes {
            true => self.table.kind(segment),
            false => kind,
        };
        let (log, usage) = (self.opened(kind, segment, holes), &mut self.usage);
        match holes {
            true => usage.hole_segments += 1,
            false => usage.log_segments += 1,
        }
        self.aged = Some(log);
    }

    /// Closes the log of what is moved by age.
    pub(super) fn close_aged(&mut self) {
        if let Some(Log {
            segment, summary, ..
        }) = self.aged.take()
        {
            self.closed.insert(segment.0, summary);
            self.table.close(segment);
        }
    }
}

impl Segments {
    /// Claims up to `want` consecutive blocks for what lies at `from` (or behind) and is moved by age; `None`
    /// where it goes to the log of cold data, as without `atgc`.
    pub fn claim_aged(&self, from: BlockAddr, want: u32) -> Option<Run> {
        let (segment, _) = self.layout.place(from)?;
        let now = self.elapsed();
        let mut inner = self.inner.lock();
        let logs = &mut inner.logs;
        let (kind, stamp) = (logs.table.kind(segment), logs.table.stamp(segment));
        if kind.is_node() {
            return None;
        }
        let place = logs.claim_aged((kind, stamp), want, now)?;
        let start = self.layout.block_in(place.segment, place.offset);
        Some(Run {
            start,
            len: place.len,
        })
    }

    /// As [`Segments::name`], for a block that lay at `from` and is as old as the blocks there.
    pub fn name_aged(&self, addr: BlockAddr, owner: Owner, from: BlockAddr) {
        let stamp = self.layout.place(from).map(|(segment, _)| {
            let inner = self.inner.lock();
            inner.logs.table.stamp(segment)
        });
        self.name_at(addr, owner, stamp.unwrap_or_else(|| self.elapsed()));
    }
}
