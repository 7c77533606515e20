use std::sync::Arc;

use super::*;
use crate::{ModelFs, Program, run::run};

fn steps_of(ops: &str) -> Vec<Step> {
    let program: Program = format!("task\n{ops}").parse().unwrap();
    let fs = ModelFs::new(State::new(), Format::PLAIN);
    run(&fs, &program.tasks[0], &(Arc::new(|| 0_u64) as _))
}

fn ways(tasks: Vec<Vec<Step>>, tolerance: Tolerance) -> Option<usize> {
    let recording = Recording {
        tasks,
        ..Recording::default()
    };
    let all = Histories::of(&State::new(), &recording, Format::PLAIN, tolerance);
    all.ok().flatten().map(|all| all.0.len())
}

/// A background task may stop a volume: a task that only reads gets no error.
#[test]
fn reads_of_a_stopped_volume_may_be_wrong() {
    let mut steps = steps_of("create /f 644\nwrite /f 0+5000 1\nread /f 4096+100\nread /f 0+10\n");
    let mut sync = steps_of("sync\n");
    let tasks = |steps: &[Step], sync: &[Step]| vec![steps.to_vec(), sync.to_vec()];
    assert_eq!(ways(tasks(&steps, &sync), Tolerance::DeviceErrors), Some(1));
    steps[2].result = Ok(Value::Bytes(vec![0; 100]));
    assert_eq!(ways(tasks(&steps, &sync), Tolerance::DeviceErrors), None);
    sync[0].result = Err(FsError::Stopped("a flush failed".into()));
    assert_eq!(ways(tasks(&steps, &sync), Tolerance::DeviceErrors), Some(1));
    // An operation that changes something must fail.
    steps[0].result = Err(FsError::Exists);
    assert_eq!(ways(tasks(&steps, &sync), Tolerance::DeviceErrors), None);
}

/// A copy that failed with ENOSPC may have read before.
#[test]
fn a_copy_that_failed_leaves_the_time_of_access_open() {
    let before = "create /f 644\ncreate /g 644\nwrite /f 0+50 1\n\
                  utimens /f 1000000000.000000005 1000000000.000000005\n";
    let mut steps = steps_of(&format!("{before}copy /f 0+50 /g 0\n"));
    let time_of = |steps: &[Step]| {
        let recording = Recording {
            tasks: vec![steps.to_vec()],
            ..Recording::default()
        };
        let all = Histories::of(&State::new(), &recording, Format::PLAIN, Tolerance::NoSpace);
        let last = all.unwrap().unwrap().0[0].tasks[0].states.last().cloned();
        let last = last.unwrap();
        let file = last.lookup(crate::model::ROOT, b"f").unwrap();
        last.node(file).unwrap().atime
    };
    assert!(time_of(&steps[..4]).is_some());
    steps[4].result = Err(FsError::NoSpace);
    assert_eq!(time_of(&steps), None);
}
