//! The table of options: everything that is known of an option is in its entry.
//!
//! An [`Entry`] has the name, the parser, the line of `--help`, the item that shows the present value, and whether a
//! remount may change it. `--help`, the manual page, README's tables, /proc/mounts and the checks of a remount are
//! all made from it. Names of one option that share a line of help (`acl`, `noacl`) are consecutive entries: the first
//! has [`Entry::help`], the others [`Entry::also`].

use super::{Refusals, cannot_change, item, set_all};
use crate::{FsError, Result};

/// Parses a value into the settings `T`; an error is the predicate of a sentence about the item.
type Parser<T> = fn(&mut T, Option<&str>) -> Result<(), String>;
/// The item, as a list has it, that stands for the present value.
type Current<T> = fn(&T) -> Option<String>;

/// What an option's name does to the settings `T`.
enum Rule<T> {
    /// Takes no value.
    Flag(fn(&mut T)),
    /// Needs a value.
    Value(fn(&mut T, &str) -> Result<(), String>),
    /// May have a value.
    Either(Parser<T>),
    /// Accepted without effect. The value is parsed all the same.
    NoEffect {
        why: &'static str,
        /// The value that holds here in any case.
        anyway: Option<&'static str>,
        parse: Parser<T>,
    },
    /// Known and refused, with or without a value: the reason, and what to use in its place.
    Refused(&'static str),
}

/// The sections of `--help` and the manual page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Options of mount(8).
    Mount,
    /// Options of the device and its queue.
    Device,
    /// Options of files that all formats have.
    Files,
    /// Options that only ext2, ext3 and ext4 have.
    Ext4,
    /// Options that only f2fs has.
    F2fs,
    /// Options of the server.
    Server,
}

impl Section {
    /// All of them, in the order of the manual.
    pub const ALL: [Self; 6] = [
        Self::Mount,
        Self::Device,
        Self::Files,
        Self::Ext4,
        Self::F2fs,
        Self::Server,
    ];

    /// The heading.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Mount => "Of mount(8)",
            Self::Device => "The device",
            Self::Files => "Files",
            Self::Ext4 => "ext2, ext3 and ext4",
            Self::F2fs => "f2fs",
            Self::Server => "The server",
        }
    }
}

/// An entry's place in the help.
#[derive(Clone, Copy)]
enum Help {
    /// A line of its own.
    Line {
        section: Section,
        text: &'static str,
        /// The default, where [`Entry::current`] gives none.
        default: &'static str,
    },
    /// The line of the entry before.
    Also,
    /// The name is listed with its rule's other names.
    Listed,
}

/// When a list of the options that hold, as in /proc/mounts, includes an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Never.
    Never,
    /// If it differs from the default.
    Changed,
    /// Always.
    Always,
}

/// One name of an option, and all that is known of it.
pub struct Entry<T: 'static> {
    /// The name, as a list has it.
    pub name: &'static str,
    /// The value as help shows it after the name: `=SECONDS`, `[=0|1]`.
    arg: &'static str,
    rule: Rule<T>,
    help: Help,
    current: Option<Current<T>>,
    shown: Shown,
    fixed: bool,
}

impl<T> Entry<T> {
    const fn new(name: &'static str, arg: &'static str, rule: Rule<T>) -> Self {
        Self {
            name,
            arg,
            rule,
            help: Help::Listed,
            current: None,
            shown: Shown::Never,
            fixed: false,
        }
    }

    /// An option that takes no value.
    pub const fn flag(name: &'static str, set: fn(&mut T)) -> Self {
        Self::new(name, "", Rule::Flag(set))
    }

    /// An option that needs a value.
    pub const fn value(
        name: &'static str,
        arg: &'static str,
        parse: fn(&mut T, &str) -> Result<(), String>,
    ) -> Self {
        Self::new(name, arg, Rule::Value(parse))
    }

    /// An option that may have a value.
    pub const fn either(name: &'static str, arg: &'static str, parse: Parser<T>) -> Self {
        Self::new(name, arg, Rule::Either(parse))
    }

    /// An option that holds in any case.
    pub const fn already(name: &'static str) -> Self {
        Self::new(name, "", Rule::Flag(|_| ()))
    }

    /// An option that is accepted with any value, or none, and has no effect; and why.
    pub const fn no_effect(name: &'static str, why: &'static str) -> Self {
        Self::no_effect_if(name, "", why, |_, _| Ok(()))
    }

    /// The same for an option whose value `parse` checks.
    pub const fn no_effect_if(
        name: &'static str,
        arg: &'static str,
        why: &'static str,
        parse: Parser<T>,
    ) -> Self {
        let anyway = None;
        Self::new(name, arg, Rule::NoEffect { why, anyway, parse })
    }

    /// An option of which one value holds in any case, and the others that `parse` accepts have no effect; and why.
    pub const fn no_effect_but(
        name: &'static str,
        anyway: &'static str,
        why: &'static str,
        parse: Parser<T>,
    ) -> Self {
        let anyway = Some(anyway);
        Self::new(name, "=", Rule::NoEffect { why, anyway, parse })
    }

    /// An option that is not offered, and why.
    pub const fn refused(name: &'static str, why: &'static str) -> Self {
        Self::new(name, "", Rule::Refused(why))
    }

    /// Gives the entry a line of help. The default follows from [`Entry::current`].
    #[must_use]
    pub const fn help(self, section: Section, text: &'static str) -> Self {
        self.help_with_default(section, text, "")
    }

    /// The same with words for the default.
    #[must_use]
    pub const fn help_with_default(
        mut self,
        section: Section,
        text: &'static str,
        default: &'static str,
    ) -> Self {
        self.help = Help::Line {
            section,
            text,
            default,
        };
        self
    }

    /// The name shares the line of help of the entry before.
    #[must_use]
    pub const fn also(mut self) -> Self {
        self.help = Help::Also;
        self
    }

    /// The value as help shows it after the name.
    #[must_use]
    pub const fn arg(mut self, arg: &'static str) -> Self {
        self.arg = arg;
        self
    }

    /// The item that stands for the present value, and when a list of the options that hold includes it.
    #[must_use]
    pub const fn current(mut self, shown: Shown, current: Current<T>) -> Self {
        self.current = Some(current);
        self.shown = shown;
        self
    }

    /// A remount cannot change the option.
    #[must_use]
    pub const fn fixed(mut self) -> Self {
        self.fixed = true;
        self
    }

    /// Whether the option is known and not offered.
    pub const fn is_refused(&self) -> bool {
        matches!(self.rule, Rule::Refused(_))
    }

    /// Whether a remount cannot change the option.
    pub const fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Whether the option is accepted without a line of help: it holds in any case, or is for other programs.
    pub const fn is_listed_as_taken(&self) -> bool {
        matches!(self.help, Help::Listed)
            && matches!(self.rule, Rule::Flag(_) | Rule::Value(_) | Rule::Either(_))
    }

    /// Whether the option is accepted and has no effect.
    pub const fn is_without_effect(&self) -> bool {
        matches!(self.rule, Rule::NoEffect { .. })
    }

    /// The item that holds in any case, of an option whose other values have no effect.
    pub fn anyway(&self) -> Option<String> {
        match self.rule {
            Rule::NoEffect { anyway, .. } => anyway.map(|value| item(self.name, Some(value))),
            _ => None,
        }
    }

    /// The name with its value, as help shows it.
    pub fn usage(&self) -> String {
        format!("{}{}", self.name, self.arg)
    }

    fn apply(&self, settings: &mut T, value: Option<&str>) -> Result<(), String> {
        match (&self.rule, value) {
            (Rule::Flag(set), None) => {
                set(settings);
                Ok(())
            }
            (Rule::Flag(_), Some(_)) => Err("takes no value".to_owned()),
            (Rule::Value(parse), Some(value)) => parse(settings, value),
            (Rule::Value(_), None) => Err(format!("needs a value ({}=…)", self.name)),
            (Rule::Either(parse) | Rule::NoEffect { parse, .. }, value) => parse(settings, value),
            (Rule::Refused(why), _) => Err((*why).to_owned()),
        }
    }
}

/// A line of help: the names that share it with their values, and the meaning with the default in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelpLine {
    /// Where it belongs.
    pub section: Section,
    /// Each name with its value.
    pub usages: Vec<String>,
    /// The meaning, with the default in brackets.
    pub meaning: String,
}

/// The options of one kind of settings.
pub struct Table<T: 'static>(pub &'static [&'static [Entry<T>]]);

impl<T> Table<T> {
    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = &'static Entry<T>> + use<T> {
        self.0.iter().copied().flatten()
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<T> {
        self.entries().map(|entry| entry.name)
    }

    /// The entry of a name.
    pub fn find(&self, name: &str) -> Option<&'static Entry<T>> {
        self.entries().find(|entry| entry.name == name)
    }

    /// `settings` changed by a list. `set` applies an item and returns whether it knows the name; `validate` checks that
    /// the options go together.
    ///
    /// # Errors
    /// The errors of all items, or those of `validate`.
    pub fn changed(
        &self,
        mut settings: T,
        list: &str,
        set: fn(&mut T, &str, Option<&str>) -> Result<bool>,
        validate: fn(&T) -> Result<()>,
    ) -> Result<T> {
        set_all(
            list,
            |name, value| set(&mut settings, name, value),
            || self.names(),
        )?;
        validate(&settings).map(|()| settings)
    }

    /// Applies one item. Returns whether the table has the name.
    ///
    /// # Errors
    /// [`FsError::BadOption`] for a missing, superfluous or invalid value, or a refused option.
    pub fn apply(&self, settings: &mut T, name: &str, value: Option<&str>) -> Result<bool> {
        let Some(entry) = self.find(name) else {
            return Ok(false);
        };
        match entry.apply(settings, value) {
            Ok(()) => Ok(true),
            Err(why) => {
                let item = item(name, value);
                Err(FsError::BadOption(format!("option {item}: {why}")))
            }
        }
    }

    /// Why an item has no effect, if it has none.
    pub fn no_effect_because(&self, name: &str, value: Option<&str>) -> Option<&'static str> {
        match self.find(name)?.rule {
            Rule::NoEffect { anyway, .. } if anyway.is_some() && anyway == value => None,
            Rule::NoEffect { why, .. } => Some(why),
            _ => None,
        }
    }

    /// The options that hold, as /proc/mounts shows them.
    pub fn show(&self, settings: &T) -> String
    where
        T: Default,
    {
        let default = T::default();
        let shown = self.entries().filter_map(|entry| {
            let now = entry.current?(settings)?;
            let is_shown = match entry.shown {
                Shown::Never => false,
                Shown::Changed => entry.current?(&default).as_ref() != Some(&now),
                Shown::Always => true,
            };
            is_shown.then_some(now)
        });
        shown.collect::<Vec<_>>().join(",")
    }

    /// The names of fixed options whose values differ.
    pub fn fixed_changes(&self, old: &T, new: &T) -> Vec<&'static str> {
        let fixed = self.entries().filter(|entry| entry.fixed);
        let differs = |entry: &&Entry<T>| {
            entry
                .current
                .is_some_and(|current| current(old) != current(new))
        };
        fixed.filter(differs).map(|entry| entry.name).collect()
    }

    /// Refuses a remount that changes a fixed option.
    ///
    /// # Errors
    /// [`FsError::BadOption`] for each of them.
    pub fn check_remount(&self, old: &T, new: &T) -> Result<()> {
        let mut refused = Refusals::default();
        for name in self.fixed_changes(old, new) {
            refused.push(cannot_change(name));
        }
        refused.into_result()
    }

    /// The lines of help, in the order of the table.
    pub fn help_lines(&self) -> Vec<HelpLine>
    where
        T: Default,
    {
        let settings = T::default();
        let mut lines: Vec<HelpLine> = Vec::new();
        for part in self.0 {
            let mut rest = *part;
            while let Some((first, after)) = rest.split_first() {
                let shares = |entry: &&Entry<T>| matches!(entry.help, Help::Also);
                let others = after.iter().take_while(shares).count();
                let line = &rest[..=others];
                rest = &after[others..];
                lines.extend(help_line(first, line, &settings));
            }
        }
        lines
    }
}

fn help_line<T>(first: &Entry<T>, line: &[Entry<T>], settings: &T) -> Option<HelpLine> {
    let Help::Line {
        section,
        text,
        default,
    } = first.help
    else {
        return None;
    };
    let defaults: Vec<String> = match default {
        "" => line.iter().filter_map(|e| e.current?(settings)).collect(),
        words => vec![words.to_owned()],
    };
    // Of `commit=5` the value, of a flag the name.
    let short = |item: &String| item.split_once('=').map_or(item.clone(), |(_, v)| v.into());
    let short: Vec<String> = defaults.iter().map(short).collect();
    let meaning = match &short[..] {
        [] => text.to_owned(),
        all => format!("{text} [{}]", all.join(", ")),
    };
    Some(HelpLine {
        section,
        usages: line.iter().map(Entry::usage).collect(),
        meaning,
    })
}
