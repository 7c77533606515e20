//! Freezing and thawing, on devices that may fail.

use steadfs_block::{Fault, FaultDevice, Op};

use steadfs_base::Corruption;
use steadfs_rt::{sim, spawn};

use super::*;

/// The next writes of the superblock meet `fault`.
fn next_superblocks(device: &FaultDevice, count: u32, fault: Fault) {
    let superblock = |bio: &Bio| bio.op == Op::Write && bio.offset <= 1024;
    device.next(count, superblock, fault);
}

fn freeze(fs: &Ext4, value: &str) -> Result<()> {
    fs.control().unwrap().write("ext4/freeze", value.as_bytes())
}

fn errors(fs: &Ext4) -> String {
    let said = fs.control().unwrap().read("errors").unwrap();
    String::from_utf8(said).unwrap()
}

/// A file that is made durable.
fn durable(fs: &Ext4, name: &[u8], data: &[u8]) -> Result<()> {
    let attr = FileSystem::mknod(fs, &cx(), ROOT, name, 0o100_644, 0)?;
    let done = fs
        .write(&cx(), attr.ino, 0, data, false)
        .and_then(|_| fs.fsync(&cx(), attr.ino, false));
    fs.forget(attr.ino, 1);
    done
}

const KINDS: [&[&str]; 4] = [
    EXT4,
    &["-t", "ext4", "-O", "^orphan_file"],
    &["-t", "ext3"],
    &["-t", "ext2"],
];

/// The error is reported, nothing is changed below the clean mark, and acknowledged data is there.
#[test]
fn a_thaw_on_a_device_that_fails_stops_the_volume() {
    for mount in ["", "nobarrier", "errors=continue", "errors=remount-ro"] {
        for options in KINDS {
            for fault in [Fault::Fail, Fault::Misreport] {
                let image = Image::make(options, "32M");
                let device = FaultDevice::new(image.device());
                let fs = open(Arc::clone(&device) as _, mount);
                durable(&fs, b"before", &[7; 10_000]).unwrap();
                let attr = FileSystem::mknod(&*fs, &cx(), ROOT, b"gone", 0o100_644, 0).unwrap();
                FileSystem::unlink(&*fs, &cx(), ROOT, b"gone").unwrap();
                freeze(&fs, "1").unwrap();
                fs.forget(attr.ino, 1);
                next_superblocks(&device, 1, fault);
                let said = freeze(&fs, "0").unwrap_err();
                assert!(matches!(said, FsError::Io(_)), "{mount}: {said}");
                assert!(errors(&fs).contains("stopped: the superblock"), "{mount}");
                let before = device.changes();
                for _ in 0..2 {
                    let refused = durable(&fs, b"after", b"");
                    let turned = matches!(refused, Err(FsError::TurnedReadOnly(_)));
                    assert!(turned, "{refused:?}");
                    // A stopped volume can be neither thawed nor frozen.
                    freeze(&fs, "0").unwrap();
                    assert!(freeze(&fs, "1").is_err());
                }
                assert_eq!(read(&fs, b"before"), [7; 10_000]);
                assert!(matches!(fs.close(), Err(FsError::Stopped(_))));
                assert_eq!(device.changes(), before, "a stopped volume was written");
                let fs = open(Arc::clone(&device.memory) as _, "");
                assert_eq!(read(&fs, b"before"), [7; 10_000]);
                fs.close().unwrap();
                judge(&image, &device.memory);
            }
        }
    }
}

/// The state of the device is unknown, so the remount is not retried, and the error names the first cause.
#[test]
fn a_volume_that_could_not_become_writable_stops() {
    for mount in ["", "nobarrier"] {
        for options in KINDS {
            for fault in [Fault::Fail, Fault::Misreport] {
                let what = format!("{mount} {options:?}");
                let image = Image::make(options, "32M");
                let device = FaultDevice::new(image.device());
                let fs = open(Arc::clone(&device) as _, mount);
                durable(&fs, b"before", &[7; 10_000]).unwrap();
                fs.remount(&cx(), "ro").unwrap();
                next_superblocks(&device, 1, fault);
                let said = fs.remount(&cx(), "rw").unwrap_err();
                assert!(matches!(said, FsError::Io(_)), "{what}: {said}");
                let changes = device.changes();
                for _ in 0..2 {
                    let said = fs.remount(&cx(), "rw").unwrap_err();
                    assert!(matches!(said, FsError::Stopped(_)), "{what}: {said}");
                    let word = "could not become writable";
                    assert!(said.to_string().contains(word), "{what}: {said}");
                }
                assert!(fs.options().starts_with("ro"), "{what}");
                assert!(durable(&fs, b"after", b"").is_err(), "{what}");
                assert_eq!(read(&fs, b"before"), [7; 10_000]);
                assert!(matches!(fs.close(), Err(FsError::Stopped(_))));
                assert_eq!(device.changes(), changes, "a stopped volume was written");
                let fs = open(Arc::clone(&device.memory) as _, "");
                assert_eq!(read(&fs, b"before"), [7; 10_000]);
                durable(&fs, b"after", &[8; 10_000]).unwrap();
                fs.close().unwrap();
                judge(&image, &device.memory);
            }
        }
    }
}

/// Whether or not the mark reached the device: data acknowledged afterwards survives a crash, or none is acknowledged.
#[test]
fn a_volume_that_could_not_be_marked_clean_is_not_taken_for_clean() {
    for mount in ["", "nobarrier"] {
        for options in KINDS {
            for (fault, word, count) in [
                (Fault::Fail, "freeze", 1),
                (Fault::Misreport, "freeze", 1),
                (Fault::Misreport, "freeze", 2),
                (Fault::Misreport, "ro", 1),
                (Fault::Misreport, "ro", 2),
            ] {
                let what = format!("{mount} {options:?} {word} {count}");
                let image = Image::make(options, "32M");
                let device = FaultDevice::new(image.device());
                let fs = open(Arc::clone(&device) as _, mount);
                durable(&fs, b"before", &[7; 10_000]).unwrap();
                next_superblocks(&device, count, fault);
                let said = match word {
                    "freeze" => freeze(&fs, "1"),
                    word => fs.remount(&cx(), word),
                };
                assert!(matches!(said, Err(FsError::Io(_))), "{what}: {said:?}");
                let shown = fs.control().unwrap().read("ext4/freeze").unwrap();
                assert_eq!(shown, b"0\n", "{what}");
                let after = durable(&fs, b"after", &[8; 10_000]);
                // With barriers, a write that fails is a FLUSH that failed, after which nothing is written.
                let goes_on = mount == "nobarrier" && count == 1;
                assert_eq!(after.is_ok(), goes_on, "{what}: {after:?}");
                assert_eq!(fs.options().starts_with("rw"), goes_on, "{what}");
                if options.contains(&"ext2") {
                    // Without a journal e2fsck repairs after the crash; the missing clean mark requires it.
                    let sb = Superblock::parse(&device.memory.to_bytes()[1024..2048]).unwrap();
                    assert!(!goes_on || sb.state() & STATE_CLEAN == 0, "{what}");
                    let _ = fs.close();
                    continue;
                }
                // The server is killed.
                let copy = Arc::new(device.memory.copy());
                let again = open(Arc::clone(&copy) as _, "");
                assert_eq!(read(&again, b"before"), [7; 10_000], "{what}");
                if after.is_ok() {
                    assert_eq!(read(&again, b"after"), [8; 10_000], "{what}");
                }
                again.close().unwrap();
                judge(&image, &copy);
                assert_eq!(fs.close().is_ok(), goes_on, "{what}");
            }
        }
    }
}

/// A read that finds damage while the log is being emptied records it neither behind the clean mark nor in the log.
#[test]
fn damage_found_during_a_freeze_does_not_start_the_log_again() {
    for word in ["1", "ro"] {
        sim::run(sim::Config::new(1), move || {
            let image = Image::make(EXT4, "32M");
            let device = FaultDevice::new(image.device());
            let fs = open(Arc::clone(&device) as _, "errors=continue");
            durable(&fs, b"before", &[7; 10_000]).unwrap();
            device.set(|bio| match bio.op {
                Op::Flush => Fault::Delay(Duration::from_millis(20)),
                _ => Fault::None,
            });
            let freezer = spawn("freezer", {
                let fs = Arc::clone(&fs);
                move || match word {
                    "ro" => fs.remount(&cx(), "ro"),
                    word => freeze(&fs, word),
                }
            });
            let mut reports = Vec::new();
            for n in 0..200 {
                let fs = Arc::clone(&fs);
                reports.push(spawn("reader", move || {
                    sleep(Duration::from_millis(n));
                    let damage = Corruption::new("is damaged, says the test");
                    let _reported = fs.report_corruption(Err::<(), FsError>(damage.into()));
                }));
            }
            freezer.join().unwrap();
            let frozen = device.memory.to_bytes();
            reports.into_iter().for_each(|report| report.join());
            sleep(Duration::from_secs(10));
            assert!(
                device.memory.to_bytes() == frozen,
                "{word}: the device was written"
            );
            let copy = Arc::new(MemDevice::from_bytes(&frozen));
            open(copy, "").close().unwrap();
            match word {
                "ro" => fs.remount(&cx(), "rw").unwrap(),
                _ => freeze(&fs, "0").unwrap(),
            }
            durable(&fs, b"after", &[8; 10_000]).unwrap();
            fs.close().unwrap();
        });
    }
}
