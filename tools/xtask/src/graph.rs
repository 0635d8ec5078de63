//! Circles in a directed graph.

use std::collections::{BTreeMap, BTreeSet};

/// A directed graph: each node with the nodes that it points to.
pub(crate) type Graph = BTreeMap<String, BTreeSet<String>>;

/// Returns the strongly connected components of more than one node, each sorted, by Tarjan's
/// algorithm. Edges to nodes that are no keys count as well.
pub(crate) fn circles(graph: &Graph) -> Vec<Vec<&str>> {
    let mut search = Search::new(graph);
    for node in graph.keys() {
        if !search.number.contains_key(node.as_str()) {
            search.visit(node);
        }
    }
    search.found.sort();
    search.found
}

struct Search<'g> {
    graph: &'g Graph,
    /// The order in which nodes were visited.
    number: BTreeMap<&'g str, usize>,
    /// The lowest number that each node reaches.
    low: BTreeMap<&'g str, usize>,
    stack: Vec<&'g str>,
    found: Vec<Vec<&'g str>>,
}

impl<'g> Search<'g> {
    fn new(graph: &'g Graph) -> Self {
        Self {
            graph,
            number: BTreeMap::new(),
            low: BTreeMap::new(),
            stack: Vec::new(),
            found: Vec::new(),
        }
    }

    fn visit(&mut self, node: &'g str) {
        let own = self.number.len();
        self.number.insert(node, own);
        self.stack.push(node);
        let mut low = own;
        for next in self.graph.get(node).into_iter().flatten() {
            if !self.number.contains_key(next.as_str()) {
                self.visit(next);
                low = low.min(self.low[next.as_str()]);
            } else if self.stack.contains(&next.as_str()) {
                low = low.min(self.number[next.as_str()]);
            }
        }
        self.low.insert(node, low);
        if low == own {
            let at = self
                .stack
                .iter()
                .rposition(|other| *other == node)
                .unwrap_or(0);
            let mut component = self.stack.split_off(at);
            if component.len() > 1 {
                component.sort_unstable();
                self.found.push(component);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Graph, circles};

    fn graph(edges: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph
                .entry((*from).into())
                .or_default()
                .insert((*to).into());
        }
        graph
    }

    #[test]
    fn acyclic_graphs_have_no_circle() {
        assert!(circles(&graph(&[("a", "b"), ("a", "c"), ("b", "c")])).is_empty());
    }

    #[test]
    fn each_circle_is_found_once() {
        let graph = graph(&[
            ("a", "b"),
            ("b", "c"),
            ("c", "a"),
            ("c", "d"),
            ("d", "e"),
            ("e", "d"),
            ("f", "a"),
        ]);
        assert_eq!(circles(&graph), [vec!["a", "b", "c"], vec!["d", "e"]]);
    }

    #[test]
    fn a_node_that_uses_itself_is_no_circle() {
        assert!(circles(&graph(&[("a", "a")])).is_empty());
    }
}
