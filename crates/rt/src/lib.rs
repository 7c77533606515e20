//! Tasks, time, ranked locks, wait queues and randomness: the only room that names the host's
//! primitives for them.

mod condvar;
mod event;
mod mutex;
mod random;
mod rank;
mod rwlock;
mod task;
mod time;

pub use condvar::Condvar;
pub use event::Event;
pub use mutex::{Mutex, MutexGuard};
pub use random::random_u64;
pub use rank::Rank;
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use task::{JoinHandle, spawn, yield_now};
pub use time::{Instant, now, sleep, sleep_until, wall_clock};
