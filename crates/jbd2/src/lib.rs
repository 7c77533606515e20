//! The jbd2 journal: transactions, log space, commit, reclaim, revoke and replay.
