//! A bio: one request to a device.

use crate::Buf;

/// What a bio does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Fill the buffers from the device.
    Read,
    /// Write the buffers to the device.
    Write,
    /// Make every completed write durable.
    Flush,
    /// The range's content is not needed any more; afterwards it reads as before or as zeros.
    Discard,
    /// Make the range read as zeros.
    WriteZeroes,
}

impl Op {
    /// The name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write_zeroes",
        }
    }
}

/// One request to a device.
#[derive(Debug)]
pub struct Bio {
    /// The operation.
    pub op: Op,
    /// First byte on the device, a multiple of its logical block size.
    pub offset: u64,
    /// Length in bytes: the buffers' total for reads and writes, the range's otherwise.
    pub len: u64,
    /// Memory, in device order. A read's buffers are not shared.
    pub bufs: Vec<Buf>,
    /// Make all writes that completed before this one started durable first (writes only).
    pub preflush: bool,
    /// Complete only when durable (writes only).
    pub fua: bool,
}

impl Bio {
    pub(crate) fn new(op: Op, offset: u64, len: u64, bufs: Vec<Buf>) -> Self {
        Self {
            op,
            offset,
            len,
            bufs,
            preflush: false,
            fua: false,
        }
    }

    /// Reads `len` bytes at `offset` into one new buffer, whose content is undefined until the read has succeeded.
    pub fn read(offset: u64, len: usize) -> Self {
        Self::new(Op::Read, offset, len as u64, vec![Buf::to_fill(len)])
    }

    /// Writes `bufs`, one after the other, at `offset`.
    pub fn write(offset: u64, bufs: Vec<Buf>) -> Self {
        let len = bufs.iter().map(|b| b.len() as u64).sum();
        Self::new(Op::Write, offset, len, bufs)
    }

    /// Makes completed writes durable.
    pub fn flush() -> Self {
        Self::new(Op::Flush, 0, 0, Vec::new())
    }

    /// Discards a range.
    pub fn discard(offset: u64, len: u64) -> Self {
        Self::new(Op::Discard, offset, len, Vec::new())
    }

    /// Zeroes a range.
    pub fn write_zeroes(offset: u64, len: u64) -> Self {
        Self::new(Op::WriteZeroes, offset, len, Vec::new())
    }

    /// This write, durable when it completes, and after everything that completed before it is durable.
    pub fn preflush_and_fua(mut self) -> Self {
        self.preflush = true;
        self.fua = true;
        self
    }

    /// This write, durable when it completes.
    pub fn with_fua(mut self) -> Self {
        self.fua = true;
        self
    }

    /// The byte after the last one.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// Whether it transfers data and makes nothing durable.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.op, Op::Read | Op::Write) && !self.preflush && !self.fua
    }
}
