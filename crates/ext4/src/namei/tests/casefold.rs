//! Case-insensitive directories.

use steadfs_base::InodeNo;
use steadfs_vfs::{FsError, InodeFlags, RenameFlags};

use crate::disk::test_images::Image;
use crate::options::MountOptions;
use crate::test_world::{ROOT, World};

const PLAIN: RenameFlags = RenameFlags {
    no_replace: false,
    exchange: false,
    whiteout: false,
};

fn image(flags: &str) -> Image {
    let flags = format!("encoding=utf8,encoding_flags={flags}");
    let options = ["-t", "ext4", "-b", "1024", "-O", "casefold", "-E", &flags];
    Image::make(&options, "16M")
}

/// A volume with a case-insensitive directory.
fn world(flags: &str) -> (World, InodeNo) {
    let world = World::open(image(flags));
    let dir = folded_dir(&world, b"dir");
    (world, dir)
}

fn folded_dir(world: &World, name: &[u8]) -> InodeNo {
    let dir = world.mkdir(ROOT, name).unwrap().ino;
    set(world, dir, InodeFlags::CASEFOLD).unwrap();
    dir
}

fn set(world: &World, ino: InodeNo, flag: InodeFlags) -> Result<(), FsError> {
    let old = world.fs.flags(&world.cx, ino).unwrap().flags;
    world.fs.set_flags(&world.cx, ino, old.union(flag))
}

#[test]
fn names_are_found_hashed_and_listed_by_their_folded_forms() {
    let (world, dir) = world("nostrict");
    let name = |n: u32| format!("Straße-ÄÖ-{n}-{}", "X".repeat(n as usize % 90));
    let other = |n: u32| {
        let x = "x".repeat(n as usize % 90);
        format!("STRASSE-a\u{308}\u{AD}o\u{308}-{n}-{x}")
    };
    let mut numbers = Vec::new();
    for n in 0..500 {
        numbers.push(world.file(dir, name(n).as_bytes()).unwrap().ino);
        assert_eq!(world.file(dir, other(n).as_bytes()), Err(FsError::Exists));
    }
    let world = world.reopen();
    assert!(
        world
            .fs
            .flags(&world.cx, dir)
            .unwrap()
            .flags
            .contains(InodeFlags::INDEX)
    );
    for n in (0..500).rev() {
        let found = world.lookup(dir, other(n).as_bytes()).unwrap();
        assert_eq!(found.ino, numbers[n as usize]);
        if n % 3 > 0 {
            world
                .fs
                .unlink(&world.cx, dir, other(n).as_bytes())
                .unwrap();
            assert_eq!(
                world.lookup(dir, name(n).as_bytes()),
                Err(FsError::NotFound)
            );
        }
    }
    let mut kept: Vec<_> = (0..500).step_by(3).map(|n| name(n).into_bytes()).collect();
    kept.sort();
    for batch in [1, 7, 1000] {
        let mut listed: Vec<_> = world
            .list(dir, batch)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        listed.retain(|name| name != b"." && name != b"..");
        listed.sort();
        assert_eq!(listed, kept);
    }
    world.close();
}

#[test]
fn a_name_keeps_its_spelling() {
    let (world, dir) = world("nostrict");
    let names = |world: &World| {
        let mut names = world.names(dir);
        names.sort();
        names
    };
    let rename =
        |from: &[u8], to: &[u8], flags| world.fs.rename(&world.cx, (dir, from), (dir, to), flags);
    let first = world.file(dir, b"First").unwrap().ino;
    let second = world.file(dir, b"Second").unwrap().ino;
    // Two spellings of one name are one file: nothing is renamed, as in Linux.
    rename(b"first", b"FIRST", PLAIN).unwrap();
    let no_replace = RenameFlags {
        no_replace: true,
        ..PLAIN
    };
    assert_eq!(rename(b"first", b"FIRST", no_replace), Err(FsError::Exists));
    assert_eq!(names(&world), [&b"First"[..], b"Second"]);
    // An exchange leaves both names.
    let exchange = RenameFlags {
        exchange: true,
        ..PLAIN
    };
    rename(b"FIRST", b"SECOND", exchange).unwrap();
    assert_eq!(world.lookup(dir, b"first").unwrap().ino, second);
    assert_eq!(world.lookup(dir, b"second").unwrap().ino, first);
    // A replaced name keeps its spelling.
    rename(b"second", b"FIRST", PLAIN).unwrap();
    assert_eq!(names(&world), [b"First"]);
    assert_eq!(world.lookup(dir, b"first").unwrap().ino, first);
    let linked = world.fs.link(&world.cx, first, dir, b"LiNk").unwrap().ino;
    world.forget(linked);
    assert_eq!(
        world.fs.link(&world.cx, first, dir, b"link").map(drop),
        Err(FsError::Exists)
    );
    assert_eq!(
        world.fs.symlink(&world.cx, dir, b"link", b"t").map(drop),
        Err(FsError::Exists)
    );
    assert_eq!(names(&world), [&b"First"[..], b"LiNk"]);
    world.close();
}

#[test]
fn directories_inherit_the_flag_which_only_empty_ones_gain_or_lose() {
    let (world, dir) = world("nostrict");
    let sub = world.mkdir(dir, b"Sub").unwrap();
    assert!(sub.flags.contains(InodeFlags::CASEFOLD));
    let file = world.file(sub.ino, b"File").unwrap();
    assert!(!file.flags.contains(InodeFlags::CASEFOLD));
    assert_eq!(world.lookup(sub.ino, b"FILE").unwrap().ino, file.ino);
    let lose = |ino| world.fs.set_flags(&world.cx, ino, InodeFlags::EXTENTS);
    assert_eq!(lose(sub.ino), Err(FsError::NotEmpty));
    world.fs.unlink(&world.cx, sub.ino, b"fILE").unwrap();
    lose(sub.ino).unwrap();
    world.file(sub.ino, b"a").unwrap();
    world.file(sub.ino, b"A").unwrap();
    assert_eq!(
        set(&world, sub.ino, InodeFlags::CASEFOLD),
        Err(FsError::NotEmpty)
    );
    let plain = world.file(ROOT, b"file").unwrap().ino;
    assert!(set(&world, plain, InodeFlags::CASEFOLD).is_err());
    world.fs.rmdir(&world.cx, dir, b"sub").unwrap_err();
    world.close();

    let world = World::make(&["-t", "ext4"], "16M");
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    assert!(matches!(
        set(&world, dir, InodeFlags::CASEFOLD),
        Err(FsError::NotSupported(_))
    ));
}

#[test]
fn bytes_that_are_not_utf_8_are_names_unless_the_encoding_is_strict() {
    let (world, dir) = world("nostrict");
    world.file(dir, b"A\xFF").unwrap();
    world.file(dir, b"a\xFF").unwrap();
    assert_eq!(world.file(dir, b"a\xFF"), Err(FsError::Exists));
    world.fs.unlink(&world.cx, dir, b"A\xFF").unwrap();
    assert_eq!(world.names(dir), [b"a\xFF"]);
    // The same as `.` and `..`.
    for name in ["\u{AD}.", ".\u{200D}."] {
        assert!(matches!(
            world.file(dir, name.as_bytes()),
            Err(FsError::Invalid(_))
        ));
        assert_eq!(world.lookup(dir, name.as_bytes()), Err(FsError::NotFound));
    }
    world.close();

    let (world, dir) = self::world("strict");
    for name in [&b"A\xFF"[..], b"\xED\xA0\x80"] {
        assert!(matches!(world.file(dir, name), Err(FsError::Invalid(_))));
        assert!(matches!(world.lookup(dir, name), Err(FsError::Invalid(_))));
        let moved = world.fs.rename(&world.cx, (dir, b"x"), (dir, name), PLAIN);
        assert!(moved.is_err());
        world.file(ROOT, name).unwrap();
    }
    world.close();
}

#[test]
fn inline_directories_move_out_and_stay_case_insensitive() {
    let options = ["-t", "ext4", "-I", "512", "-O", "casefold,inline_data"];
    let image = Image::make(&options, "16M");
    image.debugfs("mkdir dir");
    image.debugfs("write /dev/null dir/One");
    image.debugfs("sif dir flags 0x50000000");
    let world = World::open(image);
    let dir = world.lookup(ROOT, b"dir").unwrap().ino;
    assert_eq!(world.file(dir, b"ONE"), Err(FsError::Exists));
    world.file(dir, b"Two").unwrap();
    assert!(world.lookup(dir, b"one").is_ok() && world.lookup(dir, b"TWO").is_ok());
    world.close();
}

#[test]
fn unknown_encodings_and_flags_without_the_feature_are_refused() {
    let image = image("nostrict");
    image.debugfs("ssv encoding 9");
    let opened = crate::Ext4::open(
        image.device() as _,
        MountOptions::default(),
        crate::CacheSizes::of(64 << 20),
    );
    let Err(FsError::BadOption(why)) = opened else {
        panic!("an unknown encoding is refused");
    };
    assert!(why.contains("s_encoding 9"), "{why}");

    let image = Image::make(&["-t", "ext4"], "16M");
    image.debugfs("mkdir dir");
    image.debugfs("sif dir flags 0x40080000");
    let world = World::open(image);
    assert!(matches!(
        world.lookup(ROOT, b"dir"),
        Err(FsError::Corrupt(_))
    ));
}

/// One of 23 names is misplaced.
const STEP: u32 = 23;

/// A volume with names that a kernel placed which did not ignore the soft hyphen, and the numbers of these names.
fn with_misplaced_names() -> (Image, InodeNo, Vec<u32>) {
    let options = ["-t", "ext4", "-b", "1024", "-O", "casefold,^metadata_csum"];
    let world = World::open(Image::make(&options, "16M"));
    let dir = folded_dir(&world, b"dir");
    for n in 0..400 {
        world.file(dir, format!("ä{n:03}").as_bytes()).unwrap();
    }
    let image = world.close();
    let mut bytes = image.bytes();
    // In all copies of each block.
    for at in 0..bytes.len() - 5 {
        let number = str::from_utf8(&bytes[at..at + 5])
            .ok()
            .and_then(|name| name.strip_prefix('ä')?.parse::<u32>().ok());
        if number.is_some_and(|n| n % STEP == 0) {
            bytes[at..at + 2].copy_from_slice("\u{AD}".as_bytes());
        }
    }
    image.fill(&bytes);
    (image, dir, (0..400).step_by(STEP as usize).collect())
}

#[test]
fn names_that_another_kernel_placed_are_found() {
    let (image, dir, misplaced) = with_misplaced_names();
    let world = World::open(image);
    let orderly = || world.fs.orderly_dirs.contains(dir);
    for n in 0..400 {
        let (left, right) = (format!("{n:03}"), format!("A\u{308}{n:03}"));
        let is_left = misplaced.contains(&n);
        assert_eq!(world.lookup(dir, left.as_bytes()).is_ok(), is_left, "{n}");
        assert_eq!(world.lookup(dir, right.as_bytes()).is_ok(), !is_left, "{n}");
        let made = world.file(dir, if is_left { &left } else { &right }.as_bytes());
        assert_eq!(made, Err(FsError::Exists), "{n}");
    }
    assert!(!orderly());
    for n in misplaced {
        let name = format!("0\u{200D}{:02}", n % 100);
        let name = if n < 100 { name } else { format!("{n}") };
        world.fs.unlink(&world.cx, dir, name.as_bytes()).unwrap();
        let found = world.lookup(dir, name.as_bytes());
        assert_eq!(found, Err(FsError::NotFound));
        world.file(dir, name.as_bytes()).unwrap();
    }
    // Nothing is left to be found by reading the whole directory.
    assert_eq!(world.lookup(dir, b"missing"), Err(FsError::NotFound));
    assert!(orderly());
    world.close();
}

#[test]
fn the_superblock_may_rule_out_misplaced_names() {
    const ENCODING_FLAGS: usize = 1024 + 0x27E;
    let (image, dir, misplaced) = with_misplaced_names();
    let mut bytes = image.bytes();
    bytes[ENCODING_FLAGS] = 2;
    image.fill(&bytes);
    let world = World::open(image);
    let found = |n: &u32| world.lookup(dir, format!("{n:03}").as_bytes()).is_ok();
    let lost = misplaced.iter().filter(|n| !found(n)).count();
    // Some may lie in the right block by chance.
    assert!(lost > misplaced.len() / 2, "{lost}");
    world.fs.close().unwrap();
}
