//! JSON documents of listings; docs/json.md describes their fields.
//!
//! **Rule.** A listing is one array, of which each element is written when it is found, so memory does not grow with it. A
//! name that is not UTF-8 has a second field with all of its bytes.

use std::borrow::Cow;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::Serialize;
use steadfs::tools::{device_numbers, printable_json, utc};
use steadfs_base::{InodeNo, Timestamp};
use steadfs_vfs::{Attr, FileKind, FsxAttr};

/// A name, and its bytes in hexadecimal digits if it is not UTF-8.
pub fn text(bytes: &[u8]) -> (Cow<'_, str>, Option<String>) {
    let text = String::from_utf8_lossy(bytes);
    let hex = || bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let hex = std::str::from_utf8(bytes).is_err().then(hex);
    (text, hex)
}

/// A file on a volume.
#[derive(Serialize)]
pub struct Place<'f> {
    image: Cow<'f, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image_hex: Option<String>,
    path: Cow<'f, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
}

impl<'f> Place<'f> {
    pub fn new(image: &'f Path, path: &'f [u8]) -> Self {
        let (image, image_hex) = text(image.as_os_str().as_bytes());
        let (path, path_hex) = text(path);
        Self {
            image,
            image_hex,
            path,
            path_hex,
        }
    }
}

/// A file of a listing.
#[derive(Serialize)]
pub struct File<'f> {
    #[serde(flatten)]
    place: Place<'f>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    #[serde(flatten)]
    attributes: Option<Attributes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Cow<'f, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_hex: Option<String>,
    #[serde(flatten)]
    details: Option<Details>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct Attributes {
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    allocated: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<Device>,
    atime: String,
    mtime: String,
    ctime: String,
    btime: Option<String>,
}

#[derive(Serialize)]
struct Device {
    major: u32,
    minor: u32,
}

/// What `stat` shows beyond the others.
#[derive(Serialize)]
struct Details {
    block_size: u32,
    generation: u32,
    flags: u32,
    project: u32,
    xattrs: Vec<Name>,
}

#[derive(Serialize)]
struct Name {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "char_device",
        FileKind::BlockDevice => "block_device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

fn time(time: Timestamp) -> String {
    utc(time, true).replace(' ', "T") + "Z"
}

impl Attributes {
    fn of(attr: &Attr) -> Self {
        let is_device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let (major, minor) = device_numbers(attr.rdev);
        Self {
            mode: format!("{:04o}", attr.perm),
            links: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            allocated: attr.blocks.saturating_mul(512),
            device: is_device.then_some(Device { major, minor }),
            atime: time(attr.atime),
            mtime: time(attr.mtime),
            ctime: time(attr.ctime),
            btime: attr.btime.map(time),
        }
    }
}

impl<'f> File<'f> {
    /// A file whose attributes could be read.
    pub fn new(place: Place<'f>, attr: &Attr, target: Option<&'f [u8]>) -> Self {
        let target = target.map(text);
        let (target, target_hex) = target.map_or((None, None), |(text, hex)| (Some(text), hex));
        Self {
            place,
            kind: Some(kind_name(attr.kind)),
            inode: Some(attr.ino.0),
            attributes: Some(Attributes::of(attr)),
            target,
            target_hex,
            details: None,
            error: None,
        }
    }

    /// A file whose attributes could not be read, with what its directory says.
    pub fn unreadable(
        place: Place<'f>,
        (kind, ino): (Option<FileKind>, Option<InodeNo>),
        error: String,
    ) -> Self {
        Self {
            place,
            kind: kind.map(kind_name),
            inode: ino.map(|ino| ino.0),
            attributes: None,
            target: None,
            target_hex: None,
            details: None,
            error: Some(error),
        }
    }

    /// Adds what `stat` shows.
    pub fn detailed(mut self, attr: &Attr, flags: &FsxAttr, xattrs: &[Vec<u8>]) -> Self {
        let name = |name: &Vec<u8>| {
            let (name, name_hex) = text(name);
            let name = name.into_owned();
            Name { name, name_hex }
        };
        self.details = Some(Details {
            block_size: attr.block_size,
            generation: attr.generation,
            flags: flags.flags.0,
            project: flags.project,
            xattrs: xattrs.iter().map(name).collect(),
        });
        self
    }
}

/// A value as text, without characters that a terminal interprets.
pub fn to_text(value: &impl Serialize) -> io::Result<String> {
    let text = serde_json::to_string(value).map_err(io::Error::other)?;
    Ok(printable_json(&text))
}

/// An array, an element a line.
#[derive(Default)]
pub struct List {
    any: bool,
}

impl List {
    /// Begins an element.
    pub fn next(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let before = if self.any { ",\n" } else { "[\n" };
        self.any = true;
        out.write_all(before.as_bytes())
    }

    /// Adds an element.
    pub fn add(&mut self, out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
        self.next(out)?;
        out.write_all(to_text(value)?.as_bytes())
    }

    /// Ends the document.
    pub fn end(&self, out: &mut dyn Write) -> io::Result<()> {
        let end = if self.any { "\n]\n" } else { "[]\n" };
        out.write_all(end.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_bytes_if_they_are_no_text() {
        let place = |path| to_text(&Place::new(Path::new("a.img"), path)).unwrap();
        assert_eq!(
            place("/ä\u{9b}\\\"\n".as_bytes()),
            "{\"image\":\"a.img\",\"path\":\"/ä\\u009b\\\\\\\"\\n\"}"
        );
        assert_eq!(
            place(b"/\xffa"),
            "{\"image\":\"a.img\",\"path\":\"/\u{fffd}a\",\"path_hex\":\"2fff61\"}"
        );
    }

    #[test]
    fn lists_are_one_document() {
        let mut out = Vec::new();
        List::default().end(&mut out).unwrap();
        let mut list = List::default();
        list.add(&mut out, &1).unwrap();
        list.add(&mut out, &"a").unwrap();
        list.end(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "[]\n[\n1,\n\"a\"\n]\n");
    }
}
