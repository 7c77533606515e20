//! Puts all mutants of a source into it, each behind a switch (mutant schemata), so that one build has all of them.
//!
//! Rule: `crate::mutant_switch::on(id)` is true for at most one mutant of a process. With all switches off the source
//! behaves as before. Code that is evaluated at compile time has no switches; its mutants are left to cargo-mutants.
//! Comments around each mutant's text find the mutant that an error of the compiler is about.

use std::collections::BTreeSet;
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, Pat, ReturnType, Signature, Type};

use crate::list::{Genre, Mutant};

/// An instrumented source.
pub struct Instrumented {
    pub text: String,
    /// Mutants in it.
    pub placed: BTreeSet<u32>,
}

/// A change of the source.
struct Node {
    range: Range<usize>,
    kind: Kind,
}

enum Kind {
    /// Replaces the range by a text.
    Text(String),
    /// `&&` or `||`, and the other.
    Logic {
        id: u32,
        and: bool,
        left: Range<usize>,
        right: Range<usize>,
    },
    /// Another operator, and what replaces it.
    Operator {
        op: Range<usize>,
        variants: Vec<(u32, String)>,
        left: Range<usize>,
        right: Range<usize>,
    },
    Unary {
        id: u32,
        operand: Range<usize>,
    },
}

/// Puts `mutants` into `source`.
///
/// # Errors
/// The source cannot be parsed.
pub fn instrument(source: &str, mutants: &[&Mutant]) -> syn::Result<Instrumented> {
    let file = syn::parse_file(source)?;
    let mut finder = Finder {
        mutants: mutants
            .iter()
            .map(|mutant| (offset(source, mutant.start), *mutant))
            .collect(),
        nodes: Vec::new(),
    };
    finder.visit_file(&file);
    let mut nodes = finder.nodes;
    nodes.sort_by_key(|node| (node.range.start, usize::MAX - node.range.end));
    let writer = Writer { source, nodes };
    let text = writer.render(0..source.len());
    let placed = mutants
        .iter()
        .map(|mutant| mutant.id)
        .filter(|id| text.contains(&switch(*id)))
        .collect();
    Ok(Instrumented { text, placed })
}

/// The mutant whose text an error at this offset of an instrumented source is in.
pub fn mutant_at(text: &str, at: usize) -> Option<u32> {
    let mut open = Vec::new();
    let mut rest = text.get(..at)?;
    while let Some(start) = rest.find("/*<") {
        let mark = &rest[start + 3..];
        let end = mark.find("*/")?;
        match mark[..end].strip_prefix('/') {
            Some(_) => drop(open.pop()),
            None => open.push(mark[..end].parse().ok()?),
        }
        rest = &mark[end..];
    }
    open.pop()
}

fn switch(id: u32) -> String {
    format!("crate::mutant_switch::on({id})")
}

fn marked(id: u32, text: &str) -> String {
    format!("/*<{id}*/ {text} /*</{id}*/")
}

/// The byte offset of a line and a column.
fn offset(source: &str, (line, column): (usize, usize)) -> usize {
    let start: usize = source
        .split_inclusive('\n')
        .take(line - 1)
        .map(str::len)
        .sum();
    let chars = source[start..].chars().take(column - 1);
    start + chars.map(char::len_utf8).sum::<usize>()
}

/// Finds where the mutants go.
struct Finder<'a> {
    mutants: Vec<(usize, &'a Mutant)>,
    nodes: Vec<Node>,
}

fn range(of: &impl Spanned) -> Range<usize> {
    of.span().byte_range()
}

/// Whether a condition is a chain that binds names, which nothing may enclose.
fn binds(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => binds(&binary.left) || binds(&binary.right),
        _ => false,
    }
}

impl Finder<'_> {
    fn at(&self, start: usize, genre: Genre) -> Vec<(u32, String)> {
        let found = self.mutants.iter().filter(|(at, _)| *at == start);
        let found = found.filter(|(_, mutant)| mutant.genre == genre);
        found
            .map(|(_, mutant)| (mutant.id, mutant.replacement.clone()))
            .collect()
    }

    fn insert(&mut self, range: Range<usize>, text: String) {
        self.nodes.push(Node {
            range,
            kind: Kind::Text(text),
        });
    }

    /// Whether a function can have switches; puts those of its values at its beginning.
    fn function(&mut self, sig: &Signature, block: &Block) -> bool {
        if sig.constness.is_some() {
            return false;
        }
        let Some(first) = block.stmts.first() else {
            return false;
        };
        // Both values would have to be of one type.
        if matches!(&sig.output, ReturnType::Type(_, of) if matches!(**of, Type::ImplTrait(_))) {
            return true;
        }
        let open = block.brace_token.span.open().byte_range().end;
        let values = self.at(range(first).start, Genre::FnValue);
        let text: String = values
            .into_iter()
            .map(|(id, value)| {
                let on = switch(id);
                format!(" if {on} {{ {} }}", marked(id, &format!("return {value};")))
            })
            .collect();
        if !text.is_empty() {
            self.insert(open..open, text);
        }
        true
    }

    /// `has_rest`: another arm matches what is left.
    fn arm(&mut self, arm: &syn::Arm, has_rest: bool) {
        let Some((_, guard)) = &arm.guard else {
            if !has_rest {
                return;
            }
            let deleted = self.at(range(arm).start, Genre::MatchArm);
            if let Some((id, _)) = deleted.first() {
                let end = range(&arm.pat).end;
                self.insert(end..end, format!(" if !{}", switch(*id)));
            }
            return;
        };
        let (at, mutants) = (range(guard), self.at(range(guard).start, Genre::Guard));
        if mutants.is_empty() || binds(guard) {
            return;
        }
        let (mut before, mut after) = ("((".to_owned(), ")".to_owned());
        for (id, value) in mutants {
            match value.as_str() {
                "true" => before = format!("({} || (", switch(id)),
                _ => after = format!(") && !{}", switch(id)),
            }
        }
        self.insert(range(&arm.pat).end..at.start, format!(" if {before}"));
        let arrow = range(&arm.fat_arrow_token).start;
        self.insert(arrow..arrow, format!("){after} "));
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if self.function(&item.sig, &item.block) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if self.function(&item.sig, &item.block) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if item
            .default
            .as_ref()
            .is_some_and(|block| self.function(&item.sig, block))
        {
            visit::visit_trait_item_fn(self, item);
        }
    }

    // Evaluated at compile time.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_type_array(&mut self, _: &'ast syn::TypeArray) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_variant(&mut self, _: &'ast syn::Variant) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_expr_match(&mut self, of: &'ast syn::ExprMatch) {
        let is_rest = |arm: &syn::Arm| arm.guard.is_none() && matches!(arm.pat, Pat::Wild(_));
        let has_rest = of.arms.iter().any(is_rest);
        for arm in &of.arms {
            self.arm(arm, has_rest);
        }
        visit::visit_expr_match(self, of);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        visit::visit_expr_binary(self, binary);
        let op = binary.op.span().byte_range();
        let variants = self.at(op.start, Genre::Binary);
        if variants.is_empty() || binds(&binary.left) || binds(&binary.right) {
            return;
        }
        let (left, right) = (range(&binary.left), range(&binary.right));
        let kind = match binary.op {
            BinOp::And(_) | BinOp::Or(_) => Kind::Logic {
                id: variants[0].0,
                and: matches!(binary.op, BinOp::And(_)),
                left,
                right,
            },
            _ => Kind::Operator {
                op,
                variants,
                left,
                right,
            },
        };
        self.nodes.push(Node {
            range: range(binary),
            kind,
        });
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        visit::visit_expr_unary(self, unary);
        let found = self.at(unary.op.span().byte_range().start, Genre::Unary);
        if let Some((id, _)) = found.first() {
            self.nodes.push(Node {
                range: range(unary),
                kind: Kind::Unary {
                    id: *id,
                    operand: range(&unary.expr),
                },
            });
        }
    }
}

/// Writes the instrumented source.
struct Writer<'a> {
    source: &'a str,
    /// By their beginnings; of those that begin at the same place the outermost first.
    nodes: Vec<Node>,
}

impl Writer<'_> {
    fn render(&self, range: Range<usize>) -> String {
        let mut text = String::new();
        let mut at = range.start;
        let first = self
            .nodes
            .partition_point(|node| node.range.start < range.start);
        for node in &self.nodes[first..] {
            if node.range.start > range.end {
                break;
            }
            if node.range.start >= at && node.range.end <= range.end {
                text.push_str(&self.source[at..node.range.start]);
                text.push_str(&self.node(node));
                at = node.range.end;
            }
        }
        text.push_str(&self.source[at..range.end]);
        text
    }

    fn node(&self, node: &Node) -> String {
        match &node.kind {
            Kind::Text(text) => text.clone(),
            Kind::Logic {
                id,
                and,
                left,
                right,
            } => {
                let (left, right) = (self.render(left.clone()), self.render(right.clone()));
                let differs = if *and { "!=" } else { "==" };
                let on = switch(*id);
                format!(
                    "({{ let l__: bool = ({left}); if l__ {differs} {on} {{ ({right}) }} else {{ l__ }} }})"
                )
            }
            Kind::Operator {
                op,
                variants,
                left,
                right,
            } => {
                let (left, right) = (self.render(left.clone()), self.render(right.clone()));
                let mut text = "(".to_owned();
                for (id, op) in variants {
                    let mutated = marked(*id, &format!("(({left}) {op} ({right}))"));
                    text.push_str(&format!("if {} {{ {mutated} }} else ", switch(*id)));
                }
                let op = &self.source[op.start..op.end.max(op.start + 1)];
                text + &format!("{{ (({left}) {op} ({right})) }})")
            }
            Kind::Unary { id, operand } => {
                let op = &self.source[node.range.start..operand.start];
                let (on, operand) = (switch(*id), self.render(operand.clone()));
                let mutated = marked(*id, &format!("({operand})"));
                format!("(if {on} {{ {mutated} }} else {{ ({op}({operand})) }})")
            }
        }
    }
}
