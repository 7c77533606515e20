//! Reads without a queue, for checkers, so that they run on an image in memory as well as on a device.

use std::fs::File;
use std::io;

/// A source that a checker reads from.
pub trait BlockSource {
    /// Size of the volume's device or file.
    fn size_bytes(&self) -> u64;
    /// Fills `buf` from byte `offset`. The range is within [`BlockSource::size_bytes`].
    ///
    /// # Errors
    /// The range cannot be read.
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

impl BlockSource for &[u8] {
    fn size_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(buf.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

impl BlockSource for Vec<u8> {
    fn size_bytes(&self) -> u64 {
        self.as_slice().size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.as_slice().read(offset, buf)
    }
}

/// An image file, without a queue.
impl BlockSource for File {
    fn size_bytes(&self) -> u64 {
        self.metadata().map_or(0, |metadata| metadata.len())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        crate::file_at::read_exact_at(self, buf, offset)
    }
}
