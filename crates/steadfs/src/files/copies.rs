//! Copies between a volume and the host.

use std::io;
use std::path::Path;

use super::{FirstProblem, bytes};
use crate::Volume;
use crate::tools::{self, CopyOptions, Progress, Report, Selection, owner_cx};

impl Volume {
    /// Copies a file or tree of the host to `to`, with all attributes. Existing files are not changed.
    /// Returns the number of files, directories included.
    ///
    /// # Errors
    /// The first file that was not copied, or attribute that was not kept; all others are.
    pub fn copy_in(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
        let mut problems = FirstProblem::default();
        let copied = self.copy_in_with(from, to, CopyOptions::default(), &mut problems);
        problems.into_result()?;
        Ok(copied?.files)
    }

    /// As [`Volume::copy_in`], with options. `progress` is called for each file and with each problem, which is no error of this call, and can
    /// stop the copy. [`CopyOptions::image`] is set here.
    ///
    /// # Errors
    /// The copy could not begin, or ended early.
    pub fn copy_in_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: CopyOptions,
        progress: &mut dyn Progress,
    ) -> io::Result<Report> {
        let options = CopyOptions {
            image: self.image_id(),
            ..options
        };
        self.in_use().check()?;
        let (fs, to) = (self.fs(), bytes(to.as_ref()));
        let copied = tools::copy_in(&*fs, &owner_cx(), from.as_ref(), to, options, progress);
        Ok(copied?)
    }

    /// Copies a file or tree to `to` on the host, with all attributes that the caller may set there. Existing files are
    /// not changed. Returns the number of files, directories included.
    ///
    /// # Errors
    /// As [`Volume::copy_in`].
    pub fn copy_out(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
        let mut problems = FirstProblem::default();
        let copied = self.copy_out_with(from, to, CopyOptions::default(), &mut problems);
        problems.into_result()?;
        Ok(copied?.files)
    }

    /// As [`Volume::copy_out`], with options and `progress` as of [`Volume::copy_in_with`]. Owners, device nodes and rights are kept if
    /// root copies.
    ///
    /// # Errors
    /// As [`Volume::copy_in_with`].
    pub fn copy_out_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: CopyOptions,
        progress: &mut dyn Progress,
    ) -> io::Result<Report> {
        let is_root = steadfs_rt::kernel_ids().0 == 0;
        let options = CopyOptions {
            owners: options.owners && is_root,
            privileges: options.privileges && is_root,
            image: self.image_id(),
            ..options
        };
        self.in_use().check()?;
        let (fs, from, all) = (self.fs(), bytes(from.as_ref()), Selection::default());
        let copied = tools::copy_out(&*fs, &owner_cx(), from, to.as_ref(), options, all, progress);
        Ok(copied?)
    }
}
