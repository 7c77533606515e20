//! Crash exploration, modelled devices, and the published experiments on them.

pub mod crash;
pub mod device;
pub mod experiment;
pub mod flash;
pub mod read_faults;
pub mod trace;
