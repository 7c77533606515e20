//! A device in memory, for tests and for volumes that are built in memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use steadfs_base::is_zero;
use steadfs_rt::{Mutex, Rank};

use crate::file_at::{read_exact_at, write_all_at};
use crate::{Bio, BlockSource, Device, Done, Geometry, IoError, Op};

const CHUNK_BYTES: usize = 4096;
/// Bytes per read or write of an image file, a multiple of [`CHUNK_BYTES`].
const FILE_IO_BYTES: usize = 1 << 20;

/// Content by offset. Copies of a device share it until one of them writes.
type Chunks = BTreeMap<u64, Arc<[u8; CHUNK_BYTES]>>;

/// A sparse device in memory whose writes are durable at once.
pub struct MemDevice {
    geometry: Geometry,
    chunks: Mutex<Chunks>,
}

impl MemDevice {
    /// A device of `size` zero bytes.
    pub fn new(size: u64) -> Self {
        Self {
            geometry: Geometry {
                size,
                logical_block: 512,
                read_only: false,
                discard_granularity: Some(CHUNK_BYTES as u64),
                discard_zeroes: true,
                fua: true,
                max_transfer: 1 << 20,
            },
            chunks: Mutex::new(Rank::DeviceInner, BTreeMap::new()),
        }
    }

    /// A device with the content of `image`.
    pub fn from_bytes(image: &[u8]) -> Self {
        let device = Self::new(image.len() as u64);
        device.write(0, image);
        device
    }

    /// A device with the content of an image file. Holes are not read.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn load(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let device = Self::new(size);
        let mut part = vec![0; FILE_IO_BYTES];
        let mut at = 0;
        while let Some(data) = next_data(&file, at)? {
            let hole = next_hole(&file, data)?.unwrap_or(size);
            at = data;
            while at < hole {
                let len = FILE_IO_BYTES.min(usize::try_from(hole - at).unwrap_or(FILE_IO_BYTES));
                read_exact_at(&file, &mut part[..len], at)?;
                device.write(at, &part[..len]);
                at += len as u64;
            }
        }
        Ok(device)
    }

    /// Writes the device's content to an image file at `path`; zeros become holes.
    ///
    /// # Errors
    /// The file cannot be created or written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.geometry.size)?;
        // Not under the lock: a simulated task must not wait for the host there.
        let chunks = self.chunks.lock().clone();
        let mut run: Vec<u8> = Vec::new();
        let mut start = 0;
        for (&at, chunk) in &chunks {
            if **chunk == [0; CHUNK_BYTES] {
                continue;
            }
            if start + run.len() as u64 != at || run.len() >= FILE_IO_BYTES {
                write_all_at(&file, &run, start)?;
                run.clear();
                start = at;
            }
            let len =
                CHUNK_BYTES.min(usize::try_from(self.geometry.size - at).unwrap_or(CHUNK_BYTES));
            run.extend_from_slice(&chunk[..len]);
        }
        write_all_at(&file, &run, start)
    }

    /// The whole content.
    pub fn to_bytes(&self) -> Vec<u8> {
        let size = usize::try_from(self.geometry.size).expect("an image in memory fits memory");
        let mut out = vec![0; size];
        self.read(0, &mut out);
        out
    }

    /// Another device with the present content. Chunks are shared until one of the devices writes them.
    pub fn copy(&self) -> Self {
        let chunks = self.chunks.lock().clone();
        Self {
            geometry: self.geometry.clone(),
            chunks: Mutex::new(Rank::DeviceInner, chunks),
        }
    }

    /// Reads without a queue. The range must be inside the device.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let chunks = self.chunks.lock();
        for (at, within, range) in pieces(offset, out.len()) {
            let part = &mut out[range];
            match chunks.get(&at) {
                Some(chunk) => part.copy_from_slice(&chunk[within..within + part.len()]),
                None => part.fill(0),
            }
        }
    }

    /// Writes without a queue. The range must be inside the device.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let mut chunks = self.chunks.lock();
        for (at, within, range) in pieces(offset, bytes.len()) {
            let part = &bytes[range];
            if is_zero(part) && !chunks.contains_key(&at) {
                continue;
            }
            let chunk = chunks
                .entry(at)
                .or_insert_with(|| Arc::new([0; CHUNK_BYTES]));
            Arc::make_mut(chunk)[within..within + part.len()].copy_from_slice(part);
        }
    }

    fn zero(&self, offset: u64, len: u64) {
        let mut chunks = self.chunks.lock();
        let mut at = offset;
        let end = offset + len;
        while at < end {
            let base = at / CHUNK_BYTES as u64 * CHUNK_BYTES as u64;
            let upto = (base + CHUNK_BYTES as u64).min(end);
            if at == base && upto == base + CHUNK_BYTES as u64 {
                chunks.remove(&base);
            } else if let Some(chunk) = chunks.get_mut(&base) {
                Arc::make_mut(chunk)[(at - base) as usize..(upto - base) as usize].fill(0);
            }
            at = upto;
        }
    }

    fn run(&self, bio: &mut Bio) -> Result<(), IoError> {
        self.geometry.check(bio)?;
        let mut at = bio.offset;
        match bio.op {
            Op::Read => {
                for buf in &mut bio.bufs {
                    let len = buf.len() as u64;
                    self.read(at, buf.make_mut());
                    at += len;
                }
            }
            Op::Write => {
                for buf in &bio.bufs {
                    self.write(at, buf);
                    at += buf.len() as u64;
                }
            }
            Op::Flush => {}
            Op::Discard | Op::WriteZeroes => self.zero(bio.offset, bio.len),
        }
        Ok(())
    }
}

/// The next offset of data; `None` if there is none.
#[cfg(unix)]
fn next_data(file: &File, from: u64) -> io::Result<Option<u64>> {
    seek(file, rustix::fs::SeekFrom::Data(from))
}

/// The next offset of a hole; `None` if there is none.
#[cfg(unix)]
fn next_hole(file: &File, from: u64) -> io::Result<Option<u64>> {
    seek(file, rustix::fs::SeekFrom::Hole(from))
}

#[cfg(unix)]
fn seek(file: &File, from: rustix::fs::SeekFrom) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, from) {
        Ok(at) => Ok(Some(at)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// All is data: other hosts do not show holes.
#[cfg(not(unix))]
fn next_data(file: &File, from: u64) -> io::Result<Option<u64>> {
    Ok((from < file.metadata()?.len()).then_some(from))
}

#[cfg(not(unix))]
fn next_hole(_: &File, _: u64) -> io::Result<Option<u64>> {
    Ok(None)
}

/// For checkers: reads without a queue.
impl BlockSource for MemDevice {
    fn size_bytes(&self) -> u64 {
        self.geometry.size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.geometry.size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::read(self, offset, buf);
        Ok(())
    }
}

/// The chunks of a range: (chunk's offset, offset inside it, range of the caller's bytes).
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % CHUNK_BYTES as u64) as usize;
        let n = (CHUNK_BYTES - within).min(len - done);
        let range = done..done + n;
        done += n;
        Some((at - within as u64, within, range))
    })
}

impl Device for MemDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn start(&self, mut bio: Bio, done: Done) {
        let result = self.run(&mut bio);
        done(bio, result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_file_has_the_devices_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        // Ends inside a chunk; has whole zero chunks, a run longer than one read, and zeros that were written.
        let size = (3 * FILE_IO_BYTES + 1024) as u64;
        let device = MemDevice::new(size);
        device.write(100, &[1; 7]);
        device.write(
            2 * CHUNK_BYTES as u64 - 1,
            &vec![2; FILE_IO_BYTES + CHUNK_BYTES],
        );
        device.write(size - 600, &[3; 600]);
        device.write(100, &[0; 7]);
        device.save(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes == device.to_bytes());
        assert!(MemDevice::load(&path).unwrap().to_bytes() == bytes);
        assert!(MemDevice::from_bytes(&bytes).to_bytes() == bytes);

        // A longer existing file is truncated.
        let small = MemDevice::new(512);
        small.save(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0; 512]);
        assert_eq!(MemDevice::load(&path).unwrap().to_bytes(), [0; 512]);
    }

    #[test]
    fn copies_change_independently() {
        let device = MemDevice::new(4 * CHUNK_BYTES as u64);
        device.write(10, b"before");
        let copy = device.copy();
        copy.write(12, b"X");
        device.zero(0, 11);
        let read = |device: &MemDevice| {
            let mut out = [0; 6];
            device.read(10, &mut out);
            out
        };
        assert_eq!((&read(&device), &read(&copy)), (b"\0efore", b"beXore"));
        let mut beyond = [0; 2];
        let end = 4 * CHUNK_BYTES as u64 - 1;
        assert!(BlockSource::read(&copy, end, &mut beyond).is_err());
    }
}
