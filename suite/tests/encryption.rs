//! Encrypted files with their keys. The kernel is the judge: what it has written is read here.
//!
//! For f2fs and for case-insensitive directories that is the kernel of `scripts/judge-kernel`. By hand:
//! `scripts/judge-kernel && PATH=$PWD/.cache/judges/bin:$PATH cargo test -p steadfs-suite --test encryption -- --ignored`
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use steadfs_suite::generate::Numbers;
use steadfs_suite::tree::set_xattr;
use steadfs_suite::uml::{TOP, assert_same, boot_with_all_of_f2fs, lines};
use steadfs_suite::{
    Compare, Image, KernelMount, Scratch, SteadMount, Tree, ioctl, steadfs, succeed,
};

#[path = "encryption/device.rs"]
mod device;
#[path = "encryption/written.rs"]
mod written;

const SIZE: u64 = 64 << 20;
// linux/fscrypt.h.
const ADD_KEY: u32 = 0xc050_6617;
const SET_POLICY: u32 = 0x800c_6613;
const ENOKEY: i32 = 126;

/// A policy, and the volume that it is tried on.
struct Kind {
    name: &'static str,
    mke2fs: &'static [&'static str],
    /// Version 1, with this descriptor.
    descriptor: Option<[u8; 8]>,
    /// Modes of contents and names, flags, size of data units.
    policy: [u8; 4],
    key_size: u8,
}

const XTS: &[&str] = &["-t", "ext4", "-O", "encrypt"];
/// All that Linux 6.18 has with its usual ciphers. Modes that it lacks have tests with published vectors.
const KINDS: [Kind; 6] = [
    kind("v2", XTS, None, [1, 4, 0, 0], 32),
    kind(
        "v2-1k",
        &["-t", "ext4", "-b", "1024", "-O", "encrypt"],
        None,
        [1, 4, 3, 0],
        64,
    ),
    kind("v2-units", XTS, None, [1, 4, 1, 9], 64),
    kind(
        "v2-64",
        &["-t", "ext4", "-O", "encrypt,stable_inodes"],
        None,
        [1, 4, 8 | 2, 0],
        64,
    ),
    kind(
        "v2-32",
        &["-t", "ext4", "-O", "encrypt,stable_inodes"],
        None,
        [1, 4, 16, 0],
        64,
    ),
    kind(
        "v1",
        &["-t", "ext4", "-b", "1024", "-O", "encrypt"],
        Some([0xab; 8]),
        [1, 4, 2, 0],
        64,
    ),
];

const fn kind(
    name: &'static str,
    mke2fs: &'static [&'static str],
    descriptor: Option<[u8; 8]>,
    policy: [u8; 4],
    key_size: u8,
) -> Kind {
    Kind {
        name,
        mke2fs,
        descriptor,
        policy,
        key_size,
    }
}

impl Kind {
    fn key(&self) -> Vec<u8> {
        (0..self.key_size).map(|n| n * 3 + 1).collect()
    }

    /// A file with the key, and the arguments that name it.
    fn key_file(&self, scratch: &Scratch) -> (PathBuf, String) {
        let file = scratch.join(&format!("{}.key", self.name));
        fs::write(&file, self.key()).unwrap();
        let text = match self.descriptor {
            Some(descriptor) => format!("{}={}", hex(&descriptor), file.display()),
            None => file.display().to_string(),
        };
        (file, text)
    }

    /// Adds the key to a mount of the kernel; returns the policy with it.
    fn add_to(&self, root: &Path) -> Vec<u8> {
        let key = self.key();
        let (version, name) = match self.descriptor {
            Some(descriptor) => (1_u32, descriptor.to_vec()),
            None => (2, vec![0; 8]),
        };
        let spec = [version.to_ne_bytes(), [0; 4]].concat();
        let size = u32::from(self.key_size).to_ne_bytes();
        let tail = [&size[..], &[0; 36], &key].concat();
        let argument = [spec, name, vec![0; 24], tail].concat();
        let named = ioctl(root, ADD_KEY, &argument).unwrap();
        let [contents, names, flags, unit] = self.policy;
        match self.descriptor {
            Some(_) => [&[0, contents, names, flags][..], &named[8..16]].concat(),
            None => [
                &[2, contents, names, flags, unit, 0, 0, 0][..],
                &named[8..24],
            ]
            .concat(),
        }
    }

    /// A volume with an encrypted directory `vault`, made by the kernel, and the tree that it shows.
    fn volume(&self, scratch: &Scratch) -> (Image, Tree) {
        let image = Image::mke2fs(scratch, &format!("{}.img", self.name), SIZE, self.mke2fs);
        let mount = KernelMount::new(scratch, image.path(), "");
        fill(&self.encrypt_dir(mount.root()));
        fs::write(mount.join("plain"), b"plain").unwrap();
        mount.unmount();
        let mount = KernelMount::new(scratch, image.path(), "ro");
        self.add_to(mount.root());
        let tree = Tree::of(mount.root());
        mount.unmount();
        (image, tree)
    }

    /// An empty volume for the judge.
    fn judged_image(&self, scratch: &Scratch, fs: &str) -> Image {
        let name = format!("{}.img", self.name);
        match fs {
            "ext4" => Image::mke2fs(scratch, &name, SIZE, self.mke2fs),
            _ => steadfs_suite::f2fs::mkfs(scratch, &name, 2 * SIZE, &self.mke2fs.join(" ")),
        }
    }

    /// Makes the encrypted directory.
    fn encrypt_dir(&self, root: &Path) -> PathBuf {
        let vault = root.join("vault");
        fs::create_dir(&vault).unwrap();
        let policy = self.add_to(root);
        ioctl(&vault, SET_POLICY, &policy).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        vault
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Files of many sizes, a sparse one, directories with and without an index, names of all lengths, links.
fn fill(vault: &Path) {
    let mut random = Numbers::new(7);
    for size in [0, 1, 100, 511, 4096, 5000, 100_000, 1_500_000] {
        fs::write(vault.join(format!("file{size}")), random.bytes(size)).unwrap();
    }
    let sparse = fs::File::create(vault.join("sparse")).unwrap();
    sparse.write_all_at(b"in the middle", 70_000).unwrap();
    sparse.set_len(300_001).unwrap();
    let names = vault.join("names");
    fs::create_dir(&names).unwrap();
    for len in 1..=255 {
        let name: String = (0..len)
            .map(|n| char::from(b'a' + (n % 26) as u8))
            .collect();
        fs::write(names.join(&name), &name).unwrap();
    }
    for len in [1, 16, 50, 300, 900] {
        symlink("t".repeat(len), vault.join(format!("link{len}"))).unwrap();
    }
    fs::create_dir_all(vault.join("sub/below")).unwrap();
    fs::write(vault.join("sub/below/deep"), b"deep").unwrap();
    fs::hard_link(vault.join("file100"), vault.join("sub/hard")).unwrap();
    set_xattr(&vault.join("file100"), "user.a", b"value");
}

fn is_no_key<T>(result: std::io::Result<T>) -> bool {
    result.is_err_and(|error| error.raw_os_error() == Some(ENOKEY))
}

#[test]
fn with_its_key_a_tree_of_the_kernel_is_read() {
    let scratch = Scratch::new();
    for kind in &KINDS {
        let (image, tree) = kind.volume(&scratch);
        let (file, named) = kind.key_file(&scratch);
        let mount = SteadMount::new(&scratch, image.path(), "ro");
        let (top, vault) = (mount.root().to_str().unwrap(), mount.join("vault"));
        let without = fs::read_dir(&vault).unwrap().count();
        assert!(!vault.join("file100").exists(), "{}", kind.name);

        let file = file.to_str().unwrap();
        let added = match kind.descriptor {
            Some(descriptor) => steadfs(["key", "add", top, file, "--v1", &hex(&descriptor)]),
            None => steadfs(["key", "add", top, file]),
        };
        let name = added.expect(0).out;
        let status = steadfs(["key", "status", top]).expect(0).out;
        assert!(status.ends_with(&name), "{status}");
        let read = Tree::of(mount.root());
        read.assert_same(&tree, Compare::ALL, kind.name);

        // Without the key it is as before.
        let open = fs::File::open(vault.join("file5000")).unwrap();
        steadfs(["key", "remove", top, name.trim()]).expect(0);
        steadfs(["key", "remove", top, name.trim()]).expect(32);
        assert!(!vault.join("file100").exists(), "{}", kind.name);
        let after = fs::read_dir(&vault).unwrap();
        let after: Vec<_> = after.map(|entry| entry.unwrap().path()).collect();
        assert_eq!(after.len(), without);
        for path in after {
            if path.symlink_metadata().unwrap().is_file() {
                assert!(is_no_key(fs::read(&path)), "{}", path.display());
            }
        }
        drop(open);
        mount.unmount();

        let place = format!("{}:/vault/sub/below/deep", image.path().display());
        let read = steadfs(["cat", "--key-file", &named, &place]).expect(0);
        assert_eq!(read.out, "deep", "{}", kind.name);
        steadfs(["cat", &place]).expect(1);
        image.check_clean();
    }
}

/// File system, options of mount(8), and a flag of chattr(1) for the directory.
type Place = (&'static str, &'static str, &'static str);

const LARGE: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "encrypt,casefold"];
/// What the kernel of `scripts/judge-kernel` has.
static JUDGED: [(Place, Kind); 6] = [
    (
        ("f2fs", "", ""),
        kind("f2fs-v2", &["-O encrypt"], None, [1, 4, 2, 0], 64),
    ),
    (
        ("f2fs", "", ""),
        kind("f2fs-v1", &["-O encrypt"], Some([7; 8]), [1, 4, 0, 0], 64),
    ),
    (
        ("f2fs", "", ""),
        kind("f2fs-64", &["-O encrypt"], None, [1, 4, 8, 0], 64),
    ),
    (
        ("f2fs", "", "+F"),
        kind(
            "f2fs-folded",
            &["-O encrypt -C utf8"],
            None,
            [1, 4, 3, 0],
            64,
        ),
    ),
    (
        ("f2fs", "compress_algorithm=lz4", "+c"),
        kind(
            "f2fs-lz4",
            &["-O extra_attr,compression,encrypt"],
            None,
            [1, 4, 0, 0],
            64,
        ),
    ),
    (
        ("ext4", "", "+F"),
        kind("ext4-folded", LARGE, None, [1, 4, 1, 0], 64),
    ),
];
/// What to do inside: a verb, the number of a kind, a file.
const WORK: &str = "STEADFS_ENCRYPTION_WORK";

#[test]
#[ignore = "needs scripts/judge-kernel"]
fn with_its_key_a_tree_of_the_judge_is_read() {
    let scratch = Scratch::new();
    let program = std::env::current_exe().unwrap();
    let mut script = String::new();
    let mut images = Vec::new();
    for (((fs, options, _), kind), (n, letter)) in JUDGED.iter().zip((0..).zip('a'..)) {
        images.push(kind.judged_image(&scratch, fs));
        for (verb, options) in [("fill", *options), ("list", "ro")] {
            let log = scratch.join(&format!("{}.tree", kind.name));
            let options = if options.is_empty() { "rw" } else { options };
            writeln!(
                script,
                "mount -t {fs} -o {options} /dev/ubd{letter} {TOP}\n\
                 {WORK}='{verb} {n} {}' {} --ignored --exact inside_the_judge --nocapture\n\
                 umount {TOP}",
                log.display(),
                program.display(),
            )
            .unwrap();
        }
    }
    let paths: Vec<_> = images.iter().map(Image::path).collect();
    boot_with_all_of_f2fs(&scratch, &paths, &script);
    for ((place, kind), image) in JUDGED.iter().zip(&images) {
        let judges = fs::read_to_string(scratch.join(&format!("{}.tree", kind.name))).unwrap();
        let judges: Vec<_> = judges.lines().map(str::to_owned).collect();
        let (file, _) = kind.key_file(&scratch);
        let mount = SteadMount::new(&scratch, image.path(), "ro");
        let (top, file) = (mount.root().to_str().unwrap(), file.to_str().unwrap());
        match kind.descriptor {
            Some(name) => steadfs(["key", "add", top, file, "--v1", &hex(&name)]).expect(0),
            None => steadfs(["key", "add", top, file]).expect(0),
        };
        assert_same(&lines(&Tree::of(mount.root())), &judges, kind.name);
        if place.2 == "+F" {
            for (name, size) in [
                ("FILE5000", 5000),
                ("NAMES/ABCDEFGHIJKLMNOPQRSTUVWXYZA", 27),
            ] {
                let found = fs::metadata(mount.join("vault").join(name)).unwrap();
                assert_eq!(found.len(), size, "{name}");
            }
        }
        mount.unmount();
    }
}

#[test]
#[ignore = "a script of the judge runs it"]
fn inside_the_judge() {
    let Ok(work) = std::env::var(WORK) else {
        return;
    };
    let [verb, n, log] = work.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
    let ((_, _, flag), kind) = &JUDGED[n.parse::<usize>().unwrap()];
    let top = Path::new(TOP);
    if verb == "list" {
        kind.add_to(top);
        fs::write(log, lines(&Tree::of(top)).join("\n")).unwrap();
        succeed("sync", [log]);
        return;
    }
    if verb == "change" {
        kind.add_to(top);
        let write = |which, lines: Vec<String>| {
            let log = format!("{log}.{which}");
            fs::write(&log, lines.join("\n")).unwrap();
            succeed("sync", [log]);
        };
        write("read", written::written_lines(top));
        written::change_again(&top.join("vault"));
        write("changed", written::written_lines(top));
        return;
    }
    let vault = kind.encrypt_dir(top);
    if !flag.is_empty() {
        succeed("chattr", [flag.as_ref(), vault.as_os_str()]);
    }
    fill(&vault);
}
