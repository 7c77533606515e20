//! Reproducible volumes in a build without the feature `sim`: they are refused.

use std::path::Path;
use std::sync::Arc;

use super::{Fill, FillError, FillSource, Filled, Origin};

/// Refuses to fill a volume whose bytes are to be reproducible.
pub(super) fn fill<P>(
    path: &Path,
    _: &Arc<FillSource>,
    _: (&Fill, Origin),
    progress: P,
) -> (Option<P>, Result<Filled, FillError>) {
    let refused = FillError::Simulation {
        path: path.to_owned(),
        why: "a reproducible volume needs the feature sim of the crate steadfs".to_owned(),
    };
    (Some(progress), Err(refused))
}
