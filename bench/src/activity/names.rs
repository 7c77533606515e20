//! Many names in one directory.

use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::Result;
use crate::activity_run::ActivityRun;
use crate::command::{output, program};
use crate::measure::seconds;

/// 20 000 empty files are created in one directory; then it is listed as `ls -l` does.
pub fn run(run: &mut ActivityRun) -> Result<()> {
    const FILES: u32 = 20_000;
    let dir = run.root().join("d");
    std::fs::create_dir(&dir)?;
    let ((), made) = seconds(|| create(&dir, 0..FILES))?;
    run.record("20 000 creates", f64::from(FILES) / made);
    run.cold()?;
    let (list, listed) = seconds(|| output(program("ls").arg("-l").arg(&dir)))?;
    // The first line is the total.
    if list.lines().count() != FILES as usize + 1 {
        return Err("not every file is listed".into());
    }
    run.record("ls -l of 20 000, cold", listed);
    let unmounted = run.cold()?;
    run.record("unmount after ls -l", unmounted);
    Ok(())
}

/// Creates empty files with these numbers in `dir`.
pub fn create(dir: &Path, numbers: impl Iterator<Item = u32>) -> Result<()> {
    let read = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let write = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let dir = openat(CWD, dir, read, Mode::empty())?;
    for number in numbers {
        openat(&dir, name(number), write, Mode::from_raw_mode(0o644))?;
    }
    Ok(())
}

/// The name of the file with this number.
pub fn name(number: u32) -> String {
    format!("file-{number:08}")
}
