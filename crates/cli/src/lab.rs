//! `steadfs lab`.

use std::io;
use std::path::PathBuf;

use steadfs_lab::crash;

use crate::args;
use crate::failure::Failure;

pub fn run(args: &args::Lab) -> Result<(), Failure> {
    match args {
        args::Lab::Crash(args) => crash(&args.words),
    }
}

/// The explorer has a grammar of its own, and prints itself.
fn crash(words: &[String]) -> Result<(), Failure> {
    let scratch = Scratch::new().map_err(Failure::plain)?;
    let mut subjects = crash::ext4::subjects(&scratch.0).map_err(Failure::plain)?;
    subjects.extend(crash::f2fs::subjects().map_err(Failure::plain)?);
    let code = crash::main_with(words, subjects, &mut io::stdout()).map_err(Failure::plain)?;
    match u8::try_from(code) {
        Ok(0) => Ok(()),
        code => Err(Failure::new(code.unwrap_or(u8::MAX), "")),
    }
}

/// A directory that goes when it is not needed any more.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        let name = format!("steadfs-lab-{:016x}", steadfs_rt::random_u64());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::debug!(%error, "scratch directory stays");
        }
    }
}
