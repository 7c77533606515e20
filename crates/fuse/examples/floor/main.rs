//! The cost of a request if the volume does nothing: the lower bound of every mounted benchmark.
//!
//! `cargo run --release -p steadfs-fuse --example floor` (as root) mounts a volume that has names and nothing else
//! ([`null`]) on each transport; another process makes requests that no cache answers. Prints microseconds per call,
//! with the client free to migrate and with the client pinned to one CPU.
//!
//! `floor serve DIR` mounts the volume on DIR as steadfs mounts its volumes, prints "ready" and serves until it is
//! unmounted: `make bench` runs its rows on it.

mod null;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use steadfs_fuse::{MountOptions, Transport, Unmount};

use null::NullFs;

/// Bytes of the file that is read and written.
const SIZE: u64 = 64 << 20;

/// Prints the microseconds that `call` takes: the median of several rounds of `n` calls.
fn measure(name: &str, n: u32, mut call: impl FnMut()) {
    let mut rounds: Vec<f64> = (0..5)
        .map(|_| {
            let start = steadfs_rt::now();
            for _ in 0..n {
                call();
            }
            start.elapsed().as_secs_f64() * 1e6 / f64::from(n)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    print!("  {name} {:7.1}", rounds[2]);
}

fn client(dir: &Path, cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set).expect("this CPU exists");
    }
    let (file, missing) = (dir.join("f"), dir.join("missing"));
    let f = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
        .open(&file)
        .expect("the null volume has f");
    let cached = File::options()
        .write(true)
        .open(&file)
        .expect("the null volume has f");
    // Direct I/O requires page alignment: an aligned part of a larger buffer.
    let mut store = vec![7; (1 << 20) + 4096];
    let at = store.as_ptr().align_offset(4096);
    let buffer = &mut store[at..at + (1 << 20)];
    let fail = "the null volume answers";
    measure("getattr", 3000, || {
        assert!(f.metadata().expect(fail).is_file())
    });
    measure("lookup", 3000, || {
        drop(fs::metadata(&missing).expect_err("it is missing"))
    });
    measure("write 4K", 3000, || {
        cached.write_all_at(&buffer[..4096], 8192).expect(fail);
    });
    measure("read 4K", 3000, || {
        f.read_exact_at(&mut buffer[..4096], 8192).expect(fail);
    });
    measure("write 1M", 100, || {
        cached.write_all_at(buffer, 0).expect(fail);
    });
    measure("read 1M", 100, || f.read_exact_at(buffer, 0).expect(fail));
    println!();
}

/// Serves until `dir` is unmounted.
fn serve(dir: &Path) {
    let mounted = steadfs_fuse::mount(Arc::new(NullFs::new()), dir, MountOptions::default())
        .expect("root can mount");
    println!("ready");
    std::io::stdout().flush().expect("standard output");
    mounted.wait().expect("closing a volume in memory succeeds");
}

/// Measures each request on `transport`.
fn compare(transport: Transport) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let fs = Arc::new(NullFs::new());
    let options = MountOptions {
        transport,
        entry_timeout: Duration::ZERO,
        negative_timeout: Duration::ZERO,
        attr_timeout: Duration::ZERO,
        ..MountOptions::default()
    };
    let mounted = match steadfs_fuse::mount(fs, dir.path(), options) {
        Ok(mounted) => mounted,
        Err(error) => {
            println!("{transport:?}: {error}");
            return;
        }
    };
    let file = File::create(dir.path().join("f")).expect("the null volume takes names");
    file.set_len(SIZE).expect("the null volume keeps sizes");
    let myself = std::env::current_exe().expect("this program has a name");
    for cpu in [None, Some("0")] {
        print!(
            "{transport:?}, client {:8}",
            cpu.map_or("anywhere", |_| "on CPU 0")
        );
        std::io::stdout().flush().expect("standard output");
        let mut command = Command::new(&myself);
        command.arg(dir.path()).args(cpu);
        assert!(command.status().expect("the client starts").success());
    }
    drop(file);
    mounted
        .unmount(Unmount::IfIdle)
        .expect("the mount is not in use");
    mounted.wait().expect("closing a volume in memory succeeds");
}

fn main() {
    let mut args = std::env::args_os().skip(1);
    if let Some(dir) = args.next() {
        if dir == "serve" {
            let dir = args.next().expect("floor serve DIR");
            return serve(Path::new(&dir));
        }
        let cpu = args.next().and_then(|cpu| cpu.to_str()?.parse().ok());
        return client(Path::new(&dir), cpu);
    }
    println!("microseconds for each request:");
    compare(Transport::Dev);
    compare(Transport::Uring);
}
