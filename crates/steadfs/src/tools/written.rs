//! The file of the host that a copy writes its content to.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use steadfs_vfs::FileKind;

use super::copying::{CopyOptions, Existing, Log};
use super::host::{self, Target};
use super::replacing::{TRIES_MAX, temporary_name};
use super::stream::{StreamWriter, WAIT_FOR_READER};
use super::{AtHost, CHUNK, HostFile, Result, ToolError, os, refused};

/// The target of a copy on the host.
#[derive(Clone, Copy)]
pub struct CopyTarget<'a> {
    pub dir: BorrowedFd<'a>,
    pub name: &'a [u8],
    pub path: &'a Path,
    /// The target that the user named. Only there are links followed and special files written to: below it, the volume or
    /// another user could have placed them.
    pub top: bool,
}

impl CopyTarget<'_> {
    fn bytes(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }

    /// The existing file, if there is one.
    fn found(&self) -> Result<Option<Stat>> {
        match host::stat(self.dir, os(self.name)) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error).on_host(self.path),
        }
    }

    /// Whether a copy is what the name itself refers to, with no other name: the target that the user named may be a link to
    /// the file that was written, one of its names, or a device.
    pub fn is_only_name(&self, made: HostFile) -> Result<bool> {
        let is_it = |stat: Stat| host::id_of(&stat) == made && stat.st_nlink == 1;
        Ok(!self.top || self.found()?.is_some_and(is_it))
    }

    /// Whether the target, to which links at its end lead, is a pipe.
    fn is_pipe(&self) -> Result<bool> {
        let found = rustix::fs::statat(self.dir, os(self.name), AtFlags::empty());
        let kind = host::kind_of(&found.on_host(self.path)?);
        Ok(kind == Some(FileKind::Fifo))
    }

    /// Whether the copy is skipped because the target exists.
    pub fn is_skipped(&self, options: &CopyOptions, log: &mut Log<'_>) -> Result<bool> {
        log.check_stopped()?;
        let skips = options.existing == Existing::Skip;
        let is_there = (skips || options.ask) && self.found()?.is_some();
        Ok(is_there && (skips || !log.confirm(self.bytes())))
    }

    /// Whether a target exists that a link, a special file or a further hard link replaces, if the options allow it.
    fn replaces(&self, options: &CopyOptions) -> Result<bool> {
        if matches!(options.existing, Existing::Refuse | Existing::Skip) {
            return Ok(false);
        }
        let Some(stat) = self.found()? else {
            return Ok(false);
        };
        if host::kind_of(&stat) == Some(FileKind::Directory) {
            return refused(self.bytes(), "is a directory: not replaced");
        }
        spare_image(options, &stat, self)?;
        Ok(true)
    }

    /// Removes an existing target, if the options allow it, for a new file.
    fn clear(&self, options: &CopyOptions) -> Result<()> {
        match self.replaces(options)? {
            true => self.remove(),
            false => Ok(()),
        }
    }

    /// Makes a file by `make`, in the place of an existing one if the options allow it. The inner result is that of `make`.
    pub fn put(
        &self,
        options: &CopyOptions,
        make: impl Fn(&OsStr) -> rustix::io::Result<()>,
    ) -> Result<rustix::io::Result<()>> {
        match self.replaces(options)? {
            true => self.put_over(make),
            false => Ok(make(os(self.name))),
        }
    }

    /// Makes a file under a name that is not in use, and moves it over the existing one.
    fn put_over(
        &self,
        make: impl Fn(&OsStr) -> rustix::io::Result<()>,
    ) -> Result<rustix::io::Result<()>> {
        let mut number = 0;
        let other = loop {
            let other = temporary_name(number);
            number += 1;
            match make(os(&other)) {
                Err(Errno::EXIST) if number < TRIES_MAX => {}
                Err(error) => return Ok(Err(error)),
                Ok(()) => break other,
            }
        };
        let other = os(&other);
        let moved = rustix::fs::renameat(self.dir, other, self.dir, os(self.name));
        if moved.is_err() {
            // That it could not be moved is the error to report.
            let _ = rustix::fs::unlinkat(self.dir, other, AtFlags::empty());
        }
        moved.on_host(self.path).map(Ok)
    }

    /// Removes a file that was made for a failed copy, if the name still refers to it.
    fn remove_if(&self, made: HostFile) {
        let found = self.found();
        if found.is_ok_and(|found| found.is_some_and(|stat| host::id_of(&stat) == made)) {
            // The copy's own error is the one to report.
            let _ = self.remove();
        }
    }

    fn remove(&self) -> Result<()> {
        match rustix::fs::unlinkat(self.dir, os(self.name), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error).on_host(self.path),
        }
    }
}

/// Whether a new file in the place of one that cannot be opened for writing can be written.
fn is_mended_by_replacing(error: &ToolError) -> bool {
    use io::ErrorKind::{ExecutableFileBusy, PermissionDenied, ReadOnlyFilesystem};
    let kinds = [ExecutableFileBusy, PermissionDenied, ReadOnlyFilesystem];
    matches!(error, ToolError::Host { source, .. } if kinds.contains(&source.kind()))
}

/// Refuses to write to or remove the image that is being read.
fn spare_image(options: &CopyOptions, stat: &Stat, spot: &CopyTarget<'_>) -> Result<()> {
    match options.image == Some(host::id_of(stat)) {
        true => refused(spot.bytes(), "is the image that is copied from"),
        false => Ok(()),
    }
}

/// How the target is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TargetState {
    /// Created for this copy.
    New,
    /// A regular file that existed before.
    Existed,
    /// A device, pipe or terminal: written in order, without holes.
    Stream,
}

/// A file that is being written.
pub struct Written<'a> {
    spot: CopyTarget<'a>,
    file: File,
    /// Attributes when it was opened.
    stat: Stat,
    state: TargetState,
    /// Where a stream is written.
    stream: Option<StreamWriter>,
    /// The end of what was written.
    at: u64,
}

impl<'a> Written<'a> {
    /// Creates the file, or truncates the existing one. Called after the first read, so that an unreadable source destroys
    /// no file.
    pub fn open(spot: CopyTarget<'a>, options: &CopyOptions, log: &mut Log<'_>) -> Result<Self> {
        let existing = options.existing;
        let found = match existing {
            Existing::Refuse | Existing::Skip => None,
            _ => spot.found()?,
        };
        let Some(found) = found else {
            return Self::create(spot);
        };
        let kind = host::kind_of(&found);
        if kind == Some(FileKind::Directory) {
            return refused(spot.bytes(), "is a directory: not replaced by a file");
        }
        // A copy that keeps hard links must not write into a file with other names.
        let alone = options.preserve && kind == Some(FileKind::Regular) && found.st_nlink > 1;
        if existing == Existing::Replace || alone {
            spot.clear(options)?;
            return Self::create(spot);
        }
        if kind != Some(FileKind::Regular) && !spot.top {
            let why = "is a link or special file: not written to; --remove-destination replaces it";
            return refused(spot.bytes(), why);
        }
        match Self::open_existing(spot, options, log) {
            Err(error)
                if existing == Existing::Force
                    && kind == Some(FileKind::Regular)
                    && is_mended_by_replacing(&error) =>
            {
                spot.clear(options)?;
                Self::create(spot)
            }
            opened => opened,
        }
    }

    fn open_existing(
        spot: CopyTarget<'a>,
        options: &CopyOptions,
        log: &mut Log<'_>,
    ) -> Result<Self> {
        let mut flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
        // The open of a pipe without a reader would wait, where no signal stops the copy in order. That of other files is to
        // wait: for the holder of a lease, for a tape.
        let is_pipe = spot.is_pipe().unwrap_or(false);
        if is_pipe {
            flags |= OFlags::NONBLOCK;
        }
        if !spot.top {
            flags |= OFlags::NOFOLLOW;
        }
        let opened = loop {
            match rustix::fs::openat(spot.dir, os(spot.name), flags, Mode::empty()) {
                Err(Errno::NXIO) if spot.is_pipe()? => steadfs_rt::sleep(WAIT_FOR_READER),
                opened => break opened,
            }
            log.check_stopped()?;
        };
        let file = match opened {
            Err(Errno::NOENT) => {
                return refused(
                    spot.bytes(),
                    "not written through a symbolic link that leads nowhere",
                );
            }
            opened => opened.on_host(spot.path)?,
        };
        if is_pipe {
            rustix::fs::fcntl_setfl(&file, OFlags::empty()).on_host(spot.path)?;
        }
        let stat = rustix::fs::fstat(&file).on_host(spot.path)?;
        spare_image(options, &stat, &spot)?;
        let state = match host::kind_of(&stat) {
            Some(FileKind::Regular) => TargetState::Existed,
            _ => TargetState::Stream,
        };
        if state == TargetState::Existed {
            rustix::fs::ftruncate(&file, 0).on_host(spot.path)?;
        }
        let stream = match state {
            TargetState::Stream => Some(StreamWriter::on(file.as_fd()).on_host(spot.path)?),
            _ => None,
        };
        Ok(Self {
            spot,
            file: file.into(),
            stat,
            state,
            stream,
            at: 0,
        })
    }

    fn create(spot: CopyTarget<'a>) -> Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(spot.dir, os(spot.name), flags, mode).on_host(spot.path)?;
        let stat = rustix::fs::fstat(&file).on_host(spot.path)?;
        Ok(Self {
            spot,
            file: file.into(),
            stat,
            state: TargetState::New,
            stream: None,
            at: 0,
        })
    }

    /// Writes a piece of the content; pieces come in the file's order.
    pub fn write(&mut self, offset: u64, bytes: &[u8], log: &mut Log<'_>) -> Result<()> {
        if self.stream.is_some() {
            self.zeros_to(offset, log)?;
            return self.append(bytes, log);
        }
        self.at = offset.saturating_add(bytes.len() as u64);
        write_all_at(&self.file, bytes, offset).on_host(self.spot.path)
    }

    /// Writes to a stream. A reader that does not read does not keep a signal from ending the copy.
    fn append(&mut self, mut bytes: &[u8], log: &mut Log<'_>) -> Result<()> {
        while let Some(stream) = self.stream.as_ref().filter(|_| !bytes.is_empty()) {
            let mut stop = Ok(());
            let written = stream.write(bytes, || {
                stop = log.check_stopped();
                stop.is_err()
            });
            match written.on_host(self.spot.path)? {
                Some(count) => {
                    bytes = &bytes[count..];
                    self.at += count as u64;
                }
                None => return stop,
            }
        }
        Ok(())
    }

    /// Writes the zeros of a hole to a stream.
    fn zeros_to(&mut self, offset: u64, log: &mut Log<'_>) -> Result<()> {
        static ZEROS: [u8; CHUNK] = [0; CHUNK];
        while self.at < offset {
            log.check_stopped()?;
            let left = usize::try_from(offset - self.at).unwrap_or(usize::MAX);
            self.append(&ZEROS[..left.min(CHUNK)], log)?;
        }
        Ok(())
    }

    /// Ends the file at `size`.
    pub fn finish(&mut self, size: u64, log: &mut Log<'_>) -> Result<()> {
        let done = match self.state {
            TargetState::Stream => return self.zeros_to(size, log),
            _ if self.at == size => Ok(()),
            _ => rustix::fs::ftruncate(&self.file, size),
        };
        done.on_host(self.spot.path)
    }

    /// Closes the complete file. If the host reports only then that it could not be stored, the copy has failed.
    pub fn close(self) -> Result<HostFile> {
        let (spot, id, is_new) = (self.spot, self.id(), self.state == TargetState::New);
        let closed = steadfs_rt::close(self.file);
        if closed.is_err() && is_new {
            spot.remove_if(id);
        }
        closed.on_host(spot.path).map(|()| id)
    }

    /// Removes a file that was created for a failed copy. A file that existed before stays, with its current content.
    pub fn discard(self) {
        if self.state == TargetState::New {
            self.spot.remove_if(self.id());
        }
    }

    /// The device and inode number of the file.
    pub fn id(&self) -> HostFile {
        host::id_of(&self.stat)
    }

    /// The target of the original's attributes, if the copy gets them.
    pub fn target(&self, options: &CopyOptions) -> Option<Target<'_>> {
        let keeps = match self.state {
            TargetState::New => true,
            TargetState::Existed => options.preserve,
            TargetState::Stream => false,
        };
        // Nothing has changed the owner of a new file.
        let owner =
            (self.state == TargetState::New).then_some((self.stat.st_uid, self.stat.st_gid));
        keeps.then_some(Target::Open(&self.file, owner))
    }
}

fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        let n = some(rustix::io::retry_on_intr(|| {
            rustix::io::pwrite(file, bytes, offset)
        })?)?;
        bytes = &bytes[n..];
        offset += n as u64;
    }
    Ok(())
}

/// Turns a write of 0 bytes into an error; it would be repeated endlessly.
fn some(written: usize) -> rustix::io::Result<usize> {
    match written {
        0 => Err(Errno::IO),
        n => Ok(n),
    }
}

/// Adds a hard link to the copy of a file with several names.
pub fn another_name(
    path: &Path,
    made: HostFile,
    spot: &CopyTarget<'_>,
    options: &CopyOptions,
) -> Result<()> {
    let file = host::open_path(path).on_host(path)?;
    let found = rustix::fs::fstat(&file).on_host(path)?;
    if host::id_of(&found) != made {
        let why = "was replaced while its other names were copied";
        return Err(io::Error::other(why)).on_host(path);
    }
    if spot.found()?.is_some_and(|stat| host::id_of(&stat) == made) {
        return Ok(());
    }
    spot.put(options, |name| host::link(&file, spot.dir, name))?
        .on_host(spot.path)
}
