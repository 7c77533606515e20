//! fsync clustering: an fsync writes dirty files near its own along ([`FsyncClustering`](crate::FsyncClustering) learns
//! how many).

use std::sync::Arc;

use super::{Engine, Intent, WritebackFile, WritebackFs};

impl<S: WritebackFs> Engine<'_, S> {
    /// Before the data of `file` is written for an fsync: writes it together with that of the files that are likely to be
    /// synced next. These files. What fails is left dirty and is its own file's error.
    pub fn write_cluster(&self, file: &S::File, intent: Intent<S::Hint>) -> Vec<Arc<S::File>> {
        let clustering = self.0.clustering();
        if file.cluster_mark().take() && file.pages().is_empty() {
            clustering.record_hit();
        }
        if !self.0.clusters() {
            return Vec::new();
        }
        let number = file.number();
        let dirty = file.pages().dirty_bytes();
        let near = clustering.candidates(self.0.writeback(), number, dirty);
        if near.is_empty() || self.0.check_writable().is_err() {
            return Vec::new();
        }
        clustering.record_run();
        let numbers = near.iter().chain([&number.0]);
        let mut group: Vec<Arc<S::File>> = numbers.filter_map(|&n| self.0.file(n)).collect();
        // The order of their locks.
        group.sort_unstable_by_key(|file| file.number().0);
        let space = self.0.before_turn(intent.tag);
        if let Err(error) = space.and_then(|()| self.write_small_files(&group, intent)) {
            tracing::debug!(%error, "a file of an fsync's cluster was not written");
        }
        group.retain(|other| other.number() != number);
        group.iter().for_each(|other| other.cluster_mark().set());
        group
    }
}
