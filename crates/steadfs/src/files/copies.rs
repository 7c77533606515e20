//! Copies between a volume and the host.

use std::io;
use std::path::Path;

use super::{FirstProblem, bytes};
use crate::Volume;
use crate::tools::{self, CopyOptions, Selection, owner_cx};

impl Volume {
    /// Copies a file or tree of the host to `to`, with all attributes. Existing files are not changed.
    /// Returns the number of files, directories included.
    ///
    /// # Errors
    /// The first file that was not copied, or attribute that was not kept; all others are.
    pub fn copy_in(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
        let mut problems = FirstProblem::default();
        let options = CopyOptions {
            image: self.image_id(),
            ..CopyOptions::default()
        };
        let to = bytes(to.as_ref());
        let copied = tools::copy_in(
            &*self.fs(),
            &owner_cx(),
            from.as_ref(),
            to,
            options,
            &mut problems,
        );
        problems.into_result()?;
        Ok(copied?.files)
    }

    /// Copies a file or tree to `to` on the host, with all attributes that the caller may set there. Existing files are
    /// not changed. Returns the number of files, directories included.
    ///
    /// # Errors
    /// As [`Volume::copy_in`].
    pub fn copy_out(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
        let mut problems = FirstProblem::default();
        let is_root = steadfs_rt::kernel_ids().0 == 0;
        let options = CopyOptions {
            owners: is_root,
            privileges: is_root,
            ..CopyOptions::default()
        };
        let (from, all) = (bytes(from.as_ref()), Selection::default());
        let copied = tools::copy_out(
            &*self.fs(),
            &owner_cx(),
            from,
            to.as_ref(),
            options,
            all,
            &mut problems,
        );
        problems.into_result()?;
        Ok(copied?.files)
    }
}
