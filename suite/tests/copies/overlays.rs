//! Volumes below an overlay: the image is not written, and the overlay has all changes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use steadfs_suite::command::until;
use steadfs_suite::{Image, Scratch, SteadMount, f2fs, steadfs};

use super::{MIB, cp, refused};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What a base shows through an overlay, read by the description of its file.
fn merged(scratch: &Scratch, base: &Path, overlay: &Path) -> Image {
    let path = scratch.join("merged");
    let mut bytes = fs::read(base).unwrap();
    let size = bytes.len() as u64;
    let file = File::open(overlay).unwrap();
    let mut header = [0; 512];
    file.read_exact_at(&mut header, 0).unwrap();
    assert!(header.starts_with(b"steadfs overlay\0\x01\0\0\0\0\x10\0\0"));
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
    assert_eq!((number(24), number(64)), (size, 4096));
    let mut map = vec![0; size.div_ceil(4096).div_ceil(8) as usize];
    file.read_exact_at(&mut map, 4096).unwrap();
    for (unit, block) in bytes.chunks_mut(4096).enumerate() {
        if map[unit / 8] & 1 << (unit % 8) != 0 {
            file.read_exact_at(block, number(72) + 4096 * unit as u64)
                .unwrap();
        }
    }
    fs::write(&path, bytes).unwrap();
    Image::at(path)
}

fn check(kind: &str, image: &Image) {
    match kind {
        "f2fs" => drop(f2fs::check_clean(image.path(), "merged")),
        _ => image.check_clean(),
    }
}

fn volume(scratch: &Scratch, kind: &str) -> Image {
    match kind {
        "f2fs" => f2fs::mkfs(scratch, "f2fs", 64 * MIB, ""),
        // Blocks smaller than the overlay's units.
        _ => Image::mke2fs(scratch, "ext4", 16 * MIB, &["-t", "ext4", "-b", "1024"]),
    }
}

#[test]
fn all_changes_of_commands_and_mounts_go_to_the_overlay() {
    let scratch = Scratch::new();
    for kind in ["ext4", "f2fs"] {
        let base = volume(&scratch, kind);
        let before = fs::read(base.path()).unwrap();
        let image = text(base.path());
        let overlay = scratch.join(&format!("{kind}.overlay"));
        let list = format!("overlay={}", text(&overlay));
        let source = scratch.join("source");
        fs::write(&source, vec![7; 300_000]).unwrap();
        // Nothing is made by commands that only read.
        refused(&["ls", "-o", &list, image], "No such file");
        cp(&["-o", &list, text(&source), &format!("{image}:/copied")]);
        check(kind, &merged(&scratch, base.path(), &overlay));
        let shown = steadfs(["ls", "-o", &list, image]).expect(0);
        assert!(shown.out.contains("copied"), "{}", shown.out);
        steadfs(["check", "-o", &list, image]).expect(0);
        assert!(!steadfs(["ls", image]).expect(0).out.contains("copied"));

        let mount = SteadMount::new(&scratch, base.path(), &list);
        assert!(fs::read(mount.join("copied")).unwrap() == fs::read(&source).unwrap());
        fs::remove_file(mount.join("copied")).unwrap();
        fs::write(mount.join("mounted"), "mounted").unwrap();
        // It has one user; the base can be read meanwhile.
        refused(&["ls", "-o", &list, image], "in use");
        steadfs(["ls", image]).expect(0);
        let options = fs::read_to_string(mount.join(".steadfs/options")).unwrap();
        assert!(options.contains(&list), "{options}");
        mount.unmount();
        let whole = merged(&scratch, base.path(), &overlay);
        check(kind, &whole);
        let shown = steadfs(["ls", text(whole.path())]).expect(0).out;
        assert!(
            shown.contains("mounted") && !shown.contains("copied"),
            "{shown}"
        );
        assert!(
            fs::read(base.path()).unwrap() == before,
            "{kind}: the base was written"
        );

        // Read-only mounts read the overlay, which must be there.
        let mount = SteadMount::new(&scratch, base.path(), &format!("ro,{list}"));
        assert_eq!(fs::read(mount.join("mounted")).unwrap(), b"mounted");
        mount.unmount();
        // Of another base, and of this one after a change.
        let other = Image::mke2fs(&scratch, "other", 8 * MIB, &["-t", "ext4"]);
        refused(
            &["ls", "-o", &list, text(other.path())],
            "overlay of another base",
        );
        refused(
            &["ls", "-o", &format!("overlay={image}"), text(other.path())],
            "is no overlay",
        );
        cp(&[text(&source), &format!("{image}:/changed")]);
        refused(
            &["ls", "-o", &list, image],
            "its base has been changed since",
        );
    }
}

/// The next server of a mount finds all changes of the one before in the overlay, synced or not.
#[test]
fn an_overlay_goes_on_with_another_server() {
    let scratch = Scratch::new();
    for kind in ["ext4", "f2fs"] {
        let base = volume(&scratch, kind);
        let before = fs::read(base.path()).unwrap();
        let overlay = scratch.join(&format!("{kind}.overlay"));
        let list = format!("overlay={},takeover=on,fuse_transport=dev", text(&overlay));
        let mount = SteadMount::new(&scratch, base.path(), &list);
        fs::write(mount.join("first"), vec![1; 200_000]).unwrap();
        let server = mount.pid();
        steadfs(["upgrade", text(mount.root())]).expect(0);
        assert_ne!(mount.pid(), server);
        fs::write(mount.join("second"), vec![2; 200_000]).unwrap();
        let server = mount.pid();
        let killed = Pid::from_raw(i32::try_from(server).unwrap()).unwrap();
        kill_process(killed, Signal::KILL).unwrap();
        until("another server", || {
            ![server, mount.broker(), 0].contains(&mount.pid())
        });
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        fs::write(mount.join("third"), vec![3; 200_000]).unwrap();
        for (name, byte) in [("first", 1), ("second", 2), ("third", 3)] {
            assert!(
                fs::read(mount.join(name)).unwrap() == vec![byte; 200_000],
                "{name}"
            );
        }
        mount.unmount();
        check(kind, &merged(&scratch, base.path(), &overlay));
        assert!(fs::read(base.path()).unwrap() == before, "{kind}");
    }
}

/// A server that is killed is a power cut for the overlay, too.
#[test]
fn what_an_fsync_acknowledged_is_in_the_overlay_after_a_kill() {
    let scratch = Scratch::new();
    for kind in ["ext4", "f2fs"] {
        let base = volume(&scratch, kind);
        let overlay = scratch.join(&format!("{kind}.overlay"));
        let list = format!("overlay={}", text(&overlay));
        for round in 0..3 {
            let mount = SteadMount::new(&scratch, base.path(), &list);
            for earlier in 0..round {
                let name = format!("file{earlier}");
                assert_eq!(
                    fs::read(mount.join(&name)).unwrap(),
                    vec![earlier; 70_000],
                    "{kind}"
                );
            }
            let name = format!("file{round}");
            fs::write(mount.join(&name), vec![round; 70_000]).unwrap();
            File::open(mount.join(&name)).unwrap().sync_all().unwrap();
            fs::write(mount.join("lost"), vec![9; 70_000]).unwrap();
            mount.kill();
        }
        let mount = SteadMount::new(&scratch, base.path(), &list);
        assert_eq!(fs::read(mount.join("file2")).unwrap(), vec![2; 70_000]);
        mount.unmount();
        check(kind, &merged(&scratch, base.path(), &overlay));
    }
}

#[test]
fn an_overlay_in_memory_is_gone_after_the_unmount() {
    let scratch = Scratch::new();
    let base = volume(&scratch, "ext4");
    let before = fs::read(base.path()).unwrap();
    let mount = SteadMount::new(&scratch, base.path(), "overlay=memory");
    fs::write(mount.join("file"), vec![1; 1 << 20]).unwrap();
    File::open(mount.join("file")).unwrap().sync_all().unwrap();
    let upgraded = steadfs(["upgrade", text(mount.root())]);
    assert_ne!(upgraded.code(), 0);
    assert!(upgraded.err.contains("overlay=memory"), "{}", upgraded.err);
    assert_eq!(fs::read(mount.join("file")).unwrap(), vec![1; 1 << 20]);
    mount.unmount();
    assert!(fs::read(base.path()).unwrap() == before);
    let both = "overlay=memory,takeover=on";
    let output = steadfs(["mount", "-o", both, text(base.path()), "/mnt"]);
    assert!(
        output.err.contains("takeover=on: with overlay=memory"),
        "{}",
        output.err
    );
}
