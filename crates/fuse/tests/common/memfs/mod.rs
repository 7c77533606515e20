//! A volume in memory, kept simple: one lock, files as maps of 4 KiB blocks.

mod node;
mod ops;
mod state;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use steadfs_base::{InodeNo, Timestamp};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{Control, ControlEntry, Cx, FileKind, FsError, Result};

use state::State;

/// Not 1, so that the translation of node ids is tested.
const ROOT: u64 = 2;

pub struct MemFs {
    state: Mutex<State>,
    pub unmounts: AtomicU32,
    pub syncs: AtomicU32,
    pub fsyncs: AtomicU32,
    pub value: AtomicU64,
    /// fsync waits while this is not zero.
    pub blocked_fsyncs: AtomicU32,
    /// While this is not zero, writes that begin with this byte wait before they change anything.
    pub blocked_write_byte: AtomicU32,
    /// Writes so far.
    pub writes: AtomicU32,
    /// Lookups so far.
    pub lookups: AtomicU32,
    /// A hand-over fails.
    pub refuses_hand_over: AtomicBool,
    /// See [`MemFs::with_unopenable_size`].
    unopenable_size: Option<u64>,
}

fn now() -> Timestamp {
    steadfs_rt::wall_clock()
}

impl MemFs {
    pub fn new() -> Self {
        let mut state = State {
            nodes: BTreeMap::new(),
            next_ino: ROOT - 1,
            next_cookie: 2,
            last_umask: 0,
            groups: Vec::new(),
            shutdown: None,
            sealed: None,
            free_bytes: usize::MAX,
        };
        let root = state.make(&Cx::default(), InodeNo(ROOT), FileKind::Directory, 0o755);
        assert_eq!(root, ROOT);
        Self {
            state: Mutex::new(Rank::Inode, state),
            unmounts: AtomicU32::new(0),
            syncs: AtomicU32::new(0),
            fsyncs: AtomicU32::new(0),
            value: AtomicU64::new(0),
            blocked_fsyncs: AtomicU32::new(0),
            blocked_write_byte: AtomicU32::new(0),
            writes: AtomicU32::new(0),
            lookups: AtomicU32::new(0),
            refuses_hand_over: AtomicBool::new(false),
            unopenable_size: None,
        }
    }

    /// Checks opens: files of this size cannot be opened.
    pub fn with_unopenable_size(mut self, size: u64) -> Self {
        self.unopenable_size = Some(size);
        self
    }

    pub fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock())
    }

    /// Content of a file in the root directory, as the volume has it.
    pub fn content(&self, path: &std::path::Path) -> Vec<u8> {
        use std::os::unix::ffi::OsStrExt;
        let name = path.file_name().unwrap().as_bytes();
        let mut state = self.state.lock();
        let ino = state.find(InodeNo(ROOT), name).unwrap();
        state.nodes[&ino].read(0, usize::MAX).to_vec()
    }

    /// Inodes that are alive, and the sum of their lookup counts.
    pub fn alive(&self) -> (usize, u64) {
        let state = self.state.lock();
        (
            state.nodes.len(),
            state.nodes.values().map(|n| n.lookups).sum(),
        )
    }
}

impl Control for MemFs {
    fn entries(&self) -> Vec<ControlEntry> {
        let entry = |path, writable| ControlEntry { path, writable };
        vec![
            entry("value", true),
            entry("options", false),
            entry("jbd2/info", false),
            entry("jbd2/deep/er", false),
        ]
    }

    /// `value` counts its reads, so that no two reads return the same content.
    fn read(&self, path: &str) -> Result<Vec<u8>> {
        Ok(match path {
            "value" => format!("{:08}\n", self.value.fetch_add(1, Ordering::SeqCst)),
            other => format!("content of {other}\n"),
        }
        .into_bytes())
    }

    fn write(&self, path: &str, value: &[u8]) -> Result<()> {
        assert_eq!(path, "value");
        let text = std::str::from_utf8(value).map_err(|_| FsError::Invalid("not a number"))?;
        let number = text
            .trim()
            .parse()
            .map_err(|_| FsError::BadOption(format!("not a number: {text}")))?;
        self.value.store(number, Ordering::SeqCst);
        Ok(())
    }
}
