//! Encrypted files on a machine without their key.

use super::attributes_read::{looked_at, looks_the_same};
use super::*;

// linux/fscrypt.h.
const ADD_KEY: u32 = 0xc050_6617;
const SET_POLICY: u32 = 0x800c_6613;

/// A volume with an encrypted directory `vault`, made by the kernel.
fn volume_with_a_vault(scratch: &Scratch, block_size: &str) -> Image {
    let options = ["-t", "ext4", "-b", block_size, "-O", "encrypt"];
    let image = Image::mke2fs(scratch, &format!("{block_size}.img"), 64 * MIB, &options);
    let mount = KernelMount::new(scratch, image.path(), "");
    // A key of 64 bytes, identified by the identifier that the kernel returns.
    let words = [2_u32, 0].map(u32::to_ne_bytes).concat();
    let lengths = [64_u32, 0].map(u32::to_ne_bytes).concat();
    let key = [words, vec![0; 32], lengths, vec![0; 32], vec![0x5a; 64]].concat();
    let named = ioctl(mount.root(), ADD_KEY, &key).unwrap();
    fs::create_dir(mount.join("vault")).unwrap();
    let policy = [&[2, 1, 4, 0, 0, 0, 0, 0][..], &named[8..24]].concat();
    ioctl(&mount.join("vault"), SET_POLICY, &policy).unwrap();
    let vault = mount.join("vault");
    fs::create_dir(vault.join("sub")).unwrap();
    for (n, size) in [0, 1, 100, 5000, 100_000].into_iter().enumerate() {
        fs::write(vault.join(format!("file{n}")), vec![1; size]).unwrap();
        let long = "n".repeat(50 * (n + 1));
        fs::write(vault.join("sub").join(&long), b"").unwrap();
        symlink(&long, vault.join(format!("link{n}"))).unwrap();
    }
    symlink("x", vault.join("short")).unwrap();
    fs::write(mount.join("plain"), b"plain").unwrap();
    mount.unmount();
    image
}

#[test]
fn without_its_key_an_encrypted_tree_equals_the_kernels() {
    let scratch = Scratch::new();
    for block_size in ["1024", "4096"] {
        let image = volume_with_a_vault(&scratch, block_size);
        looks_the_same(&scratch, &image, block_size);

        let mount = SteadMount::new(&scratch, image.path(), "ro");
        let no_key = |error: std::io::Error| error.raw_os_error() == Some(126);
        let mut closed = 0;
        for entry in fs::read_dir(mount.join("vault")).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                assert!(fs::read(entry.path()).is_err_and(no_key));
                let inside = Path::new("vault").join(entry.file_name());
                let place = format!("{}:/{}", image.path().display(), inside.display());
                let output = steadfs(["cat", &place]);
                assert!(
                    output.code() != 0 && output.out.is_empty(),
                    "{}",
                    output.out
                );
                let copy = scratch.join("copy");
                let output = steadfs(["cp", &place, copy.to_str().unwrap()]);
                assert!(output.code() != 0 && !copy.exists(), "{}", output.err);
                assert!(output.err.contains("key"), "{}", output.err);
                closed += 1;
            }
        }
        assert_eq!(closed, 5);
        assert_eq!(fs::read(mount.join("plain")).unwrap(), b"plain");
        mount.unmount();
    }
}

/// The error of a call.
fn code<T>(result: std::io::Result<T>) -> i32 {
    result.map_or_else(|error| error.raw_os_error().unwrap(), |_| 0)
}

/// The paths below a folder, sorted.
fn paths(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// What needs no key: owner, an extended attribute, times.
fn change_attributes(all: &mut Answers<'_>, path: &Path) {
    let (flags, none) = (XattrFlags::empty(), AtFlags::SYMLINK_NOFOLLOW);
    all.say(
        "chown",
        code(std::os::unix::fs::lchown(path, Some(7), Some(8))),
    );
    all.say(
        "xattr",
        rustix::fs::lsetxattr(path, "trusted.a", b"1", flags),
    );
    all.say(
        "time",
        rustix::fs::utimensat(
            CWD,
            path,
            &rustix::fs::Timestamps {
                last_access: rustix::fs::Timespec {
                    tv_sec: 1,
                    tv_nsec: 2,
                },
                last_modification: rustix::fs::Timespec {
                    tv_sec: 3,
                    tv_nsec: 4,
                },
            },
            none,
        ),
    );
}

/// Changes names in, to and from the vault, then content and attributes of its files; then removes it.
fn change_the_vault(all: &mut Answers<'_>) {
    let (vault, plain) = (all.path("vault"), all.path("plain"));
    let inside = paths(&vault);
    let is_file = |path: &&PathBuf| fs::symlink_metadata(path).unwrap().is_file();
    let file = inside.iter().find(is_file).unwrap();
    let sub = inside.iter().find(|path| path.is_dir()).unwrap();
    let new = vault.join("new");
    all.say("create", code(File::create(&new)));
    all.say("mkdir", code(fs::create_dir(&new)));
    all.say("mkdir below", code(fs::create_dir(sub.join("new"))));
    all.say("symlink", code(symlink("x", &new)));
    let fifo = rustix::fs::mknodat(CWD, &new, rustix::fs::FileType::Fifo, Mode::RUSR, 0);
    all.say("mknod", fifo);
    let unnamed = rustix::fs::open(&vault, OFlags::TMPFILE | OFlags::WRONLY, Mode::RUSR);
    all.say("tmpfile", unnamed.map(drop));
    all.say("link in", code(fs::hard_link(&plain, &new)));
    all.say("link out", code(fs::hard_link(file, all.path("linked"))));
    all.say("rename in", code(fs::rename(&plain, &new)));
    all.say("rename over", code(fs::rename(&plain, file)));
    all.say("rename out", code(fs::rename(file, all.path("out"))));
    all.say("rename within", code(fs::rename(file, &new)));
    all.say("rename it", code(fs::rename(&vault, all.path("moved"))));
    all.say("rename back", code(fs::rename(all.path("moved"), &vault)));
    all.say("write", code(File::options().write(true).open(file)));
    let cut = std::process::Command::new("truncate")
        .args(["-s", "3"])
        .arg(file)
        .output();
    all.say("truncate", cut.unwrap().status.code());
    let shorter = rustix::fs::open(file, OFlags::WRONLY | OFlags::TRUNC, Mode::empty());
    all.say("open to truncate", shorter.map(drop));
    let linked = all.path("linked");
    for path in inside.iter().chain([&linked]) {
        change_attributes(all, path);
    }
    all.say(
        "mode",
        code(fs::set_permissions(file, Permissions::from_mode(0o4711))),
    );
    all.say("rmdir", code(fs::remove_dir(sub)));
    all.say("seen", looked_at(all.root));
    all.say(
        "remove",
        (code(fs::remove_file(file)), code(fs::remove_file(file))),
    );
    all.say("seen", looked_at(all.root));
    all.say("remove all", code(fs::remove_dir_all(&vault)));
    all.say("seen", looked_at(all.root));
}

#[test]
fn without_its_key_an_encrypted_tree_changes_as_in_the_kernel() {
    let scratch = Scratch::new();
    for block_size in ["1024", "4096"] {
        let image = volume_with_a_vault(&scratch, block_size);
        let path = scratch.join("copy.img");
        fs::copy(image.path(), &path).unwrap();
        let changed = |root: &Path| {
            let output = Vec::new();
            let mut all = Answers { root, output };
            change_the_vault(&mut all);
            all.output
        };
        let kernel = changed(KernelMount::new(&scratch, &path, "").root());
        let mount = SteadMount::new(&scratch, image.path(), "");
        let ours = changed(mount.root());
        compare(&kernel, &ours, block_size);
        mount.unmount();
        image.check_clean();
    }
}
