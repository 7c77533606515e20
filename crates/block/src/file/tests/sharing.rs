//! Other users of the device: locks, loop devices, mounts.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use super::*;

/// Another process that holds a lock until it is dropped.
struct Locker(Child);

impl Locker {
    fn hold(kind: &str, path: &Path) -> Self {
        Self::hold_as(0, kind, path)
    }

    /// The same as another user.
    fn hold_as(user: u32, kind: &str, path: &Path) -> Self {
        let mut command = Command::new("flock");
        command.args(["--no-fork", kind, path.to_str().unwrap(), "sleep", "600"]);
        if user != 0 {
            command.uid(user).gid(user);
        }
        let locker = Self(command.spawn().expect("flock is installed"));
        // flock(1) executes its program after it has the lock.
        let name = format!("/proc/{}/comm", locker.0.id());
        while std::fs::read_to_string(&name).unwrap() != "sleep\n" {
            steadfs_rt::yield_now();
        }
        locker
    }

    /// Ends a holder of a shared lock, which may have other holders.
    fn release_shared(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn release(self, path: &Path) {
        drop(self);
        while is_locked(path) {
            steadfs_rt::yield_now();
        }
    }
}

fn is_locked(path: &Path) -> bool {
    let probe = Command::new("flock")
        .args(["-n", "-x", path.to_str().unwrap(), "true"])
        .status();
    !probe.unwrap().success()
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_second_writer_is_refused_with_the_holder() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    let reader = || OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let first = FileDevice::open(&path, OpenOptions::default()).unwrap();
    for options in [OpenOptions::default(), reader()] {
        let error = FileDevice::open(&path, options).err().unwrap();
        assert!(
            error.to_string().contains("in use by this process itself"),
            "{error}"
        );
    }
    drop(first);
    let readers = [reader(), reader()].map(|o| FileDevice::open(&path, o).unwrap());
    assert!(FileDevice::open(&path, OpenOptions::default()).is_err());
    let error = run(&readers[0], Bio::write(0, vec![Buf::zeroed(512)])).unwrap_err();
    assert!(error.cause.contains("read-only"), "{error}");
    drop(readers);

    let other = Locker::hold("-x", &path);
    let error = FileDevice::open(&path, OpenOptions::default())
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .contains(&format!("process {} (sleep)", other.0.id())),
        "{error}"
    );
    other.release(&path);
    let _other = Locker::hold("-s", &path);
    assert!(FileDevice::open(&path, OpenOptions::default()).is_err());
    FileDevice::open(&path, reader()).unwrap();
}

#[test]
fn an_image_behind_a_loop_device_is_refused() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    let looped = Loop::attach(&[], &path);
    let error = FileDevice::open(&path, OpenOptions::default())
        .err()
        .unwrap();
    assert!(error.to_string().contains(&looped.0), "{error}");
    let device = FileDevice::open(&looped.0, OpenOptions::default()).unwrap();
    let error = FileDevice::open(&looped.0, OpenOptions::default())
        .err()
        .unwrap();
    assert!(matches!(error, OpenError::Busy { .. }), "{error}");
    let reader = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    assert!(FileDevice::open(&looped.0, reader.clone()).is_err());
    drop(device);
    let _reader = open_patiently(&looped.0, &reader);
    let _another = FileDevice::open(&looped.0, reader).unwrap();
    assert!(FileDevice::open(&looped.0, OpenOptions::default()).is_err());
}

#[test]
fn an_image_with_a_loop_device_is_detected_under_any_path() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    let other = dir.path().join("other name");
    std::fs::hard_link(&path, &other).unwrap();
    let looped = Loop::attach(&[], &path);
    std::fs::remove_file(&path).unwrap();
    // Another file has the path now.
    image(&dir, 1 << 20);
    FileDevice::open(&path, OpenOptions::default()).unwrap();
    let error = FileDevice::open(&other, OpenOptions::default())
        .err()
        .unwrap();
    assert!(error.to_string().contains(&looped.0), "{error}");
}

#[test]
fn a_loop_device_on_an_image_in_use_is_refused() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    let user = FileDevice::open(&path, OpenOptions::default()).unwrap();
    let looped = Loop::attach(&[], &path);
    let error = FileDevice::open(&looped.0, OpenOptions::default())
        .err()
        .unwrap();
    assert!(error.to_string().contains("its image"), "{error}");
    drop(user);
    open_patiently(&looped.0, &OpenOptions::default());
}

/// Data that was written and flushed before is there; after that nothing changes it.
#[test]
fn writes_are_refused_after_a_loop_device_is_set_up() {
    for engine in ENGINES {
        let dir = TempDir::new().unwrap();
        let path = image(&dir, 1 << 20);
        let device = FileDevice::open(&path, with_engine(engine)).unwrap();
        let write = |value| {
            run(
                &device,
                Bio::write(0, vec![pattern(4096, value)]).with_fua(),
            )
        };
        let reader = Loop::attach(&["--read-only"], &path);
        std::fs::File::open(&path).unwrap();
        steadfs_rt::sleep(std::time::Duration::from_millis(50));
        write(1).unwrap();
        drop(reader);

        let writer = Loop::attach(&[], &path);
        let begin = steadfs_rt::now();
        let mut value = 1_u8;
        let error = loop {
            match write(value.wrapping_add(1)) {
                Ok(_) => value = value.wrapping_add(1),
                Err(error) => break error,
            }
            assert!(begin.elapsed().as_secs() < 60, "writes go on");
        };
        assert!(error.cause.contains(&writer.0), "{error}");
        for bio in [
            Bio::discard(0, 4096),
            Bio::write_zeroes(0, 4096),
            Bio::flush(),
        ] {
            let error = run(&device, bio).unwrap_err();
            assert!(error.cause.contains(&writer.0), "{error}");
        }
        let mut there = [0; 4096];
        let file = std::fs::File::open(&path).unwrap();
        file.read_exact_at(&mut there, 0).unwrap();
        // The refused write may have been executed.
        assert!([value, value.wrapping_add(1)].contains(&there[0]));
        assert!(there[..] == pattern(4096, there[0])[..]);
        // A loop device that is detached again may have changed the image.
        drop(writer);
        assert!(write(0).is_err());
        drop(device);
        let again = open_patiently(path.to_str().unwrap(), &with_engine(engine));
        run(&again, Bio::write(0, vec![pattern(4096, 0)])).unwrap();
    }
}

#[test]
fn a_mounted_device_is_refused_with_its_mount_point() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 4 << 20);
    let made = Command::new("mke2fs")
        .args(["-q", "-F"])
        .arg(&path)
        .status()
        .unwrap();
    assert!(made.success());
    let looped = Loop::attach(&[], &path);
    let place = dir.path().join("mnt");
    std::fs::create_dir(&place).unwrap();
    let mount = Command::new("mount")
        .arg(&looped.0)
        .arg(&place)
        .status()
        .unwrap();
    assert!(mount.success());
    let errors = [looped.0.as_ref(), path.as_path()].map(|path| {
        let options = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        FileDevice::open(path, options).err().map(|e| e.to_string())
    });
    assert!(
        Command::new("umount")
            .arg(&place)
            .status()
            .unwrap()
            .success()
    );
    for error in errors {
        let error = error.expect("a mounted volume is refused");
        assert!(error.contains(place.to_str().unwrap()), "{error}");
    }
}

#[test]
fn a_device_opened_for_reading_becomes_writable_unless_others_read_it() {
    for engine in ENGINES {
        let dir = TempDir::new().unwrap();
        let path = image(&dir, 1 << 20);
        let options = OpenOptions {
            read_only: true,
            ..with_engine(engine)
        };
        let device = FileDevice::open(&path, options).unwrap();
        assert!(run(&device, Bio::write(0, vec![pattern(4096, 1)])).is_err());
        let reader = Locker::hold("-s", &path);
        let why = device.make_writable().unwrap_err();
        assert!(why.contains("in use by"), "{why}");
        assert!(device.geometry().read_only);
        reader.release_shared();
        // The read lock is held again: no other program may write.
        assert!(is_locked(&path));
        device.make_writable().unwrap();
        device.make_writable().unwrap();
        check_transfers(&device);
        let error = FileDevice::open(&path, options_for_reading())
            .err()
            .unwrap();
        assert!(matches!(error, OpenError::Busy { .. }), "{error}");
    }
}

fn options_for_reading() -> OpenOptions {
    OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    }
}

#[test]
fn a_queue_runs_on_it_and_a_dropped_device_is_free() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir, 1 << 20);
    for round in 0..40 {
        let engine = ENGINES[usize::from(round % 2)];
        let device = FileDevice::open(&path, with_engine(engine)).unwrap();
        let queue = Queue::new(Arc::new(device), QueueOptions::default());
        let writes = [0, 8192].map(|at| {
            let bio = Bio::write(at, vec![pattern(4096, round)]);
            queue.submit(bio, IoTag::default())
        });
        crate::wait_all(&writes).unwrap();
        queue.flush(IoTag::default()).wait().unwrap();
        let got = queue.read(8192, 4096, IoTag::default()).unwrap();
        assert_eq!(got[..], pattern(4096, round)[..]);
        queue
            .submit(Bio::flush(), IoTag::background())
            .wait()
            .unwrap();
        drop((queue, writes));
        // The lane that completed the last request may drop the last reference to the device.
        let begin = steadfs_rt::now();
        while is_locked(&path) {
            assert!(begin.elapsed().as_secs() < 60, "{engine:?}: never free");
        }
    }
}

/// Every user who can read a file can take flock(2) of it.
#[test]
fn a_lock_of_a_user_without_write_access_is_ignored() {
    const NOBODY: u32 = 65_534;
    let dir = TempDir::new().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let path = image(&dir, 1 << 20);
    for kind in ["-s", "-x"] {
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let _reader = Locker::hold_as(NOBODY, kind, &path);
        let first = FileDevice::open(&path, OpenOptions::default()).unwrap();
        // Still one writer, and no reader beside it.
        for options in [OpenOptions::default(), options_for_reading()] {
            let error = FileDevice::open(&path, options).err().unwrap();
            let own = "in use by this process itself";
            assert!(error.to_string().contains(own), "{kind}: {error}");
        }
        drop(first);
        let readers =
            [(); 2].map(|()| open_patiently(path.to_str().unwrap(), &options_for_reading()));
        let error = FileDevice::open(&path, OpenOptions::default())
            .err()
            .unwrap();
        assert!(matches!(error, OpenError::Busy { .. }), "{kind}: {error}");
        drop(readers);
        // A user who can write the image may lock it.
        std::fs::set_permissions(&path, Permissions::from_mode(0o646)).unwrap();
        let error = FileDevice::open(&path, OpenOptions::default())
            .err()
            .unwrap();
        assert!(error.to_string().contains("(sleep)"), "{kind}: {error}");
    }
}

/// `path` stands for it in messages only.
#[test]
fn a_file_that_was_opened_for_this_process_is_claimed() {
    let dir = TempDir::new().unwrap();
    let (path, other) = (image(&dir, 1 << 20), dir.path().join("other"));
    std::fs::copy(&path, &other).unwrap();
    let name = Path::new("of another process");
    let file = |path: &Path| {
        let file = std::fs::File::options().read(true).write(true).open(path);
        OwnedFd::from(file.unwrap())
    };
    let options = OpenOptions::default();
    let claim = |exclusive| ClaimedFile::claim_opened(name, &options, file(&path), exclusive);
    let replaced = claim(Some(file(&other))).err().unwrap().to_string();
    assert!(
        replaced.contains("replaced while it was opened"),
        "{replaced}"
    );
    let locker = Locker::hold("-x", &path);
    assert!(matches!(claim(None), Err(OpenError::Busy { .. })));
    locker.release(&path);
    let device = FileDevice::on_claimed(name, options.clone(), claim(None).unwrap()).unwrap();
    assert!(device.describe().contains("of another process"));
    assert!(is_locked(&path));
    check_batches(&device);
    drop(device);
    let folder = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
    let folder = ClaimedFile::claim_opened(name, &options, folder, None);
    assert!(matches!(folder, Err(OpenError::WrongKind { .. })));
}

/// `steadfs edit --copy` renames over an image that it has locked, and unlocks it then.
#[test]
fn an_opened_file_that_lost_its_name_before_it_was_locked_is_not_claimed() {
    let dir = TempDir::new().unwrap();
    let (path, new) = (image(&dir, 1 << 20), dir.path().join("new"));
    for read_only in [false, true] {
        let options = OpenOptions {
            read_only,
            ..OpenOptions::default()
        };
        let open = || {
            OwnedFd::from(
                std::fs::File::options()
                    .read(true)
                    .write(true)
                    .open(&path)
                    .unwrap(),
            )
        };
        let old = open();
        std::fs::copy(&path, &new).unwrap();
        std::fs::rename(&new, &path).unwrap();
        let claimed = ClaimedFile::claim_opened(&path, &options, old, None);
        let error = claimed.err().unwrap().to_string();
        assert!(error.contains("replaced or removed"), "{error}");
        ClaimedFile::claim_opened(&path, &options, open(), None).unwrap();
    }
}
