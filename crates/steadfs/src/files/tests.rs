//! Files by their paths, compared with those of the host.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use steadfs_vfs::FileKind;

use super::*;
use crate::{F2fsFormatOptions, FormatOptions, Options};

struct World {
    dir: tempfile::TempDir,
    images: Vec<PathBuf>,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [ext4, f2fs] = ["ext4.img", "f2fs.img"].map(|name| dir.path().join(name));
        crate::format(&ext4, Some(32 << 20), &FormatOptions::default()).unwrap();
        crate::format_f2fs(&f2fs, Some(64 << 20), &F2fsFormatOptions::default()).unwrap();
        let images = vec![ext4, f2fs];
        Self { dir, images }
    }

    fn host(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Calls `work` with each volume, closes it and checks it.
    fn each(&self, work: impl Fn(&Volume)) {
        for image in &self.images {
            let volume = Volume::open(image).unwrap();
            work(&volume);
            volume.close().unwrap();
            drop(volume);
            check(image);
        }
    }
}

fn check(image: &Path) {
    let checked = crate::check(image, &Options::default(), &mut |_| {}).unwrap();
    assert!(checked.is_clean(), "{}", image.display());
}

#[test]
fn a_file_is_written_read_and_sought() {
    World::new().each(|volume| {
        let mut file = volume.open_file();
        let file = file.read(true).write(true).create_new(true);
        let mut file = file.permissions(0o640).open("/file").unwrap();
        file.write_all(b"0123456789").unwrap();
        assert_eq!(file.seek(SeekFrom::End(-4)).unwrap(), 6);
        file.write_all(b"abcdefgh").unwrap();
        assert_eq!(file.stream_position().unwrap(), 14);
        file.seek(SeekFrom::Start(3)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "345abcdefgh");
        assert_eq!(
            file.seek(SeekFrom::Current(-20)).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        file.set_len(100_000).unwrap();
        let mut tail = [1; 20];
        assert_eq!(file.read_at(&mut tail, 99_990).unwrap(), 10);
        assert_eq!(tail[..11], [[0; 10].as_slice(), &[1]].concat());
        file.sync_all().unwrap();
        let found = file.metadata().unwrap();
        assert_eq!((found.len(), found.mode()), (100_000, 0o100_640));
        // Without a name it lives until it is dropped.
        volume.remove_file("/file").unwrap();
        assert!(!volume.try_exists("/file").unwrap());
        file.write_at(b"!", 5).unwrap();
        assert_eq!(file.read_at(&mut tail, 5).unwrap(), 20);
        assert_eq!(tail[0], b'!');
    });
}

#[test]
fn appends_of_several_threads_are_all_there() {
    World::new().each(|volume| {
        let append = |thread: u32| {
            let mut file = volume.open_file();
            let mut file = file.append(true).create(true).open("log").unwrap();
            for n in 0..100 {
                // One call: what `writeln!` writes in pieces may have other threads' pieces between.
                let line = format!("thread {thread}, line {n:03}\n");
                file.write_all(line.as_bytes()).unwrap();
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || append(thread));
            }
        });
        let log = volume.read_to_string("log").unwrap();
        let lines: BTreeSet<&str> = log.lines().collect();
        assert_eq!(lines.len(), 300);
    });
}

/// What a call does: on a volume, and on the host at another root.
type Both = (
    fn(&Volume) -> io::Result<()>,
    fn(&dyn Fn(&str) -> PathBuf) -> io::Result<()>,
);

/// Calls that fail, but for the first.
const CALLS: [Both; 16] = [
    (
        |v| v.read("/dir/file").map(drop),
        |h| fs::read(h("dir/file")).map(drop),
    ),
    (
        |v| v.read("/none").map(drop),
        |h| fs::read(h("none")).map(drop),
    ),
    (
        |v| v.read("/dir").map(drop),
        |h| fs::read(h("dir")).map(drop),
    ),
    (|v| v.write("/dir", "x"), |h| fs::write(h("dir"), "x")),
    (
        |v| v.write("/none/file", "x"),
        |h| fs::write(h("none/file"), "x"),
    ),
    (
        |v| v.write("/dir/file/x", "x"),
        |h| fs::write(h("dir/file/x"), "x"),
    ),
    (|v| v.create_dir("/dir"), |h| fs::create_dir(h("dir"))),
    (
        |v| v.create_dir_all("/dir/file/x"),
        |h| fs::create_dir_all(h("dir/file/x")),
    ),
    (|v| v.remove_dir("/dir"), |h| fs::remove_dir(h("dir"))),
    (
        |v| v.remove_dir("/dir/file"),
        |h| fs::remove_dir(h("dir/file")),
    ),
    (
        |v| v.remove_dir_all("/dir/file"),
        |h| fs::remove_dir_all(h("dir/file")),
    ),
    (
        |v| v.rename("/none", "/x"),
        |h| fs::rename(h("none"), h("x")),
    ),
    (
        |v| v.hard_link("/dir/file", "/dir"),
        |h| fs::hard_link(h("dir/file"), h("dir")),
    ),
    (
        |v| v.read_link("/dir").map(drop),
        |h| fs::read_link(h("dir")).map(drop),
    ),
    (
        |v| v.read_dir("/dir/file").map(drop),
        |h| fs::read_dir(h("dir/file")).map(drop),
    ),
    (
        |v| {
            v.open_file()
                .write(true)
                .create_new(true)
                .open("/dir/file")
                .map(drop)
        },
        |h| {
            let mut how = fs::OpenOptions::new();
            how.write(true)
                .create_new(true)
                .open(h("dir/file"))
                .map(drop)
        },
    ),
];

#[test]
fn errors_are_those_of_the_host() {
    let world = World::new();
    fs::create_dir(world.host("dir")).unwrap();
    fs::write(world.host("dir/file"), "content").unwrap();
    world.each(|volume| {
        volume.create_dir("dir").unwrap();
        volume.write("dir/file", "content").unwrap();
        for (n, (ours, hosts)) in CALLS.iter().enumerate() {
            let ours = ours(volume).map_err(|error| error.kind());
            let hosts = hosts(&|path| world.host(path)).map_err(|error| error.kind());
            assert_eq!(ours, hosts, "call {n}");
            assert_eq!(ours.is_ok(), n == 0);
        }
        let error = volume.read("/dir/none").unwrap_err();
        assert_eq!(error.to_string(), "/dir/none: no such file or directory");
        let inner = error.get_ref().unwrap().downcast_ref::<VolumeIoError>();
        assert_eq!(inner.unwrap().source, FsError::NotFound);
        // Options that make no sense together, as in std.
        let wrong: [fn(&mut OpenFile) -> &mut OpenFile; 3] = [
            |how| how.create(true),
            |how| how.read(true).truncate(true),
            |how| how.append(true).truncate(true),
        ];
        for set in wrong {
            let refused = set(&mut volume.open_file()).open("/dir/file").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        }
        let read_only = volume.file("/dir/file").unwrap();
        assert!(read_only.write_at(b"x", 0).is_err());
        assert!(read_only.set_len(0).is_err());
    });
}

#[test]
fn links_lead_inside_the_volume() {
    World::new().each(|volume| {
        volume.create_dir_all("/a/b").unwrap();
        volume.symlink("b/new", "/a/first").unwrap();
        volume.symlink("/a/first", "/second").unwrap();
        assert!(!volume.try_exists("/second").unwrap());
        assert!(volume.symlink_metadata("/second").unwrap().is_symlink());
        // A file is made where a link leads to.
        volume.write("/second", "content").unwrap();
        assert_eq!(volume.read("/a/b/new").unwrap(), b"content");
        assert_eq!(volume.read_link("/second").unwrap(), Path::new("/a/first"));
        volume.symlink("../../../../etc", "/a/b/up").unwrap();
        assert_eq!(
            volume.metadata("/a/b/up").unwrap_err().kind(),
            ErrorKind::NotFound
        );
        volume.create_dir("/etc").unwrap();
        assert!(volume.metadata("/a/b/up").unwrap().is_dir());
        volume.symlink("/loop", "/loop").unwrap();
        let looped = |error: io::Error| {
            let said = error.to_string();
            assert!(said.contains("too many levels of symbolic links"), "{said}");
        };
        looped(volume.write("/loop", "x").unwrap_err());
        looped(volume.metadata("/loop").map(drop).unwrap_err());
        volume.remove_dir_all("/a").unwrap();
        assert!(!volume.try_exists("/a").unwrap() && volume.try_exists("/etc").unwrap());
    });
}

#[test]
fn trees_are_walked_and_attributes_kept() {
    World::new().each(|volume| {
        for dir in ["x/y/z", "x/skipped/below"] {
            volume.create_dir_all(dir).unwrap();
        }
        volume.write("x/y/file", "1").unwrap();
        volume.hard_link("x/y/file", "x/other").unwrap();
        volume.rename("x/y/z", "x/z").unwrap();
        let mut walk = volume.walk("/x").unwrap();
        let mut seen = BTreeSet::new();
        while let Some(entry) = walk.next() {
            let entry = entry.unwrap();
            if entry.path().ends_with("skipped") {
                walk.skip_dir();
            }
            let depth = entry.path().components().count() - 3;
            assert_eq!(entry.depth(), depth);
            let is_dir = entry.file_type() == FileKind::Directory;
            assert_eq!(entry.metadata().unwrap().is_dir(), is_dir);
            seen.insert(entry.path());
        }
        let expected = ["/x/other", "/x/skipped", "/x/y", "/x/y/file", "/x/z"];
        assert_eq!(seen, expected.map(PathBuf::from).into());
        volume.set_owner("x/other", 1000, 100).unwrap();
        volume.set_permissions("x/other", 0o4711).unwrap();
        volume
            .set_xattr("x/other", "user.note", Some(b"text"))
            .unwrap();
        let found = volume.metadata("x/y/file").unwrap();
        assert_eq!(
            (found.mode(), found.uid(), found.gid()),
            (0o104_711, 1000, 100)
        );
        assert_eq!((found.nlink(), found.len()), (2, 1));
        assert!(found.allocated() >= 512);
        assert!(found.modified() >= found.accessed() && found.changed() >= found.modified());
        let xattrs = volume.xattrs("x/y/file").unwrap();
        assert_eq!(xattrs, [("user.note".into(), b"text".to_vec())]);
        volume.set_xattr("x/other", "user.note", None).unwrap();
        assert!(volume.xattrs("x/other").unwrap().is_empty());
        assert!(volume.usage().unwrap().blocks_free > 0);
        volume.sync().unwrap();
    });
}

#[test]
fn trees_are_copied_in_and_out() {
    let world = World::new();
    fs::create_dir_all(world.host("from/sub")).unwrap();
    fs::write(world.host("from/sub/file"), vec![7; 100_000]).unwrap();
    world.each(|volume| {
        let copied = volume.copy_in(world.host("from"), "/to").unwrap();
        assert_eq!(copied, 3);
        let out = world.host(&format!("out-{:?}", volume.kind()));
        assert_eq!(volume.copy_out("/to", &out).unwrap(), 3);
        assert_eq!(fs::read(out.join("sub/file")).unwrap(), vec![7; 100_000]);
        let again = volume.copy_out("/to", &out).unwrap_err();
        assert!(again.to_string().contains("sub/file"), "{again}");
        let none = volume.copy_out("/none", world.host("x")).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_dropped_volume_is_closed() {
    let world = World::new();
    for image in &world.images {
        let volume = Volume::open(image).unwrap();
        volume.write("/file", vec![1; 300_000]).unwrap();
        let file = volume.file("/file").unwrap();
        drop(volume);
        assert!(file.read_at(&mut [0; 10], 0).is_err());
        drop(file);
        check(image);
        let volume = Volume::open(image).unwrap();
        let report = volume.report();
        assert_eq!(
            (report.replayed_transactions, report.recovered_files),
            (0, 0)
        );
        assert_eq!(volume.read("/file").unwrap(), vec![1; 300_000]);
        volume.close().unwrap();
        assert!(volume.read("/file").is_err());
    }
    let text = world.host("text");
    fs::write(&text, "no volume".repeat(1000)).unwrap();
    let error: io::Error = Volume::open(&text).map(drop).unwrap_err().into();
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
}

#[test]
fn a_closed_volume_lists_nothing_more() {
    World::new().each(|volume| {
        for name in ["/one", "/two", "/three"] {
            volume.write(name, "").unwrap();
        }
        let (mut names, mut walk) = (volume.read_dir("/").unwrap(), volume.walk("/").unwrap());
        names.next().unwrap().unwrap();
        volume.close().unwrap();
        assert!(names.next().unwrap().is_err() && names.next().is_none());
        assert!(walk.next().unwrap().is_err() && walk.next().is_none());
        assert!(volume.usage().is_err() && volume.sync().is_err());
    });
}

#[test]
fn nodes_and_attributes_of_links_are_set() {
    World::new().each(|volume| {
        volume.create_dir_with("/dir", 0o1750).unwrap();
        assert_eq!(volume.metadata("/dir").unwrap().permissions(), 0o1750);
        volume.create_node("/null", 0o020_666, 0x103).unwrap();
        let node = volume.metadata("/null").unwrap();
        assert_eq!((node.mode(), node.rdev()), (0o020_666, 0x103));
        volume.symlink("dir", "/link").unwrap();
        let owner = |uid| SetAttr {
            uid: Some(uid),
            ..SetAttr::default()
        };
        volume.set_attributes("/link", false, &owner(5)).unwrap();
        volume.set_attributes("/link", true, &owner(6)).unwrap();
        assert_eq!(volume.symlink_metadata("/link").unwrap().uid(), 5);
        assert_eq!(volume.metadata("/dir").unwrap().uid(), 6);
        volume.set_xattr("/dir", "user.of", Some(b"dir")).unwrap();
        assert!(volume.symlink_xattrs("/link").unwrap().is_empty());
        assert_eq!(volume.xattrs("/link").unwrap().len(), 1);
    });
}

#[test]
fn data_and_holes_are_found() {
    use steadfs_vfs::Seek::{Data, Hole};
    World::new().each(|volume| {
        let file = volume.create("/sparse").unwrap();
        file.write_at(b"end", 1 << 20).unwrap();
        assert_eq!(file.seek_to(Data, 0).unwrap(), Some(1 << 20));
        assert_eq!(file.seek_to(Hole, 0).unwrap(), Some(0));
        assert_eq!(file.seek_to(Data, 2 << 20).unwrap(), None);
        assert_eq!(file.append(b"!").unwrap(), (1 << 20) + 3);
    });
}
