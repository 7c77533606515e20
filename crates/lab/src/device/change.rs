//! Requests that change content.

use std::ops::Range;

use steadfs_block::{Bio, Buf, Op};

use super::content_tree::ContentTree;

/// A request that changes content: a write, a discard, a write of zeroes.
#[derive(Debug)]
pub struct Change {
    /// Number of the request, counted from 0 over all requests of the device.
    pub id: u64,
    /// The operation.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The new content of a write, in device order.
    pub bufs: Vec<Buf>,
    /// The change reaches the medium only after all writes that completed before it are durable.
    pub preflush: bool,
    /// Durable when it completes.
    pub fua: bool,
    /// For a discard: the range reads as before.
    reads_old: bool,
}

impl Change {
    /// The change of `bio`. A discard keeps the old content if `reads_old`, else it zeroes.
    pub(super) fn of(id: u64, bio: &Bio, reads_old: bool) -> Self {
        let is_write = bio.op == Op::Write;
        Self {
            id,
            op: bio.op,
            offset: bio.offset,
            len: bio.len,
            bufs: if is_write {
                bio.bufs.clone()
            } else {
                Vec::new()
            },
            preflush: is_write && bio.preflush,
            fua: is_write && bio.fua,
            reads_old: bio.op == Op::Discard && reads_old,
        }
    }

    /// The byte after the last one.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// Applies the part `range` of the change.
    pub(super) fn apply(&self, tree: &mut ContentTree, range: Range<u64>) {
        if self.op != Op::Write {
            tree.zero(range.start, range.end - range.start);
            return;
        }
        let mut at = self.offset;
        for buf in &self.bufs {
            let end = at + buf.len() as u64;
            let (from, to) = (range.start.max(at), range.end.min(end));
            if from < to {
                tree.write(from, buf, (from - at) as usize..(to - at) as usize);
            }
            at = end;
        }
    }

    /// Applies the change as reads see it while the device runs.
    pub(super) fn apply_outcome(&self, tree: &mut ContentTree) {
        if !self.reads_old {
            self.apply(tree, self.offset..self.end());
        }
    }
}
