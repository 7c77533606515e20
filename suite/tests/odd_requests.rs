//! Requests that no kernel sends: each is answered with the right error, and the volume serves on.
//!
//! They reach a volume without a kernel. What lies between (a name that is too long, an offset of 2^63) is refused by
//! the kernel for programs, so a mount alone does not show how the server answers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use rustix::io::Errno;
use steadfs::{Options, Volume};
use steadfs_base::InodeNo;
use steadfs_fuse::reply::Answer;
use steadfs_fuse::request::DecodeError;
use steadfs_fuse::wire::{self, InHeader, OPCODES, ROOT_ID, opcode as op};
use steadfs_suite::hostile::meter::{Meter, peak_of};
use steadfs_suite::raw_fuse::{HEADER, RawClient};
use steadfs_suite::{Image, Scratch, run, succeed};
use steadfs_vfs::is_control_inode;
use zerocopy::IntoBytes;

#[global_allocator]
static METER: Meter = Meter;

const MIB: usize = 1 << 20;
/// A node that no volume here has.
const NO_NODE: u64 = 3_000_000_000;

/// A volume without a kernel.
struct Raw {
    client: RawClient,
    volume: Volume,
    image: Image,
    format: &'static str,
    _scratch: Scratch,
}

impl Raw {
    fn new(format: &'static str, inodes: usize) -> Self {
        let scratch = Scratch::new();
        let image = Image::empty(&scratch, "a.img", 768 << 20);
        let file = image.path().to_str().unwrap();
        let inodes = (inodes + 1000).to_string();
        match format {
            "f2fs" => succeed("mkfs.f2fs", ["-q", "-f", file]),
            _ => succeed("mke2fs", ["-q", "-F", "-t", "ext4", "-N", &inodes, file]),
        };
        let options = Options::parse_for("cache_size=8M", image.path()).unwrap();
        let volume = Volume::open_with(image.path(), &options).unwrap();
        Self {
            client: RawClient::connect(volume.fs()),
            volume,
            image,
            format,
            _scratch: scratch,
        }
    }

    /// Makes a file with this content; returns its node.
    fn file(&mut self, name: &str, content: &[u8]) -> u64 {
        let arg = wire::MknodIn {
            mode: 0o100_644,
            ..Default::default()
        };
        let body = [arg.as_bytes(), name.as_bytes(), b"\0"].concat();
        assert_eq!(self.client.send(op::MKNOD, ROOT_ID, &body), Answer::Done);
        let node = self.client.node().unwrap();
        let written = self.client.send(op::WRITE, node, &write(0, content));
        assert_eq!(written, Answer::Done);
        node
    }

    #[track_caller]
    fn expect(&mut self, what: &str, opcode: u32, node: u64, body: &[u8], answer: Answer) {
        let given = self.client.send(opcode, node, body);
        assert_eq!(given, answer, "{what}");
    }

    #[track_caller]
    fn fails(&mut self, what: &str, opcode: u32, node: u64, body: &[u8], errno: Errno) {
        self.expect(what, opcode, node, body, Answer::Error(errno));
    }

    /// Everything that was there still is, and the volume is consistent.
    #[track_caller]
    fn end(mut self, node: u64, content: &[u8]) {
        let body = read(0, 4096);
        self.expect("a read at the end", op::READ, node, &body, Answer::Done);
        assert_eq!(self.client.out.data.to_vec(), content);
        self.client.close().unwrap();
        drop(self.volume);
        let checked = steadfs::check(self.image.path(), &Options::default(), &mut |_| ()).unwrap();
        assert!(checked.is_clean(), "{:#?}", checked.issues());
        match self.format {
            "f2fs" => {
                let image = self.image.path().as_os_str();
                run("fsck.f2fs", ["--dry-run".as_ref(), image]).expect(0);
            }
            _ => self.image.check_clean(),
        }
    }
}

fn write(offset: u64, content: &[u8]) -> Vec<u8> {
    let arg = wire::WriteIn {
        offset,
        size: u32::try_from(content.len()).unwrap(),
        ..Default::default()
    };
    [arg.as_bytes(), content].concat()
}

fn read(offset: u64, size: u32) -> Vec<u8> {
    let arg = wire::ReadIn {
        offset,
        size,
        ..Default::default()
    };
    arg.as_bytes().to_vec()
}

const FORMATS: [&str; 2] = ["ext4", "f2fs"];
const CONTENT: &[u8] = b"content";

#[test]
fn lengths_other_than_those_of_the_operation_are_errors() {
    for format in FORMATS {
        let mut raw = Raw::new(format, 100);
        let node = raw.file("file", CONTENT);
        for wrong in [0, 39, 40, 41, u32::MAX] {
            let header = InHeader {
                len: wrong,
                opcode: op::GETATTR,
                nodeid: ROOT_ID,
                ..InHeader::default()
            };
            let message = [header.as_bytes(), &[0; 16]].concat();
            let answer = raw.client.message(&message);
            assert_eq!(answer, Err(DecodeError::Length), "{wrong}");
        }
        for short in 0..HEADER {
            let answer = raw.client.message(&vec![0; short]);
            assert_eq!(answer, Err(DecodeError::Short));
        }
        for opcode in 1..OPCODES as u32 {
            // These two have no body, or close the volume.
            if matches!(opcode, op::DESTROY | op::INIT) {
                continue;
            }
            let size = wire::op_size(opcode).unwrap_or(0);
            let silent = wire::is_forget(opcode) || opcode == op::INTERRUPT;
            for len in 0..size {
                let answer = raw.client.send(opcode, node, &vec![0; len]);
                let name = wire::op_name(opcode);
                let refused = matches!(answer, Answer::Error(Errno::IO | Errno::NOSYS));
                // The fields of these are not used.
                let unused = matches!(answer, Answer::Done | Answer::Silent)
                    && matches!(opcode, op::RELEASE | op::RELEASEDIR | op::SYNCFS);
                assert!(refused || unused, "{name}, {len} bytes: {answer:?}");
            }
            let long = raw.client.send(opcode, NO_NODE, &vec![0xff; size + MIB]);
            assert_eq!(
                matches!(long, Answer::Silent),
                silent && opcode != op::BATCH_FORGET,
                "{opcode}: {long:?}"
            );
        }
        raw.end(node, CONTENT);
    }
}

/// A name of this many bytes, with its end.
fn name(len: usize) -> Vec<u8> {
    let mut name = vec![b'n'; len];
    name.push(0);
    name
}

#[test]
fn names_that_no_directory_may_hold_are_refused() {
    for format in FORMATS {
        let mut raw = Raw::new(format, 100);
        let node = raw.file("file", CONTENT);
        let mode = wire::MknodIn {
            mode: 0o100_644,
            ..Default::default()
        };
        let dir = wire::MkdirIn {
            mode: 0o755,
            ..Default::default()
        };
        let target = wire::LinkIn { oldnodeid: node };
        let moved = wire::Rename2In {
            newdir: ROOT_ID,
            ..Default::default()
        };
        let makes: [(u32, Vec<u8>); 5] = [
            (op::MKNOD, mode.as_bytes().to_vec()),
            (op::MKDIR, dir.as_bytes().to_vec()),
            (op::LINK, target.as_bytes().to_vec()),
            (op::SYMLINK, Vec::new()),
            (op::RENAME2, [moved.as_bytes(), b"file\0"].concat()),
        ];
        for (opcode, head) in makes {
            let mut fails = |what: &str, name: &[u8], errno| {
                // The target of a symbolic link follows.
                let body = [&head, name, b"target\0"].concat();
                let what = format!("{} {what}", wire::op_name(opcode));
                raw.fails(&what, opcode, ROOT_ID, &body, errno);
            };
            fails("of 0 bytes", &name(0), Errno::NOENT);
            fails("of 256 bytes", &name(256), Errno::NAMETOOLONG);
            fails("of 4095 bytes", &name(4095), Errno::NAMETOOLONG);
            fails("with a slash", b"a/b\0", Errno::INVAL);
            fails("of a slash", b"/\0", Errno::INVAL);
        }
        for missing in [name(0), name(255), b"file/\0".to_vec()] {
            // The reply without a node, which the kernel may keep.
            raw.expect("missing", op::LOOKUP, ROOT_ID, &missing, Answer::Done);
            assert_eq!(raw.client.node(), None);
        }
        for (what, name, errno) in [
            ("256 bytes", name(256), Errno::NAMETOOLONG),
            ("4095 bytes", name(4095), Errno::NAMETOOLONG),
            ("no end", b"file".to_vec(), Errno::IO),
            ("no byte", Vec::new(), Errno::IO),
        ] {
            raw.fails(what, op::LOOKUP, ROOT_ID, &name, errno);
        }
        let longest = [mode.as_bytes(), &name(255)].concat();
        raw.expect("255", op::MKNOD, ROOT_ID, &longest, Answer::Done);
        raw.expect("255", op::LOOKUP, ROOT_ID, &name(255), Answer::Done);
        for dots in [&b".\0"[..], b"..\0"] {
            let body = [dir.as_bytes(), dots].concat();
            raw.fails("dots", op::MKDIR, ROOT_ID, &body, Errno::EXIST);
            let removed = raw.client.send(op::RMDIR, ROOT_ID, dots);
            assert!(matches!(removed, Answer::Error(_)), "{removed:?}");
            let removed = raw.client.send(op::UNLINK, ROOT_ID, dots);
            assert!(matches!(removed, Answer::Error(_)), "{removed:?}");
        }
        raw.end(node, CONTENT);
    }
}

#[test]
fn nodes_that_do_not_exist_are_stale() {
    for format in FORMATS {
        let mut raw = Raw::new(format, 100);
        let node = raw.file("file", CONTENT);
        for stranger in [0, NO_NODE, u64::from(u32::MAX), 1 << 40, u64::MAX] {
            for opcode in 1..OPCODES as u32 {
                if matches!(opcode, op::DESTROY | op::INIT) {
                    continue;
                }
                let size = wire::op_size(opcode).unwrap_or(0);
                let body = [&vec![0; size][..], b"name\0value\0"].concat();
                let answer = raw.client.send(opcode, stranger, &body);
                // All control files are without extended attributes, also those that are not there.
                let no_attributes = opcode == op::LISTXATTR && is_control_inode(InodeNo(stranger));
                let harmless = no_attributes
                    || match opcode {
                        op::RELEASE | op::RELEASEDIR | op::STATFS | op::SYNCFS => true,
                        // The body asks for no bytes.
                        op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => true,
                        op::FORGET | op::BATCH_FORGET | op::INTERRUPT => answer == Answer::Silent,
                        _ => false,
                    };
                let is_error = matches!(answer, Answer::Error(_));
                let name = wire::op_name(opcode);
                assert!(harmless || is_error, "{name} {stranger}: {answer:?}");
            }
        }
        let attr = wire::GetattrIn::default();
        raw.fails(
            "getattr",
            op::GETATTR,
            NO_NODE,
            attr.as_bytes(),
            Errno::STALE,
        );
        for unknown in [0, 7, 19, 48, 54, 4095, 4096, u32::MAX] {
            raw.fails("opcode", unknown, ROOT_ID, &[0; 100], Errno::NOSYS);
        }
        raw.end(node, CONTENT);
    }
}

#[test]
fn forgetting_more_than_was_looked_up_is_harmless() {
    for format in FORMATS {
        let mut raw = Raw::new(format, 100);
        let node = raw.file("file", CONTENT);
        for count in [0, 1, 1, 7, u64::MAX] {
            raw.expect(
                "forget",
                op::FORGET,
                node,
                &count.to_le_bytes(),
                Answer::Silent,
            );
        }
        let all = [u64::MAX, 2, node, u64::MAX, ROOT_ID, u64::MAX];
        let batch = all.map(u64::to_le_bytes).concat();
        // A count of more nodes than the message holds.
        raw.fails("batch", op::BATCH_FORGET, 0, &batch, Errno::IO);
        let all = [2, node, u64::MAX, ROOT_ID, u64::MAX];
        let batch = all.map(u64::to_le_bytes).concat();
        raw.expect("batch", op::BATCH_FORGET, 0, &batch, Answer::Silent);
        raw.expect("found", op::LOOKUP, ROOT_ID, b"file\0", Answer::Done);
        raw.end(node, CONTENT);
    }
}

/// Counts that no file or message has.
fn counts_at_their_limits(raw: &mut Raw, node: u64) {
    let answer = raw.client.send(op::READ, node, &read(0, u32::MAX));
    assert_eq!(
        (answer, raw.client.out.len()),
        (Answer::Done, CONTENT.len())
    );
    for (size, data) in [(1, 0), (u32::MAX, 100), (5, 4)] {
        let arg = wire::WriteIn {
            size,
            ..Default::default()
        };
        let body = [arg.as_bytes(), &vec![1; data]].concat();
        raw.fails("write", op::WRITE, node, &body, Errno::IO);
    }
    raw.expect("empty", op::WRITE, node, &write(3, b""), Answer::Done);
    for opcode in [op::GETXATTR, op::LISTXATTR] {
        let size = wire::GetxattrIn {
            size: u32::MAX,
            ..Default::default()
        };
        let body = [size.as_bytes(), b"user.a\0"].concat();
        raw.client.send(opcode, node, &body);
    }
}

#[test]
fn offsets_and_counts_at_their_limits_are_errors_or_short() {
    for format in FORMATS {
        let mut raw = Raw::new(format, 100);
        let node = raw.file("file", CONTENT);
        let ((), peak) = peak_of(|| {
            for offset in [1 << 62, i64::MAX as u64, 1 << 63, u64::MAX] {
                for size in [0, 1, 4096, u32::MAX] {
                    let answer = raw.client.send(op::READ, node, &read(offset, size));
                    let empty = answer == Answer::Done && raw.client.out.is_empty();
                    let is_error = answer == Answer::Error(Errno::INVAL);
                    assert!(empty || is_error, "read {offset} {size}: {answer:?}");
                    for opcode in [op::READDIR, op::READDIRPLUS] {
                        let answer = raw.client.send(opcode, ROOT_ID, &read(offset, size));
                        let is_error = matches!(answer, Answer::Error(_));
                        let len = raw.client.out.len();
                        assert!(is_error || len <= 128 << 10, "{answer:?} {len}");
                    }
                }
                let answer = raw.client.send(op::WRITE, node, &write(offset, b"x"));
                let refused = [Errno::FBIG, Errno::INVAL].map(Answer::Error);
                assert!(refused.contains(&answer), "write {offset}: {answer:?}");
                let size = wire::SetattrIn {
                    valid: 8,
                    size: offset,
                    ..Default::default()
                };
                let answer = raw.client.send(op::SETATTR, node, size.as_bytes());
                assert!(refused.contains(&answer), "truncate {offset}: {answer:?}");
                let range = wire::FallocateIn {
                    offset,
                    length: u64::MAX,
                    ..Default::default()
                };
                let answer = raw.client.send(op::FALLOCATE, node, range.as_bytes());
                assert!(refused.contains(&answer), "allocate {offset}: {answer:?}");
                let copy = wire::CopyFileRangeIn {
                    off_in: 0,
                    nodeid_out: node,
                    off_out: offset,
                    len: u64::MAX,
                    ..Default::default()
                };
                let answer = raw.client.send(op::COPY_FILE_RANGE, node, copy.as_bytes());
                assert!(refused.contains(&answer), "copy {offset}: {answer:?}");
            }
            counts_at_their_limits(&mut raw, node);
        });
        assert!(peak < 16 * MIB, "{peak} bytes of memory");
        raw.end(node, CONTENT);
    }
}

/// Look-ups that are not forgotten cost a count for each file, not for each look-up.
#[test]
fn a_million_look_ups_without_forget_stay_within_memory() {
    // All different in a long run.
    let files = std::env::var("STEADFS_LOOKED_UP_FILES");
    let files = files.map_or(10_000, |number| number.parse().unwrap());
    for format in FORMATS {
        // The counts are the same code for all formats; what a format keeps for a file shows after few look-ups.
        let look_ups = match format {
            "f2fs" => 100_000.max(2 * files),
            _ => 1_000_000.max(2 * files),
        };
        let mut raw = Raw::new(format, files);
        let node = raw.file("file", CONTENT);
        let arg = wire::MknodIn {
            mode: 0o100_644,
            ..Default::default()
        };
        let ((), peak) = peak_of(|| {
            for number in 0..files {
                let name = format!("{number}\0");
                let body = [arg.as_bytes(), name.as_bytes()].concat();
                raw.expect("mknod", op::MKNOD, ROOT_ID, &body, Answer::Done);
            }
            for number in 0..look_ups - files {
                let name = format!("{}\0", number % files);
                raw.expect("lookup", op::LOOKUP, ROOT_ID, name.as_bytes(), Answer::Done);
            }
        });
        println!("{format}: {files} files, {} KiB", peak >> 10);
        // The cache, and what a server may use beside it.
        assert!(peak < (8 + 64) * MIB, "{format}: {peak} bytes of memory");
        raw.end(node, CONTENT);
    }
}
