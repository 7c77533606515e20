//! A device's content for volumes of gigabytes: a block that repeats one word is stored as that word.

use std::io;
use std::sync::Arc;

use steadfs_block::BlockSource;

const BLOCK: usize = 4096;
const BLOCK_U64: u64 = BLOCK as u64;
/// Number of blocks that are shared or copied together.
const GROUP: usize = 64;

#[derive(Clone)]
enum Slot {
    /// One repeated word; zero at first.
    Word(u64),
    Bytes(Arc<[u8; BLOCK]>),
}

impl Slot {
    fn read(&self, within: usize, out: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => out.copy_from_slice(&bytes[within..within + out.len()]),
            Self::Word(0) => out.fill(0),
            Self::Word(word) => {
                let mut bytes = word.to_le_bytes();
                bytes.rotate_left(within % 8);
                let mut parts = out.chunks_exact_mut(8);
                for part in &mut parts {
                    part.copy_from_slice(&bytes);
                }
                let rest = parts.into_remainder();
                rest.copy_from_slice(&bytes[..rest.len()]);
            }
        }
    }

    /// A whole block.
    fn of(bytes: &[u8]) -> Self {
        let first: [u8; 8] = *bytes.first_chunk().expect("a block has 4096 bytes");
        if bytes[8..] == bytes[..BLOCK - 8] {
            return Self::Word(u64::from_le_bytes(first));
        }
        let mut block = Arc::new([0; BLOCK]);
        Arc::make_mut(&mut block).copy_from_slice(bytes);
        Self::Bytes(block)
    }
}

/// A device's content. Clones share unchanged groups of blocks.
#[derive(Clone)]
pub struct Store {
    size: u64,
    groups: Vec<Option<Arc<[Slot; GROUP]>>>,
}

impl Store {
    /// `size` zero bytes.
    pub fn zeroed(size: u64) -> Self {
        let groups = size.div_ceil(BLOCK_U64).div_ceil(GROUP as u64);
        let groups = usize::try_from(groups).expect("a device fits the address space");
        Self {
            size,
            groups: vec![None; groups],
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn slot(&self, block: u64) -> Option<&Slot> {
        let group = self.groups[(block / GROUP as u64) as usize].as_ref()?;
        Some(&group[(block % GROUP as u64) as usize])
    }

    fn slot_mut(&mut self, block: u64) -> &mut Slot {
        let group = &mut self.groups[(block / GROUP as u64) as usize];
        let group = group.get_or_insert_with(|| Arc::new([const { Slot::Word(0) }; GROUP]));
        &mut Arc::make_mut(group)[(block % GROUP as u64) as usize]
    }

    /// Reads at `offset`; the range must be inside.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let mut done = 0;
        while done < out.len() {
            let (block, within, n) = piece(offset, done, out.len());
            let part = &mut out[done..done + n];
            match self.slot(block) {
                Some(slot) => slot.read(within, part),
                None => part.fill(0),
            }
            done += n;
        }
    }

    /// Writes at `offset`; the range must be inside.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (block, within, n) = piece(offset, done, bytes.len());
            let part = &bytes[done..done + n];
            done += n;
            if n == BLOCK {
                *self.slot_mut(block) = Slot::of(part);
                continue;
            }
            let mut whole = [0; BLOCK];
            self.slot_mut(block).read(0, &mut whole);
            whole[within..within + n].copy_from_slice(part);
            *self.slot_mut(block) = Slot::of(&whole);
        }
    }

    /// Zeroes a range, which must be inside.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let zeros = [0; BLOCK];
        let mut at = offset;
        let end = offset + len;
        while at < end {
            let n = (BLOCK_U64 - at % BLOCK_U64).min(end - at);
            let known = self.groups[(at / BLOCK_U64 / GROUP as u64) as usize].is_some();
            if known {
                self.write(at, &zeros[..n as usize]);
            }
            at += n;
        }
    }
}

/// The block of byte `done` of a range, the offset in it, and the number of the range's bytes in it.
fn piece(offset: u64, done: usize, len: usize) -> (u64, usize, usize) {
    let at = offset + done as u64;
    let within = (at % BLOCK_U64) as usize;
    (at / BLOCK_U64, within, (BLOCK - within).min(len - done))
}

impl BlockSource for Store {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Store::read(self, offset, buf);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with plain bytes, with clones that must not change.
        #[test]
        fn holds_what_is_written(
            steps in prop::collection::vec(
                (0u64..200_000, 1usize..20_000, any::<u8>(), 0u8..4), 1..30)
        ) {
            const SIZE: usize = 300 * 1024;
            let mut plain = vec![0; SIZE];
            let mut store = Store::zeroed(SIZE as u64);
            for (offset, len, byte, how) in steps {
                let len = len.min(SIZE - offset as usize);
                let range = offset as usize..offset as usize + len;
                let before = (store.clone(), plain.clone());
                match how {
                    0 => {
                        store.zero(offset, len as u64);
                        plain[range].fill(0);
                    }
                    1 => {
                        plain[range.clone()].fill(byte);
                        store.write(offset, &plain[range]);
                    }
                    _ => {
                        for (n, at) in range.clone().enumerate() {
                            plain[at] = byte.wrapping_add((n / 3) as u8);
                        }
                        store.write(offset, &plain[range]);
                    }
                }
                for (store, plain) in [(&store, &plain), (&before.0, &before.1)] {
                    let mut all = vec![0; SIZE];
                    store.read(0, &mut all);
                    prop_assert!(all == *plain);
                }
                let mut part = vec![0; len.min(5000)];
                store.read(offset, &mut part);
                prop_assert!(part[..] == plain[offset as usize..][..part.len()]);
            }
        }
    }

    #[test]
    fn blocks_of_one_word_take_no_space() {
        let mut store = Store::zeroed(1 << 20);
        let words: Vec<u8> = 77u64.to_le_bytes().repeat(1024);
        store.write(8192, &words);
        assert!(matches!(store.slot(2), Some(Slot::Word(77))));
        assert!(matches!(store.slot(3), Some(Slot::Word(77))));
        assert!(store.slot(64).is_none());
    }
}
