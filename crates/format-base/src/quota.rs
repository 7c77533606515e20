//! Quota files of format "vfsv1" (v2r1): usage and limits per user, group or project.
//!
//! A file has blocks of 1024 bytes. The first has the header and the [`Info`] of the whole file. The second is the root of a
//! tree of four levels ([`tree`]) with 256 references per block, one level per byte of the id, the highest first; below the
//! last level are blocks of 14 entries. How these blocks are stored is up to the file system ([`Blocks`]).

pub mod account;
pub mod admin;
pub mod hold;
pub mod tree;
pub mod usage;

/// Bytes of a block of a quota file.
pub const BLOCK_SIZE: usize = 1024;
/// Bytes of an entry.
pub const ENTRY_SIZE: usize = 72;
/// Seconds for which a soft limit may be exceeded, unless it was set: a week.
pub const DEFAULT_GRACE_SECS: u32 = 7 * 24 * 60 * 60;
/// Bytes in which limits of space are counted.
pub const LIMIT_UNIT: u64 = 1024;

/// The version of the format.
const VERSION: u32 = 1;
/// Offset of the [`Info`] in the first block.
const INFO_AT: usize = 8;

/// A block of a quota file.
pub type Block = [u8; BLOCK_SIZE];

/// Whose usage a file counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    /// The kind's number in arrays.
    pub const fn index(self) -> usize {
        match self {
            Self::User => 0,
            Self::Group => 1,
            Self::Project => 2,
        }
    }

    /// The kind in messages.
    pub const fn name(self) -> &'static str {
        ["user", "group", "project"][self.index()]
    }

    /// The magic number of its files.
    const fn magic(self) -> u32 {
        [0xD9C0_1F11, 0xD9C0_1927, 0xD9C0_3F14][self.index()]
    }
}

/// Why a quota file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaError<E> {
    /// The file contradicts the format; the predicate of a sentence about it.
    Malformed(&'static str),
    /// A block cannot be read or written.
    Blocks(E),
}

/// The blocks of a quota file, by number.
pub trait Blocks {
    /// Why a block cannot be read or written.
    type Error;

    /// The block `n`, whose number is within what the file says of its length.
    ///
    /// # Errors
    /// It cannot be read, or the file has no such block.
    fn read(&mut self, n: u32) -> Result<Block, Self::Error>;

    /// Replaces block `n`, which may be one after the last.
    ///
    /// # Errors
    /// It cannot be written.
    fn write(&mut self, n: u32, block: &Block) -> Result<(), Self::Error>;
}

/// A quota file in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content(pub Vec<u8>);

impl Blocks for Content {
    type Error = &'static str;

    fn read(&mut self, n: u32) -> Result<Block, Self::Error> {
        let (blocks, _) = self.0.as_chunks::<BLOCK_SIZE>();
        let block = blocks.get(n as usize);
        block.copied().ok_or("ends before its last block")
    }

    fn write(&mut self, n: u32, block: &Block) -> Result<(), Self::Error> {
        let at = n as usize * BLOCK_SIZE;
        if self.0.len() < at + BLOCK_SIZE {
            self.0.resize(at + BLOCK_SIZE, 0);
        }
        self.0[at..at + BLOCK_SIZE].copy_from_slice(block);
        Ok(())
    }
}

impl From<QuotaError<&'static str>> for &'static str {
    fn from(error: QuotaError<&'static str>) -> Self {
        match error {
            QuotaError::Malformed(what) | QuotaError::Blocks(what) => what,
        }
    }
}

/// What a quota file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Seconds for which a soft limit of space may be exceeded.
    pub block_grace: u32,
    /// The same for inodes.
    pub inode_grace: u32,
    /// Flags, which are kept.
    pub flags: u32,
    /// Blocks of the file.
    pub blocks: u32,
    /// First of the blocks that hold nothing; 0: none.
    free_block: u32,
    /// First of the blocks of entries that have room; 0: none.
    free_entry: u32,
}

impl Default for Info {
    /// Of a file without entries: its first block and the root of its tree.
    fn default() -> Self {
        Self {
            block_grace: DEFAULT_GRACE_SECS,
            inode_grace: DEFAULT_GRACE_SECS,
            flags: 0,
            blocks: tree::ROOT + 1,
            free_block: 0,
            free_entry: 0,
        }
    }
}

impl Info {
    /// From the first block of a file of this kind.
    ///
    /// # Errors
    /// The predicate of a sentence about the file.
    pub fn of(kind: Kind, head: &Block) -> Result<Self, &'static str> {
        if get32(head, 0) != kind.magic() {
            return Err("does not have the magic number of its kind");
        }
        if get32(head, 4) != VERSION {
            return Err("has an unknown version");
        }
        let field = |n: usize| get32(head, INFO_AT + 4 * n);
        let info = Self {
            block_grace: field(0),
            inode_grace: field(1),
            flags: field(2),
            blocks: field(3),
            free_block: field(4),
            free_entry: field(5),
        };
        let lists = [info.free_block, info.free_entry];
        if info.blocks <= tree::ROOT || lists.iter().any(|&n| n != 0 && !info.is_below_root(n)) {
            return Err("has a list of blocks that are not its own");
        }
        Ok(info)
    }

    /// The first block of a file of this kind.
    pub fn to_block(&self, kind: Kind) -> Block {
        let mut head = [0; BLOCK_SIZE];
        let fields = [
            kind.magic(),
            VERSION,
            self.block_grace,
            self.inode_grace,
            self.flags,
            self.blocks,
            self.free_block,
            self.free_entry,
        ];
        for (n, field) in fields.into_iter().enumerate() {
            put32(&mut head, 4 * n, field);
        }
        head
    }

    /// Whether `n` is the number of a block below the root of the tree.
    fn is_below_root(&self, n: u32) -> bool {
        n > tree::ROOT && n < self.blocks
    }
}

/// What a file has of a user, group or project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Whose entry it is.
    pub id: u32,
    /// Limits of the number of inodes.
    pub inode_limit: Limit,
    /// Inodes in use.
    pub inodes: u64,
    /// Limits of the space, in units of 1 KiB.
    pub block_limit: Limit,
    /// Bytes in use.
    pub bytes: u64,
}

/// The limits of what is counted. 0: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// It is never exceeded.
    pub hard: u64,
    /// It may be exceeded for a time.
    pub soft: u64,
    /// The second from which on the soft limit is a hard one; 0: it is not exceeded.
    pub until: u64,
}

/// The time by which the entry of id 0 without usage and limits differs from an unused one, which is all zeros.
const USED: u64 = 1;

impl Entry {
    /// An entry as stored; `None`: unused.
    pub fn parse(bytes: &[u8; ENTRY_SIZE]) -> Option<Self> {
        if bytes.iter().all(|&byte| byte == 0) {
            return None;
        }
        let field = |n: usize| get64(bytes, 8 + 8 * n);
        let entry = Self {
            id: get32(bytes, 0),
            inode_limit: Limit {
                hard: field(0),
                soft: field(1),
                until: field(7),
            },
            inodes: field(2),
            block_limit: Limit {
                hard: field(3),
                soft: field(4),
                until: field(6),
            },
            bytes: field(5),
        };
        let mut without = entry;
        without.inode_limit.until = 0;
        Some(match (without, entry.inode_limit.until) {
            (without, USED) if without == Self::default() => without,
            _ => entry,
        })
    }

    /// The entry as it is stored.
    pub fn to_bytes(&self) -> [u8; ENTRY_SIZE] {
        let mut bytes = [0; ENTRY_SIZE];
        put32(&mut bytes, 0, self.id);
        let until = match *self == Self::default() {
            true => USED,
            false => self.inode_limit.until,
        };
        let fields = [
            self.inode_limit.hard,
            self.inode_limit.soft,
            self.inodes,
            self.block_limit.hard,
            self.block_limit.soft,
            self.bytes,
            self.block_limit.until,
            until,
        ];
        for (n, field) in fields.into_iter().enumerate() {
            let at = 8 + 8 * n;
            bytes[at..at + 8].copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Whether it says nothing: no usage, no limits.
    pub fn is_idle(&self) -> bool {
        let Self { id, .. } = *self;
        let idle = Self {
            id,
            ..Self::default()
        };
        *self == idle
    }
}

fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn get64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests;
