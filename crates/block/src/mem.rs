//! A device in memory: for tests, and for replaying a journal that must not be written.

use std::collections::BTreeMap;

use steadfs_rt::{Mutex, Rank};

use crate::{Bio, Device, Done, Geometry, IoError, Op};

const CHUNK: usize = 4096;

/// A sparse device in memory whose writes are durable at once.
pub struct MemDevice {
    geometry: Geometry,
    chunks: Mutex<BTreeMap<u64, Box<[u8; CHUNK]>>>,
}

impl MemDevice {
    /// A device of `size` zero bytes.
    pub fn new(size: u64) -> Self {
        Self {
            geometry: Geometry {
                size,
                logical_block: 512,
                read_only: false,
                discard_granularity: Some(CHUNK as u64),
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

    /// The whole content.
    pub fn to_bytes(&self) -> Vec<u8> {
        let size = usize::try_from(self.geometry.size).expect("an image in memory fits memory");
        let mut out = vec![0; size];
        self.read(0, &mut out);
        out
    }

    /// Another device with the content that this one has now.
    pub fn copy(&self) -> Self {
        let chunks = self.chunks.lock().clone();
        Self {
            geometry: self.geometry.clone(),
            chunks: Mutex::new(Rank::DeviceInner, chunks),
        }
    }

    /// Reads without a queue. The range must lie inside the device.
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

    /// Writes without a queue. The range must lie inside the device.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let mut chunks = self.chunks.lock();
        for (at, within, range) in pieces(offset, bytes.len()) {
            let part = &bytes[range];
            if part.iter().all(|&b| b == 0) && !chunks.contains_key(&at) {
                continue;
            }
            let chunk = chunks.entry(at).or_insert_with(|| Box::new([0; CHUNK]));
            chunk[within..within + part.len()].copy_from_slice(part);
        }
    }

    fn zero(&self, offset: u64, len: u64) {
        let mut chunks = self.chunks.lock();
        let mut at = offset;
        let end = offset + len;
        while at < end {
            let base = at / CHUNK as u64 * CHUNK as u64;
            let upto = (base + CHUNK as u64).min(end);
            if at == base && upto == base + CHUNK as u64 {
                chunks.remove(&base);
            } else if let Some(chunk) = chunks.get_mut(&base) {
                chunk[(at - base) as usize..(upto - base) as usize].fill(0);
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

/// The chunks a range touches: (chunk's offset, offset within it, range of the caller's bytes).
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % CHUNK as u64) as usize;
        let n = (CHUNK - within).min(len - done);
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
