#![no_main]
//! See `suite/src/fuzz`.

use steadfs_suite::hostile::meter::Meter;

#[global_allocator]
static METER: Meter = Meter;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    steadfs_suite::fuzz::run("journal", bytes);
});
