//! One test for each kind of hostile content, copied by root and by another user.

use super::*;

/// Content of a file that no copy may change.
const VICTIM: &str = "not changed";

/// The ways to copy a volume's content to the folder `out`.
const COPIES: [&[&str]; 4] = [
    &["extract", "a.img", "out"],
    &["extract", "-f", "a.img", "out"],
    &["cp", "-r", "a.img:/.", "out"],
    &["cp", "-af", "a.img:/.", "out"],
];

/// Calls `test` for each way to copy and each user, with an empty folder `out` and a folder `outside` that the copy could
/// write to, but must not.
fn each_copy(place: &Place, test: impl Fn(u32, &[&str], &Path)) {
    for user in [0, NOBODY] {
        for words in COPIES {
            let (out, outside) = (place.join("out"), place.join("outside"));
            for folder in [&out, &outside] {
                let _ = fs::remove_dir_all(folder);
                fs::create_dir(folder).unwrap();
                chown(folder, Some(user), Some(user)).unwrap();
            }
            let victim = outside.join("victim");
            fs::write(&victim, VICTIM).unwrap();
            fs::set_permissions(&victim, fs::Permissions::from_mode(0o666)).unwrap();
            let before = fs::metadata(&victim).unwrap();
            test(user, words, &out);
            let after = fs::metadata(&victim).unwrap();
            let (names, content) = (names(&outside), fs::read_to_string(&victim).unwrap());
            let shown = format!("user {user}: {words:?}");
            assert_eq!(names, ["victim"], "{shown}");
            assert_eq!(content, VICTIM, "{shown}");
            let facts = |of: &fs::Metadata| (of.ino(), of.mode(), of.uid(), of.nlink());
            assert_eq!(facts(&after), facts(&before), "{shown}");
        }
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Replaces names in a volume without checksums.
fn rename(image: &Path, pairs: &[(&[u8], &[u8])]) {
    let mut bytes = fs::read(image).unwrap();
    for (old, new) in pairs {
        assert_eq!(old.len(), new.len());
        let places: Vec<usize> = (0..bytes.len() - old.len())
            .filter(|at| bytes[*at..].starts_with(old))
            .collect();
        assert!(!places.is_empty(), "{old:?} is not in the image");
        for at in places {
            bytes[at..at + old.len()].copy_from_slice(new);
        }
    }
    fs::write(image, bytes).unwrap();
}

/// A volume of a kind whose names are not covered by checksums.
fn without_checksums(place: &Place, kind: &str) -> PathBuf {
    let image = place.join("a.img");
    let features: &[&str] = match kind {
        "f2fs" => &[],
        _ => &["-O", "^metadata_csum,^has_journal"],
    };
    let from = place.join("tree");
    let places = [from.to_str().unwrap(), image.to_str().unwrap()];
    let words = [
        &["format", "-qf", "-t", kind],
        features,
        &["-d", places[0], places[1], "64M"],
    ];
    steadfs(words.concat()).expect(0);
    fs::set_permissions(&image, fs::Permissions::from_mode(0o644)).unwrap();
    image
}

/// Names that are paths, `.` and `..` are not copied.
#[test]
fn names_that_are_paths_stay_inside() {
    let place = Place::new();
    let folder = place.scratch.folder("tree");
    for name in ["up-outside-victim", "dotdotQQZ", "Q7", "QZ", "fine"] {
        fs::write(folder.join(name), "hostile").unwrap();
    }
    for kind in ["ext2", "ext4", "f2fs"] {
        let image = without_checksums(&place, kind);
        rename(
            &image,
            &[
                (b"up-outside-victim", b"../outside/victim"),
                (b"dotdotQQZ", b"../../ou3"),
            ],
        );
        if kind != "f2fs" {
            // The length and type of the entry before the name.
            rename(
                &image,
                &[
                    (b"\x02\x01Q7", b"\x02\x01.."),
                    (b"\x02\x01QZ", b"\x01\x01.Z"),
                ],
            );
        }
        each_copy(&place, |user, words, out| {
            let output = place.run(user, words);
            assert_eq!(output.code(), 1, "{kind}: {}", output.err);
            let expected: &[&str] = &["fine", "lost+found"];
            let copied = names(out);
            let allowed =
                |name: &String| expected.contains(&name.as_str()) || name.starts_with('Q');
            assert!(copied.iter().all(allowed), "{kind}: {copied:?}");
            assert!(names(place.scratch.path()).iter().all(|name| name != "ou3"));
        });
    }
}

/// A link and a directory of the same name: the copy does not follow the link that it has just made.
#[test]
fn a_link_that_was_just_copied_is_not_followed() {
    let place = Place::new();
    let folder = place.scratch.folder("tree");
    for target in ["dup2", "dup4"] {
        fs::create_dir(folder.join(target)).unwrap();
        fs::write(folder.join(target).join("victim"), "hostile").unwrap();
        fs::write(folder.join(target).join("new"), "hostile").unwrap();
    }
    symlink(place.join("outside"), folder.join("dup1")).unwrap();
    symlink("../outside", folder.join("dup3")).unwrap();
    symlink("../outside/victim", folder.join("dup5")).unwrap();
    fs::write(folder.join("dup6"), "hostile").unwrap();
    for kind in ["ext2", "f2fs"] {
        let image = without_checksums(&place, kind);
        rename(
            &image,
            &[(b"dup2", b"dup1"), (b"dup4", b"dup3"), (b"dup6", b"dup5")],
        );
        each_copy(&place, |user, words, _| {
            let output = place.run(user, words);
            assert!([0, 1].contains(&output.code()), "{kind}: {}", output.err);
        });
    }
}

/// Another process exchanges directories and files of the destination with links while they are written.
#[test]
fn links_that_appear_during_a_copy_are_not_followed() {
    let place = Place::new();
    let folder = place.scratch.folder("tree");
    for name in ["one", "two"] {
        let inner = folder.join(name);
        fs::create_dir(&inner).unwrap();
        for n in 0..200 {
            fs::write(inner.join(format!("f{n}")), "hostile").unwrap();
        }
        fs::write(inner.join("victim"), "hostile").unwrap();
    }
    for n in 0..100 {
        fs::hard_link(
            folder.join(format!("one/f{n}")),
            folder.join(format!("two/g{n}")),
        )
        .unwrap();
    }
    place.volume("a.img", "ext4", "tree");
    each_copy(&place, |user, words, out| {
        let traps = place.join("traps");
        let _ = fs::remove_dir_all(&traps);
        fs::create_dir(&traps).unwrap();
        symlink(place.join("outside"), traps.join("folder")).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let exchange = scope.spawn(|| {
                let mut done = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    for name in ["one", "two"] {
                        let swap = || {
                            let flags = RenameFlags::EXCHANGE;
                            renameat_with(CWD, traps.join("folder"), CWD, out.join(name), flags)
                        };
                        if swap().is_ok() {
                            done += 1;
                            std::thread::yield_now();
                            swap().unwrap();
                        }
                    }
                }
                done
            });
            for _ in 0..3 {
                // It may fail, and must end.
                drop(place.run(user, words));
            }
            stop.store(true, Ordering::Relaxed);
            assert!(exchange.join().unwrap() > 0, "nothing was exchanged");
        });
    });
}

/// Device nodes, set-ID bits and capabilities: kept by root, as tar(1) does; not by others.
#[test]
fn only_root_keeps_privileges_of_files() {
    let place = Place::new();
    let folder = place.scratch.folder("tree");
    fs::write(folder.join("setuid"), "x").unwrap();
    fs::set_permissions(folder.join("setuid"), fs::Permissions::from_mode(0o6755)).unwrap();
    fs::write(folder.join("capable"), "x").unwrap();
    // Linux <linux/capability.h>: revision 2, effective, CAP_DAC_OVERRIDE permitted.
    let capable: [u32; 5] = [0x0200_0001, 2, 0, 0, 0];
    let capable: Vec<u8> = capable.iter().flat_map(|word| word.to_le_bytes()).collect();
    let flags = XattrFlags::empty();
    rustix::fs::setxattr(
        folder.join("capable"),
        "security.capability",
        &capable,
        flags,
    )
    .unwrap();
    succeed(
        "mknod",
        [folder.join("node").to_str().unwrap(), "b", "7", "0"],
    );
    for kind in ["ext4", "f2fs"] {
        let _ = fs::remove_file(place.join("a.img"));
        place.volume("a.img", kind, "tree");
        each_copy(&place, |user, words, out| {
            let output = place.run(user, words);
            let mode = fs::metadata(out.join("setuid")).unwrap().mode() & 0o7777;
            let mut value = [0; 64];
            let capability =
                rustix::fs::getxattr(out.join("capable"), "security.capability", &mut value);
            let node = fs::symlink_metadata(out.join("node"));
            if user == 0 {
                assert_eq!(output.code(), 0, "{}", output.err);
                assert_eq!(mode, 0o6755);
                assert_eq!(capability, Ok(capable.len()));
                assert!(node.unwrap().file_type().is_block_device());
                let words = [words, &["--no-privileges"]].concat();
                fs::remove_dir_all(out).unwrap();
                let output = place.run(user, &words);
                assert!(output.err.contains("is a device node"), "{}", output.err);
                assert_eq!(output.err.lines().count(), 1, "{}", output.err);
                let mode = fs::metadata(out.join("setuid")).unwrap().mode() & 0o7777;
                assert_eq!((output.code(), mode), (1, 0o755));
                let path = out.join("capable");
                assert!(rustix::fs::getxattr(path, "security.capability", &mut value).is_err());
                assert!(fs::symlink_metadata(out.join("node")).is_err());
            } else {
                assert_eq!(output.code(), 1, "{}", output.err);
                assert_eq!(mode, 0o755);
                assert!(capability.is_err());
                assert!(node.is_err(), "{node:?}");
                for words in ["only root can", "security.capability was not kept"] {
                    assert!(output.err.contains(words), "{}", output.err);
                }
            }
        });
    }
}

/// A file of 2 TiB without data uses no space.
#[test]
fn sparse_files_use_no_space() {
    const SIZE: u64 = 2 << 40;
    let place = Place::new();
    let folder = place.scratch.folder("tree");
    let huge = File::create(folder.join("huge")).unwrap();
    huge.set_len(SIZE).unwrap();
    // f2fs has smaller files.
    place.volume("a.img", "ext4", "tree");
    each_copy(&place, |user, words, out| {
        place.run(user, words).expect(0);
        let copy = fs::metadata(out.join("huge")).unwrap();
        assert_eq!(copy.len(), SIZE);
        assert!(copy.blocks() < 64, "{}", copy.blocks());
    });
}

/// Files that share their blocks have far more data than the volume: the copy ends before they fill the host.
#[test]
fn data_that_many_files_share_is_limited() {
    const FILES: usize = 100;
    let place = Place::new();
    let folder = place.scratch.folder("tree");
    fs::write(folder.join("data"), vec![7; 1 << 20]).unwrap();
    for n in 0..FILES {
        fs::write(folder.join(format!("f{n:03}")), "").unwrap();
    }
    let image = place.join("a.img");
    let places = [folder.to_str().unwrap(), image.to_str().unwrap(), "3M"];
    let words = [&["format", "-qf", "-t", "ext2", "-d"], &places[..]];
    steadfs(words.concat()).expect(0);
    let copies: String = (0..FILES)
        .map(|n| format!("copy_inode data f{n:03}\n"))
        .collect();
    Image::at(image.clone()).debugfs(&copies);
    fs::set_permissions(&image, fs::Permissions::from_mode(0o644)).unwrap();
    each_copy(&place, |user, words, out| {
        let output = place.run(user, words).expect(1);
        assert!(output.err.contains("--unlimited"), "{}", output.err);
        let files = names(out).into_iter().filter(|name| name != "lost+found");
        let sizes = files.map(|name| fs::metadata(out.join(name)).unwrap().len());
        let copied: u64 = sizes.sum();
        assert!(copied <= 16 * (3 << 20), "{copied}");
        let words = [words, &["--unlimited"]].concat();
        fs::remove_dir_all(out).unwrap();
        fs::create_dir(out).unwrap();
        chown(out, Some(user), Some(user)).unwrap();
        place.run(user, &words).expect(0);
        assert_eq!(fs::metadata(out.join("f099")).unwrap().len(), 1 << 20);
    });
}

/// Names with control characters reach no terminal, neither from listings nor from messages.
#[test]
fn control_characters_are_escaped() {
    let place = Place::new();
    let folder = place.scratch.folder("tree");
    let name = "a\x1b]0;owned\x07\r\nroot\u{9b}31m";
    fs::write(folder.join(name), "x").unwrap();
    symlink(name, folder.join("link")).unwrap();
    for kind in ["ext4", "f2fs"] {
        let _ = fs::remove_file(place.join("a.img"));
        place.volume("a.img", kind, "tree");
        let listed = [
            &["ls", "a.img"][..],
            &["ls", "-laR", "a.img"],
            &["stat", "a.img:/link"],
            &["cp", "-rv", "a.img:/.", "verbose"],
            &["check", "a.img"],
        ];
        let _ = fs::remove_dir_all(place.join("verbose"));
        for words in listed {
            let output = place.run(0, words).expect(0);
            assert_plain(&output.out);
            assert_plain(&output.err);
        }
        each_copy(&place, |user, words, out| {
            let output = place.run(user, words).expect(0);
            assert_plain(&output.err);
            assert_eq!(fs::read(out.join(name)).unwrap(), b"x");
            // Messages about the file, which exists now.
            let again = place.run(user, &["extract", "a.img", "out"]).expect(1);
            assert!(again.err.contains("owned"), "{}", again.err);
            assert_plain(&again.err);
        });
    }
}

#[track_caller]
fn assert_plain(text: &str) {
    let is_control = |c: char| c.is_control() && c != '\n';
    assert!(!text.contains(is_control), "{text:?}");
    let lines = text.lines().all(|line| !line.starts_with("root"));
    assert!(lines, "{text:?}");
}
