//! Several devices as one: a volume and its journal, or the devices of one volume.
//!
//! **Rule.** A file system addresses them all by block numbers of one device. A FLUSH makes all of them durable, and so does
//! the FLUSH before a write (PREFLUSH): a commit record in a journal is written after the data in the volume is durable.

use std::sync::Arc;

use steadfs_block::{Bio, Buf, Device, Done, Geometry, IoError, Op};

use crate::mapped::moved_back;
use crate::split::Split;

/// A journal begins at a multiple of this: the largest block of a file system, in bytes.
pub const JOINED_UNIT: u64 = 64 << 10;

/// A device that is a part of another one.
#[derive(Clone)]
struct Part {
    device: Arc<dyn Device>,
    /// Where it begins.
    at: u64,
    bytes: u64,
    is_journal: bool,
}

impl Part {
    fn end(&self) -> u64 {
        self.at + self.bytes
    }

    /// What it has of a range: where, and how many bytes.
    fn piece(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let (from, to) = (from.max(self.at), to.min(self.end()));
        (from < to).then(|| (from, to - from))
    }

    /// Whether a request of this kind does something.
    fn serves(&self, op: Op) -> bool {
        op != Op::Discard || self.device.geometry().discard_granularity.is_some()
    }
}

/// See the module.
pub struct JoinedDevice {
    /// In the order of their places.
    parts: Arc<[Part]>,
    geometry: Geometry,
    /// The geometry after all have become writable.
    writable: Geometry,
}

impl JoinedDevice {
    /// A volume and, behind it, its journal.
    ///
    /// # Errors
    /// They are too large for one device, or their sectors do not fit together.
    pub fn with_journal(volume: Arc<dyn Device>, journal: Arc<dyn Device>) -> Result<Self, String> {
        let (first, second) = (volume.geometry(), journal.geometry());
        let at = first.size.checked_next_multiple_of(JOINED_UNIT);
        let sizes = at.and_then(|at| Some((at, at.checked_add(second.size)?)));
        let (at, size) = sizes.ok_or("is too large beside its volume")?;
        let writable = Geometry {
            size,
            discard_granularity: first.discard_granularity,
            discard_zeroes: first.discard_zeroes,
            ..common(&[first, second])
        };
        let part = |device: &Arc<dyn Device>, at, is_journal| Part {
            device: Arc::clone(device),
            at,
            bytes: device.geometry().size,
            is_journal,
        };
        let parts = [part(&volume, 0, false), part(&journal, at, true)];
        Self::of_parts(parts.into(), writable)
    }

    /// The first bytes of several devices, of each as many as is said, one behind the other.
    ///
    /// # Errors
    /// A device is smaller, they are too large for one device, or their sectors do not fit together: what follows the number
    /// of a device, from 0, in a message.
    pub fn of_several(devices: Vec<(Arc<dyn Device>, u64)>) -> Result<Self, (usize, String)> {
        let mut parts = Vec::new();
        let mut size = 0_u64;
        for (number, (device, bytes)) in devices.into_iter().enumerate() {
            let has = device.geometry().size;
            if has < bytes {
                return Err((number, format!("has {has} bytes, the volume needs {bytes}")));
            }
            let at = size;
            let end = size.checked_add(bytes);
            size = end.ok_or_else(|| (number, "is too large".to_owned()))?;
            parts.push(Part {
                device,
                at,
                bytes,
                is_journal: false,
            });
        }
        let all: Vec<&Geometry> = parts.iter().map(|part| part.device.geometry()).collect();
        let granularity = all.iter().filter_map(|one| one.discard_granularity).max();
        let writable = Geometry {
            size,
            discard_granularity: granularity,
            discard_zeroes: !all.is_empty() && all.iter().all(|one| one.discard_zeroes),
            ..common(&all)
        };
        let last = parts.len().saturating_sub(1);
        Self::of_parts(parts.into(), writable).map_err(|why| (last, why))
    }

    fn of_parts(parts: Arc<[Part]>, writable: Geometry) -> Result<Self, String> {
        let unit = u64::from(writable.logical_block);
        let fits = |part: &Part| part.at.is_multiple_of(unit) && part.bytes.is_multiple_of(unit);
        if !parts.iter().all(fits) {
            return Err(format!("has sectors of {unit} bytes beside it"));
        }
        let geometry = Geometry {
            read_only: true,
            ..writable.clone()
        };
        Ok(Self {
            parts,
            geometry,
            writable,
        })
    }

    /// Where the last of them begins, in bytes.
    pub fn last_at(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.at)
    }

    /// Refuses changes of what is between the devices.
    fn check(&self, bio: &Bio) -> Result<(), IoError> {
        self.geometry().check(bio)?;
        if matches!(bio.op, Op::Flush | Op::Read) {
            return Ok(());
        }
        let found = self.parts.iter().filter_map(|part| {
            let piece = part.piece(bio.offset, bio.end())?;
            Some((part, piece.1))
        });
        let (mut bytes, mut journal) = (0, false);
        for (part, len) in found {
            bytes += len;
            journal |= part.is_journal;
        }
        match bio.op {
            Op::Discard if journal => Err(IoError::of(bio, "a discard in the journal")),
            _ if bytes < bio.len => Err(IoError::of(bio, "between a volume and its journal")),
            _ => Ok(()),
        }
    }

    /// Starts requests; with `run` on the caller's time, where no FLUSH of another device is before them.
    fn run_or_start(&self, batch: Vec<(Bio, Done)>, run: bool) {
        let mut pieces: Vec<Vec<(Bio, Done)>> = self.parts.iter().map(|_| Vec::new()).collect();
        for (bio, done) in batch {
            if let Err(error) = self.check(&bio) {
                done(bio, Err(error));
                continue;
            }
            match bio.op {
                Op::Flush => flush_all(&self.parts, bio, done),
                _ if bio.preflush => after_flush(&self.parts, bio, done),
                _ => expand(&self.parts, bio, done, |part, bio, done| {
                    pieces[part].push((bio, done));
                }),
            }
        }
        for (part, batch) in self.parts.iter().zip(pieces) {
            match run {
                true if !batch.is_empty() => part.device.run(batch),
                _ => batch
                    .into_iter()
                    .for_each(|(bio, done)| part.device.start(bio, done)),
            }
        }
    }
}

/// What holds for requests to any of the devices; not their size.
fn common(all: &[&Geometry]) -> Geometry {
    let units = all.iter().map(|one| one.logical_block);
    let transfers = all.iter().map(|one| one.max_transfer);
    Geometry {
        size: 0,
        logical_block: units.max().unwrap_or(512),
        read_only: false,
        discard_granularity: None,
        discard_zeroes: false,
        fua: all.iter().all(|one| one.fua),
        max_transfer: transfers.min().unwrap_or(0),
    }
}

/// Makes all of them durable.
fn flush_all(parts: &[Part], bio: Bio, done: Done) {
    let split = Split::new(bio, done);
    for part in parts {
        part.device.start(Bio::flush(), split.part());
    }
    split.finish(Ok(()));
}

/// Makes the others durable before a write starts, which makes its own device durable.
fn after_flush(parts: &Arc<[Part]>, mut bio: Bio, done: Done) {
    let is_of = |part: &Part| part.at <= bio.offset && bio.end() <= part.end();
    let own = parts.iter().position(is_of);
    let all = Arc::clone(parts);
    let flushed: Done = Box::new(move |_, result| match result {
        Ok(()) => {
            // What is on several devices waited for the FLUSH of all of them.
            bio.preflush &= own.is_some();
            expand(&all, bio, done, |part, bio, done| {
                all[part].device.start(bio, done);
            });
        }
        Err(error) => {
            let error = IoError::of(&bio, error.cause);
            done(bio, Err(error));
        }
    });
    let split = Split::new(Bio::flush(), flushed);
    for (number, part) in parts.iter().enumerate() {
        if Some(number) != own {
            part.device.start(Bio::flush(), split.part());
        }
    }
    split.finish(Ok(()));
}

/// The requests to single devices that one becomes. It may have ended on return, if there are none.
fn expand(parts: &[Part], mut bio: Bio, done: Done, mut start: impl FnMut(usize, Bio, Done)) {
    let is_of = |part: &Part| part.at <= bio.offset && bio.end() <= part.end();
    if let Some(own) = parts.iter().position(is_of) {
        let part = &parts[own];
        if !part.serves(bio.op) {
            return done(bio, Ok(()));
        }
        if part.at == 0 {
            return start(own, bio, done);
        }
        let offset = bio.offset;
        bio.offset -= part.at;
        return start(own, bio, moved_back(offset, done));
    }
    let (offset, stop, op, fua) = (bio.offset, bio.end(), bio.op, bio.fua);
    // A write's buffers are cut where a device ends.
    let bytes = match op {
        Op::Write => bio
            .bufs
            .iter()
            .map(|buf| &buf[..])
            .collect::<Vec<_>>()
            .concat(),
        _ => Vec::new(),
    };
    let split = Split::new(bio, done);
    let mut next = offset;
    for (number, part) in parts.iter().enumerate() {
        let Some((from, len)) = part.piece(offset, stop).filter(|_| part.serves(op)) else {
            continue;
        };
        let (begin, distance) = (from - part.at, from - offset);
        if op == Op::Read {
            split.fill(next - offset, from - next, |to, _| to.fill(0));
        }
        next = from + len;
        let (piece, done) = match op {
            Op::Read => split.read(begin, len, 0, len, distance),
            Op::Write => {
                let range = distance as usize..(distance + len) as usize;
                let mut piece = Bio::write(begin, vec![Buf::copy_of(&bytes[range])]);
                piece.fua = fua;
                (piece, split.part())
            }
            Op::Discard => (Bio::discard(begin, len), split.part()),
            Op::WriteZeroes => (Bio::write_zeroes(begin, len), split.part()),
            Op::Flush => continue,
        };
        start(number, piece, done);
    }
    if op == Op::Read {
        split.fill(next - offset, stop - next, |to, _| to.fill(0));
    }
    split.finish(Ok(()));
}

impl Device for JoinedDevice {
    fn geometry(&self) -> &Geometry {
        let mut all = self.parts.iter();
        match all.any(|part| part.device.geometry().read_only) {
            true => &self.geometry,
            false => &self.writable,
        }
    }

    fn start(&self, bio: Bio, done: Done) {
        self.run_or_start(vec![(bio, done)], false);
    }

    fn run(&self, batch: Vec<(Bio, Done)>) {
        self.run_or_start(batch, true);
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        for part in &*self.parts {
            part.device.help(until);
        }
    }

    fn background_depth(&self) -> usize {
        let depths = self.parts.iter().map(|part| part.device.background_depth());
        depths.min().unwrap_or(1)
    }

    fn depth(&self) -> usize {
        let depths = self.parts.iter().map(|part| part.device.depth());
        depths.min().unwrap_or(1)
    }

    fn make_writable(&self) -> Result<(), String> {
        // One that becomes writable alone would stay locked for writing by a mount that only reads.
        match self.geometry().read_only {
            true => Err(
                "it is on several devices, which are open for reading only; unmount, and mount without ro"
                    .to_owned(),
            ),
            false => Ok(()),
        }
    }
}
