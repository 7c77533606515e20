use super::*;

#[derive(Default, Debug, PartialEq)]
struct Settings {
    on: bool,
    size: u64,
}

type Opt = Entry<Settings>;

const TABLE: Table<Settings> = Table(&[&[
    Opt::flag("on", |s| s.on = true),
    Opt::value("size", "=BYTES", |s, v| bytes(v).map(|n| s.size = n)),
    Opt::either("maybe", "[=0|1]", |s, v| {
        v.map_or(Ok(1), |v| number(v, 0..=1)).map(|n| s.on = n == 1)
    }),
    Opt::already("defaults"),
    Opt::no_effect_but("turbo", "on", "it is fast anyway", |_, v| {
        choice(v.unwrap_or("on"), &[("on", ()), ("off", ())])
    }),
    Opt::refused("dax", "pages of the volume cannot be mapped"),
]]);

fn set(list: &str) -> Result<Settings> {
    let mut settings = Settings::default();
    let names = || TABLE.names();
    set_all(list, |n, v| TABLE.apply(&mut settings, n, v), names)?;
    Ok(settings)
}

#[track_caller]
fn fails(list: &str, sentence: &str) {
    assert_eq!(set(list), Err(FsError::BadOption(sentence.to_owned())));
}

#[test]
fn items_apply_in_order() {
    let wanted = Settings {
        on: false,
        size: 2 << 20,
    };
    assert_eq!(set("on,,size=1, size=2M,maybe=0,defaults"), Ok(wanted));
    assert_eq!(set(""), Ok(Settings::default()));
}

#[test]
fn mistakes_are_named() {
    fails("on=1", "option on=1: takes no value");
    fails("size", "option size: needs a value (size=…)");
    fails("maybe=2", "option maybe=2: needs a number from 0 to 1");
    fails(
        "dax=always",
        "option dax=always: pages of the volume cannot be mapped",
    );
    fails("sise=4", "option sise: unknown; did you mean size?");
    fails("zzzzzz", "option zzzzzz: unknown");
    fails("ONN", "option ONN: unknown; did you mean on?");
    fails("once", "option once: unknown");
    fails("é", "option é: unknown");
}

#[test]
fn all_refusals_of_a_list_are_one_error() {
    fails(
        "dax,on,sise=4,dax,maybe=2",
        "option dax: pages of the volume cannot be mapped; option sise: unknown; did you mean size?; \
         option maybe=2: needs a number from 0 to 1",
    );
}

#[test]
fn an_option_without_effect_is_accepted_and_says_why() {
    assert_eq!(set("turbo,turbo=off"), Ok(Settings::default()));
    let because = |value| TABLE.no_effect_because("turbo", value);
    assert_eq!(because(Some("off")), Some("it is fast anyway"));
    assert_eq!(because(Some("on")), None);
    assert_eq!(TABLE.no_effect_because("on", None), None);
    fails("turbo=max", "option turbo=max: is one of on, off");
}

#[test]
fn sizes_count_bytes_and_errors_say_why() {
    assert_eq!(bytes("4096"), Ok(4096));
    assert_eq!(bytes("1.5GiB"), Ok(3 << 29));
    assert_eq!(
        bytes("G"),
        Err("needs a number before the unit, such as 512K or 2G".to_owned())
    );
    assert!(bytes("１").is_err());
}

#[test]
fn neighbours_are_found() {
    let names = ["noatime", "atime", "nodiratime", "commit"];
    assert_eq!(nearest("notaime", names.into_iter()), Some("noatime"));
    assert_eq!(nearest("comit", names.into_iter()), Some("commit"));
    assert_eq!(nearest("xyz", names.into_iter()), None);
    assert_eq!(nearest(&"a".repeat(100), names.into_iter()), None);
}

#[test]
fn an_entry_has_the_help_the_present_item_and_the_remount_rule() {
    const TABLE: Table<Settings> = Table(&[&[
        Opt::flag("on", |s| s.on = true)
            .help(Section::Files, "a switch")
            .current(Shown::Changed, |s| word(s.on, "on", "off")),
        Opt::flag("off", |s| s.on = false).also(),
        Opt::value("size", "=BYTES", |s, v| bytes(v).map(|n| s.size = n))
            .help(Section::Files, "a size")
            .current(Shown::Always, |s| Some(format!("size={}", s.size)))
            .fixed(),
        Opt::already("defaults"),
    ]]);
    let lines = TABLE.help_lines();
    let shown: Vec<_> = lines
        .iter()
        .map(|line| (line.usages.join(", "), line.meaning.as_str()))
        .collect();
    let wanted = [
        ("on, off".to_owned(), "a switch [off]"),
        ("size=BYTES".to_owned(), "a size [0]"),
    ];
    assert_eq!(shown, wanted);
    let (old, mut new) = (Settings::default(), Settings::default());
    assert_eq!(TABLE.show(&new), "size=0");
    assert_eq!(TABLE.apply(&mut new, "on", None), Ok(true));
    assert_eq!(TABLE.show(&new), "on,size=0");
    assert_eq!(TABLE.check_remount(&old, &new), Ok(()));
    assert_eq!(TABLE.apply(&mut new, "size", Some("1K")), Ok(true));
    let refused = TABLE.check_remount(&old, &new).unwrap_err().to_string();
    assert!(refused.starts_with("option size: cannot change while mounted"));
}
