//! Generates programs: every single operation, all pairs of a core set, and random programs from a seed.

mod core;
mod random;
mod shape;

pub use self::core::{pairs, singles};
pub use self::random::random;
pub use self::shape::Shape;

use crate::{Op, Program};

/// Length of the shortest value of an attribute that equals others of its length, in bytes.
const LONG_VALUE_MIN: u64 = 1000;

/// Gives every write a fill number of its own, so that no content of a file can be mistaken for another's.
fn number_fills(program: &mut Program) {
    let mut next = 1;
    let tasks = program.tasks.iter_mut().flatten();
    for op in program.setup.iter_mut().chain(tasks) {
        match op {
            // Long values of one length are equal, so that files share them.
            Op::SetXattr { fill, len, .. } if *len >= LONG_VALUE_MIN => *fill = 0,
            Op::Write { fill, .. } | Op::SetXattr { fill, .. } => {
                *fill = next;
                next += 1;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recovery;
    use crate::{Format, History};

    const FORMATS: [Format; 2] = [
        Format::PLAIN,
        Format {
            block_size: 1024,
            extents: false,
            punch_ranges: true,
            shift_ranges: false,
            wide_times: true,
            long_values: false,
            cluster_blocks: 1,
            recovery: Recovery::Prefix,
        },
    ];

    #[test]
    fn core_programs_do_something_and_sync() {
        for format in FORMATS {
            let all: Vec<_> = singles(format).into_iter().chain(pairs(format)).collect();
            assert!(all.len() > 1000, "{}", all.len());
            for program in &all {
                let text = program.to_string();
                assert_eq!(text.parse().as_ref(), Ok(program));
                assert!(program.tasks[0].iter().any(Op::is_sync), "{text}");
            }
            for program in all.iter().step_by(29) {
                let history = History::from_model(program, format);
                assert!(!history.last().flatten().is_empty());
            }
        }
    }

    #[test]
    fn random_programs_follow_from_their_seed_and_mostly_succeed() {
        for format in FORMATS {
            for seed in 0..40 {
                let shape = Shape {
                    tasks: 1 + seed as usize % 4,
                    shared: seed % 2 == 0,
                    ..Shape::default()
                };
                let program = random(seed, shape, format);
                assert_eq!(program, random(seed, shape, format));
                assert_eq!(program.tasks.len(), shape.tasks);
                assert!(program.tasks.iter().all(|task| task.len() >= shape.ops));
                let text = program.to_string();
                assert_eq!(text.parse().as_ref(), Ok(&program));
                // Tasks that change the same path would panic here.
                let history = History::from_model(&program, format);
                assert_eq!(history.base_names() > 1, shape.tasks > 1);
            }
        }
    }
}
