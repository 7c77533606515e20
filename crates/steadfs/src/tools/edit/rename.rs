//! `mv` and `ln`.

use std::collections::BTreeSet;

use steadfs_base::InodeNo;
use steadfs_vfs::{FileKind, FsError, RenameFlags};

use super::super::last_name::LastName;
use super::super::replacing::make_over;
use super::super::walk::{Held, is_of_dir, leads_to, resolve};
use super::super::{Result, SAME_FILE, ToolError, join};
use super::relative;
use super::{Changed, Editor, InChange, Question, Spot, base_name};

const MV: &str = "cannot move";
const LN: &str = "cannot create link";

/// Where `mv` and `ln` put their operands.
#[derive(Clone, Copy, Debug)]
pub struct Target<'t> {
    /// The path.
    pub path: &'t [u8],
    /// `-t`: it is a directory.
    pub is_dir: bool,
    /// `-T`: it is the name itself.
    pub is_name: bool,
    /// `-n` of ln: a link to a directory is not followed.
    pub no_follow: bool,
}

/// The options of [`Editor::mv`].
#[derive(Clone, Copy, Debug, Default)]
pub struct MoveOptions {
    /// A name that exists is not replaced, without an error.
    pub no_clobber: bool,
    /// The user is asked before a name that exists is replaced.
    pub ask: bool,
}

/// The options of [`Editor::ln`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkOptions {
    /// Symbolic links, whose targets are the operands as they are.
    pub symbolic: bool,
    /// A name that exists gets the link.
    pub force: bool,
    /// The user is asked before that.
    pub ask: bool,
    /// A symbolic link's text is the way from its directory to the operand, which is a path.
    pub relative: bool,
}

impl<'a> Editor<'a> {
    /// Moves files inside the volume, as mv(1).
    ///
    /// # Errors
    /// The target is wrong, a signal, or the volume has stopped.
    pub fn mv(
        &mut self,
        sources: &[&[u8]],
        target: Target<'_>,
        options: MoveOptions,
    ) -> Result<()> {
        let into = self.is_into(sources.len(), target)?;
        let mut made = BTreeSet::new();
        for source in sources {
            let to = goal(source, target, into);
            let moved = self.move_one(source, &to, options, &mut made);
            self.note(moved)?;
        }
        Ok(())
    }

    /// Whether operands get their own names in the target.
    fn is_into(&self, operands: usize, target: Target<'_>) -> Result<bool> {
        let is_dir = self.is_dir(target.path, !target.no_follow);
        let into = !target.is_name && is_dir;
        match into || (operands == 1 && !target.is_dir) {
            true => Ok(into),
            false => {
                resolve(self.fs, self.cx, target.path, true).in_change(target.path, "target")?;
                Err(FsError::NotDir).in_change(target.path, "target")
            }
        }
    }

    fn move_one(
        &mut self,
        source: &[u8],
        to: &[u8],
        options: MoveOptions,
        made: &mut BTreeSet<(InodeNo, Vec<u8>)>,
    ) -> Result<()> {
        if base_name(source) == b"." {
            return Err(FsError::Invalid("the path ends in '.'")).in_change(source, MV);
        }
        let from = self.spot(source, MV)?;
        let Some(file) = &from.found else {
            return Err(FsError::NotFound).in_change(source, MV);
        };
        let is_dir = file.attr().kind == FileKind::Directory;
        if !is_dir && (is_of_dir(source) || is_of_dir(to)) {
            let path = if is_of_dir(source) { source } else { to };
            return Err(FsError::NotDir).in_change(path, MV);
        }
        let to = self.spot(to, MV)?;
        if options.no_clobber && to.found.is_some() {
            return Ok(());
        }
        let key = (to.dir.ino(), to.name.clone());
        if made.contains(&key) {
            let why = "was moved there by this command already: not replaced";
            return super::super::refused(&to.path, why);
        }
        let (fs, cx) = (self.fs, self.cx);
        if let Some(there) = &to.found {
            let is_link = file.attr().kind == FileKind::Symlink;
            let same =
                there.ino() == file.ino() || is_link && self.is_end(source, &to, there, MV)?;
            // Also for two names of one file, where rename(2) would leave both.
            if same {
                return super::super::refused(&to.path, SAME_FILE);
            }
        }
        let (old, new) = (
            (from.dir.ino(), &from.name[..]),
            (to.dir.ino(), &to.name[..]),
        );
        let asks = options.ask && to.found.is_some();
        if !self.agrees(asks, &Question::Overwrite(&to.path)) {
            return Ok(());
        }
        let moved = fs.rename(cx, old, new, RenameFlags::default());
        moved.map_err(|error| match error {
            FsError::NotDir | FsError::IsDir | FsError::NotEmpty => ToolError::Change {
                path: to.path.clone(),
                what: "cannot replace",
                source: error,
            },
            source_error => ToolError::Change {
                path: source.to_vec(),
                what: MV,
                source: source_error,
            },
        })?;
        made.insert(key);
        self.report(&Changed::Moved {
            from: source,
            to: &to.path,
        });
        Ok(())
    }

    /// Whether a path leads to a target, which is the only name of its file or the very name that the path leads to.
    fn is_end(
        &self,
        path: &[u8],
        to: &Spot<'_>,
        there: &Held<'_>,
        what: &'static str,
    ) -> Result<bool> {
        if !leads_to(self.fs, self.cx, path, there.attr()) {
            return Ok(false);
        }
        if there.attr().nlink < 2 || there.attr().kind == FileKind::Directory {
            return Ok(true);
        }
        let end = LastName::of(self.fs, self.cx, path).and_then(LastName::end);
        let end = end.in_change(path, what)?;
        let dir = end.dir().in_change(path, what)?;
        Ok((dir.ino(), &end.name) == (to.dir.ino(), &to.name))
    }

    /// Makes links, as ln(1). Operands of hard links are paths; a link itself is linked, not where it leads.
    ///
    /// # Errors
    /// The target is wrong, a signal, or the volume has stopped.
    pub fn ln(
        &mut self,
        operands: &[&[u8]],
        target: Target<'_>,
        options: LinkOptions,
    ) -> Result<()> {
        let into = self.is_into(operands.len(), target)?;
        let mut made = BTreeSet::new();
        for operand in operands {
            let at = goal(operand, target, into);
            let linked = self.link_one(operand, &at, options, &mut made);
            self.note(linked)?;
        }
        Ok(())
    }

    fn link_one(
        &mut self,
        operand: &[u8],
        at: &[u8],
        options: LinkOptions,
        made: &mut BTreeSet<(InodeNo, Vec<u8>)>,
    ) -> Result<()> {
        let (fs, cx) = (self.fs, self.cx);
        let found = || self.found(operand, false, LN);
        let file = (!options.symbolic).then(found).transpose()?;
        let is_dir = |file: &Held<'_>| file.attr().kind == FileKind::Directory;
        if file.as_ref().is_some_and(is_dir) {
            let why = "a hard link to a directory is not allowed";
            return super::super::refused(operand, why);
        }
        if is_of_dir(at) {
            return Err(FsError::NotFound).in_change(at, LN);
        }
        let text = self.link_text(operand, at, options)?;
        let spot = self.spot(at, LN)?;
        let key = (spot.dir.ino(), spot.name.clone());
        let replaces = options.force || options.ask;
        if let Some(there) = spot.found.as_ref().filter(|_| replaces) {
            if made.contains(&key) {
                let why = "was made by this command already: not replaced";
                return super::super::refused(at, why);
            }
            if let Some(file) = file.as_ref().filter(|file| file.ino() == there.ino()) {
                if file.attr().nlink < 2 || operand == at {
                    return super::super::refused(at, SAME_FILE);
                }
                // Another name of the file is as the link would be.
                if self.agrees(options.ask, &Question::Overwrite(at)) {
                    self.report(&Changed::Linked {
                        path: at,
                        operand,
                        symbolic: false,
                    });
                }
                return Ok(());
            }
            if is_dir(there) {
                return Err(FsError::IsDir).in_change(at, "cannot replace");
            }
            if options.symbolic {
                self.spare_end(operand, &text, &spot, there)?;
            }
            if !self.agrees(options.ask, &Question::Overwrite(at)) {
                return Ok(());
            }
        }
        let dir = spot.dir.ino();
        let link = |name: &[u8]| match &file {
            Some(file) => fs.link(cx, file.ino(), dir, name),
            None => fs.symlink(cx, dir, name, &text),
        };
        let linked = match spot.found.is_some() && replaces {
            true => make_over(fs, cx, (dir, &spot.name), link),
            false => link(&spot.name),
        };
        fs.forget(linked.in_change(at, LN)?.ino, 1);
        made.insert(key);
        self.report(&Changed::Linked {
            path: at,
            operand: &text,
            symbolic: options.symbolic,
        });
        Ok(())
    }

    fn link_text(&self, operand: &[u8], at: &[u8], options: LinkOptions) -> Result<Vec<u8>> {
        match options.symbolic && options.relative {
            true => relative::way(self.fs, self.cx, operand, at).in_change(at, LN),
            false => Ok(operand.to_vec()),
        }
    }

    /// Refuses a symbolic link in the place of the file that it would lead to, from its directory or, as ln(1) takes the
    /// operand, from the root.
    fn spare_end(
        &self,
        operand: &[u8],
        text: &[u8],
        spot: &Spot<'_>,
        there: &Held<'_>,
    ) -> Result<()> {
        let around = spot.path.iter().rposition(|byte| *byte == b'/');
        let around = &spot.path[..around.map_or(0, |at| at + 1)];
        let behind = match text.starts_with(b"/") {
            true => text.to_vec(),
            false => [around, text].concat(),
        };
        for path in [operand, &behind] {
            if self.is_end(path, spot, there, LN)? {
                return super::super::refused(&spot.path, SAME_FILE);
            }
        }
        Ok(())
    }
}

/// The path that an operand gets.
fn goal(operand: &[u8], target: Target<'_>, into: bool) -> Vec<u8> {
    match into {
        true => join(target.path, base_name(operand)),
        false => target.path.to_vec(),
    }
}
