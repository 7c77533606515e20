//! A tree of real files: extracted, walked, removed.

use std::path::Path;

use crate::Result;
use crate::activity_run::ActivityRun;
use crate::command::{output, program, quietly};
use crate::measure::seconds;

/// tar extracts the tree, find stats every file of it, rm removes it.
pub fn run(run: &mut ActivityRun) -> Result<()> {
    let top = run.root().join("t");
    std::fs::create_dir(&top)?;
    let tree = run.tree();
    let mut tar = program("tar");
    tar.arg("-xf").arg(&tree.archive).arg("-C").arg(&top);
    let ((), extracted) = seconds(|| quietly(&mut tar))?;
    run.record("tar extract", extracted);
    let unmounted = run.cold()?;
    run.record("unmount after tar extract", unmounted);
    let (result, walked) = seconds(|| walk(&top))?;
    if result != tree.entries {
        return Err(format!("{result} files of {} are there", tree.entries).into());
    }
    run.record("tree walk, cold", walked);
    let ((), removed) = seconds(|| quietly(program("rm").arg("-rf").arg(&top)))?;
    run.record("rm -rf", removed);
    Ok(())
}

/// Stats every file; returns their number.
fn walk(top: &Path) -> Result<usize> {
    let list = output(program("find").arg(top).args(["-printf", "%s %T@\\n"]))?;
    Ok(list.lines().count())
}
