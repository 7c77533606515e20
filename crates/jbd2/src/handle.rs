//! Handles: the only way to change metadata of a journaled volume.

use std::sync::Arc;

use steadfs_base::{DevBlock, IoTag, Tid};
use steadfs_cache::{MetaBuf, MetaMut};
use steadfs_rt::{PANICKED, RankScopeGuard, Unwinding, inherit};

use crate::transaction::JournalState;
use crate::{Journal, JournalError};

/// A part of a transaction: what one operation changes, all or nothing. It ends when it is dropped. Dropped by a panic
/// it stops the journal: what was half changed must not be committed.
///
/// A handle is begun by a task that holds the operation's locks; while it is open the task waits for
/// no other handle, for no commit, and for no lock that a task waiting in [`Journal::begin`] may hold.
#[must_use]
pub struct Handle<'j> {
    journal: &'j Journal,
    tid: Tid,
    /// Whose it is.
    tag: IoTag,
    /// Credits not spent yet.
    left: u32,
    /// It is between two transactions, in [`Handle::restart`].
    ended: bool,
    /// An open handle counts as a lock: what its task must not take or wait for while it is open panics,
    /// in builds with debug assertions.
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

    /// Credits not spent yet.
    pub fn credits(&self) -> u32 {
        self.left
    }

    /// Locks a block for changing as part of this transaction. The first time the transaction meets
    /// the block costs a credit; if the handle has none left, one more is taken if there is room.
    /// The whole change is in place before the handle ends.
    ///
    /// # Errors
    /// [`JournalError::Aborted`], [`JournalError::CreditsUsedUp`], [`JournalError::Corrupt`] where the block is
    /// something else, too; it is not changed then.
    pub fn write<'b>(&mut self, buf: &'b Arc<MetaBuf>) -> Result<MetaMut<'b>, JournalError> {
        let mut content = buf.lock();
        match content.tid() {
            Some(tid) => assert_eq!(
                tid, self.tid,
                "a snapshot clears the number it was taken for"
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
            .expect("it runs while a handle is open");
        assert_eq!(running.tid, self.tid);
        if running.blocks.contains_key(&buf.block().0) {
            // A block has one buffer, which knows its transaction, while it is one thing. This one left the cache when
            // somebody freed the block who had it for something else.
            let what = format!("block {} is two things at once", buf.block());
            return Err(JournalError::Corrupt(what));
        }
        running.revokes.remove(&buf.block());
        running.blocks.insert(buf.block().0, Arc::clone(buf));
        running.reserved -= 1;
        self.left -= 1;
        Ok(())
    }

    /// A metadata block is freed: it leaves the transaction and the cache, and is revoked if the log
    /// may hold an older copy, which costs a credit unless the block was part of the transaction.
    /// Whoever allocates the block again waits for [`Journal::on_commit`] first, unless it becomes
    /// metadata in this same transaction.
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
                .expect("it runs while a handle is open");
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
                .expect("it runs while a handle is open");
            assert_eq!(running.tid, self.tid);
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
                .expect("it runs while a handle is open");
            if revoke {
                running.reserved -= u32::from(joined.is_none());
                running.revokes.insert(block);
            }
        }
        self.journal.cache.forget(block);
        Ok(())
    }

    /// Asks for `credits` more. False if the transaction or the log has no room or the transaction
    /// is being closed: end the handle at a consistent point ([`Handle::restart`]).
    #[must_use]
    pub fn extend(&mut self, credits: u32) -> bool {
        let mut state = self.journal.state.lock();
        let closing = state.running.as_ref().is_none_or(|running| running.locked);
        state.aborted.is_none() && !closing && self.reserve_more(&mut state, credits)
    }

    /// The same for who cannot end yet, because he has to take back what he did: also where the transaction is being
    /// closed, which waits for him.
    #[must_use]
    pub fn extend_while_locked(&mut self, credits: u32) -> bool {
        let mut state = self.journal.state.lock();
        state.aborted.is_none() && self.reserve_more(&mut state, credits)
    }

    /// Takes more credits if there is room, even when the transaction is closing.
    fn reserve_more(&mut self, state: &mut JournalState, credits: u32) -> bool {
        let costs = &self.journal.costs;
        let free = state.log.free();
        let running = state
            .running
            .as_mut()
            .expect("it runs while a handle is open");
        let need = running.log_blocks(costs, credits);
        if need > costs.max_transaction || need > free {
            return false;
        }
        running.reserved += credits;
        self.left += credits;
        true
    }

    /// Ends this part and begins another with `credits`, perhaps in a later transaction. What was
    /// changed so far must be consistent by itself. The locks the task holds stay held.
    ///
    /// # Errors
    /// As [`Journal::begin`]; the handle has then ended.
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
            // While the handle is open no commit runs.
            self.journal.shutdown(PANICKED);
        }
        let mut state = self.journal.state.lock();
        let running = state
            .running
            .as_mut()
            .expect("it runs while a handle is open");
        assert_eq!(running.tid, self.tid);
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
