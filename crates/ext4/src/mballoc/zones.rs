//! Blocks that no file may own: superblock and descriptor copies, bitmaps, inode tables.

use std::collections::BTreeMap;

use steadfs_base::DevBlock;

use crate::disk::bitmap;

/// Disjoint block ranges, start to end; adjacent ranges are merged.
#[derive(Default)]
pub(super) struct Zones(BTreeMap<u64, u64>);

impl Zones {
    /// Adds a range; returns whether it overlaps no other.
    pub(super) fn add(&mut self, start: DevBlock, len: u64) -> bool {
        if len == 0 {
            return true;
        }
        let apart = !self.overlaps(start, len);
        let (mut low, mut high) = (start.0, start.0 + len);
        // Merge with the range before and with every range that starts inside it or directly after it.
        if let Some((&s, &e)) = self.0.range(..=low).next_back()
            && e >= low
        {
            low = s;
            high = high.max(e);
        }
        while let Some((&s, &e)) = self.0.range(low..=high).next() {
            self.0.remove(&s);
            high = high.max(e);
        }
        self.0.insert(low, high);
        apart
    }

    /// Blocks in all zones.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|(s, e)| e - s).sum()
    }

    /// Whether any block of the range is in a zone.
    pub(super) fn overlaps(&self, start: DevBlock, len: u64) -> bool {
        let end = start.0.saturating_add(len);
        self.0
            .range(..end)
            .next_back()
            .is_some_and(|(_, &e)| e > start.0)
    }

    /// Sets the bits of a group's bitmap whose clusters have blocks in zones. `first` is the group's first block; a cluster
    /// has `1 << cluster_bits` blocks.
    pub(super) fn mark(&self, first: DevBlock, blocks: u32, cluster_bits: u32, bits: &mut [u8]) {
        let end = first.0 + u64::from(blocks);
        for (&s, &e) in self.0.range(..end).rev() {
            if e <= first.0 {
                break;
            }
            let low = s.max(first.0) - first.0;
            let high = e.min(end) - first.0;
            let high = (high as u32).div_ceil(1 << cluster_bits);
            bitmap::set_range(bits, low as u32 >> cluster_bits..high);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_overlap() {
        let mut zones = Zones::default();
        for start in [10, 20, 15] {
            assert!(zones.add(DevBlock(start), 5), "neighbours are apart");
        }
        assert!(zones.add(DevBlock(12), 0));
        assert_eq!(zones.0.len(), 1);
        assert!(zones.overlaps(DevBlock(0), 11));
        assert!(!zones.overlaps(DevBlock(0), 10));
        assert!(zones.overlaps(DevBlock(24), 1));
        assert!(!zones.overlaps(DevBlock(25), 1));
        let mut bits = [0u8; 8];
        zones.mark(DevBlock(8), 4, 0, &mut bits);
        assert_eq!(bits[0], 0b1100);
        let mut bits = [0u8; 8];
        zones.mark(DevBlock(8), 56, 2, &mut bits);
        assert_eq!(bits[0], 0b1_1111, "a cluster with one block in a zone");
        assert!(!zones.add(DevBlock(24), 2));
        assert!(!zones.add(DevBlock(0), 100));
        assert_eq!(zones.total(), 100);
        assert!(zones.add(DevBlock(500), 7));
        assert_eq!(zones.total(), 107);
    }
}
