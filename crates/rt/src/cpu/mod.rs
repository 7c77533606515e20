//! What the server requests from the host's CPU scheduler, and what it reads from it.
//!
//! | request | system call | file |
//! |---|---|---|
//! | a short scheduler slice for every task | sched_setattr(2) | [`slice`] |
//! | SCHED_IDLE for service threads that serve | sched_setscheduler(2) | [`service`] |
//! | one CPU for each service thread | sched_setaffinity(2) | [`affinity`] |
//! | the I/O priority of a service thread | ioprio_set(2) | [`ioprio`] |
//! | the idle time of all CPUs | proc_stat(5) | [`idle`] |
//!
//! None of these changes what a program computes, and each is best effort: if the host refuses one, the threads run
//! with the host's defaults. Simulated tasks have no CPU scheduler.

mod affinity;
mod idle;
mod ioprio;
#[cfg(target_os = "linux")]
mod policy;
#[cfg(target_os = "linux")]
mod service;
mod slice;

#[cfg(target_os = "linux")]
pub use affinity::PinnedThread;
pub use affinity::{allowed_cpus, has_cpu_quota, processors};
pub use idle::{IdleTimeFn, IdleWindow, idle_time};
pub use ioprio::ThreadIoPrio;
#[cfg(target_os = "linux")]
pub use policy::{ThreadHelper, ThreadRequest, help_thread, help_threads_by};
#[cfg(target_os = "linux")]
pub use service::{ServiceThread, ServiceThreads};
pub(crate) use slice::shorten_slice;
