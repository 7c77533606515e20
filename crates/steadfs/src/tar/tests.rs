//! Archives that no program writes, and those that break the rules.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;

use steadfs_vfs::FileKind;

use super::header::{Header, checksum};
use super::{BLOCK, Node, TarError, TarTree, kind, padding, pax};
use crate::tools::{Progress, Report, ToolError};

/// Keeps the problems that are reported.
#[derive(Default)]
struct Problems(Vec<String>);

impl Progress for Problems {
    fn file(&mut self, _: &[u8], _: &[u8]) {}
    fn bytes(&mut self, _: u64) {}
    fn problem(&mut self, error: &ToolError) {
        self.0.push(error.to_string());
    }
}

/// An archive being made.
#[derive(Clone, Default)]
struct Archive(Vec<u8>);

impl Archive {
    fn header(mut self, header: Header<'_>) -> Self {
        self.0.extend(header.block());
        self
    }

    fn data(mut self, data: &[u8]) -> Self {
        self.0.extend(data);
        self.0.resize(self.0.len() + padding(data.len() as u64), 0);
        self
    }

    fn member(self, kind: u8, name: &str, data: &[u8]) -> Self {
        let header = Header {
            name: name.as_bytes(),
            mode: 0o644,
            size: data.len() as u64,
            kind,
            ..Header::default()
        };
        self.header(header).data(data)
    }

    fn link(self, kind: u8, name: &str, to: &str) -> Self {
        self.header(Header {
            name: name.as_bytes(),
            link: to.as_bytes(),
            kind,
            ..Header::default()
        })
    }

    fn records(self, records: &[(&str, &str)]) -> Self {
        let mut data = Vec::new();
        for (key, value) in records {
            pax::push(&mut data, key.as_bytes(), value.as_bytes());
        }
        self.member(kind::PAX, "x", &data)
    }

    fn end(mut self) -> Self {
        self.0.extend([0; 2 * BLOCK]);
        self
    }

    fn read(&self) -> Result<(TarTree, Report, Vec<String>), TarError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&self.0).unwrap();
        file.rewind().unwrap();
        let mut problems = Problems::default();
        let (tree, report) = TarTree::read(file, Path::new("a.tar"), &mut problems, &|| false)?;
        Ok((tree, report, problems.0))
    }

    #[track_caller]
    fn fails(&self, words: &str) {
        let error = self.read().err().map(|error| error.to_string());
        assert!(
            error.as_ref().is_some_and(|error| error.contains(words)),
            "{error:?}"
        );
    }
}

fn find<'t>(tree: &'t TarTree, path: &str) -> Option<&'t Node> {
    let mut node = tree.root();
    for name in path.split('/') {
        node = tree.node(*node.entries.get(name.as_bytes())?);
    }
    Some(node)
}

fn content(tree: &TarTree, path: &str) -> Vec<u8> {
    let node = find(tree, path).unwrap();
    let mut buffer = vec![9; 1 << 16];
    let n = tree.read_content(node, &mut buffer, 0).unwrap();
    buffer.truncate(n);
    buffer
}

#[test]
fn names_make_the_tree_that_tar_makes() {
    let archive = Archive::default()
        .member(kind::REGULAR, "a/b/file", b"old")
        .link(kind::HARD_LINK, "a/hard", "a/b/file")
        .member(kind::REGULAR, "./a//b/./file", b"new")
        .member(kind::REGULAR, "/absolute", b"x")
        .member(kind::REGULAR, "a/../../etc/passwd", b"y")
        .link(kind::SYMLINK, "lib", "usr/lib")
        .member(kind::REGULAR, "lib/in", b"z")
        .link(kind::SYMLINK, "up", "../../../usr")
        .member(kind::REGULAR, "up/out", b"w")
        .member(kind::DIRECTORY, "a/", b"")
        .link(kind::HARD_LINK, "lost", "none")
        .member(kind::REGULAR, "a", b"a file")
        .member(kind::REGULAR, "absolute/below", b"")
        .end();
    let (tree, report, problems) = archive.read().unwrap();
    assert_eq!(content(&tree, "a/b/file"), b"new");
    assert_eq!(content(&tree, "a/hard"), b"old");
    assert_eq!(find(&tree, "a/hard").unwrap().names, 1);
    assert_eq!(content(&tree, "absolute"), b"x");
    assert_eq!(content(&tree, "usr/lib/in"), b"z");
    assert_eq!(content(&tree, "usr/out"), b"w");
    assert_eq!(find(&tree, "lib").unwrap().kind, FileKind::Symlink);
    assert!(find(&tree, "a").unwrap().is_member && !find(&tree, "a/b").unwrap().is_member);
    assert!(find(&tree, "etc").is_none());
    let words = [
        "'..'",
        "does not have",
        "directory with files",
        "a file lies",
    ];
    for (problem, word) in problems.iter().zip(words) {
        assert!(problem.contains(word), "{problem}");
    }
    assert_eq!((report.failed, problems.len()), (4, 4));
}

/// POSIX: no data follow these, and the size of a directory is only a hint.
#[test]
fn members_without_data_have_none_whatever_their_size() {
    let sized = |archive: Archive, kind, name: &str, size| {
        archive.header(Header {
            name: name.as_bytes(),
            link: b"file",
            mode: 0o755,
            size,
            kind,
            ..Header::default()
        })
    };
    let mut archive = Archive::default();
    let kinds = [
        (kind::DIRECTORY, "dir", FileKind::Directory),
        (kind::FIFO, "fifo", FileKind::Fifo),
        (kind::SYMLINK, "link", FileKind::Symlink),
        (kind::CHAR_DEVICE, "char", FileKind::CharDevice),
        (kind::BLOCK_DEVICE, "block", FileKind::BlockDevice),
    ];
    for (kind, name, _) in kinds {
        archive =
            sized(archive, kind, name, 512).member(kind::REGULAR, &format!("{name}-next"), b"");
        archive = archive.records(&[("size", "700")]);
        archive = sized(archive, kind, &format!("{name}2"), 0);
    }
    let archive = archive.member(kind::REGULAR, "file", b"content");
    // An incremental archive's directory has data.
    let archive = archive.member(kind::GNU_DIRECTORY, "dump", b"Yfile\0\0");
    let (tree, report, problems) = archive
        .member(kind::REGULAR, "last", b"end")
        .end()
        .read()
        .unwrap();
    assert!(report.is_complete() && problems.is_empty(), "{problems:?}");
    for (_, name, kind) in kinds {
        assert_eq!(find(&tree, name).unwrap().kind, kind);
        assert_eq!(find(&tree, &format!("{name}2")).unwrap().kind, kind);
        assert_eq!(
            find(&tree, &format!("{name}-next")).unwrap().kind,
            FileKind::Regular
        );
    }
    assert_eq!(find(&tree, "dump").unwrap().kind, FileKind::Directory);
    assert_eq!(content(&tree, "file"), b"content");
    assert_eq!(content(&tree, "last"), b"end");
}

/// As of a layer or an incremental archive.
#[test]
fn a_hard_link_to_a_missing_file_makes_nothing() {
    let archive = Archive::default()
        .link(kind::HARD_LINK, "bin/b", "usr/share/x/a")
        .member(kind::REGULAR, "usr", b"a file")
        .end();
    let (tree, report, problems) = archive.read().unwrap();
    assert_eq!((report.failed, problems.len()), (1, 1), "{problems:?}");
    assert_eq!(content(&tree, "usr"), b"a file");
    assert!(find(&tree, "bin").is_none());
}

#[test]
fn damage_and_other_formats_are_named() {
    let good = Archive::default()
        .member(kind::REGULAR, "file", &[1; 1000])
        .end();
    drop(good.read().unwrap());
    let mut damaged = good.clone();
    damaged.0[3 * BLOCK - 1] = 7;
    drop(damaged.read().unwrap());
    damaged.0[1] ^= 1;
    damaged.fails("byte 0: a header's checksum is wrong");
    for (len, words) in [
        (2 * BLOCK, "within a member"),
        (3 * BLOCK, "without the two blocks"),
        (3 * BLOCK + 5, "cut short"),
        (100, "no tar archive"),
        (0, "no tar archive"),
    ] {
        let mut cut = good.clone();
        cut.0.truncate(len);
        cut.fails(words);
    }
    let mut zstd = good.clone();
    zstd.0[..4].copy_from_slice(&[0x28, 0xb5, 0x2f, 0xfd]);
    zstd.fails("zstd -dc a.tar | steadfs format -d -");
    Archive(b"PK\x03\x04".repeat(500)).fails("no tar archive");
    drop(Archive(vec![0; 10_240]).read().unwrap());
    let mut image = Archive(vec![0; 1024]);
    image.0.extend([1; 4096]);
    image.fails("no tar archive");
    let parts = Archive::default()
        .member(kind::CONTINUED, "rest", b"")
        .end();
    parts.fails("continued from another archive");
}

#[test]
fn lengths_are_checked_before_memory_is_taken() {
    let lie = |kind, size: u64| {
        let header = Header {
            name: b"x",
            kind,
            size,
            ..Header::default()
        };
        Archive::default().header(header)
    };
    lie(kind::PAX, 1 << 32)
        .end()
        .fails("pax records of 4294967296 bytes");
    lie(kind::LONG_NAME, 1 << 30)
        .end()
        .fails("a name of 1073741824 bytes");
    lie(kind::REGULAR, 1 << 32).end().fails("cut short");
    let size = u64::MAX.to_string();
    let huge = |archive: Archive| archive.member(kind::REGULAR, "x", b"").end();
    huge(Archive::default().records(&[("size", &size)])).fails("too large");
    let mut names = Archive::default();
    for _ in 0..17 {
        names = names.member(kind::LONG_NAME, "x", b"name\0");
    }
    huge(names).fails("more than 16 headers");
    let entries = Archive::default().records(&[("GNU.sparse.map", &"0,0,".repeat(1 << 20))]);
    huge(entries).fails("is wrong");
    let pairs = "0,0,".repeat((1 << 20) + 1) + "0,0";
    huge(Archive::default().records(&[("GNU.sparse.map", &pairs)]))
        .fails("more than 1048576 pieces");
    let deep = "d/".repeat(5000);
    let (_, report, _) = huge(Archive::default().records(&[("path", &deep)]))
        .read()
        .unwrap();
    assert_eq!(report.failed, 1);
}

#[test]
fn attributes_and_links_of_a_member_are_bounded() {
    let many = |kind, value: &str, headers: u32| {
        let mut archive = Archive::default();
        for header in 0..headers {
            let mut data = Vec::new();
            for n in 0..4000 / headers {
                let key = format!("SCHILY.xattr.user.{header}.{n}");
                pax::push(&mut data, key.as_bytes(), value.as_bytes());
            }
            archive = archive.member(kind, "x", &data);
        }
        archive.member(kind::REGULAR, "x", b"").end()
    };
    for kind in [kind::PAX, kind::GLOBAL] {
        let value = "v".repeat(4500);
        many(kind, &value, 2).fails("attributes of one member need more than 16 MiB");
        let (tree, ..) = many(kind, &value[..2000], 2).read().unwrap();
        assert_eq!(find(&tree, "x").unwrap().xattrs.len(), 4000);
    }
    let target = "../".repeat(1366);
    let (tree, report, problems) = Archive::default()
        .records(&[("linkpath", &target)])
        .link(kind::SYMLINK, "l", "")
        .link(kind::SYMLINK, "s", &target[..93])
        .member(kind::REGULAR, "l/x", b"")
        .member(kind::REGULAR, "s/y", b"")
        .end()
        .read()
        .unwrap();
    assert!(
        report.failed == 1 && problems[0].contains("more than 4095 bytes"),
        "{problems:?}"
    );
    assert!(find(&tree, "y").is_some());
}

#[test]
fn maps_of_sparse_files_must_fit_their_data() {
    let version_1 = |map: &str, size: &str, data: &[u8]| {
        let mut content = map.as_bytes().to_vec();
        content.resize(BLOCK, 0);
        content.extend(data);
        let records = [
            ("GNU.sparse.major", "1"),
            ("GNU.sparse.minor", "0"),
            ("GNU.sparse.name", "sparse"),
            ("GNU.sparse.realsize", size),
        ];
        Archive::default()
            .records(&records)
            .member(kind::REGULAR, "x", &content)
            .end()
    };
    let (tree, ..) = version_1("2\n1\n2\n6\n1\n", "9", b"abc").read().unwrap();
    assert_eq!(content(&tree, "sparse"), b"\0ab\0\0\0c\0\0");
    let node = find(&tree, "sparse").unwrap();
    assert_eq!(
        (node.next_data(0), node.next_data(2)),
        (Some((1, 3)), Some((2, 3)))
    );
    assert_eq!((node.next_data(3), node.next_data(7)), (Some((6, 7)), None));
    version_1("2\n6\n1\n1\n2\n", "9", b"abc").fails("has no order");
    version_1("1\n8\n3\n", "9", b"abc").fails("has no order");
    version_1("1\n0\n18446744073709551615\n", "9", b"abc").fails("has no order");
    version_1("1\n0\n2\n", "9", b"abc").fails("does not fit its data");
    version_1("99999999\n", "9", b"abc").fails("more than 1048576 pieces");
    version_1("3\n1\n", "9", b"").fails("no list of numbers");
    version_1("x", "9", b"").fails("no list of numbers");
}

/// GNU's old format: a map in the header, and in a block after it.
#[test]
fn old_maps_continue_after_the_header() {
    let header = Header {
        name: b"old",
        size: 6,
        kind: kind::GNU_SPARSE,
        ..Header::default()
    };
    let mut block = header.block();
    block[257..265].copy_from_slice(b"ustar  \0");
    block[345..].fill(0);
    let entry = |start: u32, len: u32| format!("{start:011o}\0{len:011o}\0").into_bytes();
    for n in 0..4u32 {
        let at = 386 + 24 * n as usize;
        block[at..at + 24].copy_from_slice(&entry(2 * n, 1));
    }
    block[482] = 1;
    block[483..494].copy_from_slice(b"00000000024");
    let sum = checksum(&block);
    block[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
    let mut more = [0; BLOCK];
    more[..24].copy_from_slice(&entry(10, 2));
    let mut archive = Archive(block.to_vec());
    archive.0.extend(more);
    let (tree, ..) = archive.data(b"abcdef").end().read().unwrap();
    assert_eq!(content(&tree, "old"), b"a\0b\0c\0d\0\0\0ef\0\0\0\0\0\0\0\0");
}

/// A stream has no end that could be compared with a promised size.
#[test]
fn streams_are_kept_in_a_file() {
    let archive = Archive::default()
        .member(kind::REGULAR, "one", &[1; 700])
        .member(kind::REGULAR, "two", &[2; 513])
        .end();
    let read = |bytes: &[u8]| {
        let (input, mut output) = std::io::pipe().unwrap();
        output.write_all(bytes).unwrap();
        drop(output);
        let input = File::from(std::os::fd::OwnedFd::from(input));
        TarTree::read(input, Path::new("-"), &mut Problems::default(), &|| false)
    };
    let (tree, _) = read(&archive.0).unwrap();
    assert_eq!(content(&tree, "one"), [1; 700]);
    assert_eq!(content(&tree, "two"), [2; 513]);
    assert!(read(&archive.0[..1000]).is_err());
}

/// Without an end of the stream, which its sender keeps open.
#[test]
fn a_silent_sender_is_not_waited_for_after_a_signal() {
    let archive = Archive::default().member(kind::REGULAR, "one", &[1; 700]);
    // In front of the first header, in data, in padding and in front of a header.
    for len in [0, 1000, 1300, archive.0.len()] {
        let (input, mut sender) = std::io::pipe().unwrap();
        sender.write_all(&archive.0[..len]).unwrap();
        let input = File::from(std::os::fd::OwnedFd::from(input));
        let asked = std::cell::Cell::new(0);
        let stopped = || asked.replace(asked.get() + 1) > 1;
        let read = TarTree::read(input, Path::new("-"), &mut Problems::default(), &stopped);
        assert!(read.is_err(), "{len}");
        drop(sender);
    }
}
