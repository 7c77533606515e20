//! How the volumes of a copy's two sides are related.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::args;
use crate::failure::Failure;
use crate::partition;

/// How the volumes of a copy's two sides are related. An image can be open only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    Same,
    /// Partitions of one disk.
    Beside,
    Other,
}

pub fn relation(a: &Path, b: &Path, open: &args::offline::Open) -> Result<Relation, Failure> {
    if !same_file(partition::file_of(a), partition::file_of(b)) {
        return Ok(Relation::Other);
    }
    // A partition has several names.
    let place = |image: &Path| partition::window(image, open.sandbox).map(|(_, window)| window);
    match place(a)? == place(b)? {
        true => Ok(Relation::Same),
        false => Ok(Relation::Beside),
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    if steadfs::is_uri(a) {
        return a == b;
    }
    match (a.metadata(), b.metadata()) {
        (Ok(a), Ok(b)) if a.rdev() != 0 => a.rdev() == b.rdev(),
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}
