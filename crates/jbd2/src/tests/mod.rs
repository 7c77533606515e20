//! Tests of the whole journal.

mod background;
mod basic;
mod beside;
mod callers;
mod crash;
mod crash_device;
mod devices;
mod fast;
mod hostile;
mod limits;
mod load;
mod model;
mod panics;
mod replay;
mod reports;
mod space_waits;
mod support;
