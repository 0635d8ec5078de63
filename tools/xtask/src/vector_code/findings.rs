//! The instructions of a function whose time or trace in the caches depends on a value.

use std::fmt;

use super::disassembly::{Instruction, MachineFunction, Memory, Operand, is_vector};
use super::origins::{Origins, Values, list, values};
use super::registers::general;

/// Prefixes that repeat an instruction on strings, as often as `rcx` or its data say.
const REPETITIONS: [&str; 3] = ["rep ", "repz ", "repnz "];

/// An instruction to explain, without addresses and registers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Finding {
    pub(super) function: String,
    pub(super) kind: &'static str,
    pub(super) mnemonic: String,
    /// The origins of the value.
    pub(super) origins: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            function,
            kind,
            mnemonic,
            origins,
        } = self;
        write!(f, "{function}: {kind}, {mnemonic} by {origins}")
    }
}

/// Returns the places to be explained in a function, with their addresses.
pub(super) fn findings(function: &MachineFunction) -> Vec<(u64, Finding)> {
    let mut findings = Vec::new();
    for (instruction, values) in function.instructions.iter().zip(values(function)) {
        let mut add = |kind, mnemonic: &str, origins: String| {
            let finding = Finding {
                function: function.name.clone(),
                kind,
                mnemonic: mnemonic.to_owned(),
                origins,
            };
            findings.push((instruction.address, finding));
        };
        let name = instruction.mnemonic.as_str();
        let plain = name.rsplit(' ').next().unwrap_or(name);
        if plain == "call" || plain == "jmp" && is_elsewhere(function, instruction) {
            match &instruction.target {
                Some((_, symbol)) => add("call", plain, callee(symbol)),
                None => {
                    let operands = instruction.operands.iter();
                    let target: Vec<String> = operands.map(|it| list(&values.value(it))).collect();
                    add("indirect", plain, target.join(" & "));
                }
            }
        } else if matches!(plain, "jrcxz" | "jecxz") || plain.starts_with("loop") {
            let count = Operand::Register {
                name: "rcx".to_owned(),
                mask: None,
            };
            add("branch", plain, list(&values.value(&count)));
        } else if plain.starts_with('j') && plain != "jmp" {
            add("branch", plain, list(&values.flags()));
        } else if matches!(plain, "div" | "idiv") {
            let operands = instruction.operands.iter();
            let of: Vec<String> = operands.map(|it| list(&values.value(it))).collect();
            add("division", plain, of.join(" & "));
        } else if ["vdiv", "vsqrt", "divs", "sqrts"]
            .iter()
            .any(|it| plain.starts_with(it))
        {
            add("division", plain, "vector".to_owned());
        } else if plain != "ret" && REPETITIONS.iter().any(|it| name.starts_with(it)) {
            let count = Operand::Register {
                name: "rcx".to_owned(),
                mask: None,
            };
            add("repetition", name, list(&values.value(&count)));
        }
        for operand in &instruction.operands {
            if let Operand::Memory(memory) = operand
                && plain != "lea"
                && !plain.starts_with("nop")
            {
                if let Some(origins) = address(memory, &values) {
                    let kind = match is_gather(plain, memory) {
                        true => "gather",
                        false => "address",
                    };
                    add(kind, plain, list(&origins));
                }
                let mask = memory.mask.clone().or_else(|| mask_of(instruction));
                let origins = mask.map_or_else(String::new, |it| list(&values.mask(&it)));
                if !matches!(&*origins, "" | "constant") {
                    add("masked access", plain, origins);
                }
            }
        }
    }
    findings
}

/// Returns the mask of a register operand, which also limits a load.
fn mask_of(instruction: &Instruction) -> Option<String> {
    instruction.operands.iter().find_map(|it| match it {
        Operand::Register { mask, .. } => mask.clone(),
        _ => None,
    })
}

fn is_gather(plain: &str, memory: &Memory) -> bool {
    plain.contains("gather")
        || plain.contains("scatter")
        || memory.index.as_deref().is_some_and(is_vector)
}

/// Returns true if a jump leaves the function: a call at its end, or a jump to a place that the
/// instruction does not name.
fn is_elsewhere(function: &MachineFunction, instruction: &Instruction) -> bool {
    let Some((target, _)) = instruction.target else {
        return true;
    };
    let is_inside = |it: &Instruction| it.address == target;
    !function.instructions.iter().any(is_inside)
}

fn callee(symbol: &str) -> String {
    let name = symbol.split("+0x").next().unwrap_or(symbol);
    super::disassembly::plain_name(name)
}

/// Returns the origins of an address, unless it is surely public: a place of the frame, a
/// constant, a pointer among the arguments or one that was loaded as it is.
fn address(memory: &Memory, values: &Values) -> Option<Origins> {
    let base = memory.base.as_deref()?;
    let mut origins = values.address(memory);
    let is_register = general(base).is_some() || memory.index.is_some();
    if !is_register || memory.index.as_deref().is_some_and(is_vector) {
        return memory.index.is_some().then_some(origins);
    }
    origins.remove("constant");
    let is_pointer = |it: &String| {
        let is_loaded = it.starts_with('[') && !it.contains("vector");
        it == "stack" || it.starts_with("argument") || is_loaded
    };
    let is_public = memory.index.is_none() && origins.len() <= 1 && origins.iter().all(is_pointer);
    (!is_public).then_some(origins)
}

#[cfg(test)]
mod tests {
    use super::findings;
    use crate::vector_code::disassembly::parsed;

    /// Returns kinds and origins of a function's places.
    fn places(lines: &[&str]) -> Vec<(&'static str, String)> {
        let mut text = "0000000000001000 <f>:\n".to_owned();
        for (address, line) in (0x1000..).zip(lines) {
            text.push_str(&format!("    {address:x}:\t90\t{line}\n"));
        }
        let functions = parsed(&text);
        let found = findings(&functions[0]).into_iter();
        found.map(|(_, it)| (it.kind, it.origins)).collect()
    }

    fn of(kind: &'static str, origins: &str) -> (&'static str, String) {
        (kind, origins.to_owned())
    }

    #[test]
    fn a_branch_depends_on_a_vector_also_by_way_of_the_stack() {
        let lines = [
            "vmovdqu64 ZMMWORD PTR [rsp+0x40],zmm1",
            "mov    rax,QWORD PTR [rsp+0x48]",
            "test   al,0x1",
            "jne    1000 <f>",
            "ret",
        ];
        assert_eq!(places(&lines), [of("branch", "vector")]);
    }

    #[test]
    fn a_branch_on_a_mask_depends_on_the_compared_vectors() {
        let lines = [
            "vpcmpeqb k1,zmm0,zmm1",
            "kortestd k1,k1",
            "jb     1000 <f>",
            "ret",
        ];
        assert_eq!(places(&lines), [of("branch", "vector")]);
    }

    #[test]
    fn a_counter_is_a_constant_and_a_length_an_argument() {
        let lines = [
            "mov    eax,0xa",
            "dec    rax",
            "jne    1001 <f+0x1>",
            "cmp    rsi,0x40",
            "jb     1000 <f>",
            "ret",
        ];
        let expected = [of("branch", "constant"), of("branch", "argument rsi")];
        assert_eq!(places(&lines), expected);
    }

    #[test]
    fn all_paths_to_a_branch_count() {
        let lines = [
            "mov    eax,0x1",
            "test   rdi,rdi",
            "je     1004 <f+0x4>",
            "vmovq  rax,xmm0",
            "test   rax,rax",
            "jne    1000 <f>",
            "ret",
        ];
        let found = places(&lines);
        assert_eq!(found[1], of("branch", "vector"));
    }

    #[test]
    fn plain_pointers_are_no_places_and_computed_addresses_are() {
        let lines = [
            "mov    rax,QWORD PTR [rdi+0x8]",
            "vmovdqu64 zmm0,ZMMWORD PTR [rax]",
            "vmovq  rcx,xmm0",
            "movzx  edx,BYTE PTR [rdi+rcx*1]",
            "add    rax,rcx",
            "mov    edx,DWORD PTR [rax]",
            "ret",
        ];
        let expected = [
            of("address", "argument rdi & vector"),
            of("address", "[argument rdi+0x8] & vector"),
        ];
        assert_eq!(places(&lines), expected);
    }

    #[test]
    fn gathers_and_divisions_are_found() {
        let lines = [
            "vpgatherqq zmm1{k1},QWORD PTR [rsi+zmm0*8]",
            "vmovq  rcx,xmm1",
            "div    rcx",
            "ret",
        ];
        let expected = [
            of("gather", "argument rsi & vector"),
            of("masked access", "unknown"),
            of("division", "vector"),
        ];
        assert_eq!(places(&lines), expected);
    }
}
