//! The tools over a volume in memory: what goes in comes out the same.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../fuse/tests/common/memfs/mod.rs"]
#[allow(dead_code, reason = "the mounted tests use the rest")]
mod memfs;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use memfs::MemFs;
use steadfs::tools::{
    CopyOptions, Existing, ListOptions, Listings, Progress, Quiet, Report, Selection, ToolError,
    child, copy_between, copy_in, copy_out, glob, list, owner_cx, read_dir, resolve,
    resolve_parent,
};
use steadfs_vfs::{Attr, FileKind, FileSystem, FsError, SetXattr};

/// Keeps what a copy has reported, one sentence each.
#[derive(Default)]
struct Heard(Vec<String>);

impl Progress for Heard {
    fn file(&mut self, _: &[u8], _: &[u8]) {}
    fn bytes(&mut self, _: u64) {}
    fn problem(&mut self, error: &ToolError) {
        self.0.push(error.to_string());
    }
}

fn faithful() -> CopyOptions {
    CopyOptions::default()
}

fn put(fs: &MemFs, from: &Path, to: &str) -> Result<Report, ToolError> {
    copy_in(fs, &owner_cx(), from, to.as_bytes(), faithful(), &mut Quiet)
}

fn get(fs: &MemFs, from: &str, to: &Path) -> Result<Report, ToolError> {
    out_of(fs, from, to, faithful(), &mut Quiet)
}

/// Copies all that is at `from`.
fn out_of(
    fs: &MemFs,
    from: &str,
    to: &Path,
    options: CopyOptions,
    progress: &mut dyn Progress,
) -> Result<Report, ToolError> {
    let (from, all) = (from.as_bytes(), Selection::default());
    copy_out(fs, &owner_cx(), from, to, options, all, progress)
}

fn attr_of(fs: &MemFs, path: &str) -> Attr {
    let found = resolve(fs, &owner_cx(), path.as_bytes(), false).expect(path);
    found.attr().clone()
}

/// No lookup count may be left when the tools are done.
fn check_counts(fs: &MemFs) {
    let (_, counts) = fs.alive();
    assert_eq!(counts, 0, "lookup counts left");
}

/// A small tree of everything: needs root for the device node and the owners.
fn make_tree(top: &Path) {
    fs::create_dir_all(top.join("dir/deeper")).unwrap();
    fs::write(top.join("dir/file"), b"content").unwrap();
    fs::hard_link(top.join("dir/file"), top.join("second name")).unwrap();
    symlink("dir/file", top.join("link")).unwrap();
    symlink("/dir", top.join("absolute")).unwrap();
    symlink("loop", top.join("loop")).unwrap();
    let sparse = File::create(top.join("sparse")).unwrap();
    sparse.write_all_at(b"head", 0).unwrap();
    sparse.write_all_at(&[7; 3 << 20], 8 << 20).unwrap();
    sparse.set_len(64 << 20).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    for (name, kind, device) in [
        (
            "node",
            rustix::fs::FileType::CharacterDevice,
            rustix::fs::makedev(300, 70_000),
        ),
        ("pipe", rustix::fs::FileType::Fifo, 0),
        ("socket", rustix::fs::FileType::Socket, 0),
    ] {
        rustix::fs::mknodat(rustix::fs::CWD, top.join(name), kind, mode, device).unwrap();
    }
    std::os::unix::fs::chown(top.join("dir/file"), Some(12), Some(34)).unwrap();
    std::os::unix::fs::lchown(top.join("link"), Some(56), Some(78)).unwrap();
    fs::set_permissions(top.join("dir/file"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(top.join("dir"), fs::Permissions::from_mode(0o2755)).unwrap();
    let time = std::time::Duration::new(1_234_567_890, 123_456_789);
    let times = fs::FileTimes::new()
        .set_accessed(std::time::UNIX_EPOCH + time)
        .set_modified(std::time::UNIX_EPOCH + 2 * time);
    for name in ["sparse", "dir"] {
        let file = File::open(top.join(name)).unwrap();
        file.set_times(times).unwrap();
    }
}

fn same(a: &Path, b: &Path) {
    let (m, n) = (a.symlink_metadata().unwrap(), b.symlink_metadata().unwrap());
    let shown = a.display();
    assert_eq!(m.mode(), n.mode(), "{shown}");
    assert_eq!((m.uid(), m.gid()), (n.uid(), n.gid()), "{shown}");
    assert_eq!(m.rdev(), n.rdev(), "{shown}");
    assert_eq!(
        (m.mtime(), m.mtime_nsec()),
        (n.mtime(), n.mtime_nsec()),
        "{shown}"
    );
    if m.is_dir() {
        let names = |p: &Path| {
            let mut names: Vec<_> = fs::read_dir(p)
                .unwrap()
                .map(|e| e.unwrap().file_name())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(a), names(b), "{shown}");
        for name in names(a) {
            same(&a.join(&name), &b.join(&name));
        }
    } else if m.is_symlink() {
        assert_eq!(fs::read_link(a).unwrap(), fs::read_link(b).unwrap());
    } else if m.is_file() {
        assert_eq!((m.len(), m.nlink()), (n.len(), n.nlink()), "{shown}");
        assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "{shown}");
        assert!(n.blocks() <= m.blocks() + 8, "{shown}: holes were filled");
    }
}

/// A file system and a folder with the same tree of 12 files, and the folder that it was copied from.
struct Copied {
    dir: tempfile::TempDir,
    fs: MemFs,
}

impl Copied {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let copied = Self {
            dir,
            fs: MemFs::new(),
        };
        make_tree(&copied.from());
        let report = put(&copied.fs, &copied.from(), "/").unwrap();
        assert_eq!(report.files, 12, "{report:?}");
        assert!(report.is_complete(), "{report:?}");
        let bytes = report.bytes;
        assert!(bytes < 4 << 20, "holes were copied: {bytes}");
        let report = get(&copied.fs, "/", &copied.to()).unwrap();
        assert_eq!(report.files, 12, "{report:?}");
        assert!(report.is_complete(), "{report:?}");
        copied
    }

    fn from(&self) -> PathBuf {
        self.dir.path().join("from")
    }

    fn to(&self) -> PathBuf {
        self.dir.path().join("to")
    }

    /// Copies the tree to where it is already.
    fn again(&self, existing: Existing) -> (Report, Vec<String>) {
        let options = CopyOptions {
            existing,
            ..faithful()
        };
        let mut heard = Heard::default();
        let to = self.to();
        let report = out_of(&self.fs, "/", &to, options, &mut heard).unwrap();
        same(&self.from(), &to);
        (report, heard.0)
    }
}

#[test]
fn a_tree_goes_in_and_out_unchanged() {
    let copied = Copied::new();
    let attr = attr_of(&copied.fs, "/dir/file");
    assert_eq!(
        (attr.uid, attr.gid, attr.perm, attr.nlink),
        (12, 34, 0o4751, 2)
    );
    assert_eq!(attr.ino, attr_of(&copied.fs, "second name").ino);
    assert!(attr_of(&copied.fs, "sparse").blocks < 10_000);
    same(&copied.from(), &copied.to());
    check_counts(&copied.fs);
}

/// A tree is copied once more into what is there: folders are taken, and files are treated as the options say.
#[test]
fn a_tree_goes_over_an_equal_one() {
    let copied = Copied::new();
    let file = copied.to().join("dir/file");
    match get(&copied.fs, "/dir/file", &file) {
        Err(ToolError::Host { path, source }) => {
            assert_eq!(path, file);
            assert_eq!(source.kind(), std::io::ErrorKind::AlreadyExists);
        }
        other => panic!("{other:?}"),
    }
    let (report, heard) = copied.again(faithful().existing);
    // All that is no folder, and each was reported.
    assert_eq!((report.failed, heard.len()), (9, 9), "{heard:?}");
    let last = "File exists (os error 17)";
    assert!(heard[0].ends_with(last), "{heard:?}");
    for existing in [Existing::Overwrite, Existing::Force, Existing::Replace] {
        let (report, heard) = copied.again(existing);
        assert!(report.is_complete(), "{existing:?}: {heard:?}");
        let over = CopyOptions {
            existing,
            ..faithful()
        };
        let mut heard = Heard::default();
        let report = copy_in(
            &copied.fs,
            &owner_cx(),
            &copied.to(),
            b"/",
            over,
            &mut heard,
        )
        .unwrap();
        assert!(report.is_complete(), "{existing:?}: {:?}", heard.0);
    }
    let (report, heard) = copied.again(Existing::Skip);
    assert!(report.is_complete(), "{heard:?}");
    assert_eq!(report.files, 3, "{report:?}");
    check_counts(&copied.fs);
}

#[test]
fn single_files_get_the_name_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), b"one").unwrap();
    let fs = MemFs::new();
    assert!(put(&fs, &dir.path().join("a"), "b").unwrap().is_complete());
    let again = put(&fs, &dir.path().join("a"), "/b").unwrap_err();
    assert_eq!(again.to_string(), "/b: file exists");
    let how = CopyOptions {
        owners: false,
        existing: Existing::Overwrite,
        ..faithful()
    };
    fs::write(dir.path().join("a"), b"two!").unwrap();
    let copied = copy_in(
        &fs,
        &owner_cx(),
        &dir.path().join("a"),
        b"/b",
        how,
        &mut Quiet,
    )
    .unwrap();
    assert!(copied.is_complete());
    assert_eq!(fs.content(Path::new("/b")), b"two!");
    let missing = put(&fs, &dir.path().join("a"), "/no/such").unwrap_err();
    assert_eq!(missing.to_string(), "/no/such: no such file or directory");
    assert!(get(&fs, "b", &dir.path().join("c")).unwrap().is_complete());
    assert_eq!(fs::read(dir.path().join("c")).unwrap(), b"two!");
    check_counts(&fs);
}

/// Puts another file in a copy's place when its second name is about to be made.
struct Swapper(PathBuf);

impl Progress for Swapper {
    fn file(&mut self, source: &[u8], _: &[u8]) {
        if source == b"/second" {
            let kept = self.0.with_extension("kept");
            fs::rename(&self.0, kept).unwrap();
            fs::write(&self.0, "another's").unwrap();
        }
    }

    fn bytes(&mut self, _: u64) {}

    fn problem(&mut self, error: &ToolError) {
        let error = error.to_string();
        assert!(error.contains("was replaced"), "{error}");
    }
}

#[test]
fn further_names_are_the_copys_and_no_strangers() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("first"), "content").unwrap();
    fs::hard_link(source.join("first"), source.join("second")).unwrap();
    symlink("nowhere", source.join("link")).unwrap();
    fs::hard_link(source.join("link"), source.join("twin")).unwrap();
    let volume = MemFs::new();
    assert!(put(&volume, &source, "/").unwrap().is_complete());
    let whole = dir.path().join("whole");
    assert!(get(&volume, "/", &whole).unwrap().is_complete());
    for (one, two) in [("first", "second"), ("link", "twin")] {
        let number = |name| whole.join(name).symlink_metadata().unwrap().ino();
        assert_eq!(number(one), number(two));
    }
    let target = dir.path().join("target");
    let mut swapper = Swapper(target.join("first"));
    let copied = out_of(&volume, "/", &target, faithful(), &mut swapper);
    assert_eq!(copied.unwrap().failed, 1);
    assert!(!target.join("second").exists());
    check_counts(&volume);
}

/// Copies a file while it is exchanged with another one all the time: content, owner and mode are of the same file, or
/// the copy is refused.
#[test]
fn a_source_replaced_meanwhile_lends_no_attributes() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let (mine, secret) = (dir.path().join("mine"), dir.path().join("secret"));
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    fs::write(&mine, "mine").unwrap();
    fs::write(&secret, "secret").unwrap();
    std::os::unix::fs::chown(&mine, Some(1000), Some(1000)).unwrap();
    mode(&mine, 0o644);
    mode(&secret, 0o600);
    let done = AtomicBool::new(false);
    let copies = std::thread::scope(|scope| {
        scope.spawn(|| {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            let here = rustix::fs::CWD;
            while !done.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(here, &mine, here, &secret, flags).unwrap();
            }
        });
        let mut copies = Vec::new();
        for _ in 0..5_000 {
            let fs = MemFs::new();
            let copied = put(&fs, &mine, "/f").map_err(|error| error.to_string());
            copies.push(copied.map(|_| (attr_of(&fs, "/f"), fs.content(Path::new("/f")))));
        }
        done.store(true, Ordering::Relaxed);
        copies
    });
    for copied in copies {
        match copied {
            Ok((attr, content)) => {
                let owner_and_mode = (attr.uid, attr.perm);
                match &content[..] {
                    b"mine" => assert_eq!(owner_and_mode, (1000, 0o644)),
                    other => assert_eq!((other, owner_and_mode), (&b"secret"[..], (0, 0o600))),
                }
            }
            Err(error) => assert!(
                error.contains("mine: not copied: it was replaced"),
                "{error}"
            ),
        }
    }
}

#[test]
fn attributes_travel() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    fs::write(&path, b"").unwrap();
    let big = vec![b'v'; 3000];
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&path, "user.big", &big, flags).unwrap();
    rustix::fs::setxattr(&path, "trusted.small", b"", flags).unwrap();
    let fs = MemFs::new();
    assert!(put(&fs, &path, "/f").unwrap().is_complete());
    let ino = attr_of(&fs, "/f").ino;
    assert_eq!(fs.getxattr(&owner_cx(), ino, b"user.big").unwrap(), big);
    fs.setxattr(&owner_cx(), ino, b"user.more", b"x", SetXattr::Any)
        .unwrap();
    assert!(get(&fs, "/f", &dir.path().join("g")).unwrap().is_complete());
    let mut buffer = [0; 4096];
    let copy = dir.path().join("g");
    for (name, value) in [
        ("user.big", &big[..]),
        ("trusted.small", b""),
        ("user.more", b"x"),
    ] {
        let len = rustix::fs::getxattr(&copy, name, &mut buffer).unwrap();
        assert_eq!(&buffer[..len], value, "{name}");
    }
}

#[test]
fn paths_resolve_as_in_a_root_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    make_tree(&dir.path().join("t"));
    let fs = MemFs::new();
    assert!(put(&fs, &dir.path().join("t"), "/").unwrap().is_complete());
    let cx = owner_cx();
    let ino = |path: &str, follow| resolve(&fs, &cx, path.as_bytes(), follow).map(|h| h.ino());
    let file = ino("dir/file", false).unwrap();
    for path in [
        "link",
        "/absolute/file",
        "../../dir/../dir/./file",
        "//dir//file",
        "absolute/../link",
    ] {
        assert_eq!(ino(path, true), Ok(file), "{path}");
    }
    assert_ne!(ino("link", false), Ok(file));
    assert_eq!(ino("/", false).unwrap(), fs.root());
    assert_eq!(ino("..", false).unwrap(), fs.root());
    assert_eq!(ino("dir/file/", true), Err(FsError::NotDir));
    assert_eq!(ino("dir/file/x", true), Err(FsError::NotDir));
    assert_eq!(ino("none/x", true), Err(FsError::NotFound));
    assert!(matches!(ino("loop", true), Err(FsError::Loop)));
    let (parent, name) = resolve_parent(&fs, &cx, b"/absolute/new").unwrap();
    assert_eq!(
        (parent.ino(), &name[..]),
        (ino("dir", false).unwrap(), &b"new"[..])
    );
    assert!(resolve_parent(&fs, &cx, b"/").is_err());
    assert!(resolve_parent(&fs, &cx, b"/dir/..").is_err());
    drop(parent);
    check_counts(&fs);
}

#[test]
fn patterns_pass_over_what_leads_nowhere() {
    let copied = Copied::new();
    let matches = |pattern: &str| {
        let found = glob(&copied.fs, &owner_cx(), pattern.as_bytes()).expect(pattern);
        let found = found
            .into_iter()
            .map(|path| String::from_utf8(path).unwrap());
        found.collect::<Vec<_>>()
    };
    // Of the entries one is a circle of links.
    assert_eq!(matches("/*/file"), ["/absolute/file", "/dir/file"]);
    assert_eq!(matches("/loop/*"), Vec::<String>::new());
    let long = "n".repeat(300);
    assert_eq!(matches(&format!("/*/{long}")), Vec::<String>::new());
}

#[test]
fn listings_are_sorted_and_complete() {
    let dir = tempfile::tempdir().unwrap();
    make_tree(&dir.path().join("t"));
    fs::write(dir.path().join("t/.hidden"), b"").unwrap();
    let fs = MemFs::new();
    assert!(put(&fs, &dir.path().join("t"), "/").unwrap().is_complete());
    let names = |path: &str, options| -> Vec<String> {
        let listing = list(&fs, &owner_cx(), path.as_bytes(), options).unwrap();
        assert!(listing.errors.is_empty());
        listing
            .files
            .into_iter()
            .map(|f| String::from_utf8(f.name).unwrap())
            .collect()
    };
    let plain = ListOptions::default();
    let all = [
        "absolute",
        "dir",
        "link",
        "loop",
        "node",
        "pipe",
        "second name",
        "socket",
        "sparse",
    ];
    assert_eq!(names("/", plain), all);
    let shown = ListOptions { all: true, ..plain };
    assert_eq!(names("/", shown)[0], ".hidden");
    for link in ["link", "loop"] {
        assert_eq!(names(link, plain), [link]);
    }
    assert_eq!(names("absolute", plain), ["deeper", "file"]);
    let long = ListOptions {
        no_follow: true,
        ..plain
    };
    assert_eq!(names("absolute", long), ["absolute"]);
    let itself = ListOptions {
        directory: true,
        ..plain
    };
    assert_eq!(names("/dir", itself), ["/dir"]);
    let files = list(&fs, &owner_cx(), b"/", plain).unwrap().files;
    assert_eq!(files[0].target.as_deref(), Some(&b"/dir"[..]));
    assert_eq!(files[4].kind, Some(FileKind::CharDevice));
    let rdev = files[4].known().unwrap().rdev;
    assert_eq!(steadfs::tools::device_numbers(rdev), (300, 70_000));
    check_counts(&fs);
}

/// What a directory's entries have is not read again from the files.
#[test]
fn names_are_listed_without_lookups() {
    let dir = tempfile::tempdir().unwrap();
    make_tree(&dir.path().join("t"));
    let fs = MemFs::new();
    assert!(put(&fs, &dir.path().join("t"), "/").unwrap().is_complete());
    let (cx, lookups) = (owner_cx(), || fs.lookups.load(Ordering::SeqCst));
    let listed = |names| {
        let before = lookups();
        let options = ListOptions {
            names,
            ..ListOptions::default()
        };
        let listings = Listings::new(&fs, &cx, b"/", options);
        let files = listings.flat_map(|listing| listing.unwrap().files);
        let shown = files.map(|file| (file.name, file.kind, file.ino));
        (shown.collect::<Vec<_>>(), lookups() - before)
    };
    let ((with, many), (without, few)) = (listed(false), listed(true));
    assert_eq!(with, without);
    assert!(many as usize >= with.len());
    // The directories `dir` and `dir/deeper` are found to be read.
    assert_eq!(few, 2);
    check_counts(&fs);
}

/// Folders in one another, in the innermost of them a file of two names.
fn make_deep(fs: &MemFs, depth: usize) {
    let cx = owner_cx();
    let mut dir = fs.root();
    for _ in 0..depth {
        dir = fs.mkdir(&cx, dir, b"d", 0o755).unwrap().ino;
    }
    let file = fs.mknod(&cx, dir, b"leaf", 0o100_640, 0).unwrap();
    fs.link(&cx, file.ino, dir, b"twin").unwrap();
}

/// Removes a tree that std would need too many descriptors for.
fn remove_deep(path: &Path) {
    let mut rm = std::process::Command::new("rm");
    assert!(rm.arg("-rf").arg(path).status().unwrap().success());
}

/// As deep as a path of Linux can be, below a folder that makes the paths longer than that.
#[test]
fn deep_trees_use_up_neither_stack_nor_descriptors() {
    const DEPTH: usize = 2047;
    let fs = MemFs::new();
    make_deep(&fs, DEPTH);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("o");
    assert_eq!(get(&fs, "/", &out).unwrap().files, DEPTH as u64 + 3);
    let copy = MemFs::new();
    assert_eq!(put(&copy, &out, "/").unwrap().files, DEPTH as u64 + 3);
    for fs in [&fs, &copy] {
        let cx = owner_cx();
        let listings = Listings::new(fs, &cx, b"/", ListOptions::default());
        let last = listings.map(Result::unwrap).last().unwrap();
        assert_eq!(last.path.len(), 2 * DEPTH);
        assert_eq!(last.files.len(), 2);
        assert_eq!(last.files[0].known().unwrap().nlink, 2);
        assert_eq!(read_dir(fs, &cx, fs.root()).unwrap().len(), 1);
        assert!(child(fs, &cx, fs.root(), b"d").is_ok());
    }
    remove_deep(&out);
}

#[test]
fn trees_of_absurd_depth_are_refused() {
    let fs = MemFs::new();
    make_deep(&fs, 5000);
    let cx = owner_cx();
    let dir = tempfile::tempdir().unwrap();
    let mut listings = Listings::new(&fs, &cx, b"/", ListOptions::default());
    let (mut out, mut between) = (Heard::default(), Heard::default());
    let folder = dir.path().join("o");
    let copied = out_of(&fs, "/", &folder, faithful(), &mut out).unwrap();
    assert_eq!((copied.failed, out.0.len()), (1, 1));
    let target = MemFs::new();
    let copied = copy_between((&fs, b"/"), (&target, b"/"), &cx, faithful(), &mut between).unwrap();
    assert_eq!((copied.failed, between.0.len()), (1, 1));
    let errors = [
        out.0.remove(0),
        between.0.remove(0),
        listings.find_map(Result::err).unwrap().to_string(),
    ];
    for said in errors {
        assert!(
            said.ends_with("more than 4096 folders lie in one another"),
            "{said}"
        );
        assert!(said.len() < 200, "{said}");
    }
    remove_deep(&dir.path().join("o"));
}
