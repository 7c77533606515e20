//! The table of lookup counts outside the server.
//!
//! **Problem.** An unlinked file lives until the kernel has forgotten it, so a successor needs the counts of a server that
//! was killed. **Rule.** An entry of the table is an inode number and its count, and is written with each change of the
//! count: before the record of the call that adds to it, and before the file system drops lookups. So a kill in between
//! leaves a count that is too large, by a request that was in service: then an unlinked inode stays until the unmount.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use steadfs_base::{FixedMap, InodeNo};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::LookupCounts;

use super::layout::{COUNT_BYTES, Layout, read_at, write_at};

/// Bytes of the table that are read at a time.
const READ_BYTES: usize = 1 << 20;

#[derive(Default)]
struct Table {
    /// Entry and count by inode number.
    entries: FixedMap<u64, (u64, u64)>,
    free: Vec<u64>,
    /// Entries from here on are not in use.
    end: u64,
}

/// The counts of a mount.
pub(super) struct Counts {
    file: Arc<OwnedFd>,
    capacity: u64,
    table: Mutex<Table>,
}

/// Calls `each` with entries that are in use, and their indices.
fn for_entries(
    file: BorrowedFd<'_>,
    layout: Layout,
    mut each: impl FnMut(u64, InodeNo, u64),
) -> Result<(), Errno> {
    let mut bytes = vec![0; READ_BYTES];
    let end = layout.counts * COUNT_BYTES;
    for at in (0..end).step_by(READ_BYTES) {
        let len = (end - at).min(READ_BYTES as u64) as usize;
        let len = read_at(file, at, &mut bytes[..len])?;
        let entries = bytes[..len].chunks_exact(COUNT_BYTES as usize);
        for (entry, index) in entries.zip(at / COUNT_BYTES..) {
            let long = |at: usize| entry[at..at + 8].iter().rev();
            let number = |at| long(at).fold(0, |n, byte| n << 8 | u64::from(*byte));
            if number(8) > 0 {
                each(index, InodeNo(number(0)), number(8));
            }
        }
    }
    Ok(())
}

/// The counts in a file.
pub(super) fn read_counts(file: BorrowedFd<'_>, layout: Layout) -> Result<LookupCounts, Errno> {
    let mut counts = LookupCounts::new();
    for_entries(file, layout, |_, ino, count| counts.push((ino, count)))?;
    Ok(counts)
}

impl Counts {
    /// Continues with the counts that are in the file.
    pub(super) fn resume(file: Arc<OwnedFd>, layout: Layout) -> Result<Self, Errno> {
        let mut table = Table::default();
        for_entries(file.as_fd(), layout, |index, ino, count| {
            table.free.extend(table.end..index);
            table.end = index + 1;
            table.entries.insert(ino.0, (index, count));
        })?;
        Ok(Self {
            file,
            capacity: layout.counts,
            table: Mutex::new(Rank::Leaf, table),
        })
    }

    /// Replaces what is in the file by these counts.
    pub(super) fn begin(
        file: Arc<OwnedFd>,
        layout: Layout,
        counts: &[(InodeNo, u64)],
    ) -> Result<Self, Errno> {
        let mut used = Vec::new();
        for_entries(file.as_fd(), layout, |index, _, _| used.push(index))?;
        for index in used {
            write_at(&file, index * COUNT_BYTES, &[&[0; COUNT_BYTES as usize]])?;
        }
        let this = Self {
            file,
            capacity: layout.counts,
            table: Mutex::new(Rank::Leaf, Table::default()),
        };
        for (ino, count) in counts {
            this.add(*ino, *count)?;
        }
        Ok(this)
    }

    /// Adds to an inode's count.
    ///
    /// # Errors
    /// `NOSPC`: the table is full.
    pub(super) fn add(&self, ino: InodeNo, n: u64) -> Result<(), Errno> {
        let table = &mut *self.table.lock();
        let (index, count) = match table.entries.get(&ino.0) {
            Some(&(index, count)) => (index, count),
            None => {
                let index = table.free.pop().unwrap_or(table.end);
                if index >= self.capacity {
                    return Err(Errno::NOSPC);
                }
                table.end = table.end.max(index + 1);
                (index, 0)
            }
        };
        let count = count.saturating_add(n);
        table.entries.insert(ino.0, (index, count));
        self.write(index, ino, count)
    }

    /// Subtracts from an inode's count, at most what it is.
    pub(super) fn subtract(&self, ino: InodeNo, n: u64) -> Result<(), Errno> {
        let table = &mut *self.table.lock();
        let Some((index, count)) = table.entries.get_mut(&ino.0) else {
            return Ok(());
        };
        *count = count.saturating_sub(n);
        let (index, count) = (*index, *count);
        if count == 0 {
            table.entries.remove(&ino.0);
            table.free.push(index);
        }
        self.write(index, ino, count)
    }

    fn write(&self, index: u64, ino: InodeNo, count: u64) -> Result<(), Errno> {
        let (ino, count) = (ino.0.to_le_bytes(), count.to_le_bytes());
        write_at(&self.file, index * COUNT_BYTES, &[&ino, &count])
    }
}
