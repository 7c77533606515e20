//! First inputs of each target: of the right form, and long enough to reach most code.

use crate::generate::Numbers;

/// Numbers at which arithmetic overflows or fields change their meaning.
const EDGES: [u32; 10] = [
    0,
    1,
    2,
    8,
    0xFF,
    0xFFFF,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFE,
    0xFFFF_FFFF,
];

/// A seed that is being written.
struct Seed {
    numbers: Numbers,
    bytes: Vec<u8>,
}

impl Seed {
    fn below(&mut self, limit: u64) -> u8 {
        u8::try_from(self.numbers.below(limit.min(256))).expect("below 256")
    }

    fn byte(&mut self, limit: u64) {
        let byte = self.below(limit);
        self.bytes.push(byte);
    }

    fn random(&mut self, len: usize) {
        let bytes = self.numbers.bytes(len);
        self.bytes.extend(bytes);
    }

    /// The edits of [`super::edit`]: none in one of three seeds.
    fn edits(&mut self) {
        let count = [0, 0, 1, 1, 2, 3][usize::from(self.below(6))];
        self.bytes.push(count);
        for _ in 0..count {
            self.byte(16);
            let nth = u16::from(self.below(64));
            self.bytes.extend(nth.to_le_bytes());
            // Important fields are mostly at the start of a structure.
            let limit = [64, 512, 4096][usize::from(self.below(3))];
            let offset = u16::try_from(self.numbers.below(limit)).expect("below 4096");
            self.bytes.extend(offset.to_le_bytes());
            let way = [0, 1, 2, 2, 0x42, 0x60, 0x70, 0x72, 0x82, 0x92];
            let way = way[usize::from(self.below(10))];
            self.bytes.push(way);
            let value = match self.below(3) {
                0 => EDGES[usize::from(self.below(10))],
                1 => self.numbers.below(4096) as u32,
                _ => self.numbers.number() as u32,
            };
            self.bytes.extend(value.to_le_bytes());
        }
    }

    /// The operations of [`super::ops`].
    fn ops(&mut self) {
        for _ in 0..4 + self.below(28) {
            self.byte(40);
            self.random(7);
        }
    }

    /// The requests of [`super::fuse`].
    fn requests(&mut self) {
        for _ in 0..4 + self.below(28) {
            let len = self.below(60);
            self.byte(58);
            for limit in [8, 8, 16, 16, 8, 256] {
                self.byte(limit);
            }
            self.bytes.push(len);
            for _ in 0..len {
                let byte = [0, 0, 0, 1, 2, 255, self.below(256)];
                let choice = usize::from(self.below(7));
                self.bytes.push(byte[choice]);
            }
        }
    }

    /// The text of [`super::text`].
    fn text(&mut self, words: u8) {
        for _ in 0..words {
            match self.below(3) {
                0 => {
                    let byte = b"0123456789,=:"[usize::from(self.below(13))];
                    self.bytes.push(byte);
                }
                _ => {
                    self.bytes.push(0x80);
                    self.random(1);
                }
            }
        }
    }
}

/// The `n`-th first input of the target `name`.
pub fn seed(name: &str, n: u64) -> Vec<u8> {
    let mut seed = Seed {
        numbers: Numbers::new(n),
        bytes: Vec::new(),
    };
    // The base, the options or the kind: all of them in turn.
    seed.bytes.push((n % 256) as u8);
    match name {
        "options" => {
            for _ in 0..1 + seed.below(8) {
                seed.text(3);
                seed.bytes.push(b',');
            }
        }
        "control" => {
            seed.byte(256);
            for _ in 0..4 + seed.below(28) {
                seed.byte(80);
                let start = seed.bytes.len();
                let words = 1 + seed.below(5);
                seed.text(words);
                let len = u8::try_from(seed.bytes.len() - start).expect("short");
                seed.bytes.insert(start, len);
            }
        }
        "fuse" => {
            seed.byte(256);
            seed.requests();
        }
        _ => {
            seed.byte(14);
            seed.byte(256);
            seed.edits();
            if name == "journal" {
                seed.bytes.push(6);
                seed.random(6 * 12);
            }
            seed.ops();
        }
    }

    seed.bytes
}
