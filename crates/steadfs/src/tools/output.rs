//! A regular file on a volume that is being written.

use std::borrow::Cow;

use steadfs_base::InodeNo;
use steadfs_vfs::{FileKind, Given, NewFile, SetAttr, write_all};

use super::copying::Log;
use super::maker::{CopyTarget, Kept, Maker};
use super::walk::Held;
use super::{At, Result, refused};

/// Most data of a file that is made by one call, in bytes.
const SMALL_MAX: usize = 64 << 10;

/// A regular file on a volume that is being written. It is created, or the existing one truncated, after the first read,
/// so that an unreadable source destroys no file.
pub(super) struct Output<'a, 's> {
    maker: Maker<'a>,
    spot: CopyTarget<'s>,
    /// The file, and whether it was made for this copy.
    open: Option<(Held<'a>, bool)>,
    /// The data of a file that is made by one call.
    runs: Vec<(u64, Cow<'static, [u8]>)>,
    /// Bytes of `runs`.
    small: usize,
    end: u64,
    size: u64,
}

impl<'a, 's> Output<'a, 's> {
    pub fn new(maker: Maker<'a>, spot: CopyTarget<'s>) -> Self {
        Self {
            maker,
            spot,
            open: None,
            runs: Vec::new(),
            small: 0,
            end: 0,
            size: 0,
        }
    }

    fn ino(&mut self) -> Result<InodeNo> {
        if let Some((held, _)) = &self.open {
            return Ok(held.ino());
        }
        let opened = self.maker.open(&self.spot)?;
        Ok(self.open.insert(opened).0.ino())
    }

    /// Writes all of `bytes`, after what was written before.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        if self.spot.later {
            self.small += bytes.len();
            if self.small <= SMALL_MAX {
                self.end = at.saturating_add(bytes.len() as u64);
                self.runs.push((at, Cow::Owned(bytes.to_vec())));
                return Ok(());
            }
            self.spot.later = false;
            for (at, bytes) in std::mem::take(&mut self.runs) {
                self.write_now(at, &bytes)?;
            }
        }
        self.write_now(at, bytes)
    }

    fn write_now(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let ino = self.ino()?;
        let Maker { fs, cx, .. } = self.maker;
        write_all(fs, cx, ino, at, bytes).on_volume(self.spot.path)?;
        self.end = self.end.max(at.saturating_add(bytes.len() as u64));
        Ok(())
    }

    /// Ends the file at `size`, if its data did not reach so far.
    pub fn finish(&mut self, size: u64) -> Result<()> {
        self.size = size.max(self.end);
        if self.spot.later {
            return Ok(());
        }
        let ino = self.ino()?;
        if self.end < size {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            let set = self.maker.fs.setattr(self.maker.cx, ino, &set);
            set.on_volume(self.spot.path)?;
        }
        Ok(())
    }

    /// Whether the file gets its original's attributes.
    pub fn keeps(&self) -> bool {
        let made = self.open.as_ref().is_none_or(|(_, made)| *made);
        made || self.maker.options.preserve
    }

    /// Gives the finished file its attributes. Returns the file if its inode number can be needed.
    pub fn end(self, kept: Option<Kept>, log: &mut Log<'_>) -> Result<Option<Held<'a>>> {
        let (maker, spot) = (self.maker, self.spot);
        if spot.later {
            let given = kept.map_or_else(Given::default, |kept| maker.given(kept, spot.path));
            let new = NewFile {
                kind: FileKind::Regular,
                rdev: 0,
                target: &[],
                runs: &self.runs,
                size: self.size,
                given: &given,
            };
            maker.make_all(&new, &spot, log)?;
            return Ok(None);
        }
        let Some((held, made)) = self.open else {
            return refused(spot.path, "was not written");
        };
        match kept {
            Some(kept) if made => maker.keep(held.ino(), kept, spot.path, log),
            Some(kept) => maker.keep_exactly(held.ino(), kept, spot.path, log),
            None => {}
        }
        Ok(Some(held))
    }

    /// Removes a file that was created for a failed copy. A file that existed before stays, with its current content.
    pub fn discard(self) {
        if let Some((_, true)) = self.open {
            let Maker { fs, cx, .. } = self.maker;
            // The copy's own error is the one to report.
            let _ = fs.unlink(cx, self.spot.into, self.spot.name);
        }
    }
}
