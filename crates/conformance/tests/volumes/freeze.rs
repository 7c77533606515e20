//! Freezing and thawing.

use steadfs_conformance::{Kind, World, judge};
use steadfs_vfs::FsError;

on_every!(
    a_frozen_volume_refuses_changes_and_its_image_is_whole,
    a_thaw_frees_files_released_while_frozen,
);

fn a_frozen_volume_refuses_changes_and_its_image_is_whole(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let memory = &world.device.faults.memory;
    let shown = || world.control(&format!("{}/freeze", kind.format_name()));
    for round in 0..3 {
        let name = format!("file{round}").into_bytes();
        world.written(&name, &[7; 10_000]).unwrap();
        assert_eq!(shown(), "0\n");
        world.freeze("1\n").unwrap();
        world.freeze("1").unwrap();
        assert_eq!(shown(), "1\n");
        judge(kind, memory);
        if kind.is_ext() {
            assert!(kind.is_marked_clean(memory));
            assert_eq!(kind.mounts(memory), Some(1), "it is mounted once");
        }

        assert_eq!(world.written(b"no", b""), Err(FsError::Busy));
        assert_eq!(world.mkdir(root, b"no"), Err(FsError::Busy));
        let busy = fs.remount(cx, "noatime");
        assert_eq!(busy, Err(FsError::Busy));
        assert_eq!(fs.remount(cx, "ro"), Err(FsError::Busy));
        assert!(world.freeze("2").is_err());
        let before = world.device.bytes();
        let file = fs.lookup(cx, root, &name).unwrap().ino;
        for datasync in [false, true] {
            fs.fsync(cx, file, datasync).unwrap();
        }
        world.forget(file);
        fs.fsync(cx, root, false).unwrap();
        world.sync();
        assert_eq!(world.content(&name), [7; 10_000]);
        assert!(
            world.device.bytes() == before,
            "a frozen volume was written"
        );

        world.freeze("0").unwrap();
        // A power cut must be seen from now on.
        if kind.has_journal() {
            assert!(kind.needs_replay(memory));
        } else if kind.is_ext() {
            assert!(!kind.is_marked_clean(memory));
        }
        world.mkdir(root, format!("dir{round}").as_bytes()).unwrap();
    }
    // An unmount ends freezing.
    world.freeze("1").unwrap();
    let world = World::open(kind, world.close(), &Default::default());
    assert_eq!(world.content(b"file2"), [7; 10_000]);
    assert_eq!(world.new_names().len(), 6);
    world.close();
}

fn a_thaw_frees_files_released_while_frozen(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let changes = || world.device.faults.changes();
    let empty = world.free();
    let [gone, kept] = [b"gone", b"kept"].map(|name| {
        let ino = fs.mknod(cx, root, name, 0o100_644, 0).unwrap().ino;
        world.write(ino, 0, &[7; 500_000]).unwrap();
        fs.unlink(cx, root, name).unwrap();
        ino
    });
    world.freeze("1").unwrap();
    let before = (changes(), world.free());
    let bytes = world.device.bytes();
    world.forget(gone);
    assert_eq!((changes(), world.free()), before, "it is frozen");
    assert!(world.device.bytes() == bytes, "a frozen volume was written");
    world.freeze("0").unwrap();
    let after = world.free();
    let blocks = 400_000 / kind.block;
    assert!(after.0 > before.1.0 + blocks, "{after:?} {before:?}");
    assert!(after.1 > before.1.1, "{after:?} {before:?}");
    if kind.is_ext() {
        assert_eq!(after.1, before.1.1 + 1);
    }
    // The other one is still in use.
    assert_eq!(world.read(kept, 0, 500_000), [7; 500_000]);
    world.forget(kept);
    world.sync();
    assert_eq!(world.free(), empty);
    // No orphan is left that would prevent a read-only remount.
    fs.remount(cx, "ro").unwrap();
    let memory = &world.device.faults.memory;
    judge(kind, memory);
    assert!(!kind.lists_orphans(memory));
    fs.remount(cx, "rw").unwrap();
    // An unmount thaws, too.
    let last = fs.mknod(cx, root, b"last", 0o100_644, 0).unwrap().ino;
    fs.unlink(cx, root, b"last").unwrap();
    world.freeze("1").unwrap();
    world.forget(last);
    let volume = world.close();
    assert!(!kind.lists_orphans(&volume));
    let world = World::open(kind, volume, &Default::default());
    assert_eq!(world.free(), empty);
    world.close();
}
