//! The verity files of a volume that were read last. An inode leaves memory between two reads; without this each read
//! would fetch descriptor and hashes again.

use std::collections::VecDeque;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_rt::{Mutex, Rank};

use super::Verity;
use crate::Result;

/// Most files that are kept: their hashes take 64 KiB each at most with blocks of 4 KiB.
const FILES_MAX: usize = 32;

/// A file, by number and generation: a number is used again, and the file does not change as long as it lives.
type Key = (InodeNo, u32);

/// See the module.
pub struct VerityFiles(Mutex<VecDeque<(Key, Arc<Verity>)>>);

impl Default for VerityFiles {
    fn default() -> Self {
        Self(Mutex::new(Rank::Leaf, VecDeque::new()))
    }
}

impl VerityFiles {
    /// How the content of a file is checked; `load` reads its descriptor.
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
