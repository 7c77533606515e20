//! A tree of real files: extracted, walked, removed.

use std::path::Path;

use crate::Result;
use crate::command::{output, program, quietly};
use crate::measure::seconds;
use crate::stage::Stage;

/// tar extracts the tree, find looks at every file of it, rm takes it away.
pub fn run(stage: &mut Stage) -> Result<()> {
    let top = stage.root().join("t");
    std::fs::create_dir(&top)?;
    let tree = stage.tree();
    let mut tar = program("tar");
    tar.arg("-xf").arg(&tree.archive).arg("-C").arg(&top);
    let ((), extracted) = seconds(|| quietly(&mut tar))?;
    stage.record("tar extract", extracted);
    let unmounted = stage.cold()?;
    stage.record("unmount after tar extract", unmounted);
    let (found, walked) = seconds(|| walk(&top))?;
    if found != tree.entries {
        return Err(format!("{found} files of {} are there", tree.entries).into());
    }
    stage.record("tree walk, cold", walked);
    let ((), removed) = seconds(|| quietly(program("rm").arg("-rf").arg(&top)))?;
    stage.record("rm -rf", removed);
    Ok(())
}

/// Asks for the attributes of every file and counts them.
fn walk(top: &Path) -> Result<usize> {
    let list = output(program("find").arg(top).args(["-printf", "%s %T@\\n"]))?;
    Ok(list.lines().count())
}
