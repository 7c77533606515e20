//! Asks before a volume is formatted over existing content.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::args;
use crate::failure::Failure;
use crate::worker::{self, Content};

/// Bytes at the beginning of a device that are read to detect content: every partition table and file system has a
/// signature in them.
const MARKS: u64 = 128 << 10;

/// Asks the user at a terminal whether the content of `path` from `offset` on may be overwritten, as mke2fs does. Does
/// not ask in scripts, or if there are only zeros.
pub fn ask(path: &Path, offset: u64, sandbox: Option<args::Sandbox>) -> Result<(), Failure> {
    let is_seen = io::stdin().is_terminal() && io::stdout().is_terminal();
    if !is_seen || !steadfs::is_uri(path) && !path.exists() {
        return Ok(());
    }
    let Some(what) = content(path, offset, sandbox)? else {
        return Ok(());
    };
    print!(
        "{}: {what}. Overwrite it with a new volume? (y/N) ",
        path.display()
    );
    let mut answer = String::new();
    io::stdout()
        .flush()
        .and_then(|()| io::stdin().read_line(&mut answer))
        .map_err(Failure::plain)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::plain("nothing was changed")),
    }
}

/// Refuses a device whose volume another machine uses, by multiple-mount protection: also with `--force`.
pub fn check_nodes(
    path: &Path,
    offset: u64,
    sandbox: Option<args::Sandbox>,
) -> Result<(), Failure> {
    if !steadfs::is_uri(path) && !path.exists() {
        return Ok(());
    }
    worker::check_nodes(path, &format!("offset={offset}"), sandbox)
}

/// Describes the content of a device, if there is any. A device that cannot be read is no reason to ask: formatting
/// reports the error.
fn content(
    path: &Path,
    offset: u64,
    sandbox: Option<args::Sandbox>,
) -> Result<Option<String>, Failure> {
    let found = worker::content(path, &format!("offset={offset}"), sandbox)?;
    Ok(match found {
        Content::Volume(kind) => Some(format!("there is a volume already ({kind})")),
        Content::Known(what) => Some(what),
        Content::Failed(_) | Content::Unknown => {
            if steadfs::is_uri(path) {
                return Ok(Some("it may hold data".to_owned()));
            }
            let is_used = head(path, offset).is_some_and(|head| head.iter().any(|byte| *byte != 0));
            is_used.then(|| "it is not empty".to_owned())
        }
    })
}

/// The first bytes of the device from `offset` on.
fn head(path: &Path, offset: u64) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    let mut file = File::open(path).ok()?;
    file.seek(SeekFrom::Start(offset)).ok()?;
    file.take(MARKS).read_to_end(&mut head).ok()?;
    Some(head)
}
