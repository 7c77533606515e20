//! Numbers of clusters (`bigalloc`). Without the feature a cluster is one block.

use steadfs_base::DevBlock;

use super::{Geometry, GroupNo};

impl Geometry {
    /// Blocks in a cluster.
    pub const fn blocks_per_cluster(&self) -> u32 {
        1 << self.cluster_bits
    }

    /// What a cluster counts in `i_blocks`, in units of 512 bytes.
    pub const fn cluster_units(&self) -> u64 {
        (self.block_size.bytes_u64() / 512) << self.cluster_bits
    }

    /// A number of blocks, or a block's number in its group, as a number of clusters, rounded up.
    pub const fn clusters_for(&self, blocks: u32) -> u32 {
        blocks.div_ceil(self.blocks_per_cluster())
    }

    /// The blocks of all clusters of which the run has blocks.
    pub const fn whole_clusters(&self, start: DevBlock, len: u64) -> (DevBlock, u64) {
        let first = start.0 >> self.cluster_bits << self.cluster_bits;
        let end = (start.0 + len).next_multiple_of(1 << self.cluster_bits);
        (DevBlock(first), end - first)
    }

    /// Clusters in `group`; a last one that is cut short counts.
    pub fn clusters_in(&self, group: GroupNo) -> u32 {
        self.blocks_in(group).div_ceil(self.blocks_per_cluster())
    }
}
