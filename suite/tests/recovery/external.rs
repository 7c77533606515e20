//! Journals on other devices: read and written beside the kernel and e2fsck.

use std::fs::{self, File};

use steadfs::{Options, Volume};
use steadfs_suite::command::run;
use steadfs_suite::stead::{program, steadfs};
use steadfs_suite::{Compare, Image, KernelMount, LoopDevice, Scratch, SteadMount, Tree};

use super::{MIB, work};

/// A volume and its journal.
struct Pair {
    volume: Image,
    log: Image,
}

impl Pair {
    fn make(scratch: &Scratch, block_size: &str) -> Self {
        let log = Image::mke2fs(
            scratch,
            &format!("log{block_size}"),
            8 * MIB,
            &["-O", "journal_dev", "-b", block_size],
        );
        let device = LoopDevice::attach(log.path(), false);
        let device = format!("device={}", device.path().display());
        let args = ["-t", "ext4", "-b", block_size, "-J", &device];
        let volume = Image::mke2fs(scratch, &format!("volume{block_size}"), 64 * MIB, &args);
        Self { volume, log }
    }

    fn copy(&self, scratch: &Scratch, name: &str) -> Self {
        Self {
            volume: self.volume.copy(scratch, name),
            log: self.log.copy(scratch, &format!("{name}-log")),
        }
    }

    fn options(&self) -> String {
        format!("journal_path={}", self.log.path().display())
    }

    fn by_us(&self, scratch: &Scratch) -> SteadMount {
        SteadMount::new(scratch, self.volume.path(), &self.options())
    }

    /// What the kernel finds after its own replay.
    fn seen_by_kernel(&self, scratch: &Scratch) -> Tree {
        let device = LoopDevice::attach(self.log.path(), false);
        let options = format!("journal_path={}", device.path().display());
        let mount = KernelMount::new(scratch, self.volume.path(), &options);
        let tree = Tree::of(mount.root());
        mount.unmount();
        tree
    }

    fn seen_by_us(&self, more: &str) -> Tree {
        let options = Options::parse(&format!("{}{more}", self.options())).unwrap();
        let volume = Volume::open_with(self.volume.path(), &options).unwrap();
        let tree = Tree::of_volume(&*volume.fs());
        volume.close().unwrap();
        tree
    }

    /// Lets e2fsck replay the log; it must repair nothing else.
    fn check(&self) {
        let log = LoopDevice::attach(self.log.path(), false);
        let volume = LoopDevice::attach(self.volume.path(), false);
        for (how, codes) in [("-fy", 0..=1), ("-fn", 0..=0)] {
            let args = [how.as_ref(), "-j".as_ref(), log.path().as_os_str()];
            let args = args.into_iter().chain([volume.path().as_os_str()]);
            let output = run("e2fsck", args);
            assert!(
                codes.contains(&output.code()),
                "{}{}",
                output.out,
                output.err
            );
        }
    }
}

#[test]
fn we_replay_the_kernels_journal_on_another_device() {
    for block_size in ["1024", "4096"] {
        let scratch = Scratch::new();
        let made = Pair::make(&scratch, block_size);
        let log = LoopDevice::attach(made.log.path(), false);
        let options = format!("commit=300,journal_path={}", log.path().display());
        let mount = KernelMount::new(&scratch, made.volume.path(), &options);
        work(mount.root(), 1, 300);
        File::create(mount.join("last"))
            .unwrap()
            .sync_all()
            .unwrap();
        let cut = made.copy(&scratch, "cut");
        mount.unmount();
        assert!(cut.volume.needs_recovery());

        let theirs = cut.copy(&scratch, "theirs").seen_by_kernel(&scratch);
        let before = fs::read(cut.volume.path()).unwrap();
        let in_memory = cut.seen_by_us(",ro");
        assert!(
            fs::read(cut.volume.path()).unwrap() == before,
            "it was written"
        );
        let ours = cut.seen_by_us("");
        assert!(ours.len() > 20);
        theirs.assert_same(&ours, Compare::ALL, block_size);
        in_memory.assert_same(&ours, Compare::ALL, "in memory");
        cut.check();
    }
}

#[test]
fn a_journal_on_another_device_has_what_was_synced() {
    for block_size in ["1024", "4096"] {
        let scratch = Scratch::new();
        let made = Pair::make(&scratch, block_size);
        let mount = made.by_us(&scratch);
        work(mount.root(), 2, 300);
        File::create(mount.join("last"))
            .unwrap()
            .sync_all()
            .unwrap();
        mount.kill();
        assert!(made.volume.needs_recovery());
        let theirs = made.copy(&scratch, "theirs").seen_by_kernel(&scratch);
        made.copy(&scratch, "checked").check();

        let mount = made.by_us(&scratch);
        assert!(mount.join("last").exists());
        let ours = Tree::of(mount.root());
        theirs.assert_same(&ours, Compare::ALL, block_size);
        mount.unmount_corrupt(); // which lets no e2fsck look for the journal
        made.check();
    }
}

#[test]
fn commands_take_a_journal_on_another_device_and_refuse_a_wrong_one() {
    let scratch = Scratch::new();
    let made = Pair::make(&scratch, "4096");
    let name = made.volume.path().to_str().unwrap();
    let options = made.options();
    let file = format!("{name}:/hostname");
    steadfs(["cp", "-o", &options, "/etc/hostname", &file]).expect(0);
    let shown = steadfs(["cat", "-o", &options, &file]).expect(0).out;
    assert_eq!(shown, fs::read_to_string("/etc/hostname").unwrap());
    steadfs(["check", "-o", &options, name]).expect(0);
    made.check();

    let before = fs::read(made.volume.path()).unwrap();
    let journal = format!("device={}", made.log.path().display());
    let output = steadfs(["format", "-q", "-F", "-J", &journal, name])
        .expect(1)
        .err;
    assert!(output.contains("a volume has this journal"), "{output}");
    assert!(
        fs::read(made.volume.path()).unwrap() == before,
        "it was written"
    );

    let ro = format!("ro,{options}");
    let mount = SteadMount::new(&scratch, made.volume.path(), &ro);
    let output = steadfs(["remount", "-o", "rw", mount.root().to_str().unwrap()]);
    assert!(
        output.code() != 0 && output.err.contains("without ro"),
        "{}",
        output.err
    );
    mount.unmount();

    let other = Pair::make(&scratch, "1024");
    let inside = Image::mke2fs(&scratch, "inside", 64 * MIB, &["-t", "ext4"]);
    let inside = inside.path().to_str().unwrap();
    for (volume, options, words) in [
        (name, other.options(), "another volume"),
        (name, format!("journal_path={name}"), name),
        (
            name,
            format!("journal_path={inside}"),
            "no external journal",
        ),
        (name, "journal_path=/nowhere".to_owned(), "/nowhere"),
        (name, "journal_dev=x".to_owned(), "no number"),
        (inside, made.options(), "is inside it"),
    ] {
        for command in [&["mount", "-o"][..], &["ls", "-o"], &["check", "-o"]] {
            let root = scratch.folder("root");
            let mut args = command.to_vec();
            args.extend([&options, volume]);
            if command[0] == "mount" {
                args.push(root.to_str().unwrap());
            }
            let output = steadfs(&args);
            assert!(output.code() != 0, "{options} {volume}");
            assert!(output.err.contains(words), "{options}: {}", output.err);
        }
    }
}

/// Byte for byte, but for the count of kilobytes written.
#[test]
fn format_makes_the_journals_and_volumes_of_mke2fs() {
    const DEVICE: std::ops::Range<usize> = 1024 + 0xE4..1024 + 0xE8;
    const IDS: [&str; 2] = [
        "5eadf5ba-0000-4000-8000-000000000001",
        "5eadf5ba-0000-4000-8000-000000000002",
    ];
    let scratch = Scratch::new();
    for block_size in ["1024", "4096", "65536"] {
        let size = 70 * MIB;
        let made = |us: bool, name: &str, args: &[&str]| {
            let image = Image::empty(&scratch, &format!("{name}-{block_size}"), size);
            let path = image.path().to_str().unwrap();
            let extended = format!("hash_seed={}", IDS[0]);
            let all = ["-q", "-F", "-b", block_size, "-E", &extended];
            let all = all.iter().chain(args).chain([&path]);
            let (time, maker) = match us {
                true => ("SOURCE_DATE_EPOCH=1700000000", program().to_str().unwrap()),
                false => ("E2FSPROGS_FAKE_TIME=1700000000", "mke2fs"),
            };
            let maker = [time, maker].into_iter().chain(us.then_some("format"));
            run("env", maker.chain(all.copied())).expect(0);
            image
        };
        let pair = |us: bool| {
            let name = if us { "ours" } else { "theirs" };
            let log = made(
                us,
                &format!("{name}-log"),
                &["-O", "journal_dev", "-U", IDS[0]],
            );
            let device = LoopDevice::attach(log.path(), false);
            let journal = format!("device={}", device.path().display());
            let volume = made(us, name, &["-t", "ext4", "-U", IDS[1], "-J", &journal]);
            let volume = fs::read(volume.path()).unwrap();
            let number = device
                .path()
                .to_str()
                .unwrap()
                .trim_start_matches("/dev/loop");
            let number = 7 << 8 | number.parse::<u32>().unwrap();
            assert_eq!(volume[DEVICE], number.to_le_bytes(), "s_journal_dev");
            ([volume, fs::read(log.path()).unwrap()], device)
        };
        let ((ours, _device), (theirs, _other)) = (pair(true), pair(false));
        // s_journal_dev (each pair has a loop device of its own), s_kbytes_written and s_checksum, in
        // copies, too.
        let counts = |n: &usize| {
            [0xE4..0xE8, 0x178..0x180, 0x3FC..0x400]
                .iter()
                .any(|range| range.contains(&(n % 1024)))
        };
        for (part, (ours, theirs)) in ["volume", "log"].iter().zip(ours.into_iter().zip(theirs)) {
            let differs = (0..ours.len()).find(|n| ours[*n] != theirs[*n] && !counts(n));
            assert_eq!(differs, None, "{part} with blocks of {block_size}");
        }
    }
}

/// The server of a mount has another working directory than the caller.
#[test]
fn the_path_of_a_journal_is_that_of_the_caller() {
    let scratch = Scratch::new();
    let made = Pair::make(&scratch, "4096");
    let root = scratch.folder("root");
    let folder = made.log.path().parent().unwrap().to_str().unwrap();
    let log = made.log.path().file_name().unwrap().to_str().unwrap();
    let line = format!(
        "cd {folder} && exec {} mount -o journal_path={log} {} {}",
        program().display(),
        made.volume.path().display(),
        root.display()
    );
    run("sh", ["-c", &line]).expect(0);
    let shown = fs::read_to_string(root.join(".steadfs/options")).unwrap();
    assert!(
        shown.contains(&format!("journal_path={folder}/{log}")),
        "{shown}"
    );
    steadfs(["umount", root.to_str().unwrap()]).expect(0);
    made.check();
}
