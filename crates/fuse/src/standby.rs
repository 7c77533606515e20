//! What a successor needs if this server ends without handing over.
//!
//! **Problem.** A hostile volume, or an error of ours, may end a server, and its mount with it. **Rule.** A mount that
//! has been read-only since it was made has nothing to lose. Its broker keeps what a successor needs and starts one, and
//! the kernel sends the requests again that had been taken (NOTIFY_RESEND, Linux 6.9 and newer): programs see a pause. A
//! mount that is or was writable is continued if its calls are recorded (`record`). Otherwise it ends with its server: what
//! was acknowledged without an fsync is lost.

use std::sync::Arc;

use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::FileSystem;

use crate::host;
use crate::mount::Legacy;
use crate::record::Recorder;

/// Keeps the broker's copy up to date.
pub(crate) struct Standby {
    minor: u32,
    /// The mount is, was or may become writable.
    writable: Mutex<bool>,
    /// Records all calls, so a writable mount can be continued.
    recorder: Option<Arc<Recorder>>,
}

impl Standby {
    /// Of a server that serves a connection of this minor version, whose kernel resends requests.
    pub(crate) fn new(minor: u32, only_read: bool, recorder: Option<Arc<Recorder>>) -> Self {
        Self {
            minor,
            recorder,
            writable: Mutex::new(Rank::Leaf, !only_read),
        }
    }

    fn is_recorded(&self) -> bool {
        let recorder = self.recorder.as_ref();
        recorder.is_some_and(|recorder| recorder.is_recording())
    }

    /// Whether the mount has been read-only since it was made.
    pub(crate) fn only_read(&self) -> bool {
        !*self.writable.lock()
    }

    /// The options of the mount are as `fs` says.
    pub(crate) fn update(&self, fs: &dyn FileSystem) {
        let options = fs.options();
        let mut writable = self.writable.lock();
        *writable |= !is_read_only(&options);
        let recorded = self.is_recorded();
        if *writable && !recorded {
            return host::set_standby("");
        }
        let legacy = Legacy {
            minor: self.minor,
            resends: true,
            only_read: !*writable,
            recorded,
            options,
            lookups: None,
        };
        host::set_standby(&legacy.head());
        if recorded && !self.is_recorded() {
            // It has failed meanwhile.
            host::set_standby("");
        }
    }

    /// The options of this list are about to take effect.
    pub(crate) fn will_remount(&self, list: &str) {
        if list.split(',').any(|word| word.trim() == "rw") {
            self.may_become_writable();
        }
    }

    /// The volume is about to become writable. The kernel's mount may be so already: nothing notifies the server of that.
    pub(crate) fn may_become_writable(&self) {
        let mut writable = self.writable.lock();
        if !std::mem::replace(&mut *writable, true) && !self.is_recorded() {
            host::set_standby("");
        }
    }
}

fn is_read_only(options: &str) -> bool {
    options.split(',').any(|word| word == "ro")
}
