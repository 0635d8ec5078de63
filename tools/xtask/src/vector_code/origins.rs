//! Origins of the values that an instruction depends on: a forward analysis of one function.
//!
//! The state before an instruction has a set of origins for each general register, mask register and
//! place on the stack, and for the flags. The sets of all predecessors are united until nothing
//! changes. A value that comes out of a vector register has the origin `vector`, unless the vector is
//! a constant of the program: secrets are processed in vectors.

use std::collections::{BTreeMap, BTreeSet};

use super::disassembly::{
    Instruction, MachineFunction, Memory, Operand, is_mask, is_vector, plain_name,
};
use super::registers::{ARGUMENTS, CLOBBERED, GENERAL, general};

/// Descriptions of the places that a value comes from.
pub(super) type Origins = BTreeSet<String>;

/// More origins than these are `many`.
const MOST: usize = 6;

/// A place that keeps a value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Register(&'static str),
    Mask(String),
    /// Vector register, by its number.
    Vector(String),
    Flags,
    /// Eight bytes at an offset from a register that holds an address on the stack.
    Slot(&'static str, i64),
}

/// Values before an instruction.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Values(BTreeMap<Place, Origins>);

fn one(origin: impl Into<String>) -> Origins {
    Origins::from([origin.into()])
}

fn union(sets: impl IntoIterator<Item = Origins>) -> Origins {
    let all: Origins = sets.into_iter().flatten().collect();
    limited(all)
}

/// A constant adds nothing to other origins.
fn limited(mut all: Origins) -> Origins {
    if all.len() > 1 {
        all.remove("constant");
    }
    match all.len() > MOST {
        // A vector among the origins is never forgotten.
        true => {
            let mut few = one("many");
            few.extend(all.into_iter().filter(|it| it.contains("vector")));
            if few.len() > MOST {
                Origins::from(["many".into(), "vector".into()])
            } else {
                few
            }
        }
        false => all,
    }
}

impl Values {
    /// Values when a function begins.
    fn at_entry() -> Self {
        let mut values = Self::default();
        for register in GENERAL {
            let origin = match register {
                "rsp" => "stack".to_owned(),
                _ if ARGUMENTS.contains(&register) => format!("argument {register}"),
                _ => "caller".to_owned(),
            };
            values.0.insert(Place::Register(register), one(origin));
        }
        values
    }

    fn register(&self, name: &str) -> Origins {
        if let Some((register, _)) = general(name) {
            let known = self.0.get(&Place::Register(register)).cloned();
            return known.unwrap_or_else(|| one("unknown"));
        }
        if is_mask(name) {
            let known = self.0.get(&Place::Mask(name.to_owned())).cloned();
            return known.unwrap_or_else(|| one("unknown"));
        }
        match is_vector(name) {
            true => {
                let known = self.0.get(&Place::Vector(name[3..].to_owned())).cloned();
                known.unwrap_or_else(|| one("vector"))
            }
            false => one(name),
        }
    }

    fn set(&mut self, place: Place, origins: Origins) {
        self.0.insert(place, limited(origins));
    }

    fn set_register(&mut self, name: &str, origins: Origins) {
        if let Some((register, _)) = general(name) {
            // Offsets from another address are no longer those of the slots.
            self.0
                .retain(|place, _| !matches!(place, Place::Slot(base, _) if *base == register));
            self.set(Place::Register(register), origins);
        } else if is_mask(name) {
            self.set(Place::Mask(name.to_owned()), origins);
        } else if is_vector(name) {
            self.set(Place::Vector(name[3..].to_owned()), origins);
        }
    }

    pub(super) fn flags(&self) -> Origins {
        let known = self.0.get(&Place::Flags).cloned();
        known.unwrap_or_else(|| one("unknown"))
    }

    pub(super) fn mask(&self, name: &str) -> Origins {
        self.register(name)
    }

    /// Returns the origins of an operand's value.
    pub(super) fn value(&self, operand: &Operand) -> Origins {
        match operand {
            Operand::Register { name, .. } => self.register(name),
            Operand::Memory(memory) => self.load(memory),
            Operand::Immediate => one("constant"),
        }
    }

    /// Returns the origins of an address.
    pub(super) fn address(&self, memory: &Memory) -> Origins {
        let parts = memory.base.iter().chain(&memory.index);
        let origins = parts.map(|it| match it.as_str() {
            "rip" => one("constant"),
            name => self.register(name),
        });
        union(origins)
    }

    /// Returns the register of an address on the stack without index.
    fn frame(&self, memory: &Memory) -> Option<&'static str> {
        let (base, _) = general(memory.base.as_ref()?)?;
        let is_plain = memory.index.is_none() && self.register(base) == one("stack");
        is_plain.then_some(base)
    }

    fn load(&self, memory: &Memory) -> Origins {
        let Memory {
            size, displacement, ..
        } = *memory;
        if let Some(base) = self.frame(memory) {
            let mut found = Origins::new();
            for slot in slots(displacement, size) {
                match self.0.get(&Place::Slot(base, slot)) {
                    Some(origins) => found.extend(origins.iter().cloned()),
                    None => found.extend(one("frame")),
                }
            }
            return limited(found);
        }
        let base = memory.base.as_deref().map(|it| match it {
            "rip" => one("constant"),
            name => self.register(name),
        });
        let index = memory.index.as_deref().map(|it| self.register(it));
        if base.is_none() && index.is_none() {
            return one("thread");
        }
        // Not a variable: those of Rust are reached through their addresses.
        if memory.base.as_deref() == Some("rip") && index.is_none() && size > 8 {
            return one("constant");
        }
        let narrow = match size {
            1 => "byte ",
            2 => "word ",
            4 => "dword ",
            _ => "",
        };
        let mut text = list(&base.unwrap_or_default());
        let is_vector =
            text.contains("vector") || index.as_ref().is_some_and(|it| list(it).contains("vector"));
        match index {
            Some(_) => text.push_str("+index"),
            None if displacement < 0 => text.push_str(&format!("-{:#x}", -displacement)),
            None if displacement > 0 => text.push_str(&format!("+{displacement:#x}")),
            None => {}
        }
        let is_deep = text.contains('[') && text.contains(" & ") || text.matches('[').count() > 2;
        if is_deep {
            return one(if is_vector { "vector, deep" } else { "deep" });
        }
        one(format!("{narrow}[{text}]"))
    }

    fn store(&mut self, memory: &Memory, origins: &Origins) {
        let Some(base) = self.frame(memory) else {
            return;
        };
        let size = memory.size as i64;
        for slot in slots(memory.displacement, memory.size) {
            let is_whole = slot >= memory.displacement && slot + 8 <= memory.displacement + size;
            let place = Place::Slot(base, slot);
            let mut all = origins.clone();
            if !is_whole && let Some(before) = self.0.get(&place) {
                all.extend(before.iter().cloned());
            }
            self.set(place, all);
        }
    }

    fn assign(&mut self, to: &Operand, origins: Origins) {
        match to {
            Operand::Register { name, .. } => self.set_register(name, origins),
            Operand::Memory(memory) => self.store(memory, &origins),
            Operand::Immediate => {}
        }
    }

    /// Unites these values with those of another path. Returns true if that adds any.
    fn merge(&mut self, other: &Self) -> bool {
        let before = self.clone();
        // A slot that one path has not written holds what the frame had.
        let is_slot = |place: &Place| matches!(place, Place::Slot(..));
        for (place, origins) in &mut self.0 {
            match other.0.get(place) {
                Some(more) => origins.extend(more.iter().cloned()),
                None if is_slot(place) => {
                    origins.insert("frame".to_owned());
                }
                None if matches!(place, Place::Vector(_)) => {
                    origins.insert("vector".to_owned());
                }
                None => {}
            }
            *origins = limited(std::mem::take(origins));
        }
        for (place, origins) in &other.0 {
            if !self.0.contains_key(place) {
                let mut origins = origins.clone();
                match place {
                    Place::Slot(..) => origins.extend(one("frame")),
                    Place::Vector(_) => origins.extend(one("vector")),
                    _ => {}
                }
                self.set(place.clone(), origins);
            }
        }
        *self != before
    }

    /// Changes the values as the instruction does.
    fn execute(&mut self, instruction: &Instruction) {
        let Instruction {
            operands, target, ..
        } = instruction;
        let name = instruction.mnemonic.as_str();
        let plain = name.rsplit(' ').next().unwrap_or(name);
        let sources = || union(operands.iter().map(|it| self.value(it)));
        if plain == "call" {
            let callee = target.as_ref().map(|(_, symbol)| plain_name(symbol));
            let origin = format!("result of {}", callee.as_deref().unwrap_or("an import"));
            for register in CLOBBERED {
                self.set_register(register, one(&*origin));
            }
            self.set(Place::Flags, one(origin));
            return;
        }
        if matches!(plain, "cmp" | "test" | "bt" | "comisd" | "ucomisd")
            || [
                "kortest", "ktest", "vptest", "ptest", "vtest", "vucomi", "vcomi",
            ]
            .iter()
            .any(|it| plain.starts_with(it))
        {
            let origins = sources();
            self.set(Place::Flags, origins);
            return;
        }
        if plain.starts_with('j')
            || plain == "push"
            || plain.starts_with("nop")
            || plain.starts_with("prefetch")
        {
            return;
        }
        let Some(to) = operands.first() else {
            match plain {
                // From rax into rdx.
                "cqo" | "cdq" => {
                    let origins = self.register("rax");
                    self.set_register("rdx", origins);
                }
                "stc" | "clc" | "cmc" => self.set(Place::Flags, one("constant")),
                "cdqe" | "cwde" | "vzeroupper" | "ret" | "ud2" => {}
                _ => {
                    for register in ["rax", "rcx", "rdx", "rsi", "rdi"] {
                        self.set_register(register, one(plain));
                    }
                }
            }
            return;
        };
        let is_same = operands.len() == 2 && operands[0] == operands[1];
        let is_zero = is_same && matches!(plain, "xor" | "sub")
            || operands.len() == 3 && operands[1] == operands[2] && plain.starts_with("kxor");
        let from = union(operands.iter().skip(1).map(|it| self.value(it)));
        match plain {
            _ if is_zero => {
                self.assign(to, one("constant"));
                if !plain.starts_with('k') {
                    self.set(Place::Flags, one("constant"));
                }
            }
            "pop" => self.assign(to, one("caller")),
            "lea" => {
                let address = match &operands[1] {
                    Operand::Memory(memory) => self.address(memory),
                    other => self.value(other),
                };
                self.assign(to, address);
            }
            "xchg" => {
                let before = self.value(to);
                self.assign(to, from);
                self.assign(&operands[1], before);
            }
            "mul" | "imul" | "div" | "idiv" if operands.len() == 1 => {
                let all = union([sources(), self.register("rax"), self.register("rdx")]);
                self.set_register("rax", all.clone());
                self.set_register("rdx", all.clone());
                self.set(Place::Flags, all);
            }
            "mulx" => {
                let all = union([from, self.register("rdx")]);
                self.assign(to, all.clone());
                self.assign(&operands[1], all);
            }
            _ if plain.starts_with("mov")
                || matches!(plain, "bswap" | "rorx" | "shlx" | "shrx" | "sarx" | "not") =>
            {
                let from = if operands.len() == 1 { sources() } else { from };
                self.assign(to, from);
            }
            "tzcnt" | "lzcnt" | "popcnt" => {
                self.assign(to, from.clone());
                self.set(Place::Flags, from);
            }
            _ if plain.starts_with("cmov") => {
                let all = union([self.value(to), from, self.flags()]);
                self.assign(to, all);
            }
            _ if plain.starts_with("set") => {
                let flags = self.flags();
                self.assign(to, flags);
            }
            _ if plain.starts_with('v') || plain.starts_with('k') => self.vector(instruction),
            _ => {
                let mut all = union([self.value(to), from]);
                if matches!(plain, "adc" | "sbb" | "adcx" | "adox" | "rcl" | "rcr") {
                    // Borrowing from itself spreads the carry.
                    let value = if is_same { Origins::new() } else { all };
                    all = union([value, self.flags()]);
                }
                self.assign(to, all.clone());
                self.set(Place::Flags, all);
            }
        }
    }

    /// Executes an instruction on vectors or masks.
    fn vector(&mut self, instruction: &Instruction) {
        let Instruction {
            operands, mnemonic, ..
        } = instruction;
        let mut from = union(operands.iter().skip(1).map(|it| self.value(it)));
        // All ones.
        if mnemonic.starts_with("kxnor") && operands.get(1) == operands.get(2) {
            from = one("constant");
        }
        match &operands[0] {
            Operand::Register { name, mask } if is_vector(name) => {
                let is_copy = ["vmov", "vpbroadcast", "vbroadcast", "vpmov", "vpxor"]
                    .iter()
                    .any(|it| mnemonic.starts_with(it));
                let is_zero = mnemonic.contains("xor") && operands.get(1) == operands.get(2);
                let is_constant = is_zero || from == one("constant");
                let origin = match is_copy && is_constant && mask.is_none() {
                    true => "constant",
                    false => "vector",
                };
                self.set_register(name, one(origin));
            }
            // From a vector's comparison, or another mask.
            Operand::Register { .. } => self.assign(&operands[0], from),
            to => self.assign(to, from),
        }
    }
}

/// Returns the offsets of the slots that some bytes are in.
fn slots(displacement: i64, size: usize) -> impl Iterator<Item = i64> {
    let first = displacement.div_euclid(8) * 8;
    (first..displacement + size as i64).step_by(8)
}

/// Returns origins as text.
pub(super) fn list(origins: &Origins) -> String {
    let all: Vec<&str> = origins.iter().map(String::as_str).collect();
    all.join(" & ")
}

/// Returns the values before each instruction. Code that only an indirect jump can reach begins
/// with the values before all those jumps.
pub(super) fn values(function: &MachineFunction) -> Vec<Values> {
    let instructions = &function.instructions;
    let places = instructions.iter().enumerate();
    let places: BTreeMap<u64, usize> = places.map(|(at, it)| (it.address, at)).collect();
    let mut before: Vec<Option<Values>> = vec![None; instructions.len()];
    let mut waiting = BTreeSet::new();
    if !instructions.is_empty() {
        before[0] = Some(Values::at_entry());
        waiting.insert(0);
    }
    loop {
        while let Some(at) = waiting.pop_first() {
            let mut after = before[at].clone().unwrap_or_default();
            after.execute(&instructions[at]);
            for next in successors(&instructions[at], at, &places) {
                let Some(entry) = before.get_mut(next) else {
                    continue;
                };
                let is_changed = match entry {
                    Some(known) => known.merge(&after),
                    None => {
                        *entry = Some(after.clone());
                        true
                    }
                };
                if is_changed {
                    waiting.insert(next);
                }
            }
        }
        let Some(unreached) = before.iter().position(Option::is_none) else {
            break;
        };
        let mut entry: Option<Values> = None;
        let jumps = instructions.iter().zip(&before);
        let jumps = jumps.filter(|(it, _)| it.mnemonic.ends_with("jmp") && it.target.is_none());
        for values in jumps.filter_map(|(_, values)| values.as_ref()) {
            match &mut entry {
                Some(entry) => {
                    entry.merge(values);
                }
                None => entry = Some(values.clone()),
            }
        }
        // Otherwise it is reached when a panic unwinds the stack.
        let mut entry = entry.unwrap_or_default();
        entry.set_register("rsp", one("stack"));
        before[unreached] = Some(entry);
        waiting.insert(unreached);
    }
    before.into_iter().flatten().collect()
}

fn successors(
    instruction: &Instruction,
    at: usize,
    places: &BTreeMap<u64, usize>,
) -> impl Iterator<Item = usize> {
    let name = instruction.mnemonic.rsplit(' ').next().unwrap_or_default();
    let is_end = matches!(name, "jmp" | "ret" | "ud2" | "hlt" | "int3");
    let is_jump = name.starts_with('j') || name.starts_with("loop");
    let target = instruction.target.as_ref().filter(|_| is_jump);
    let target = target.and_then(|(address, _)| places.get(address).copied());
    target.into_iter().chain((!is_end).then_some(at + 1))
}
