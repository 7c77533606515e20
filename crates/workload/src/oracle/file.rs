//! The content and size that one file may have after a crash.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use steadfs_base::{InodeNo, is_zero};

use super::history::{Event, TaskHistory, pages_of_blocks};
use crate::model::{Content, Node, PAGE, Page};
use crate::observe::{CONTENT_LIMIT, InodeSnapshot};
use crate::{Format, Op, Span, pattern};

const SECTOR: usize = 512;

/// Compares content if only one is allowed.
pub(super) fn compare_content(node: &Node, seen: &InodeSnapshot) -> Result<(), String> {
    let pages = |content: &Content| content.pages().map(|(index, _)| index).collect::<Vec<_>>();
    for index in pages(&node.content).into_iter().chain(pages(&seen.content)) {
        let (due, got) = (page_of(&node.content, index), page_of(&seen.content, index));
        if let Some(at) = (0..PAGE).find(|at| due[*at] != got[*at]) {
            let at = at / SECTOR * SECTOR;
            return Err(wrong_sector(index, at, &got[at..at + SECTOR]));
        }
    }
    Ok(())
}

static ZEROS: Page = [0; PAGE];

fn page_of(content: &Content, index: u64) -> &Page {
    content.page(index).map_or(&ZEROS, Arc::as_ref)
}

/// Describes the content of a sector that is not allowed.
fn wrong_sector(page: u64, within: usize, got: &[u8]) -> String {
    let offset = page * PAGE as u64 + within as u64;
    let origin = (0..got.len().saturating_sub(7))
        .step_by(8)
        .find_map(|at| pattern::origin(&got[at..]).map(|origin| (at, origin)));
    let what = match origin {
        Some((at, origin)) => format!(
            "fill {} of file offset {}",
            origin.fill,
            origin.offset.saturating_sub(at as u64)
        ),
        None if is_zero(got) => "zeros".to_owned(),
        None => "bytes of no fill".to_owned(),
    };
    format!("content at byte {offset} is wrong: {what}")
}

/// One file of one task, in its state at one moment.
pub(super) struct File<'a> {
    pub(super) format: Format,
    pub(super) task: &'a TaskHistory,
    pub(super) ino: InodeNo,
    /// The moment of the metadata.
    pub(super) moment: usize,
    /// The moment up to which the data was acknowledged.
    pub(super) durable: usize,
    /// The last moment that any sector can be of.
    pub(super) last: usize,
    /// The file was made durable by its own fsync at that moment, with its exact size.
    pub(super) own: bool,
    /// The device failed: data written before the size was set may not be on disk, and then the size lags behind that
    /// write, too.
    pub(super) failing: bool,
}

impl File<'_> {
    pub(super) fn node(&self, moment: usize) -> Option<&Arc<Node>> {
        self.task.states[moment].node(self.ino).ok()
    }

    fn size(&self, moment: usize) -> u64 {
        self.node(moment).map_or(0, |node| node.size)
    }

    /// The file's events among operations `range`, each with the moment it leads to.
    fn events(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = (usize, Event)> {
        range.flat_map(move |index| {
            let events = self.task.records[index].events.iter();
            events
                .filter(|(ino, _)| *ino == self.ino)
                .map(move |(_, event)| (index + 1, *event))
        })
    }

    /// The last moment whose size is certainly on disk, where `found` is the size there: an operation since then
    /// extended the file to that size.
    fn exact(&self, found: u64) -> usize {
        let sized = self
            .events(0..self.moment)
            .filter(|(_, event)| *event == Event::Sized)
            .map(|(moment, _)| moment);
        let exact = sized.last().unwrap_or(0).max(self.durable);
        let lags = self.failing && found <= self.size(exact);
        if lags { self.durable } else { exact }
    }

    /// The first moment that the sector at `offset` can be of because the file's size, `found` on disk, covers it: data
    /// is there before the size that covers it.
    fn covered(&self, offset: u64, found: u64) -> usize {
        let exact = self.exact(found);
        let old = self.size(exact);
        let new = old.max(offset);
        if found <= new || new >= offset + SECTOR as u64 {
            return 0;
        }
        let grown = (exact + 1..=self.last).find(|moment| self.size(*moment) > new);
        // Old and appended bytes are written together if they are adjacent.
        let goes_on = |moment: usize| {
            self.events(moment - 1..moment)
                .any(|(_, event)| matches!(event, Event::Wrote(span) if span.offset <= old))
        };
        grown
            .filter(|moment| old <= offset || goes_on(*moment))
            .unwrap_or(0)
    }

    /// Rule 4.
    pub(super) fn check_size(&self, found: u64) -> Result<(), String> {
        if self.own {
            let due = self.size(self.moment);
            return match found == due {
                true => Ok(()),
                false => Err(format!("has {found} bytes, not {due}")),
            };
        }
        let exact = self.exact(found);
        let upto = self.moment.max(self.durable);
        if (exact..=upto).any(|moment| self.size(moment) == found) {
            return Ok(());
        }
        let boundary = found.is_multiple_of(u64::from(self.format.block_size));
        let largest = (exact..=upto)
            .map(|moment| self.size(moment))
            .max()
            .unwrap_or(0);
        let half_done = if self.moment < self.last && self.moment >= self.durable {
            let (now, next) = (self.size(self.moment), self.size(self.moment + 1));
            if next > now { now..next } else { 0..0 }
        } else {
            0..0
        };
        let between = (self.size(exact)..largest).contains(&found) || half_done.contains(&found);
        // A copy is done in pieces, the first of which may have been stored inline in the inode.
        let upto_next = (upto + 1).min(self.last);
        let copied = self.task.records[exact.min(upto_next)..upto_next].iter();
        let copied = copied
            .filter(|record| matches!(record.op, Op::Copy { .. }))
            .any(|record| record.grown.contains(&self.ino));
        if (boundary || copied) && between {
            return Ok(());
        }
        Err(format!(
            "has {found} bytes; {} to {largest} are allowed",
            self.size(exact)
        ))
    }

    /// Rule 5.
    pub(super) fn check_content(&self, seen: &InodeSnapshot) -> Result<(), String> {
        let size = seen.size.min(CONTENT_LIMIT);
        let mut pages: BTreeSet<u64> = seen.content.pages().map(|(index, _)| index).collect();
        for moment in self.durable..=self.last {
            if let Some(node) = self.node(moment) {
                pages.extend(node.content.pages().map(|(index, _)| index));
            }
        }
        let upto = size.div_ceil(PAGE as u64);
        for index in pages.into_iter().take_while(|index| *index < upto) {
            self.check_page(index, page_of(&seen.content, index), size)?;
        }
        Ok(())
    }

    fn page(&self, moment: usize, index: u64) -> &Page {
        self.node(moment)
            .map_or(&ZEROS, |node| page_of(&node.content, index))
    }

    fn check_page(&self, index: u64, got: &Page, size: u64) -> Result<(), String> {
        let start = index * PAGE as u64;
        let len = (size - start).min(PAGE as u64) as usize;
        let newest = self.page(self.last, index);
        let one =
            (self.durable..self.last).all(|moment| std::ptr::eq(self.page(moment, index), newest));
        if one && got[..len] == newest[..len] {
            return Ok(());
        }
        for within in (0..len).step_by(SECTOR) {
            let end = (within + SECTOR).min(len);
            let (first, last) = self.sector_moments(start + within as u64, size);
            let right = (first..=last).any(|moment| {
                let due = &self.page(moment, index)[within..end];
                let kept = self.kept(moment, start + within as u64).min(end - within);
                let (kept, cut) = got[within..end].split_at(kept);
                due[..kept.len()] == *kept && is_zero(cut)
            });
            let bytes = within..end;
            let right = right
                || self.half_done(index, bytes.clone(), got, first..last + 1)
                || self.half_copied(index, bytes, got, first..last + 1);
            if !right {
                let wrong = wrong_sector(index, within, &got[within..end]);
                return Err(format!("{wrong} (allowed: moments {first} to {last})"));
            }
        }
        Ok(())
    }

    /// Whether a copy between two of `moments` has done the beginning of a sector. It goes in pieces, which end where a
    /// piece of its source ends, and on a full volume what was copied so far is written before the next one.
    fn half_copied(
        &self,
        index: u64,
        bytes: Range<usize>,
        got: &Page,
        mut moments: Range<usize>,
    ) -> bool {
        let got = &got[bytes.clone()];
        moments.next();
        moments.any(|moment| {
            let new = &self.page(moment, index)[bytes.clone()];
            let old = &self.page(moment - 1, index)[bytes.clone()];
            let copied = got.iter().zip(new).take_while(|(got, new)| got == new);
            let copied = copied.count();
            matches!(self.task.records[moment - 1].op, Op::Copy { .. })
                && got[copied..] == old[copied..]
        })
    }

    /// Whether a sector is from one of `moments` with the other outcome of an operation that failed half-way.
    fn half_done(
        &self,
        index: u64,
        bytes: Range<usize>,
        got: &Page,
        moments: Range<usize>,
    ) -> bool {
        self.task.others.iter().any(|states| {
            let states = states.iter().skip(moments.start).take(moments.len());
            states.into_iter().any(|state| {
                let node = state.node(self.ino);
                let due = node.map_or(&ZEROS, |node| page_of(&node.content, index));
                due[bytes.clone()] == got[bytes.clone()]
            })
        })
    }

    /// The moments that the sector at `offset` may be of, where the file has `size` bytes.
    fn sector_moments(&self, offset: u64, size: u64) -> (usize, usize) {
        let block = u64::from(self.format.block_size);
        let block_start = offset / block * block;
        let of_block = |span: Span| span.offset <= block_start && block_start + block <= span.end();
        let mut first = self.durable.max(self.covered(offset, size));
        for (moment, event) in self.events(0..self.moment) {
            let taken = match event {
                Event::Shifted(from) => offset + SECTOR as u64 > from,
                Event::Punched(span) | Event::Zeroed(span) => of_block(span),
                Event::Cut(_) | Event::Wrote(_) | Event::Sized => false,
            };
            if taken {
                first = first.max(moment);
            }
        }
        let mut last = self.last;
        for (moment, event) in self.events(self.moment..self.last) {
            let taken = match event {
                Event::Cut(from) => from <= block_start,
                Event::Shifted(from) => from <= block_start && moment > self.moment + 1,
                Event::Punched(span) => of_block(span) && moment > self.moment + 1,
                Event::Zeroed(_) | Event::Wrote(_) | Event::Sized => false,
            };
            if taken {
                last = last.min(moment - 1);
            }
        }
        if !self.mapped(block_start) {
            last = last.min(self.moment);
        }
        (first, last.max(first))
    }

    /// The number of bytes of the sector at `offset`, as of moment `from`, that no truncate up to the metadata's moment
    /// has cut off.
    fn kept(&self, from: usize, offset: u64) -> usize {
        let upto = self.moment.max(from);
        let cuts = self
            .events(from..upto)
            .filter_map(|(_, event)| match event {
                Event::Cut(at) => Some(at),
                _ => None,
            });
        let kept = cuts.map(|at| at.saturating_sub(offset)).min();
        kept.map_or(SECTOR, |kept| kept.min(SECTOR as u64) as usize)
    }

    /// Whether the block at `offset` may have been mapped at the metadata's moment (also if allocated: a file system
    /// may convert it to a written one at any time).
    fn mapped(&self, offset: u64) -> bool {
        let span = Span::new(offset, u64::from(self.format.block_size));
        self.node(self.moment).is_some_and(|node| {
            pages_of_blocks(span, self.format).any(|page| node.content.page(page).is_some())
        })
    }
}
