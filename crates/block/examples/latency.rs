//! Cost of the queue and the device in addition to a system call: microseconds and context switches of a
//! waited-for 4 KiB write, read, write with flush, and of batches.
//!
//! Usage: `latency [FILE [ROUNDS]]`. The first 64 MiB of FILE (default `latency.img` in the current directory)
//! are overwritten.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::getpid;
use steadfs_base::IoTag;
use steadfs_block::{
    Bio, Buf, Engine, FileDevice, MemDevice, OpenOptions, Queue, QueueOptions, wait_all,
};
use steadfs_rt::now;

const SIZE: u64 = 64 << 20;
const BLOCK: usize = 4096;

struct Row {
    micros: Vec<f64>,
    switches: u64,
}

/// Context switches of this process's threads so far.
fn switches() -> u64 {
    let pid = getpid().as_raw_nonzero();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("proc is mounted");
    let counts = tasks.flatten().map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        lines
            .filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok())
            .sum::<u64>()
    });
    counts.sum()
}

fn measure(rounds: usize, mut f: impl FnMut(u64)) -> Row {
    for i in 0..rounds / 10 + 1 {
        f(i as u64);
    }
    let before = switches();
    let mut micros = Vec::with_capacity(rounds);
    for i in 0..rounds {
        let start = now();
        f(i as u64);
        micros.push(start.elapsed().as_nanos() as f64 / 1000.0);
    }
    micros.sort_by(f64::total_cmp);
    Row {
        micros,
        switches: switches() - before,
    }
}

fn show(name: &str, row: &Row) {
    let at = |q: f64| row.micros[((row.micros.len() - 1) as f64 * q) as usize];
    let mean = row.micros.iter().sum::<f64>() / row.micros.len() as f64;
    let each = row.switches as f64 / row.micros.len() as f64;
    println!(
        "{name:<44} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {each:>8.2}",
        at(0.1),
        at(0.5),
        mean,
        at(0.99)
    );
}

fn spot(i: u64) -> u64 {
    i.wrapping_mul(0x9E37_79B9) % (SIZE / BLOCK as u64) * BLOCK as u64
}

fn page(i: u64) -> Vec<Buf> {
    vec![Buf::with_bytes(BLOCK, |bytes| bytes.fill(i as u8))]
}

fn by_calls(path: &Path, direct: bool, rounds: usize) {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    options.read(true).write(true);
    if direct {
        options.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
    }
    let file = options.open(path).expect("the file can be opened");
    let name = if direct { "direct" } else { "buffered" };
    let buf = Buf::zeroed(BLOCK);
    let mut into = Buf::zeroed(BLOCK);
    let write = |i| file.write_all_at(&buf, spot(i)).expect("writes");
    let row = measure(rounds, write);
    show(&format!("{name} pwrite"), &row);
    let row = measure(rounds, |i| {
        file.read_exact_at(into.make_mut(), spot(i)).expect("reads");
    });
    show(&format!("{name} pread"), &row);
    let row = measure(rounds / 4, |i| {
        write(i);
        file.sync_data().expect("syncs");
    });
    show(&format!("{name} pwrite, fdatasync"), &row);
    let row = measure(rounds / 16, |i| (0..16).for_each(|n| write(16 * i + n)));
    show(&format!("{name} 16 pwrites"), &row);
    let large = Buf::zeroed(1 << 20);
    let row = measure(16, |_| {
        for n in 0..SIZE >> 20 {
            file.write_all_at(&large, n << 20).expect("writes");
        }
    });
    show(&format!("{name} 64 pwrites of 1 MiB"), &row);
}

fn by_queue(name: &str, queue: &Queue, rounds: usize) {
    let tag = IoTag::default();
    let row = measure(rounds, |i| {
        queue.write(spot(i), page(i), tag).expect("writes");
    });
    show(&format!("{name} write"), &row);
    let row = measure(rounds, |i| {
        queue.read(spot(i), BLOCK, tag).expect("reads");
    });
    show(&format!("{name} read"), &row);
    let row = measure(rounds / 4, |i| {
        queue.write(spot(i), page(i), tag).expect("writes");
        queue.flush(tag).wait().expect("flushes");
    });
    show(&format!("{name} write, flush"), &row);
    for (kind, tag) in [("waited", tag), ("background", IoTag::background())] {
        let row = measure(rounds / 16, |i| {
            let write = |n| queue.submit(Bio::write(spot(16 * i + n), page(i)), tag);
            let ios: Vec<_> = (0..16).map(write).collect();
            wait_all(&ios).expect("writes");
        });
        show(&format!("{name} 16 {kind} writes"), &row);
    }
    let row = measure(rounds / 16, |i| {
        let plug = queue.plug();
        let write = |n| plug.submit(Bio::write(spot(16 * i + n), page(i)), tag);
        let ios: Vec<_> = (0..16).map(write).collect();
        wait_all(&ios).expect("writes");
    });
    show(&format!("{name} 16 plugged writes"), &row);
    let background = IoTag::background();
    let row = measure(16, |_| {
        let write = |n| {
            queue.submit(
                Bio::write(n << 20, vec![Buf::with_bytes(1 << 20, |_| {})]),
                background,
            )
        };
        let ios: Vec<_> = (0..SIZE >> 20).map(write).collect();
        wait_all(&ios).expect("writes");
    });
    show(&format!("{name} 64 background writes of 1 MiB"), &row);
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().unwrap_or_else(|| "latency.img".to_owned()));
    let rounds = args
        .next()
        .map_or(4000, |n| n.parse().expect("ROUNDS is a number"));
    let zeroes = vec![1; 1 << 20];
    let file = File::create(&path).expect("the file can be made");
    for at in 0..SIZE >> 20 {
        file.write_all_at(&zeroes, at << 20)
            .expect("the file can be filled");
    }
    file.sync_all().expect("the file can be synced");
    drop(file);
    println!(
        "{:<44} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "microseconds", "p10", "p50", "mean", "p99", "switches"
    );
    let row = measure(rounds * 20, |i| drop(std::hint::black_box(page(i))));
    show("a 4 KiB buffer made, filled and dropped", &row);
    let memory = Queue::new(Arc::new(MemDevice::new(SIZE)), QueueOptions::default());
    by_queue("memory", &memory, rounds);
    for direct in [true, false] {
        by_calls(&path, direct, rounds);
        for engine in [Engine::Threads, Engine::Uring] {
            let options = OpenOptions {
                direct,
                engine,
                ..OpenOptions::default()
            };
            let device = FileDevice::open(&path, options).expect("the file can be opened");
            let queue = Queue::new(Arc::new(device), QueueOptions::default());
            let cache = if direct { "direct" } else { "buffered" };
            by_queue(&format!("{cache} {engine:?}"), &queue, rounds);
        }
    }
}
