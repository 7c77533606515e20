//! Handles: the only way to change metadata of a journaled volume.

use std::sync::Arc;

use steadfs_base::{DevBlock, IoTag, Tid};
use steadfs_cache::{MetaBuf, MetaMut};
use steadfs_rt::{PANICKED, RankScopeGuard, Unwinding, inherit};

use crate::transaction::JournalState;
use crate::{Journal, JournalError};

/// A part of a transaction: the changes of one operation, all or nothing. It ends when it is dropped. Dropped by a
/// panic it aborts the journal, because an incomplete change must not be committed.
///
/// A handle is begun by a task that holds the operation's locks. While it is open the task does not wait for
/// another handle, for a commit, or for a lock that a task waiting in [`Journal::begin`] may hold.
#[must_use]
pub struct Handle<'j> {
    journal: &'j Journal,
    tid: Tid,
    /// The caller's.
    tag: IoTag,
    /// Credits not spent yet.
    left: u32,
    /// Between two transactions, in [`Handle::restart`].
    ended: bool,
    /// An open handle counts as a lock: in builds with debug assertions, its task panics if it takes or
    /// waits for something that must not be taken inside a handle.
    rank_scope: Option<RankScopeGuard<'j>>,
    unwinding: Unwinding,
}

impl<'j> Handle<'j> {
    pub(crate) fn new(journal: &'j Journal, tid: Tid, credits: u32, tag: IoTag) -> Self {
        Self {
            journal,
            tid,
            tag,
            left: credits,
            ended: false,
            rank_scope: Some(journal.open_handle.enter()),
            unwinding: Unwinding::watch(),
        }
    }

    /// The transaction that this handle is part of.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// The journal.
    pub fn journal(&self) -> &'j Journal {
        self.journal
    }

    pub(crate) fn tag(&self) -> IoTag {
        self.tag
    }

    /// Credits not spent yet.
    pub fn credits(&self) -> u32 {
        self.left
    }

    /// Locks a block for changing as part of this transaction. A block that is not yet part of the
    /// transaction costs a credit; if the handle has none left, one more is reserved if there is space.
    /// The change must be complete when the handle ends.
    ///
    /// # Errors
    /// [`JournalError::Aborted`], [`JournalError::CreditsUsedUp`], [`JournalError::Corrupt`] if the block
    /// also belongs to another object of the volume. The block is not changed then.
    pub fn write<'b>(&mut self, buf: &'b Arc<MetaBuf>) -> Result<MetaMut<'b>, JournalError> {
        let mut content = buf.lock();
        match content.tid() {
            Some(tid) => assert_eq!(
                tid, self.tid,
                "a buffer's transaction is the running one, because a commit's snapshot clears it"
            ),
            None => {
                self.join(buf)?;
                content.set_tid(Some(self.tid));
            }
        }
        Ok(content)
    }

    /// Makes the block part of the transaction. The caller has its content locked.
    fn join(&mut self, buf: &Arc<MetaBuf>) -> Result<(), JournalError> {
        let mut state = self.journal.state.lock();
        state.check()?;
        if self.left == 0 && !self.reserve_more(&mut state, 1) {
            return Err(JournalError::CreditsUsedUp);
        }
        let running = state
            .running
            .as_mut()
            .expect("a transaction runs while a handle of it is open");
        assert_eq!(
            running.tid, self.tid,
            "a transaction stays while a handle of it is open"
        );
        if running.blocks.contains_key(&buf.block().0) {
            // A block has one buffer, which knows its transaction. A second buffer exists only if the volume is
            // corrupt: another object that also claims the block has freed it, and its buffer left the cache.
            let what = format!("block {} belongs to two objects", buf.block());
            return Err(JournalError::Corrupt(what));
        }
        running.revokes.remove(&buf.block());
        running.blocks.insert(buf.block().0, Arc::clone(buf));
        assert!(
            self.left > 0 && running.reserved > 0,
            "the credits of open handles are reserved in the transaction"
        );
        running.reserved -= 1;
        self.left -= 1;
        Ok(())
    }

    /// A metadata block is freed: it leaves the transaction and the cache, and is revoked if the log may
    /// hold an older copy, which costs a credit unless the block was part of the transaction. The
    /// allocator must not reuse the block before [`Journal::on_commit`], except as metadata in this
    /// same transaction.
    ///
    /// # Errors
    /// [`JournalError::Aborted`], [`JournalError::CreditsUsedUp`].
    pub fn forget(&mut self, block: DevBlock) -> Result<(), JournalError> {
        let joined = {
            let state = self.journal.state.lock();
            state.check()?;
            let running = state
                .running
                .as_ref()
                .expect("a transaction runs while a handle of it is open");
            running.blocks.get(&block.0).cloned()
        };
        if let Some(buf) = &joined {
            buf.lock().set_tid(None);
        }
        let has_copy = self.journal.log_has_copy(block);
        {
            let mut state = self.journal.state.lock();
            let running = state
                .running
                .as_mut()
                .expect("a transaction runs while a handle of it is open");
            assert_eq!(
                running.tid, self.tid,
                "a transaction stays while a handle of it is open"
            );
            running.blocks.remove(&block.0);
            let revoke = has_copy && !running.revokes.contains(&block);
            if revoke && joined.is_none() {
                if self.left == 0 && !self.reserve_more(&mut state, 1) {
                    return Err(JournalError::CreditsUsedUp);
                }
                self.left -= 1;
            }
            let running = state
                .running
                .as_mut()
                .expect("a transaction runs while a handle of it is open");
            if revoke {
                let spent = u32::from(joined.is_none());
                assert!(
                    running.reserved >= spent,
                    "the credits of open handles are reserved in the transaction"
                );
                running.reserved -= spent;
                running.revokes.insert(block);
            }
        }
        self.journal.cache.forget(block);
        Ok(())
    }

    /// Reserves `credits` more. False if the transaction or the log has no space or the transaction is
    /// locked: end the handle at a consistent point ([`Handle::restart`]).
    #[must_use]
    pub fn extend(&mut self, credits: u32) -> bool {
        let mut state = self.journal.state.lock();
        let closing = state.running.as_ref().is_none_or(|running| running.locked);
        state.aborted.is_none() && !closing && self.reserve_more(&mut state, credits)
    }

    /// [`Handle::extend`] for an operation that must roll back its changes before the handle can end: reserves
    /// credits also while the transaction is locked. The commit waits for this handle.
    #[must_use]
    pub fn extend_while_locked(&mut self, credits: u32) -> bool {
        let mut state = self.journal.state.lock();
        state.aborted.is_none() && self.reserve_more(&mut state, credits)
    }

    /// Reserves more credits if there is space, even if the transaction is locked.
    fn reserve_more(&mut self, state: &mut JournalState, credits: u32) -> bool {
        let costs = &self.journal.costs;
        let free = state.log.free();
        let running = state
            .running
            .as_mut()
            .expect("a transaction runs while a handle of it is open");
        let need = running.log_blocks(costs, credits);
        if need > costs.max_transaction || need > free {
            return false;
        }
        assert!(running.open > 0, "only an open handle reserves credits");
        running.reserved += credits;
        self.left += credits;
        true
    }

    /// Ends this part and begins another with `credits`, perhaps in a later transaction. The changes so
    /// far must be consistent by themselves. The task keeps its locks.
    ///
    /// # Errors
    /// As [`Journal::begin`]; the handle has ended then.
    pub fn restart(&mut self, credits: u32) -> Result<(), JournalError> {
        self.end();
        self.tid = self.journal.join(credits, self.tag)?;
        self.left = credits;
        self.ended = false;
        self.rank_scope = Some(self.journal.open_handle.enter());
        Ok(())
    }

    fn end(&mut self) {
        if self.ended {
            return;
        }
        self.ended = true;
        if self.unwinding.has_begun() {
            // No commit of this transaction runs while the handle is open.
            self.journal.shutdown(PANICKED);
        }
        let mut state = self.journal.state.lock();
        let running = state
            .running
            .as_mut()
            .expect("a transaction runs while a handle of it is open");
        assert_eq!(
            running.tid, self.tid,
            "a transaction stays while a handle of it is open"
        );
        assert!(running.open > 0, "an open handle is counted");
        assert!(
            running.reserved >= self.left,
            "the credits of open handles are reserved in the transaction"
        );
        running.open -= 1;
        let own = running
            .holders
            .iter()
            .position(|h| *h == inherit::current_task());
        running
            .holders
            .swap_remove(own.expect("a handle ends in the task that began it"));
        running.reserved -= self.left;
        let drained = running.locked && running.open == 0;
        self.left = 0;
        let awaited = state.waiting_credits > 0;
        drop(state);
        if drained {
            self.journal.drained.notify_all();
        }
        if awaited {
            self.journal.admission.notify_all();
        }
        self.rank_scope = None;
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
