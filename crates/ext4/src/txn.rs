//! Transactions: every change of metadata belongs to a handle, with a journal or without.
//!
//! With a journal a handle's changes become durable together or not at all. Without one a change only marks its block
//! dirty, and write-back writes it in no order, as ext2 does.
//!
//! **Half-done changes.** A handle knows whether it changed a block since its last consistent point. An operation that
//! ends there, by an error that it has not undone or by a panic, is not committed: the volume stops with that error as
//! its cause, and is marked for e2fsck. Operations therefore pin their blocks first ([`crate::pins`]); an operation
//! that undoes its changes, or whose parts are consistent by themselves, declares that ([`Handle::consistent`],
//! [`Handle::consistent_since`]).

use std::fmt::Display;
use std::sync::{Arc, OnceLock};

use steadfs_base::{DevBlock, IoTag, Tid};
use steadfs_cache::{MetaBuf, MetaCache, MetaMut};
use steadfs_jbd2::{FastCommitRefusal, Journal, JournalError};
use steadfs_vfs::{FsError, Result};

use crate::disk::Geometry;
use crate::fast_commit::refusal;
use crate::inode::Inode;
use crate::quota;

/// The transactions of a volume: in its journal, or without one in place, in no order.
pub struct Txns {
    cache: Arc<MetaCache>,
    /// The volume has a journal, which is open once the volume is mounted for writing.
    journaled: bool,
    journal: OnceLock<Arc<Journal>>,
    /// Stops the volume and marks it as having errors.
    stop: OnceLock<StopVolume>,
    /// Fast commits describe what handles change ([`Handle::track`]).
    fast_commits: bool,
    /// Credits of each handle for the counts of quota, beside those that its operation asks for.
    quota_credits: u32,
}

/// Stops a volume for the given cause.
type StopVolume = Box<dyn Fn(&str) + Send + Sync>;

/// The right to change metadata, until [`Handle::end`]. A task with a handle never waits for file data (but in
/// [`Txns::commit_beside`]), for an inode lock or for another handle.
pub struct Handle<'a> {
    txns: &'a Txns,
    kind: HandleKind<'a>,
    /// Metadata blocks are allocated from the reservation of delayed data.
    reserved: bool,
    /// Clusters that its metadata leaves free otherwise: those that its caller may not use.
    kept: u64,
    /// Blocks were changed since the last consistent point.
    changed: bool,
    /// Why its changes must not be committed.
    half_done: Option<String>,
    fast: FastCommitMode,
    /// Attribute inodes that nothing refers to any more; they become orphans before the handle ends.
    unreferenced: Vec<Arc<Inode>>,
}

/// What a handle means for the fast commits of its transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FastCommitMode {
    /// The volume has none.
    None,
    /// Its changes are recorded for them.
    Tracked,
    /// Its first change refuses them.
    Untracked,
    /// It has refused them.
    Refused,
}

/// Whether a handle had changes at some point: see [`Handle::consistent_since`].
#[derive(Clone, Copy, Debug)]
pub struct Savepoint(bool);

/// The cause if an operation ended in the middle without an error: by a panic.
const UNFINISHED: &str = "an operation ended in the middle of a change";

enum HandleKind<'a> {
    Journal(steadfs_jbd2::Handle<'a>),
    Direct(&'a MetaCache),
}

/// A journal's failure as the caller of a file-system call sees it.
pub fn journal_error(error: JournalError) -> FsError {
    match error {
        JournalError::ReadOnly => FsError::ReadOnly,
        JournalError::Frozen => FsError::Busy,
        JournalError::Unsupported(what) => FsError::BadOption(format!("not supported: {what}")),
        JournalError::TooLarge { .. } => FsError::BadOption(error.to_string()),
        JournalError::Aborted(cause) => FsError::refused(&cause),
        other => FsError::Stopped(other.to_string()),
    }
}

impl Txns {
    /// For a volume with or without a journal, which is not open yet. Changes may be recorded for fast commits, but not
    /// with clusters, as a recorded range does not say which clusters its blocks share with others, nor with quota, as no
    /// record has the counts.
    pub fn new(cache: Arc<MetaCache>, journaled: bool, geo: &Geometry) -> Self {
        let quota_credits = quota::credits(geo);
        Self {
            cache,
            journaled,
            fast_commits: geo.cluster_bits == 0 && quota_credits == 0,
            quota_credits,
            journal: OnceLock::new(),
            stop: OnceLock::new(),
        }
    }

    /// Sets the callback for a half-done change on a volume without a journal; it gets the cause. A journal has its own
    /// callbacks.
    pub fn on_half_done(&self, stop: Box<dyn Fn(&str) + Send + Sync>) {
        // A remount calls this again; the first callback stays.
        let _ = self.stop.set(stop);
    }

    /// Sets the open journal for all later handles.
    pub fn set_journal(&self, journal: Arc<Journal>) {
        assert!(self.journaled, "only a volume with a journal opens one");
        let opened = self.journal.set(journal);
        assert!(opened.is_ok(), "a journal is opened once");
    }

    /// Handles are allowed again, after [`Journal::close`].
    pub fn reopen(&self) {
        if let Some(journal) = self.journal.get() {
            journal.reopen();
        }
    }

    /// Begins an operation that changes at most `credits` blocks. May wait for a commit or for log space, so the caller
    /// holds no locks but those of inodes.
    pub fn begin(&self, credits: u32) -> Result<Handle<'_>> {
        self.begin_as(credits, IoTag::default())
    }

    /// Begins an operation of a caller of tag `tag`: requests that it waits for are boosted to that tag.
    pub fn begin_as(&self, credits: u32, tag: IoTag) -> Result<Handle<'_>> {
        let kind = match self.journal.get() {
            Some(journal) => {
                let handle = journal.begin_as(credits + self.quota_credits, tag);
                HandleKind::Journal(handle.map_err(journal_error)?)
            }
            None if self.journaled => return Err(FsError::ReadOnly),
            None => HandleKind::Direct(&self.cache),
        };
        Ok(Handle {
            txns: self,
            kind,
            reserved: false,
            kept: 0,
            changed: false,
            half_done: None,
            fast: self.fast_commits(),
            unreferenced: Vec::new(),
        })
    }

    /// What a new handle means for fast commits.
    fn fast_commits(&self) -> FastCommitMode {
        match self.journal.get() {
            Some(journal) if journal.has_fast_commit_area() => FastCommitMode::Untracked,
            _ => FastCommitMode::None,
        }
    }

    /// Runs an operation in a handle of `credits` for a caller of tag `tag`. The volume stops if the operation fails
    /// after a change.
    ///
    /// # Errors
    /// The operation's error, or that of beginning the handle.
    pub fn run<T, E: Display + From<FsError>>(
        &self,
        credits: u32,
        tag: IoTag,
        operation: impl FnOnce(&mut Handle<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut handle = self.begin_as(credits, tag)?;
        let result = operation(&mut handle);
        handle.end(result)
    }

    /// Commits with one more change that depends on file data in flight: see [`Journal::commit_beside`]. Returns whether
    /// it is durable.
    ///
    /// # Errors
    /// The journal has failed.
    pub fn commit_beside(
        &self,
        credits: u32,
        tag: IoTag,
        change: impl FnOnce(&mut Handle<'_>) -> bool,
    ) -> Result<bool> {
        let Some(journal) = self.journal.get() else {
            return Ok(false);
        };
        let mut written = false;
        let change = |handle: steadfs_jbd2::Handle<'_>| {
            let mut handle = Handle {
                txns: self,
                kind: HandleKind::Journal(handle),
                reserved: false,
                kept: 0,
                changed: false,
                half_done: None,
                fast: self.fast_commits(),
                unreferenced: Vec::new(),
            };
            written = change(&mut handle);
            written
        };
        journal
            .commit_beside(credits + self.quota_credits, tag, change)
            .map_err(journal_error)?;
        Ok(written)
    }

    /// Stops the volume because of a half-done change.
    fn stop_half_done(&self, cause: &str) {
        let cause = format!("a change is half done: {cause}");
        match (self.journal.get(), self.stop.get()) {
            (Some(journal), _) => journal.abort(&cause),
            (None, Some(stop)) => stop(&cause),
            (None, None) => {}
        }
    }

    /// The journal, if it is open.
    pub fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    /// Whether the volume has a journal, open or not.
    pub fn is_journaled(&self) -> bool {
        self.journaled
    }

    /// The metadata cache, on a volume without a journal: dirty blocks may be written at any time.
    pub fn direct(&self) -> Option<&Arc<MetaCache>> {
        (!self.journaled).then_some(&self.cache)
    }

    /// Makes the changes of all handles up to transaction `tid` durable.
    pub fn commit(&self, tid: Tid, tag: IoTag) -> Result<()> {
        match self.journal.get() {
            Some(journal) => journal.commit(tid, tag).map(|_| ()).map_err(journal_error),
            None => Ok(()),
        }
    }
}

impl Handle<'_> {
    /// Sets whether metadata blocks are allocated from a reservation (for the map of delayed data) or from unreserved
    /// space.
    pub fn use_reservation(&mut self, reserved: bool) {
        self.reserved = reserved;
    }

    /// Whether metadata blocks are allocated from a reservation.
    pub fn uses_reservation(&self) -> bool {
        self.reserved
    }

    /// Sets how many free clusters metadata leaves to root, if it is not allocated from a reservation.
    pub fn keep_for_root(&mut self, clusters: u64) {
        self.kept = clusters;
    }

    /// The free clusters that metadata leaves to root.
    pub fn kept_for_root(&self) -> u64 {
        self.kept
    }

    /// Locks a block for changing. Costs a credit the first time a transaction sees the block.
    pub fn write<'b>(&mut self, buf: &'b Arc<MetaBuf>) -> Result<MetaMut<'b>> {
        self.changes_something();
        let content = match &mut self.kind {
            HandleKind::Journal(handle) => handle.write(buf).map_err(journal_error)?,
            HandleKind::Direct(cache) => cache.lock_dirty(buf),
        };
        self.changed = true;
        Ok(content)
    }

    /// All that the handle changes is recorded for fast commits ([`crate::fast_commit`]), or refuses them.
    pub fn track(&mut self) {
        if self.fast == FastCommitMode::Untracked && self.txns.fast_commits {
            self.fast = FastCommitMode::Tracked;
        }
    }

    /// Whether the handle's changes are to be recorded for fast commits.
    pub fn is_tracked(&self) -> bool {
        self.fast == FastCommitMode::Tracked
    }

    /// The handle changes something that fast commits do not describe: its transaction is committed as a whole.
    pub fn refuse_fast_commits(&mut self, why: FastCommitRefusal) {
        if let HandleKind::Journal(handle) = &mut self.kind
            && !matches!(self.fast, FastCommitMode::None | FastCommitMode::Refused)
        {
            handle.refuse_fast_commits(why);
            self.fast = FastCommitMode::Refused;
        }
    }

    fn changes_something(&mut self) {
        if self.fast == FastCommitMode::Untracked {
            self.refuse_fast_commits(refusal::UNTRACKED);
        }
    }

    /// Ends the operation with its result. An error after a change that was not undone stops the volume.
    pub fn end<T, E: Display>(mut self, result: Result<T, E>) -> Result<T, E> {
        debug_assert!(
            self.unreferenced.is_empty() || result.is_err(),
            "attribute inodes without references are orphans"
        );
        match &result {
            Ok(_) => self.changed = false,
            Err(error) if self.changed => self.must_not_commit(error),
            Err(_) => {}
        }
        result
    }

    /// Nothing refers to an attribute inode any more ([`Ext4::orphan_values`](crate::fs::Ext4::orphan_values)).
    pub fn leave_unreferenced(&mut self, value: Arc<Inode>) {
        self.unreferenced.push(value);
    }

    /// Takes the attribute inodes that nothing refers to any more.
    pub fn take_unreferenced(&mut self) -> Vec<Arc<Inode>> {
        std::mem::take(&mut self.unreferenced)
    }

    /// The changes so far must not be committed. The first reason is kept.
    pub fn must_not_commit(&mut self, why: &impl Display) {
        self.half_done.get_or_insert_with(|| why.to_string());
    }

    /// Runs an atomic step: if it fails after a change, nothing of the handle is committed, even if the caller handles
    /// the error.
    pub fn step<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = std::mem::replace(&mut self.changed, false);
        let result = step(self);
        if let Err(error) = &result
            && self.changed
        {
            self.must_not_commit(error);
        }
        self.changed |= before;
        result
    }

    /// The changes so far are consistent by themselves: a later error leaves nothing half done.
    pub fn consistent(&mut self) {
        self.changed = false;
    }

    /// The state for [`Handle::consistent_since`].
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.changed)
    }

    /// The changes since `savepoint` were undone, or are consistent by themselves.
    pub fn consistent_since(&mut self, savepoint: Savepoint) {
        self.changed = savepoint.0;
    }

    /// The block is no longer metadata: no older copy of it may be written or replayed (revoke). One credit.
    pub fn forget(&mut self, block: DevBlock) -> Result<()> {
        self.changes_something();
        match &mut self.kind {
            HandleKind::Journal(handle) => handle.forget(block).map_err(journal_error)?,
            HandleKind::Direct(cache) => cache.forget(block),
        }
        self.changed = true;
        Ok(())
    }

    /// Starts to write the transaction's log blocks as they are now, in [`Txns::commit_beside`].
    pub fn write_log_ahead(&mut self) {
        if let HandleKind::Journal(handle) = &mut self.kind {
            handle.write_log_ahead();
        }
    }

    /// The transaction this handle belongs to (always the same without a journal).
    pub fn tid(&self) -> Tid {
        match &self.kind {
            HandleKind::Journal(handle) => handle.tid(),
            HandleKind::Direct(_) => Tid(0),
        }
    }

    /// Whether a journal holds the changes.
    pub fn is_journaled(&self) -> bool {
        matches!(self.kind, HandleKind::Journal(_))
    }

    /// Makes sure that at least `credits` more blocks can be changed. False: the transaction is full, and the caller
    /// brings its operation to a consistent point and calls [`Handle::restart`].
    #[must_use]
    pub fn extend(&mut self, credits: u32) -> bool {
        let credits = credits + self.txns.quota_credits;
        match &mut self.kind {
            HandleKind::Journal(handle) => {
                let have = handle.credits();
                have >= credits || handle.extend(credits - have)
            }
            HandleKind::Direct(_) => true,
        }
    }

    /// [`Handle::extend`] for an operation that must undo its changes before it can end: succeeds also while the
    /// transaction is locked for its commit. False: there is no room.
    #[must_use]
    pub fn extend_while_locked(&mut self, credits: u32) -> bool {
        let credits = credits + self.txns.quota_credits;
        match &mut self.kind {
            HandleKind::Journal(handle) => {
                let have = handle.credits();
                have >= credits || handle.extend_while_locked(credits - have)
            }
            HandleKind::Direct(_) => true,
        }
    }

    /// Ends this operation at a consistent point and begins another in its place; a crash may come in between.
    pub fn restart(&mut self, credits: u32) -> Result<()> {
        self.consistent();
        if let Some(cause) = &self.half_done {
            return Err(FsError::Stopped(cause.clone()));
        }
        if self.fast == FastCommitMode::Refused {
            // The next part may belong to another transaction. What refused this one may go on there.
            self.fast = FastCommitMode::Untracked;
        }
        match &mut self.kind {
            HandleKind::Journal(handle) => {
                let credits = credits + self.txns.quota_credits;
                handle.restart(credits).map_err(journal_error)
            }
            HandleKind::Direct(_) => Ok(()),
        }
    }
}

impl Drop for Handle<'_> {
    /// Runs before the journal's handle ends, so that a commit that waits for the handle finds the journal aborted.
    fn drop(&mut self) {
        if self.changed {
            self.must_not_commit(&UNFINISHED);
        }
        if let Some(cause) = &self.half_done {
            self.txns.stop_half_done(cause);
        }
    }
}

#[cfg(test)]
mod tests;
