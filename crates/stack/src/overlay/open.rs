//! Opening an overlay.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf, Device, Geometry, MemDevice, Queue, QueueOptions};
use steadfs_rt::{Mutex, Rank};

use super::format::{BaseId, Head, Layout, MAP_BLOCK};
use super::state::State;
use super::{Overlay, OverlayDevice};

/// Bytes of the map that are read at once.
const READ_BYTES: u64 = 1 << 20;

impl OverlayDevice {
    /// An overlay in memory, with at most `bytes` bytes of changed units: it is gone with this device. A write that finds no
    /// room fails.
    ///
    /// # Errors
    /// The base is too large.
    pub fn in_memory(base: Arc<dyn Device>, bytes: u64) -> Result<Self, String> {
        let layout = layout(&base)?;
        let layout = Layout {
            data_at: 0,
            ..layout
        };
        let upper = Arc::new(MemDevice::new(layout.size));
        let map = vec![0; (layout.map_blocks() * MAP_BLOCK) as usize];
        let state = State::new(&layout, map, bytes / layout.unit);
        Ok(Self::over(base, upper, layout, state, false))
    }

    /// The overlay in `upper`, whose first bytes [`check_head`](super::check_head) has accepted for this base.
    ///
    /// # Errors
    /// The overlay cannot be read, or a new one not be written.
    pub fn open(
        base: Arc<dyn Device>,
        upper: Arc<dyn Device>,
        head: Head,
        id: &BaseId,
    ) -> Result<Self, String> {
        let layout = layout(&base)?;
        let size = upper.geometry().size;
        if size < layout.file_bytes() / 512 * 512 {
            return Err(format!("has only {size} bytes"));
        }
        let queue = Queue::new(Arc::clone(&upper), QueueOptions::default());
        if head == Head::New {
            make(&queue, &layout, id)?;
        }
        let map = read_map(&queue, &layout)?;
        if head == Head::New && map.iter().any(|byte| *byte != 0) {
            return Err("is no overlay: it has other content".to_owned());
        }
        let state = State::new(&layout, map, u64::MAX);
        Ok(Self::over(base, upper, layout, state, true))
    }

    fn over(
        base: Arc<dyn Device>,
        upper: Arc<dyn Device>,
        layout: Layout,
        state: State,
        persists: bool,
    ) -> Self {
        let (below, above) = (base.geometry(), upper.geometry());
        let geometry = Geometry {
            size: layout.size,
            logical_block: below.logical_block.max(above.logical_block),
            read_only: above.read_only,
            discard_granularity: None,
            discard_zeroes: false,
            fua: false,
            max_transfer: below.max_transfer.min(above.max_transfer),
        };
        Self(Arc::new(Overlay {
            base,
            upper,
            layout,
            persists,
            geometry,
            state: Mutex::new(Rank::DeviceInner, state),
        }))
    }
}

fn layout(base: &Arc<dyn Device>) -> Result<Layout, String> {
    let size = base.geometry().size;
    Layout::of(size).ok_or_else(|| format!("is too small for a base of {size} bytes"))
}

/// Writes the header of a new overlay, whose map is zeros.
fn make(queue: &Queue, layout: &Layout, id: &BaseId) -> Result<(), String> {
    let header = Bio::write(0, vec![Buf::copy_of(&layout.header(id))]);
    let tag = IoTag::default();
    let written = queue.submit(header, tag).wait();
    written
        .and_then(|_| queue.flush(tag).wait())
        .map(drop)
        .map_err(|error| format!("cannot be written: {error}"))
}

fn read_map(queue: &Queue, layout: &Layout) -> Result<Vec<u8>, String> {
    let len = layout.map_blocks() * MAP_BLOCK;
    let mut map = Vec::with_capacity(len as usize);
    while (map.len() as u64) < len {
        let at = map.len() as u64;
        let piece = READ_BYTES.min(len - at) as usize;
        let read = queue.read(MAP_BLOCK + at, piece, IoTag::default());
        let read = read.map_err(|error| format!("has a map that cannot be read: {error}"))?;
        map.extend_from_slice(&read);
    }
    // Bits behind the last unit mean nothing.
    let units = layout.units();
    for (byte, first) in map.iter_mut().zip((0u64..).step_by(8)) {
        let there = units.saturating_sub(first).min(8);
        *byte &= ((1u16 << there) - 1) as u8;
    }
    Ok(map)
}
