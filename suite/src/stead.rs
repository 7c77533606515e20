//! The program under test: built, mounted, killed.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use steadfs_rt::FAULT_VARIABLE;

use crate::command::{Outcome, PATIENCE, finish, run, until, wait};
use crate::image::Image;
use crate::scratch::{Scratch, mounts_below, unmount_when_idle};

/// Longest time of a command, and until a mount is usable or has ended.
const LIMIT: Duration = Duration::from_secs(600);

/// The `steadfs` program, built with the same profile as these tests, with its examples beside it.
///
/// # Panics
/// If it cannot be built.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        // target/PROFILE/deps/TEST
        let test = std::env::current_exe().expect("a test has a path");
        let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
        let mut build = Command::new(env!("CARGO"));
        // With the features of `cargo test --workspace`, whose libraries it can use then: to build them once more takes 90 s.
        build.args([
            "build",
            "--quiet",
            "--workspace",
            "--lib",
            "--bins",
            "--examples",
        ]);
        build.args(["--features", "steadfs-jbd2-format/test-support"]);
        if profile.file_name().is_some_and(|name| name == "release") {
            build.arg("--release");
        }
        build
            .arg("--target-dir")
            .arg(profile.parent().expect("target"));
        build.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        finish(build, Duration::from_secs(1200)).expect(0);
        profile.join("steadfs")
    })
}

/// Runs `steadfs` with `args` to its end.
#[track_caller]
pub fn steadfs<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Outcome {
    let mut command = Command::new(program());
    command.args(args);
    finish(command, LIMIT)
}

/// Runs `steadfs` with `args`, again while it reports that the volume is in use. A process that another test has just
/// forked has our files open until it runs its program, and the kernel reports the close of a file to the server with a
/// delay.
#[track_caller]
pub fn steadfs_when_idle<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Outcome {
    let end = Instant::now() + PATIENCE;
    let in_use = ["busy", "without a name", "open for writing"];
    loop {
        let output = steadfs(args);
        let waits = output.code() != 0 && in_use.iter().any(|words| output.err.contains(words));
        if !waits || Instant::now() > end {
            return output;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The transport of a mount whose options do not choose one. A hash of the names of the test and the image selects the
/// first one for an image, then they alternate. So every test that mounts an image more than once uses both, all tests
/// together use both, and each test uses the same ones in every run.
fn transport_in_turn(image: &Path, options: &str) -> Option<&'static str> {
    static MOUNTS: Mutex<BTreeMap<PathBuf, usize>> = Mutex::new(BTreeMap::new());
    if options.contains("fuse_transport") {
        return None;
    }
    let test = thread::current().name().unwrap_or_default().to_owned();
    // The number of a loop device is not reproducible; an image is in the folder of its test.
    let (key, name) = match image.starts_with("/dev") {
        true => (PathBuf::from(&test), ""),
        false => (image.to_owned(), image.file_name()?.to_str()?),
    };
    let first: usize = test.bytes().chain(name.bytes()).map(usize::from).sum();
    let mut mounts = MOUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let mounted = mounts.entry(key).or_default();
    let turn = first + *mounted;
    *mounted += 1;
    Some(["fuse_transport=uring", "fuse_transport=dev"][turn % 2])
}

/// A volume mounted by a steadfs server in the foreground; killed and unmounted when dropped.
pub struct SteadMount {
    root: PathBuf,
    volume: PathBuf,
    read_only: bool,
    server: Child,
    log: PathBuf,
    gone: bool,
}

impl SteadMount {
    /// Mounts the volume on `image` (or a block device) with `options`.
    #[track_caller]
    pub fn new(scratch: &Scratch, image: &Path, options: &str) -> Self {
        match Self::attempt(scratch, image, options) {
            Ok(mount) => mount,
            Err((code, output)) => {
                panic!("mounting {} ended with {code}: {output}", image.display())
            }
        }
    }

    /// Mounts with an armed fault point: the server panics when it reaches the point after the returned file exists.
    #[track_caller]
    pub fn with_fault(
        scratch: &Scratch,
        image: &Path,
        options: &str,
        point: &str,
    ) -> (Self, PathBuf) {
        let trigger = scratch.join(&format!("fault-{point}"));
        let armed = format!("{FAULT_VARIABLE}={point}@{}", trigger.display());
        match Self::attempt_as(scratch, image, options, Some(&armed)) {
            Ok(mount) => (mount, trigger),
            Err((code, output)) => {
                panic!("mounting {} ended with {code}: {output}", image.display())
            }
        }
    }

    /// Mounts; an error is the exit code and the log.
    #[track_caller]
    pub fn attempt(scratch: &Scratch, image: &Path, options: &str) -> Result<Self, (i32, String)> {
        Self::attempt_as(scratch, image, options, None)
    }

    #[track_caller]
    fn attempt_as(
        scratch: &Scratch,
        image: &Path,
        options: &str,
        variable: Option<&str>,
    ) -> Result<Self, (i32, String)> {
        let name = image.file_name().unwrap_or_default().to_string_lossy();
        let root = scratch.folder(&format!("stead-{name}"));
        let log = scratch.join(&format!("stead-{name}.log"));
        // The tests may run with SIGHUP ignored, as below nohup(1); servers inherit that.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP").args(variable);
        command.arg(program());
        command.arg("mount").arg("--foreground");
        if let Some(transport) = transport_in_turn(image, options) {
            command.args(["-o", transport]);
        }
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        command.arg(image).arg(&root);
        let err = File::create(&log).expect("a log can be made");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(err);
        let server = command.spawn().expect("steadfs starts");
        let mut mount = Self {
            root,
            volume: image.to_owned(),
            read_only: options.split(',').any(|option| option == "ro"),
            server,
            log,
            gone: false,
        };
        let end = Instant::now() + LIMIT;
        // A server in the foreground does not print "ready". The mount is listed before it is usable, and the first
        // call on it waits until it is.
        while !mounts_below(&mount.root).contains(&mount.root) {
            if let Ok(Some(status)) = mount.server.try_wait() {
                mount.gone = true;
                return Err((status.code().unwrap_or(-1), mount.log()));
            }
            assert!(Instant::now() < end, "not mounted in {LIMIT:?}");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(mount)
    }

    /// The mount point.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of `name` on the mount.
    pub fn join(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Pid of the server: of the process that reads the volume, which is the only child of the one that mounts, or that one
    /// itself without a sandbox.
    pub fn pid(&self) -> u32 {
        let main = self.server.id();
        let children = std::fs::read_to_string(format!("/proc/{main}/task/{main}/children"));
        let children = children.unwrap_or_default();
        let server = children.split_whitespace().next();
        server.map_or(main, |pid| pid.parse().expect("a number"))
    }

    /// Pid of the process that mounts and unmounts.
    pub fn broker(&self) -> u32 {
        self.server.id()
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the server has logged this.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn wait_for_log(&self, words: &str) {
        until(words, || self.log().contains(words));
    }

    /// Unmounts by `steadfs umount`; checks that the server succeeds without errors in its log, and that e2fsck finds
    /// nothing.
    #[track_caller]
    pub fn unmount(self) {
        let (volume, is_written) = (self.volume.clone(), !self.read_only);
        self.unmount_corrupt();
        if is_written && is_ext(&volume) {
            Image::at(volume).check_clean();
        }
    }

    /// The same for a volume that the test has corrupted.
    #[track_caller]
    pub fn unmount_corrupt(mut self) {
        let output = steadfs_when_idle(&["umount".as_ref(), self.root.as_os_str()]);
        assert_eq!(
            output.code(),
            0,
            "umount: {}\nserver: {}",
            output.err,
            self.log()
        );
        self.end();
    }

    /// Unmounts by umount(8), without steadfs's helper.
    #[track_caller]
    pub fn unmount_by_kernel(mut self) {
        unmount_when_idle(&self.root);
        self.end();
    }

    #[track_caller]
    fn end(&mut self) {
        self.gone = true;
        let status = wait(&mut self.server, LIMIT);
        let output = self.log();
        let status = status.unwrap_or_else(|| panic!("the server did not exit: {output}"));
        assert!(
            status.success(),
            "the server exited with {status}: {output}"
        );
        assert!(!output.contains("panicked"), "{output}");
    }

    /// Kills the server at once and detaches the dead mount.
    #[track_caller]
    pub fn kill(mut self) {
        send(self.pid(), Signal::KILL);
        self.server.wait().expect("a child can be waited for");
        let output = self.log();
        assert!(!output.contains("panicked"), "{output}");
        // The broker removes it if the server had not reported yet that it is usable.
        if mounts_below(&self.root).contains(&self.root) {
            run("umount", ["-l".as_ref(), self.root.as_os_str()]).expect(0);
        }
        self.gone = true;
    }

    /// Sends a signal to the process that mounts and unmounts.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        send(self.broker(), signal);
    }

    /// Lets a server that was stopped continue.
    #[track_caller]
    pub fn proceed(&self) {
        send(self.pid(), Signal::CONT);
    }

    /// Stops the server with SIGSTOP until it is continued. One thread takes the signal and stops the others, which run
    /// on for a while on a busy machine, so this waits for all of them.
    #[track_caller]
    pub fn stop(&self) {
        let server = self.pid();
        send(server, Signal::STOP);
        let threads = PathBuf::from(format!("/proc/{server}/task"));
        let has_stopped = |thread: &Path| {
            let stat = std::fs::read_to_string(thread.join("stat")).unwrap_or_default();
            // "tid (name) state ..."; the name may contain any character.
            stat.rsplit_once(") ")
                .is_none_or(|(_, rest)| rest.starts_with('T'))
        };
        until("the server stops", || {
            let mut threads = std::fs::read_dir(&threads).expect("a child has threads");
            threads.all(|thread| has_stopped(&thread.expect("an entry").path()))
        });
    }

    /// Waits until the server exits by itself; returns its exit code.
    #[track_caller]
    pub fn wait(self) -> i32 {
        self.wait_with_log().0
    }

    /// The same, with its log.
    #[track_caller]
    pub fn wait_with_log(mut self) -> (i32, String) {
        self.gone = true;
        let status = wait(&mut self.server, LIMIT).expect("the server exits");
        (status.code().unwrap_or(-1), self.log())
    }
}

impl Drop for SteadMount {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        if thread::panicking() {
            eprintln!("server of {}: {}", self.root.display(), self.log());
        }
        // Each may have happened already.
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = run("umount", ["-l".as_ref(), self.root.as_os_str()]);
    }
}

#[track_caller]
fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process has a number"), signal).expect("it can be signalled");
}

/// Whether the volume at the first byte is of a kind that e2fsck judges.
fn is_ext(volume: &Path) -> bool {
    let mut magic = [0; 2];
    let file = File::open(volume).expect("what was mounted is there");
    file.read_exact_at(&mut magic, 1080).is_ok() && magic == [0x53, 0xef]
}
