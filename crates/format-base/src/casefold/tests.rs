use steadfs_base::checksum::crc32c;

use super::*;

fn folded(name: &str) -> String {
    String::from_utf8(fold(name.as_bytes()).expect("a valid name")).expect("UTF-8")
}

#[test]
fn every_code_point_folds_as_in_unicode_12_1() {
    let (mut sum, mut changed) = (!0, 0);
    for c in (0..=0x10_FFFF).filter_map(char::from_u32) {
        let mut bytes = [0; 4];
        let name = c.encode_utf8(&mut bytes).as_bytes();
        let folded = fold(name).expect("it is UTF-8");
        changed += u32::from(folded != name);
        sum = crc32c(crc32c(sum, name), &folded);
    }
    // Of `scripts/unicode-tables --sum`, which does not read these tables.
    assert_eq!((changed, sum), (18_451, 0xE461_16ED));
}

#[test]
fn tables_are_sorted_and_disjoint() {
    let ranges = |ranges: &[(u32, u32)]| {
        ranges.iter().all(|(first, last)| first <= last)
            && ranges.windows(2).all(|pair| pair[0].1 < pair[1].0)
    };
    assert!(ranges(IGNORED));
    let classes: Vec<_> = CLASSES
        .iter()
        .map(|&(first, last, _)| (first, last))
        .collect();
    assert!(ranges(&classes));
    assert!(REPLACED.windows(2).all(|pair| pair[0].0 < pair[1].0));
    let moved: Vec<_> = MOVED
        .iter()
        .map(|&(first, last, ..)| (first, last))
        .collect();
    assert!(ranges(&moved));
}

#[test]
fn names_fold_by_case_decomposition_and_order_of_marks() {
    assert_eq!(folded("ÀÉ"), "a\u{300}e\u{301}");
    assert_eq!(folded("Straße"), "strasse");
    assert_eq!(folded("ǅ"), "ǆ");
    // Marks below go before marks above; ypogegrammeni becomes a letter.
    assert_eq!(folded("q\u{307}\u{323}"), "q\u{323}\u{307}");
    assert_eq!(folded("α\u{345}\u{301}"), "αι\u{301}");
    assert_eq!(
        folded("한글"),
        "\u{1112}\u{1161}\u{11AB}\u{1100}\u{1173}\u{11AF}"
    );
    // No mark moves across an ignored code point.
    assert_eq!(folded("A\u{AD}B\u{200D}"), "ab");
    assert_eq!(folded("q\u{307}\u{34F}\u{323}"), "q\u{307}\u{323}");
    assert_eq!(folded("\u{AD}"), "");
}

#[test]
fn what_is_not_utf_8_has_no_folded_form() {
    // A surrogate; longer than necessary; cut off.
    for name in [&b"\xED\xA0\x80"[..], b"\xC0\xAF", b"a\xC3"] {
        assert_eq!(fold(name), None, "{name:?}");
        let name = FoldedName::new(name);
        for is_strict in [true, false] {
            let encoding = Encoding {
                is_strict,
                hash_only: false,
            };
            assert_eq!(encoding.check(&name).is_err(), is_strict);
        }
    }
    // Noncharacters, private use, and capitals and marks that came with later versions: A7C7, 1DFA.
    let later = "\u{FDD0}\u{E000}\u{A7C7}\u{1DFA}\u{323}";
    assert_eq!(folded(later), later);
}

#[test]
fn names_are_the_same_by_their_folded_forms() {
    let same = |a: &[u8], b: &[u8]| {
        let ab = FoldedName::new(a).is_same(b);
        assert_eq!(ab, FoldedName::new(b).is_same(a), "{a:?} {b:?}");
        ab
    };
    assert!(same(b"ReadMe", b"README"));
    assert!(same("ÄRGER".as_bytes(), "a\u{308}rger".as_bytes()));
    assert!(same("\u{212A}elvin".as_bytes(), b"KELVIN"));
    assert!(!same(b"a", b"ab"));
    // Invalid names are compared by their bytes.
    assert!(same(b"A\xFF", b"A\xFF"));
    assert!(!same(b"A\xFF", b"a\xFF"));
    // `.` has one spelling.
    assert!(!FoldedName::new("\u{AD}.".as_bytes()).is_same(b"."));
    assert!(!FoldedName::new("\u{AD}..".as_bytes()).is_same(b".."));
}
