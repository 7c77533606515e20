//! Many names in one directory.

use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::Result;
use crate::command::{output, program};
use crate::measure::seconds;
use crate::stage::Stage;

/// 20 000 empty files are made in one directory; then it is listed as `ls -l` does.
pub fn run(stage: &mut Stage) -> Result<()> {
    const FILES: u32 = 20_000;
    let dir = stage.root().join("d");
    std::fs::create_dir(&dir)?;
    let ((), made) = seconds(|| create(&dir, 0..FILES))?;
    stage.record("20 000 creates", f64::from(FILES) / made);
    stage.cold()?;
    let (list, listed) = seconds(|| output(program("ls").arg("-l").arg(&dir)))?;
    // The first line is a sum.
    if list.lines().count() != FILES as usize + 1 {
        return Err("not every file is listed".into());
    }
    stage.record("ls -l of 20 000, cold", listed);
    let unmounted = stage.cold()?;
    stage.record("unmount after ls -l", unmounted);
    Ok(())
}

/// Makes empty files with these numbers in `dir`.
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
