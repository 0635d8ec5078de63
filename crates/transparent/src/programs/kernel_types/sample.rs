//! Types of a small kernel, for tests and fuzzers.

use super::*;

/// Builds types. Names are offsets in its strings, ids count from 1.
pub(super) struct Builder {
    types: Vec<u32>,
    strings: Vec<u8>,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            types: Vec::new(),
            strings: vec![0],
        }
    }

    fn name(&mut self, name: &str) -> u32 {
        let at = u32::try_from(self.strings.len()).expect("short");
        self.strings.extend(name.bytes().chain([0]));
        at
    }

    /// Adds a type with the words that follow its common part.
    pub(super) fn add(
        &mut self,
        name: &str,
        kind: u32,
        count: u32,
        size_or_type: u32,
        rest: &[u32],
    ) {
        let name = match name {
            "" => 0,
            name => self.name(name),
        };
        self.types.extend([name, kind << 24 | count, size_or_type]);
        self.types.extend(rest);
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(4 * self.types.len()).expect("short");
        let strings = u32::try_from(self.strings.len()).expect("short");
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let fields = [24, 0, length, length, strings];
        let words = fields.iter().chain(&self.types);
        bytes.extend(words.flat_map(|word| word.to_ne_bytes()));
        bytes.extend(&self.strings);
        bytes
    }
}

/// A kernel's types of every kind.
pub(super) fn kernel() -> Builder {
    let mut kernel = Builder::new();
    let m = kernel.name("member");
    kernel.add("int", INT, 0, 4, &[32]); // 1
    kernel.add("unrelated", STRUCT, 1, 4, &[m, 1, 0]); // 2
    kernel.add("", PTR, 0, 2, &[]); // 3
    kernel.add("", UNION, 1, 8, &[m, 3, 0]); // 4
    kernel.add("", ARRAY, 0, 0, &[4, 1, 3]); // 5
    kernel.add("", CONST, 0, 5, &[]); // 6
    kernel.add("alias", TYPEDEF, 0, 6, &[]); // 7
    kernel.add("handler", FUNC_PROTO, 1, 3, &[m, 2]); // 8
    kernel.add("callback", TYPEDEF, 0, 8, &[]); // 9
    kernel.add("sock", STRUCT, 2, 32, &[m, 7, 0, m, 9, 192]); // 10
    kernel.add("sock", FWD, 0, 0, &[]); // 11
    kernel.add("sock___flavor", STRUCT, 0, 0, &[]); // 12
    kernel.add("sock", FUNC, 0, 8, &[]); // 13
    kernel.add("choice", ENUM, 1, 4, &[m, 0]); // 14
    kernel.add("wide", ENUM64, 1, 8, &[m, 0, 0]); // 15
    kernel.add("", STRUCT, 1, 4, &[m, 1, 0]); // 16
    kernel.add("tag", DECL_TAG, 0, 10, &[0]); // 17
    kernel.add("real", FLOAT, 0, 8, &[]); // 18
    kernel
}

/// Returns types of each kind, all together and one of them, in whole and cut.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let all = kernel().bytes();
    let mut long = Builder::new();
    long.add("long unsigned int", INT, 0, 8, &[64]);
    let mut cycle = Builder::new();
    cycle.add("sock", TYPEDEF, 0, 2, &[]);
    cycle.add("", CONST, 0, 1, &[]);
    let mut dangling = Builder::new();
    dangling.add("sock", TYPEDEF, 0, 2, &[]);
    let cut = all[..all.len() / 2].to_vec();
    vec![all, cut, long.bytes(), cycle.bytes(), dangling.bytes()]
}
