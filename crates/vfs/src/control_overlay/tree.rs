//! The tree of control files: a list of places, each naming the one above it.

/// A place in the tree of control files; its number is its index, the root's is 0.
pub(super) struct Place {
    pub(super) name: &'static str,
    pub(super) parent: usize,
    pub(super) kind: PlaceKind,
}

pub(super) enum PlaceKind {
    Dir,
    File { path: &'static str, writable: bool },
}

/// Adds the file at `path`, with the directories above it.
pub(super) fn insert(places: &mut Vec<Place>, path: &'static str, writable: bool) {
    let mut dir = 0;
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    for part in above.split('/').filter(|part| !part.is_empty()) {
        let found = (1..places.len()).find(|&i| places[i].parent == dir && places[i].name == part);
        dir = found.unwrap_or_else(|| {
            places.push(Place {
                name: part,
                parent: dir,
                kind: PlaceKind::Dir,
            });
            places.len() - 1
        });
    }
    places.push(Place {
        name,
        parent: dir,
        kind: PlaceKind::File { path, writable },
    });
}
