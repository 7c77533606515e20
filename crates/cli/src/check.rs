//! `steadfs check`.

use steadfs::Options;

use crate::args;
use crate::failure::Failure;

/// Exit code of e2fsck(8): issues that were left as they are.
const UNCORRECTED: u8 = 4;
/// Exit code of e2fsck(8): the check could not be made.
const OPERATIONAL: u8 = 8;

pub fn run(args: &args::Check) -> Result<(), Failure> {
    let list = args.open.options.join(",");
    let options = Options::parse(&list).map_err(Failure::plain)?;
    let checked =
        steadfs::check(&args.volume, &options).map_err(|error| Failure::new(OPERATIONAL, error))?;
    let name = args.volume.display();
    if checked.replayed.replayed_transactions > 0 {
        println!(
            "{name}: journal replayed in memory ({} transactions)",
            checked.replayed.replayed_transactions
        );
    }
    let report = checked.report;
    for issue in &report.issues {
        println!("{issue}");
    }
    if report.more > 0 {
        println!("and {} more", report.more);
    }
    for what in &report.skipped {
        println!("not checked: {what}");
    }
    let stats = &report.stats;
    println!(
        "{name}: {}/{} inodes, {}/{} blocks, {} files, {} directories: {}",
        stats.inodes_used,
        stats.inodes,
        stats.blocks_used,
        stats.blocks,
        stats.files,
        stats.dirs,
        if report.is_clean() {
            "clean"
        } else {
            "damaged"
        },
    );
    if report.is_clean() {
        Ok(())
    } else {
        Err(Failure::new(UNCORRECTED, ""))
    }
}
