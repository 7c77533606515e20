//! A second recovery: the format's own tool replays a crash image by itself, and must find the same files.

use std::io;
use std::path::Path;

use steadfs_vfs::FileKind;
use steadfs_workload::Observed;
use steadfs_workload::observe::InodeSnapshot;

use super::subject::ToolReplay;
use super::{Problem, Subject, ext4};
use crate::device::Image;

/// What e2fsck 1.47 prints for a log that it does not replay: a power cut came between a commit and the write that
/// removes the fast commits before it (`jbd2/fast_write.rs`).
const NOT_REPLAYED: &str = "Invalid argument while recovering journal";

/// What e2fsck 1.47 prints for a commit block whose checksum is not that of the whole block.
const CORRUPT: &str = "was corrupt, replay was aborted";
/// The unit in which devices tear blocks.
const SECTOR: usize = 512;

/// The result of a replay by the format's own tool.
pub(super) enum Replay {
    /// The tool does not replay logs of this kind of volume.
    Unasked,
    /// The tool refuses a log that ends like this.
    Refused,
    /// It has replayed the log; its files are ours, or the problem.
    Done(Result<(), Problem>),
}

/// Repairs an image with the subject's tool and compares the files with those that our recovery has `seen`. Our own
/// code mounts the repaired image, so the tool must have emptied the log before: otherwise our replay would be compared
/// with itself.
///
/// # Errors
/// The tool cannot be run, or the directory cannot be written.
pub(super) fn replayed_by_tool(
    subject: &Subject,
    image: &Image,
    seen: &Observed,
    scratch: &Path,
    observe: impl FnOnce(&Image) -> Result<Observed, Problem>,
) -> io::Result<Replay> {
    let replays = subject.tool_replays;
    let Some(tool) = subject.tool.filter(|_| replays != ToolReplay::Nothing) else {
        return Ok(Replay::Unasked);
    };
    let mut repair = tool.repair(image, scratch)?;
    if repair.said.contains(CORRUPT)
        && let Some(whole) = with_whole_commits(image)
    {
        repair = tool.repair(&whole, scratch)?;
    }
    let said = &repair.said;
    if replays == ToolReplay::FastCommits && said.contains(NOT_REPLAYED) {
        return Ok(Replay::Refused);
    }
    let finding = |findings| {
        let judge = tool.name();
        Ok(Replay::Done(Err(Problem::Damaged { judge, findings })))
    };
    if !repair.is_done() {
        return finding(format!("its repair failed: {}\n{said}", repair.status));
    }
    if ext4::needs_recovery(&repair.image) {
        return finding(format!("it did not replay the log\n{said}"));
    }
    let differences = match observe(&repair.image) {
        Ok(theirs) => differences(seen, &theirs),
        Err(problem) => return Ok(Replay::Done(Err(problem))),
    };
    if !differences.is_empty() {
        let differences = differences.join("; ");
        return finding(format!(
            "its replay differs from ours: {differences}\n{said}"
        ));
    }
    Ok(Replay::Done(Ok(())))
}

/// The image with commit blocks as they would be if the device had not torn them; `None` if it has torn none. Of a commit block
/// only the first sector is not zero, so it is committed when that is there: for our recovery, and for Linux
/// (`jbd2_commit_block_csum_verify_partial`). e2fsck 1.47 does not know that.
fn with_whole_commits(image: &Image) -> Option<Image> {
    const COMMIT: [u8; 8] = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2];
    let block_size = ext4::block_size(image)?;
    let mut whole: Option<Image> = None;
    let mut block = vec![0; block_size];
    for offset in (0..image.size()).step_by(block_size) {
        image.read(offset, &mut block[..COMMIT.len()]);
        if block[..COMMIT.len()] != COMMIT {
            continue;
        }
        image.read(offset, &mut block);
        if block[SECTOR..].iter().any(|byte| *byte != 0) {
            block[SECTOR..].fill(0);
            let whole = whole.get_or_insert_with(|| image.clone());
            whole.write(offset + SECTOR as u64, &block[SECTOR..]);
        }
    }
    whole
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
