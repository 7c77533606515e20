//! The subset of TOML that parameter files use: `[tables]`, and `key = value` with integers, strings and booleans.
//! Anything else is refused with its line number.

use std::collections::BTreeMap;

/// A value of a parameter file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(u64),
    Text(String),
    Flag(bool),
}

impl Value {
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Number(_) => "a whole number",
            Self::Text(_) => "a string",
            Self::Flag(_) => "true or false",
        }
    }
}

/// All values by key; a value in a table as `table.key`.
pub(super) type Values = BTreeMap<String, Value>;

/// Parses a file.
///
/// # Errors
/// The error, with its line number.
pub(super) fn read(text: &str) -> Result<Values, String> {
    let mut values = Values::new();
    let mut table = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |why: String| format!("line {number}: {why}");
        let line = without_comment(line).trim();
        if line.is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            let name = name.strip_suffix(']').map(str::trim);
            let name = name.filter(|name| is_key(name));
            table = match name {
                Some(name) => format!("{name}."),
                None => return Err(wrong(format!("{line:?} is not a table such as [cache]"))),
            };
            continue;
        }
        let (key, value) = line
            .split_once('=')
            .map(|(key, value)| (key.trim(), value.trim()))
            .filter(|(key, _)| is_key(key))
            .ok_or_else(|| wrong(format!("{line:?} is not KEY = VALUE")))?;
        let key = format!("{table}{key}");
        let value = value_of(value).ok_or_else(|| {
            wrong(format!(
                "{key}: {value:?} is neither a whole number, a \"string\", true nor false"
            ))
        })?;
        if values.insert(key.clone(), value).is_some() {
            return Err(wrong(format!("{key} is given twice")));
        }
    }
    Ok(values)
}

fn is_key(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    !text.is_empty() && text.bytes().all(known)
}

/// The line up to a `#` outside strings. (Strings have no escapes, so quotes come in pairs.)
fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b'#' if !quoted => return &line[..at],
            _ => {}
        }
    }
    line
}

fn value_of(text: &str) -> Option<Value> {
    match text {
        "true" => return Some(Value::Flag(true)),
        "false" => return Some(Value::Flag(false)),
        _ => {}
    }
    if let Some(rest) = text.strip_prefix('"') {
        let inner = rest.strip_suffix('"')?;
        return (!inner.contains(['"', '\\'])).then(|| Value::Text(inner.to_owned()));
    }
    let digits = text.replace('_', "");
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse().ok().filter(|_| plain)?;
    Some(Value::Number(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_numbers_strings_and_flags() {
        let text =
            "# head\nname = \"a # b\" # why\n[cache]\nsize_kib = 1_024\nfua = true\n\n[ x-y ]\nz=0";
        let values = read(text).unwrap();
        let all: Vec<_> = values.into_iter().collect();
        let expected = [
            ("cache.fua", Value::Flag(true)),
            ("cache.size_kib", Value::Number(1024)),
            ("name", Value::Text("a # b".to_owned())),
            ("x-y.z", Value::Number(0)),
        ];
        assert_eq!(
            all,
            expected
                .map(|(key, value)| (key.to_owned(), value))
                .to_vec()
        );
    }

    #[test]
    fn unknown_syntax_is_refused_with_its_line() {
        for (text, said) in [
            ("a = 1\nb", "line 2"),
            ("[cache", "line 1"),
            ("\n[a]\nb = -1", "a.b"),
            ("a = 1.5", "a:"),
            ("a = \"x", "a:"),
            ("a = \"x\\n\"", "a:"),
            ("a = 1\na = 2", "a is given twice"),
            ("a b = 1", "line 1"),
            ("a = 99999999999999999999", "a:"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(said), "{text:?}: {error}");
        }
    }
}
