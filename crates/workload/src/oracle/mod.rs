//! The oracle: decides whether the state found after a crash is one that the run allows (as CrashMonkey's oracle).
//!
//! # Problem
//! After a power cut a journaling file system shows an earlier state. Which ones are allowed follows from the
//! acknowledgements: a change covered by a returned fsync, fdatasync or sync must be there; any other change may be
//! there or not; and nothing may be there that never was.
//!
//! # Terms
//! A task's *moment* `k` is its state after its first `k` operations; moment 0 is the synced setup. At a crash some
//! operations had returned; each task may have begun one more. The last moment that the crash can show is the one after
//! the last operation that had begun.
//!
//! # Rules
//! 1. **Names and attributes are a prefix.** There is one moment `M` per task such that all its names, types, hard
//!    links, permission bits, owners, device numbers, link targets, extended attributes and explicitly set times are
//!    those of its moment `M`. (Metadata operations are atomic in the journal, and transactions commit in order.)
//! 2. **Acknowledged changes are there.** `M` is at least the last operation that an acknowledgement covers:
//!    * fsync of an inode: the last operation before it that changed that inode (its creation, its names, its
//!      attributes, its size; of a directory: its entries), or wrote to a hole of it or extended it. So the name
//!      through which a new or renamed file was synced is there.
//!    * fdatasync: the same, but only for the inode's creation, its size and its blocks. On a directory it is fsync:
//!      names are a directory's data (SQLite relies on it, and the kernel does it).
//!    * sync: everything before it; of other tasks, everything that had returned when it began.
//! 3. **Prefixes agree between tasks.** If an operation that changed names or attributes had returned before an
//!    operation of another task began, the second is not there without the first.
//! 4. **Sizes.** Data reaches the disk later than write(2) returns, so a size may lag behind `M`. It is the exact size
//!    at the last acknowledgement or truncate (or other operation that sets the size) up to `M`, or the size after a
//!    later write up to `M`, or a block boundary in between (any size in between if one of them is a copy, which is
//!    done in pieces). A growing operation right after `M` may be half done: block boundaries up to its end.
//! 5. **Content, by sectors of 512 bytes.** Each sector is as it was at one moment `t`, except that bytes which
//!    truncates between `t` and `M` cut off are zero. The moment `t` is
//!    * not before the last acknowledgement that covers the file's data,
//!    * not before a punch or zeroing of the sector's whole block, or a shift of it, up to `M` (these are metadata;
//!      zeroes in a part of a block are data, and may be written later),
//!    * not before the write that extended the file over it, if the size found covers it and is not just what another
//!      operation set: data is on the disk before the size that covers it,
//!    * before any truncate, punch or shift after `M` that frees the sector's whole block (until that is committed the
//!      block keeps its content and may not be allocated to another file), except that the operation right after `M`
//!      may be half done if it is not a truncate; a zeroed range keeps its blocks, so what is written later may be
//!      there early,
//!    * not after `M` if at `M` the block had never been written or allocated (the block map is metadata).
//!
//!    So an overwritten block is old or new, a filled hole is zero or new, appended data is new as far as the size
//!    goes, and no block ever shows content of another file, or of this file before a truncate.
//! 6. **Nothing else.** No other name exists, and links, listings and lookups agree (see
//!    [`observe`](crate::observe())).
//!
//! The first six rules are those of ext4 with `data=ordered`: a file system that commits more than required passes as
//! well.
//!
//! # Roll-forward
//! f2fs makes a single file durable, beside its last checkpoint, and its recovery restores it without earlier changes
//! of other files. With [`Recovery::RollForward`](crate::Recovery) rule 7 replaces rule 2:
//!
//! 7. **Each file for itself.** `M` is the moment of a checkpoint: at least the last sync's. A regular file may be as
//!    it was at the moment `F` of an fsync or fdatasync of it (begun, not necessarily returned) after `M`: all its
//!    metadata, with its exact size; rules 4 and 5 hold for its content with `F` in the place of `M`. If it was created
//!    after `M`, it has the one name that it had at `F`, in its directory, at the directory's path at `M`. The
//!    directory's times are then unknown.
//!
//!    That holds only where recovery can do it; otherwise an fsync must take a checkpoint. The conditions: the file has
//!    one name at `F`; its directory exists at `M`, with the same extended attributes as at `F`; a file that exists at
//!    `M` has that name there (recovery makes no second one); if the file is new, every other file that had the name
//!    since `M` is removed at `F` (a file that has it loses it, from the checkpoint or rolled forward); and with
//!    `strict`, nothing was renamed into the directory since, and the directory was not renamed. Where it cannot, the file
//!    must be at `M` as it was synced, under the same names.
//!
//!    Other files may be written along with an fsync or fdatasync of a file (fsync clustering): a file whose content or
//!    size was changed before may be as it was at a moment `F` while such a call of any task was in progress, by the
//!    same rules for its name. No task requested it, so rule 4 holds for its size with `F` in the place of `M`.
//!
//!    What an fsync, fdatasync or sync acknowledged (as in rule 2) is at or before `M`, or, of such a file, at or
//!    before its `F`. So a rename, a removal or an attribute change that was not synced may be undone while a later
//!    change of another file is there, but only for files that were synced or clustered.
//!
//! # Failed operations
//! If the device fails or the volume is full ([`Histories`]), a failed operation was done or was not, and a change of
//! content may have been done in part: any history that explains the results is accepted. Data that a failing device
//! did not write is not on disk when a truncate sets the size: that size is not exact then, but may lag like that of a
//! write.
//!
//! # Why alternatives cannot hide a loss
//! For each rule that accepts several outcomes we checked whether the loss of acknowledged data could hide behind it.
//! Everything that an acknowledgement covers is outside all of them: `M`, `F` and `t` begin there.
//!
//! | accepted | why a loss cannot hide |
//! |---|---|
//! | any moment from the last acknowledgement on (1, 2) | later changes were not acknowledged; the state must be one moment's, so it is not mixed |
//! | a size that lags, or is at a block boundary (4) | never below the acknowledged one: both ends count from there. A copy may end anywhere: it is done in pieces |
//! | sectors each of a moment of its own (5) | none before the acknowledgement, nor before the append that the size shows (the kernel's f2fs shows zeros there: it would fail). Zeros that were not synced are in holes and beyond a size that was set |
//! | content from the other outcome of a failed change | single sectors of that change only, and its caller got an error; never names and attributes |
//! | with a failing device: done or not done | only operations that returned an I/O error. A successful operation is binding, before the failure and after: an fsync that succeeds on a device that failed before acknowledges everything |
//! | with a failing device: a size as before a truncate | down to the acknowledged size, no further |
//! | a volume that has stopped: what it shows while mounted | it is not acknowledged; after a crash or a mount everything before the stop counts as always |
//! | a full volume: ENOSPC, a short write | never from a call that makes data durable; and never too early (the explorer compares with the free space, if one task runs alone, for all but extended attributes) |
//! | too many failures to follow: no verdict | the explorer counts these runs, and its tests limit their number |
//! | times that no call set, access times after an observer's reads, times of directories in which recovery made a name | they carry no content, name or explicit attribute |
//! | a checkpoint from before an fsync, where a file cannot be rolled forward (7) | it has the names, the size, the content and the attributes that were synced: the changes in between left it as it was |
//! | files clustered with another's fsync (7) | only moments at which an fsync was in progress, never before what is required of the file |
//! | the kernel's or e2fsck's view of a volume that has stopped | our checker must accept it; e2fsck rejects recorded orphans, which the next mount frees |
//! | a device with lost FLUSHes | everything may be lost; only panics and hangs count, and the same run without the fault loses nothing |
//!
//! # Example
//! `create /a`, `write /a 0+4096`, `create /b`, `fsync /a`, crash during `rename /a /c`: `/a` or `/c` must exist with
//! its 4096 bytes. Whether `/b` must exist follows from `M`: it must if `/c` does, since the rename came later;
//! otherwise it may be missing only if the commit that fsync forced had begun before `/b` was created, so `M` is 2 or
//! more, not 4.

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
