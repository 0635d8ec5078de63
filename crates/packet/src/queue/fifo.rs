//! First-in, first-out lists that share one storage.
//!
//! Each flow has a list, and any of them may grow long. A storage of their own for each would keep
//! the memory of its longest time, so the sum over all flows would have no useful bound. Here the
//! storage grows to the largest number of elements in all lists together.

/// End of a list.
const NONE: u32 = u32::MAX;

/// Storage of the elements of all lists.
#[derive(Debug)]
pub(super) struct Nodes<T> {
    nodes: Vec<Node<T>>,
    /// The first node without an element.
    free: u32,
    len: usize,
}

#[derive(Debug)]
struct Node<T> {
    element: Option<T>,
    /// The next node of the list, or the next one without an element.
    next: u32,
}

/// A list. It belongs to one [`Nodes`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Fifo {
    head: u32,
    tail: u32,
}

impl Default for Fifo {
    fn default() -> Self {
        Self {
            head: NONE,
            tail: NONE,
        }
    }
}

impl<T> Nodes<T> {
    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: NONE,
            len: 0,
        }
    }

    /// Elements in all lists.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Elements for which there is memory.
    #[cfg(test)]
    pub(super) fn stored(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn push_back(&mut self, list: &mut Fifo, element: T) {
        let node = Node {
            element: Some(element),
            next: NONE,
        };
        let index = self.free;
        let index = match self.nodes.get_mut(index as usize) {
            Some(free) => {
                self.free = free.next;
                *free = node;
                index
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        match self.nodes.get_mut(list.tail as usize) {
            Some(tail) => tail.next = index,
            None => list.head = index,
        }
        list.tail = index;
        self.len += 1;
    }

    pub(super) fn front(&self, list: &Fifo) -> Option<&T> {
        self.nodes.get(list.head as usize)?.element.as_ref()
    }

    pub(super) fn front_mut(&mut self, list: &Fifo) -> Option<&mut T> {
        self.nodes.get_mut(list.head as usize)?.element.as_mut()
    }

    pub(super) fn pop_front(&mut self, list: &mut Fifo) -> Option<T> {
        let index = list.head;
        let node = self.nodes.get_mut(index as usize)?;
        let element = node.element.take();
        list.head = std::mem::replace(&mut node.next, self.free);
        if list.head == NONE {
            list.tail = NONE;
        }
        self.free = index;
        self.len -= 1;
        element
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order_and_share_their_memory() {
        let mut nodes = Nodes::new();
        let mut lists = [Fifo::default(); 2];
        for round in 0..3 {
            for i in 0..10 {
                nodes.push_back(&mut lists[i % 2], 10 * round + i);
            }
            assert_eq!(nodes.len(), 10);
            for (list, first) in lists.iter_mut().zip([0, 1]) {
                assert_eq!(nodes.front(list), Some(&(10 * round + first)));
                let out: Vec<_> = std::iter::from_fn(|| nodes.pop_front(list)).collect();
                let expected: Vec<_> = (0..5).map(|i| 10 * round + first + 2 * i).collect();
                assert_eq!(out, expected);
                assert!(nodes.front_mut(list).is_none());
            }
            assert_eq!((nodes.len(), nodes.stored()), (0, 10));
        }
    }
}
