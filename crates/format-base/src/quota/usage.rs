//! What a checker counts, compared with quota files.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use super::{BLOCK_SIZE, Blocks, Content, Entry, Info, Kind, tree};

/// The usage of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in use.
    pub bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// Counted usage by kind and owner.
#[derive(Debug, Default)]
pub struct Usages([BTreeMap<u32, Usage>; 3]);

/// An owner whose entry has something else than was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The owner.
    pub id: u32,
    /// What the file has.
    pub stored: Usage,
    /// What was counted.
    pub counted: Usage,
}

impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            stored,
            counted,
        } = self;
        write!(
            f,
            "{id}: {} bytes and {} inodes, counted {} and {}",
            stored.bytes, stored.inodes, counted.bytes, counted.inodes
        )
    }
}

impl Usages {
    /// Adds what an inode of these owners uses.
    pub fn add(&mut self, owners: [u32; 3], used: Usage) {
        for (usages, id) in self.0.iter_mut().zip(owners) {
            let usage = usages.entry(id).or_default();
            usage.bytes = usage.bytes.saturating_add(used.bytes);
            usage.inodes = usage.inodes.saturating_add(used.inodes);
        }
    }

    /// The file of a kind that has this usage, and no limits.
    pub fn to_file(&self, kind: Kind) -> Vec<u8> {
        const FITS: &str = "a file in memory takes any number of entries";
        let (mut content, mut info) = (Content::default(), Info::default());
        content.write(tree::ROOT, &[0; BLOCK_SIZE]).expect(FITS);
        for (&id, usage) in &self.0[kind.index()] {
            let entry = Entry {
                id,
                bytes: usage.bytes,
                inodes: usage.inodes,
                ..Entry::default()
            };
            tree::insert(&mut content, &mut info, &entry).expect(FITS);
        }
        content.write(0, &info.to_block(kind)).expect(FITS);
        content.0
    }

    /// Compares with the content of a kind's file.
    ///
    /// # Errors
    /// The predicate of a sentence about the file.
    pub fn compare(
        &self,
        kind: Kind,
        content: Vec<u8>,
    ) -> std::result::Result<Vec<Difference>, &'static str> {
        let mut content = Content(content);
        let head = content.read(0).map_err(|_| "is empty")?;
        let info = Info::of(kind, &head)?;
        let mut left = self.0[kind.index()].clone();
        let mut found = Vec::new();
        let mut compare = |id, stored, counted| {
            if stored != counted {
                found.push(Difference {
                    id,
                    stored,
                    counted,
                });
            }
        };
        let each = |_, entry: Entry| {
            let stored = Usage {
                bytes: entry.bytes,
                inodes: entry.inodes,
            };
            compare(entry.id, stored, left.remove(&entry.id).unwrap_or_default());
        };
        tree::walk(&mut content, &info, each)?;
        for (id, counted) in left {
            compare(id, Usage::default(), counted);
        }
        Ok(found)
    }
}
