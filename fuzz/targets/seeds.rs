#![no_main]
//! Writes the first inputs of every target: FUZZ_SEED_COUNT files in FUZZ_SEED_DIR/TARGET, before libFuzzer starts
//! (`-runs=0`). An instrumented program needs libFuzzer, so it cannot be one without.

use std::path::PathBuf;
use std::{env, fs, io};

use steadfs_suite::fuzz::{TARGETS, seed};

libfuzzer_sys::fuzz_target!(
    init: write_seeds().expect("FUZZ_SEED_DIR can be written, and FUZZ_SEED_COUNT is a number"),
    |_bytes: &[u8]| {}
);

fn write_seeds() -> io::Result<()> {
    let variable = |name| env::var(name).map_err(io::Error::other);
    let dir = PathBuf::from(variable("FUZZ_SEED_DIR")?);
    let count = variable("FUZZ_SEED_COUNT")?;
    let count: u64 = count.parse().map_err(io::Error::other)?;
    for target in TARGETS {
        let dir = dir.join(target.name);
        fs::create_dir_all(&dir)?;
        for n in 0..count {
            fs::write(dir.join(format!("seed-{n}")), seed(target.name, n))?;
        }
    }
    Ok(())
}
