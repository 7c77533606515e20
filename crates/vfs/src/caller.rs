//! The caller of an operation.

use std::sync::Arc;

use steadfs_base::IoTag;

use crate::{FileKind, FsError, Result};

/// The caller of an operation: its credentials and the tag of its I/O.
#[derive(Clone, Debug, Default)]
pub struct Cx {
    /// Effective user of the caller.
    pub uid: u32,
    /// Effective group of the caller.
    pub gid: u32,
    /// User and group that own what the caller creates, if it is not the caller itself.
    pub new_owner: Option<(u32, u32)>,
    /// Supplementary groups, if the transport knows them.
    pub groups: Vec<u32>,
    /// Whether the caller may keep set-group-ID on files of a group it is not in (CAP_FSETID).
    pub fsetid: bool,
    /// Whether the caller has CAP_SYS_ADMIN. A transport sets it for ioctls only.
    pub admin: bool,
    /// Bits to clear in the mode of a new file that inherits no default ACL.
    pub umask: u32,
    /// Whether what the caller makes takes nothing from its directory's default list: a copy gets its original's lists.
    pub no_default_acl: bool,
    /// Owner and urgency of the I/O this call causes.
    pub tag: IoTag,
    /// Identifies the caller: the process, if there is one. Only compared.
    pub caller: u64,
    /// The open file that the call was made with, if the transport knows it.
    pub opened: Option<OpenFile>,
    /// How to find out what the request does not contain, if the transport can.
    pub caller_state: Option<Arc<dyn CallerState>>,
}

/// A file as open(2) has opened it; all descriptors that were duplicated from one share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Identifies it. Only compared.
    pub id: u64,
    /// Whether it is open for writing.
    pub write: bool,
    /// Whether it was opened with O_DIRECT.
    pub direct: bool,
}

/// The transport's view of a caller that waits for its call.
pub trait CallerState: Send + Sync + std::fmt::Debug {
    /// Whether the caller has a fatal signal pending: it does not see the result of its call.
    fn is_killed(&self) -> bool;

    /// Whether this is one of the caller's supplementary groups. May take as long as a system call.
    fn is_in_group(&self, gid: u32) -> bool;

    /// The process of the caller, which may be one of its threads; `None`: it is not known. May take as long as a system
    /// call, as the next.
    fn process(&self) -> Option<u64> {
        None
    }

    /// Whether all threads of such a process have ended or are about to.
    fn has_ended(&self, _process: u64) -> bool {
        false
    }
}

const SET_USER_ID: u16 = 0o4000;
const SET_GROUP_ID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

impl Cx {
    /// Whether the caller has a fatal signal pending (`fatal_signal_pending`). Long operations check it between two steps,
    /// at points where the file is consistent.
    pub fn is_killed(&self) -> bool {
        let state = self.caller_state.as_ref();
        state.is_some_and(|caller| caller.is_killed())
    }

    /// Fails with [`FsError::Interrupted`] if the caller is being killed.
    pub fn check_killed(&self) -> Result<()> {
        match self.is_killed() {
            true => Err(FsError::Interrupted),
            false => Ok(()),
        }
    }

    /// User and group that own what the caller creates.
    pub fn new_owner(&self) -> (u32, u32) {
        self.new_owner.unwrap_or((self.uid, self.gid))
    }

    /// Whether this is one of the caller's groups. May take as long as a system call.
    pub fn is_in_group(&self, gid: u32) -> bool {
        let asked = || self.caller_state.as_ref().map(|c| c.is_in_group(gid));
        self.gid == gid || self.groups.contains(&gid) || asked() == Some(true)
    }

    /// Whether the caller may set or keep set-group-ID on files of this group.
    pub fn may_keep_group(&self, gid: u32) -> bool {
        self.fsetid || self.is_in_group(gid)
    }

    /// The mode of a file of group `gid` after an unprivileged caller changed its content or owner: without set-user-ID,
    /// and without set-group-ID unless it has no effect (no group execution) and the caller is in the group. Directories
    /// keep both.
    pub fn without_privileges(&self, mode: u16, gid: u32) -> u16 {
        if FileKind::from_mode(mode.into()) == Some(FileKind::Directory) {
            return mode;
        }
        let has_effect = mode & GROUP_EXECUTE != 0;
        let loses = mode & SET_GROUP_ID != 0 && (has_effect || !self.may_keep_group(gid));
        let group = if loses { SET_GROUP_ID } else { 0 };
        mode & !(SET_USER_ID | group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A caller with one supplementary group that the request did not contain.
    #[derive(Debug)]
    struct InGroup(u32);

    impl CallerState for InGroup {
        fn is_killed(&self) -> bool {
            false
        }

        fn is_in_group(&self, gid: u32) -> bool {
            self.0 == gid
        }
    }

    #[test]
    fn set_group_id_without_effect_stays_for_members_of_the_group() {
        let caller = Cx {
            uid: 1,
            gid: 1,
            caller_state: Some(Arc::new(InGroup(7))),
            ..Cx::default()
        };
        assert_eq!(caller.without_privileges(0o102_644, 7), 0o102_644);
        assert_eq!(caller.without_privileges(0o106_644, 7), 0o102_644);
        assert_eq!(caller.without_privileges(0o102_644, 8), 0o100_644);
        assert_eq!(caller.without_privileges(0o102_755, 7), 0o100_755);
        assert_eq!(caller.without_privileges(0o042_755, 8), 0o042_755);
    }
}
