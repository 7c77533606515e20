//! JSON without a crate for it, which the core does not need otherwise.

use std::fmt::Write as _;

/// A text as a JSON string, with its quotes.
pub fn json_text(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                // Writing to a string does not fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_control_characters_are_escaped() {
        assert_eq!(json_text("a\"\\\n"), "\"a\\\"\\\\\\u000a\"");
    }
}
