//! Tests of the whole journal.

mod basic;
mod crash;
mod crash_device;
mod model;
mod support;
