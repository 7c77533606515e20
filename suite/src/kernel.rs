//! The kernel's ext4 as judge: loop devices and mounts.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::command::{Outcome, run, succeed, until};
use crate::scratch::{Scratch, unmount_when_idle};

/// A loop device over an image; detached when dropped.
pub struct LoopDevice {
    path: PathBuf,
    image: PathBuf,
}

/// One losetup(8) of this process at a time: while one looks for a free device, it may have one open that another
/// detaches, which then loses its image at its next use.
fn one_losetup() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LoopDevice {
    /// Attaches `image`; with direct I/O if `direct`.
    #[track_caller]
    pub fn attach(image: &Path, direct: bool) -> Self {
        let direct = if direct {
            "--direct-io=on"
        } else {
            "--direct-io=off"
        };
        Self::attach_with(image, direct)
    }

    /// Attaches `image` as a write-protected device.
    #[track_caller]
    pub fn attach_read_only(image: &Path) -> Self {
        Self::attach_with(image, "--read-only")
    }

    /// Attaches `image` as a device with this sector size in bytes.
    #[track_caller]
    pub fn attach_with_sectors(image: &Path, bytes: u32) -> Self {
        Self::attach_with(image, &format!("--sector-size={bytes}"))
    }

    #[track_caller]
    fn attach_with(image: &Path, how: &str) -> Self {
        let args = ["--find", "--show", how].map(Path::new);
        let _one = one_losetup();
        let output = succeed("losetup", args.into_iter().chain([image]));
        Self {
            path: PathBuf::from(output.out.trim()),
            image: image.to_owned(),
        }
    }

    /// Whether the loop device is still attached to the image.
    fn is_attached(&self) -> bool {
        let name = self.path.file_name().unwrap_or_default();
        let shown = Path::new("/sys/block").join(name).join("loop/backing_file");
        let shown = std::fs::read_to_string(shown).unwrap_or_default();
        // The path may contain symbolic links.
        let image = self.image.canonicalize();
        image.is_ok_and(|image| Path::new(shown.trim_end()) == image)
    }

    /// Path of the device.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let one = one_losetup();
        let _ = run("losetup", ["-d".as_ref(), self.path.as_os_str()]);
        drop(one);
        // The kernel keeps it while another program, such as udev, has it open.
        if !std::thread::panicking() {
            until("the loop device is detached", || !self.is_attached());
        }
    }
}

/// A volume mounted by the kernel through a loop device; unmounted when dropped.
pub struct KernelMount {
    root: PathBuf,
    mounted: bool,
    // Detached after the unmount.
    _device: LoopDevice,
}

impl KernelMount {
    /// Mounts `image` as ext4 with `options`.
    #[track_caller]
    pub fn new(scratch: &Scratch, image: &Path, options: &str) -> Self {
        match Self::attempt(scratch, image, options) {
            Ok(mount) => mount,
            Err(output) => panic!("{}: {}", output.line, output.err),
        }
    }

    /// Mounts `image`; an error is the message of mount(8).
    #[track_caller]
    pub fn attempt(scratch: &Scratch, image: &Path, options: &str) -> Result<Self, Outcome> {
        let device = LoopDevice::attach(image, false);
        let name = image.file_name().unwrap_or_default().to_string_lossy();
        let root = scratch.folder(&format!("kernel-{name}"));
        let options = if options.is_empty() {
            "defaults"
        } else {
            options
        };
        let args = ["-t", "ext4", "-o", options].map(Path::new);
        let output = run("mount", args.into_iter().chain([device.path(), &root]));
        if output.code() != 0 {
            return Err(output);
        }
        Ok(Self {
            root,
            mounted: true,
            _device: device,
        })
    }

    /// The mount point.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of `name` on the mount.
    pub fn join(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Unmounts; fails the test if that fails.
    #[track_caller]
    pub fn unmount(mut self) {
        unmount_when_idle(&self.root);
        self.mounted = false;
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if !self.mounted {
            return;
        }
        if std::thread::panicking() {
            let _ = run("umount", [&self.root]);
        } else {
            unmount_when_idle(&self.root);
        }
    }
}
