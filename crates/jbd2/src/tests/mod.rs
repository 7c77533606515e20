//! Tests of the whole journal.

mod basic;
mod support;
