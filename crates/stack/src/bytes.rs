//! Bytes of structures that are not trusted.

use std::cell::RefCell;
use std::io;

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{BlockSource, Device, Queue, QueueOptions};

pub(crate) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from(le16(bytes, at)) | u32::from(le16(bytes, at + 2)) << 16
}

pub(crate) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}

/// Reads bytes.
///
/// # Errors
/// They are behind the end, or cannot be read: the rest of a sentence.
pub(crate) fn read(src: &dyn BlockSource, at: u64, len: u64) -> Result<Vec<u8>, String> {
    let size = src.size_bytes();
    let fits = at.checked_add(len).is_some_and(|end| end <= size);
    let len = usize::try_from(len).ok().filter(|_| fits);
    let Some(len) = len else {
        return Err(format!("is cut off: the file ends at byte {size}"));
    };
    let mut bytes = vec![0; len];
    src.read(at, &mut bytes)
        .map_err(|error| format!("cannot be read: {error}"))?;
    Ok(bytes)
}

/// A device with what follows its last sector, read at any offset. The last piece is kept: headers are mostly close together.
pub struct DeviceBytes {
    queue: Queue,
    tail: Vec<u8>,
    last: RefCell<Option<(u64, Vec<u8>)>>,
}

impl DeviceBytes {
    const PIECE: u64 = 4096;

    /// The bytes of `device`, then `tail`.
    pub fn new(device: Arc<dyn Device>, tail: Vec<u8>) -> Self {
        Self {
            queue: Queue::new(device, QueueOptions::default()),
            tail,
            last: RefCell::new(None),
        }
    }

    /// Calls `with` with the piece of the device that has the byte at `at`, and the piece's start.
    fn piece<T>(&self, at: u64, with: impl FnOnce(u64, &[u8]) -> T) -> io::Result<T> {
        let size = self.queue.geometry().size;
        if at >= size {
            return Ok(with(size, &self.tail));
        }
        let start = at / Self::PIECE * Self::PIECE;
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(kept, _)| *kept != start) {
            let len = Self::PIECE.min(size - start);
            let read = self.queue.read(start, len as usize, IoTag::default());
            *last = Some((start, read.map_err(io::Error::other)?.to_vec()));
        }
        let (start, bytes) = last.as_ref().expect("it was read above");
        Ok(with(*start, bytes))
    }
}

impl BlockSource for DeviceBytes {
    fn size_bytes(&self) -> u64 {
        self.queue.geometry().size + self.tail.len() as u64
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.size_bytes()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while done < buf.len() {
            done += self.piece(offset + done as u64, |start, bytes| {
                let bytes = &bytes[(offset + done as u64 - start) as usize..];
                let len = bytes.len().min(buf.len() - done);
                buf[done..done + len].copy_from_slice(&bytes[..len]);
                len
            })?;
        }
        Ok(())
    }
}
