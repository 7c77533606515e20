//! The file systems under measurement, and how each is mounted.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use steadfs_suite::LoopDevice;
use steadfs_suite::scratch::mounts_below;

use crate::command::program;
use crate::measure::Usage;
use crate::{Result, measure};

/// Longest time until a mount is usable.
const LIMIT: Duration = Duration::from_secs(60);

/// Cache size of steadfs, in bytes.
pub const CACHE_SIZE: u64 = 256 << 20;

/// A file system under measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Subject {
    /// Kernel ext4 on a loop device with direct I/O: the base of comparisons.
    KernelDirect,
    /// Kernel ext4 on a loop device through the host's page cache.
    KernelCached,
    /// fuse2fs of e2fsprogs.
    Fuse2fs,
    /// steadfs on ext4.
    Steadfs,
    /// steadfs on f2fs, which the kernels of the test machines do not support.
    SteadfsF2fs,
    /// Our transport over a volume that only keeps names (`fuse/examples/floor`): the upper bound of a FUSE server on
    /// this kernel. It has no device, and is not compared.
    Floor,
}

impl Subject {
    /// All subjects, in the order of their runs.
    pub const ALL: [Self; 6] = [
        Self::KernelDirect,
        Self::KernelCached,
        Self::Fuse2fs,
        Self::Steadfs,
        Self::SteadfsF2fs,
        Self::Floor,
    ];

    /// The name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::KernelDirect => "kernel-direct",
            Self::KernelCached => "kernel-cached",
            Self::Fuse2fs => "fuse2fs",
            Self::Steadfs => "steadfs",
            Self::SteadfsF2fs => "steadfs-f2fs",
            Self::Floor => "floor",
        }
    }

    /// Whether it is steadfs.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Steadfs | Self::SteadfsF2fs)
    }

    /// Whether it keeps files on a device.
    pub fn has_device(self) -> bool {
        self != Self::Floor
    }

    /// Whether its volumes are f2fs and not ext4.
    pub fn is_f2fs(self) -> bool {
        self == Self::SteadfsF2fs
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An image in the form that its subject needs: a file, or a loop device over it.
pub struct Medium {
    subject: Subject,
    image: PathBuf,
    device: Option<LoopDevice>,
}

impl Medium {
    /// Attaches `image` for `subject`; `block_device` also for those that could use the file.
    pub fn attach(subject: Subject, image: &Path, block_device: bool) -> Self {
        let device = match subject {
            Subject::KernelDirect => Some(LoopDevice::attach(image, true)),
            Subject::KernelCached => Some(LoopDevice::attach(image, false)),
            Subject::Fuse2fs | Subject::Steadfs | Subject::SteadfsF2fs => {
                block_device.then(|| LoopDevice::attach(image, true))
            }
            Subject::Floor => None,
        };
        Self {
            subject,
            image: image.to_owned(),
            device,
        }
    }

    /// The file or the device.
    pub fn path(&self) -> &Path {
        self.device.as_ref().map_or(&self.image, LoopDevice::path)
    }

    /// The device, if the kernel mounts it.
    pub fn kernels_device(&self) -> Option<&Path> {
        let kernels = matches!(self.subject, Subject::KernelDirect | Subject::KernelCached);
        self.device
            .as_ref()
            .filter(|_| kernels)
            .map(LoopDevice::path)
    }

    /// Mounts it on `root`.
    pub fn mount(&self, root: &Path, steadfs: &Path) -> Result<Mounted> {
        let path = self.path();
        let server = match self.subject {
            Subject::KernelDirect | Subject::KernelCached => {
                mount(path, root, "ext4", MountFlags::empty(), None)?;
                None
            }
            Subject::Fuse2fs => {
                let mut command = program("fuse2fs");
                command.args(["-f", "-o", "rw"]).args([path, root]);
                Some(serve(command, root, until_listed)?)
            }
            Subject::Steadfs | Subject::SteadfsF2fs => {
                let mut command = Command::new(steadfs);
                // As `steadfs mount` starts it; it prints "ready" when the mount is usable.
                command.args(["mount", "--serve", "-o"]);
                // Blocks of the image are not discarded on the host.
                command.arg(format!("nodiscard,cache_size={CACHE_SIZE}"));
                command.args([path, root]);
                Some(serve(command, root, until_ready)?)
            }
            Subject::Floor => {
                let floor = std::env::current_exe()?.with_file_name("examples/floor");
                let mut command = Command::new(floor);
                command.arg("serve").arg(root);
                Some(serve(command, root, until_ready)?)
            }
        };
        Ok(Mounted {
            root: root.to_owned(),
            server,
            gone: false,
        })
    }
}

/// Starts a server; `wait` returns whether it has mounted `root`.
fn serve(
    mut command: Command,
    root: &Path,
    wait: fn(&mut Child, &Path) -> Result<bool>,
) -> Result<Child> {
    let log = root.with_extension("log");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(&log)?);
    let mut child = command.spawn()?;
    if wait(&mut child, root)? {
        return Ok(child);
    }
    // Fails only if the child has exited.
    let _ = child.kill();
    child.wait()?;
    let result = std::fs::read_to_string(&log)?;
    Err(format!("{command:?} did not mount the volume: {}", result.trim()).into())
}

/// Waits until the server prints "ready".
fn until_ready(server: &mut Child, _: &Path) -> Result<bool> {
    let mut result = String::new();
    if let Some(pipe) = server.stdout.take() {
        BufReader::new(pipe).read_line(&mut result)?;
    }
    Ok(result == "ready\n")
}

/// Waits until the mount is listed, and answers.
fn until_listed(server: &mut Child, root: &Path) -> Result<bool> {
    let end = Instant::now() + LIMIT;
    while !mounts_below(root).iter().any(|point| point == root) {
        if server.try_wait()?.is_some() || Instant::now() > end {
            return Ok(false);
        }
        sleep(Duration::from_millis(1));
    }
    Ok(std::fs::metadata(root).is_ok())
}

/// A mounted subject; unmounted by force if dropped after a failure.
pub struct Mounted {
    root: PathBuf,
    server: Option<Child>,
    gone: bool,
}

/// The result of an unmount.
pub struct UnmountResult {
    /// From the call to unmount until the volume was closed.
    pub seconds: f64,
    /// What the server had used; zero for the kernel.
    pub usage: Usage,
}

impl Mounted {
    /// What the server has used; zero for the kernel.
    fn usage(&self) -> Result<Usage> {
        self.server
            .as_ref()
            .map_or(Ok(Usage::default()), |server| Usage::of(server.id()))
    }

    /// Unmounts and waits until the volume is closed, in the same way for each subject.
    pub fn unmount(mut self) -> Result<UnmountResult> {
        let usage = self.usage()?;
        let (status, seconds) = measure::seconds(|| {
            unmount_when_idle(&self.root)?;
            self.gone = true;
            Ok(self.server.as_mut().map(Child::wait).transpose()?)
        })?;
        if let Some(status) = status.filter(|status| !status.success()) {
            let result = std::fs::read_to_string(self.root.with_extension("log"))?;
            return Err(format!("the server exited with {status}: {}", result.trim()).into());
        }
        Ok(UnmountResult { seconds, usage })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        // Each of these may have happened already.
        let _ = unmount(&self.root, UnmountFlags::DETACH);
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// A program that has just exited may keep its files open for a short time.
fn unmount_when_idle(root: &Path) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        match unmount(root, UnmountFlags::empty()) {
            Err(Errno::BUSY) if Instant::now() < end => sleep(Duration::from_millis(1)),
            done => return Ok(done?),
        }
    }
}
