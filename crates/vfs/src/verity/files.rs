//! The most recently read verity files of a volume (LRU). An inode can be evicted between two reads; without this cache
//! each read would read descriptor and hashes again.

use std::collections::VecDeque;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_rt::{Mutex, Rank};

use super::Verity;
use crate::Result;

/// Most files in the cache. With blocks of 4 KiB the hashes of a file take at most 64 KiB.
const FILES_MAX: usize = 32;

/// Inode number and generation: a number is reused, but a verity file never changes.
type Key = (InodeNo, u32);

/// The cached verity files.
pub struct VerityFiles(Mutex<VecDeque<(Key, Arc<Verity>)>>);

impl Default for VerityFiles {
    fn default() -> Self {
        Self(Mutex::new(Rank::Leaf, VecDeque::new()))
    }
}

impl VerityFiles {
    /// The verifier of a file; `load` reads its descriptor.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn get(
        &self,
        ino: InodeNo,
        generation: u32,
        load: impl FnOnce() -> Result<Verity>,
    ) -> Result<Arc<Verity>> {
        let key = (ino, generation);
        {
            let mut files = self.0.lock();
            if let Some(at) = files.iter().position(|(known, _)| *known == key)
                && let Some(found) = files.remove(at)
            {
                let verity = Arc::clone(&found.1);
                files.push_back(found);
                return Ok(verity);
            }
        }
        let verity = Arc::new(load()?);
        let mut files = self.0.lock();
        files.push_back((key, Arc::clone(&verity)));
        if files.len() > FILES_MAX {
            files.pop_front();
        }
        Ok(verity)
    }
}
