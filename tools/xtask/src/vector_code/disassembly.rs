//! Functions of a program as instructions, by `objdump`.

use std::collections::BTreeMap;
use std::process::Command;

use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSection as _};

/// A function of a program.
pub(super) struct MachineFunction {
    pub(super) name: String,
    pub(super) instructions: Vec<Instruction>,
}

/// An instruction in Intel's syntax.
pub(super) struct Instruction {
    pub(super) address: u64,
    pub(super) mnemonic: String,
    pub(super) operands: Vec<Operand>,
    /// Address that a direct jump leads to, and the name that `objdump` gives to a direct target.
    pub(super) target: Option<(u64, String)>,
    /// True for an instruction of AVX-512: its encoding begins with the prefix EVEX, or it works on masks.
    pub(super) is_avx512: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Operand {
    Register {
        name: String,
        /// Mask in braces.
        mask: Option<String>,
    },
    Memory(Memory),
    Immediate,
}

/// An operand in memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Memory {
    /// Bytes; 0 if the instruction accesses none.
    pub(super) size: usize,
    pub(super) base: Option<String>,
    pub(super) index: Option<String>,
    pub(super) displacement: i64,
    pub(super) mask: Option<String>,
}

/// Returns the compiler's name and version, as it writes them into the program.
pub(super) fn compiler(data: &[u8]) -> Result<String, String> {
    let file = ElfFile64::<Endianness>::parse(data).map_err(|error| error.to_string())?;
    let section = file.section_by_name(".comment").ok_or("no .comment")?;
    let text = section.data().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(text).into_owned();
    let found = text.split('\0').find(|it| it.starts_with("rustc version"));
    Ok(found.ok_or("no version of rustc in .comment")?.to_owned())
}

/// Returns all functions of a program.
pub(super) fn functions(path: &str) -> Result<Vec<MachineFunction>, String> {
    let mut command = Command::new("objdump");
    command.args(["--disassemble", "-M", "intel", "--wide", path]);
    let output = command
        .output()
        .map_err(|error| format!("objdump: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let mut functions = parse(&String::from_utf8_lossy(&output.stdout));
    name_imports(path, &mut functions)?;
    Ok(functions)
}

/// Name of a call whose target is in the table of imports, until `name_imports`.
const IMPORT: &str = "import";

/// Names the functions that are called through the table of imports.
fn name_imports(path: &str, functions: &mut [MachineFunction]) -> Result<(), String> {
    let output = Command::new("objdump")
        .args(["--dynamic-reloc", path])
        .output()
        .map_err(|error| format!("objdump: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let mut names = BTreeMap::new();
    let begins: BTreeMap<u64, String> = functions
        .iter()
        .filter_map(|it| Some((it.instructions.first()?.address, it.name.clone())))
        .collect();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [offset, _, symbol] = fields[..] else {
            continue;
        };
        let Some(offset) = number(offset) else {
            continue;
        };
        // A function of the program itself.
        let inside = symbol.strip_prefix("*ABS*+").and_then(number);
        let name = match inside {
            Some(address) => begins.get(&address).cloned(),
            None => Some(plain_name(symbol)),
        };
        names.extend(name.map(|it| (offset, it)));
    }
    let all = functions.iter_mut().flat_map(|it| &mut it.instructions);
    for (place, name) in all.filter_map(|it| it.target.as_mut()) {
        if name == IMPORT {
            let found = names.get(place);
            name.clone_from(found.ok_or_else(|| format!("no import at {place:#x}"))?);
        }
    }
    Ok(())
}

fn parse(text: &str) -> Vec<MachineFunction> {
    let mut functions: Vec<MachineFunction> = Vec::new();
    for line in text.lines() {
        if let Some(name) = heading(line) {
            functions.push(MachineFunction {
                name: plain_name(name),
                instructions: Vec::new(),
            });
        } else if let (Some(function), Some(instruction)) = (functions.last_mut(), parse_line(line))
        {
            function.instructions.push(instruction);
        }
    }
    functions
}

fn heading(line: &str) -> Option<&str> {
    let (address, name) = line.split_once(" <")?;
    let is_address = !address.is_empty() && address.bytes().all(|it| it.is_ascii_hexdigit());
    name.strip_suffix(">:").filter(|_| is_address)
}

fn parse_line(line: &str) -> Option<Instruction> {
    let mut columns = line.split('\t');
    let address = columns.next()?.trim().strip_suffix(':')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let bytes = columns.next()?.trim();
    let (text, comment) = columns
        .next()
        .map(|it| it.split_once(" # ").unwrap_or((it, "")))?;
    let text = text.trim();
    // A prefix is a part of the name.
    let prefixes = [
        "rep ", "repz ", "repnz ", "lock ", "notrack ", "bnd ", "data16 ", "cs ", "ds ",
    ];
    let mut mnemonic = String::new();
    let mut rest = text;
    while let Some(prefix) = prefixes.iter().find(|it| rest.starts_with(**it)) {
        mnemonic.push_str(prefix);
        rest = rest[prefix.len()..].trim_start();
    }
    let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    mnemonic.push_str(name);
    let target = rest.split_once(" <").and_then(|(address, symbol)| {
        let address = u64::from_str_radix(address.trim(), 16).ok()?;
        Some((address, symbol.trim_end_matches('>').to_owned()))
    });
    let operands: Vec<Operand> = match target {
        Some(_) => Vec::new(),
        None => split_operands(rest).map(operand).collect(),
    };
    // A call through the table of other libraries' functions.
    let target = target.or_else(|| {
        let (place, _) = comment.split_once(" <")?;
        let place = u64::from_str_radix(place.trim(), 16).ok()?;
        (name == "call").then(|| (place, IMPORT.to_owned()))
    });
    let uses_masks = operands.iter().any(|operand| match operand {
        Operand::Register { name, mask } => is_mask(name) || mask.is_some(),
        Operand::Memory(memory) => memory.mask.is_some(),
        Operand::Immediate => false,
    });
    Some(Instruction {
        address,
        mnemonic,
        operands,
        target,
        is_avx512: bytes.starts_with("62 ") || uses_masks,
    })
}

fn split_operands(text: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    let parts = text.trim().split(move |it| {
        match it {
            '[' => is_inside = true,
            ']' => is_inside = false,
            _ => {}
        }
        it == ',' && !is_inside
    });
    // Empty: an instruction without operands.
    parts.filter(|part| !part.is_empty())
}

/// Names of sizes before an operand in memory.
const SIZES: [(&str, usize); 9] = [
    ("BYTE", 1),
    ("WORD", 2),
    ("DWORD", 4),
    ("QWORD", 8),
    ("XMMWORD", 16),
    ("YMMWORD", 32),
    ("ZMMWORD", 64),
    ("TBYTE", 10),
    ("FWORD", 6),
];

fn operand(text: &str) -> Operand {
    let mask = text.split('{').skip(1).find_map(|it| {
        let name = it.split('}').next()?;
        is_mask(name).then(|| name.to_owned())
    });
    let plain = text.split('{').next().unwrap_or(text).trim();
    if let Some((before, inside)) = plain.split_once('[') {
        let size = before.split_whitespace().next();
        let size = SIZES.iter().find(|it| Some(it.0) == size);
        let mut memory = Memory {
            size: size.map_or(0, |it| it.1),
            mask,
            ..Memory::default()
        };
        address(inside.trim_end_matches(']'), &mut memory);
        return Operand::Memory(memory);
    }
    // An address in a segment, as of variables of a thread.
    if plain.contains("PTR") || plain.contains("s:") {
        return Operand::Memory(Memory::default());
    }
    let is_number = plain.starts_with("0x") || plain.parse::<i64>().is_ok();
    match is_number {
        true => Operand::Immediate,
        false => Operand::Register {
            name: plain.to_owned(),
            mask,
        },
    }
}

fn address(text: &str, memory: &mut Memory) {
    let signed = text.replace('-', "+-");
    for part in signed.split('+').filter(|it| !it.is_empty()) {
        let digits = part.trim_start_matches('-').trim_start_matches("0x");
        if part.contains("0x") && memory.base.as_deref() == Some("rip") {
            // The place of a constant, which every change moves.
        } else if part.contains("0x") {
            let value = u64::from_str_radix(digits, 16).unwrap_or(0) as i64;
            memory.displacement += if part.starts_with('-') { -value } else { value };
        } else if let Some((register, _)) = part.split_once('*') {
            memory.index = Some(register.to_owned());
        } else if memory.base.is_none() {
            memory.base = Some(part.to_owned());
        } else {
            memory.index = Some(part.to_owned());
        }
    }
    // No index.
    if matches!(memory.index.as_deref(), Some("riz" | "eiz")) {
        memory.index = None;
    }
}

pub(super) fn is_mask(register: &str) -> bool {
    register.len() == 2 && register.starts_with('k') && register.as_bytes()[1].is_ascii_digit()
}

pub(super) fn is_vector(register: &str) -> bool {
    ["xmm", "ymm", "zmm"]
        .iter()
        .any(|it| register.starts_with(it))
}

/// Returns the name of a function without the hash that Rust adds, and without what the linker's
/// optimiser adds: both change with every version of the code.
pub(super) fn plain_name(symbol: &str) -> String {
    let symbol = symbol.split(".llvm.").next().unwrap_or(symbol);
    let symbol = symbol.split('@').next().unwrap_or(symbol);
    let rest = match symbol.strip_prefix("_ZN") {
        Some(rest) => Some(rest),
        // The newer form of names; the crate's own hash is before its name.
        None => symbol
            .strip_prefix("_R")
            .and_then(|rest| Some(rest.split_once("Cs")?.1.split_once('_')?.1)),
    };
    let Some(mut rest) = rest else {
        return symbol.to_owned();
    };
    let mut parts: Vec<&str> = Vec::new();
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let Some((part, after)) = rest[..digits]
            .parse()
            .ok()
            .and_then(|length| rest[digits..].split_at_checked(length))
        else {
            break;
        };
        parts.push(part);
        rest = after;
    }
    if parts.last().is_some_and(|it| is_hash(it)) {
        parts.pop();
    }
    let name = parts.join("::").replace("..", "::");
    let escapes = [
        ("$LT$", "<"),
        ("$GT$", ">"),
        ("$RF$", "&"),
        ("$BP$", "*"),
        ("$C$", ","),
        ("$u20$", " "),
        ("$u7b$", "{"),
        ("$u7d$", "}"),
        ("$u5b$", "["),
        ("$u5d$", "]"),
        ("$u3b$", ";"),
        ("_<", "<"),
    ];
    let plain = |name: String, (from, to): (&str, &str)| name.replace(from, to);
    escapes.into_iter().fold(name, plain)
}

fn is_hash(part: &str) -> bool {
    part.len() == 17 && part.starts_with('h') && part[1..].bytes().all(|it| it.is_ascii_hexdigit())
}

#[cfg(test)]
pub(super) fn parsed(text: &str) -> Vec<MachineFunction> {
    parse(text)
}

#[cfg(test)]
mod tests {
    use super::{Memory, Operand, operand, parse, plain_name};

    #[test]
    fn names_have_no_hash() {
        let symbol =
            "_ZN12taupe_chacha6avx5125group14Group$LT$_$GT$4open17h4c2a1acac29787a1E.llvm.35";
        assert_eq!(
            plain_name(symbol),
            "taupe_chacha::avx512::group::Group<_>::open"
        );
        assert_eq!(
            plain_name("_RNvNtCsgEmfK2I1SDS_4core9panicking9panic_fmt"),
            "core::panicking::panic_fmt"
        );
        assert_eq!(
            plain_name("aws_lc_0_47_0_gcm_init"),
            "aws_lc_0_47_0_gcm_init"
        );
    }

    #[test]
    fn operands_in_memory_have_their_parts() {
        let expected = Memory {
            size: 64,
            base: Some("rsp".to_owned()),
            index: Some("rcx".to_owned()),
            displacement: -0x40,
            mask: Some("k1".to_owned()),
        };
        assert_eq!(
            operand("ZMMWORD PTR [rsp+rcx*8-0x40]{k1}"),
            Operand::Memory(expected)
        );
        let expected = Memory {
            size: 4,
            base: Some("rip".to_owned()),
            ..Memory::default()
        };
        assert_eq!(operand("DWORD BCST [rip+0x12]"), Operand::Memory(expected));
    }

    #[test]
    fn lines_are_instructions() {
        let text = "0000000000001000 <f>:\n    1000:\t62 f1 fd 48 6f 00    \tvmovdqa64 zmm0,ZMMWORD PTR [rax]\n    1006:\t75 f8                \tjne    1000 <f>\n    1008:\tf3 c3                \trepz ret\n";
        let functions = parse(text);
        let [vector, branch, end] = &functions[0].instructions[..] else {
            panic!("three instructions");
        };
        assert!(vector.is_avx512 && !branch.is_avx512);
        assert_eq!(branch.target, Some((0x1000, "f".to_owned())));
        assert_eq!(end.mnemonic, "repz ret");
    }
}
