//! A device whose content is in segments of another one.

use std::sync::Arc;

use steadfs_block::{Bio, Device, Done, Geometry, IoError, Op};

use crate::map::{Map, Source};
use crate::split::Split;

/// Unit of requests, in bytes.
const SECTOR: u64 = 512;

/// A [`Map`] over a device, which it reads as that says. It can be written if it is one segment of whole logical blocks, a
/// window; else it is read-only.
pub struct MappedDevice {
    below: Arc<dyn Device>,
    map: Map,
    /// Bytes that follow the last sector of the device below.
    tail: Vec<u8>,
    geometry: Geometry,
    /// The geometry of a window after the device below has become writable.
    writable: Geometry,
}

impl MappedDevice {
    /// The device of `map` over `below`, whose last sector is followed by `tail`. Of a size that is not in whole sectors the
    /// rest is left out.
    ///
    /// # Errors
    /// A segment is not on the device below.
    pub fn new(below: Arc<dyn Device>, map: Map, tail: Vec<u8>) -> Result<Self, String> {
        let there = below.geometry().size.saturating_add(tail.len() as u64);
        for (len, source) in map.pieces(0, map.size()) {
            if let Source::Below(at) = source
                && at.saturating_add(len) > there
            {
                return Err(format!(
                    "{len} bytes from byte {at} on are behind the end, which is at byte {there}"
                ));
            }
        }
        let unit = u64::from(below.geometry().logical_block);
        let is_window = map.as_window().is_some_and(|at| at.is_multiple_of(unit))
            && map.size().is_multiple_of(unit)
            && map.size() <= below.geometry().size;
        let writable = Geometry {
            size: map.size() / SECTOR * SECTOR,
            read_only: !is_window,
            discard_granularity: None,
            discard_zeroes: false,
            ..below.geometry().clone()
        };
        let geometry = Geometry {
            read_only: true,
            ..writable.clone()
        };
        let writable = match is_window {
            true => Geometry {
                size: writable.size,
                read_only: false,
                ..below.geometry().clone()
            },
            false => writable,
        };
        Ok(Self {
            below,
            map,
            tail,
            geometry,
            writable,
        })
    }

    /// The same, never writable.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.writable = self.geometry.clone();
        self
    }

    /// A part of a device; what is behind its end is cut off.
    ///
    /// # Errors
    /// The part begins behind the end.
    pub fn window(below: Arc<dyn Device>, start: u64, bytes: u64) -> Result<Self, String> {
        let size = below.geometry().size;
        let mut map = Map::default();
        let left = size.saturating_sub(start);
        if map.push(left.min(bytes), Source::Below(start)).is_err() || map.size() == 0 {
            return Err(format!(
                "begins at byte {start}, behind the end at byte {size}"
            ));
        }
        Self::new(below, map, Vec::new())
    }

    /// The requests below that serve `bio`. It may have ended on return, if there are none.
    fn expand(&self, mut bio: Bio, done: Done) -> Vec<(Bio, Done)> {
        if let Err(error) = self.geometry().check(&bio) {
            done(bio, Err(error));
            return Vec::new();
        }
        if bio.op == Op::Flush {
            return vec![(bio, done)];
        }
        let mut pieces = self.map.pieces(bio.offset, bio.len);
        match (pieces.next(), pieces.next()) {
            (Some((_, Source::Below(at))), None) if self.is_passed_on(at, bio.len) => {
                let offset = std::mem::replace(&mut bio.offset, at);
                vec![(bio, moved_back(offset, done))]
            }
            _ if bio.op == Op::Read => self.read_pieces(bio, done),
            _ => {
                let error = IoError::of(&bio, "not within one segment of whole blocks");
                done(bio, Err(error));
                Vec::new()
            }
        }
    }

    /// Whether the device below takes a request for this range.
    fn is_passed_on(&self, at: u64, len: u64) -> bool {
        let geometry = self.below.geometry();
        at.is_multiple_of(u64::from(geometry.logical_block)) && at + len <= geometry.size
    }

    /// Serves a read by several.
    fn read_pieces(&self, bio: Bio, done: Done) -> Vec<(Bio, Done)> {
        let (mut at, offset, len) = (0, bio.offset, bio.len);
        let split = Split::new(bio, done);
        let mut reads = Vec::new();
        for (len, source) in self.map.pieces(offset, len) {
            match source {
                Source::Fill(pattern) => split.fill(at, len, |to, from| {
                    let shift = (from % 4) as usize;
                    for (byte, i) in to.iter_mut().zip(shift..) {
                        *byte = pattern[i % 4];
                    }
                }),
                Source::Below(from) => reads.extend(self.read_below(&split, from, len, at)),
            }
            at += len;
        }
        split.finish(Ok(()));
        reads
    }

    /// Reads `len` bytes from byte `from` below for byte `at` of a request: from the device in whole sectors, and from the
    /// tail.
    fn read_below(&self, split: &Split, from: u64, len: u64, at: u64) -> Option<(Bio, Done)> {
        let unit = u64::from(self.below.geometry().logical_block);
        let size = self.below.geometry().size;
        let on_device = size.saturating_sub(from).min(len);
        if on_device < len {
            let tail = &self.tail[(from + on_device - size) as usize..];
            split.fill(at + on_device, len - on_device, |to, from| {
                let from = from as usize;
                to.copy_from_slice(&tail[from..from + to.len()]);
            });
        }
        if on_device == 0 {
            return None;
        }
        let first = from / unit * unit;
        let end = (from + on_device).next_multiple_of(unit);
        Some(split.read(first, end - first, from - first, on_device, at))
    }
}

/// The end of a request that was passed on with another offset.
pub(crate) fn moved_back(offset: u64, done: Done) -> Done {
    Box::new(move |mut bio: Bio, result: Result<(), IoError>| {
        bio.offset = offset;
        let result = result.map_err(|error| IoError { offset, ..error });
        done(bio, result);
    })
}

impl Device for MappedDevice {
    fn geometry(&self) -> &Geometry {
        match self.below.geometry().read_only {
            true => &self.geometry,
            false => &self.writable,
        }
    }

    fn start(&self, bio: Bio, done: Done) {
        for (bio, done) in self.expand(bio, done) {
            self.below.start(bio, done);
        }
    }

    fn run(&self, batch: Vec<(Bio, Done)>) {
        let batch = batch.into_iter();
        self.below.run(
            batch
                .flat_map(|(bio, done)| self.expand(bio, done))
                .collect(),
        );
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        self.below.help(until);
    }

    fn background_depth(&self) -> usize {
        self.below.background_depth()
    }

    fn depth(&self) -> usize {
        self.below.depth()
    }

    fn make_writable(&self) -> Result<(), String> {
        if self.writable.read_only {
            return Err("is a part of an image that cannot be written".to_owned());
        }
        self.below.make_writable()
    }
}
