use super::*;

#[test]
fn limits_that_no_search_reaches_are_one() {
    let limits = FULL.limits;
    let full = |limit| same_as(limit, limits, FULL.volume);
    assert_eq!([20, 1024, 4096].map(full), [None; 3]);
    assert_eq!(full(ALL), Some(4096));
    let quick = |limit| same_as(limit, limits, 192 << 20);
    assert_eq!([64, 256].map(quick), [None; 2]);
    assert_eq!([1024, 4096, ALL].map(quick), [Some(256); 3]);
    assert_eq!(same_as(4096, &[20, 4096], FULL.volume), None);
}

/// The claim of `same_as` holds to the last command; a limit that is reached gives another run.
#[test]
fn a_run_with_a_limit_that_no_search_reaches_is_the_run_without() {
    let scale = Scale {
        volume: 192 << 20,
        rewrites: 1_000,
        limits: &[],
    };
    let device = Parameters::built_in("sdhc-2013").unwrap();
    let volume = volume(scale.volume).unwrap();
    let run = |limit| {
        let attempt = Attempt::simulated(1);
        one_run(&CASES[0], &device, &volume, scale, limit, attempt).unwrap()
    };
    let [few, many, all] = [20, 256, ALL].map(run);
    assert_eq!(many.trace, all.trace);
    assert_eq!(format!("{many:?}"), format!("{all:?}"));
    assert_ne!(few.trace, all.trace);
}
