//! Entries of directories in messages.

use steadfs_base::InodeNo;
use steadfs_vfs::{Cx, DirEntry, FileKind, FileSystem, Result};

use crate::codec::{Decoder, Encoder, Malformed};

/// An entry of a directory.
pub struct Listed {
    ino: InodeNo,
    kind: Option<FileKind>,
    name: Vec<u8>,
    /// The cookie that continues after it.
    pub next: u64,
}

impl Listed {
    pub fn as_entry(&self) -> DirEntry<'_> {
        DirEntry {
            ino: self.ino,
            kind: self.kind,
            name: &self.name,
            next: self.next,
        }
    }
}

pub fn encode(to: &mut Encoder, entry: &DirEntry<'_>) {
    to.ino(entry.ino);
    to.option(entry.kind, Encoder::kind);
    to.bytes(entry.name);
    to.long(entry.next);
}

pub fn decode(from: &mut Decoder<'_>) -> std::result::Result<Listed, Malformed> {
    Ok(Listed {
        ino: from.ino()?,
        kind: from.option(Decoder::kind)?,
        name: from.bytes()?.to_vec(),
        next: from.long()?,
    })
}

/// All entries of a directory, if their names have at most `bytes` bytes.
pub fn all(
    fs: &dyn FileSystem,
    cx: &Cx,
    dir: InodeNo,
    bytes: usize,
) -> Result<Option<Vec<Listed>>> {
    /// Bytes of an entry in a message, besides its name.
    const BESIDES: usize = 22;
    let (mut entries, mut left) = (Vec::new(), Some(bytes));
    fs.readdir(cx, dir, 0, &mut |entry| {
        left = left.and_then(|left| left.checked_sub(entry.name.len() + BESIDES));
        entries.push(Listed {
            ino: entry.ino,
            kind: entry.kind,
            name: entry.name.to_vec(),
            next: entry.next,
        });
        left.is_some()
    })?;
    Ok(left.map(|_| entries))
}
