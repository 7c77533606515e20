//! The oracle: says whether what is found after a crash is one of the things that may be found.
//!
//! # Problem
//! After a power cut a journaling file system shows some earlier state. Which ones are right follows
//! from what it had promised: a returned fsync, fdatasync or sync is a promise; everything else may
//! be there or not, but nothing may be there that never was.
//!
//! # Words
//! A task's *moment* `k` is its state after its first `k` operations; moment 0 is the start, which
//! was synced. At a crash some operations had returned; at most one a task had begun and not
//! returned. The last moment the crash could show is the one after the last operation that had
//! begun.
//!
//! # Rules
//! 1. **Names and attributes are a prefix.** There is one moment `M` for each task such that all its
//!    names, types, link groups, permission bits, owners, device numbers, link targets, extended
//!    attributes and explicitly set times are those of its moment `M`. (Metadata operations are
//!    atomic in the journal, and transactions commit in order.)
//! 2. **Acknowledged is there.** `M` is at least the last operation that an acknowledgement covers:
//!    * fsync of an inode: the last one before it that changed that inode (its making, its names,
//!      its attributes, its size; of a directory: its entries), or wrote to it where it had no block
//!      or grew. So the name through which a new or renamed file was synced is there.
//!    * fdatasync: the same, but of the inode's making and what concerns its size and blocks only. Of
//!      a directory it is fsync: names are a directory's data (SQLite calls it so, and so does the kernel).
//!    * sync: everything before it; of other tasks, everything that had returned when it began.
//! 3. **Prefixes agree between tasks.** If an operation that changed names or attributes had returned
//!    before an operation of another task began, the second is not there without the first.
//! 4. **Sizes.** Written data reaches the disk later than the write, so a size may lag behind `M`: it
//!    is the exact size at the last acknowledgement or truncate (or other exact setting of the size)
//!    up to `M`, or one that later writes up to `M` made, or a block boundary in between (any size in between
//!    if one of them is a copy, which is done in pieces). A growing
//!    operation right after `M` may be half done: block boundaries up to its end.
//! 5. **Content, by sectors of 512 bytes.** Each sector is as it was at one moment `t`, less what
//!    truncates between `t` and `M` cut off, which is zero. The moment `t` is
//!    * not before the last acknowledgement that covers the file's data,
//!    * not before a punch or zeroing of the sector's whole block, or a shift of it, up to `M` (these
//!      are metadata; zeroes in a part of a block are data, and may come late),
//!    * not before the write that let the file grow over it, if the size found covers it and is not just what
//!      something else set it to: data is on the disk before the size that covers it,
//!    * before any truncate, punch or shift after `M` that takes the sector's whole block (until that
//!      is committed the block keeps its content and may not be given to another file), except that
//!      the operation right after `M` may be half done if it is not a truncate; a zeroed range keeps
//!      its blocks, so what is written later may come early,
//!    * not after `M` if at `M` the block had never been written or allocated (where it lies is
//!      metadata).
//!
//!    So an overwritten block is old or new, a filled hole zero or new, what was appended new as far as the size goes,
//!    and no block ever shows what another file, or this one before a truncate, had there.
//! 6. **Nothing else.** No other name exists, and links, listings and lookups agree
//!    (see [`observe`](crate::observe())).
//!
//! The first six rules are those of ext4 with `data=ordered`: a file system that commits more than it must
//! passes as well.
//!
//! # Roll-forward
//! f2fs makes a file durable by itself, beside its last checkpoint, and its recovery brings it back
//! without what was done to others before. With [`Recovery::RollForward`](crate::Recovery) instead of 2:
//!
//! 7. **Each file for itself.** `M` is the moment of a checkpoint: at least the last sync's. A regular file
//!    may be as it was at the moment `F` of an fsync or fdatasync of it (begun, not necessarily returned)
//!    after `M`: everything about it, with its exact size; rules 4 and 5 hold for its content with `F` in
//!    the place of `M`. If it was made after `M`, it is there with the one name it had at `F`, in its directory, wherever
//!    that was at `M`. The directory's times are then not known.
//!
//!    That is so only where recovery can do it; otherwise an fsync has to take a checkpoint: the file has
//!    one name at `F`; its directory is there at `M`, with the same extended attributes as at `F`; if the
//!    file is there at `M`, its name is that one (recovery makes no second one); if it is new, whoever
//!    else had the name since `M` is gone at `F` (who has it loses it, be that by the checkpoint or rolled
//!    forward); and if `strict`, nothing was renamed into the directory since, and it was not renamed itself.
//!
//!    Other files go along with an fsync or fdatasync of a file: whose content or size was changed before is
//!    perhaps as it was at a moment `F` while one was under way, whichever task's, by the same rules for its name.
//!    Nobody asked for that, so rule 4 holds for its size with `F` in the place of `M`.
//!
//!    What an fsync, fdatasync or sync acknowledged (as in rule 2) is at or before `M`, or, of such a file, at or before
//!    its `F`. So a rename, a removal or an attribute's change that nobody synced may be undone
//!    while a later one of another file is there, but only for files that were synced or went along.
//!
//! # In trouble
//! Where the device fails or the volume is full ([`Histories`]) an operation that failed was done or
//! was not, and a change of content may have been done in part: any history that explains the results
//! may be the one. What a failing device does not take is not there when a truncate sets the size: that
//! size is not exact then, but may lag as that of a write.
//!
//! # What more than one answer lets through
//! Each place that accepts several outcomes was asked whether the loss of something acknowledged could hide
//! behind it. Everything that an acknowledgement covers is outside all of them: `M`, `F` and `t` begin there.
//!
//! | accepted | why a loss cannot hide |
//! |---|---|
//! | any moment from the last acknowledgement on (1, 2) | what came later was promised to nobody; what is there must be one state, so none of it is mixed |
//! | a size that lags, or lies at a block boundary (4) | never below the acknowledged one: both ends count from there. A copy may end anywhere: it is done in pieces |
//! | sectors each of a moment of its own (5) | all not before the acknowledgement, nor before the append that the size shows (the kernel's f2fs shows zeros there: it would not pass). Zeros that were not synced are in holes and behind a size that was set |
//! | content from the other outcome of a change that failed | single sectors of that change only, and its caller was told; names and attributes are never in part |
//! | with a failing device: done or not done | only operations that returned an I/O error. One that returned well is held to it, before the failure and after: an fsync that succeeds on a device that failed before acknowledges everything |
//! | with a failing device: a size as before a truncate | down to the acknowledged size, no further |
//! | a volume that has stopped: what it shows while it runs | nobody was promised that; after a crash or a mount everything before the stop counts as ever |
//! | a full volume: ENOSPC, a short write | never of what makes things durable; and never too early (the explorer compares with what is free, where one task runs alone, for all but extended attributes) |
//! | too many failures to follow: no verdict | the explorer counts these runs, and its tests bound them |
//! | times that nobody set, access times after somebody else looked, times of directories in which recovery made a name | no content, no name and no attribute that was given is behind them |
//! | files that went along with another's fsync (7) | only of moments at which an fsync was under way, never before what is required of the file |
//! | the kernel's or e2fsck's view of a volume that has stopped | our checker is asked all the same; e2fsck blames recorded orphans, which the next mount frees |
//! | a device that lies | everything may be gone; only panics and hangs count, and the same run on an honest device loses nothing |
//!
//! # Example
//! `create /a`, `write /a 0+4096`, `create /b`, `fsync /a`, crash during `rename /a /c`: `/a` or `/c`
//! must exist with its 4096 bytes. Whether `/b` exists follows from `M`: it must if `/c` does, since
//! the rename came later; it may be missing otherwise only if the commit that fsync forced had begun
//! before `/b` was made, so `M` is 2 or more, not 4.

mod check;
mod failures;
mod file;
mod history;
mod roll_forward;
#[cfg(test)]
mod tests;
mod verdict;

pub use failures::{Histories, Tolerance};
pub use history::{Divergence, History};
pub use verdict::{Explanation, Violation};
