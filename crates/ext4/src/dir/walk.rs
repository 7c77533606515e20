//! Walks over the blocks of a directory, which end whatever its size and its index say.
//!
//! **Problem.** The size of a directory and the entries of its index are what an image says: a few blocks that are mapped,
//! or named, again and again would keep a call busy for hours.
//!
//! **Rule.** A walk visits no device block twice, so its length is limited by what is stored. Calls that only read end when
//! their caller is killed.

use std::collections::BTreeSet;

use steadfs_base::DevBlock;
use steadfs_vfs::Result;

use super::Dir;

/// Blocks between two checks whether the caller is killed.
const KILL_CHECK_BLOCKS: u32 = 1024;

/// The device blocks that a walk has visited.
#[derive(Default)]
pub(super) struct Walk {
    visited: BTreeSet<DevBlock>,
}

impl Walk {
    /// Visits a block of names.
    ///
    /// # Errors
    /// The walk was there before; the caller is being killed.
    pub(super) fn visit(&mut self, dir: &Dir<'_>, block: DevBlock) -> Result<()> {
        if !self.visited.insert(block) {
            return Err(dir.corrupt(format_args!("block {block} is in it twice")));
        }
        let visits = dir.visits.get().wrapping_add(1);
        dir.visits.set(visits);
        match dir.caller {
            Some(caller) if visits.is_multiple_of(KILL_CHECK_BLOCKS) => caller.check_killed(),
            _ => Ok(()),
        }
    }
}
