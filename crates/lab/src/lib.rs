//! Crash exploration and modelled devices.

pub mod crash;
pub mod device;
