//! Modes as chmod(1) takes them: `755`, `u+rwX,g=u`.

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const ALL: u32 = 0o7777;
/// Octal modes with fewer digits than this leave a directory's set-ID bits unless they set them.
const DIGITS_OF_ALL_BITS: usize = 5;

/// A change of permission bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeChange(Vec<Step>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    op: u8,
    kind: Kind,
    /// The bits of the classes that are named; 0: none is, and the umask applies.
    affected: u32,
    value: u32,
    /// The bits that the text names: a directory's set-ID bits are changed only if they are among them.
    mentioned: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bits,
    /// `g=u`: the bits of another class.
    Copy,
    /// `X`: execution, for directories and files that have it.
    ExecuteIfAny,
}

impl ModeChange {
    /// Parses octal and symbolic modes; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let value = octal(text)?;
            let mentioned = match text.len() < DIGITS_OF_ALL_BITS {
                true => value & (SET_USER | SET_GROUP) | STICKY | 0o777,
                false => ALL,
            };
            return Some(Self(vec![Step {
                op: b'=',
                kind: Kind::Bits,
                affected: ALL,
                value,
                mentioned,
            }]));
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            clause_steps(clause.as_bytes(), &mut steps)?;
        }
        Some(Self(steps))
    }

    /// The permission bits of a file that had `old`.
    pub fn apply(&self, old: u32, is_dir: bool, umask: u32) -> u32 {
        let mut mode = old & ALL;
        for step in &self.0 {
            let kept = if is_dir { SET_USER | SET_GROUP } else { 0 } & !step.mentioned;
            let mut value = step.value;
            match step.kind {
                Kind::Bits => {}
                Kind::Copy => {
                    let bits = value & mode;
                    value = [0o444, 0o222, 0o111]
                        .into_iter()
                        .filter(|class| bits & class != 0)
                        .sum();
                }
                Kind::ExecuteIfAny if is_dir || mode & 0o111 != 0 => value |= 0o111,
                Kind::ExecuteIfAny => {}
            }
            value &= match step.affected {
                0 => !umask,
                affected => affected,
            } & !kept;
            match step.op {
                b'+' => mode |= value,
                b'-' => mode &= !value,
                _ => {
                    let others = match step.affected {
                        0 => 0,
                        affected => !affected,
                    };
                    mode = mode & (others | kept) | value;
                }
            }
        }
        mode & ALL
    }
}

fn octal(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    let value = u32::from_str_radix(text, 8).ok().filter(|_| digits)?;
    (value <= ALL).then_some(value)
}

/// Parses `ug+rw-x`: classes, then one or more operators with what they set.
fn clause_steps(clause: &[u8], steps: &mut Vec<Step>) -> Option<()> {
    let is_op = |b: u8| matches!(b, b'+' | b'-' | b'=');
    let first = clause.iter().position(|b| is_op(*b))?;
    let mut affected = 0;
    for class in &clause[..first] {
        affected |= match class {
            b'u' => SET_USER | 0o700,
            b'g' => SET_GROUP | 0o070,
            b'o' => STICKY | 0o007,
            b'a' => ALL,
            _ => return None,
        };
    }
    let mut rest = &clause[first..];
    while let [op, after @ ..] = rest {
        let end = after.iter().position(|b| is_op(*b)).unwrap_or(after.len());
        let (word, next) = after.split_at(end);
        steps.push(step(*op, affected, word)?);
        rest = next;
    }
    Some(())
}

fn step(op: u8, affected: u32, word: &[u8]) -> Option<Step> {
    if let [b'0'..=b'7', ..] = word {
        let value = octal(std::str::from_utf8(word).ok()?)?;
        return (affected == 0).then_some(Step {
            op,
            kind: Kind::Bits,
            affected: ALL,
            value,
            mentioned: ALL,
        });
    }
    let (mut kind, mut value) = (Kind::Bits, 0);
    match word {
        b"u" => (kind, value) = (Kind::Copy, 0o700),
        b"g" => (kind, value) = (Kind::Copy, 0o070),
        b"o" => (kind, value) = (Kind::Copy, 0o007),
        _ => {
            for letter in word {
                match letter {
                    b'r' => value |= 0o444,
                    b'w' => value |= 0o222,
                    b'x' => value |= 0o111,
                    b'X' => kind = Kind::ExecuteIfAny,
                    b's' => value |= SET_USER | SET_GROUP,
                    b't' => value |= STICKY,
                    _ => return None,
                }
            }
        }
    }
    let mentioned = match affected {
        0 => value,
        affected => affected & value,
    };
    Some(Step {
        op,
        kind,
        affected,
        value,
        mentioned,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(text: &str, old: u32, is_dir: bool) -> u32 {
        ModeChange::parse(text)
            .expect(text)
            .apply(old, is_dir, 0o022)
    }

    /// The results are those of chmod(1), coreutils 9.1, with umask 022.
    #[test]
    fn modes_are_changed_as_by_chmod() {
        for (text, old, is_dir, wanted) in [
            ("755", 0o6600, false, 0o755),
            ("755", 0o6600, true, 0o6755),
            ("00755", 0o6600, true, 0o755),
            ("2755", 0, true, 0o2755),
            ("u+x,g-w,o=", 0o664, false, 0o740),
            ("g=u", 0o640, false, 0o660),
            ("a+X", 0o644, false, 0o644),
            ("a+X", 0o744, false, 0o755),
            ("a+X", 0o644, true, 0o755),
            ("+w", 0o444, false, 0o644),
            ("=r", 0o777, false, 0o444),
            ("u=rws", 0o755, false, 0o4655),
            ("+t", 0o755, true, 0o1755),
            ("ug+s", 0o755, false, 0o6755),
            ("a=rx", 0o2777, true, 0o2555),
            ("g-s", 0o2777, true, 0o777),
            ("u=r+x-r", 0, false, 0o100),
            ("=644", 0o777, false, 0o644),
            ("-x", 0o777, false, 0o666),
            ("o+", 0o700, false, 0o700),
        ] {
            let got = apply(text, old, is_dir);
            assert_eq!(got, wanted, "{text} on {old:o}: {got:o}");
        }
    }

    #[test]
    fn what_is_no_mode_is_refused() {
        for text in [
            "", "8", "77777", "u", "+q", "z+r", "u+r,", "u=ug", "u+7", "0x1", "-1x",
        ] {
            assert_eq!(ModeChange::parse(text), None, "{text}");
        }
    }
}
