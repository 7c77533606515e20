//! Background threads of an experiment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_rt::{JoinHandle, sleep, spawn};
use steadfs_vfs::{Cx, FsError};

use super::files::Files;

/// Bytes per write of [`writer`], and per call of [`content`].
pub const PIECE: u64 = 128 << 10;
/// CPU time of a write of that size.
pub const WRITE_CPU: Duration = Duration::from_micros(60);

/// The content at an offset of a file, the same at each write: the final content does not depend on the number of
/// writes. A device's store keeps one word for each block of it.
pub fn content(at: u64, len: u64) -> Vec<u8> {
    let len = usize::try_from(len).expect("what is written at once fits memory");
    let mut bytes = vec![0; len];
    fill(at, &mut bytes);
    bytes
}

fn fill(at: u64, bytes: &mut [u8]) {
    for (block, part) in (at / 4096..).zip(bytes.chunks_mut(4096)) {
        let word = (block + 1).to_le_bytes();
        part.as_chunks_mut().0.fill(word);
    }
}

/// A thread that repeats a step until it is stopped, with the sum of the steps' results.
pub struct Background {
    task: JoinHandle<Result<(), FsError>>,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
}

impl Background {
    /// Starts a thread; each step returns the amount done.
    pub fn spawn(
        name: &str,
        mut step: impl FnMut() -> Result<u64, FsError> + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicU64::new(0));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&done));
        let task = spawn(name, move || {
            while !stopped.load(Ordering::Relaxed) {
                count.fetch_add(step()?, Ordering::Relaxed);
            }
            Ok(())
        });
        Self { task, stop, done }
    }

    /// The amount done.
    pub fn count(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Stops the thread and joins it.
    ///
    /// # Errors
    /// The error of a step.
    pub fn end(self) -> Result<(), FsError> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.join()
    }
}

/// A thread that writes a file of `size` bytes from start to end repeatedly.
pub fn writer(fs: &Arc<dyn Files>, cx: Cx, file: InodeNo, size: u64) -> Background {
    let fs = Arc::clone(fs);
    let (mut at, mut bytes) = (0, content(0, PIECE));
    Background::spawn("writer", move || {
        sleep(WRITE_CPU);
        fill(at, &mut bytes);
        fs.write(&cx, file, at, &bytes)?;
        at = (at + PIECE) % size;
        Ok(PIECE)
    })
}

/// Creates a file in the root directory, with its content.
///
/// # Errors
/// The file system's.
pub fn make_file(fs: &dyn Files, name: &[u8], size: u64) -> Result<(), FsError> {
    let cx = Cx::default();
    let file = fs.make(&cx, fs.root(), name)?;
    for at in (0..size).step_by(PIECE as usize) {
        fs.write(&cx, file, at, &content(at, PIECE.min(size - at)))?;
    }
    fs.forget(file);
    Ok(())
}
