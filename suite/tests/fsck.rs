//! `fsck.steadfs`, as fsck(8) calls it: beside e2fsck, and on volumes that a killed server left. fstab's part is in
//! `install.rs`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use steadfs_suite::stead::program;
use steadfs_suite::{Image, Outcome, Scratch, SteadMount, f2fs, run, steadfs};

const MIB: u64 = 1 << 20;

/// Runs the program by its name for fsck(8).
fn fsck(scratch: &Scratch, letters: &[&str], volume: &Path) -> Outcome {
    let name = scratch.join("fsck.steadfs");
    if !name.is_symlink() {
        symlink(program(), &name).unwrap();
    }
    let volume = [volume.to_str().unwrap()];
    run(name.to_str().unwrap(), letters.iter().chain(&volume))
}

fn ext4(scratch: &Scratch, name: &str) -> Image {
    Image::mke2fs(scratch, name, 16 * MIB, &["-t", "ext4"])
}

/// Leaves a volume as a power cut does, with a file that was synced.
fn cut_after_fsync(scratch: &Scratch, image: &Path) {
    let mount = SteadMount::new(scratch, image, "");
    let mut file = File::create(mount.join("synced")).unwrap();
    file.write_all(b"kept\n").unwrap();
    file.sync_all().unwrap();
    drop(file);
    mount.kill();
}

#[test]
fn exit_codes_are_those_of_e2fsck() {
    let scratch = Scratch::new();
    ext4(&scratch, "clean");
    let corrupt = ext4(&scratch, "corrupt");
    corrupt.debugfs("sif / links_count 9");
    for (letters, name, code) in [
        (&["-a"][..], "clean", 0),
        (&["-p"], "clean", 0),
        (&["-n", "-f"], "clean", 0),
        (&["-fy"], "clean", 0),
        (&["-n", "-f"], "corrupt", 4),
        // Believed until a check is forced.
        (&["-a"], "corrupt", 0),
        (&["-a"], "missing", 8),
        (&["-n", "-x"], "clean", 16),
    ] {
        let volume = scratch.join(name);
        let ours = fsck(&scratch, letters, &volume);
        let words = letters.iter().copied().chain([volume.to_str().unwrap()]);
        let theirs = run("e2fsck", words).code();
        let said = format!("{letters:?} {name}: {}{}", ours.out, ours.err);
        assert_eq!((ours.code(), theirs), (code, code), "{said}");
    }
}

#[test]
fn what_a_mount_recovers_is_recovered_and_nothing_is_repaired() {
    let scratch = Scratch::new();
    let image = ext4(&scratch, "image");
    cut_after_fsync(&scratch, image.path());
    let corrupt = image.copy(&scratch, "corrupt");
    let before = fs::read(image.path()).unwrap();
    let looked = fsck(&scratch, &["-n"], image.path()).expect(0);
    assert!(
        looked.out.contains("journal replayed in memory"),
        "{}",
        looked.out
    );
    assert!(fs::read(image.path()).unwrap() == before, "-n wrote");

    let done = fsck(&scratch, &["-a"], image.path()).expect(0);
    assert!(
        done.out.contains(": recovered as by a mount, clean, "),
        "{}",
        done.out
    );
    assert!(!image.needs_recovery());
    image.check_clean();
    let path = format!("{}:/synced", image.path().display());
    assert_eq!(steadfs(["cat", &path]).expect(0).out, "kept\n");
    let again = fsck(&scratch, &["-a"], image.path()).expect(0);
    assert!(again.out.contains(": clean, "), "{}", again.out);

    // With an error recorded, a check comes before everything else.
    corrupt.debugfs("ssv state 3");
    // A block that the journal has no copy of.
    corrupt.debugfs("zap_block -f /lost+found -p 255 0");
    let before = fs::read(corrupt.path()).unwrap();
    for letters in ["-a", "-y"] {
        let output = fsck(&scratch, &[letters], corrupt.path()).expect(4);
        assert!(
            output.err.contains("repair with e2fsck -f"),
            "{}",
            output.err
        );
    }
    assert!(
        fs::read(corrupt.path()).unwrap() == before,
        "it was changed"
    );
}

/// A mark is believed only where nothing is wrong that was read to find it.
#[test]
fn damage_beside_the_mark_is_found() {
    let scratch = Scratch::new();
    for name in ["descriptor", "superblock"] {
        let image = ext4(&scratch, name);
        if name == "descriptor" {
            image.debugfs("set_bg 0 checksum 1");
        } else {
            // s_checksum, which debugfs would set right.
            let file = File::options().write(true).open(image.path()).unwrap();
            file.write_all_at(b"wrong", 1024 + 0x3FB).unwrap();
        }
        let output = fsck(&scratch, &["-a"], image.path()).expect(4);
        assert!(
            output.err.contains("repair with e2fsck -f"),
            "{}",
            output.err
        );
    }
}

#[test]
fn a_forced_check_recovers_before() {
    let scratch = Scratch::new();
    let image = ext4(&scratch, "image");
    cut_after_fsync(&scratch, image.path());
    let done = fsck(&scratch, &["-fy"], image.path()).expect(0);
    assert!(!done.out.contains("replayed in memory"), "{}", done.out);
    assert!(!image.needs_recovery());
    image.check_clean();
}

#[test]
fn data_that_fsync_wrote_after_a_checkpoint_is_recovered() {
    let scratch = Scratch::new();
    let image = f2fs::mkfs(&scratch, "image", 64 * MIB, "");
    cut_after_fsync(&scratch, image.path());
    let done = fsck(&scratch, &["-a"], image.path()).expect(0);
    assert!(
        done.out.contains(": recovered as by a mount, clean, "),
        "{}",
        done.out
    );
    f2fs::check_clean(image.path(), "after fsck.steadfs");
    let path = format!("{}:/synced", image.path().display());
    assert_eq!(steadfs(["cat", &path]).expect(0).out, "kept\n");
    let again = fsck(&scratch, &["-a"], image.path()).expect(0);
    assert!(again.out.contains(": clean, "), "{}", again.out);
}

#[test]
fn a_mounted_volume_is_refused() {
    let scratch = Scratch::new();
    let image = ext4(&scratch, "image");
    let mount = SteadMount::new(&scratch, image.path(), "");
    for letters in ["-a", "-n"] {
        let output = fsck(&scratch, &[letters], image.path()).expect(8);
        assert!(output.err.contains("is mounted at"), "{}", output.err);
    }
    mount.unmount();
}

/// As e2fsck writes it: a pass, how far it is, its end, and the volume.
#[test]
fn progress_is_reported_on_a_descriptor() {
    let scratch = Scratch::new();
    let image = ext4(&scratch, "image");
    fsck(&scratch, &["-V"], image.path()).expect(0);
    let script = r#"exec "$1/fsck.steadfs" -f -C 9 "$1/image" 9>"$1/progress""#;
    run(
        "bash",
        ["-c", script, "bash", scratch.path().to_str().unwrap()],
    )
    .expect(0);
    let progress = fs::read_to_string(scratch.join("progress")).unwrap();
    let end = 16 * MIB;
    let mut last = 0;
    for line in progress.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [pass, at, of, name] = words[..] else {
            panic!("{line}");
        };
        let at = at.parse().unwrap();
        assert!(last <= at && at <= end, "{progress}");
        assert_eq!(
            (pass, of, name),
            ("1", &*end.to_string(), image.path().to_str().unwrap())
        );
        last = at;
    }
    assert_eq!(last, end);
    let closed = r#"exec "$1/fsck.steadfs" -C 9 "$1/image""#;
    let output = run(
        "bash",
        ["-c", closed, "bash", scratch.path().to_str().unwrap()],
    );
    assert!(output.expect(8).err.contains("-C 9: "));
}
