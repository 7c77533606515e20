//! File-system operations as data, a model that predicts their results, an oracle that judges a volume after a crash,
//! and a shrinker of failing programs.

#![forbid(unsafe_code)]

pub mod generate;
pub mod model;
pub mod observe;
mod op;
pub mod oracle;
mod path;
pub mod pattern;
mod run;
mod shrink;
mod spelling;
mod text;

pub use model::{Format, ModelFs, Recovery, State};
pub use observe::{Observed, observe};
pub use op::{Op, Program, RenameHow, Span, Target};
pub use oracle::{Divergence, Explanation, Histories, History, Tolerance, Violation};
pub use path::TreePath;
pub use run::{Marker, Recording, Runner, Step, TOP, Value, run, run_program};
pub use shrink::shrink;
pub use text::ParseError;
