//! The areas of a volume of another size.
//!
//! **Rule.** Growing computes the tables as resize.f2fs does, but no table becomes smaller and the main area never moves
//! down; it moves up by whole sections. With `keep_tables`, and always when shrinking, the tables stay as they are and only
//! the end of the main area moves.

use super::{ResizeError, Result};
use crate::disk::superblock::MAX_SEGMENTS;
use crate::disk::{BLOCK_SIZE, SEGMENT_BLOCKS, Superblock, nat, sit};
use crate::format::FormatError;
use crate::format::plan::{bitmaps, plan_overprovision};

/// A volume's new geometry.
pub(super) struct Target {
    /// Its superblock.
    pub superblock: Superblock,
    /// Segments reserved for GC.
    pub reserved: u32,
    /// Segments not available to users, including the reserved ones.
    pub overprovision: u32,
    /// Segments that the main area moves up.
    pub moved_up: u32,
}

/// Sizes of tables in segments: of one copy where there are two.
#[derive(Clone, Copy)]
struct Tables {
    packs: u64,
    sit: u64,
    nat: u64,
    ssa: u64,
    payload: u64,
}

impl Tables {
    fn of(old: &Superblock) -> Self {
        let raw = old.raw();
        Self {
            packs: raw.segment_count_ckpt.get().into(),
            sit: u64::from(raw.segment_count_sit.get()) / 2,
            nat: u64::from(raw.segment_count_nat.get()) / 2,
            ssa: raw.segment_count_ssa.get().into(),
            payload: raw.cp_payload.get().into(),
        }
    }

    fn segments(self) -> u64 {
        self.packs + 2 * self.sit + 2 * self.nat + self.ssa
    }

    /// The tables of a volume that grows to `all` segments.
    fn grown(self, all: u64, zone: u64, large: bool) -> Result<Self> {
        let per_segment = u64::from(SEGMENT_BLOCKS);
        let rest = |used: u64| all.checked_sub(used).ok_or_else(too_small);
        let segments_for = |blocks: u64| blocks.div_ceil(per_segment);
        let sit = segments_for(all.div_ceil(sit::PER_BLOCK as u64)).max(self.sit);
        let nodes = rest(self.packs + 2 * sit)? * per_segment;
        let wanted = segments_for(nodes.div_ceil(nat::PER_BLOCK as u64));
        // With a large bitmap there is one node per five blocks.
        let wanted = wanted.max(if large { 5 * self.nat } else { self.nat });
        let (nat, payload) = bitmaps(sit, wanted, large);
        let before_ssa = self.packs + 2 * sit + 2 * nat;
        let ssa = segments_for(rest(before_ssa)? + 1);
        let before_main = (before_ssa + ssa).next_multiple_of(zone);
        Ok(Self {
            packs: self.packs,
            sit,
            nat,
            ssa: before_main.max(self.segments()) - before_ssa,
            payload: payload.max(self.payload),
        })
    }

    /// Refuses a main area for which the tables have no room.
    fn check_room(self, main: u64) -> Result<()> {
        let blocks = u64::from(SEGMENT_BLOCKS);
        let room = (self.sit * blocks * sit::PER_BLOCK as u64).min(self.ssa * blocks);
        if main <= room {
            return Ok(());
        }
        Err(ResizeError::refused(format!(
            "the tables have room for {room} segments of 2 MiB, the new size needs {main}: resize without -s"
        )))
    }
}

fn too_small() -> ResizeError {
    ResizeError::refused("the new size is less than the volume's tables need")
}

/// A number of segments or blocks as the 32-bit field that stores it.
fn small(n: u64) -> Result<u32> {
    u32::try_from(n).map_err(|_| ResizeError::refused("the new size is more than f2fs can have"))
}

impl Target {
    /// The geometry for `size` bytes; `None` if the volume has it already.
    pub(super) fn of(
        old: &Superblock,
        size: u64,
        keep_tables: bool,
        large_nat_bitmap: bool,
    ) -> Result<Option<Self>> {
        let raw = old.raw();
        let blocks = size / BLOCK_SIZE as u64;
        let first = u64::from(raw.segment0_blkaddr.get());
        let section = u64::from(raw.segs_per_sec.get());
        let zone = section * u64::from(raw.secs_per_zone.get());
        let all = blocks.saturating_sub(first) / u64::from(SEGMENT_BLOCKS) / section * section;
        if all > MAX_SEGMENTS.into() {
            return Err(ResizeError::refused("f2fs volumes have at most 16 TiB"));
        }
        let before = Tables::of(old);
        let main_before = u64::from(raw.segment_count_main.get());
        let main_with = |tables: Tables| all.saturating_sub(tables.segments()) / section * section;
        let mut tables = before;
        if main_with(before) > main_before && !keep_tables {
            tables = before.grown(all, zone, large_nat_bitmap)?;
        }
        let main = main_with(tables);
        let shrinks = main_with(before) < main_before;
        if main == main_before || (main < main_before && !shrinks) {
            return Ok(None);
        }
        tables.check_room(main)?;
        let moved_up = tables.segments() - before.segments();
        if !moved_up.is_multiple_of(section) {
            let why =
                "the tables of this volume do not end with a section: use -s, which keeps them";
            return Err(ResizeError::refused(why));
        }
        let planned = plan_overprovision(main, section, None);
        let (_, reserved, kept) = planned.map_err(|error| match error {
            FormatError::TooSmall(why) => {
                ResizeError::refused(format!("the new size is too small: {why}"))
            }
            other => other.into(),
        })?;
        Ok(Some(Self {
            superblock: fill(old, blocks, tables, main)?,
            reserved: small(reserved)?,
            overprovision: small(kept)?,
            moved_up: small(moved_up)?,
        }))
    }

    /// Blocks available to users.
    pub(super) fn user_blocks(&self) -> u64 {
        let main = self.superblock.layout().main_segments;
        u64::from(main - self.overprovision) * u64::from(SEGMENT_BLOCKS)
    }
}

fn fill(old: &Superblock, blocks: u64, tables: Tables, main: u64) -> Result<Superblock> {
    let mut raw = old.raw().clone();
    let section = u64::from(raw.segs_per_sec.get());
    let mut at = u64::from(raw.segment0_blkaddr.get());
    let mut area = |segments: u64| {
        let start = at;
        at += segments * u64::from(SEGMENT_BLOCKS);
        small(start)
    };
    raw.cp_blkaddr.set(area(tables.packs)?);
    raw.sit_blkaddr.set(area(2 * tables.sit)?);
    raw.nat_blkaddr.set(area(2 * tables.nat)?);
    raw.ssa_blkaddr.set(area(tables.ssa)?);
    raw.main_blkaddr.set(area(main)?);
    raw.block_count.set(blocks);
    for (field, count) in [
        (&mut raw.section_count, main / section),
        (&mut raw.segment_count, tables.segments() + main),
        (&mut raw.segment_count_sit, 2 * tables.sit),
        (&mut raw.segment_count_nat, 2 * tables.nat),
        (&mut raw.segment_count_ssa, tables.ssa),
        (&mut raw.segment_count_main, main),
        (&mut raw.cp_payload, tables.payload),
    ] {
        field.set(small(count)?);
    }
    Superblock::from_raw(raw).map_err(|error| {
        ResizeError::refused(format!(
            "the new geometry fails validation (a bug): {error}"
        ))
    })
}
