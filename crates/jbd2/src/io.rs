//! Reads and writes of many blocks with few requests.

use steadfs_base::{BlockSize, DevBlock, IoTag};
use steadfs_block::{Bio, Buf, IoError, IoHandle, Queue};

use crate::JournalMap;

/// Largest request of the journal, in bytes; less if the device's limit is lower.
const MAX_REQUEST_BYTES: usize = 1 << 20;
/// Most buffers in one request: below the 1024 vectors of a system call.
const MAX_BUFS: usize = 512;

/// Blocks in the largest request.
pub(crate) fn max_run(queue: &Queue, block_size: BlockSize) -> usize {
    let device = usize::try_from(queue.geometry().max_transfer).unwrap_or(MAX_REQUEST_BYTES);
    (MAX_REQUEST_BYTES.min(device) / block_size.bytes()).clamp(1, MAX_BUFS)
}

/// Submits a write for each run of contiguous blocks.
pub(crate) fn submit_writes(
    queue: &Queue,
    block_size: BlockSize,
    blocks: impl IntoIterator<Item = (DevBlock, Buf)>,
    tag: IoTag,
) -> Vec<IoHandle> {
    let limit = max_run(queue, block_size);
    let mut writes = Vec::new();
    let mut run: Vec<Buf> = Vec::new();
    let mut start = DevBlock(0);
    let mut submit = |start: DevBlock, run: &mut Vec<Buf>| {
        if !run.is_empty() {
            let bio = Bio::write(block_size.offset_of(start), std::mem::take(run));
            writes.push(queue.submit(bio, tag));
        }
    };
    for (block, buf) in blocks {
        debug_assert_eq!(buf.len(), block_size.bytes(), "a buffer holds one block");
        if start.plus(run.len() as u64) != block || run.len() == limit {
            submit(start, &mut run);
            start = block;
        }
        run.push(buf);
    }
    submit(start, &mut run);
    writes
}

/// Waits for all requests and returns the first error.
pub(crate) fn wait_all(ios: &[IoHandle]) -> Result<(), IoError> {
    let mut result = Ok(());
    for io in ios {
        result = result.and(io.wait());
    }
    result
}

/// Reads log blocks, given in any order, into one buffer each.
pub(crate) fn read_log(
    queue: &Queue,
    block_size: BlockSize,
    map: &JournalMap,
    blocks: &[u32],
    tag: IoTag,
) -> Result<Vec<Buf>, IoError> {
    let limit = max_run(queue, block_size);
    let mut reads = Vec::new();
    let mut at = 0;
    while at < blocks.len() {
        let (device, contiguous) = map.locate(blocks[at]);
        let mut n = 1;
        while n < limit.min(contiguous as usize)
            && blocks.get(at + n) == Some(&(blocks[at] + n as u32))
        {
            n += 1;
        }
        let mut bio = Bio::read(block_size.offset_of(device), n * block_size.bytes());
        bio.bufs = (0..n).map(|_| Buf::zeroed(block_size.bytes())).collect();
        reads.push(queue.submit(bio, tag));
        at += n;
    }
    let mut bufs = Vec::with_capacity(blocks.len());
    for read in reads {
        bufs.extend(read.into_bio()?.bufs);
    }
    assert_eq!(bufs.len(), blocks.len(), "each log block has a buffer");
    Ok(bufs)
}
