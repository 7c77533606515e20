//! Latency of an fsync of 4 KiB while another process writes a stream, and its write-back is in progress.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::fio;
use crate::Result;
use crate::activity_run::ActivityRun;
use crate::measure::{percentile, seconds};

/// How long before the fsyncs the stream begins: write-back is in progress then.
const HEAD_START: Duration = Duration::from_secs(1);

/// Rows of a kind of small write: median, 99th percentile, largest.
type Keys = [&'static str; 3];

const APPEND: Keys = [
    "append + fsync beside a stream, p50",
    "append + fsync beside a stream, p99",
    "append + fsync beside a stream, max",
];
const REWRITE: Keys = [
    "rewrite + fsync beside a stream, p50",
    "rewrite + fsync beside a stream, p99",
    "rewrite + fsync beside a stream, max",
];

/// One process writes continuously; another appends 4 KiB and syncs, then rewrites and syncs.
pub fn run(run: &mut ActivityRun) -> Result<()> {
    let each = Duration::from_secs(u64::from(run.size().seconds));
    let _bound = run.bound_dirty()?;
    let stream = Stream::start(run, HEAD_START + 2 * each)?;
    sleep(HEAD_START);
    let file = run.root().join("log");
    let appended = sync_for(&file, each, |turn| turn * BLOCK)?;
    let rewritten = sync_for(&file, each, |_| 0)?;
    run.record("stream beside fsyncs", stream.finish()?);
    for (keys, mut times) in [(APPEND, appended), (REWRITE, rewritten)] {
        times.sort_by(f64::total_cmp);
        for (key, part) in keys.into_iter().zip([0.5, 0.99, 1.0]) {
            run.record(key, percentile(&times, part) * 1000.0);
        }
    }
    Ok(())
}

const BLOCK: u64 = 4096;

/// Writes a block at `place` and syncs it, repeatedly; returns the seconds of each fsync.
fn sync_for(path: &Path, time: Duration, place: impl Fn(u64) -> u64) -> Result<Vec<f64>> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    let end = Instant::now() + time;
    let mut times = Vec::new();
    while Instant::now() < end {
        let content = [times.len() as u8; BLOCK as usize];
        file.write_all_at(&content, place(times.len() as u64))?;
        times.push(seconds(|| Ok(file.sync_all()?))?.1);
    }
    Ok(times)
}

/// A process that writes a stream; killed when dropped.
struct Stream {
    writer: Child,
    ended: bool,
}

impl Stream {
    fn start(run: &ActivityRun, time: Duration) -> Result<Self> {
        let size = format!("--size={}M", run.size().stream);
        let time = format!("--runtime={}", time.as_secs());
        let mut writer = fio::job(
            run,
            &["--rw=write", "--bs=1M", &size, "--time_based", &time],
        );
        let writer = writer
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self {
            writer,
            ended: false,
        })
    }

    /// Waits for its end; returns MiB per second.
    fn finish(mut self) -> Result<f64> {
        let mut result = String::new();
        if let Some(mut pipe) = self.writer.stdout.take() {
            std::io::Read::read_to_string(&mut pipe, &mut result)?;
        }
        self.writer.wait()?;
        self.ended = true;
        fio::rate(&fio::report(&result)?, "write")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.ended {
            // Both fail only if it has exited.
            let _ = self.writer.kill();
            let _ = self.writer.wait();
        }
    }
}
