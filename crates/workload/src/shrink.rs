//! Reduces a failing program to a smaller one that still fails (delta debugging).

use std::collections::BTreeSet;

use crate::op::RenameHow;
use crate::{Op, Program, Span, TreePath};

struct Shrinker<'a> {
    best: Program,
    fails: &'a mut dyn FnMut(&Program) -> bool,
    tries: usize,
}

/// Removes tasks and operations, then simplifies arguments and names, as long as `fails` returns true for the result.
/// Calls `fails` at most `tries` times. `program` itself must fail.
pub fn shrink(program: Program, tries: usize, fails: &mut dyn FnMut(&Program) -> bool) -> Program {
    let mut shrinker = Shrinker {
        best: program,
        fails,
        tries,
    };
    loop {
        let before = shrinker.best.clone();
        shrinker.drop_tasks();
        shrinker.drop_ops();
        shrinker.simplify_ops();
        shrinker.shorten_names();
        if shrinker.best == before || shrinker.tries == 0 {
            return shrinker.best;
        }
    }
}

impl Shrinker<'_> {
    /// Keeps `smaller` if it still fails.
    fn accept(&mut self, smaller: Program) -> bool {
        if self.tries == 0 {
            return false;
        }
        self.tries -= 1;
        let accepted = (self.fails)(&smaller);
        if accepted {
            self.best = smaller;
        }
        accepted
    }

    fn drop_tasks(&mut self) {
        let mut number = 0;
        while self.best.tasks.len() > 1 && number < self.best.tasks.len() {
            let mut smaller = self.best.clone();
            smaller.tasks.remove(number);
            if !self.accept(smaller) {
                number += 1;
            }
        }
    }

    fn drop_ops(&mut self) {
        for list in 0..=self.best.tasks.len() {
            let mut chunk = list_of(&mut self.best, list).len();
            while chunk > 0 {
                // From the end: later operations depend on earlier ones.
                let mut end = list_of(&mut self.best, list).len();
                while end > 0 {
                    let start = end.saturating_sub(chunk);
                    let mut smaller = self.best.clone();
                    list_of(&mut smaller, list).drain(start..end);
                    self.accept(smaller);
                    end = start;
                }
                chunk /= 2;
            }
        }
    }

    fn simplify_ops(&mut self) {
        for list in 0..=self.best.tasks.len() {
            for index in 0..list_of(&mut self.best, list).len() {
                while self.simplify(list, index) {}
            }
        }
    }

    fn simplify(&mut self, list: usize, index: usize) -> bool {
        let op = list_of(&mut self.best, list)[index].clone();
        simpler(&op).into_iter().any(|candidate| {
            let mut smaller = self.best.clone();
            list_of(&mut smaller, list)[index] = candidate;
            self.accept(smaller)
        })
    }

    fn shorten_names(&mut self) {
        let all = self
            .best
            .setup
            .iter()
            .chain(self.best.tasks.iter().flatten());
        let names: BTreeSet<Vec<u8>> = all
            .flat_map(Op::paths)
            .flat_map(|path| path.parts().to_vec())
            .collect();
        let long = names.iter().filter(|name| name.len() > 8);
        for (number, name) in long.enumerate() {
            let short = format!("n{number}").into_bytes();
            if names.contains(&short) {
                continue;
            }
            let mut smaller = self.best.clone();
            let tasks = smaller.tasks.iter_mut().flatten();
            for path in smaller
                .setup
                .iter_mut()
                .chain(tasks)
                .flat_map(Op::paths_mut)
            {
                rename_part(path, name, &short);
            }
            self.accept(smaller);
        }
    }
}

fn rename_part(path: &mut TreePath, old: &[u8], new: &[u8]) {
    let renamed = path.parts().iter().fold(TreePath::root(), |at, part| {
        at.child(if part == old { new } else { part })
    });
    *path = renamed;
}

/// The setup, or a task.
fn list_of(program: &mut Program, number: usize) -> &mut Vec<Op> {
    match number.checked_sub(1) {
        None => &mut program.setup,
        Some(task) => &mut program.tasks[task],
    }
}

fn simpler_number(n: u64) -> Vec<u64> {
    let mut all = vec![0, n.next_power_of_two() / 2, n / 2, n.saturating_sub(1)];
    all.retain(|less| *less < n);
    all.dedup();
    all
}

fn simpler_span(span: Span) -> Vec<Span> {
    let offsets = simpler_number(span.offset).into_iter();
    let lens = simpler_number(span.len).into_iter().filter(|len| *len > 0);
    offsets
        .map(|offset| Span { offset, ..span })
        .chain(lens.map(|len| Span { len, ..span }))
        .collect()
}

/// The same operation with simpler arguments, the largest reduction first.
fn simpler(op: &Op) -> Vec<Op> {
    match op {
        Op::Create { path, perm } if *perm != 0o644 => vec![plain_file(path)],
        Op::Mknod { path, .. } => vec![plain_file(path)],
        Op::Mkdir { path, perm } if *perm != 0o755 => vec![Op::Mkdir {
            path: path.clone(),
            perm: 0o755,
        }],
        Op::Symlink { path, target } if target.len() > 1 => vec![Op::Symlink {
            path: path.clone(),
            target: target[..target.len() / 2].to_vec(),
        }],
        Op::Rename { from, to, how } if *how != RenameHow::Replace => vec![Op::Rename {
            from: from.clone(),
            to: to.clone(),
            how: RenameHow::Replace,
        }],
        _ => {
            let mut all = variants(op, span_of, simpler_span);
            all.extend(variants(op, number_of, simpler_number));
            all
        }
    }
}

fn plain_file(path: &TreePath) -> Op {
    Op::Create {
        path: path.clone(),
        perm: 0o644,
    }
}

/// The same operation with each of the `simpler` values at `place`, if it has this argument.
fn variants<T: Copy>(
    op: &Op,
    place: fn(&mut Op) -> Option<&mut T>,
    simpler: fn(T) -> Vec<T>,
) -> Vec<Op> {
    let mut changed = op.clone();
    let values = place(&mut changed).map_or_else(Vec::new, |value| simpler(*value));
    let with = |value| {
        let place = place(&mut changed)?;
        *place = value;
        Some(changed.clone())
    };
    values.into_iter().filter_map(with).collect()
}

fn span_of(op: &mut Op) -> Option<&mut Span> {
    match op {
        Op::Write { span, .. } | Op::Fallocate { span, .. } => Some(span),
        _ => None,
    }
}

fn number_of(op: &mut Op) -> Option<&mut u64> {
    match op {
        Op::Truncate { size: number, .. }
        | Op::SetXattr { len: number, .. }
        | Op::Sleep { millis: number } => Some(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Shape, random};
    use crate::{Format, Target};

    #[test]
    fn shrinking_keeps_only_the_relevant_operations() {
        let format = Format {
            block_size: 1024,
            shift_ranges: false,
            ..Format::PLAIN
        };
        let shape = Shape {
            tasks: 3,
            ops: 40,
            ..Shape::default()
        };
        // "Fails" when some task writes 100 bytes or more and makes a directory later.
        let mut fails = |program: &Program| {
            program.tasks.iter().any(|ops| {
                let wrote = |op: &Op| matches!(op, Op::Write { span, .. } if span.len >= 100);
                let first = ops.iter().position(wrote);
                first.is_some_and(|at| ops[at..].iter().any(|op| matches!(op, Op::Mkdir { .. })))
            })
        };
        let program = (0..)
            .map(|seed| random(seed, shape, format))
            .find(|p| fails(p))
            .unwrap();
        let small = shrink(program, 10_000, &mut fails);
        assert!(small.setup.is_empty() && small.tasks.len() == 1, "{small}");
        let [
            Op::Write {
                file: Target::Path(file),
                span,
                ..
            },
            Op::Mkdir { path, perm: 0o755 },
        ] = small.tasks[0].as_slice()
        else {
            panic!("{small}");
        };
        assert_eq!(*span, Span::new(0, 100));
        assert!(
            file.parts()
                .iter()
                .chain(path.parts())
                .all(|part| part.len() <= 8)
        );
    }

    #[test]
    fn tries_are_limited() {
        let program: Program = "sync\n".repeat(100).parse().unwrap();
        let mut asked = 0;
        shrink(program, 17, &mut |_| {
            asked += 1;
            true
        });
        assert!(asked <= 17);
    }
}
