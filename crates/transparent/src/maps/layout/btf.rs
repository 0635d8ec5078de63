//! Reads structures from BTF (Documentation/bpf/btf.rst).

use std::collections::HashMap;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Structure {
    pub(super) size: usize,
    pub(super) fields: Vec<Field>,
}

/// A field of a structure, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Field {
    /// Empty for a structure or union without a name.
    pub(super) name: String,
    pub(super) offset: usize,
    pub(super) size: usize,
}

/// The types of an object by their BTF type numbers.
pub(super) struct Btf {
    types: Vec<Type>,
    structures: HashMap<String, u32>,
}

enum Type {
    Sized(usize),
    Array {
        element: u32,
        count: usize,
    },
    Structure {
        size: usize,
        members: Vec<Member>,
    },
    /// A typedef or a qualified type, with the number of the underlying type.
    Same(u32),
    Other,
}

struct Member {
    name: String,
    type_of: u32,
    bit_offset: u32,
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn word(&mut self) -> u32 {
        let (word, rest) = self.0.split_first_chunk().expect("a word");
        self.0 = rest;
        u32::from_ne_bytes(*word)
    }
}

impl Btf {
    /// Parses the bytes of the section `.BTF`.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let header = |at: usize| Reader(&bytes[at..]).word() as usize;
        let (header_len, types, types_len) = (header(4), header(8), header(12));
        let strings = &bytes[header_len + header(16)..];
        let name = |at: u32| {
            let bytes = strings[at as usize..].split(|byte| *byte == 0).next();
            String::from_utf8(bytes.unwrap_or_default().to_vec()).expect("a name")
        };
        let mut reader = Reader(&bytes[header_len + types..][..types_len]);
        // Type 0 is void.
        let mut btf = Self {
            types: vec![Type::Other],
            structures: HashMap::new(),
        };
        while !reader.0.is_empty() {
            let (name_at, info, size) = (reader.word(), reader.word(), reader.word());
            let (kind, count) = (info >> 24 & 0x1f, info & 0xffff);
            let mut skip = |words: u32| (0..words).for_each(|_| _ = reader.word());
            let found = match kind {
                // Int, pointer, enum, float, enum64.
                1 => {
                    skip(1);
                    Type::Sized(size as usize)
                }
                2 => Type::Sized(8),
                6 => {
                    skip(2 * count);
                    Type::Sized(size as usize)
                }
                16 => Type::Sized(size as usize),
                19 => {
                    skip(3 * count);
                    Type::Sized(size as usize)
                }
                3 => {
                    let (element, _, count) = (reader.word(), reader.word(), reader.word());
                    Type::Array {
                        element,
                        count: count as usize,
                    }
                }
                4 | 5 => {
                    let members = (0..count).map(|_| Member {
                        name: name(reader.word()),
                        type_of: reader.word(),
                        // With bit fields, the upper byte is the width.
                        bit_offset: reader.word() & 0xff_ffff,
                    });
                    let members = members.collect();
                    let number = btf.types.len() as u32;
                    btf.structures.insert(name(name_at), number);
                    Type::Structure {
                        size: size as usize,
                        members,
                    }
                }
                // Typedef, volatile, const, restrict, type tag.
                8..=11 | 18 => Type::Same(size),
                // Forward, function.
                7 | 12 => Type::Other,
                // Function prototype.
                13 => {
                    skip(2 * count);
                    Type::Other
                }
                // Variable, declaration tag.
                14 | 17 => {
                    skip(1);
                    Type::Other
                }
                // Section.
                15 => {
                    skip(3 * count);
                    Type::Other
                }
                _ => panic!("BTF of an unknown kind: {kind}"),
            };
            btf.types.push(found);
        }
        btf
    }

    pub(super) fn structure(&self, name: &str) -> Structure {
        let number = self.structures.get(name);
        let number = number.unwrap_or_else(|| panic!("BTF has no struct {name}"));
        let Type::Structure { size, members } = &self.types[*number as usize] else {
            unreachable!("only structures are listed");
        };
        Structure {
            size: *size,
            fields: (members.iter())
                .map(|member| Field {
                    name: member.name.clone(),
                    offset: member.bit_offset as usize / 8,
                    size: self.size(member.type_of),
                })
                .collect(),
        }
    }

    fn size(&self, number: u32) -> usize {
        match &self.types[number as usize] {
            Type::Sized(size) | Type::Structure { size, .. } => *size,
            Type::Array { element, count } => self.size(*element) * count,
            Type::Same(other) => self.size(*other),
            Type::Other => panic!("type {number} has no size"),
        }
    }
}
