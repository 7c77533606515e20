//! Mount options: the grammar of a list, and the parsers of values.
//!
//! A list is `name` and `name=value` items separated by commas, as mount(8) has them; of contradicting items the last
//! one counts. No item is ignored silently: a name is in a [`Table`], or it is an error that names the nearest option.
//! An option without effect here is accepted only if it requests no guarantee, and [`Table::no_effect_because`] returns
//! the reason for the user.

mod common;
mod table;
#[cfg(test)]
mod tests;

use steadfs_base::size;

pub use common::{
    Atime, Common, CommonOptions, ERRORS, HasCommon, OnError, QUOTA_FORMATS, parse_errors, word,
};
pub use table::{Entry, HelpLine, Section, Shown, Table};

use crate::{FsError, Result};

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

/// An item as a list has it.
pub fn item(name: &str, value: Option<&str>) -> String {
    value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}"))
}

/// The errors of one list. They are reported together, so that the user corrects the list once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(Vec<FsError>);

impl Refusals {
    /// Adds an error, unless it is a repetition.
    pub fn push(&mut self, error: FsError) {
        if !self.0.contains(&error) {
            self.0.push(error);
        }
    }

    /// Adds the errors of `other`.
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

    /// Merges the errors, in their order.
    ///
    /// # Errors
    /// The only one, or [`FsError::BadOption`] with the messages of all.
    pub fn into_result(self) -> Result<()> {
        match &self.0[..] {
            [] => Ok(()),
            [error] => Err(error.clone()),
            all => {
                let messages: Vec<_> = all.iter().map(ToString::to_string).collect();
                Err(FsError::BadOption(messages.join("; ")))
            }
        }
    }
}

/// Applies all items of a list by `set`, which returns whether it knows the name. An unknown name is an error that
/// names the nearest of `names`.
///
/// # Errors
/// The errors of all items.
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

/// The error for a name that is in no table; it names the nearest of `names`.
pub fn unknown<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> FsError {
    FsError::BadOption(match nearest(name, names) {
        Some(near) => format!("option {name}: unknown; did you mean {near}?"),
        None => format!("option {name}: unknown"),
    })
}

/// The error for an option that a running mount cannot change.
pub fn cannot_change(item: &str) -> FsError {
    let why = "cannot change while mounted; unmount and mount again";
    FsError::BadOption(format!("option {item}: {why}"))
}

/// Parses a decimal number within `range`.
pub fn number<N>(text: &str, range: std::ops::RangeInclusive<N>) -> Result<N, String>
where
    N: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let number = text.parse::<N>().ok().filter(|n| range.contains(n));
    number.ok_or_else(|| format!("needs a number from {} to {}", range.start(), range.end()))
}

/// Parses a size, of which a number without a unit counts bytes ([`steadfs_base::size`]).
pub fn bytes(text: &str) -> Result<u64, String> {
    size::parse(text, 1).map_err(|error| error.to_string())
}

/// Parses one of the words in `choices`.
pub fn choice<V: Copy>(text: &str, choices: &[(&str, V)]) -> Result<V, String> {
    if let Some((_, meaning)) = choices.iter().find(|(name, _)| *name == text) {
        return Ok(*meaning);
    }
    let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
    Err(format!("is one of {}", names.join(", ")))
}

/// The word of a value in `choices`.
pub fn name_of<V: PartialEq>(value: V, choices: &[(&'static str, V)]) -> &'static str {
    let found = choices.iter().find(|(_, choice)| *choice == value);
    found.map_or("", |(name, _)| name)
}

/// The candidate that `name` is most likely a misspelling of: at most a quarter of the letters differ, and at most
/// three; of a short name one letter.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const NAME_BYTES_MAX: usize = 64; // Longer input is no misspelt option, and the search is quadratic.
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let limit = (name.len() / 4).clamp(1, 3);
    let name = name.to_ascii_lowercase();
    // A list may have thousands of unknown names. The distance is at least the difference of the lengths.
    names
        .filter(|candidate| candidate.len().abs_diff(name.len()) <= limit)
        .map(|candidate| (distance(&name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// The Damerau–Levenshtein distance (optimal string alignment): letters to insert, remove, replace or swap with the next
/// one to turn `a` into `b`.
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
