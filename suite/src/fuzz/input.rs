//! The bytes of a fuzzer, read as numbers.

/// Bytes of a fuzzer, consumed from the start. Past the end every number is zero, so that each input is valid.
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// All of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether everything was consumed.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `len` bytes, fewer at the end.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        bytes
    }

    fn word<const N: usize>(&mut self) -> [u8; N] {
        let bytes = self.bytes(N);
        let mut word = [0; N];
        word[..bytes.len()].copy_from_slice(bytes);
        word
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        self.word::<1>()[0]
    }

    /// Two bytes, little-endian.
    pub fn half(&mut self) -> u16 {
        u16::from_le_bytes(self.word())
    }

    /// Four bytes, little-endian.
    pub fn word32(&mut self) -> u32 {
        u32::from_le_bytes(self.word())
    }

    /// An index below `len`, of one byte.
    ///
    /// # Panics
    /// If `len` is 0.
    pub fn below(&mut self, len: usize) -> usize {
        usize::from(self.byte()) % len
    }

    /// One of `choices`, by one byte.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
