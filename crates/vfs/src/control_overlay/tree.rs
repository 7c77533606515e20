//! The tree of control files: a list of nodes, each with the index of its parent.

/// A node of the tree. Its number is its index in the list; the root's is 0.
pub(super) struct ControlNode {
    pub(super) name: &'static str,
    pub(super) parent: usize,
    pub(super) kind: NodeKind,
}

pub(super) enum NodeKind {
    Dir,
    File { path: &'static str, writable: bool },
}

/// Adds the file at `path`, with the directories above it.
pub(super) fn insert(nodes: &mut Vec<ControlNode>, path: &'static str, writable: bool) {
    let mut dir = 0;
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    for part in above.split('/').filter(|part| !part.is_empty()) {
        let found = (1..nodes.len()).find(|&i| nodes[i].parent == dir && nodes[i].name == part);
        dir = found.unwrap_or_else(|| {
            nodes.push(ControlNode {
                name: part,
                parent: dir,
                kind: NodeKind::Dir,
            });
            nodes.len() - 1
        });
    }
    nodes.push(ControlNode {
        name,
        parent: dir,
        kind: NodeKind::File { path, writable },
    });
}
