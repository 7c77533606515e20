//! Claims of image files that are to be replaced.
//!
//! **Rule.** A program that reads an image file for minutes and then gives its name to another file has the old one claimed
//! from before the first read until after the rename. So no mount changes what is about to be lost, and of two such programs
//! the second one finds that the name has another file.

use std::fs::File;
use std::io;
use std::path::Path;

use steadfs_block::{ClaimedFile, Engine, OpenOptions};

use crate::volume::Error;

/// An image file that no other program uses, until this is dropped.
pub struct ImageClaim(ClaimedFile);

impl ImageClaim {
    /// Claims an image file or block device as one that is to be written.
    ///
    /// # Errors
    /// Those of opening it for writing; another program uses it.
    pub fn of(path: &Path) -> Result<Self, Error> {
        let open = OpenOptions {
            engine: Engine::Threads,
            ..OpenOptions::default()
        };
        Ok(Self(ClaimedFile::open(path, &open, true)?))
    }

    /// The file, open for reading and writing. It is claimed until this handle is closed, too.
    ///
    /// # Errors
    /// The process has too many files open.
    pub fn file(&self) -> io::Result<File> {
        self.0.file()
    }
}
