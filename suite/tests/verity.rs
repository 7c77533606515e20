//! Verity files, made on mounts and on images. fsverity(1) is the judge of digests, and a kernel that of what it reads.
//!
//! For that the kernel of `scripts/judge-kernel` is needed. By hand:
//! `scripts/judge-kernel && PATH=$PWD/.cache/judges/bin:$PATH cargo test -p steadfs-suite --test verity -- --ignored`
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::io::Errno;
use steadfs_suite::f2fs::{check_clean, mkfs};
use steadfs_suite::generate::Numbers;
use steadfs_suite::uml::{TOP, boot_with_all_of_f2fs};
use steadfs_suite::{Image, Scratch, SteadMount, run, steadfs, succeed};

const SIZE: u64 = 128 << 20;

/// A kind of volume.
struct Volume {
    name: &'static str,
    image: Image,
    block: usize,
}

impl Volume {
    fn is_ext4(&self) -> bool {
        self.name.starts_with("ext4")
    }

    fn check(&self) {
        match self.is_ext4() {
            true => self.image.check_clean(),
            false => drop(check_clean(self.image.path(), self.name)),
        }
    }
}

fn volumes(scratch: &Scratch) -> Vec<Volume> {
    let ext4 = |name, block: usize| Volume {
        name,
        image: Image::mke2fs(
            scratch,
            &format!("{name}.img"),
            SIZE,
            &[
                "-t",
                "ext4",
                "-O",
                "verity,encrypt",
                "-b",
                &block.to_string(),
            ],
        ),
        block,
    };
    let features = "-O extra_attr,inode_checksum,verity,encrypt,compression";
    vec![
        ext4("ext4", 4096),
        ext4("ext4-1k", 1024),
        Volume {
            name: "f2fs",
            image: mkfs(scratch, "f2fs.img", SIZE, features),
            block: 4096,
        },
    ]
}

/// Contents of sizes around those of blocks and levels, with holes, and cut in a block; options of fsverity(1).
fn files(dir: &Path, block: usize) -> Vec<(String, Vec<String>)> {
    let sizes = [
        0,
        1,
        4095,
        4096,
        4097,
        65_536,
        128 * 4096,
        128 * 4096 + 1,
        3_000_001,
    ];
    let mut numbers = Numbers::new(5);
    let mut files = Vec::new();
    let usual = format!("--block-size={block}");
    for size in sizes {
        let name = format!("size{size}");
        fs::write(dir.join(&name), numbers.bytes(size)).unwrap();
        files.push((name, vec![usual.clone()]));
    }
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for (name, options) in [
        ("salt", "--salt=0123456789abcdef --block-size=1024"),
        ("sha512", "--hash-alg=sha512 --block-size=1024 --salt=ff"),
        ("levels", "--block-size=1024"),
        ("whole", &format!("--hash-alg=sha512 --salt=ff01 {usual}")),
    ] {
        fs::write(dir.join(name), numbers.bytes(1_200_000)).unwrap();
        files.push((name.to_owned(), words(options)));
    }
    let holes = File::create(dir.join("holes")).unwrap();
    holes.set_len(2_000_000).unwrap();
    std::os::unix::fs::FileExt::write_at(&holes, b"there", 700_000).unwrap();
    files.push(("holes".to_owned(), vec![usual]));
    files
}

/// The digest that `fsverity` finds, in the words of its commands.
fn digest(program: &Path, options: &[String]) -> String {
    let args = ["digest".to_owned()].into_iter().chain(options.to_vec());
    let out = succeed("fsverity", args.chain([program.display().to_string()])).out;
    out.split_whitespace().next().unwrap().to_owned()
}

fn measured(file: &Path) -> String {
    let out = succeed("fsverity", ["measure".as_ref(), file.as_os_str()]).out;
    out.split_whitespace().next().unwrap().to_owned()
}

fn enable(file: &Path, options: &[String]) {
    let args = ["enable".to_owned()].into_iter().chain(options.to_vec());
    succeed("fsverity", args.chain([file.display().to_string()]));
}

fn errno(result: std::io::Result<impl Sized>) -> Option<Errno> {
    result.err().as_ref().and_then(Errno::from_io_error)
}

#[test]
fn programs_make_and_measure_verity_files_on_mounts() {
    let scratch = Scratch::new();
    for volume in volumes(&scratch) {
        let from = scratch.folder(volume.name);
        let mount = SteadMount::new(&scratch, volume.image.path(), "");
        for (name, options) in files(&from, volume.block) {
            let (source, file) = (from.join(&name), mount.join(&name));
            // Cut in a block, whose rest the kernel hashes as zeros.
            succeed(
                "cp",
                [
                    "--sparse=always".as_ref(),
                    source.as_os_str(),
                    file.as_os_str(),
                ],
            );
            let longer = OpenOptions::new().append(true).open(&file).unwrap();
            std::io::Write::write_all(&mut &longer, &[7; 5000]).unwrap();
            longer.sync_all().unwrap();
            let size = fs::metadata(&source).unwrap().len();
            longer.set_len(size).unwrap();
            drop(longer);
            enable(&file, &options);
            assert_eq!(measured(&file), digest(&source, &options), "{name}");
            assert!(fs::read(&file).unwrap() == fs::read(&source).unwrap());
            let write = OpenOptions::new().write(true).open(&file);
            assert_eq!(errno(write), Some(Errno::PERM));
        }
        busy_and_foreign_files_are_refused(&mount, volume.block);
        let one = mount.join("one");
        fs::write(&one, b"content").unwrap();
        let one = one.display().to_string();
        steadfs(["verity", "enable", "--salt", "0a0b", &one]).expect(0);
        let shown = steadfs(["verity", "measure", &one]).expect(0).out;
        assert_eq!(shown, format!("{} {one}\n", measured(Path::new(&one))));
        let again = steadfs(["verity", "enable", &one]).expect(32).err;
        assert!(again.contains("exists"), "{again}");
        mount.unmount();
        volume.check();
        let place = format!("{}:/size4097", volume.image.path().display());
        let shown = steadfs(["verity", "measure", &place]).expect(0).out;
        let block = format!("--block-size={}", volume.block);
        let wanted = digest(&from.join("size4097"), &[block]);
        assert_eq!(shown, format!("{wanted} {place}\n"));
    }
}

fn busy_and_foreign_files_are_refused(mount: &SteadMount, block: usize) {
    let file = mount.join("busy");
    fs::write(&file, b"content").unwrap();
    let writer = OpenOptions::new().write(true).open(&file).unwrap();
    let options = format!("--block-size={block}");
    let args = || ["enable".as_ref(), options.as_ref(), file.as_os_str()];
    let busy = run("fsverity", args()).err;
    assert!(busy.contains("Text file busy"), "{busy}");
    drop(writer);
    // Readable for all, but writable for its owner only.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let user = "setpriv --reuid 65534 --regid 65534 --clear-groups fsverity enable";
    let by_user = || {
        run(
            "sh",
            ["-c", &format!("{user} {options} {}", file.display())],
        )
    };
    let foreign = by_user().err;
    assert!(foreign.contains("Permission denied"), "{foreign}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o646)).unwrap();
    by_user().expect(0);
    assert_eq!(fs::read(&file).unwrap(), b"content");
}

/// Adds a key of 64 letters to the volume that is mounted here.
const ADD_KEY: &str = r#"
use strict; my ($top) = @ARGV;
open(my $f, '<', $top) or die $!;
# struct fscrypt_add_key_arg with a raw key.
my $add = pack('L L x32 L L x32', 2, 0, 64, 0) . ('k' x 64);
defined ioctl($f, 0xC0506617, $add) or die "add key: $!";
"#;

/// Makes verity files: half of them on the image, half on a mount, and one in an encrypted directory `vault`.
fn make_on(
    scratch: &Scratch,
    volume: &Volume,
    from: &Path,
    made: &[(String, Vec<String>)],
    key: &Path,
) {
    let image = volume.image.path().display().to_string();
    let (on_image, on_mount) = made.split_at(made.len() / 2);
    for (name, options) in on_image {
        let source = from.join(name).display().to_string();
        let place = format!("{image}:/{name}");
        steadfs(["cp", &source, &place]).expect(0);
        let args = ["verity", "enable"].map(str::to_owned).into_iter();
        steadfs(args.chain(options.clone()).chain([place])).expect(0);
    }
    let mount = SteadMount::new(scratch, volume.image.path(), "");
    let root = mount.root().display().to_string();
    for (name, options) in on_mount {
        let file = mount.join(name);
        succeed("cp", [from.join(name).as_os_str(), file.as_os_str()]);
        enable(&file, options);
    }
    // In an encrypted directory.
    let vault = mount.join("vault");
    fs::create_dir(&vault).unwrap();
    let named = steadfs(["key", "add", &root, &key.display().to_string()])
        .expect(0)
        .out;
    let vault_at = vault.display().to_string();
    steadfs(["key", "set-policy", &vault_at, named.trim()]).expect(0);
    let secret = vault.join("size3000001");
    succeed(
        "cp",
        [from.join("size3000001").as_os_str(), secret.as_os_str()],
    );
    enable(&secret, &[]);
    mount.unmount();
    volume.check();
}

/// Linux 6.1 has verity with blocks of a page only.
#[test]
#[ignore = "needs scripts/judge-kernel"]
fn linux_verifies_the_verity_files_that_we_make() {
    let scratch = Scratch::new();
    let (key, add_key) = (scratch.join("key"), scratch.join("add-key.pl"));
    fs::write(&key, [b'k'; 64]).unwrap();
    fs::write(&add_key, ADD_KEY).unwrap();
    for volume in volumes(&scratch).into_iter().filter(|v| v.block == 4096) {
        let from = scratch.folder(volume.name);
        let mut made = files(&from, volume.block);
        made.retain(|(_, options)| !options.contains(&"--block-size=1024".to_owned()));
        make_on(&scratch, &volume, &from, &made, &key);
        let kind = if volume.is_ext4() { "ext4" } else { "f2fs" };
        let mut script = format!(
            "mount -t {kind} /dev/ubda {TOP}\nperl {} {TOP}\n",
            add_key.display()
        );
        let vaulted = ("vault/size3000001".to_owned(), Vec::new());
        made.push(vaulted);
        let mut wanted = Vec::new();
        for (name, options) in &made {
            let source = from.join(name.trim_start_matches("vault/"));
            wanted.push(digest(&source, options));
            writeln!(
                script,
                "cmp {} {TOP}/{name}\nfsverity measure {TOP}/{name}\n! sh -c 'echo x >> {TOP}/{name}' 2>/dev/null",
                source.display()
            )
            .unwrap();
        }
        // What the kernel removes it frees with its tree.
        script += &format!("rm {TOP}/holes {TOP}/vault/*\nsync\numount {TOP}");
        let said = boot_with_all_of_f2fs(&scratch, &[volume.image.path()], &script);
        let found: Vec<&str> = said
            .lines()
            .filter(|line| line.starts_with("sha"))
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        assert_eq!(found, wanted, "{}: {said}", volume.name);
        volume.check();
    }
}
