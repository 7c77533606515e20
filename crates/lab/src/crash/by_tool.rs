//! A second recovery: the format's own tool replays a crash image by itself, and must find the same files.

use std::io;
use std::path::Path;

use steadfs_vfs::FileKind;
use steadfs_workload::Observed;
use steadfs_workload::observe::InodeSnapshot;

use super::{Problem, Subject};
use crate::device::Image;

/// What e2fsck 1.47 prints for a log that it does not replay: a power cut came between a commit and the write that
/// removes the fast commits before it (`jbd2/fast_write.rs`).
const NOT_REPLAYED: &str = "Invalid argument while recovering journal";

/// Repairs an image with the subject's tool and compares the files with those that our recovery has `seen`. `None`: the
/// tool cannot replay this log.
///
/// # Errors
/// The tool cannot be run, or the directory cannot be written; inside: the files differ.
pub(super) fn replayed_by_tool(
    subject: &Subject,
    image: &Image,
    seen: &Observed,
    scratch: &Path,
    observe: impl FnOnce(&Image) -> Result<Observed, Problem>,
) -> io::Result<Option<Result<(), Problem>>> {
    let Some(tool) = subject.tool.filter(|_| subject.tool_replays) else {
        return Ok(None);
    };
    let (repaired, said) = tool.repair(image, scratch)?;
    if said.contains(NOT_REPLAYED) {
        return Ok(None);
    }
    let differences = match observe(&repaired) {
        Ok(theirs) => differences(seen, &theirs),
        Err(problem) => return Ok(Some(Err(problem))),
    };
    Ok(Some(match differences.is_empty() {
        true => Ok(()),
        false => Err(Problem::Damaged {
            judge: tool.name(),
            findings: format!(
                "its replay differs from ours: {}\n{said}",
                differences.join("; ")
            ),
        }),
    }))
}

fn differences(ours: &Observed, theirs: &Observed) -> Vec<String> {
    let mut found = Vec::new();
    let paths = ours.names.keys().chain(theirs.names.keys());
    for path in paths {
        let inode = |of: &Observed| {
            let ino = of.names.get(path)?;
            of.inodes.get(ino).cloned()
        };
        match (inode(ours), inode(theirs)) {
            (Some(ours), Some(theirs)) if is_same(&ours, &theirs) => {}
            (ours, theirs) => {
                let size = |of: Option<InodeSnapshot>| {
                    of.map_or("nothing".to_owned(), |of| {
                        format!("{} links, {} bytes", of.nlink, of.size)
                    })
                };
                let (ours, theirs) = (size(ours), size(theirs));
                found.push(format!("{path}: {ours} here, {theirs} there"));
            }
        }
    }
    found
}

/// Times of directories are those of the replay.
fn is_same(a: &InodeSnapshot, b: &InodeSnapshot) -> bool {
    let is_dir = a.kind == FileKind::Directory;
    a.kind == b.kind
        && (a.perm, a.owner, a.rdev, a.nlink) == (b.perm, b.owner, b.rdev, b.nlink)
        && (is_dir || (a.size, a.mtime) == (b.size, b.mtime))
        && a.target == b.target
        && a.xattrs == b.xattrs
        && a.content == b.content
}
