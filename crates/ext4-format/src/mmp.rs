//! Reading the block of multiple-mount protection.

use steadfs_base::{Corruption, DevBlock, GroupId, IoPrio, IoTag, OwnerId, Urgency};
use steadfs_block::{Buf, Queue};
use steadfs_vfs::Result;

use crate::disk::{Geometry, Mmp};
use crate::io_error;

/// Reads and writes of the block: other nodes wait for them.
pub const TAG: IoTag = IoTag {
    urgency: Urgency::Waited,
    prio: IoPrio::best_effort(0),
    group: GroupId(0),
    owner: OwnerId(0),
};

/// Reads and verifies the block at `at`. Returns it with all bytes of the block.
///
/// # Errors
/// It cannot be read, is outside the volume, or is no such block.
pub fn read(queue: &Queue, geo: &Geometry, at: DevBlock) -> Result<(Mmp, Buf)> {
    if !geo.is_data_range(at, 1) {
        let why = "multiple-mount protection: its block is outside the volume";
        return Err(Corruption::new(why).in_block(at).into());
    }
    let size = geo.block_size;
    let block = queue
        .read(size.offset_of(at), size.bytes(), TAG)
        .map_err(io_error)?;
    let mmp = Mmp::parse(geo.seed, at, &block)?;
    Ok((mmp, block))
}
