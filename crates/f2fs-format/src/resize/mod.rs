//! Changing the size of a volume that is not mounted.
//!
//! **Problem.** A larger volume has larger tables, which lie in front of the main area: the blocks there have to move, all
//! tables are rewritten, and an interruption at any write must not lose the volume.
//!
//! **Rule.** The old volume stays complete until its superblocks are marked:
//!
//! 1. The volume is checked; only a clean one that was unmounted is changed.
//! 2. Blocks where the new tables will be, or behind a smaller main area's end, are copied to free blocks, with the nodes that
//!    map them ([`moving`]). Nothing is overwritten that the old volume uses.
//! 3. The new tables, checkpoint and superblocks are staged in free segments ([`staged`]).
//! 4. Both superblocks are marked. One valid superblock means that the volume is what that one says.
//! 5. What was staged is written home, the superblocks last.
//!
//! Interrupted before both superblocks are marked, the volume has its old size and is as it was. Interrupted later, every
//! program refuses it, and [`resize`] finishes from step 5. The size of the result is that of resize.f2fs ([`geometry`]).

mod disk;
mod geometry;
mod moving;
mod staged;
mod state;
mod tables;

#[cfg(test)]
mod tests;

use steadfs_block::{BlockSource, IoError, Queue};
use steadfs_rt::random_u64;
use steadfs_vfs::FsError;
use thiserror::Error;

use crate::check;
use crate::disk::checkpoint::CpFlags;
use crate::disk::superblock::Resizing;
use crate::disk::{BLOCK_SIZE, BlockAddr, DiskError, Features, LogType, Superblock, mount_mode};
use crate::format::FormatError;
use disk::{Copies, Disk};
use geometry::Target;
use staged::Staging;
use state::State;

/// Why a volume does not have the new size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ResizeError {
    /// It cannot have it; the volume is as it was.
    #[error("{0}")]
    Refused(String),
    /// It cannot be read, or is corrupt; it is as it was.
    #[error(transparent)]
    Volume(#[from] FsError),
    /// The device failed; the volume is as it was.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The device failed while the volume had no size.
    #[error("{0}; the resize is not finished: run `steadfs resize` again")]
    Unfinished(String),
    /// An interrupted resize cannot be finished.
    #[error("{0}")]
    Unusable(String),
}

impl ResizeError {
    fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }

    /// The same error in the steps that another run has to finish.
    fn unfinished(self) -> Self {
        match self {
            Self::Unusable(why) => Self::Unusable(why),
            other => Self::Unfinished(other.to_string()),
        }
    }

    /// Whether the volume is as it was.
    pub fn is_undone(&self) -> bool {
        !matches!(self, Self::Unfinished(_) | Self::Unusable(_))
    }
}

impl From<DiskError> for ResizeError {
    fn from(error: DiskError) -> Self {
        Self::Volume(error.into())
    }
}

impl From<FormatError> for ResizeError {
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::Io(error) => Self::Io(error),
            other => Self::Refused(other.to_string()),
        }
    }
}

type Result<T> = std::result::Result<T, ResizeError>;

/// What is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResizeOptions {
    /// The new size in bytes; `None`: that of the device.
    pub size: Option<u64>,
    /// Only the end of the main area moves (`resize.f2fs -s`); always so for a smaller size.
    pub keep_tables: bool,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResizeReport {
    /// Blocks of 4096 bytes that the volume had; `None` if its size was changed by an interrupted resize before.
    pub old_blocks: Option<u64>,
    /// Blocks that it has.
    pub blocks: u64,
    /// Segments of the main area, 2 MiB each.
    pub main_segments: u32,
    /// Blocks available to users.
    pub user_blocks: u64,
    /// Blocks that moved.
    pub moved: u64,
    /// Whether an interrupted resize was finished first.
    pub finished: bool,
}

impl ResizeReport {
    /// Whether the volume had the wanted size already.
    pub fn is_unchanged(&self) -> bool {
        self.old_blocks == Some(self.blocks)
    }
}

/// Gives the volume on the device another size, or finishes a resize that was interrupted; with no size wanted, only that.
/// `source` is the same device, for the check. On success the result is durable.
///
/// # Errors
/// [`ResizeError`].
pub fn resize(
    queue: &Queue,
    source: &dyn BlockSource,
    options: ResizeOptions,
) -> Result<ResizeReport> {
    if queue.geometry().read_only {
        return Err(ResizeError::refused("the device is read-only"));
    }
    let mut disk = Disk::new(queue);
    let finished = finish(&mut disk)?;
    let Copies::Volume { superblock, differ } = Copies::read(&disk)? else {
        let why = "the interrupted resize has no superblock of the new size (a bug)";
        return Err(ResizeError::refused(why));
    };
    check_features(&superblock)?;
    if differ {
        let bytes = superblock.clone().encode();
        for copy in [1, 0] {
            disk.put_superblock(copy, &bytes)?;
        }
    }
    let report = match finished && options.size.is_none() {
        true => ResizeReport {
            old_blocks: None,
            ..report_of(&superblock, &disk)?
        },
        false => change(disk, source, &superblock, options)?,
    };
    Ok(ResizeReport { finished, ..report })
}

/// Finishes an interrupted resize. Returns whether there was one.
fn finish(disk: &mut Disk<'_>) -> Result<bool> {
    match Copies::read(disk)? {
        Copies::Interrupted {
            mark,
            second_is_torn,
        } => {
            let written = staged::write_home(disk, mark, second_is_torn);
            written.map_err(ResizeError::unfinished)?;
            Ok(true)
        }
        Copies::Volume { .. } => Ok(false),
    }
}

/// A report about a volume as it is.
fn report_of(superblock: &Superblock, disk: &Disk<'_>) -> Result<ResizeReport> {
    let layout = superblock.layout();
    let current = crate::checkpoint::load(disk.queue(), layout)?;
    Ok(ResizeReport {
        old_blocks: Some(layout.block_count),
        blocks: layout.block_count,
        main_segments: layout.main_segments,
        user_blocks: current.checkpoint.user_blocks,
        moved: 0,
        finished: false,
    })
}

fn change(
    disk: Disk<'_>,
    source: &dyn BlockSource,
    superblock: &Superblock,
    options: ResizeOptions,
) -> Result<ResizeReport> {
    let device = disk.queue().geometry().size;
    let size = options.size.unwrap_or(device);
    if size > device {
        return Err(ResizeError::refused(format!(
            "a volume of {size} bytes does not fit the device of {device}"
        )));
    }
    let current = crate::checkpoint::load(disk.queue(), superblock.layout())?;
    let flags = current.checkpoint.flags;
    let valid = current.checkpoint.valid_blocks;
    let large = flags.contains(CpFlags::LARGE_NAT_BITMAP);
    let Some(target) = Target::of(superblock, size, options.keep_tables, large)? else {
        let blocks = superblock.layout().block_count;
        if size / (BLOCK_SIZE as u64) < blocks {
            return Err(ResizeError::refused(format!(
                "a volume of {size} bytes would have as many sections as this one of {blocks} blocks of 4096 bytes: choose a smaller size"
            )));
        }
        return report_of(superblock, &disk);
    };
    if valid > target.user_blocks() {
        return Err(ResizeError::refused(format!(
            "the volume has {valid} blocks in use, one of {size} bytes has room for {}",
            target.user_blocks()
        )));
    }
    check_state(source, flags)?;
    let mut state = State::load(disk, superblock, &target)?;
    tables::check_nids(&state, &target)?;
    let mark = prepare(&mut state, &target)?;
    let moved = state.moved;
    staged::verify(&mut state.disk, mark).map_err(|_| {
        ResizeError::refused(
            "the device does not give back what was written to it; nothing was changed",
        )
    })?;
    commit(&mut state.disk, superblock, mark)?;
    Ok(ResizeReport {
        old_blocks: Some(superblock.layout().block_count),
        blocks: target.superblock.layout().block_count,
        main_segments: target.superblock.layout().main_segments,
        user_blocks: target.user_blocks(),
        moved,
        finished: false,
    })
}

/// Moves blocks and stages the new tables. The old volume stays as it is.
fn prepare(state: &mut State<'_>, target: &Target) -> Result<Resizing> {
    moving::move_blocks(state)?;
    let cursegs = LogType::ALL.map(|log| state.curseg(log));
    let [a, b, c, d, e, f] = cursegs;
    let cursegs = [a?, b?, c?, d?, e?, f?];
    let shrinks = (state.keep.end as usize) < state.old.len();
    let free = tables::free_segments(state, target, &cursegs);
    if shrinks && free < target.reserved {
        return Err(ResizeError::refused(format!(
            "{free} segments of 2 MiB would be free, and garbage collection needs {}: remove files, or choose a larger size",
            target.reserved
        )));
    }
    let mut staging = Staging::new(random_u64(), state.free_segments())?;
    tables::stage(state, target, &mut staging, &cursegs)?;
    let bytes = target.superblock.clone().encode();
    for copy in [0, 1] {
        let block = state.disk.superblock_block(copy, &bytes)?;
        staging.put(&mut state.disk, BlockAddr(copy), &block)?;
    }
    staging.finish(&mut state.disk)
}

/// Marks the superblocks, which have the old size, and writes everything home.
fn commit(disk: &mut Disk<'_>, superblock: &Superblock, mark: Resizing) -> Result<()> {
    let marked = mark.encode(superblock);
    for copy in [0, 1] {
        disk.put_superblock(copy, &marked)
            .map_err(ResizeError::unfinished)?;
    }
    staged::write_home(disk, mark, false).map_err(ResizeError::unfinished)
}

/// Refuses volumes whose size is not changed.
fn check_features(superblock: &Superblock) -> Result<()> {
    let mut refused = mount_mode(superblock.features()).refused();
    if superblock.features().contains(Features::READ_ONLY) {
        refused.push("ro".into());
    }
    if !refused.is_empty() {
        let names = refused.join(", ");
        let why = format!("volumes with {names} are not resized");
        return Err(ResizeError::refused(why));
    }
    match superblock.devices().len() {
        0 => Ok(()),
        n => Err(ResizeError::refused(format!(
            "the volume is on {n} devices: volumes on several are not resized; copy the files to a new one (steadfs cp)"
        ))),
    }
}

/// Refuses a volume that is corrupt, or that was not unmounted.
fn check_state(source: &dyn BlockSource, flags: CpFlags) -> Result<()> {
    let needs_fsck = [
        CpFlags::ERROR,
        CpFlags::FSCK,
        CpFlags::QUOTA_FSCK,
        CpFlags::RESIZE,
    ];
    if needs_fsck.into_iter().any(|flag| flags.contains(flag)) {
        return Err(ResizeError::refused(
            "the volume has recorded errors: repair it with fsck.f2fs first",
        ));
    }
    if flags.contains(CpFlags::DISABLED) {
        let why = "the volume was used with checkpoint=disable: mount it with checkpoint=enable and unmount it first";
        return Err(ResizeError::refused(why));
    }
    let report = check::check(source, &check::Options::default());
    if let Some(why) = &report.refused {
        return Err(ResizeError::refused(why.to_string()));
    }
    if let Some(issue) = report.issues.first() {
        return Err(ResizeError::refused(format!(
            "the volume is corrupt ({issue}): repair it with fsck.f2fs first"
        )));
    }
    if report.stats.has_errors {
        return Err(ResizeError::refused(
            "the volume has recorded errors: repair it with fsck.f2fs first",
        ));
    }
    if !report.stats.unmounted || report.stats.fsynced_nodes > 0 {
        let why = "the volume was not unmounted: mount it once and unmount it";
        return Err(ResizeError::refused(why));
    }
    Ok(())
}

const _: () = assert!(BLOCK_SIZE == 4096, "sizes are counted in such blocks");
