//! f2fs volumes with features that Debian's User-Mode Linux lacks, written by a kernel that has them.
//!
//! `scripts/judge-kernel` builds that kernel in about 15 minutes of a CPU, too long for CI. By hand:
//! `scripts/judge-kernel && PATH=$PWD/.cache/judges/bin:$PATH cargo test -p steadfs-suite --test f2fs_features -- --ignored`
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use rustix::io::Errno;
use steadfs_suite::f2fs::{check_clean, mkfs};
use steadfs_suite::generate::{Numbers, plain};
use steadfs_suite::uml::{TOP, boot_with_all_of_f2fs};
use steadfs_suite::{Scratch, SteadMount, Tree, run, succeed};

const SIZE: u64 = 256 << 20;

/// Files of text, of noise, and of both, of sizes around clusters.
fn source(scratch: &Scratch) -> std::path::PathBuf {
    let top = scratch.folder("source");
    plain(&top, 3, 40);
    let mut numbers = Numbers::new(11);
    let text: Vec<u8> = (0..300_000_u64)
        .flat_map(|n| format!("{} ", n * n % 977).into_bytes())
        .collect();
    for (n, size) in [1, 4096, 16_384, 16_385, 70_000, 1_000_000]
        .iter()
        .enumerate()
    {
        fs::write(top.join(format!("text{n}")), &text[..*size]).unwrap();
        fs::write(top.join(format!("noise{n}")), numbers.bytes(*size)).unwrap();
        let mixed = [&text[..*size], &numbers.bytes(5000)].concat();
        fs::write(top.join(format!("mixed{n}")), mixed).unwrap();
    }
    top
}

#[test]
#[ignore = "needs scripts/judge-kernel"]
fn files_that_linux_compressed_read_back() {
    let scratch = Scratch::new();
    let from = source(&scratch);
    let expected = Tree::of(&from);
    for options in [
        "compress_algorithm=lz4",
        "compress_algorithm=lz4:9,compress_chksum",
        "compress_algorithm=lzo,compress_log_size=3",
        "compress_algorithm=lzo-rle",
        "compress_algorithm=zstd:3,compress_log_size=4",
    ] {
        let name = format!("{}.img", options.replace([',', '=', ':'], "-"));
        let image = mkfs(
            &scratch,
            &name,
            SIZE,
            "-O extra_attr,inode_checksum,compression",
        );
        let script = format!(
            "mount -t f2fs -o {options},compress_extension=* /dev/ubda {TOP}\n\
             cp -a {}/. {TOP}/\nsync\numount {TOP}",
            from.display()
        );
        boot_with_all_of_f2fs(&scratch, &[image.path()], &script);
        check_clean(image.path(), options);
        let mount = SteadMount::new(&scratch, image.path(), "ro");
        let found = Tree::of(mount.root());
        // Times are those of the guest, which reads the host's in seconds.
        for (path, node) in &expected.nodes {
            let name = String::from_utf8_lossy(path);
            let read = found
                .nodes
                .get(path)
                .unwrap_or_else(|| panic!("{options}: {name}"));
            assert_eq!(read.content, node.content, "{options}: {name}");
            assert_eq!(read.target, node.target, "{options}: {name}");
        }
        assert_eq!(found.len(), expected.len(), "{options}");
        mount.unmount();
    }
}

/// Files that are compressed here are read and changed by Linux, and then read here again.
#[test]
#[ignore = "needs scripts/judge-kernel"]
fn linux_reads_and_changes_what_is_compressed_here() {
    let scratch = Scratch::new();
    let top = source(&scratch);
    let from = top.display();
    for options in [
        "compress_algorithm=lz4",
        "compress_algorithm=lz4,compress_log_size=3,compress_chksum",
        "compress_algorithm=lzo",
        "compress_algorithm=lzo-rle,compress_log_size=3,compress_chksum",
        "compress_algorithm=zstd:3",
        "compress_algorithm=zstd,compress_log_size=4",
    ] {
        let options = format!("{options},compress_extension=*");
        let name = format!("{}.img", options.replace([',', '=', ':', '*'], "-"));
        let features = "-O extra_attr,inode_checksum,compression";
        let image = mkfs(&scratch, &name, SIZE, features);
        let mount = SteadMount::new(&scratch, image.path(), &options);
        let at = mount.root().display().to_string();
        succeed("cp", ["-rT", &from.to_string(), &at]);
        // In the middle of clusters, before and after they are compressed.
        let change = |n: u32| {
            format!(
                "for top in {from} {at}; do for file in text5 mixed5 noise5; do\n\
                 dd if={from}/text4 of=$top/$file bs=1000 seek={n} conv=notrunc status=none\n\
                 truncate -s {} $top/$file\ndone\ndone\nsync",
                900_001 - n * 1000
            )
        };
        succeed("sh", ["-c", &change(37)]);
        steadfs_suite::steadfs(["sync", &at]).expect(0);
        succeed("sh", ["-c", &change(155)]);
        let saved = succeed("f2fs_io", ["get_cblocks", &format!("{at}/text5")]).out;
        let is_number = |word: &&str| word.parse::<u64>().is_ok_and(|blocks| blocks > 0);
        assert!(
            saved.split_whitespace().any(|word| is_number(&word)),
            "{saved}"
        );
        mount.unmount();
        check_clean(image.path(), &options);
        let script = format!(
            "mount -t f2fs -o {options} /dev/ubda {TOP}\ndiff -r {from} {TOP}\n{}\numount {TOP}",
            change(281).replace(&at, TOP)
        );
        boot_with_all_of_f2fs(&scratch, &[image.path()], &script);
        check_clean(image.path(), &options);
        let mount = SteadMount::new(&scratch, image.path(), &options);
        let at = mount.root().display().to_string();
        succeed("diff", ["-r", &from.to_string(), &at]);
        mount.unmount();
    }
}

#[test]
#[ignore = "needs scripts/judge-kernel"]
fn what_linux_made_a_verity_file_is_verified() {
    let scratch = Scratch::new();
    let image = mkfs(&scratch, "verity.img", SIZE, "-O extra_attr,verity");
    let content = scratch.join("content");
    fs::write(&content, Numbers::new(5).bytes(300_000)).unwrap();
    let script = format!(
        "mount -t f2fs /dev/ubda {TOP}\ncp {} {TOP}/file\nsync\nfsverity enable {TOP}/file\n\
         fsverity measure {TOP}/file\numount {TOP}",
        content.display()
    );
    let said = boot_with_all_of_f2fs(&scratch, &[image.path()], &script);
    let digest = said
        .split_whitespace()
        .find(|word| word.starts_with("sha256:"));
    let digest = digest.unwrap_or_else(|| panic!("{said}"));
    check_clean(image.path(), "verity");
    let mount = SteadMount::new(&scratch, image.path(), "");
    let file = mount.join("file");
    let read = fs::read(&file).unwrap();
    assert!(read == fs::read(&content).unwrap());
    let measured = succeed("fsverity", ["measure".as_ref(), file.as_os_str()]).out;
    assert!(measured.contains(digest), "{measured} {digest}");
    mount.unmount();

    // One changed byte of content is an error, as in the kernel.
    let needle = &read[100_000..100_064];
    let mut bytes = fs::read(image.path()).unwrap();
    let at = bytes.windows(needle.len()).position(|part| part == needle);
    bytes[at.unwrap()] ^= 1;
    fs::write(image.path(), bytes).unwrap();
    let path = format!("{}:/file", image.path().display());
    let refused = run(
        steadfs_suite::stead::program().to_str().unwrap(),
        ["cat", &path],
    );
    assert_ne!(refused.code(), 0);
}

/// A policy of version 2 on a new directory: its key is added, a file, a link and a directory are made.
const ENCRYPT: &str = r#"
use strict; my ($top) = @ARGV;
opendir(my $d, $top) or die $!;
open(my $f, '<', $top) or die $!;
# struct fscrypt_add_key_arg with a raw key of 64 bytes; the identifier comes back.
my $add = pack('L L x32 L L x32', 2, 0, 64, 0) . ('k' x 64);
defined ioctl($f, 0xC0506617, $add) or die "add key: $!";
my $identifier = substr($add, 8, 16);
mkdir "$top/secret" or die $!;
open(my $s, '<', "$top/secret") or die $!;
# struct fscrypt_policy_v2: AES-256-XTS, AES-256-CTS, padding to 32 bytes.
my $policy = pack('C C C C x4 a16', 2, 1, 4, 3, $identifier);
defined ioctl($s, 0x800C6613, $policy) or die "set policy: $!";
"#;

#[test]
#[ignore = "needs scripts/judge-kernel"]
fn files_that_linux_encrypted_need_their_key() {
    let scratch = Scratch::new();
    let image = mkfs(&scratch, "encrypted.img", SIZE, "-O extra_attr,encrypt");
    let program = scratch.join("encrypt.pl");
    fs::write(&program, ENCRYPT).unwrap();
    let script = format!(
        "mount -t f2fs /dev/ubda {TOP}\nperl {} {TOP}\necho plain > {TOP}/secret/file\n\
         ln -s target {TOP}/secret/link\nmkdir {TOP}/secret/dir\necho open > {TOP}/open\numount {TOP}",
        program.display()
    );
    boot_with_all_of_f2fs(&scratch, &[image.path()], &script);
    check_clean(image.path(), "encrypted");
    // Without the key, on a second boot, the kernel's names and sizes are the judge of ours.
    let list = "stat -c '%F %s %n' *; for l in *; do test ! -L \"$l\" || readlink \"$l\"; done";
    let script = format!(
        "mount -t f2fs -o ro /dev/ubda {TOP}\ncd {TOP}/secret\n({list}) | sort\ncd /\numount {TOP}"
    );
    let kernels = boot_with_all_of_f2fs(&scratch, &[image.path()], &script);
    let mount = SteadMount::new(&scratch, image.path(), "ro");
    let ours = format!("cd {}/secret && ({list}) | sort", mount.root().display());
    let ours = succeed("sh", ["-c", &ours]).out;
    assert_eq!(ours.trim(), kernels.trim());
    let files = fs::read_dir(mount.join("secret")).unwrap();
    let paths = files.map(|entry| entry.unwrap().path());
    for path in paths.filter(|path| path.is_file()) {
        let refused = fs::File::open(&path).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::NOKEY.raw_os_error()));
    }
    assert_eq!(fs::read(mount.join("open")).unwrap(), b"open\n");
    mount.unmount();
}

/// The judge of what a mount reports as accepted without effect: Linux accepts each of these lists, too.
#[test]
#[ignore = "needs scripts/judge-kernel"]
fn linux_accepts_what_is_accepted_without_effect() {
    let lists = "lazytime norelatime noextent_cache noflush_merge compress_cache heap no_heap usrjquota=a,jqfmt=vfsv1";
    let scratch = Scratch::new();
    let image = mkfs(&scratch, "accepts.img", SIZE, "-O extra_attr,compression");
    let script = format!(
        "for list in {lists}; do mount -t f2fs -o $list /dev/ubda {TOP} && umount {TOP} && echo \"accepts $list;\"; done"
    );
    let said = boot_with_all_of_f2fs(&scratch, &[image.path()], &script);
    for list in lists.split_whitespace() {
        assert!(said.contains(&format!("accepts {list};")), "{list}: {said}");
        let options = steadfs::Options::parse(list);
        assert!(options.is_ok(), "{list}: {options:?}");
        let kind = Some(steadfs::Kind::F2fs);
        let words = steadfs::Options::without_effect(list, kind);
        assert!(!words.is_empty(), "{list}");
    }
}
