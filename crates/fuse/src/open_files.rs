//! Open files of a volume whose content may depend on which processes have them open ([`FileSystem::tracks_files`]).
//!
//! **Handle.** It is made of the number of the OPEN and of how the file was opened, so nothing is kept for an open file,
//! and a successor of the server knows the handles that its predecessor gave. 0: the volume does not track files, and the
//! file is not counted as open for writing ([`crate::writers`]).
//!
//! **Stale pages.** Where content that was seen before is dropped, the kernel's pages are invalidated before the reply.
//!
//! [`FileSystem::tracks_files`]: steadfs_vfs::FileSystem::tracks_files

use rustix::fs::OFlags;
use steadfs_base::InodeNo;
use steadfs_vfs::{Cx, OpenFile};

use crate::call::{Call, Outcome};
use crate::reply::{OPEN_OUT, ReplyBuf};
use crate::wire;

/// How a file is opened, as far as that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenKind {
    /// For writing.
    pub write: bool,
    /// With O_DIRECT.
    pub direct: bool,
}

const WRITE: u64 = 1;
const DIRECT: u64 = 2;
const FLAG_BITS: u32 = 2;

impl OpenKind {
    /// From the flags of open(2).
    pub fn of_flags(flags: u32) -> Self {
        Self {
            write: flags & OFlags::ACCMODE.bits() != 0,
            direct: flags & OFlags::DIRECT.bits() != 0,
        }
    }

    /// The handle of a file that the request with this number opens.
    fn handle(self, unique: u64) -> u64 {
        let flag = |is: bool, bit| if is { bit } else { 0 };
        unique << FLAG_BITS | flag(self.write, WRITE) | flag(self.direct, DIRECT)
    }
}

/// The open file with a handle.
fn open_file(fh: u64) -> Option<OpenFile> {
    (fh != 0).then_some(OpenFile {
        id: fh >> FLAG_BITS,
        write: fh & WRITE != 0,
        direct: fh & DIRECT != 0,
    })
}

impl Call<'_> {
    /// Serves OPEN.
    pub(crate) fn open(&self, kind: OpenKind, out: &mut ReplyBuf) -> Outcome {
        let fs = &*self.volume.fs;
        if fs.checks_opens() {
            fs.open(&self.cx, self.ino, kind.write)?;
        }
        if fs.tracks_files() {
            self.drop_abandoned()?;
        }
        self.count_writer(self.ino, kind)?;
        out.put(&self.open_out(kind));
        Ok(())
    }

    /// A file is opened: counts it if that is for writing.
    ///
    /// # Errors
    /// `TextBusy`: it becomes a verity file.
    pub(crate) fn count_writer(&self, ino: InodeNo, kind: OpenKind) -> Outcome {
        if kind.write && self.volume.fs.checks_opens() {
            let fh = kind.handle(self.header.unique);
            self.volume.writers.add(ino, fh)?;
        }
        Ok(())
    }

    /// The reply to an open.
    pub(crate) fn open_out(&self, kind: OpenKind) -> wire::OpenOut {
        if !self.volume.fs.tracks_files() {
            let counted = kind.write && self.volume.fs.checks_opens();
            return wire::OpenOut {
                fh: if counted {
                    kind.handle(self.header.unique)
                } else {
                    0
                },
                ..OPEN_OUT
            };
        }
        let flush = if kind.write { 0 } else { wire::FOPEN_NOFLUSH };
        wire::OpenOut {
            fh: kind.handle(self.header.unique),
            open_flags: OPEN_OUT.open_flags | flush,
            ..OPEN_OUT
        }
    }

    /// The context of a call with this handle.
    pub(crate) fn cx_of(&self, fh: u64) -> Cx {
        Cx {
            opened: open_file(fh).filter(|_| self.volume.fs.tracks_files()),
            ..self.cx.clone()
        }
    }

    /// Serves RELEASE.
    pub(crate) fn release(&self, fh: u64) -> Outcome {
        self.volume.writers.remove(self.ino, fh);
        let fs = &self.volume.fs;
        if fs.tracks_files() && fs.closed(&self.cx_of(fh), self.ino) {
            let _ = self.volume.content_dropped(self.ino);
        }
        Ok(())
    }

    /// Serves FLUSH; also before an open. What a process that has ended left unfinished in the file ends with it.
    pub(crate) fn drop_abandoned(&self) -> Outcome {
        if self.volume.fs.drop_abandoned(&self.cx, self.ino) {
            let _ = self.volume.content_dropped(self.ino);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_says_how_the_file_was_opened() {
        let kinds = [
            (OFlags::RDONLY, false, false),
            (OFlags::WRONLY, true, false),
            (OFlags::RDWR | OFlags::DIRECT, true, true),
            (OFlags::RDONLY | OFlags::DIRECT, false, true),
        ];
        for (flags, write, direct) in kinds {
            let kind = OpenKind::of_flags(flags.bits());
            assert_eq!((kind.write, kind.direct), (write, direct));
            let id = 0x1234_5678_9abc;
            assert_eq!(
                open_file(kind.handle(id)),
                Some(OpenFile { id, write, direct })
            );
        }
        assert_eq!(open_file(0), None);
    }
}
