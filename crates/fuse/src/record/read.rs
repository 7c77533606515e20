//! The log of a server that has ended, as its successor reads it.
//!
//! **Rule.** Records are read in the order in which they were written, and the last state of an object counts. A record
//! without its whole body or data was not acknowledged, and is passed over. A whole one that is not understood was: the
//! successor fails, and the broker has a server of its own version read the file.
//!
//! Link counts follow names: those of records without a name count only where no earlier record has the inode. Written pages
//! come without the inode's lock, so their record may show what an unlink has done that is not recorded yet, and that the
//! kernel will request again.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use steadfs_base::InodeNo;
use steadfs_vfs::{
    Attr, LookupCounts, RecordedChange, RecordedFile, RecordedInode, RecordedName, RecordedState,
};

use super::counts::read_counts;
use super::item::{InodeState, Item, decode};
use super::layout::{
    FORMAT, Layout, NOT_UNDERSTOOD, RECORD_HEAD, RecordHead, SEGMENT_HEAD, SEGMENTS, read_at,
    segment_in, sum,
};

/// Most answers that are kept for successors: those of the newest servers. A server has one for each request that it
/// serves at a time, and at most five servers end in a minute.
const ANSWERS_MAX: usize = 4096;

/// A request that was carried out, and may not have been answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    pub slot: u64,
    pub unique: u64,
    pub reply: Vec<u8>,
}

/// What the file of a mount has.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Index and number of the segments in use, the oldest first.
    pub(super) segments: Vec<(usize, u64)>,
    /// The last states of all objects.
    pub(super) state: RecordedState,
    /// The requests that were carried out last.
    pub(super) answers: Vec<Answered>,
    /// The inodes that the kernel knows.
    pub(super) counts: LookupCounts,
}

#[derive(Default)]
struct Fold {
    state: RecordedState,
    names_read: u64,
    answers: BTreeMap<u64, Answered>,
}

impl Fold {
    fn file(&mut self, ino: InodeNo) -> Option<&mut RecordedFile> {
        match self.state.inodes.get_mut(&ino)? {
            RecordedInode::InUse(file) => Some(file),
            RecordedInode::Free => None,
        }
    }

    fn inode(&mut self, state: InodeState, has_names: bool) {
        let InodeState {
            is_new,
            attr,
            flags,
        } = state;
        let ino = attr.ino;
        match self.file(ino) {
            Some(file) if file.generation == attr.generation && !is_new => {
                let nlink = if has_names {
                    attr.nlink
                } else {
                    file.attr.nlink
                };
                file.attr = Attr { nlink, ..attr };
                file.flags = flags;
            }
            _ => {
                // Names in a directory that had this number before.
                let ends = InodeNo(ino.0 + 1);
                let mut names = self.state.names.split_off(&(ino, Vec::new()));
                let mut later = names.split_off(&(ends, Vec::new()));
                if !is_new {
                    self.state.names.append(&mut names);
                }
                self.state.names.append(&mut later);
                let file = RecordedFile {
                    generation: attr.generation,
                    attr,
                    flags,
                    target: None,
                    xattrs: BTreeMap::new(),
                    contents: Vec::new(),
                };
                let file = RecordedInode::InUse(Box::new(file));
                self.state.inodes.insert(ino, file);
            }
        }
    }

    /// Adds an item of a record that has names, or has none.
    fn add(&mut self, item: Item<'_>, has_names: bool) {
        let change = match item {
            Item::Inode(state) => return self.inode(state, has_names),
            Item::Target(ino, target) => {
                if let Some(file) = self.file(ino) {
                    file.target = Some(target.to_vec());
                }
                return;
            }
            Item::Name(dir, name, to) => {
                self.names_read += 1;
                let order = self.names_read;
                let name = (dir, name.to_vec());
                self.state.names.insert(name, RecordedName { to, order });
                return;
            }
            Item::Xattr(ino, name, value) => {
                if let Some(file) = self.file(ino) {
                    let value = value.map(<[u8]>::to_vec);
                    file.xattrs.insert(name.to_vec(), value);
                }
                return;
            }
            Item::Answer {
                slot,
                unique,
                reply,
            } => {
                let reply = reply.to_vec();
                let answered = Answered {
                    slot,
                    unique,
                    reply,
                };
                self.answers.insert(slot, answered);
                return;
            }
            Item::Bytes(ino, offset, bytes) => (ino, RecordedChange::Bytes(offset, bytes.to_vec())),
            Item::Size(ino, size) => (ino, RecordedChange::Size(size)),
            Item::Range(ino, mode, offset, len) => (ino, RecordedChange::Range(mode, offset, len)),
        };
        let (ino, change) = change;
        if let Some(file) = self.file(ino) {
            file.contents.push(change);
        }
    }

    /// The records of a segment.
    ///
    /// # Errors
    /// [`NOT_UNDERSTOOD`].
    fn segment(&mut self, bytes: &[u8], number: u64) -> Result<(), Errno> {
        let mut at = SEGMENT_HEAD as usize;
        while let Some(head) = bytes.get(at..).and_then(RecordHead::decode) {
            if head.segment != number {
                break;
            }
            let body_at = at + RECORD_HEAD;
            let data_at = body_at + head.body_len as usize;
            at = data_at + head.data_len as usize;
            let (Some(body), Some(data)) = (bytes.get(body_at..data_at), bytes.get(data_at..at))
            else {
                break;
            };
            if sum(body) != head.body_sum || sum(data) != head.data_sum {
                continue;
            }
            // Data lies behind the item that it belongs to, as if it was part of the body.
            let items = decode(&bytes[body_at..at]).ok_or(NOT_UNDERSTOOD)?;
            let has_names = items.iter().any(|item| matches!(item, Item::Name(..)));
            items.into_iter().for_each(|item| self.add(item, has_names));
        }
        Ok(())
    }

    /// What follows from the counts.
    fn finish(&mut self, counts: &LookupCounts) {
        let in_use: BTreeMap<_, _> = counts.iter().copied().collect();
        let state = &mut self.state;
        for (ino, inode) in &mut state.inodes {
            if let RecordedInode::InUse(file) = inode
                && file.attr.nlink == 0
            {
                match in_use.contains_key(ino) {
                    true => state.unlinked.push(*ino),
                    false => *inode = RecordedInode::Free,
                }
            }
        }
        let inodes = &state.inodes;
        let is_there = |dir: &InodeNo| match inodes.get(dir) {
            Some(RecordedInode::InUse(file)) => file.attr.nlink > 0,
            Some(RecordedInode::Free) => false,
            None => true,
        };
        state.names.retain(|(dir, _), _| is_there(dir));
    }
}

impl Found {
    /// Reads the file of a server that has ended.
    ///
    /// # Errors Those of the file. [`NOT_UNDERSTOOD`]: a program of another version has written it, which can continue
    /// the mount.
    pub(super) fn read(file: BorrowedFd<'_>, layout: Layout) -> Result<Self, Errno> {
        let counts = read_counts(file, layout)?;
        let heads = heads(file, layout)?;
        if heads.iter().any(|(.., format)| *format != FORMAT) {
            return Err(NOT_UNDERSTOOD);
        }
        let segments = numbered(&heads);
        let mut fold = Fold::default();
        let mut bytes = vec![0; usize::try_from(layout.segment_bytes).unwrap_or(usize::MAX)];
        for (index, number) in &segments {
            let len = read_at(file, layout.segment(*index), &mut bytes)?;
            fold.segment(&bytes[..len], *number)?;
        }
        fold.finish(&counts);
        // Slots grow from server to server.
        let older = fold.answers.len().saturating_sub(ANSWERS_MAX);
        Ok(Self {
            segments,
            state: fold.state,
            answers: fold.answers.into_values().skip(older).collect(),
            counts,
        })
    }

    /// The same of a server that has handed over: its records, of any format, are out of date.
    ///
    /// # Errors
    /// Those of the file.
    pub(super) fn used(file: BorrowedFd<'_>, layout: Layout) -> Result<Self, Errno> {
        Ok(Self {
            segments: numbered(&heads(file, layout)?),
            ..Self::default()
        })
    }
}

/// Index, number and format of the segments in use, the oldest first.
fn heads(file: BorrowedFd<'_>, layout: Layout) -> Result<Vec<(usize, u64, u32)>, Errno> {
    let mut heads = Vec::new();
    let mut head = [0; SEGMENT_HEAD as usize];
    for index in 0..SEGMENTS {
        read_at(file, layout.segment(index), &mut head)?;
        if let Some((number, format)) = segment_in(&head) {
            heads.push((index, number, format));
        }
    }
    heads.sort_by_key(|(_, number, _)| *number);
    Ok(heads)
}

fn numbered(heads: &[(usize, u64, u32)]) -> Vec<(usize, u64)> {
    let head = |(index, number, _): &(usize, u64, u32)| (*index, *number);
    heads.iter().map(head).collect()
}
