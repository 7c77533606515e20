//! Locations of the journal's blocks on the device.

use steadfs_base::DevBlock;

use crate::FormatError;

/// The journal's blocks as runs on the device: the extents of the journal's inode.
#[derive(Clone, Debug)]
pub struct JournalMap {
    /// In the journal's order.
    runs: Vec<Run>,
    /// In the device's order.
    by_device: Vec<Run>,
    len: u32,
    /// Where the volume ends, if the journal is behind it on another device.
    volume_end: Option<DevBlock>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    /// First block of the journal.
    logical: u32,
    /// Its device block.
    device: DevBlock,
    len: u32,
}

impl JournalMap {
    /// A map of consecutive runs (first device block, length in blocks) of the journal.
    ///
    /// # Errors
    /// [`FormatError::Corrupt`] if there are no runs, one is empty or ends past the last block number, two
    /// overlap, or their total is more than 2^32 - 1 blocks.
    pub fn new(runs: impl IntoIterator<Item = (DevBlock, u64)>) -> Result<Self, FormatError> {
        let mut map = Self {
            runs: Vec::new(),
            by_device: Vec::new(),
            len: 0,
            volume_end: None,
        };
        for (device, len) in runs {
            map.push(device, len)?;
        }
        if map.len == 0 {
            return Err(FormatError::Corrupt("the journal has no blocks".into()));
        }
        map.by_device = map.runs.clone();
        map.by_device.sort_unstable_by_key(|run| run.device);
        let mut pairs = map.by_device.windows(2);
        if pairs.any(|two| two[0].device.plus(two[0].len.into()) > two[1].device) {
            return Err(FormatError::Corrupt("the journal's extents overlap".into()));
        }
        Ok(map)
    }

    fn push(&mut self, device: DevBlock, len: u64) -> Result<(), FormatError> {
        let bad = || FormatError::Corrupt(format!("journal extent of {len} blocks at {device}"));
        let short = u32::try_from(len).map_err(|_| bad())?;
        if short == 0 || device.0.checked_add(len).is_none() {
            return Err(bad());
        }
        let total = self.len.checked_add(short).ok_or_else(bad)?;
        match self.runs.last_mut() {
            Some(last) if last.device.plus(last.len.into()) == device => last.len += short,
            _ => self.runs.push(Run {
                logical: self.len,
                device,
                len: short,
            }),
        }
        self.len = total;
        Ok(())
    }

    /// The same map of a journal behind a volume that ends before this block.
    #[must_use]
    pub fn behind_volume(mut self, end: DevBlock) -> Self {
        self.volume_end = Some(end);
        self
    }

    /// Whether a block can be the home of a logged block: it is before `device_end`, the end of the device, in the volume,
    /// and not the journal's own.
    pub fn may_be_home(&self, block: DevBlock, device_end: DevBlock) -> bool {
        block < self.volume_end.unwrap_or(device_end) && !self.contains(block)
    }

    /// Blocks in the journal.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the journal has no blocks (never).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device block of block `logical` of the journal, and the number of contiguous blocks from there.
    ///
    /// # Panics
    /// If `logical` is past the end of the journal.
    pub fn locate(&self, logical: u32) -> (DevBlock, u32) {
        assert!(
            logical < self.len,
            "block {logical} of a journal of {}",
            self.len
        );
        let after = self.runs.partition_point(|run| run.logical <= logical);
        let run = &self.runs[after - 1];
        let within = logical - run.logical;
        (run.device.plus(within.into()), run.len - within)
    }

    /// Whether a device block belongs to the journal.
    pub fn contains(&self, block: DevBlock) -> bool {
        let after = self.by_device.partition_point(|run| run.device <= block);
        let before = after.checked_sub(1).map(|at| &self.by_device[at]);
        before.is_some_and(|run| block.0 - run.device.0 < u64::from(run.len))
    }

    /// Whether any block of a range of device blocks belongs to the journal.
    pub fn overlaps(&self, start: DevBlock, len: u64) -> bool {
        let end = start.0.saturating_add(len);
        let before = self.by_device.partition_point(|run| run.device.0 < end);
        let last = before.checked_sub(1).map(|at| &self.by_device[at]);
        len > 0 && last.is_some_and(|run| run.device.0 + u64::from(run.len) > start.0)
    }

    /// The journal's runs in its own order: first device block, length in blocks.
    pub fn runs(&self) -> impl Iterator<Item = (DevBlock, u64)> + '_ {
        self.runs.iter().map(|run| (run.device, run.len.into()))
    }

    /// The journal's last device block plus one.
    pub fn device_end(&self) -> DevBlock {
        let last = self.by_device.last().expect("a journal has blocks");
        last.device.plus(last.len.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_merged_and_checked() {
        let runs = [(DevBlock(100), 4), (DevBlock(104), 4), (DevBlock(50), 8)];
        let map = JournalMap::new(runs).unwrap();
        assert_eq!(map.len(), 16);
        assert_eq!(map.locate(0), (DevBlock(100), 8));
        assert_eq!(map.locate(7), (DevBlock(107), 1));
        assert_eq!(map.locate(8), (DevBlock(50), 8));
        assert_eq!(map.locate(15), (DevBlock(57), 1));
        assert!(map.contains(DevBlock(57)) && !map.contains(DevBlock(58)));
        let end = DevBlock(60);
        assert!(map.may_be_home(DevBlock(58), end) && !map.may_be_home(DevBlock(57), end));
        assert!(!map.may_be_home(DevBlock(60), end));
        let behind = map.clone().behind_volume(DevBlock(40));
        assert!(behind.may_be_home(DevBlock(39), end) && !behind.may_be_home(DevBlock(40), end));
        assert_eq!(map.device_end(), DevBlock(108));
        assert!(map.overlaps(DevBlock(0), 51) && !map.overlaps(DevBlock(0), 50));
        assert!(map.overlaps(DevBlock(57), 1) && !map.overlaps(DevBlock(58), 42));
        assert!(!map.overlaps(DevBlock(55), 0) && map.overlaps(DevBlock(107), u64::MAX));
        let runs: Vec<_> = map.runs().collect();
        assert_eq!(runs, [(DevBlock(100), 8), (DevBlock(50), 8)]);
        for bad in [
            vec![],
            vec![(DevBlock(1), 0)],
            vec![(DevBlock(1), 5), (DevBlock(5), 1)],
        ] {
            assert!(JournalMap::new(bad).is_err());
        }
        assert!(JournalMap::new([(DevBlock(u64::MAX), 2)]).is_err());
        assert!(JournalMap::new([(DevBlock(0), 1 << 32)]).is_err());
    }
}
