//! Fuzz targets: functions of bytes that must hold their rules for every input.
//!
//! `fuzz/` builds each into a program that libFuzzer drives by coverage (`make fuzz`); `suite/tests/fuzz.rs` runs them on
//! the inputs of earlier findings and on random ones. A target returns an [`Outcome`] whose violations fail the input.
//!
//! The limits are those of one call: 2 s of CPU time and [`BUDGET`] bytes of memory, where the program's allocator is
//! [`Meter`](crate::hostile::meter::Meter).

mod edit;
mod f2fs_bases;
mod fast_commit;
mod fuse;
mod input;
mod ops;
mod seeds;
mod text;
mod volume;

use crate::hostile::Outcome;

pub use seeds::seed;

/// Largest memory of one input, in bytes: caches of 4 MiB, at most 32 MiB of the checker, and the image.
pub const BUDGET: usize = 48 << 20;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name: that of its program, and of its folders of inputs.
    pub name: &'static str,
    /// Runs one input.
    pub run: fn(&[u8]) -> Outcome,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "ext4",
        run: volume::ext4,
    },
    Target {
        name: "f2fs",
        run: volume::f2fs,
    },
    Target {
        name: "journal",
        run: volume::journal,
    },
    Target {
        name: "roll_forward",
        run: volume::roll_forward,
    },
    Target {
        name: "fuse",
        run: volume::fuse,
    },
    Target {
        name: "control",
        run: volume::control,
    },
    Target {
        name: "options",
        run: text::options,
    },
];

/// Runs one input of the target `name`.
///
/// # Panics
/// If there is no such target, or a rule is violated.
pub fn run(name: &str, bytes: &[u8]) -> Outcome {
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.unwrap_or_else(|| panic!("no target {name}"));
    let outcome = (target.run)(bytes);
    let violations = outcome.violations.join("\n");
    assert!(outcome.violations.is_empty(), "{name}: {violations}");
    let peak = outcome.peak;
    assert!(
        peak <= BUDGET,
        "{name}: {peak} bytes of memory, limit {BUDGET}"
    );
    outcome
}
