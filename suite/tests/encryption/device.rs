//! What is on the device of encrypted files: nothing of their contents, names and targets.

use std::process::Command;

use super::*;

/// Begins every content, name and target. Long enough to be found in a block's middle, and in no other place.
const PLAIN: &str = "a-secret-that-no-device-sees";

/// Volumes whose directories are folded, too.
fn volumes(scratch: &Scratch) -> Vec<(&'static str, &'static str, Image)> {
    let mke2fs = |options: &'static str| {
        let all = ["-t", "ext4", "-b", "1024", "-O", options];
        Image::mke2fs(scratch, options, SIZE, &all)
    };
    let mkfs =
        |name: &str, options: &str| steadfs_suite::f2fs::mkfs(scratch, name, 2 * SIZE, options);
    vec![
        (
            "ext4",
            "fast_commit",
            mke2fs("encrypt,casefold,fast_commit"),
        ),
        (
            "ext4",
            "data=writeback",
            mke2fs("encrypt,casefold,bigalloc,inline_data"),
        ),
        (
            "f2fs",
            "compress_algorithm=lz4",
            mkfs("lz4", "-O extra_attr,compression,encrypt -C utf8"),
        ),
    ]
}

fn secret(name: &str) -> String {
    format!("{PLAIN} {name}")
}

/// Content of `len` bytes with the secret in each sector.
fn content(len: usize) -> Vec<u8> {
    PLAIN.bytes().cycle().take(len).collect()
}

/// Files, directories and links of all sizes, written in all ways.
fn write(dir: &Path) {
    let file = |name: &str| dir.join(secret(name));
    for len in [1, 30, 100, 1000, 4096, 300_000] {
        fs::write(file(&len.to_string()), content(len)).unwrap();
    }
    let rewritten = fs::File::create(file("rewritten")).unwrap();
    rewritten.write_all_at(&content(5000), 100_000).unwrap();
    rewritten.sync_all().unwrap();
    rewritten.write_all_at(&content(3000), 101_000).unwrap();
    rewritten.write_all_at(&content(700), 300_000).unwrap();
    rewritten.set_len(300_333).unwrap();
    rewritten.sync_data().unwrap();
    fs::rename(file("100"), file("renamed")).unwrap();
    fs::hard_link(file("1000"), file("linked")).unwrap();
    fs::remove_file(file("30")).unwrap();
    for len in [1, 60, 900] {
        symlink(secret(&"t".repeat(len)), file(&format!("link{len}"))).unwrap();
    }
    let many = file("many");
    fs::create_dir(&many).unwrap();
    for n in 0..50 {
        fs::write(many.join(secret(&n.to_string())), secret("tiny")).unwrap();
    }
    let map = Command::new("python3")
        .args(["-c", MAP])
        .arg(file("mapped"))
        .output()
        .unwrap();
    assert!(map.status.success(), "{map:?}");
}

/// Writes through a mapping of memory.
const MAP: &str = "
import mmap, sys
with open(sys.argv[1], 'w+b') as file:
    file.truncate(50000)
    with mmap.mmap(file.fileno(), 50000) as mapped:
        mapped[:] = (b'a-secret-that-no-device-sees' * 2000)[:50000]
        mapped.flush()
        mapped[7000:7028] = b'a-secret-that-no-device-sees'
";

/// Where the image has the secret, a line for each place.
fn found(image: &Image) -> String {
    let grep = Command::new("grep")
        .args(["-obaF", PLAIN])
        .arg(image.path())
        .output()
        .unwrap();
    assert!(matches!(grep.status.code(), Some(0 | 1)), "{grep:?}");
    String::from_utf8(grep.stdout).unwrap()
}

#[test]
fn no_plain_text_reaches_the_device() {
    let scratch = Scratch::new();
    let kind = kind("any", &[], None, [1, 4, 0, 0], 64);
    for (fs_name, options, image) in volumes(&scratch) {
        let what = image.path().display().to_string();
        let mount = SteadMount::new(&scratch, image.path(), &format!("rw,{options}"));
        let name = kind.add_to_steadfs(&scratch, &mount);
        let vault = mount.join("vault");
        fs::create_dir(&vault).unwrap();
        kind.set_policy(vault.to_str().unwrap(), &name, &[]);
        let folded = vault.join("folded");
        fs::create_dir(&folded).unwrap();
        succeed("chattr", ["+F".as_ref(), folded.as_os_str()]);
        if options.contains("compress") {
            succeed("chattr", ["+c".as_ref(), folded.as_os_str()]);
        }
        write(&vault);
        write(&folded);
        let written = Tree::of(&vault);
        assert!(
            folded.join(secret("4096").to_uppercase()).exists(),
            "{what}"
        );
        mount.unmount();
        kind.check(&image, fs_name);
        assert_eq!(found(&image), "", "{what}");

        let mount = SteadMount::new(&scratch, image.path(), "ro");
        assert!(!mount.join("vault").join(secret("4096")).exists(), "{what}");
        kind.add_to_steadfs(&scratch, &mount);
        Tree::of(&mount.join("vault")).assert_same(
            &written,
            Compare {
                atime: false,
                holes: false,
                ..Compare::ALL
            },
            &what,
        );
        mount.unmount();
    }
}
