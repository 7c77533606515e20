//! Which units are in the overlay, and what waits.

use std::collections::{BTreeMap, BTreeSet};

use steadfs_block::{Bio, Buf, Done};

use super::Claim;
use super::format::{BLOCK_UNITS, Layout, MAP_BLOCK};

/// A request that has not begun.
pub(super) type Job = (Bio, Done);

pub(super) struct State {
    /// A bit for each unit, in the blocks of the map.
    map: Vec<u8>,
    /// Blocks of the map with bits that are not on the file.
    unsaved: BTreeSet<u64>,
    /// Units in the overlay, and those that running writes may add.
    used: u64,
    coming: u64,
    units_max: u64,
    unit: u64,
    /// Units that are being copied from the base, with the writes that wait for that.
    copied: BTreeMap<u64, Vec<Job>>,
    pub(super) flushes: Flushes,
}

/// FLUSHes of the overlay: one runs at a time, and all that arrive meanwhile are served by the next one.
#[derive(Default)]
pub(super) struct Flushes {
    pub(super) running: bool,
    pub(super) waiting: Vec<Job>,
}

impl State {
    /// A state with this map, for at most `units_max` units.
    pub(super) fn new(layout: &Layout, map: Vec<u8>, units_max: u64) -> Self {
        let used = map.iter().map(|byte| u64::from(byte.count_ones())).sum();
        Self {
            map,
            unsaved: BTreeSet::new(),
            used,
            coming: 0,
            units_max,
            unit: layout.unit,
            copied: BTreeMap::new(),
            flushes: Flushes::default(),
        }
    }

    pub(super) fn has(&self, unit: u64) -> bool {
        self.map[(unit / 8) as usize] & 1 << (unit % 8) != 0
    }

    pub(super) fn is_copied(&self, unit: u64) -> bool {
        self.copied.contains_key(&unit)
    }

    pub(super) fn wait_for(&mut self, unit: u64, job: Job) {
        self.copied.entry(unit).or_default().push(job);
    }

    /// A write begins.
    pub(super) fn begin(&mut self, claim: &Claim) -> Result<(), String> {
        if self.used + self.coming + claim.fresh > self.units_max {
            let bytes = self.units_max * self.unit;
            return Err(format!("the overlay is full: it has {bytes} bytes"));
        }
        self.coming += claim.fresh;
        for unit in &claim.partial {
            self.copied.insert(*unit, Vec::new());
        }
        Ok(())
    }

    /// A write has ended. Returns the writes that have waited for it.
    pub(super) fn end(&mut self, claim: &Claim, written: bool) -> Vec<Job> {
        self.coming -= claim.fresh;
        if written {
            for unit in claim.first..claim.end {
                if !self.has(unit) {
                    self.map[(unit / 8) as usize] |= 1 << (unit % 8);
                    self.unsaved.insert(unit / BLOCK_UNITS);
                    self.used += 1;
                }
            }
        }
        let copied = claim.partial.iter();
        copied
            .filter_map(|unit| self.copied.remove(unit))
            .flatten()
            .collect()
    }

    /// The blocks of the map with bits that are not on the file: from now on they count as saved.
    pub(super) fn take_unsaved(&mut self) -> Vec<(u64, Buf)> {
        let blocks = std::mem::take(&mut self.unsaved).into_iter();
        blocks
            .map(|block| {
                let at = (block * MAP_BLOCK) as usize;
                let bytes = &self.map[at..at + MAP_BLOCK as usize];
                (block, Buf::copy_of(bytes))
            })
            .collect()
    }

    /// These blocks could not be saved.
    pub(super) fn not_saved(&mut self, blocks: impl IntoIterator<Item = u64>) {
        self.unsaved.extend(blocks);
    }
}
