//! What a request costs when the volume does nothing: the floor under every mounted benchmark.
//!
//! `cargo run --release -p steadfs-fuse --example floor` (as root) mounts a volume whose calls
//! return at once, on each transport, and lets another process make requests that no cache answers.
//! Prints microseconds for each call, with the client free to run anywhere and kept on one CPU.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{InodeNo, Timestamp};
use steadfs_fuse::{MountOptions, Transport, Unmount};
use steadfs_vfs::{
    Attr, Control, Cx, DirEntry, FallocMode, FileKind, FileSystem, FsError, FsxAttr, InodeFlags,
    ReadData, RenameFlags, Result, Seek, SetAttr, SetXattr, ShutdownMode, StatFs,
};

const ROOT: InodeNo = InodeNo(1);
const FILE: InodeNo = InodeNo(2);
const SIZE: u64 = 64 << 20;

/// A directory with one file of zeros, `f`, that swallows what is written.
struct NullFs {
    block: Arc<Vec<u8>>,
}

fn attr(ino: InodeNo) -> Attr {
    let dir = ino == ROOT;
    Attr {
        ino,
        generation: 0,
        kind: if dir {
            FileKind::Directory
        } else {
            FileKind::Regular
        },
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: if dir { 0 } else { SIZE },
        blocks: 0,
        block_size: 4096,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        btime: None,
        flags: InodeFlags::default(),
    }
}

const NO: FsError = FsError::NotSupported("the null volume does nothing");

impl FileSystem for NullFs {
    fn root(&self) -> InodeNo {
        ROOT
    }
    fn lookup(&self, _: &Cx, _: InodeNo, name: &[u8]) -> Result<Attr> {
        match name {
            b"f" => Ok(attr(FILE)),
            _ => Err(FsError::NotFound),
        }
    }
    fn attach(&self, _: &Cx, ino: InodeNo) -> Result<Attr> {
        Ok(attr(ino))
    }
    fn forget(&self, _: InodeNo, _: u64) {}
    fn getattr(&self, _: &Cx, ino: InodeNo) -> Result<Attr> {
        Ok(attr(ino))
    }
    fn setattr(&self, _: &Cx, ino: InodeNo, _: &SetAttr) -> Result<Attr> {
        Ok(attr(ino))
    }
    fn readlink(&self, _: &Cx, _: InodeNo) -> Result<Vec<u8>> {
        Err(NO)
    }
    fn mknod(&self, _: &Cx, _: InodeNo, _: &[u8], _: u32, _: u32) -> Result<Attr> {
        Err(NO)
    }
    fn mkdir(&self, _: &Cx, _: InodeNo, _: &[u8], _: u32) -> Result<Attr> {
        Err(NO)
    }
    fn symlink(&self, _: &Cx, _: InodeNo, _: &[u8], _: &[u8]) -> Result<Attr> {
        Err(NO)
    }
    fn link(&self, _: &Cx, _: InodeNo, _: InodeNo, _: &[u8]) -> Result<Attr> {
        Err(NO)
    }
    fn tmpfile(&self, _: &Cx, _: InodeNo, _: u32) -> Result<Attr> {
        Err(NO)
    }
    fn unlink(&self, _: &Cx, _: InodeNo, _: &[u8]) -> Result<()> {
        Err(NO)
    }
    fn rmdir(&self, _: &Cx, _: InodeNo, _: &[u8]) -> Result<()> {
        Err(NO)
    }
    fn rename(
        &self,
        _: &Cx,
        _: (InodeNo, &[u8]),
        _: (InodeNo, &[u8]),
        _: RenameFlags,
    ) -> Result<()> {
        Err(NO)
    }
    fn read(&self, _: &Cx, _: InodeNo, offset: u64, len: usize) -> Result<ReadData> {
        let mut data = ReadData::new();
        let mut left = usize::try_from(SIZE.saturating_sub(offset)).map_or(len, |n| n.min(len));
        while left > 0 {
            let part = left.min(self.block.len());
            data.push(self.block.clone(), 0..part);
            left -= part;
        }
        Ok(data)
    }
    fn write(&self, _: &Cx, _: InodeNo, _: u64, data: &[u8], _: bool) -> Result<usize> {
        Ok(data.len())
    }
    fn fsync(&self, _: &Cx, _: InodeNo, _: bool) -> Result<()> {
        Ok(())
    }
    fn fallocate(&self, _: &Cx, _: InodeNo, _: FallocMode, _: u64, _: u64) -> Result<()> {
        Err(NO)
    }
    fn seek(&self, _: &Cx, _: InodeNo, _: u64, _: Seek) -> Result<u64> {
        Err(NO)
    }
    fn copy_range(&self, _: &Cx, _: (InodeNo, u64), _: (InodeNo, u64), _: u64) -> Result<u64> {
        Err(NO)
    }
    fn readdir(
        &self,
        _: &Cx,
        _: InodeNo,
        _: u64,
        _: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        Ok(())
    }
    fn getxattr(&self, _: &Cx, _: InodeNo, _: &[u8]) -> Result<Vec<u8>> {
        Err(FsError::NoData)
    }
    fn listxattr(&self, _: &Cx, _: InodeNo) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
    fn setxattr(&self, _: &Cx, _: InodeNo, _: &[u8], _: &[u8], _: SetXattr) -> Result<()> {
        Err(NO)
    }
    fn removexattr(&self, _: &Cx, _: InodeNo, _: &[u8]) -> Result<()> {
        Err(NO)
    }
    fn statfs(&self, _: &Cx) -> Result<StatFs> {
        Ok(StatFs::default())
    }
    fn flags(&self, _: &Cx, _: InodeNo) -> Result<FsxAttr> {
        Ok(FsxAttr::default())
    }
    fn set_flags(&self, _: &Cx, _: InodeNo, _: InodeFlags) -> Result<()> {
        Err(NO)
    }
    fn set_project(&self, _: &Cx, _: InodeNo, _: u32) -> Result<()> {
        Err(NO)
    }
    fn generation(&self, _: &Cx, _: InodeNo) -> Result<u32> {
        Ok(0)
    }
    fn trim(&self, _: &Cx, _: u64, _: u64, _: u64) -> Result<u64> {
        Err(NO)
    }
    fn sync_all(&self, _: &Cx) -> Result<()> {
        Ok(())
    }
    fn shutdown(&self, _: &Cx, _: ShutdownMode) -> Result<()> {
        Ok(())
    }
    fn options(&self) -> String {
        String::new()
    }
    fn remount(&self, _: &Cx, _: &str) -> Result<()> {
        Ok(())
    }
    fn control(&self) -> Option<&dyn Control> {
        None
    }
    fn unmount(&self) -> Result<()> {
        Ok(())
    }
}

/// Microseconds that `call` takes, the median of a few rounds of `n` calls.
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
    // Direct I/O wants page alignment: take an aligned part of a larger buffer.
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

fn serve(transport: Transport) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let fs = Arc::new(NullFs {
        block: Arc::new(vec![0; 4096]),
    });
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
    let myself = std::env::current_exe().expect("this program has a name");
    for cpu in [None, Some("0")] {
        print!(
            "{transport:?}, client {:8}",
            cpu.map_or("anywhere", |_| "on CPU 0")
        );
        use std::io::Write;
        std::io::stdout().flush().expect("standard output");
        let mut command = Command::new(&myself);
        command.arg(dir.path()).args(cpu);
        assert!(command.status().expect("the client starts").success());
    }
    mounted.unmount(Unmount::IfIdle).expect("nobody is left");
    mounted.wait().expect("nothing to lose");
}

fn main() {
    let mut args = std::env::args_os().skip(1);
    if let Some(dir) = args.next() {
        let cpu = args.next().and_then(|cpu| cpu.to_str()?.parse().ok());
        return client(Path::new(&dir), cpu);
    }
    println!("microseconds for each request:");
    serve(Transport::Dev);
    serve(Transport::Uring);
}
