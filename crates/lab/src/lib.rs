//! Crash exploration and modelled devices.
