//! Checks that pages are well-formed XML, and that the texts of charts do not overlap.

/// The first malformed reference in a text or value.
fn bad_reference(text: &str) -> Option<&str> {
    let known = ["amp;", "lt;", "gt;", "quot;"];
    let mut parts = text.split('&').skip(1);
    parts.find(|part| !known.iter().any(|name| part.starts_with(name)))
}

/// The attributes of a tag: `name="value"`, each once.
fn attributes(mut rest: &str) -> Result<Vec<(&str, &str)>, String> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").ok_or("no value in quotes")?;
        let (value, after) = after.split_once('"').ok_or("a value without an end")?;
        let name = name.trim_start();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(format!("{name:?} is no name"));
        }
        if found.iter().any(|(known, _)| *known == name) {
            return Err(format!("{name} twice"));
        }
        if value.contains('<') || bad_reference(value).is_some() {
            return Err(format!("value {value:?}"));
        }
        found.push((name, value));
        rest = after.trim_end();
    }
    Ok(found)
}

/// Name, attributes, and the text after the tag.
type Element<'a> = (&'a str, Vec<(&'a str, &'a str)>, &'a str);

/// All elements in order. An end tag has the name `/`.
fn elements(text: &str) -> Result<Vec<Element<'_>>, String> {
    let text = text.strip_prefix("<!DOCTYPE html>").unwrap_or(text);
    let mut open: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    let mut parts = text.trim().split('<');
    if parts.next() != Some("") {
        return Err("text before the first element".to_owned());
    }
    for part in parts {
        let (tag, follows) = part.split_once('>').ok_or("a tag without an end")?;
        if let Some(bad) = bad_reference(follows) {
            return Err(format!("reference in {bad:?}"));
        }
        if let Some(name) = tag.strip_prefix('/') {
            let opened = open.pop();
            if opened != Some(name) {
                return Err(format!("</{name}> ends {opened:?}"));
            }
            found.push(("/", Vec::new(), follows));
        } else {
            let (tag, empty) = match tag.strip_suffix('/') {
                Some(tag) => (tag, true),
                None => (tag, false),
            };
            let (name, rest) = tag.split_once(' ').unwrap_or((tag, ""));
            let attributes = attributes(rest).map_err(|why| format!("<{tag}>: {why}"))?;
            found.push((name, attributes, follows));
            if !empty {
                open.push(name);
            }
        }
        if open.is_empty() && !follows.trim().is_empty() {
            return Err(format!("{follows:?} outside"));
        }
    }
    match open.last() {
        None => Ok(found),
        Some(name) => Err(format!("<{name}> has no end")),
    }
}

/// Checks the subset of XML that our pages use: no comments, no CDATA.
pub fn assert_well_formed(text: &str) {
    if let Err(why) = elements(text) {
        panic!("{why} in {text}");
    }
}

/// The rectangle of a text: left, right, top, bottom.
type Place = [f64; 4];

/// Every text is inside its chart and overlaps no other. A letter counts as 0.56 of the font's height: the average of
/// sans-serif fonts, or more.
pub fn assert_legible(chart: &str) {
    let elements = elements(chart).unwrap();
    let get = |of: &[(&str, &str)], name: &str| -> Option<String> {
        let found = of.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let (_, svg, _) = &elements[0];
    let view: Vec<f64> = get(svg, "viewBox")
        .expect("a size")
        .split(' ')
        .map(|n| n.parse().unwrap())
        .collect();
    let mut known: Vec<(String, Place)> = Vec::new();
    for (_, attributes, text) in elements.iter().filter(|(name, ..)| *name == "text") {
        let number = |name: &str| get(attributes, name).map(|n| n.parse::<f64>().unwrap());
        let (x, y) = (number("x").unwrap(), number("y").unwrap());
        let size = number("font-size").unwrap_or(12.0);
        let text = text.replace("&lt;", "<").replace("&gt;", ">");
        let text = text.replace("&quot;", "\"").replace("&amp;", "&");
        let width = 0.56 * size * text.chars().count() as f64;
        let left = match get(attributes, "text-anchor").as_deref() {
            Some("end") => x - width,
            Some("middle") => x - width / 2.0,
            _ => x,
        };
        let place = [left, left + width, y - 0.75 * size, y + 0.2 * size];
        let inside = left >= 0.0 && place[1] <= view[2] && place[2] >= 0.0 && place[3] <= view[3];
        assert!(inside, "{text:?} at {place:?} runs out of {view:?}");
        for (other, at) in &known {
            let apart =
                place[1] <= at[0] || at[1] <= place[0] || place[3] <= at[2] || at[3] <= place[2];
            assert!(apart, "{text:?} at {place:?} runs into {other:?} at {at:?}");
        }
        known.push((text, place));
    }
    assert!(known.len() > 2, "{chart}");
}

#[test]
fn malformed_markup_is_detected() {
    for bad in [
        "<a><b></a></b>",
        "<a>",
        "<a x=1></a>",
        "<a x=\"1\" x=\"2\"/>",
        "<a>&</a>",
        "<a/>text",
        "<a b></a>",
    ] {
        assert!(elements(bad).is_err(), "{bad}");
    }
    assert_well_formed("<!DOCTYPE html>\n<a x=\"1 &lt; 2\"><b/>t &amp; u</a>\n");
}

#[test]
#[should_panic(expected = "runs into")]
fn overlapping_texts_are_detected() {
    assert_legible(
        "<svg viewBox=\"0 0 99 99\"><text x=\"5\" y=\"20\">one</text><text x=\"9\" y=\"22\">two</text></svg>",
    );
}
