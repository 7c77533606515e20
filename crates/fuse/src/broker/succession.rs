//! The succession of servers, as the broker sees it.
//!
//! **Rule.** One hand-over at a time. Servers are numbered; a question about a server is answered by the number of the one
//! that serves now. A server that has ended without handing over has a successor only if it left what that one needs
//! while it served (`standby`): otherwise what it acknowledged without an fsync is lost, so the mount ends, too.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use steadfs_rt::{JoinHandle, Mutex, Rank};

use super::codec::Reply;
use super::commands::{Commands, new_legacy};
use crate::host::Answer;

#[derive(Default)]
struct State {
    /// Number of the server.
    server: u32,
    /// Its hand-over has begun.
    begun: bool,
    /// Why its last hand-over failed.
    failure: Option<String>,
    /// What it has left.
    legacy: Option<OwnedFd>,
    /// What a successor needs if the server ends without handing over; empty: it has none.
    standby: String,
    /// Waits for the server.
    waiter: Option<JoinHandle<()>>,
}

/// The server's number, and its hand-over.
#[derive(Clone)]
pub(super) struct Succession(Arc<Mutex<State>>);

impl Succession {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Rank::Leaf, State::default())))
    }

    /// Begins a hand-over. The server is asked by a task of its own, since it has questions until it has ended.
    pub(super) fn begin(&self, commands: &Arc<Commands>) -> Reply {
        let mut state = self.0.lock();
        let server = Reply::Answer(Answer::Word(state.server));
        if state.begun {
            return server;
        }
        let (this, commands) = (self.clone(), Arc::clone(commands));
        let waiter = steadfs_rt::try_spawn("hand-over", move || {
            let handed_over = commands.hand_over();
            let mut state = this.0.lock();
            match handed_over {
                Ok(legacy) => state.legacy = Some(legacy),
                Err(why) => {
                    tracing::warn!(why, "the server is not replaced");
                    (state.failure, state.begun) = (Some(why), false);
                }
            }
        });
        match waiter {
            Ok(waiter) => {
                (state.begun, state.failure, state.waiter) = (true, None, Some(waiter));
                server
            }
            Err(error) => Reply::Refused(error.to_string()),
        }
    }

    /// Whether `server` has its successor.
    pub(super) fn progress(&self, server: u32) -> Reply {
        let state = self.0.lock();
        match &state.failure {
            Some(why) if state.server == server => Reply::Refused(why.clone()),
            _ => Reply::Answer(Answer::Is(state.server > server)),
        }
    }

    /// Whether the server, which has ended, has handed over.
    pub(super) fn is_handed_over(&self) -> bool {
        let waiter = self.0.lock().waiter.take();
        if let Some(waiter) = waiter {
            waiter.join();
        }
        self.0.lock().legacy.is_some()
    }

    /// See `standby` of the state.
    pub(super) fn set_standby(&self, text: String) {
        self.0.lock().standby = text;
    }

    /// The server has ended without handing over: whether a successor can continue the mount.
    pub(super) fn inherit(&self) -> bool {
        let mut state = self.0.lock();
        let text = std::mem::take(&mut state.standby);
        if text.is_empty() {
            return false;
        }
        match new_legacy(&text) {
            Ok(file) => {
                (state.legacy, state.begun) = (Some(file), true);
                true
            }
            Err(error) => {
                tracing::error!(%error, "the server cannot be replaced");
                false
            }
        }
    }

    /// The file with the legacy, for a successor.
    pub(super) fn legacy(&self) -> Option<OwnedFd> {
        let state = self.0.lock();
        state.legacy.as_ref().and_then(|file| file.try_clone().ok())
    }

    /// The successor serves.
    pub(super) fn succeeded(&self) {
        let mut state = self.0.lock();
        if state.legacy.take().is_some() {
            state.server += 1;
            state.begun = false;
        }
    }
}
