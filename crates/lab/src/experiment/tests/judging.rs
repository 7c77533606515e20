//! A run must fail if arms leave different content, or if a volume is corrupt.

use std::time::Duration;

use steadfs_block::QueueStats;
use steadfs_ext4::format::{FormatOptions, format};

use super::super::*;
use crate::flash::{Counters, Store};

fn plan_of(same_content: bool, arms: Vec<Arm>) -> Plan {
    let cell = Cell {
        name: "cell".to_owned(),
        about: String::new(),
        arms,
        same_content,
        evidence: Vec::new(),
    };
    Plan {
        name: "x",
        title: "?",
        device: "d".to_owned(),
        scale: None,
        cells: vec![cell],
        figures: Vec::new(),
        notes: Vec::new(),
        timeline: (String::new(), Duration::from_millis(1)),
        checks: Vec::new(),
    }
}

fn leaves(name: &str, content: fn(u64) -> u64) -> Arm {
    Arm::new(name, move |attempt: Attempt| {
        Ok(Sample {
            content: content(attempt.seed),
            ..Sample::default()
        })
    })
}

fn refusal(plan: &Plan) -> Option<String> {
    run(plan, 3).err().map(|error| error.to_string())
}

#[test]
fn arms_of_a_cell_leave_the_same_content() {
    let one = || leaves("one", |seed| seed);
    let other = || leaves("two", |seed| if seed == 2 { 0 } else { seed });
    assert_eq!(refusal(&plan_of(true, vec![one(), one()])), None);
    assert_eq!(refusal(&plan_of(false, vec![one(), other()])), None);
    assert_eq!(
        refusal(&plan_of(true, vec![one(), other()])).as_deref(),
        Some("cell, seed 2: the content of two differs from that of one")
    );
    let damaged = Arm::new("three", |attempt: Attempt| match attempt.seed {
        3 => Err("the checker found something".to_owned()),
        _ => Ok(Sample::default()),
    });
    assert_eq!(
        refusal(&plan_of(true, vec![damaged])).as_deref(),
        Some("cell, three, seed 3: the checker found something")
    );
}

/// A volume with a file of this byte.
fn volume(mount: &Mount, byte: u8) -> Store {
    let make = |queue: &steadfs_block::Queue| {
        let options = FormatOptions {
            uuid: Some([7; 16]),
            hash_seed: Some([8; 16]),
            ..FormatOptions::default()
        };
        let made = format(queue, 16 << 20, &options);
        made.map(|_| ()).map_err(|error| error.to_string())
    };
    let fill = move |testbed: &Testbed| {
        let (fs, cx) = (&*testbed.fs, steadfs_vfs::Cx::default());
        let file = fs.make(&cx, fs.root(), b"file")?;
        fs.write(&cx, file, 0, &[byte; 5000])?;
        fs.forget(file);
        Ok(())
    };
    prepare(16 << 20, mount, make, fill).unwrap()
}

#[test]
fn a_run_ends_with_a_whole_volume_and_its_content() {
    let mount = Mount::ext4("").unwrap();
    let judged = |store: Store| {
        let counts = (QueueStats::default(), Counters::default());
        let outcome = Outcome::judged(&mount, store, (), (Duration::ZERO, 0), counts);
        outcome.map(|outcome| outcome.content)
    };
    let content = judged(volume(&mount, 1)).unwrap();
    assert_eq!(judged(volume(&mount, 1)), Ok(content));
    assert_ne!(judged(volume(&mount, 2)), Ok(content));
    let mut damaged = volume(&mount, 1);
    damaged.zero(64 << 10, 1 << 20);
    let said = judged(damaged).unwrap_err();
    assert!(said.contains("the checker found"), "{said}");
}
