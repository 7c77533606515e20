//! No read error leaves a volume corrupt and unmarked.

use super::*;

/// With `STEADFS_READS` set every case runs on every volume, and the format's own checker judges every volume, too;
/// otherwise a sample, different for each case.
fn all() -> bool {
    std::env::var_os("STEADFS_READS").is_some()
}

#[test]
fn a_failed_read_leaves_no_unmarked_damage() {
    sim::run(sim::Config::new(1), || {
        let (mut faults, mut bad) = (0, Vec::new());
        for (v, volume) in volumes().iter().enumerate() {
            for (c, case) in CASES.iter().enumerate() {
                if case.extents && !volume.extents {
                    continue;
                }
                for fails in [ReadFailures::Once, ReadFailures::BadSector] {
                    let chosen = match fails {
                        ReadFailures::Once => (v + c) % 2 == 0,
                        ReadFailures::BadSector => (v + c) % 5 == 1,
                    };
                    if !all() && !chosen {
                        continue;
                    }
                    let tally = sweep(volume, case, fails, |n| all() || n == 0);
                    println!("{:26} {:34} {fails:?}: {tally}", volume.name, case.name);
                    faults += tally.faults;
                    bad.extend(tally.bad);
                    if tally.stopped > 0 {
                        bad.push(format!("{} {}: stopped", volume.name, case.name));
                    }
                }
            }
        }
        assert!(bad.is_empty(), "{} bad:\n{}", bad.len(), bad.join("\n"));
        assert!(faults > 500, "only {faults} reads have failed");
    });
}
