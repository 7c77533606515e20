//! A copy of an image file that is to replace it.
//!
//! **Rule.** The copy shares the image's blocks where the host's file system can, and has its holes. It gets the image's name
//! when it is durable, and until then the image is claimed. The image's other names, if it has hard links, keep the old content.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Seek, SeekFrom as Seeking, copy};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use steadfs::ImageClaim;

use crate::args::offline::Open;
use crate::beside::{NewFile, wrong};
use crate::failure::Failure;
use crate::partition;
use crate::stop::Stop;
use crate::worker;

/// Bytes that are copied between two looks for a signal.
const PIECE_BYTES: u64 = 16 << 20;

/// A copy that has not the image's name yet. It is removed when dropped.
pub struct ImageCopy {
    /// The image's file.
    target: PathBuf,
    claim: ImageClaim,
    file: NewFile,
    /// The copy, as a command names the volume on it.
    image: PathBuf,
}

impl ImageCopy {
    /// Copies the file of an image that is not in use.
    pub fn of(image: &Path, open: &Open, stop: &Stop) -> Result<Self, Failure> {
        let refuse = |why: &str| Err(Failure::plain(format!("{}: {why}", image.display())));
        if open.options.iter().any(|list| list.contains("overlay=")) {
            return refuse("--copy and an overlay exclude each other");
        }
        let file = partition::file_of(image);
        if steadfs::is_uri(file) {
            return refuse("--copy is for image files, not for servers");
        }
        let target = file.canonicalize().map_err(|error| wrong(file, &error))?;
        if !target.metadata().is_ok_and(|found| found.is_file()) {
            return refuse("--copy is for image files, not for devices");
        }
        // They open the image themselves.
        let (device, list) = partition::resolve(image, &open.options.join(","), open.sandbox)?;
        worker::check_nodes(&device, &list, open.sandbox)?;
        let claim = ImageClaim::of(&target).map_err(Failure::plain)?;
        let suffix = &image.as_os_str().as_bytes()[file.as_os_str().len()..];
        let new = NewFile::of(&target)?;
        let mut named = OsString::from(&new.path);
        named.push(std::ffi::OsStr::from_bytes(suffix));
        let copied = Self {
            target,
            claim,
            file: new,
            image: PathBuf::from(named),
        };
        match copied.fill(stop) {
            Ok(true) => Ok(copied),
            Ok(false) => Err(stop.failure("stopped")),
            Err(error) => Err(wrong(&copied.file.path, &error)),
        }
    }

    /// The copy.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Copies the content; false if a signal has ended it.
    fn fill(&self, stop: &Stop) -> io::Result<bool> {
        let mut from = self.claim.file()?;
        let mut to = OpenOptions::new().write(true).open(&self.file.path)?;
        let found = from.metadata()?;
        if rustix::fs::ioctl_ficlone(&to, &from).is_ok() {
            return Ok(true);
        }
        to.set_len(found.len())?;
        let mut at = 0;
        loop {
            let data = match rustix::fs::seek(&from, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => return Ok(true),
                Err(error) => return Err(error.into()),
            };
            let end = rustix::fs::seek(&from, SeekFrom::Hole(data))?;
            at = data;
            while at < end {
                if stop.is_asked() {
                    return Ok(false);
                }
                let len = PIECE_BYTES.min(end - at);
                from.seek(Seeking::Start(at))?;
                to.seek(Seeking::Start(at))?;
                if copy(&mut io::Read::take(&from, len), &mut to)? == 0 {
                    return Ok(true);
                }
                at += len;
            }
        }
    }

    /// Makes the copy durable, and gives it what the image has beside its content, and then its name.
    pub fn replace(self) -> Result<(), Failure> {
        self.file.replace(&self.target, Some(&self.claim))
    }
}
