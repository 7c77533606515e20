//! A file system that is always written whole.
//!
//! Blocks 0 and 1 are headers, one for each of two places. A sync writes the tree to the place that is not current,
//! flushes, and writes that place's header with a higher number, durably. The valid header is the one with the highest
//! number.

use std::sync::Arc;

use steadfs_base::checksum::crc32c;
use steadfs_base::{Corruption, InodeNo, IoTag, Timestamp};
use steadfs_block::{Bio, Buf, Device, Queue, QueueOptions};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FileKind, FileSystem, FsError, Result};
use steadfs_workload::model::{Content, PAGE};
use steadfs_workload::observe::InodeSnapshot;
use steadfs_workload::{Format, ModelFs, Observed, State, TreePath, observe};

use crate::crash::{Subject, ToolReplay};
use crate::device::Image;

/// A flaw of the toy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// No flush between a place and its header.
    NoFlush,
    /// Every fifth sync does nothing.
    IdleFsync,
    /// Recovery wipes the other place first and writes the current one's header again.
    CarelessRecovery,
    /// It panics on a high number.
    Panics,
}

const PLACE: u64 = 8 << 20;
const SIZE: u64 = 3 * PLACE;

pub fn subject(flaw: Flaw) -> Subject {
    Subject {
        name: "toy".to_owned(),
        image: Image::zeroed(SIZE),
        format: Format::PLAIN,
        open: Arc::new(move |device| open(device, flaw)),
        check: None,
        tool: None,
        atomic_unit: 512,
        parts: &[],
        small: false,
        work: None,
        tool_replays: ToolReplay::Nothing,
        fixed_inodes: true,
    }
}

fn io_error(error: impl std::fmt::Display) -> FsError {
    FsError::Io(error.to_string())
}

struct Header {
    number: u64,
    len: u64,
    /// Checksum of the tree.
    sum: u32,
}

impl Header {
    fn read(queue: &Queue, place: u64) -> Result<Option<Self>> {
        let block = queue
            .read(place * 4096, 4096, IoTag::default())
            .map_err(io_error)?;
        let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        let header = Self {
            number: word(0),
            len: word(8),
            sum: word(16) as u32,
        };
        let right = word(24) == u64::from(crc32c(1, &block[..24]));
        Ok((right && header.len <= PLACE).then_some(header))
    }

    fn write(&self, queue: &Queue, place: u64) -> Result<()> {
        let mut block = Vec::new();
        for word in [self.number, self.len, u64::from(self.sum)] {
            block.extend(word.to_le_bytes());
        }
        block.extend(u64::from(crc32c(1, &block)).to_le_bytes());
        block.resize(4096, 0);
        let bio = Bio::write(place * 4096, vec![Buf::copy_of(&block)]).with_fua();
        queue.submit(bio, IoTag::default()).wait().map_err(io_error)
    }
}

const fn start_of(place: u64) -> u64 {
    (place + 1) * PLACE
}

fn open(device: Arc<dyn Device>, flaw: Flaw) -> Result<Arc<dyn FileSystem>> {
    let queue = Arc::new(Queue::new(device, QueueOptions::default()));
    let headers = [Header::read(&queue, 0)?, Header::read(&queue, 1)?];
    let newest = headers
        .iter()
        .flatten()
        .map(|header| header.number)
        .max()
        .unwrap_or(0);
    let place = headers.iter().position(|header| {
        header
            .as_ref()
            .is_some_and(|header| header.number == newest)
    });
    let mut state = State::new();
    if let Some(place) = place {
        let header = headers[place].as_ref().expect("it was found");
        let len = header.len.next_multiple_of(4096) as usize;
        let tree = queue
            .read(start_of(place as u64), len, IoTag::default())
            .map_err(io_error)?;
        let tree = &tree[..header.len as usize];
        if crc32c(0, tree) != header.sum {
            return Err(Corruption::new("the current slot is torn").into());
        }
        state = decode(tree);
        if flaw == Flaw::CarelessRecovery && newest % 3 == 0 {
            // Moves the tree to the other place, header first.
            let header = Header {
                number: newest + 1,
                ..*header
            };
            header.write(&queue, 1 - place as u64)?;
            let mut bytes = tree.to_vec();
            bytes.resize(len, 0);
            let bufs = vec![Buf::copy_of(&bytes)];
            let moved = Bio::write(start_of(1 - place as u64), bufs).with_fua();
            queue
                .submit(moved, IoTag::default())
                .wait()
                .map_err(io_error)?;
            return open_again(queue, flaw);
        }
    }
    serve(queue, state, newest, flaw)
}

/// The tree has moved.
fn open_again(queue: Arc<Queue>, flaw: Flaw) -> Result<Arc<dyn FileSystem>> {
    let newest = [Header::read(&queue, 0)?, Header::read(&queue, 1)?];
    let header = newest
        .into_iter()
        .flatten()
        .max_by_key(|header| header.number);
    let header = header.ok_or(FsError::NotFound)?;
    let len = header.len.next_multiple_of(4096) as usize;
    let at = start_of((header.number) % 2);
    let tree = queue.read(at, len, IoTag::default()).map_err(io_error)?;
    serve(
        queue,
        decode(&tree[..header.len as usize]),
        header.number,
        flaw,
    )
}

fn serve(queue: Arc<Queue>, state: State, newest: u64, flaw: Flaw) -> Result<Arc<dyn FileSystem>> {
    assert!(flaw != Flaw::Panics || newest < 4, "a flaw");
    let last = Mutex::new(Rank::Mount, (newest, 0));
    let fs = ModelFs::new(state, Format::PLAIN).with_sync(Box::new(move |state| {
        let mut last = last.lock();
        last.1 += 1;
        if flaw == Flaw::IdleFsync && last.1 % 5 == 0 {
            return Ok(());
        }
        let number = last.0 + 1;
        // Syncs are ordered: an older state must not follow a newer one.
        write(&queue, &state(), number, flaw)?;
        last.0 = number;
        Ok(())
    }));
    Ok(Arc::new(fs))
}

fn write(queue: &Queue, state: &State, number: u64, flaw: Flaw) -> Result<()> {
    let mut tree = encode(state);
    let (len, sum) = (tree.len() as u64, crc32c(0, &tree));
    assert!(len <= PLACE, "the tree fits its place");
    tree.resize(tree.len().next_multiple_of(4096), 0);
    let place = number % 2;
    for (index, part) in (0u64..).zip(tree.chunks(64 << 10)) {
        let at = start_of(place) + index * (64 << 10);
        let bufs = vec![Buf::copy_of(part)];
        queue.write(at, bufs, IoTag::default()).map_err(io_error)?;
    }
    if flaw != Flaw::NoFlush {
        queue.flush(IoTag::default()).wait().map_err(io_error)?;
    }
    Header { number, len, sum }.write(queue, place)
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn time(&mut self, time: Timestamp) {
        self.number(time.secs as u64);
        self.number(u64::from(time.nanos));
    }
}

fn encode(state: &State) -> Vec<u8> {
    let seen =
        observe(&ModelFs::new(state.clone(), Format::PLAIN)).expect("the model agrees with itself");
    let mut out = Writer(Vec::new());
    out.number(seen.names.len() as u64);
    for (path, ino) in &seen.names {
        out.bytes(path.to_string().as_bytes());
        out.number(ino.0);
    }
    out.number(seen.inodes.len() as u64);
    for (ino, node) in &seen.inodes {
        out.number(ino.0);
        out.number(u64::from(node.kind.mode_bits() | node.perm));
        for number in [node.nlink, node.owner.0, node.owner.1, node.rdev] {
            out.number(u64::from(number));
        }
        out.number(node.size);
        out.time(node.atime);
        out.time(node.mtime);
        out.bytes(&node.target);
        out.number(node.xattrs.len() as u64);
        for (name, value) in &node.xattrs {
            out.bytes(name);
            out.bytes(value);
        }
        out.number(node.content.pages().count() as u64);
        for (index, page) in node.content.pages() {
            out.number(index);
            out.0.extend(page.as_slice());
        }
    }
    out.0
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, n: usize) -> &[u8] {
        let (part, rest) = self.0.split_at(n);
        self.0 = rest;
        part
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn small(&mut self) -> u32 {
        self.number() as u32
    }

    fn bytes(&mut self) -> Vec<u8> {
        let n = self.number() as usize;
        self.take(n).to_vec()
    }

    fn time(&mut self) -> Timestamp {
        Timestamp {
            secs: self.number() as i64,
            nanos: self.small(),
        }
    }
}

fn decode(bytes: &[u8]) -> State {
    let mut from = Reader(bytes);
    let mut seen = Observed::default();
    for _ in 0..from.number() {
        let path: TreePath = String::from_utf8(from.bytes()).unwrap().parse().unwrap();
        seen.names.insert(path, InodeNo(from.number()));
    }
    for _ in 0..from.number() {
        let ino = InodeNo(from.number());
        let mode = from.small();
        let mut node = InodeSnapshot {
            kind: FileKind::from_mode(mode).unwrap(),
            perm: mode & 0o7777,
            nlink: from.small(),
            owner: (from.small(), from.small()),
            rdev: from.small(),
            size: from.number(),
            atime: from.time(),
            mtime: from.time(),
            target: from.bytes(),
            xattrs: (0..from.number())
                .map(|_| (from.bytes(), from.bytes()))
                .collect(),
            content: Content::default(),
        };
        for _ in 0..from.number() {
            let index = from.number();
            node.content.write(index * PAGE as u64, from.take(PAGE));
        }
        seen.inodes.insert(ino, node);
    }
    let mut state = State::of(&seen);
    for (path, ino) in state.flatten() {
        let there = &seen.inodes[&seen.names[&path]];
        let node = state.touch(ino).unwrap();
        (node.atime, node.mtime) = (Some(there.atime), Some(there.mtime));
    }
    state
}
