//! Crash images: how many, and as files.

use super::*;

#[test]
fn few_choices_are_all_and_many_are_a_sample() {
    let device = instant();
    for at in 0..3 {
        run(&device, write(at * 8, 8, 1)).unwrap();
    }
    let log = device.log();
    let cut = log.at(log.len());
    assert_eq!((cut.changes(), cut.units()), (3, 24));
    let distinct = |choices: &[Survivors]| {
        let units: BTreeSet<_> = choices.iter().map(|choice| cut.units_of(choice)).collect();
        units.len()
    };
    let some = cut.choices(40, 0);
    assert_eq!(some.len(), 40);
    assert!(distinct(&some) > 25);
    let whole: BTreeSet<_> = some[..8]
        .iter()
        .map(|choice| cut.units_of(choice))
        .collect();
    assert_eq!(whole.len(), 8, "all subsets of whole writes");
    let torn = |units: &Vec<bool>| {
        units
            .chunks(8)
            .any(|w| w.contains(&true) && w.contains(&false))
    };
    assert!(some.iter().any(|choice| torn(&cut.units_of(choice))));
    let few = cut.choices(6, 0);
    assert_eq!(few.len(), 6);
    assert_eq!(few[..2], [Survivors::None, Survivors::All]);
    let text = cut.describe(&Survivors::Changes(vec![true, false, true]));
    assert_eq!(text.lines().count(), 3);
    assert!(text.contains("#1 Write of 4096 bytes at byte 4096, completed: lost"));
}

#[test]
fn images_go_to_files_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut bytes = vec![0; 10 * 4096 + 512];
    bytes[5000] = 1;
    bytes[10 * 4096 + 511] = 2;
    let image = Image::from_bytes(&bytes);
    image.save(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    let loaded = Image::load(&path).unwrap();
    assert_eq!(loaded.to_bytes(), bytes);
    let zeroed = Image::zeroed(image.size());
    assert!(loaded.same_content(&image) && !loaded.same_content(&zeroed));
    assert_eq!(loaded.fingerprint(&zeroed), image.fingerprint(&zeroed));
    let mut other = image.clone();
    other.write(5000, &[3]);
    assert_ne!(other.fingerprint(&zeroed), image.fingerprint(&zeroed));
    other.write(5000, &[0]);
    other.write(10 * 4096 + 511, &[0]);
    assert_eq!(other.fingerprint(&zeroed), zeroed.fingerprint(&zeroed));
}
