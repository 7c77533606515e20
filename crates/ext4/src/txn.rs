//! Transactions: every change of metadata belongs to a handle, with a journal or without.
//!
//! With a journal a handle's changes reach the disk together or not at all. Without one a change only
//! marks its block dirty, and write-back takes it home in no order, as ext2 does.

use std::sync::Arc;

use steadfs_base::{DevBlock, IoTag, Tid};
use steadfs_cache::{MetaBuf, MetaCache, MetaMut};
use steadfs_jbd2::{Journal, JournalError};
use steadfs_vfs::{FsError, Result};

/// Where a volume's changes go.
pub enum Txns {
    /// Into its journal.
    Journal(Arc<Journal>),
    /// Home, in no order.
    Direct(Arc<MetaCache>),
}

/// The right to change metadata; dropping it ends the operation. While it lives, its holder never
/// waits for file data, for an inode lock or for another handle.
pub struct Handle<'a>(Inner<'a>);

enum Inner<'a> {
    Journal(steadfs_jbd2::Handle<'a>),
    Direct(&'a MetaCache),
}

/// A journal's failure as the caller of a file-system call sees it.
pub fn journal_error(error: JournalError) -> FsError {
    match error {
        JournalError::ReadOnly => FsError::ReadOnly,
        other => FsError::Stopped(other.to_string()),
    }
}

impl Txns {
    /// Begins an operation that changes at most `credits` blocks. May wait for a commit or for log
    /// space, so the caller holds inode locks at most.
    pub fn begin(&self, credits: u32) -> Result<Handle<'_>> {
        Ok(Handle(match self {
            Self::Journal(journal) => {
                Inner::Journal(journal.begin(credits).map_err(journal_error)?)
            }
            Self::Direct(cache) => Inner::Direct(cache),
        }))
    }

    /// The journal, if there is one.
    pub fn journal(&self) -> Option<&Arc<Journal>> {
        match self {
            Self::Journal(journal) => Some(journal),
            Self::Direct(_) => None,
        }
    }

    /// Makes everything that handles have changed durable up to transaction `tid`.
    pub fn commit(&self, tid: Tid, tag: IoTag) -> Result<()> {
        match self {
            Self::Journal(journal) => journal.commit(tid, tag).map(|_| ()).map_err(journal_error),
            Self::Direct(_) => Ok(()),
        }
    }
}

impl Handle<'_> {
    /// Locks a block for changing. Costs a credit the first time a transaction sees the block.
    pub fn write<'b>(&mut self, buf: &'b Arc<MetaBuf>) -> Result<MetaMut<'b>> {
        match &mut self.0 {
            Inner::Journal(handle) => handle.write(buf).map_err(journal_error),
            Inner::Direct(cache) => Ok(cache.lock_dirty(buf)),
        }
    }

    /// The block is metadata no more: no older copy of it may ever be written again. A credit.
    pub fn forget(&mut self, block: DevBlock) -> Result<()> {
        match &mut self.0 {
            Inner::Journal(handle) => handle.forget(block).map_err(journal_error),
            Inner::Direct(cache) => {
                cache.forget(block);
                Ok(())
            }
        }
    }

    /// The transaction this handle belongs to (always the same without a journal).
    pub fn tid(&self) -> Tid {
        match &self.0 {
            Inner::Journal(handle) => handle.tid(),
            Inner::Direct(_) => Tid(0),
        }
    }

    /// Whether a journal holds the changes.
    pub fn is_journaled(&self) -> bool {
        matches!(self.0, Inner::Journal(_))
    }

    /// Makes sure that at least `credits` blocks can be changed yet. False: the transaction is full, and the
    /// caller brings its operation to a consistent point and calls [`Handle::restart`].
    #[must_use]
    pub fn extend(&mut self, credits: u32) -> bool {
        match &mut self.0 {
            Inner::Journal(handle) => {
                let have = handle.credits();
                have >= credits || handle.extend(credits - have)
            }
            Inner::Direct(_) => true,
        }
    }

    /// Ends this operation and begins another in its place; a crash may come in between.
    pub fn restart(&mut self, credits: u32) -> Result<()> {
        match &mut self.0 {
            Inner::Journal(handle) => handle.restart(credits).map_err(journal_error),
            Inner::Direct(_) => Ok(()),
        }
    }
}
