//! The grammar of mount options: tables of names, each with what it does or why it is refused.
//!
//! A list is `name` and `name=value` items between commas, as mount(8) has them; of contradicting
//! items the last one counts. Nothing is ignored silently: a name is in a table, or it is an error
//! that names the nearest option there is. An option that has no effect here is accepted only where
//! it asks for no guarantee, and [`no_effect_because`] has the reason, for the user to read.

use crate::{FsError, Result};

/// What one option name does to the settings `T`. Functions answer with a sentence about the value
/// when it makes no sense.
pub enum Rule<T> {
    /// Stands alone.
    Flag(fn(&mut T)),
    /// Needs a value.
    Value(fn(&mut T, &str) -> Result<(), String>),
    /// Stands alone or has a value.
    Either(fn(&mut T, Option<&str>) -> Result<(), String>),
    /// Accepted, and has no effect. Values are checked all the same.
    NoEffect {
        /// The reason.
        why: &'static str,
        /// The value that holds anyway.
        anyway: Option<&'static str>,
        /// Checks the value.
        rule: fn(&mut T, Option<&str>) -> Result<(), String>,
    },
    /// Known and not offered, with or without a value; the reason and the way out.
    Refused(&'static str),
}

/// An option's name and rule.
pub struct Entry<T: 'static> {
    /// The name, as it is written.
    pub name: &'static str,
    /// What it does.
    pub rule: Rule<T>,
}

impl<T> Entry<T> {
    /// Whether it is known and not offered.
    pub const fn is_refused(&self) -> bool {
        matches!(self.rule, Rule::Refused(_))
    }
}

/// An option that stands alone.
pub const fn flag<T>(name: &'static str, rule: fn(&mut T)) -> Entry<T> {
    let rule = Rule::Flag(rule);
    Entry { name, rule }
}

/// An option that needs a value.
pub const fn value<T>(
    name: &'static str,
    rule: fn(&mut T, &str) -> Result<(), String>,
) -> Entry<T> {
    let rule = Rule::Value(rule);
    Entry { name, rule }
}

/// An option that may have a value.
pub const fn either<T>(
    name: &'static str,
    rule: fn(&mut T, Option<&str>) -> Result<(), String>,
) -> Entry<T> {
    let rule = Rule::Either(rule);
    Entry { name, rule }
}

/// An option that says what is so anyway.
pub const fn already<T>(name: &'static str) -> Entry<T> {
    let rule = Rule::Flag(|_| ());
    Entry { name, rule }
}

/// An option that is accepted with any value, or none, and has no effect; and why.
pub const fn no_effect<T>(name: &'static str, why: &'static str) -> Entry<T> {
    no_effect_if(name, why, |_, _| Ok(()))
}

/// The same for an option whose value `rule` checks.
pub const fn no_effect_if<T>(
    name: &'static str,
    why: &'static str,
    rule: fn(&mut T, Option<&str>) -> Result<(), String>,
) -> Entry<T> {
    let anyway = None;
    let rule = Rule::NoEffect { why, anyway, rule };
    Entry { name, rule }
}

/// An option of which one value holds anyway and those that `rule` takes besides have no effect; and why.
pub const fn no_effect_but<T>(
    name: &'static str,
    anyway: &'static str,
    why: &'static str,
    rule: fn(&mut T, Option<&str>) -> Result<(), String>,
) -> Entry<T> {
    let anyway = Some(anyway);
    let rule = Rule::NoEffect { why, anyway, rule };
    Entry { name, rule }
}

/// An option that is not offered, and why.
pub const fn refused<T>(name: &'static str, why: &'static str) -> Entry<T> {
    let rule = Rule::Refused(why);
    Entry { name, rule }
}

/// The items of an option list: name and value. Empty items are skipped, as mount(8) does.
pub fn items(list: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    list.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(|item| match item.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (item, None),
        })
}

/// Applies one item by `table`. Returns whether the table knows the name.
///
/// # Errors
/// [`FsError::BadOption`] for a value missing, not wanted or without sense, or a refused option.
pub fn apply<T>(
    table: &[Entry<T>],
    settings: &mut T,
    name: &str,
    value: Option<&str>,
) -> Result<bool> {
    let Some(entry) = table.iter().find(|entry| entry.name == name) else {
        return Ok(false);
    };
    let done = match (&entry.rule, value) {
        (Rule::Flag(rule), None) => {
            rule(settings);
            Ok(())
        }
        (Rule::Flag(_), Some(_)) => Err("takes no value".to_owned()),
        (Rule::Value(rule), Some(value)) => rule(settings, value),
        (Rule::Value(_), None) => Err(format!("needs a value ({name}=…)")),
        (Rule::Either(rule) | Rule::NoEffect { rule, .. }, value) => rule(settings, value),
        (Rule::Refused(why), _) => Err((*why).to_owned()),
    };
    match done {
        Ok(()) => Ok(true),
        Err(why) => {
            let item = item(name, value);
            Err(FsError::BadOption(format!("option {item}: {why}")))
        }
    }
}

/// An item as it stands in a list.
pub fn item(name: &str, value: Option<&str>) -> String {
    value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}"))
}

/// Why an item has no effect by `table`, if it has none.
pub fn no_effect_because<T>(
    table: &[Entry<T>],
    name: &str,
    value: Option<&str>,
) -> Option<&'static str> {
    let entry = table.iter().find(|entry| entry.name == name)?;
    match entry.rule {
        Rule::NoEffect { anyway, .. } if anyway.is_some() && anyway == value => None,
        Rule::NoEffect { why, .. } => Some(why),
        _ => None,
    }
}

/// The refusals of one list, reported together, so that a list is corrected once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(Vec<FsError>);

impl Refusals {
    /// Adds one, if it is not there already.
    pub fn push(&mut self, error: FsError) {
        if !self.0.contains(&error) {
            self.0.push(error);
        }
    }

    /// Adds those of `other`.
    pub fn extend(&mut self, other: &Self) {
        other.0.iter().for_each(|error| self.push(error.clone()));
    }

    /// Adds the error of `result`, or returns its value.
    pub fn check<V>(&mut self, result: Result<V>) -> Option<V> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// Whether nothing was refused.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them as one error, in their order.
    ///
    /// # Errors
    /// The only one, or [`FsError::BadOption`] with the sentences of all.
    pub fn into_result(self) -> Result<()> {
        match &self.0[..] {
            [] => Ok(()),
            [error] => Err(error.clone()),
            all => {
                let sentences: Vec<_> = all.iter().map(ToString::to_string).collect();
                Err(FsError::BadOption(sentences.join("; ")))
            }
        }
    }
}

/// Applies all items of a list by `set`, which returns whether it knows the name; those that it does not know are
/// errors that name the nearest of `names`.
///
/// # Errors
/// All refusals.
pub fn set_all<'a, N: Iterator<Item = &'a str>>(
    list: &str,
    mut set: impl FnMut(&str, Option<&str>) -> Result<bool>,
    names: impl Fn() -> N,
) -> Result<()> {
    let mut refused = Refusals::default();
    for (name, value) in items(list) {
        if refused.check(set(name, value)) == Some(false) {
            refused.push(unknown(name, names()));
        }
    }
    refused.into_result()
}

/// The error for a name that is in no table, with the nearest of `names`.
pub fn unknown<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> FsError {
    FsError::BadOption(match nearest(name, names) {
        Some(near) => format!("option {name}: unknown; did you mean {near}?"),
        None => format!("option {name}: unknown"),
    })
}

/// The error for an option that would change what a mount cannot change.
pub fn cannot_change(item: &str) -> FsError {
    let why = "cannot change while mounted; unmount and mount again";
    FsError::BadOption(format!("option {item}: {why}"))
}

/// A decimal number of the range.
pub fn number<N>(text: &str, range: std::ops::RangeInclusive<N>) -> Result<N, String>
where
    N: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let number = text.parse::<N>().ok().filter(|n| range.contains(n));
    number.ok_or_else(|| format!("needs a number from {} to {}", range.start(), range.end()))
}

/// A number of bytes: decimal, with K, M, G or T (also KiB, MiB, …) for powers of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => Some(0),
        "k" | "kib" => Some(10),
        "m" | "mib" => Some(20),
        "g" | "gib" => Some(30),
        "t" | "tib" => Some(40),
        _ => None,
    };
    let number = digits.parse::<u64>().ok();
    number
        .zip(shift)
        .and_then(|(number, shift)| number.checked_mul(1 << shift))
        .ok_or_else(|| "needs a number of bytes, such as 4096, 512K or 2G".to_owned())
}

/// The meaning of `text` among `choices`.
pub fn choice<V: Copy>(text: &str, choices: &[(&str, V)]) -> Result<V, String> {
    if let Some((_, meaning)) = choices.iter().find(|(name, _)| *name == text) {
        return Ok(*meaning);
    }
    let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
    Err(format!("is one of {}", names.join(", ")))
}

/// The name that `name` was most likely meant to be: of three letters one differs at most, of more a quarter.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const LONGEST: usize = 64; // Longer input is no misspelt option, and the search is quadratic.
    if name.len() > LONGEST {
        return None;
    }
    let limit = (name.len() / 4).clamp(1, 3);
    let name = name.to_ascii_lowercase();
    names
        .map(|candidate| (distance(&name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Letters to insert, remove, replace or swap with their neighbour to make `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default, Debug, PartialEq)]
    struct Settings {
        on: bool,
        size: u64,
    }

    const TABLE: &[Entry<Settings>] = &[
        flag("on", |s| s.on = true),
        value("size", |s, v| bytes(v).map(|n| s.size = n)),
        either("maybe", |s, v| {
            v.map_or(Ok(1), |v| number(v, 0..=1)).map(|n| s.on = n == 1)
        }),
        already("defaults"),
        no_effect_but("turbo", "on", "it is fast anyway", |_, v| {
            choice(v.unwrap_or("on"), &[("on", ()), ("off", ())])
        }),
        refused("dax", "pages of the volume cannot be mapped"),
    ];

    fn set(list: &str) -> Result<Settings> {
        let mut settings = Settings::default();
        let names = || TABLE.iter().map(|e| e.name);
        set_all(list, |n, v| apply(TABLE, &mut settings, n, v), names)?;
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
        let because = |value| no_effect_because(TABLE, "turbo", value);
        assert_eq!(because(Some("off")), Some("it is fast anyway"));
        assert_eq!(because(Some("on")), None);
        assert_eq!(no_effect_because(TABLE, "on", None), None);
        fails("turbo=max", "option turbo=max: is one of on, off");
    }

    #[test]
    fn byte_numbers_have_units() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("3KiB"), Ok(3072));
        assert_eq!(bytes("1t"), Ok(1 << 40));
        for wrong in [
            "",
            "K",
            "1X",
            "-1",
            "1.5G",
            "99999999999999999999",
            "17179869184G",
            "１",
        ] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn neighbours_are_found() {
        let names = ["noatime", "atime", "nodiratime", "commit"];
        assert_eq!(nearest("notaime", names.into_iter()), Some("noatime"));
        assert_eq!(nearest("comit", names.into_iter()), Some("commit"));
        assert_eq!(nearest("xyz", names.into_iter()), None);
        assert_eq!(nearest(&"a".repeat(100), names.into_iter()), None);
    }
}
