//! Two nodes on one device, in virtual time.

use steadfs_base::InodeNo;
use steadfs_block::{Bio, Fault, FaultDevice, MemDevice, Op, QueueOptions};
use steadfs_rt::sim;
use steadfs_vfs::{Cx, FileSystem};

use super::*;
use crate::CacheSizes;
use crate::disk::mmp::SEQ_FSCK;
use crate::disk::test_images::Image;
use crate::options::MountOptions;
use crate::test_world::{ROOT, check as judge};

/// Seconds of the waits before and after the own number is written, with check intervals of 5 s.
const WAIT: u64 = 11;

/// A device that nodes share.
struct Disk {
    device: Arc<FaultDevice>,
    sb: Arc<Superblock>,
}

impl Disk {
    fn of(bytes: &[u8], sb: &Arc<Superblock>) -> Self {
        Self {
            device: FaultDevice::new(Arc::new(MemDevice::from_bytes(bytes))),
            sb: Arc::clone(sb),
        }
    }

    fn options(device: &str, list: &str) -> MountOptions {
        let mut options = MountOptions::parse(list).unwrap();
        options.protection.device = Some(device.as_bytes().to_vec());
        options
    }

    /// Opens the volume as the node that calls it `device`; also the seconds that took.
    fn open_by(&self, options: MountOptions) -> (Result<Arc<Ext4>>, u64) {
        let began = now();
        let opened = Ext4::open(
            Arc::clone(&self.device) as _,
            options,
            CacheSizes::of(8 << 20),
        );
        (opened.map(|(fs, _)| fs), began.elapsed().as_secs())
    }

    fn open(&self, device: &str, list: &str) -> (Result<Arc<Ext4>>, u64) {
        self.open_by(Self::options(device, list))
    }

    fn place(&self) -> usize {
        let block = self.sb.mmp_block().unwrap();
        usize::try_from(self.sb.geometry().block_size.offset_of(block)).unwrap()
    }

    fn block(&self) -> Mmp {
        let geo = self.sb.geometry();
        let mut block = vec![0; geo.block_size.bytes()];
        self.device.memory.read(self.place() as u64, &mut block);
        Mmp::parse(geo.seed, self.sb.mmp_block().unwrap(), &block).unwrap()
    }

    /// Writes the block as another node.
    fn set_seq(&self, seq: u32) {
        let geo = self.sb.geometry();
        let mut block = vec![0; geo.block_size.bytes()];
        self.device.memory.read(self.place() as u64, &mut block);
        let mut mmp = self.block();
        mmp.set_seq(seq);
        mmp.set_names(b"other", b"sdz");
        mmp.seal_into(geo.seed, &mut block);
        self.device.memory.write(self.place() as u64, &block);
    }

    /// The device as it is now, for other nodes: as after a crash of this one.
    fn copy(&self) -> Self {
        Self::of(&self.device.memory.to_bytes(), &self.sb)
    }
}

/// Runs `test` on a volume that is updated every second.
fn on_disk(more: &[&str], test: impl Fn(&Disk) + 'static) {
    let mut options = vec!["-O", "mmp", "-E", "mmp_update_interval=1"];
    options.extend_from_slice(more);
    let image = Image::make(&options, "16M");
    let (bytes, sb) = (image.bytes(), Arc::new(image.superblock()));
    let after = sim::run(sim::Config::new(1), move || {
        let disk = Disk::of(&bytes, &sb);
        test(&disk);
        disk.device.memory.to_bytes()
    });
    image.fill(&after.value);
    judge(&image);
}

fn make(fs: &Ext4, name: &[u8]) -> Result<()> {
    let cx = Cx::default();
    let file = FileSystem::mknod(fs, &cx, ROOT, name, 0o100_644, 0)?;
    let written = FileSystem::write(fs, &cx, file.ino, 0, b"content", false);
    let done = written.and_then(|_| FileSystem::fsync(fs, &cx, file.ino, false));
    FileSystem::forget(fs, file.ino, 1);
    done
}

fn secs(secs: u64) {
    sleep(Duration::from_secs(secs));
}

#[track_caller]
fn in_use_by(result: Result<Arc<Ext4>>, words: &str) {
    let error = result.map(drop).unwrap_err();
    assert!(matches!(error, FsError::InUse(_)), "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn a_second_node_is_refused_after_the_wait() {
    for kind in [&["-t", "ext4"][..], &["-t", "ext2", "-b", "4096"]] {
        on_disk(kind, |disk| {
            let (fs, time) = disk.open("sda", "");
            let fs = fs.unwrap();
            assert_eq!(time, 0, "a clean volume has no wait");
            let first = disk.block();
            assert_eq!(first.usage(), Usage::Mounted);
            assert_eq!(
                (first.node_name(), first.device_name()),
                ("simulation".into(), "sda".into())
            );
            secs(10);
            let later = disk.block();
            assert!(
                (9..=11).contains(&(later.seq() - first.seq())),
                "once a second"
            );
            assert!((9..=11).contains(&(later.time() - first.time())));
            assert_eq!(later.check_interval(), 5);

            let (other, time) = disk.open("sdb", "");
            in_use_by(other, "node simulation, device sda, at 2026-01-01");
            assert_eq!(time, WAIT);
            let queue = Arc::new(Queue::new(
                Arc::clone(&disk.device) as _,
                QueueOptions::default(),
            ));
            let looked = check_unused(&queue, &disk.sb).unwrap_err();
            assert!(matches!(looked, FsError::InUse(_)), "{looked}");
            make(&fs, b"still writable").unwrap();
            // A reader needs no lock and changes nothing.
            let (reader, time) = disk.open("sdb", "ro");
            assert_eq!(time, 0);
            reader.unwrap().close().unwrap();
            fs.close().unwrap();
            assert_eq!(disk.block().usage(), Usage::Clean);
            let (other, time) = disk.open("sdb", "");
            assert_eq!(time, 0);
            other.unwrap().close().unwrap();
            assert_eq!(disk.block().device_name(), "sdb");
        });
    }
}

#[test]
fn a_crashed_node_is_waited_for() {
    on_disk(&["-t", "ext4"], |disk| {
        let fs = disk.open("sda", "").0.unwrap();
        make(&fs, b"file").unwrap();
        let crashed = disk.copy();
        fs.close().unwrap();
        // A reader does not take the lock, so it does not write: the log is replayed in memory.
        let before = crashed.device.memory.to_bytes();
        crashed.open("sdb", "ro").0.unwrap().close().unwrap();
        assert!(before == crashed.device.memory.to_bytes());
        let queue = Arc::new(Queue::new(
            Arc::clone(&crashed.device) as _,
            QueueOptions::default(),
        ));
        check_unused(&queue, &crashed.sb).unwrap();
        let (fs, time) = crashed.open("sdb", "");
        assert_eq!(time, 2 * WAIT);
        let fs = fs.unwrap();
        FileSystem::lookup(&*fs, &Cx::default(), ROOT, b"file").unwrap();
        FileSystem::forget(&*fs, InodeNo(12), 1);
        fs.close().unwrap();
        assert_eq!(crashed.block().usage(), Usage::Clean);
    });
}

/// Both find a volume that is not in use; the one that writes its number first finds the other's.
#[test]
fn of_two_nodes_that_wait_one_mounts() {
    on_disk(&["-t", "ext4"], |disk| {
        disk.set_seq(5);
        let shared = Arc::clone(&disk.device);
        let sb = Arc::clone(&disk.sb);
        let other = steadfs_rt::spawn("other", move || {
            let disk = Disk { device: shared, sb };
            secs(3);
            disk.open("sdb", "").0.map(|fs| fs.close())
        });
        let one = disk.open("sda", "").0.map(|fs| {
            secs(30);
            fs.close()
        });
        let results = [one, other.join()];
        let mounted = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!(mounted, 1, "{results:?}");
        for result in results {
            match result {
                Ok(closed) => closed.unwrap(),
                Err(error) => assert!(matches!(error, FsError::InUse(_)), "{error}"),
            }
        }
    });
}

#[test]
fn what_no_mount_may_pass_over_is_refused_at_once() {
    on_disk(&["-t", "ext4"], |disk| {
        disk.set_seq(SEQ_FSCK);
        let (refused, time) = disk.open("sda", "");
        in_use_by(refused, "program of e2fsprogs");
        assert_eq!(time, 0);
        assert_eq!(disk.block().seq(), SEQ_FSCK, "nothing was written");
        disk.open("sda", "ro").0.unwrap().close().unwrap();
        disk.set_seq(SEQ_CLEAN);
        // A block that no program writes.
        let place = disk.place() as u64;
        let mut word = [0; 4];
        disk.device.memory.read(place, &mut word);
        disk.device.memory.write(place, &[1; 4]);
        let error = disk.open("sda", "").0.map(drop).unwrap_err();
        assert!(
            error.is_corruption() && error.to_string().contains("clear_mmp"),
            "{error}"
        );
        disk.open("sda", "ro").0.unwrap().close().unwrap();
        disk.device.memory.write(place, &word);
    });
}

#[test]
fn a_volume_stops_when_another_node_writes_its_number() {
    on_disk(&["-t", "ext4"], |disk| {
        let fs = disk.open("sda", "").0.unwrap();
        make(&fs, b"before").unwrap();
        let device = disk.copy();
        disk.set_seq(77);
        secs(2);
        let error = make(&fs, b"after").unwrap_err();
        assert!(matches!(error, FsError::TurnedReadOnly(_)), "{error}");
        assert!(
            error.to_string().contains("node other, device sdz"),
            "{error}"
        );
        let changes = disk.device.changes();
        secs(20);
        let closed = fs.close().unwrap_err();
        assert!(matches!(closed, FsError::Stopped(_)), "{closed}");
        assert_eq!(changes, disk.device.changes(), "nothing is written");
        assert_eq!(disk.block().seq(), 77);
        // For the judge: the volume as the other node recovers it.
        let fs = device.open("sda", "").0.unwrap();
        fs.close().unwrap();
        disk.device
            .memory
            .write(0, &device.device.memory.to_bytes());
    });
}

#[test]
fn a_frozen_volume_is_not_written_and_looks_at_its_thaw() {
    on_disk(&["-t", "ext4"], |disk| {
        for taken in [false, true] {
            let fs = disk.open("sda", "").0.unwrap();
            fs.freeze().unwrap();
            let frozen = disk.device.memory.to_bytes();
            secs(60);
            assert!(frozen == disk.device.memory.to_bytes());
            let before = disk.block();
            if taken {
                disk.set_seq(9);
            }
            fs.thaw().unwrap();
            secs(3);
            let after = disk.block();
            if taken {
                assert!(make(&fs, b"refused").unwrap_err().is_stop());
                assert!(fs.close().is_err());
                assert_eq!(after.seq(), 9);
                disk.set_seq(SEQ_CLEAN);
            } else {
                assert_ne!(before.seq(), after.seq());
                make(&fs, b"written").unwrap();
                fs.close().unwrap();
            }
        }
    });
}

#[test]
fn remounts_take_and_release_the_lock() {
    on_disk(&["-t", "ext4"], |disk| {
        let fs = disk.open("sda", "ro").0.unwrap();
        assert_eq!(disk.block().usage(), Usage::Clean);
        let cx = Cx {
            admin: true,
            ..Cx::default()
        };
        disk.set_seq(3);
        let error = {
            let writer = Arc::clone(&disk.device);
            let sb = Arc::clone(&disk.sb);
            let other = steadfs_rt::spawn("other", move || {
                secs(2);
                Disk { device: writer, sb }.set_seq(4);
            });
            let error = FileSystem::remount(&*fs, &cx, "rw").unwrap_err();
            other.join();
            error
        };
        assert!(matches!(error, FsError::InUse(_)), "{error}");
        assert!(matches!(make(&fs, b"refused"), Err(FsError::ReadOnly)));
        let began = now();
        FileSystem::remount(&*fs, &cx, "rw").unwrap();
        assert_eq!(began.elapsed().as_secs(), 2 * WAIT);
        assert_eq!(disk.block().device_name(), "sda");
        make(&fs, b"written").unwrap();
        FileSystem::remount(&*fs, &cx, "ro").unwrap();
        assert_eq!(disk.block().usage(), Usage::Clean);
        fs.close().unwrap();
    });
}

#[test]
fn a_successor_continues_without_a_wait() {
    on_disk(&["-t", "ext4"], |disk| {
        let fs = disk.open("sda", "").0.unwrap();
        make(&fs, b"file").unwrap();
        fs.close_for_successor().unwrap();
        let left = disk.block();
        assert_eq!(left.usage(), Usage::Mounted);
        for (device, expected) in [("sdb", 2 * WAIT), ("sdb", 0)] {
            let mut options = Disk::options(device, "");
            options.protection.mode = ProtectionMode::Continue;
            let (fs, time) = disk.open_by(options);
            let fs = fs.unwrap();
            assert_eq!(time, expected, "{device}");
            secs(3);
            assert_ne!(disk.block().seq(), left.seq());
            fs.close_for_successor().unwrap();
        }
        let mut options = Disk::options("sdb", "");
        options.protection.mode = ProtectionMode::Continue;
        disk.open_by(options).0.unwrap().close().unwrap();
        assert_eq!(disk.block().usage(), Usage::Clean);
    });
}

/// A failed write is repeated; a block that cannot be read for the check interval stops the volume.
#[test]
fn updates_that_fail_are_tried_again_until_the_lock_may_be_lost() {
    on_disk(&["-t", "ext4"], |disk| {
        let place = disk.place() as u64;
        for (op, fault, stops) in [
            (Op::Write, Fault::Fail, false),
            (Op::Write, Fault::Misreport, false),
            (Op::Read, Fault::Fail, true),
        ] {
            let fs = disk.open("sda", "").0.unwrap();
            let of_block = move |bio: &Bio| bio.op == op && bio.offset == place;
            disk.device.set(move |bio| match of_block(bio) {
                true => fault,
                false => Fault::None,
            });
            secs(4);
            make(&fs, format!("{op:?} {fault:?}").as_bytes()).unwrap();
            secs(4);
            assert_eq!(fs.stop_state.is_stopped(), stops, "{op:?}");
            disk.device.set(|_| Fault::None);
            secs(2);
            let closed = fs.close();
            assert_eq!(closed.is_err(), stops, "{closed:?}");
            if stops {
                let (fs, time) = disk.open("sda", "");
                assert_eq!(time, 2 * WAIT);
                fs.unwrap().close().unwrap();
            }
            assert_eq!(disk.block().usage(), Usage::Clean);
        }
    });
}

/// A mount that fails after the lock was taken releases it.
#[test]
fn a_mount_that_fails_releases_the_lock() {
    on_disk(&["-t", "ext4"], |disk| {
        let mut left = 1;
        let place = disk.place() as u64;
        // The superblock is written when the volume is marked in use.
        disk.device.fail(move |bio| {
            let fails = bio.op == Op::Write && bio.offset != place && left > 0;
            left -= u32::from(fails);
            fails
        });
        assert!(disk.open("sda", "").0.is_err());
        disk.device.set(|_| Fault::None);
        assert_eq!(disk.block().usage(), Usage::Clean);
        let (fs, time) = disk.open("sda", "");
        fs.unwrap().close().unwrap();
        assert_eq!(time, 0);
    });
}
