//! The tree behind [`super::AllowedIps`], for one address family: a compressed trie that decides
//! over [`STRIDE`] bits per node.
//!
//! A node is a bitmap of the values of its bits that have a child, and an array of these
//! children. Bits that all prefixes of a subtree share are skipped: a single prefix is a leaf at
//! any depth, and a node holds at least two prefixes. The array contains the children themselves,
//! not pointers to them, so that each level costs at most one cache miss.

use core::mem;
use core::ops::{BitXor, Shl};
use std::sync::Arc;

/// Number of address bits that one node decides over. The widths 32 and 128 are two more than a
/// multiple of 6. The top node takes these two bits, so that a full address ends where a node
/// ends.
const STRIDE: u8 = 6;
const TOP_STRIDE: u8 = 2;

/// An address as a number.
pub(super) trait Bits:
    Copy + Eq + BitXor<Output = Self> + Shl<u8, Output = Self> + Default
{
    const WIDTH: u8;

    fn leading_zeros(self) -> u8;

    /// Returns the first [`STRIDE`] bits.
    fn first(self) -> u8;

    /// Returns the value with all bits after the first `length` cleared.
    fn truncated(self, length: u8) -> Self;

    /// Returns the value with the bits from `at` on set to `chunk`, which has [`STRIDE`] bits.
    /// These bits must be zero before. Bits of `chunk` beyond the end are dropped.
    fn with(self, at: u8, chunk: u8) -> Self;
}

macro_rules! bits {
    ($type:ty) => {
        impl Bits for $type {
            const WIDTH: u8 = <$type>::BITS as u8;

            fn leading_zeros(self) -> u8 {
                <$type>::leading_zeros(self) as u8
            }

            fn first(self) -> u8 {
                (self >> (Self::WIDTH - STRIDE)) as u8
            }

            fn truncated(self, length: u8) -> Self {
                let host = Self::MAX.checked_shr(length.into()).unwrap_or(0);
                self & !host
            }

            fn with(self, at: u8, chunk: u8) -> Self {
                let chunk = Self::from(chunk) << (Self::WIDTH - STRIDE);
                self | chunk.checked_shr(at.into()).unwrap_or(0)
            }
        }
    };
}

bits!(u32);
bits!(u128);

/// A prefix: the leading `length` bits of `bits`; the others are zero.
///
/// Packed, so that a [`Tree`] of IPv6 fits into one cache line.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(8))]
pub(super) struct Key<B: Copy> {
    bits: B,
    length: u8,
}

impl<B: Bits> Key<B> {
    pub(super) fn new(bits: B, length: u8) -> Self {
        let length = length.min(B::WIDTH);
        Self {
            bits: bits.truncated(length),
            length,
        }
    }

    fn holds(self, address: B) -> bool {
        (self.bits ^ address).leading_zeros() >= self.length
    }

    /// Returns the number of leading bits that both keys share.
    fn common(self, other: Self) -> u8 {
        let bits = (self.bits ^ other.bits).leading_zeros();
        bits.min(self.length).min(other.length)
    }
}

/// Prefixes of one address family with their owners.
#[derive(Clone, Default)]
pub(super) enum Tree<B: Copy, T> {
    #[default]
    Empty,
    Leaf(Key<B>, T),
    Node(Node<B, T>),
}

/// Two prefixes or more that share the bits of `key`.
#[derive(Clone)]
pub(super) struct Node<B: Copy, T> {
    /// The length is 0, or [`TOP_STRIDE`] plus a multiple of [`STRIDE`].
    key: Key<B>,
    /// Bitmap of the values of this node's bits that have a child. A child holds prefixes that
    /// fix all of these bits. `children` is in the order of these values and contains no
    /// [`Tree::Empty`].
    present: u64,
    children: Arc<[Tree<B, T>]>,
    /// Owners of prefixes that end within this node's bits.
    own: Option<Arc<Own<T>>>,
}

/// Owners of prefixes that fix only some of a node's bits.
#[derive(Clone)]
struct Own<T> {
    /// Bitmap of the prefixes present. The number of a prefix is its bits after a leading 1
    /// (`101` is the prefix `01`), so that a longer prefix has a greater number.
    present: u64,
    owners: Vec<T>,
}

impl<B: Bits, T: Clone> Tree<B, T> {
    /// Returns the owner of the longest prefix that contains `address`.
    pub(super) fn lookup(&self, address: B) -> Option<&T> {
        let mut found = None;
        let mut tree = self;
        loop {
            match tree {
                Self::Empty => return found,
                Self::Leaf(key, owner) => {
                    return if key.holds(address) {
                        Some(owner)
                    } else {
                        found
                    };
                }
                Self::Node(node) => {
                    let chunk = node.chunk(address);
                    // Skipped bits are compared only where an owner could be returned.
                    if let Some(own) = &node.own {
                        if !node.key.holds(address) {
                            return found;
                        }
                        found = own.longest(chunk).or(found);
                    }
                    match node.child(chunk) {
                        Some(child) => tree = child,
                        None => return found,
                    }
                }
            }
        }
    }

    pub(super) fn insert(&mut self, key: Key<B>, owner: T) {
        match self {
            Self::Empty => *self = Self::Leaf(key, owner),
            Self::Leaf(here, before) if *here == key => *before = owner,
            Self::Node(node) if node.key.common(key) == node.key.length => node.insert(key, owner),
            Self::Leaf(..) | Self::Node(_) => self.part(key, owner),
        }
    }

    /// Inserts `key`, which differs from this tree within the bits that the tree skips: a new
    /// node takes the place of this tree and holds both.
    fn part(&mut self, key: Key<B>, owner: T) {
        let common = match self {
            Self::Empty => 0,
            Self::Leaf(here, _) => here.common(key),
            Self::Node(node) => node.key.common(key),
        };
        let length = match common {
            ..TOP_STRIDE => 0,
            _ => common - (common - TOP_STRIDE) % STRIDE,
        };
        let mut node = Node::empty(Key::new(key.bits, length));
        node.adopt(mem::take(self));
        node.insert(key, owner);
        *self = Self::Node(node);
    }

    pub(super) fn remove(&mut self, key: Key<B>, gone: impl FnOnce(&T) -> bool) {
        if self.owner(key).is_some_and(gone) {
            self.take(key);
        }
    }

    /// Returns the owner of exactly this prefix.
    fn owner(&self, key: Key<B>) -> Option<&T> {
        let mut tree = self;
        loop {
            match tree {
                Self::Empty => return None,
                Self::Leaf(here, owner) => return (*here == key).then_some(owner),
                Self::Node(node) if node.key.common(key) < node.key.length => return None,
                Self::Node(node) => match node.own_number(key) {
                    Some(number) => return node.own.as_ref()?.get(number),
                    None => tree = node.child(node.chunk(key.bits))?,
                },
            }
        }
    }

    /// Removes a prefix that is present.
    fn take(&mut self, key: Key<B>) {
        match self {
            Self::Empty => {}
            Self::Leaf(..) => *self = Self::Empty,
            Self::Node(node) => {
                node.take(key);
                if let Some(last) = node.last() {
                    *self = last;
                }
            }
        }
    }

    /// Calls `each` with the bits, length and owner of every prefix.
    pub(super) fn for_each(&self, each: &mut impl FnMut(B, u8, &T)) {
        match self {
            Self::Empty => {}
            Self::Leaf(key, owner) => each(key.bits, key.length, owner),
            Self::Node(node) => {
                if let Some(own) = &node.own {
                    for (number, owner) in numbers(own.present).zip(&own.owners) {
                        let key = node.own_key(number);
                        each(key.bits, key.length, owner);
                    }
                }
                for child in &*node.children {
                    child.for_each(each);
                }
            }
        }
    }
}

impl<B: Bits, T: Clone> Node<B, T> {
    fn empty(key: Key<B>) -> Self {
        Self {
            key,
            present: 0,
            children: Arc::default(),
            own: None,
        }
    }

    fn stride(&self) -> u8 {
        match self.key.length {
            0 => TOP_STRIDE,
            _ => STRIDE,
        }
    }

    /// Returns the bits of an address that this node decides over. The top node has only the
    /// first two of the [`STRIDE`] bits; the others are zero.
    fn chunk(&self, address: B) -> u8 {
        match self.key.length {
            0 => address.truncated(TOP_STRIDE).first(),
            length => (address << length).first(),
        }
    }

    fn child(&self, chunk: u8) -> Option<&Tree<B, T>> {
        let there = self.present >> chunk & 1 == 1;
        there.then(|| self.children.get(rank(self.present, chunk)))?
    }

    /// Returns the number in [`Own`] of a prefix that ends within this node's bits.
    fn own_number(&self, key: Key<B>) -> Option<u8> {
        let fixed = key.length - self.key.length;
        (fixed < self.stride()).then(|| 1 << fixed | self.chunk(key.bits) >> (STRIDE - fixed))
    }

    /// Returns the prefix with this number in [`Own`].
    fn own_key(&self, number: u8) -> Key<B> {
        let fixed = number.ilog2() as u8;
        let chunk = (number ^ 1 << fixed) << (STRIDE - fixed);
        let bits = self.key.bits.with(self.key.length, chunk);
        Key::new(bits, self.key.length + fixed)
    }

    /// Inserts a prefix that starts with this node's key.
    fn insert(&mut self, key: Key<B>, owner: T) {
        if let Some(number) = self.own_number(key) {
            let own = self.own.get_or_insert_default();
            return Arc::make_mut(own).insert(number, owner);
        }
        let chunk = self.chunk(key.bits);
        let at = rank(self.present, chunk);
        if self.present >> chunk & 1 == 0 {
            self.present |= 1 << chunk;
            insert_at(&mut self.children, at, Tree::Leaf(key, owner));
        } else if let Some(child) = Arc::make_mut(&mut self.children).get_mut(at) {
            child.insert(key, owner);
        }
    }

    /// Inserts a tree whose prefixes all start with this node's key.
    fn adopt(&mut self, tree: Tree<B, T>) {
        let bits = match &tree {
            Tree::Empty => return,
            Tree::Leaf(key, _) if self.own_number(*key).is_some() => {
                if let Tree::Leaf(key, owner) = tree {
                    self.insert(key, owner);
                }
                return;
            }
            Tree::Leaf(key, _) => key.bits,
            Tree::Node(node) => node.key.bits,
        };
        let chunk = self.chunk(bits);
        self.present |= 1 << chunk;
        let at = rank(self.present, chunk);
        insert_at(&mut self.children, at, tree);
    }

    /// Removes a prefix that is present.
    fn take(&mut self, key: Key<B>) {
        if let Some(number) = self.own_number(key) {
            if let Some(own) = &mut self.own {
                let own = Arc::make_mut(own);
                own.take(number);
                if own.present == 0 {
                    self.own = None;
                }
            }
            return;
        }
        let chunk = self.chunk(key.bits);
        let at = rank(self.present, chunk);
        let Some(child) = Arc::make_mut(&mut self.children).get_mut(at) else {
            return;
        };
        child.take(key);
        if matches!(child, Tree::Empty) {
            self.present &= !(1 << chunk);
            remove_at(&mut self.children, at);
        }
    }

    /// Returns the only child or prefix that is left, which then replaces the node.
    fn last(&mut self) -> Option<Tree<B, T>> {
        match (&self.own, &*self.children) {
            (None, [_]) => Arc::make_mut(&mut self.children).first_mut().map(mem::take),
            (Some(own), []) => match &*own.owners {
                [owner] => {
                    let key = self.own_key(numbers(own.present).next()?);
                    Some(Tree::Leaf(key, owner.clone()))
                }
                _ => None,
            },
            _ => None,
        }
    }
}

impl<T> Default for Own<T> {
    fn default() -> Self {
        Self {
            present: 0,
            owners: Vec::new(),
        }
    }
}

impl<T> Own<T> {
    fn get(&self, number: u8) -> Option<&T> {
        let there = self.present >> number & 1 == 1;
        there.then(|| self.owners.get(rank(self.present, number)))?
    }

    /// Returns the owner of the longest prefix that `chunk` starts with.
    fn longest(&self, chunk: u8) -> Option<&T> {
        let holding = self.present & HOLDING.get(usize::from(chunk)).copied().unwrap_or(0);
        self.get(holding.checked_ilog2()? as u8)
    }

    fn insert(&mut self, number: u8, owner: T) {
        let at = rank(self.present, number);
        if self.present >> number & 1 == 0 {
            self.present |= 1 << number;
            self.owners.insert(at, owner);
        } else if let Some(before) = self.owners.get_mut(at) {
            *before = owner;
        }
    }

    fn take(&mut self, number: u8) {
        self.present &= !(1 << number);
        self.owners.remove(rank(self.present, number));
    }
}

/// For each value of a node's bits, the bitmap of the prefixes it starts with, by their numbers
/// in [`Own`].
const HOLDING: [u64; 1 << STRIDE] = {
    let mut table = [0; 1 << STRIDE];
    let mut chunk = 0;
    while chunk < table.len() {
        let mut fixed = 0;
        while fixed < STRIDE {
            table[chunk] |= 1 << (1 << fixed | chunk >> (STRIDE - fixed));
            fixed += 1;
        }
        chunk += 1;
    }
    table
};

/// Returns the count of numbers below `number` in a bitmap.
fn rank(set: u64, number: u8) -> usize {
    (set & ((1 << number) - 1)).count_ones() as usize
}

/// Returns the numbers in a bitmap, in ascending order.
fn numbers(mut set: u64) -> impl Iterator<Item = u8> {
    core::iter::from_fn(move || {
        let number = (set != 0).then(|| set.trailing_zeros() as u8)?;
        set &= set - 1;
        Some(number)
    })
}

/// Inserts `item` at index `at`.
fn insert_at<I: Clone + Default>(items: &mut Arc<[I]>, at: usize, item: I) {
    let (before, after) = Arc::make_mut(items).split_at_mut(at);
    let [before, after] = [before, after].map(|items| items.iter_mut().map(mem::take));
    let items_after = before.chain([item]).chain(after).collect();
    *items = items_after;
}

/// Removes the item at index `at`.
fn remove_at<I: Clone + Default>(items: &mut Arc<[I]>, at: usize) {
    let (before, after) = Arc::make_mut(items).split_at_mut(at);
    let after = after.iter_mut().skip(1);
    let items_after = before.iter_mut().chain(after).map(mem::take).collect();
    *items = items_after;
}

#[cfg(test)]
impl<B: Bits, T: Clone> Tree<B, T> {
    /// Asserts the invariants that the fields' comments state.
    pub(super) fn check(&self) {
        let Self::Node(node) = self else {
            return;
        };
        let Key { bits, length } = node.key;
        assert!(length == 0 || (length - TOP_STRIDE).is_multiple_of(STRIDE));
        assert!(bits == bits.truncated(length));
        let own = node.own.as_ref().map_or(0, |own| {
            assert!(own.present != 0);
            assert_eq!(own.present.count_ones() as usize, own.owners.len());
            own.owners.len()
        });
        assert!(own + node.children.len() >= 2);
        assert_eq!(node.present.count_ones() as usize, node.children.len());
        for (chunk, child) in numbers(node.present).zip(&*node.children) {
            let key = match child {
                Self::Empty => panic!("an empty child"),
                Self::Leaf(key, _) => *key,
                Self::Node(node) => node.key,
            };
            assert!(key.length >= length + node.stride());
            assert!(node.key.holds(key.bits));
            assert_eq!(node.chunk(key.bits), chunk);
            child.check();
        }
    }
}
