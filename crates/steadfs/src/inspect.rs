//! Describing a volume without opening it.

use std::path::Path;
use std::sync::Arc;

use steadfs_block::{Queue, QueueOptions};
use steadfs_ext4::inspect::Inspection;

use crate::Options;
use crate::volume::{Error, open_device};

/// What the superblock, the group descriptors and the journal's superblock on an image file or block
/// device say. Nothing is replayed or written.
pub fn inspect(path: &Path, options: &Options) -> Result<Inspection, Error> {
    let mut options = options.clone();
    options.ext4.read_only = true;
    let device = Arc::new(open_device(path, &options)?);
    let queue = Queue::new(device, QueueOptions::default());
    steadfs_ext4::inspect::inspect(&queue).map_err(|error| Error::Volume {
        path: path.to_owned(),
        error,
    })
}
