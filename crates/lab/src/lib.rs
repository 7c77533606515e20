//! The laboratory: simulated devices, crash exploration, and the published experiments on device models.

#![forbid(unsafe_code)]

pub mod crash;
pub mod device;
pub mod encrypted;
pub mod experiment;
pub mod flash;
pub mod read_faults;
pub mod trace;
