//! Volumes that are nearly full.

use steadfs_rt::sim;
use steadfs_vfs::{Cx, FallocMode, FileKind, FileSystem, FsError, StatFs};
use steadfs_workload::{
    Format, Op, Program, Recovery, Runner, Span, Step, Target, TreePath, Value, observe,
};

use super::{Problem, Subject, run_until_idle};
use crate::device::{Image, Model};

/// The free space to leave on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FreeSpace {
    /// Number of free blocks; `None`: all.
    pub blocks: Option<u64>,
    /// Number of free inodes; `None`: all.
    pub inodes: Option<u64>,
}

/// Attempts to leave an exact number of blocks: an allocation may take one more block for a map.
const TRIES: usize = 30;
/// Blocks that a file can have without a block for its map.
const UNMAPPED: u64 = 12;

/// Runs the program's setup on the subject and fills the volume except for `free_space`. Returns the subject with that
/// volume and the program without a setup; `None` if the volume has less free space.
///
/// # Errors
/// A failure before the volume was full.
pub fn fill(
    subject: &Subject,
    program: &Program,
    free_space: FreeSpace,
) -> Result<Option<(Subject, Program)>, Problem> {
    let setup = program.setup.clone();
    let extents = subject.format.extents;
    let filled = on_volume(subject, &subject.image, move |fs, block_size| {
        let mut runner = Runner::new(fs);
        for op in &setup {
            // A setup may hold operations that fail; the run itself judges results.
            let _result = runner.step(op);
        }
        let filler = Filler {
            fs,
            block_size,
            extents,
        };
        if let Some(left) = free_space.inodes
            && !filler.take_inodes(left)?
        {
            return Ok(false);
        }
        match free_space.blocks {
            Some(left) => filler.take_blocks(left),
            None => Ok(true),
        }
    })?;
    let (fits, image) = filled;
    let program = Program {
        setup: Vec::new(),
        tasks: program.tasks.clone(),
    };
    let subject = Subject {
        image,
        ..subject.clone()
    };
    Ok(fits.then_some((subject, program)))
}

/// Removes all files from a volume of this kind: it must then have the free space that it had when it was new, less the
/// growth of its root directory.
///
/// # Errors
/// If a file cannot be removed, or free space is missing.
pub fn check_freed(subject: &Subject, image: &Image) -> Result<(), Problem> {
    let (new, _) = on_volume(subject, &subject.image, |fs, _| usage(fs))?;
    let (emptied, _) = on_volume(subject, image, |fs, _| {
        empty(fs)?;
        fs.sync_all(&Cx::default()).map_err(Problem::Sync)?;
        usage(fs)
    })?;
    if new == emptied {
        return Ok(());
    }
    Err(Problem::Leaked { new, emptied })
}

/// Blocks free or in the root directory, and free inodes.
fn usage(fs: &dyn FileSystem) -> Result<(u64, u64), Problem> {
    let root = fs
        .getattr(&Cx::default(), fs.root())
        .map_err(Problem::Sync)?;
    let stat = statfs(fs)?;
    let of_root = root.blocks * 512 / u64::from(stat.block_size);
    Ok((stat.blocks_free + of_root, stat.files_free))
}

fn statfs(fs: &dyn FileSystem) -> Result<StatFs, Problem> {
    fs.statfs(&Cx::default()).map_err(Problem::Sync)
}

/// Removes all names except lost+found, which e2fsck needs.
fn empty(fs: &dyn FileSystem) -> Result<(), Problem> {
    let seen = observe(fs).map_err(Problem::Unreadable)?;
    let mut runner = Runner::new(fs);
    // In reverse order: the entries of a directory before the directory.
    for (path, ino) in seen.names.iter().rev() {
        if path.name().is_none() || path.name() == Some(b"lost+found") {
            continue;
        }
        let path = path.clone();
        let op = match seen.inodes[ino].kind {
            FileKind::Directory => Op::Rmdir { path },
            _ => Op::Unlink { path },
        };
        runner.step(&op).map_err(Problem::Sync)?;
    }
    Ok(())
}

/// Mounts an image in a simulation, calls `f`, unmounts; returns its result and the image afterwards.
pub(super) fn on_volume<T: 'static>(
    subject: &Subject,
    image: &Image,
    act: impl FnOnce(&dyn FileSystem, u64) -> Result<T, Problem> + 'static,
) -> Result<(T, Image), Problem> {
    let (subject, image) = (subject.clone(), image.clone());
    let block_size = u64::from(subject.format.block_size);
    let outcome = sim::try_run(sim::Config::new(1), move || {
        run_until_idle(|| {
            let model = Model {
                log: false,
                ..Model::default()
            };
            let (device, fs) = subject.open_on(&image, model, None);
            let fs = fs.map_err(Problem::Open)?;
            let done = act(fs.as_ref(), block_size);
            let unmounted = fs.unmount().map_err(Problem::Sync);
            let done = done?;
            unmounted?;
            Ok((done, device.content()))
        })
    });
    outcome.map_err(Problem::Simulation)?.value
}

/// Free space at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FreeCounts {
    pub(super) blocks: u64,
    pub(super) inodes: u64,
}

impl FreeCounts {
    pub(super) fn of(fs: &dyn FileSystem) -> Self {
        fs.statfs(&Cx::default()).map_or_else(
            |_| Self::default(),
            |stat| Self {
                blocks: stat.blocks_free,
                inodes: stat.files_free,
            },
        )
    }
}

/// Checks that every ENOSPC was justified: `after` returns the free space after each step of the only task of a run.
///
/// # Errors
/// The first failure with enough free space.
pub(super) fn check_shortages(
    steps: &[Step],
    after: impl Fn(&Step) -> FreeCounts,
    format: Format,
) -> Result<(), Problem> {
    for step in steps {
        let Some(done) = fell_short(step) else {
            continue;
        };
        let left = after(step);
        let Some(enough) = enough_for(&step.op, done, format) else {
            continue;
        };
        let enough = enough * u64::from(format.cluster_blocks);
        if left.blocks >= enough && left.inodes > 0 {
            return Err(Problem::TooEarly {
                op: step.op.clone(),
                free: left.blocks,
                enough,
            });
        }
    }
    Ok(())
}

/// The number of bytes that a step had done when it met ENOSPC; `None` if it did not.
fn fell_short(step: &Step) -> Option<u64> {
    match (&step.op, &step.result) {
        (_, Err(FsError::NoSpace)) => Some(0),
        // (A copy may also be short because its source is.)
        (Op::Write { span, .. }, Ok(Value::Count(done))) => (*done < span.len).then_some(*done),
        _ => None,
    }
}

/// A number of free blocks that suffices for the next step of a failed operation, whatever the volume's layout; `None`
/// if unknown.
fn enough_for(op: &Op, done: u64, format: Format) -> Option<u64> {
    // A full leaf below a full root: the block, a new leaf, a new level.
    const IN_TREE: u64 = 3;
    // A directory's own block, two of its index, and the tree of each of two directories.
    const NAME: u64 = 3 + 2 * IN_TREE;
    let in_file = |offset: u64| {
        let per_table = u64::from(format.block_size) / 4;
        let block = offset / u64::from(format.block_size);
        match (format.extents, block) {
            (true, _) => IN_TREE,
            (false, block) if block < UNMAPPED => 1,
            (false, block) if block < UNMAPPED + per_table => 2,
            (false, block) if block < UNMAPPED + per_table + per_table * per_table => 3,
            (false, _) => 4,
        }
    };
    match op {
        Op::Write { span, .. } => Some(in_file(span.offset + done)),
        Op::Copy { offset, .. } => Some(in_file(offset + done)),
        // f2fs reserves the whole range before it begins.
        Op::Fallocate { span, .. } if format.recovery != Recovery::Prefix => {
            Some(span.len / u64::from(format.block_size) + 2 + IN_TREE + 1)
        }
        Op::Truncate { .. } | Op::Fallocate { .. } => Some(IN_TREE + 1),
        Op::Create { .. }
        | Op::Mknod { .. }
        | Op::Mkdir { .. }
        | Op::Symlink { .. }
        | Op::Link { .. }
        | Op::Rename { .. }
        | Op::Tmpfile { .. } => Some(NAME),
        // A value may be too long for any volume.
        _ => None,
    }
}

struct Filler<'a> {
    fs: &'a dyn FileSystem,
    block_size: u64,
    extents: bool,
}

impl Filler<'_> {
    fn step(&self, op: &Op) -> Result<(), Problem> {
        Runner::new(self.fs).step(op).map_err(Problem::Sync)?;
        Ok(())
    }

    /// Creates files until `left` inodes are free; returns false if there were fewer.
    fn take_inodes(&self, left: u64) -> Result<bool, Problem> {
        let dir = path("/fill-inodes");
        if statfs(self.fs)?.files_free <= left {
            return Ok(false);
        }
        self.step(&Op::Mkdir {
            path: dir.clone(),
            perm: 0o700,
        })?;
        for number in 0.. {
            if statfs(self.fs)?.files_free <= left {
                break;
            }
            self.step(&Op::Create {
                path: path(&format!("/fill-inodes/{number}")),
                perm: 0o600,
            })?;
        }
        Ok(true)
    }

    /// Writes files until exactly `left` blocks are free; returns whether that was possible.
    fn take_blocks(&self, left: u64) -> Result<bool, Problem> {
        let files = ["/fill-most", "/fill-rest"].map(path);
        for path in &files {
            self.step(&Op::Create {
                path: path.clone(),
                perm: 0o600,
            })?;
        }
        let mut blocks = [0, 0];
        for _ in 0..TRIES {
            self.fs.sync_all(&Cx::default()).map_err(Problem::Sync)?;
            let free = statfs(self.fs)?.blocks_free;
            if free == left {
                return Ok(true);
            }
            if free < left {
                let Some(file) = (0..2).rev().find(|file| blocks[*file] > 0) else {
                    return Ok(false);
                };
                blocks[file] -= 1;
                self.step(&Op::Truncate {
                    file: Target::Path(files[file].clone()),
                    size: blocks[file] * self.block_size,
                })?;
                continue;
            }
            let more = free - left;
            let (file, count) = match more > UNMAPPED {
                true => (0, more - UNMAPPED + 2),
                false => (1, more),
            };
            let span = Span::new(blocks[file] * self.block_size, count * self.block_size);
            let target = Target::Path(files[file].clone());
            let take = match self.extents {
                // fallocate is faster, and nothing must be read back.
                true => Op::Fallocate {
                    file: target,
                    mode: FallocMode::Allocate { keep_size: false },
                    span,
                },
                false => Op::Write {
                    file: target,
                    span,
                    fill: 0xF111,
                },
            };
            match Runner::new(self.fs).step(&take) {
                Ok(_) | Err(FsError::NoSpace) => {}
                Err(error) => return Err(Problem::Sync(error)),
            }
            let ino = Runner::new(self.fs).resolve(&Target::Path(files[file].clone()));
            let attr = ino.and_then(|ino| self.fs.attach(&Cx::default(), ino));
            let attr = attr.map_err(Problem::Sync)?;
            self.fs.forget(attr.ino, 1);
            blocks[file] = attr.size.div_ceil(self.block_size);
        }
        Ok(false)
    }
}

fn path(text: &str) -> TreePath {
    text.parse().expect("a path in this file is right")
}
