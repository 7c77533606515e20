//! Crash exploration and modelled devices.

pub mod device;
