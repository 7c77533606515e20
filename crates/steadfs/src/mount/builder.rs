//! Mounting a volume step by step.

use std::path::Path;

use steadfs_fuse::Mounted;

use super::mount;
use crate::probe::failed;
use crate::{Error, FuseTransport, MountFlags, Options, Volume};

/// How an open volume is to be mounted: [`Volume::mounting`] begins one, [`Mounting::at`] mounts.
///
/// Root mounts for all users by default, another user only for itself, by fusermount3(1).
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use steadfs::{Unmount, Volume};
///
/// let volume = Volume::open("disk.img")?;
/// let mounted = volume.mounting().nosuid(true).nodev(true).at("/mnt")?;
/// println!("{}", std::fs::read_to_string("/mnt/etc/hostname")?);
/// mounted.unmount(Unmount::IfIdle)?;
/// mounted.wait()?; // the volume is closed
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Mounting<'a> {
    volume: &'a Volume,
    flags: MountFlags,
    allow_other: Option<bool>,
    fakeroot: Option<(u32, u32)>,
    control: bool,
    transport: FuseTransport,
}

impl Volume {
    /// Begins to mount the volume.
    pub fn mounting(&self) -> Mounting<'_> {
        let options = self.opened_with();
        Mounting {
            volume: self,
            flags: options.flags,
            allow_other: options.allow_other,
            fakeroot: options.fakeroot,
            control: options.control,
            transport: options.fuse_transport,
        }
    }
}

impl Mounting<'_> {
    /// Whether users other than the mounting one have access. Without root this requires `user_allow_other` in
    /// /etc/fuse.conf.
    pub fn allow_other(&mut self, allow: bool) -> &mut Self {
        self.allow_other = Some(allow);
        self
    }

    /// Whether set-user-ID and set-group-ID bits and file capabilities have no effect.
    pub fn nosuid(&mut self, nosuid: bool) -> &mut Self {
        self.flags.nosuid = nosuid;
        self
    }

    /// Whether device nodes cannot be opened.
    pub fn nodev(&mut self, nodev: bool) -> &mut Self {
        self.flags.nodev = nodev;
        self
    }

    /// Whether programs cannot be run.
    pub fn noexec(&mut self, noexec: bool) -> &mut Self {
        self.flags.noexec = noexec;
        self
    }

    /// Processes of the mounting user, who must be the only one with access, have root's permissions on the volume; this user
    /// and group own what they create. Implies `nosuid` and `nodev`.
    pub fn fakeroot(&mut self, user: u32, group: u32) -> &mut Self {
        self.fakeroot = Some((user, group));
        self
    }

    /// Whether the hidden directory `.steadfs` exists in the root of the mount; it does by default.
    pub fn control(&mut self, control: bool) -> &mut Self {
        self.control = control;
        self
    }

    /// How requests come from the kernel.
    pub fn transport(&mut self, transport: FuseTransport) -> &mut Self {
        self.transport = transport;
        self
    }

    /// The options of the mount.
    fn options(&self) -> Result<Options, Error> {
        let options = self.volume.opened_with().changed(|options| {
            options.flags = self.flags;
            options.allow_other = self.allow_other;
            options.fakeroot = self.fakeroot;
            options.control = self.control;
            options.fuse_transport = self.transport;
            // This process serves, as it is.
            options.sandbox = false;
        });
        options.map_err(|error| failed(self.volume.path(), error))
    }

    /// Mounts the volume on a directory, and serves it by threads of this process. When [`Mounted::wait`] returns, the volume
    /// is closed; a [`Mounted`] that is dropped detaches the mount.
    ///
    /// # Errors
    /// [`Error::Mount`]: the directory cannot be mounted on, or FUSE is not available; settings that contradict each other.
    pub fn at(&self, mountpoint: impl AsRef<Path>) -> Result<Mounted, Error> {
        mount(self.volume, mountpoint.as_ref(), &self.options()?)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Format, Volume};

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        Format::ext4().size(8 << 20).make(&image).unwrap();
        let volume = Volume::options().list("noexec").open(&image).unwrap();
        let mut mounting = volume.mounting();
        mounting.fakeroot(7, 8);
        let options = mounting.options().unwrap();
        assert!(options.flags.nosuid && options.flags.nodev && options.flags.noexec);
        assert_eq!(options.fakeroot, Some((7, 8)));
        mounting.allow_other(true);
        let error = mounting.at(dir.path()).err().unwrap().to_string();
        assert!(error.contains("option fakeroot"), "{error}");
    }
}
