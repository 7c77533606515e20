//! f2fs volumes on several devices, beside mkfs.f2fs, fsck.f2fs and the kernel.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use steadfs_suite::generate::{Numbers, plain};
use steadfs_suite::uml::{TOP, boot};
use steadfs_suite::{Compare, Scratch, SteadMount, Tree, steadfs, succeed};

const MIB: u64 = 1 << 20;

/// Images of these sizes in MiB, which are not whole segments.
fn images(scratch: &Scratch, name: &str) -> Vec<PathBuf> {
    let sizes = [(40, 0), (20, 4096), (57, 700 * 512)];
    let make = |(number, (mib, more)): (usize, (u64, u64))| {
        let path = scratch.join(&format!("{name}{number}"));
        File::create(&path)
            .unwrap()
            .set_len(mib * MIB + more)
            .unwrap();
        path
    };
    sizes.into_iter().enumerate().map(make).collect()
}

fn options(images: &[PathBuf]) -> String {
    let items = images[1..]
        .iter()
        .map(|path| format!("device={}", path.display()));
    items.collect::<Vec<_>>().join(",")
}

/// Arguments of both programs.
fn format_args<'a>(images: &'a [PathBuf], first: &[&'a str]) -> Vec<&'a str> {
    let others = images[1..].iter();
    let others = others.flat_map(|path| ["-c", path.to_str().unwrap()]);
    let args = first.iter().copied().chain(others);
    args.chain([images[0].to_str().unwrap()]).collect()
}

/// Files that fill most of the volume, so that each device has some.
fn fill(top: &Path) {
    plain(top, 3, 40);
    let mut numbers = Numbers::new(45);
    for n in 0..5 {
        let path = top.join(format!("large{n}"));
        fs::write(&path, numbers.bytes(8 << 20)).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
    }
}

/// fsck.f2fs finds the other devices by the superblock.
fn check(images: &[PathBuf]) {
    let first = images[0].to_str().unwrap();
    succeed("fsck.f2fs", ["--dry-run", first]);
    steadfs(["check", "-o", &options(images), first]).expect(0);
}

/// Clears what is not the same in both superblocks: the names of the programs (`version`, `init_version`), and what mkfs.f2fs
/// copies from its memory behind the end of a path.
fn comparable(bytes: &mut [u8]) {
    for copy in [1024, 5120] {
        bytes[copy + 1668..copy + 2180].fill(0);
        for path in bytes[copy + 2201..copy + 2745].chunks_mut(68) {
            let end = path[..64].iter().position(|byte| *byte == 0);
            path[end.unwrap()..64].fill(0);
        }
    }
}

#[test]
fn volumes_are_made_as_by_mkfs_and_hold_what_was_synced() {
    let scratch = Scratch::new();
    let made = images(&scratch, "dev");
    let fixed = [
        "-U",
        "01234567-89ab-cdef-0123-456789abcdef",
        "-T",
        "1700000000",
        "-r",
    ];
    succeed(
        "mkfs.f2fs",
        format_args(&made, &[&["-q", "-f"][..], &fixed].concat()),
    );
    let theirs: Vec<Vec<u8>> = made.iter().map(|path| fs::read(path).unwrap()).collect();
    for path in &made {
        let size = fs::metadata(path).unwrap().len();
        File::create(path).unwrap().set_len(size).unwrap();
    }
    let first = ["format", "-t", "f2fs", "-q"];
    steadfs(format_args(&made, &[&first[..], &fixed].concat())).expect(0);
    for (number, (path, mut theirs)) in made.iter().zip(theirs).enumerate() {
        let mut ours = fs::read(path).unwrap();
        if number == 0 {
            comparable(&mut ours);
            comparable(&mut theirs);
        }
        assert!(ours == theirs, "{}", path.display());
    }
    check(&made);

    // The second mount compares what the first one has read.
    let all = format!("noatime,{}", options(&made));
    let mount = SteadMount::new(&scratch, &made[0], &all);
    fill(mount.root());
    let expected = Tree::of(mount.root());
    steadfs(["sync".as_ref(), mount.root().as_os_str()]).expect(0);
    mount.kill();
    for path in &made[1..] {
        let file = File::open(path).unwrap();
        let mut block = [0; 4096];
        let is_used = |n: u64| {
            file.read_exact_at(&mut block, n * MIB).unwrap();
            block != [0; 4096]
        };
        assert!((0..19).any(is_used), "{}: nothing is there", path.display());
    }
    let mount = SteadMount::new(&scratch, &made[0], &all);
    let found = Tree::of(mount.root());
    expected.assert_same(&found, Compare::ALL, "after the server was killed");
    mount.unmount_corrupt(); // which does not look for the other devices
    check(&made);
}

#[test]
fn linux_reads_what_is_written_here_and_the_other_way_round() {
    let scratch = Scratch::new();
    let made = images(&scratch, "dev");
    let from = scratch.folder("from");
    fill(&from);
    let all: Vec<&Path> = made.iter().map(PathBuf::as_path).collect();
    // The kernel takes the names of its own devices.
    let script = format!(
        "mkfs.f2fs -q -f -c /dev/ubdb -c /dev/ubdc /dev/ubda\nmount -t f2fs /dev/ubda {TOP}\n\
         cp -a {0}/large[0-2] {TOP}/\numount {TOP}",
        from.display()
    );
    boot(&scratch, &all, &script);
    let mount = SteadMount::new(&scratch, &made[0], &options(&made));
    for n in 0..3 {
        let name = format!("large{n}");
        assert!(fs::read(mount.join(&name)).unwrap() == fs::read(from.join(&name)).unwrap());
    }
    let script = format!("cp -a {}/. {}/", from.display(), mount.root().display());
    succeed("sh", ["-c", &script]);
    mount.unmount_corrupt();
    let script = format!(
        "fsck.f2fs --dry-run /dev/ubda\nmount -t f2fs /dev/ubda {TOP}\ndiff -r {} {TOP}\numount {TOP}",
        from.display()
    );
    boot(&scratch, &all, &script);
}

#[test]
fn commands_take_all_devices_and_refuse_others() {
    let scratch = Scratch::new();
    let made = images(&scratch, "dev");
    steadfs(format_args(&made, &["format", "-t", "f2fs", "-q"])).expect(0);
    let name = made[0].to_str().unwrap();
    let file = format!("{name}:/text");
    let all = options(&made);
    let text = scratch.join("text");
    fs::write(&text, "content\n").unwrap();
    steadfs(["cp", "-o", &all, text.to_str().unwrap(), &file]).expect(0);
    let shown = steadfs(["cat", "-o", &all, &file]).expect(0).out;
    assert_eq!(shown, "content\n");
    check(&made);
    let shown = steadfs(["inspect", name]).expect(0).out;
    assert!(
        shown.contains(&format!("{} (40 MiB)", made[0].display())),
        "{shown}"
    );
    assert!(
        shown.contains(&format!("{} (56 MiB)", made[2].display())),
        "{shown}"
    );

    let second = made[1].display();
    let third = made[2].display();
    let before: Vec<Vec<u8>> = made.iter().map(|path| fs::read(path).unwrap()).collect();
    for (list, why) in [
        (
            String::new(),
            format!("-o device=PATH,device=PATH in the order {second} (20 MiB), {third} (56 MiB)"),
        ),
        (
            format!("device={second}"),
            "1 devices are named beside the first; the volume is on 3".to_owned(),
        ),
        (
            format!("device={third},device={second}"),
            format!("{third} is number 3 of the volume's devices, and is named as number 2"),
        ),
        (format!("{all},device=/dev/null"), "/dev/null".to_owned()),
        // Reading finds the wrong order, writing the lock of the first time.
        (
            format!("device={second},device={second}"),
            second.to_string(),
        ),
    ] {
        let list = if list.is_empty() { "rw" } else { &list };
        let said = steadfs(["cat", "-o", list, &file]).expect(1).err;
        assert!(said.contains(&why), "{list}: {said}");
        let refused = SteadMount::attempt(&scratch, &made[0], list)
            .map(drop)
            .unwrap_err();
        assert!(refused.1.contains(&why), "{list}: {}", refused.1);
    }
    let said = steadfs(["check", name]).expect(8).err;
    assert!(said.contains("on 3 devices"), "{said}");
    let after: Vec<Vec<u8>> = made.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(before == after, "they were written");
    let said = steadfs(["format", "-t", "f2fs", "-q", "-c", name, name])
        .expect(1)
        .err;
    assert!(
        said.contains("holds a volume") || said.contains("use"),
        "{said}"
    );
}
