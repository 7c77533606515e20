//! Fast commits behind a log, with correct checksums: twelve bytes of the input for each record.

use steadfs_base::checksum::crc32c;
use steadfs_lab::device::Image;

use super::input::Input;
use crate::hostile::Base;

/// Most records of an input.
const RECORDS_MAX: usize = 24;

/// Types of records (`EXT4_FC_TAG_…`).
const ADD_RANGE: u16 = 1;
const DEL_RANGE: u16 = 2;
const UNLINK: u16 = 5;
const INODE: u16 = 6;
const PAD: u16 = 7;
const TAIL: u16 = 8;
const HEAD: u16 = 9;

/// Offsets in the journal's superblock.
const MAX_LEN: usize = 0x10;
const FAST_COMMIT_BLOCKS: usize = 0x54;

const NAMES: [&[u8]; 8] = [
    b"small",
    b"new 3",
    b"fresh 1",
    b"fresh 2",
    b"a name of some length, number 9",
    b".",
    b"..",
    &[b'q'; 255],
];

/// Writes the fast commits of `input` behind the log of `base` in `image`.
pub fn append(base: &Base, image: &mut Image, input: &mut Input<'_>) {
    let size = base.survey.geo.block_size.bytes();
    let head = base.survey.block(image, base.survey.journal[0]);
    let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let first = word(MAX_LEN)
        .wrapping_sub(word(FAST_COMMIT_BLOCKS))
        .wrapping_add(1);
    let count = input.below(RECORDS_MAX + 1);
    let mut area = Area {
        bytes: Vec::new(),
        start: 0,
        size,
        tid: next_tid(base, image),
    };
    if count > 0 {
        area.head();
    }
    for _ in 0..count {
        area.record(base, image, input);
    }
    if count > 0 {
        area.tail(0);
    }
    for (n, block) in area.bytes.chunks(size).enumerate() {
        let index = (first as usize).wrapping_add(n);
        if let Some(at) = base.survey.journal.get(index) {
            image.write(at * size as u64, block);
        }
    }
}

/// The transaction after the last one of the log.
fn next_tid(base: &Base, image: &Image) -> u32 {
    const COMMIT: u32 = 2;
    let tids = base.survey.journal.iter().filter_map(|&at| {
        let block = base.survey.block(image, at);
        let word = |at: usize| u32::from_be_bytes(block[at..at + 4].try_into().expect("four"));
        (word(0) == 0xC03B_3998 && word(4) == COMMIT).then(|| word(8))
    });
    tids.max().unwrap_or(0).wrapping_add(1)
}

/// A fast-commit area that is being written.
struct Area {
    bytes: Vec<u8>,
    /// First byte of the current fast commit.
    start: usize,
    size: usize,
    tid: u32,
}

impl Area {
    fn left(&self) -> usize {
        self.size - self.bytes.len() % self.size
    }

    fn raw(&mut self, tag: u16, value: &[u8]) {
        let len = u16::try_from(value.len()).expect("shorter than a block");
        self.bytes.extend(tag.to_le_bytes());
        self.bytes.extend(len.to_le_bytes());
        self.bytes.extend(value);
    }

    fn tag(&mut self, tag: u16, value: &[u8]) {
        if self.left() < value.len() + 8 {
            let pad = vec![0; self.left() - 4];
            self.raw(PAD, &pad);
        }
        self.raw(tag, value);
    }

    fn head(&mut self) {
        let value = [0, self.tid].map(u32::to_le_bytes).concat();
        self.tag(HEAD, &value);
    }

    /// Ends the fast commit; `flip` makes its checksum wrong.
    fn tail(&mut self, flip: u32) {
        if self.left() < 12 {
            let pad = vec![0; self.left().saturating_sub(4)];
            self.raw(PAD, &pad);
        }
        let len = u16::try_from(self.left() - 4).expect("a block of less than 64 KiB");
        self.bytes.extend(TAIL.to_le_bytes());
        self.bytes.extend(len.to_le_bytes());
        self.bytes.extend(self.tid.to_le_bytes());
        let sum = crc32c(0, &self.bytes[self.start..]) ^ flip;
        self.bytes.extend(sum.to_le_bytes());
        let end = self.bytes.len().next_multiple_of(self.size);
        self.bytes.resize(end, 0);
        self.start = end;
    }

    fn record(&mut self, base: &Base, image: &Image, input: &mut Input<'_>) {
        let (kind, ino, parent) = (input.byte(), input.byte(), input.byte());
        let name = NAMES[input.below(NAMES.len())];
        let (number, half, more) = (input.word32(), input.half(), input.half());
        let inode = |n: u8| {
            let inodes = &base.survey.inodes;
            match inodes.get(usize::from(n)) {
                Some(&ino) => ino,
                None => inodes.last().expect("there are inodes") + u32::from(n % 16),
            }
        };
        let (ino, parent) = (inode(ino), inode(parent));
        match kind % 12 {
            n @ 0..=2 => {
                let words = [parent, ino].map(u32::to_le_bytes).concat();
                let tag = UNLINK - u16::from(n);
                self.tag(tag, &[&words[..], name].concat());
            }
            3 | 4 => self.inode(base, image, ino, (number, half, more)),
            5 | 6 => {
                let block = u32::from(more) % 64;
                let place = number % (base.survey.geo.blocks_count as u32 + 2);
                let extent = [&block.to_le_bytes()[..], &half.to_le_bytes(), &[0; 2]].concat();
                let value = [&ino.to_le_bytes()[..], &extent, &place.to_le_bytes()].concat();
                self.tag(ADD_RANGE, &value);
            }
            7 => {
                let value = [ino, number, half.into()].map(u32::to_le_bytes).concat();
                self.tag(DEL_RANGE, &value);
            }
            8 => {
                self.tail(0);
                self.head();
            }
            9 => self.tail(number),
            10 => self.tag(half, &number.to_le_bytes()),
            _ => self.tag(INODE, &number.to_le_bytes()[..usize::from(more) % 4]),
        }
    }

    /// The inode as it is stored, or that of an inode in use, with one other field.
    fn inode(&mut self, base: &Base, image: &Image, ino: u32, change: (u32, u16, u16)) {
        let (number, at, from) = change;
        let inodes = &base.survey.inodes;
        let stored = if inodes.contains(&ino) {
            ino
        } else {
            inodes[usize::from(from) % inodes.len()]
        };
        let (_, offset) = base.survey.inode_place(image, stored);
        let mut raw = [0; 160];
        image.read(offset, &mut raw);
        let at = usize::from(at) % (raw.len() - 4);
        if at > 0 {
            raw[at..at + 2].copy_from_slice(&number.to_le_bytes()[..2]);
        }
        self.tag(INODE, &[&ino.to_le_bytes()[..], &raw].concat());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfs_ext4::{MountOptions, replayed_view};
    use steadfs_rt::sim;

    use super::*;
    use crate::hostile::ImageDevice;

    /// Number of fast commits that are replayed with these records.
    fn replayed(base: &Base, records: &[u8]) -> u64 {
        let mut image = base.image.clone();
        append(base, &mut image, &mut Input::new(records));
        let run = move || {
            let device = Arc::new(ImageDevice::new(image));
            let view = replayed_view(device as _, &MountOptions::default());
            view.expect("a good log").report.replayed_fast_commits
        };
        sim::run(sim::Config::new(1), run).value
    }

    #[test]
    fn fast_commits_behind_the_log_are_replayed() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let base = Base::with_fast_commits(scratch.path());
        assert_eq!(replayed(&base, &[0]), 0);
        // An inode in use, as it is stored.
        let inode = [3, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(replayed(&base, &[&[1][..], &inode].concat()), 1);
        let end = [8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let two = [&[3][..], &inode, &end, &inode].concat();
        assert_eq!(replayed(&base, &two), 2);
        // A wrong checksum ends the replay.
        let wrong = [9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        let one = [&[4][..], &inode, &end, &inode, &wrong].concat();
        assert_eq!(replayed(&base, &one), 1);
    }
}
