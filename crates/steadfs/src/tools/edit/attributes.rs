//! `chmod` and `chown`.

use steadfs_vfs::{Attr, FileKind, SetAttr};

use super::super::walker::{Visited, Visitor, visit};
use super::super::{Result, ToolError};
use super::{Changed, Editor, InChange, ModeChange, OwnerSpec, Owners};

const CHMOD: &str = "cannot change permissions";
const CHOWN: &str = "cannot change the owner";

/// A change of a file's attributes.
enum Change<'c> {
    Mode(&'c ModeChange),
    Owners(Owners),
}

impl Change<'_> {
    /// What is set. A recursion leaves the permissions of links, which have none.
    fn of(&self, attr: &Attr, umask: u32) -> Option<SetAttr> {
        match self {
            Self::Mode(_) if attr.kind == FileKind::Symlink => None,
            Self::Mode(mode) => Some(SetAttr {
                perm: Some(mode.apply(attr.perm, attr.kind == FileKind::Directory, umask)),
                ..SetAttr::default()
            }),
            Self::Owners(owners) => Some(SetAttr {
                uid: owners.uid,
                gid: owners.gid,
                ..SetAttr::default()
            }),
        }
    }

    fn what(&self) -> &'static str {
        match self {
            Self::Mode(_) => CHMOD,
            Self::Owners(_) => CHOWN,
        }
    }
}

/// Changes each file of a tree.
struct Everywhere<'e, 'a> {
    editor: &'e mut Editor<'a>,
    change: &'e Change<'e>,
}

impl Visitor for Everywhere<'_, '_> {
    fn enter(&mut self, file: Visited<'_>) -> Result<bool> {
        let changed = self.editor.change(file.attr, file.path, self.change);
        self.editor.note(changed)?;
        Ok(true)
    }

    fn problem(&mut self, error: ToolError) -> Result<()> {
        self.editor.note(Err(error))
    }
}

impl Editor<'_> {
    /// Changes permissions, as chmod(1): a link that is named is followed.
    ///
    /// # Errors
    /// A signal, or the volume has stopped.
    pub fn chmod(&mut self, path: &[u8], mode: &ModeChange, recursive: bool) -> Result<()> {
        self.change_at(path, &Change::Mode(mode), true, recursive)
    }

    /// Changes owners, as chown(1). A link is followed unless `no_follow` or `recursive`.
    ///
    /// # Errors
    /// A signal, or the volume has stopped.
    pub fn chown(
        &mut self,
        path: &[u8],
        owners: Owners,
        no_follow: bool,
        recursive: bool,
    ) -> Result<()> {
        let follow = !no_follow && !recursive;
        self.change_at(path, &Change::Owners(owners), follow, recursive)
    }

    /// The numbers of an owner on this volume.
    ///
    /// # Errors
    /// There are none.
    pub fn owners(&self, spec: &OwnerSpec) -> Result<Owners> {
        spec.find(self.fs, self.cx)
    }

    fn change_at(
        &mut self,
        path: &[u8],
        change: &Change<'_>,
        follow: bool,
        recursive: bool,
    ) -> Result<()> {
        let found = self.found(path, follow, change.what());
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.note(Err(error)),
        };
        if !recursive {
            let changed = self.change(found.attr(), path, change);
            return self.note(changed);
        }
        let (fs, cx) = (self.fs, self.cx);
        let mut everywhere = Everywhere {
            editor: self,
            change,
        };
        visit(fs, cx, (found, path), false, &mut everywhere)
    }

    fn change(&mut self, attr: &Attr, path: &[u8], change: &Change<'_>) -> Result<()> {
        if let Some(set) = change.of(attr, self.cx.umask) {
            let done = self.fs.setattr(self.cx, attr.ino, &set);
            let now = done.in_change(path, change.what())?;
            let changed = match change {
                Change::Mode(_) => Changed::Mode {
                    path,
                    kind: attr.kind,
                    from: attr.perm,
                    to: now.perm,
                },
                Change::Owners(_) => Changed::Owners {
                    path,
                    from: (attr.uid, attr.gid),
                    uid: set.uid,
                    gid: set.gid,
                },
            };
            self.report(&changed);
        } else {
            self.report(&Changed::PassedOver(path));
        }
        Ok(())
    }
}
